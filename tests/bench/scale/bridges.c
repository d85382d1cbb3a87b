#include "scale/bridges.h"

#include "core/clock.h"
#include "wire/router/heartbeat.h"
#include "wire/router/sync.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    fill_blocks = 500000,
    max_bytes = 64 << 20,
    heartbeats_before_a_look = 64,
    patience_ms = 20000
};

#define SUBJECT(tail) "namespace." FLEET_NAMESPACE ".component." FLEET_COMPONENT "." tail

/* ---- Heartbeats and events ---- */

/* Under the lock. */
static void publish_round(struct bridges *bridges)
{
    const struct fleet_round *round = &bridges->round;

    scene_send_round(bridges->scene, round);
    atomic_fetch_add(&bridges->events, round->events);
    atomic_fetch_add(&bridges->event_bytes, round->bytes.len);
}

/* The events of one worker's next request, some ten. */
static void publish_next(struct bridges *bridges)
{
    INTAKE_MUST(fleet_make(bridges->fleet, 1, &bridges->round));
    publish_round(bridges);
}

static void publish_heartbeat(struct bridges *bridges, uint32_t worker, struct kvb_buf *buf)
{
    struct kvb_heartbeat heartbeat;

    fleet_heartbeat(bridges->fleet, worker, &heartbeat);
    kvb_buf_reset(buf);
    INTAKE_MUST(kvb_heartbeat_encode(&heartbeat, buf));
    INTAKE_MUST(kvb_bus_publish(bridges->scene->bus, SUBJECT("kv_heartbeat"), kvb_buf_span(buf)));
    atomic_fetch_add(&bridges->heartbeat_bytes, buf->len);
}

/* What is due at a rate, `done` of it being done already. */
struct pace {
    uint64_t rate; /* a second */
    uint64_t since_ns;
    uint64_t done;
};

static bool is_due(const struct pace *pace)
{
    const uint64_t ns = kvb_clock_monotonic_ns() - pace->since_ns;

    return (double)pace->done < (double)ns * (double)pace->rate / (double)KVB_NS_PER_S;
}

static void set_pace(struct pace *pace, uint64_t rate)
{
    if (pace->rate != rate) {
        *pace = (struct pace){ .rate = rate, .since_ns = kvb_clock_monotonic_ns() };
    }
}

/* Other users of the lock come in between. */
static void publish_due_events(struct bridges *bridges, struct pace *events)
{
    set_pace(events, atomic_load(&bridges->events_a_second));
    while (is_due(events)) {
        (void)pthread_mutex_lock(&bridges->lock);
        publish_next(bridges);
        events->done += bridges->round.events;
        (void)pthread_mutex_unlock(&bridges->lock);
    }
}

static void
publish_due_heartbeats(struct bridges *bridges, struct pace *heartbeats, struct kvb_buf *buf)
{
    while (is_due(heartbeats)) {
        (void)pthread_mutex_lock(&bridges->lock);
        for (int i = 0; i < heartbeats_before_a_look && is_due(heartbeats); i++) {
            publish_heartbeat(
                bridges, (uint32_t)(heartbeats->done++ % bridges->fleet->options.workers), buf);
        }
        (void)pthread_mutex_unlock(&bridges->lock);
    }
}

static void publish_load(struct bridges *bridges, uint64_t number, struct kvb_buf *buf)
{
    kvb_buf_reset(buf);
    INTAKE_MUST(kvb_buf_append_format(
        buf,
        "{\"worker_id\":%" PRIu64 ",\"dp_rank\":0,\"endpoint_name\":\"generate\",\"metrics\":{"
        "\"request_active_slots\":%" PRIu64 ",\"request_total_slots\":256,"
        "\"kv_active_blocks\":%" PRIu64 ",\"kv_total_blocks\":4096,"
        "\"gpu_cache_usage_perc\":0.25,\"gpu_prefix_cache_hit_rate\":0.5,"
        "\"num_requests_waiting\":%" PRIu64 "}}",
        number % bridges->fleet->options.workers, number % 256, number % 4096, number % 7));
    INTAKE_MUST(kvb_bus_publish(bridges->scene->bus, SUBJECT("load_metrics"), kvb_buf_span(buf)));
}

static void publish_due_loads(struct bridges *bridges, struct pace *loads, struct kvb_buf *buf)
{
    set_pace(loads, atomic_load(&bridges->loads_a_second));
    while (is_due(loads)) {
        publish_load(bridges, loads->done++, buf);
    }
}

static void *publish(void *context)
{
    struct bridges *bridges = context;
    struct pace events = { 0 };
    struct pace heartbeats = { 0 };
    struct pace loads = { 0 };
    struct kvb_buf buf;

    (void)prctl(PR_SET_TIMERSLACK, 1); /* else 50 us late */
    kvb_buf_init(&buf, max_bytes);
    set_pace(&heartbeats, bridges->fleet->options.workers);
    while (!atomic_load(&bridges->is_stopping)) {
        publish_due_events(bridges, &events);
        publish_due_heartbeats(bridges, &heartbeats, &buf);
        publish_due_loads(bridges, &loads, &buf);
        kvb_bus_write(bridges->scene->bus);
        wait_until_ns(kvb_clock_monotonic_ns() + KVB_NS_PER_MS);
    }
    kvb_buf_done(&buf);
    return NULL;
}

/* ---- kv_sync ---- */

