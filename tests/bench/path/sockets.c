#include "sockets.h"

#include "bus/bus.h"
#include "core/clock.h"
#include "feed.h"
#include "ingest/zmq/frames.h"
#include "ingest/zmq/poller.h"
#include "ingest/zmq/source.h"
#include "kvbridge/event_publisher.h"
#include "process.h"
#include "stream/stream.h"
#include "wire/engine/batch.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum { wait_ms = 100, patience_ms = 10000, message_blocks = 1, grown_events = 1 << 19 };
enum { ahead_batches = 16384 };

/* ---- The engine: a process that publishes the feed again and again until it is killed ---- */

static void say(void *pub, uint64_t seq, kvb_span payload)
{
    uint8_t seq_frame[8];

    kvb_frames_write_seq(seq, seq_frame);
    (void)zmq_send(
        pub, "", 0, ZMQ_SNDMORE); /* waits while the bridge is slower, and ends when it is gone */
    (void)zmq_send(pub, seq_frame, sizeof seq_frame, ZMQ_SNDMORE);
    (void)zmq_send(pub, payload.data, payload.len, 0);
}

/* Begins when the bridge subscribes, so that it receives the history from its first batch. */
__attribute__((noreturn)) static void
be_engine(const struct bench_feed *feed, const char *endpoint, const _Atomic uint64_t *taken)
{
    const int yes = 1;
    void *context = zmq_ctx_new();
    void *pub = zmq_socket(context, ZMQ_XPUB);
    char subscription[8];

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!pub || zmq_setsockopt(pub, ZMQ_XPUB_NODROP, &yes, sizeof yes) != 0 ||
        zmq_bind(pub, endpoint) != 0 || zmq_recv(pub, subscription, sizeof subscription, 0) < 0) {
        _exit(1);
    }
    for (uint64_t seq = 0;; seq++) {
        /* As fast as the bridge takes them: a bridge ends the connection of an engine that floods
         * it. */
        while (seq > atomic_load(taken) + ahead_batches) {
            (void)sched_yield();
        }
        say(pub, seq, bench_feed_payload(feed, seq % bench_feed_batches));
    }
}

/* ---- The bridge, as its ingest thread ---- */

struct way {
    struct bench_feed feed;
    void *shared;            /* owned; memory that is also the engine's: */
    _Atomic uint64_t *taken; /* in it, how many batches the bridge has received */
    pid_t engine;
    struct nats_server nats;
    struct kvb_bus *bus;
    struct kvb_zmq *zmq;
    struct kvb_poller *poller;
    struct kvb_source *source;
    struct kvb_stream *stream;
    struct kvb_stream_output output;
    struct kvb_event_batch batch;
    struct kvb_event_publisher publisher;
};

static bool is_up(void *context)
{
    return kvb_bus_is_connected(context);
}

static kvb_status open_bus(struct way *way, enum kvb_format format)
{
    struct kvb_detail detail = { .text = "" };

    KVB_TRY(nats_server_start(&way->nats, 0, NULL));
    KVB_TRY(kvb_bus_open(&(struct kvb_bus_options){ .url = way->nats.url }, &way->bus, &detail));
    KVB_TRY(wait_until(is_up, way->bus, patience_ms) ? KVB_OK : KVB_IO);
    return kvb_event_publisher_init(
        &way->publisher, way->bus, 1U << format, UINT32_MAX, "bench", "path");
}

static kvb_status open_source(struct way *way, const char *endpoint)
{
    struct kvb_detail detail = { .text = "" };

    KVB_TRY(kvb_zmq_new(NULL, &way->zmq));
    KVB_TRY(kvb_poller_new(1, &way->poller));
    return kvb_source_open(
        way->zmq,
        &(struct kvb_source_options){
            .events = endpoint, .replay = "", .topic = "", .poller = way->poller },
        &way->source, &detail);
}

static kvb_status open_stream(struct way *way, enum kvb_format format)
{
    const struct kvb_stream_options options = {
        .worker_id = 7,
        .block_size = 16,
        .formats = 1U << format,
        .max_buffered_bytes = 1 << 20,
        .max_log_blocks = 1 << 14,
        .mirror = { .max_blocks = 1 << 20, .tiers = 1U << KVB_TIER_DEVICE },
    };
    const struct kvb_stream_input up = { .kind = KVB_INPUT_UP, .now_ns = 1 };

    KVB_TRY(kvb_stream_new(&options, &way->stream));
    return kvb_stream_step(way->stream, &up, &way->output);
}

