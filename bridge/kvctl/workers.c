#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvctl/kvctl.h"
#include "wire/json/tree.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

/* `workers`: where bridges know their workers from, and which pods are none, and why.  Bridges say
 * so in the status that each publishes every second; one of many streams lists them in several. */

enum {
    poll_ms = 50,
    listen_ms = 1500,    /* at least: each bridge has said something */
    first_ms = 4500,     /* for the first status, where a machine is busy */
    complete_ms = 60000, /* for the last page of the largest bridge */
    max_bridges = 64,
    max_status_depth = 16
};

struct bridge_pages {
    struct json_object *status;  /* owned; the newest */
    struct json_object *streams; /* owned; of all its pages, by worker and rank */
};

/* The handler runs on a thread of nats.c. */
struct statuses {
    pthread_mutex_t lock;
    size_t count;
    struct bridge_pages bridges[max_bridges]; /* under the lock */
    size_t refused;                           /* that cannot be read, or above the limit */
};

static const char *id_of_bridge(struct json_object *status)
{
    const char *id = json_object_get_string(kvb_json_member(status, "bridge_id"));

    return id ? id : "";
}

/* How many streams a bridge has that no page has shown yet. */
static size_t missing_streams(const struct bridge_pages *bridge)
{
    struct json_object *left_out = kvb_json_member(bridge->status, "streams_left_out");
    struct json_object *page = kvb_json_member(bridge->status, "streams");
    const size_t seen = (size_t)json_object_object_length(bridge->streams);
    const size_t all = (size_t)json_object_get_uint64(left_out) + kvb_json_list_len(page);

    return all > seen ? all - seen : 0;
}

static void keep_streams(struct bridge_pages *bridge)
{
    struct json_object *page = kvb_json_member(bridge->status, "streams");
    const size_t count = kvb_json_list_len(page);

    if (!kvb_json_member(bridge->status, "streams_left_out")) {
        kvb_json_drop(&bridge->streams); /* all are here */
        bridge->streams = json_object_new_object();
    }
    for (size_t i = 0; i < count; i++) {
        struct json_object *stream = json_object_array_get_idx(page, i);
        char key[64];
        (void)snprintf(
            key, sizeof key, "%" PRIu64 "/%" PRIu64, kvb_json_member_u64(stream, "worker_id"),
            kvb_json_member_u64(stream, "dp_rank"));
        json_object_object_add(bridge->streams, key, json_object_get(stream));
    }
}

/* Takes the status. */
static void keep_status(struct statuses *statuses, struct json_object *status)
{
    size_t at = 0;

    while (at < statuses->count &&
           strcmp(id_of_bridge(statuses->bridges[at].status), id_of_bridge(status)) != 0) {
        at++;
    }
    if (at == max_bridges) {
        statuses->refused++;
        kvb_json_drop(&status);
        return;
    }
    struct bridge_pages *bridge = &statuses->bridges[at];
    if (at == statuses->count) {
        statuses->count++;
        *bridge = (struct bridge_pages){ .streams = json_object_new_object() };
    }
    kvb_json_drop(&bridge->status);
    bridge->status = status;
    keep_streams(bridge);
}

static void on_bridge_status(void *context, const struct kvb_bus_message *message)
{
    struct statuses *statuses = context;
    struct json_object *status = NULL;
    struct kvb_json_budget budget = { .depth = max_status_depth,
                                      .containers = kvb_max_nats_payload_bytes,
                                      .values = kvb_max_nats_payload_bytes };

    (void)pthread_mutex_lock(&statuses->lock);
    if (kvb_json_parse(message->payload, &budget, &status) == KVB_OK) {
        keep_status(statuses, status);
    } else {
        statuses->refused++;
    }
    (void)pthread_mutex_unlock(&statuses->lock);
}

static void statuses_done(struct statuses *statuses)
{
    for (size_t i = 0; i < statuses->count; i++) {
        kvb_json_drop(&statuses->bridges[i].status);
        kvb_json_drop(&statuses->bridges[i].streams);
    }
    (void)pthread_mutex_destroy(&statuses->lock);
}

