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

/* How many streams a bridge has that no page has shown yet. */
static size_t missing_streams(const struct bridge_pages *bridge)
{
    struct json_object *left_out = kvb_json_member(bridge->status, "streams_left_out");
    struct json_object *page = kvb_json_member(bridge->status, "streams");
    const size_t seen = (size_t)json_object_object_length(bridge->streams);
    const size_t all = (size_t)json_object_get_uint64(left_out) + kvb_json_list_len(page);

    return all > seen ? all - seen : 0;
}

/* A bridge of many streams lists some in each message, in turn: keeps those of earlier ones. */
static void keep_streams(struct bridge_pages *bridge)
{
    struct json_object *page = kvb_json_member(bridge->status, "streams");
    const size_t count = kvb_json_list_len(page);

    if (!kvb_json_member(bridge->status, "streams_left_out")) {
        /* All are here, so those that it has no more go. */
        kvb_json_drop(&bridge->streams);
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

/* Takes the status, under the lock. */
static void keep_status(struct statuses *statuses, struct json_object *status)
{
    const char *id = kvb_json_member_text(status, "bridge_id");
    size_t at = 0;

    while (at < statuses->count &&
           strcmp(kvb_json_member_text(statuses->bridges[at].status, "bridge_id"), id) != 0) {
        at++;
    }
    /* At the end of the list without a match, and the list is full. */
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
    /* A later status replaces the earlier one; streams are kept one by one. */
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

    /* Parsing is under the lock too: main looks only twenty times a second. */
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

/* How long to wait in all for what has come until now: longer while nothing has, and while a bridge
 * has streams that no message has shown. */
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
        /* The limit depends on what has come, so it is asked for in each round. */
        const uint64_t limit_ms = wait_limit_ms(statuses);
        if (waited_ms >= limit_ms) {
            return;
        }
        if (waited_ms > listen_ms && limit_ms == complete_ms && !is_said) {
            kvctl_say("a bridge lists its workers in several messages, one a second: waiting");
            is_said = true;
        }
        (void)nanosleep(&pause, NULL); /* a signal that is handled makes it shorter */
    }
}

/* Fails, and says so, when no bridge has said anything. */
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
    /* A wrong name is said before a server is dialled. */
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
    kvb_bus_unsubscribe(subscription); /* from here on no handler runs, so no lock is needed */
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

/* ---- Showing ---- */

/* Appends a worker, a pod or a watch of pods, with the bridge that it is of. */
static void
append_item(struct json_object *out, const struct bridge_pages *bridge, struct json_object *item)
{
    if (json_object_is_type(item, json_type_object)) {
        /* The item is of a status that ends with the command, so it may be changed. */
        json_object_object_add(
            item, "bridge_id", json_object_get(kvb_json_member(bridge->status, "bridge_id")));
        json_object_array_add(out, json_object_get(item));
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

static void show_workers(const struct statuses *statuses, bool is_json)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = json_object_new_object();
    struct json_object *workers = json_object_new_array();
    struct json_object *pods = json_object_new_array();
    struct json_object *watches = json_object_new_array();

    for (size_t i = 0; i < statuses->count; i++) {
        const struct bridge_pages *bridge = &statuses->bridges[i];
        struct json_object *watch = kvb_json_member(bridge->status, "kubernetes");
        struct json_object *not_taken = kvb_json_member(watch, "not_taken");
        const size_t missing = missing_streams(bridge);

        json_object_object_foreach(bridge->streams, key, stream)
        {
            (void)key;
            append_item(workers, bridge, stream);
        }
        for (size_t pod = 0; pod < kvb_json_list_len(not_taken); pod++) {
            append_item(pods, bridge, json_object_array_get_idx(not_taken, pod));
        }
        append_item(watches, bridge, watch);
        if (missing > 0) {
            kvctl_say(
                "%zu ranks of %s were in no message: GET /state of it lists all", missing,
                kvb_json_member_text(bridge->status, "bridge_id"));
        }
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

enum kvctl_exit kvctl_workers(const struct kvctl_options *options)
{
    KVB_OWN(statuses_done) struct statuses statuses = { .lock = PTHREAD_MUTEX_INITIALIZER };
    const enum kvctl_exit gathered = gather_statuses(options, &statuses);

    if (gathered == kvctl_ok) {
        show_workers(&statuses, options->is_json);
    }
    return gathered;
}