static kvb_status open_all(struct way *way, enum kvb_format format)
{
    char endpoint[64];
    uint16_t port = 0;

    bench_feed_make(&way->feed, message_blocks);
    KVB_TRY(free_port(&port));
    (void)snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    way->taken =
        mmap(NULL, sizeof *way->taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KVB_TRY(way->taken != MAP_FAILED ? KVB_OK : KVB_NO_MEMORY);
    way->engine = fork(); /* before there are threads */
    if (way->engine == 0) {
        be_engine(&way->feed, endpoint, way->taken);
    }
    KVB_TRY(way->engine > 0 ? KVB_OK : KVB_IO);
    KVB_TRY(open_bus(way, format));
    KVB_TRY(open_stream(way, format));
    return open_source(way, endpoint);
}

static void close_all(struct way *way)
{
    if (way->engine > 0) {
        (void)kill(way->engine, SIGKILL);
        (void)waitpid(way->engine, NULL, 0);
    }
    if (way->shared) {
        (void)munmap(way->shared, sizeof *way->taken);
    }
    kvb_source_close(way->source);
    kvb_poller_free(way->poller);
    kvb_zmq_free(way->zmq);
    kvb_event_publisher_done(&way->publisher);
    kvb_bus_close(way->bus);
    if (way->nats.pid > 0) {
        nats_server_kill(&way->nats);
    }
    kvb_stream_free(way->stream);
    kvb_stream_output_done(&way->output);
    kvb_event_batch_done(&way->batch);
    bench_feed_done(&way->feed);
}

static kvb_status take_batch(struct way *way, const struct kvb_source_batch *received)
{
    const struct kvb_stream_input input = { .kind = KVB_INPUT_LIVE,
                                            .now_ns = 1,
                                            .wall_us = 1,
                                            .seq = received->seq,
                                            .fingerprint = kvb_hash128(received->payload, 0),
                                            .batch = &way->batch };

    KVB_TRY(kvb_engine_batch_decode(received->payload, &way->batch));
    KVB_TRY(kvb_stream_step(way->stream, &input, &way->output));
    return kvb_event_publisher_add(
        &way->publisher, &way->output.events, kvb_stream_log(way->stream));
}

/* As kvbridge/loop.c and kvbridge/flow.c do it. */
static kvb_status take_turn(struct way *way)
{
    struct kvb_source_batch batches[kvb_source_run];
    uint64_t refused = 0;
    size_t owner = 0;
    unsigned kinds = 0;

    KVB_TRY(kvb_poller_wait(way->poller, 0));
    if (kvb_poller_is_idle(way->poller)) {
        kvb_bus_write(way->bus);
        KVB_TRY(kvb_poller_wait(way->poller, wait_ms));
    }
    while (kvb_poller_next(way->poller, &owner, &kinds)) {
        const size_t received = kvb_source_receive(way->source, batches, &refused);
        (void)kvb_source_read_monitor(way->source); /* an engine that is gone shows as silence */
        for (size_t i = 0; i < received; i++) {
            KVB_TRY(take_batch(way, &batches[i]));
            (void)atomic_fetch_add(way->taken, 1);
        }
    }
    return kvb_event_publisher_send(&way->publisher);
}

static kvb_status publish_events(struct way *way, uint64_t events)
{
    const uint64_t until = way->publisher.events + events;
    uint64_t moved_ns = kvb_clock_monotonic_ns();

    while (way->publisher.events < until) {
        const uint64_t before = way->publisher.events;
        KVB_TRY(take_turn(way));
        if (way->publisher.events != before) {
            moved_ns = kvb_clock_monotonic_ns();
        } else if (kvb_clock_monotonic_ns() > moved_ns + patience_ms * KVB_NS_PER_MS) {
            return KVB_IO; /* the engine is silent */
        }
    }
    return KVB_OK;
}

bool bench_run_sockets(
    enum kvb_format format, uint64_t events, void (*begin)(void *context), void *context)
{
    struct way *way = calloc(1, sizeof *way); /* the offsets of the feed alone take 128 KiB */

    if (!way) {
        return false;
    }
    kvb_status status = open_all(way, format);
    if (status == KVB_OK) {
        status = publish_events(way, grown_events);
    }
    if (status == KVB_OK) {
        begin(context);
        status = publish_events(way, events);
    }
    close_all(way);
    free(way);
    return status == KVB_OK;
}
