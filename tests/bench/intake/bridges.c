#include "intake/bridges.h"

#include "core/array.h"
#include "core/clock.h"
#include "parts/bench.h"
#include "wire/router/heartbeat.h"
#include "wire/router/sync.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum {
    fill_blocks = 500000,
    max_bytes = 256 << 20,
    heartbeats_before_a_look = 64,
    patience_ms = 20000
};

#define SUBJECT(tail) "namespace." FLEET_NAMESPACE ".component." FLEET_COMPONENT "." tail

void wait_until_ns(uint64_t then_ns)
{
    const struct timespec then = { .tv_sec = (time_t)(then_ns / KVB_NS_PER_S),
                                   .tv_nsec = (long)(then_ns % KVB_NS_PER_S) };

    if (kvb_clock_monotonic_ns() < then_ns) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL); /* early is fine */
    }
}

struct kvb_bus *connect_to_nats(const char *url, const char *name, bool sends_at_once)
{
    const struct kvb_bus_options options = { .url = url,
                                             .name = name,
                                             .sends_at_once = sends_at_once };
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct kvb_detail detail = { { 0 } };
    struct kvb_bus *bus = NULL;

    BENCH_MUST(kvb_bus_open(&options, &bus, &detail));
    while (!kvb_bus_is_connected(bus)) {
        BENCH_MUST_BE(kvb_clock_monotonic_ns() < began_ns + patience_ms * KVB_NS_PER_MS);
        wait_until_ns(kvb_clock_monotonic_ns() + KVB_NS_PER_MS);
    }
    return bus;
}

static void encode_heartbeat(const struct fleet *fleet, uint32_t worker, struct kvb_buf *buf)
{
    struct kvb_heartbeat heartbeat;

    fleet_heartbeat(fleet, worker, &heartbeat);
    kvb_buf_reset(buf);
    BENCH_MUST(kvb_heartbeat_encode(&heartbeat, buf));
}

void send_round(struct kvb_bus *bus, const struct fleet_round *round)
{
    for (size_t i = 0; i < round->count; i++) {
        BENCH_MUST(kvb_bus_publish(bus, SUBJECT("kv_events_pb"), fleet_message(round, i)));
    }
    kvb_bus_write(bus);
}

void send_heartbeats(struct kvb_bus *bus, const struct fleet *fleet)
{
    struct kvb_buf buf;

    kvb_buf_init(&buf, max_bytes);
    for (uint32_t i = 0; i < fleet->options.workers; i++) {
        encode_heartbeat(fleet, i, &buf);
        BENCH_MUST(kvb_bus_publish(bus, SUBJECT("kv_heartbeat"), kvb_buf_span(&buf)));
    }
    kvb_bus_write(bus);
    kvb_buf_done(&buf);
}

/* ---- A script ---- */

struct utterance {
    uint64_t after_ns; /* since the thread began */
    bool is_heartbeat;
    size_t at; /* in bytes */
    size_t len;
};

static void
add_utterance(struct talker *talker, uint64_t after_ns, bool is_heartbeat, kvb_span bytes)
{
    BENCH_MUST(kvb_array_reserve(
        &talker->script, &talker->capacity, talker->count + 1, sizeof *talker->script, 1U << 22U));
    talker->script[talker->count++] = (struct utterance){ .after_ns = after_ns,
                                                          .is_heartbeat = is_heartbeat,
                                                          .at = talker->bytes.len,
                                                          .len = bytes.len };
    BENCH_MUST(kvb_buf_append(&talker->bytes, bytes.data, bytes.len));
}

static void make_script(struct talker *talker)
{
    const uint64_t end_ms = (uint64_t)(talker->seconds * 1e3);
    uint64_t blocks = 0;
    struct fleet_round round;
    struct kvb_buf buf;

    kvb_buf_init(&talker->bytes, max_bytes);
    kvb_buf_init(&buf, max_bytes);
    fleet_round_init(&round);
    for (uint64_t ms = 0; ms < end_ms; ms++) {
        const uint64_t after_ns = ms * KVB_NS_PER_MS;
        for (; blocks <= ms * talker->rate / 1000; blocks += round.blocks) {
            fleet_make(talker->fleet, talker->burst, &round);
            for (size_t i = 0; i < round.count; i++) {
                add_utterance(talker, after_ns, false, fleet_message(&round, i));
            }
        }
        encode_heartbeat(talker->fleet, (uint32_t)(ms % talker->fleet->options.workers), &buf);
        add_utterance(talker, after_ns, true, kvb_buf_span(&buf));
    }
    fleet_round_done(&round);
    kvb_buf_done(&buf);
}

static void *talk(void *context)
{
    const struct talker *talker = context;
    const uint64_t begin_ns = kvb_clock_monotonic_ns();

    (void)prctl(PR_SET_TIMERSLACK, 1); /* else 50 us late */
    for (size_t i = 0; i < talker->count; i++) {
        const struct utterance *here = &talker->script[i];
        wait_until_ns(begin_ns + here->after_ns);
        BENCH_MUST(kvb_bus_publish(
            talker->bus, here->is_heartbeat ? SUBJECT("kv_heartbeat") : SUBJECT("kv_events_pb"),
            (kvb_span){ .data = talker->bytes.data + here->at, .len = here->len }));
        kvb_bus_write(talker->bus);
    }
    return NULL;
}