/* Until when there is something to wait for, after the first listen_ms. */
static uint64_t wait_limit_ms(struct statuses *statuses)
{
    size_t missing = 0;

    (void)pthread_mutex_lock(&statuses->lock);
    const size_t count = statuses->count;
    for (size_t i = 0; i < count; i++) {
        missing += missing_streams(&statuses->bridges[i]);
    }
    (void)pthread_mutex_unlock(&statuses->lock);
    return count == 0 ? first_ms : missing > 0 ? complete_ms : listen_ms;
}

static void await_statuses(struct statuses *statuses)
{
    const struct timespec pause = { .tv_nsec = poll_ms * 1000000L };
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    bool is_said = false;

    for (;;) {
        const uint64_t waited_ms = (kvb_clock_monotonic_ns() - began_ns) / KVB_NS_PER_MS;
        const uint64_t limit_ms = wait_limit_ms(statuses);
        if (waited_ms >= listen_ms && waited_ms >= limit_ms) {
            return;
        }
        if (waited_ms > listen_ms && limit_ms == complete_ms && !is_said) {
            kvctl_say("a bridge lists its workers in several messages, one a second: waiting");
            is_said = true;
        }
        (void)nanosleep(&pause, NULL); /* a signal that is handled makes it shorter */
    }
}

static enum kvctl_exit gather_statuses(const struct kvctl_options *options, struct statuses *out)
{
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    struct kvb_bus_subscription *subscription = NULL;
    char subject[kvb_subject_bytes];

    if (kvb_subject_make(
            subject, options->name_space ? options->name_space : "*",
            options->component ? options->component : "*", "bridge_status") != KVB_OK) {
        kvctl_say("--namespace, --component: 1 to 64 of A-Z a-z 0-9 _ -, or *");
        return kvctl_usage;
    }
    const enum kvctl_exit connected = kvctl_connect(options, NULL, &line);
    if (connected != kvctl_ok) {
        return connected;
    }
    const kvb_status status =
        kvb_bus_subscribe(line.bus, subject, on_bridge_status, out, &subscription);
    if (status != KVB_OK) {
        kvctl_say("cannot subscribe to %s: %s", subject, kvb_status_name(status));
        return kvctl_failed;
    }
    await_statuses(out);
    kvb_bus_unsubscribe(subscription);
    return kvctl_ok;
}

/* ---- Showing ---- */

static void
append_item(struct json_object *out, struct json_object *status, struct json_object *item)
{
    if (json_object_is_type(item, json_type_object)) {
        json_object_object_add(
            item, "bridge_id", json_object_get(kvb_json_member(status, "bridge_id")));
        json_object_array_add(out, json_object_get(item));
    }
}

static void append_streams(struct json_object *out, const struct bridge_pages *bridge)
{
    json_object_object_foreach(bridge->streams, key, stream)
    {
        (void)key;
        append_item(out, bridge->status, stream);
    }
}

static void
append_pods(struct json_object *out, struct json_object *status, struct json_object *pods)
{
    for (size_t i = 0; i < kvb_json_list_len(pods); i++) {
        append_item(out, status, json_object_array_get_idx(pods, i));
    }
}

static void print_workers(struct json_object *workers)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },
        { "RANK", "dp_rank", true },
        { "ORIGIN", "origin", false },
        { "STATE", "state", false },
        { "POD", "pod", false },
        { "NODE", "node", false },
        { "ROLE", "role", false },
        { "READY", "ready", false },
        { "DRAINING", "draining", false },
        { "ADDRESS", "address", false },
        { "EVENTS", "endpoint", false },
        { "MODEL", "model", false },
        { "MODEL FROM", "model_rule", false },
        { "BRIDGE", "bridge_id", false },
        { "WHY", "why", false },
    };

    kvctl_print_table(stdout, workers, columns, KVB_COUNT_OF(columns));
}

