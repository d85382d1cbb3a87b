#include "bus/subject.h"
#include "core/clock.h"
#include "core/own.h"
#include "kvctl/kvctl.h"
#include "kvctl/watch_json.h"
#include "model/router_batch.h"
#include "wire/json/writer.h"
#include "wire/router/proto.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { shown_blocks = 4, line_bytes = 32 << 20, clock_bytes = 32 };

/* The handler runs on one thread of nats.c; the fields from lock on are shared with main. */
struct watch {
    const struct kvctl_options *options;
    struct kvb_router_batch batch; /* used only by the handler, like line */
    struct kvb_buf line;
    uint64_t shown;
    pthread_mutex_t lock;
    pthread_cond_t finished;
    bool is_done; /* lock */
};

struct place {
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
};

static bool is_wanted_worker(const struct kvctl_options *options, uint64_t worker_id)
{
    size_t i = 0;

    while (i < options->worker_count && options->workers[i] != worker_id) {
        i++;
    }
    return i < options->worker_count || options->worker_count == 0;
}

static bool is_event_wanted(const struct watch *watch, const struct kvb_router_event *event)
{
    static const unsigned kinds[] = { kvctl_stored, kvctl_removed, kvctl_cleared };
    const struct kvctl_options *options = watch->options;

    return (options->kinds == 0 || (options->kinds & kinds[event->kind])) &&
           (!options->has_rank || options->dp_rank == watch->batch.dp_rank) &&
           is_wanted_worker(options, watch->batch.worker_id);
}

/* ---- One event, for people ------------------------------------------------------------ */

static void watch_clock_text(char text[clock_bytes])
{
    const uint64_t now_us = kvb_clock_wall_us();
    const time_t now_s = (time_t)(now_us / 1000000);
    struct tm parts;

    localtime_r(&now_s, &parts);
    const size_t len = strftime(text, clock_bytes, "%H:%M:%S", &parts);
    (void)snprintf(text + len, clock_bytes - len, ".%03u", (unsigned)(now_us / 1000 % 1000));
}

static kvb_status append_blocks(
    const struct kvb_router_batch *batch, const struct kvb_router_event *event, struct kvb_buf *out)
{
    const uint32_t shown = event->block_count < shown_blocks ? event->block_count : shown_blocks;

    if (event->kind == KVB_ROUTER_CLEARED) {
        return KVB_OK;
    }
    KVB_TRY(kvb_buf_append_format(
        out, " %s %" PRIu32 " block%s", kvb_tier_name(event->tier), event->block_count,
        event->block_count == 1 ? "" : "s"));
    for (uint32_t i = 0; i < shown; i++) {
        KVB_TRY(
            kvb_buf_append_format(out, " %016" PRIx64, batch->blocks[event->block_at + i].value));
    }
    KVB_TRY(kvb_buf_append_text(out, shown < event->block_count ? " ..." : ""));
    if (event->kind == KVB_ROUTER_STORED && event->has_parent) {
        return kvb_buf_append_format(out, " after %016" PRIx64, event->parent.value);
    }
    return KVB_OK;
}

static kvb_status append_line(
    const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    const struct place *place, struct kvb_buf *out)
{
    char now[clock_bytes];

    watch_clock_text(now);
    KVB_TRY(kvb_buf_append_format(
        out, "%s %s/%s worker %" PRIu64 " rank %" PRIu32 " event %" PRIu64 " %s", now,
        place->name_space, place->component, batch->worker_id, batch->dp_rank, event->event_id,
        kvb_watch_kind_name(event->kind)));
    KVB_TRY(append_blocks(batch, event, out));
    return kvb_buf_append_text(out, "\n");
}

/* ---- One event, for programs ------------------------------------------------------------ */

static kvb_status append_json(
    const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    const struct place *place, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "namespace", place->name_space);
    kvb_json_write_pair_text(&json, "component", place->component);
    kvb_watch_event_json(batch, event, &json);
    kvb_json_write_end(&json, '}');
    KVB_TRY(json.status);
    return kvb_buf_append_text(out, "\n");
}

/* ---- Watching ------------------------------------------------------------------------------ */

static void finish_watch(struct watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    watch->is_done = true;
    pthread_cond_signal(&watch->finished);
    pthread_mutex_unlock(&watch->lock);
}

static bool is_full(const struct watch *watch)
{
    return watch->options->count > 0 && watch->shown >= watch->options->count;
}

static void show_watched_event(
    struct watch *watch, const struct kvb_router_event *event, const struct place *place)
{
    kvb_buf_reset(&watch->line);
    /* Into a buffer first, so that an event is printed as a whole or not at all. */
    const kvb_status status = (watch->options->is_json ? append_json : append_line)(
        &watch->batch, event, place, &watch->line);
    if (status != KVB_OK) {
        kvctl_say("event %" PRIu64 " not shown: %s", event->event_id, kvb_status_name(status));
        return;
    }
    kvctl_put(stdout, watch->line.data, watch->line.len);
    watch->shown++;
}

/* For --all: prints every message of the contract. */
static void show_any_message(struct watch *watch, const struct kvb_bus_message *message)
{
    const uint64_t count = watch->options->count;

    kvb_buf_reset(&watch->line);
    const kvb_status status = kvb_watch_message_json(
        message, count > 0 ? count - watch->shown : UINT64_MAX, &watch->batch, &watch->line,
        &watch->shown);
    if (status == KVB_OK) {
        kvctl_put(stdout, watch->line.data, watch->line.len);
    } else {
        kvctl_say("a message on %s not shown: %s", message->subject, kvb_status_name(status));
    }
}