/* A range is forgotten, as by a bridge whose limits.sync_blocks is 0: the whole list follows. */
static kvb_status
answer(struct bridges *bridges, const struct kvb_sync_request *request, uint32_t worker)
{
    struct kvb_sync_reply gone = { .answer = KVB_SYNC_GONE, .worker_id = worker, .is_last = true };
    struct kvb_heartbeat heartbeat;

    if (request->kind == KVB_SYNC_SNAPSHOT && !request->has_buckets) {
        atomic_fetch_add(&bridges->lists, 1);
        return fleet_list(bridges->fleet, worker, &bridges->reply);
    }
    fleet_heartbeat(bridges->fleet, worker, &heartbeat);
    gone.epoch = heartbeat.epoch;
    gone.barrier_id = heartbeat.last_id;
    gone.last_id = heartbeat.last_id;
    return kvb_sync_reply_encode(&gone, &bridges->reply);
}

static const char request_subjects[] = SUBJECT("kv_sync.");

static void answer_request(void *context, const struct kvb_bus_message *message)
{
    struct bridges *bridges = context;
    struct kvb_sync_request request;
    const unsigned long worker = strtoul(message->subject + strlen(request_subjects), NULL, 10);

    INTAKE_MUST(
        message->reply && worker < bridges->fleet->options.workers ? KVB_OK : KVB_BAD_INPUT);
    INTAKE_MUST(kvb_sync_request_decode(message->payload, &request));
    kvb_buf_reset(&bridges->reply);
    (void)pthread_mutex_lock(&bridges->lock);
    INTAKE_MUST(answer(bridges, &request, (uint32_t)worker));
    (void)pthread_mutex_unlock(&bridges->lock);
    INTAKE_MUST(kvb_bus_publish(bridges->bus, message->reply, kvb_buf_span(&bridges->reply)));
}

static bool is_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

static void begin_answering(struct bridges *bridges)
{
    const struct kvb_bus_options options = { .url = bridges->scene->server.url,
                                             .name = "bridges",
                                             .sends_at_once = true };
    struct kvb_detail detail = { { 0 } };

    kvb_buf_init(&bridges->reply, max_bytes);
    INTAKE_MUST(kvb_bus_open(&options, &bridges->bus, &detail));
    INTAKE_MUST(kvb_bus_subscribe(
        bridges->bus, SUBJECT("kv_sync.*.*"), answer_request, bridges, &bridges->requests));
    INTAKE_MUST(wait_until(is_connected, bridges->bus, patience_ms) ? KVB_OK : KVB_IO);
    INTAKE_MUST(kvb_bus_flush(bridges->bus, patience_ms)); /* now it is subscribed */
}

/* ---- The whole ---- */

void bridges_begin(struct scene *scene, struct fleet *fleet, struct bridges *out_bridges)
{
    *out_bridges = (struct bridges){ .scene = scene, .fleet = fleet };
    INTAKE_MUST(pthread_mutex_init(&out_bridges->lock, NULL) == 0 ? KVB_OK : KVB_IO);
    fleet_round_init(&out_bridges->round);
    begin_answering(out_bridges);
    INTAKE_MUST(
        pthread_create(&out_bridges->thread, NULL, publish, out_bridges) == 0 ? KVB_OK : KVB_IO);
}

void bridges_end(struct bridges *bridges)
{
    atomic_store(&bridges->is_stopping, true);
    (void)pthread_join(bridges->thread, NULL);
    kvb_bus_unsubscribe(bridges->requests);
    kvb_bus_close(bridges->bus);
    kvb_buf_done(&bridges->reply);
    fleet_round_done(&bridges->round);
    (void)pthread_mutex_destroy(&bridges->lock);
}

static bool is_full(const struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->options.workers; i++) {
        if (fleet->workers[i].count < fleet->options.held) {
            return false;
        }
    }
    return true;
}

void bridges_fill(struct bridges *bridges)
{
    const uint32_t message_events = bridges->fleet->options.message_events;
    bool is_done = false;

    bridges->fleet->options.message_events = 0; /* sooner done */
    while (!is_done) {
        (void)pthread_mutex_lock(&bridges->lock);
        INTAKE_MUST(fleet_make(bridges->fleet, fill_blocks, &bridges->round));
        publish_round(bridges);
        is_done = is_full(bridges->fleet);
        (void)pthread_mutex_unlock(&bridges->lock);
        scene_wait_applied(bridges->scene, atomic_load(&bridges->events));
        bench_progress_now_and_then(
            "%.1f million blocks are listed", (double)bridges_copies(bridges) / 1e6);
    }
    bridges->fleet->options.message_events = message_events;
}

void bridges_set_rate(struct bridges *bridges, uint64_t events_a_second)
{
    atomic_store(&bridges->events_a_second, events_a_second);
}

void bridges_set_load_rate(struct bridges *bridges, uint64_t loads_a_second)
{
    atomic_store(&bridges->loads_a_second, loads_a_second);
}

uint64_t bridges_copies(struct bridges *bridges)
{
    uint64_t copies = 0;

    (void)pthread_mutex_lock(&bridges->lock);
    for (uint32_t i = 0; i < bridges->fleet->options.workers; i++) {
        copies += bridges->fleet->workers[i].blocks;
    }
    (void)pthread_mutex_unlock(&bridges->lock);
    return copies;
}