void talker_begin(struct talker *talker)
{
    make_script(talker);
    BENCH_MUST_BE(pthread_create(&talker->thread, NULL, talk, talker) == 0);
}

void talker_end(struct talker *talker)
{
    (void)pthread_join(talker->thread, NULL);
    kvb_buf_done(&talker->bytes);
    free(talker->script);
}

/* ---- Heartbeats and events ---- */

/* Under the lock. */
static void publish_round(struct bridges *bridges, uint64_t blocks)
{
    fleet_make(bridges->fleet, blocks, &bridges->round);
    send_round(bridges->bus, &bridges->round);
    atomic_fetch_add(&bridges->events, bridges->round.events);
    atomic_fetch_add(&bridges->event_bytes, bridges->round.bytes.len);
}

static void publish_heartbeat(struct bridges *bridges, uint32_t worker, struct kvb_buf *buf)
{
    encode_heartbeat(bridges->fleet, worker, buf);
    BENCH_MUST(kvb_bus_publish(bridges->bus, SUBJECT("kv_heartbeat"), kvb_buf_span(buf)));
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
        publish_round(bridges, 1); /* of one worker's next request, some ten */
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
    BENCH_MUST(kvb_buf_append_format(
        buf,
        "{\"worker_id\":%" PRIu64 ",\"dp_rank\":0,\"endpoint_name\":\"generate\",\"metrics\":{"
        "\"request_active_slots\":%" PRIu64 ",\"request_total_slots\":256,"
        "\"kv_active_blocks\":%" PRIu64 ",\"kv_total_blocks\":4096,"
        "\"gpu_cache_usage_perc\":0.25,\"gpu_prefix_cache_hit_rate\":0.5,"
        "\"num_requests_waiting\":%" PRIu64 "}}",
        number % bridges->fleet->options.workers, number % 256, number % 4096, number % 7));
    BENCH_MUST(kvb_bus_publish(bridges->bus, SUBJECT("load_metrics"), kvb_buf_span(buf)));
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
    for (;;) {
        publish_due_events(bridges, &events);
        publish_due_heartbeats(bridges, &heartbeats, &buf);
        publish_due_loads(bridges, &loads, &buf);
        kvb_bus_write(bridges->bus);
        wait_until_ns(kvb_clock_monotonic_ns() + KVB_NS_PER_MS);
    }
    return NULL;
}

/* ---- kv_sync ---- */

/* A range is forgotten, as by a bridge whose limits.sync_blocks is 0: the whole list follows. */
static void answer(struct bridges *bridges, const struct kvb_sync_request *request, uint32_t worker)
{
    struct kvb_sync_reply gone = { .answer = KVB_SYNC_GONE, .worker_id = worker, .is_last = true };
    struct kvb_heartbeat heartbeat;

    if (request->kind == KVB_SYNC_SNAPSHOT && !request->has_buckets) {
        atomic_fetch_add(&bridges->lists, 1);
        fleet_list(bridges->fleet, worker, &bridges->reply);
        return;
    }
    fleet_heartbeat(bridges->fleet, worker, &heartbeat);
    gone.epoch = heartbeat.epoch;
    gone.barrier_id = heartbeat.last_id;
    gone.last_id = heartbeat.last_id;
    BENCH_MUST(kvb_sync_reply_encode(&gone, &bridges->reply));
}

static const char request_subjects[] = SUBJECT("kv_sync.");

static void answer_request(void *context, const struct kvb_bus_message *message)
{
    struct bridges *bridges = context;
    struct kvb_sync_request request;
    const unsigned long worker = strtoul(message->subject + strlen(request_subjects), NULL, 10);

    BENCH_MUST_BE(message->reply && worker < bridges->fleet->options.workers);
    BENCH_MUST(kvb_sync_request_decode(message->payload, &request));
    kvb_buf_reset(&bridges->reply);
    (void)pthread_mutex_lock(&bridges->lock);
    answer(bridges, &request, (uint32_t)worker);
    (void)pthread_mutex_unlock(&bridges->lock);
    BENCH_MUST(kvb_bus_publish(bridges->answers, message->reply, kvb_buf_span(&bridges->reply)));
}

/* ---- The whole ---- */

void bridges_begin(struct bridges *bridges)
{
    struct kvb_bus_subscription *requests = NULL;

    BENCH_MUST_BE(pthread_mutex_init(&bridges->lock, NULL) == 0);
    fleet_round_init(&bridges->round);
    kvb_buf_init(&bridges->reply, max_bytes);
    bridges->answers = connect_to_nats(bridges->url, "bridges", true);
    BENCH_MUST(kvb_bus_subscribe(
        bridges->answers, SUBJECT("kv_sync.*.*"), answer_request, bridges, &requests));
    BENCH_MUST(kvb_bus_flush(bridges->answers, patience_ms)); /* now it is subscribed */
    BENCH_MUST_BE(pthread_create(&bridges->thread, NULL, publish, bridges) == 0);
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

bool bridges_fill(struct bridges *bridges)
{
    const uint32_t message_events = bridges->fleet->options.message_events;

    (void)pthread_mutex_lock(&bridges->lock);
    bridges->fleet->options.message_events = 0; /* sooner done */
    publish_round(bridges, fill_blocks);
    bridges->fleet->options.message_events = message_events;
    const bool is_more = !is_full(bridges->fleet);
    (void)pthread_mutex_unlock(&bridges->lock);
    return is_more;
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