static bool is_of_events(const char *tail)
{
    return strcmp(tail, "kv_events") == 0 || strcmp(tail, "kv_events_pb") == 0 ||
           strcmp(tail, "kv_window_events") == 0;
}

static void show_events(struct watch *watch, const struct kvb_bus_message *message)
{
    const char *tail = NULL;
    struct place place;

    if (kvb_subject_split(message->subject, place.name_space, place.component, &tail) != KVB_OK ||
        !is_of_events(tail)) {
        return;
    }
    const kvb_status status = kvb_router_payload_decode(message->payload, &watch->batch);
    if (status != KVB_OK) {
        kvctl_say(
            "%s: %zu bytes that are no event: %s", message->subject, message->payload.len,
            kvb_status_name(status));
        return;
    }
    /* One message may have several events, of which --count may want only some. */
    for (size_t i = 0; i < watch->batch.event_count && !is_full(watch); i++) {
        if (is_event_wanted(watch, &watch->batch.events[i])) {
            show_watched_event(watch, &watch->batch.events[i], &place);
        }
    }
}

static void on_watched_message(void *context, const struct kvb_bus_message *message)
{
    struct watch *watch = context;

    if (is_full(watch)) {
        return; /* main is about to unsubscribe */
    }
    (watch->options->is_all ? show_any_message : show_events)(watch, message);
    /* Also ends when the reader of stdout is gone, as with `| head`. */
    if (fflush(stdout) != 0 || is_full(watch)) {
        finish_watch(watch);
    }
}

static bool is_of_subscription(const void *context, const struct kvb_denial *denial)
{
    (void)context;
    return !denial->is_publish; /* there is one */
}

/* nats-server refuses a subscription some time after the call: without this look, the command would
 * wait for events that never come.  False: it was refused. */
static bool wait_for_end(struct watch *watch, struct kvb_bus *bus)
{
    struct kvb_detail why = { .text = "" };
    bool is_denied = false;

    pthread_mutex_lock(&watch->lock);
    while (!watch->is_done && !is_denied) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        /* Looks once a second. */
        until.tv_sec++;
        (void)pthread_cond_timedwait(&watch->finished, &watch->lock, &until);
        is_denied = kvb_bus_is_denied(bus, is_of_subscription, NULL, &why);
    }
    pthread_mutex_unlock(&watch->lock);
    if (is_denied) {
        kvctl_say("%s: kvctl permissions operator prints what kvctl needs", why.text);
    }
    return !is_denied;
}

static enum kvctl_exit
watch_subject(const struct kvctl_line *line, const char *subject, struct watch *watch)
{
    struct kvb_bus_subscription *subscription = NULL;

    const kvb_status status =
        kvb_bus_subscribe(line->bus, subject, on_watched_message, watch, &subscription);
    if (status != KVB_OK) {
        kvctl_say("cannot subscribe to %s: %s", subject, kvb_status_name(status));
        return kvctl_failed;
    }
    const bool has_ended = wait_for_end(watch, line->bus);
    /* Asked before the subscription ends, which forgets it. */
    const uint64_t dropped = kvb_bus_dropped(subscription);
    kvb_bus_unsubscribe(subscription);
    if (dropped > 0) {
        kvctl_say("%" PRIu64 " messages came faster than they could be shown", dropped);
    }
    return has_ended ? kvctl_ok : kvctl_failed;
}

static void say_change(bool is_connected)
{
    if (is_connected) {
        kvctl_say("NATS is back");
    } else {
        kvctl_say("NATS is away, waiting for it: what is published meanwhile is missed");
    }
}

/* The subject for --all: namespace.>, or namespace.N.> with --namespace only. */
static kvb_status make_subject_of_all(const struct kvctl_options *options, char *out)
{
    if (options->component) {
        return kvb_subject_make(
            out, options->name_space ? options->name_space : "*", options->component, ">");
    }
    if (options->name_space && !kvb_name_is_valid(options->name_space)) {
        return KVB_BAD_INPUT;
    }
    (void)snprintf(
        out, kvb_subject_bytes, "namespace.%s%s>", options->name_space ? options->name_space : "",
        options->name_space ? "." : "");
    return KVB_OK;
}

/* Events have several subjects; one subscription for all keeps them in order. */
static kvb_status make_subject(const struct kvctl_options *options, char *out)
{
    if (options->is_all) {
        return make_subject_of_all(options, out);
    }
    return kvb_subject_make(
        out, options->name_space ? options->name_space : "*",
        options->component ? options->component : "*", "*");
}

enum kvctl_exit kvctl_watch(const struct kvctl_options *options)
{
    struct watch watch = { .options = options,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .finished = PTHREAD_COND_INITIALIZER };
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    char subject[kvb_subject_bytes];

    if (make_subject(options, subject) != KVB_OK) {
        kvctl_say("--namespace, --component: 1 to 64 of A-Z a-z 0-9 _ -, or *");
        return kvctl_usage;
    }
    const enum kvctl_exit connected = kvctl_connect(options, say_change, &line);
    if (connected != kvctl_ok) {
        return connected;
    }
    kvb_buf_init(&watch.line, line_bytes);
    const enum kvctl_exit result = watch_subject(&line, subject, &watch);
    kvb_buf_done(&watch.line);
    kvb_router_batch_done(&watch.batch);
    return result;
}