static void print_pods(struct json_object *pods, struct json_object *watches)
{
    static const struct kvctl_column columns[] = {
        { "POD", "pod", false },          { "NAMESPACE", "namespace_k8s", false },
        { "REASON", "reason", false },    { "WHAT TO DO", "remedy", false },
        { "BRIDGE", "bridge_id", false },
    };
    static const struct kvctl_column watch_columns[] = {
        { "PODS", "state", false },      { "AWAY_S", "away_s", true },
        { "TAKEN", "pods.taken", true }, { "PHASE", "pods.phase", true },
        { "WHY", "why", false },         { "BRIDGE", "bridge_id", false },
    };

    if (json_object_array_length(watches) > 0) {
        printf("\n");
        kvctl_print_table(stdout, watches, watch_columns, KVB_COUNT_OF(watch_columns));
    }
    if (json_object_array_length(pods) > 0) {
        printf("\nPods that are not taken, 32 of each bridge at most:\n");
        kvctl_print_table(stdout, pods, columns, KVB_COUNT_OF(columns));
    }
}

static void say_unlisted(const struct bridge_pages *bridge)
{
    const size_t missing = missing_streams(bridge);

    if (missing > 0) {
        kvctl_say(
            "%zu ranks of %s were in no message: GET /state of it lists all", missing,
            id_of_bridge(bridge->status));
    }
}

static void show_workers(const struct statuses *statuses, bool is_json)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = json_object_new_object();
    struct json_object *workers = json_object_new_array();
    struct json_object *pods = json_object_new_array();
    struct json_object *watches = json_object_new_array();

    for (size_t i = 0; i < statuses->count; i++) {
        struct json_object *status = statuses->bridges[i].status;
        struct json_object *watch = kvb_json_member(status, "kubernetes");
        append_streams(workers, &statuses->bridges[i]);
        append_pods(pods, status, kvb_json_member(watch, "not_taken"));
        append_item(watches, status, watch);
        say_unlisted(&statuses->bridges[i]);
    }
    json_object_object_add(root, "workers", workers);
    json_object_object_add(root, "pods", pods);
    json_object_object_add(root, "kubernetes", watches);
    if (is_json) {
        kvctl_print(stdout, "%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PLAIN));
        return;
    }
    print_workers(workers);
    print_pods(pods, watches);
}

/* Fails, and says so, when no bridge has said anything. */
static enum kvctl_exit gather_some(const struct kvctl_options *options, struct statuses *out)
{
    const enum kvctl_exit gathered = gather_statuses(options, out);

    if (gathered != kvctl_ok) {
        return gathered;
    }
    if (out->refused > 0) {
        kvctl_say("%zu statuses of bridges cannot be shown", out->refused);
    }
    if (out->count == 0) {
        kvctl_say(
            "no bridge has said anything in %d ms: is one running, with this NATS server?",
            first_ms);
        return kvctl_failed;
    }
    return kvctl_ok;
}

enum kvctl_exit kvctl_workers(const struct kvctl_options *options)
{
    KVB_OWN(statuses_done) struct statuses statuses = { .lock = PTHREAD_MUTEX_INITIALIZER };
    const enum kvctl_exit gathered = gather_some(options, &statuses);

    if (gathered == kvctl_ok) {
        show_workers(&statuses, options->is_json);
    }
    return gathered;
}

/* ---- For other commands ---- */

static void append_named(struct json_object *out, const struct bridge_pages *bridge)
{
    static const char *const names[] = { "namespace", "component" };

    json_object_object_foreach(bridge->streams, key, stream)
    {
        (void)key;
        for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
            json_object_object_add(
                stream, names[i], json_object_get(kvb_json_member(bridge->status, names[i])));
        }
        append_item(out, bridge->status, stream);
    }
}

enum kvctl_exit
kvctl_streams_of_bridges(const struct kvctl_options *options, struct json_object **out_rows)
{
    KVB_OWN(statuses_done) struct statuses statuses = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvctl_options all = *options;

    all.name_space = NULL;
    all.component = NULL;
    const enum kvctl_exit gathered = gather_some(&all, &statuses);
    if (gathered != kvctl_ok) {
        return gathered;
    }
    *out_rows = json_object_new_array();
    for (size_t i = 0; i < statuses.count; i++) {
        append_named(*out_rows, &statuses.bridges[i]);
    }
    return kvctl_ok;
}
