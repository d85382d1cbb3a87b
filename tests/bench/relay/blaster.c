#include "blaster.h"

#include "core/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <zmq.h>

/* ---- One engine ---- */

static const char topic[] = "kv-events";

/* Where the engine after this one listens. */
static void write_endpoint_after(const struct engine *before, char out[64])
{
    const char *port = before ? strrchr(before->endpoint, ':') + 1 : NULL;

    if (port) {
        (void)snprintf(out, 64, "tcp://127.0.0.1:%lu", strtoul(port, NULL, 10) + 1);
    } else {
        (void)snprintf(out, 64, "tcp://127.0.0.1:*");
    }
}

kvb_status engine_open(void *zmq_context, const struct engine *before, struct engine *out_engine)
{
    const int none = 0;
    struct engine engine = { .socket = zmq_socket(zmq_context, ZMQ_XPUB) };
    size_t size = sizeof engine.endpoint;
    char endpoint[64];

    if (!engine.socket) {
        return KVB_IO;
    }
    write_endpoint_after(before, endpoint);
    if (zmq_setsockopt(engine.socket, ZMQ_SNDHWM, &none, sizeof none) != 0 ||
        zmq_setsockopt(engine.socket, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_bind(engine.socket, endpoint) != 0 ||
        zmq_getsockopt(engine.socket, ZMQ_LAST_ENDPOINT, engine.endpoint, &size) != 0) {
        engine_close(&engine);
        return KVB_IO;
    }
    *out_engine = engine;
    return KVB_OK;
}

void engine_close(struct engine *engine)
{
    if (engine->socket) {
        (void)zmq_close(engine->socket);
        engine->socket = NULL;
    }
}

kvb_status engine_wait(struct engine *engine, int timeout_ms)
{
    zmq_pollitem_t item = { .socket = engine->socket, .events = ZMQ_POLLIN };
    uint8_t subscription[64];

    if (zmq_poll(&item, 1, timeout_ms) <= 0) {
        return KVB_AGAIN;
    }
    return zmq_recv(engine->socket, subscription, sizeof subscription, 0) >= 0 ? KVB_OK : KVB_IO;
}

static void send_next(struct engine *engine, const struct script *script)
{
    const kvb_span batch = script_batch(script, engine->next_batch);
    uint8_t seq[8];

    for (int i = 0; i < 8; i++) {
        seq[i] = (uint8_t)(engine->next_seq >> (56 - 8 * i));
    }
    /* PUB never blocks and reports no loss: the reader notices what is missing */
    (void)zmq_send(engine->socket, topic, sizeof topic - 1, ZMQ_SNDMORE);
    (void)zmq_send(engine->socket, seq, sizeof seq, ZMQ_SNDMORE);
    engine->next_seq++;
    (void)zmq_send(engine->socket, batch.data, batch.len, 0);
    engine->next_batch = (engine->next_batch + 1) % script->count;
}

/* ---- The thread ---- */

static bool has_room(const struct blast *blast, uint64_t sent)
{
    return sent < atomic_load(&blast->arrived) + blast->window;
}

/* Waits until half of the window is free, so that there is one wake-up for many batches. Either the
 * reader sees `wanted` and posts, or it counted earlier, and this thread sees its count. */
static void wait_for_room(struct blast *blast, uint64_t sent)
{
    const uint64_t enough = sent - blast->window / 2;

    atomic_store(&blast->wanted, enough);
    while (atomic_load(&blast->arrived) < enough && !atomic_load(&blast->is_over)) {
        (void)sem_wait(&blast->has_room); /* interrupted by a signal: the loop checks again */
    }
    atomic_store(&blast->wanted, 0);
}

static uint64_t due_ns(const struct blast *blast, uint64_t at)
{
    return blast->batches_a_second == 0
               ? 0
               : blast->began_ns + at * KVB_NS_PER_S / blast->batches_a_second;
}

static void wait_until_ns(uint64_t at_ns)
{
    const struct timespec at = { .tv_sec = (time_t)(at_ns / KVB_NS_PER_S),
                                 .tv_nsec = (long)(at_ns % KVB_NS_PER_S) };

    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL); /* early is no harm */
}

static bool is_enough(const struct blast *blast, uint64_t sent, uint64_t now_ns)
{
    return now_ns - blast->began_ns >= blast->duration_ns ||
           (blast->max_kept_batches > 0 && sent >= blast->max_kept_batches) ||
           atomic_load(&blast->is_over);
}

static void *run(void *context)
{
    struct blast *blast = context;

    (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* else the kernel adds 50 us */
    blast->began_ns = kvb_clock_monotonic_ns();
    for (uint64_t sent = 0;; sent++) {
        if (!has_room(blast, sent)) {
            wait_for_room(blast, sent);
        }
        uint64_t now_ns = kvb_clock_monotonic_ns();
        if (is_enough(blast, sent, now_ns)) {
            break;
        }
        if (now_ns < due_ns(blast, sent)) {
            wait_until_ns(due_ns(blast, sent));
            now_ns = kvb_clock_monotonic_ns();
        }
        blast->sent_ns[sent % blast_ring] = now_ns;
        send_next(&blast->engines[blast->turn], blast->script);
        atomic_store_explicit(&blast->sent, sent + 1, memory_order_release);
        blast->turn = (blast->turn + 1) % blast->engine_count;
    }
    atomic_store(&blast->is_over, true);
    return NULL;
}

kvb_status blast_begin(struct blast *blast)
{
    assert(blast->window > 0 && blast->window <= blast_ring);
    blast->sent_ns = calloc(blast_ring, sizeof *blast->sent_ns);
    if (!blast->sent_ns) {
        return KVB_NO_MEMORY;
    }
    atomic_init(&blast->sent, 0);
    atomic_init(&blast->arrived, 0);
    atomic_init(&blast->wanted, 0);
    atomic_init(&blast->is_over, false);
    (void)sem_init(&blast->has_room, 0, 0); /* fails for values that are not these */
    if (pthread_create(&blast->thread, NULL, run, blast) != 0) {
        free(blast->sent_ns);
        (void)sem_destroy(&blast->has_room);
        return KVB_IO;
    }
    return KVB_OK;
}

void blast_note_arrived(struct blast *blast, uint64_t batches)
{
    const uint64_t arrived = atomic_fetch_add(&blast->arrived, batches) + batches;
    uint64_t wanted = atomic_load(&blast->wanted);

    if (wanted > 0 && arrived >= wanted &&
        atomic_compare_exchange_strong(&blast->wanted, &wanted, 0)) {
        (void)sem_post(&blast->has_room);
    }
}

void blast_end(struct blast *blast)
{
    atomic_store(&blast->is_over, true);
    (void)sem_post(&blast->has_room);
    (void)pthread_join(blast->thread, NULL);
    (void)sem_destroy(&blast->has_room);
    free(blast->sent_ns);
    blast->sent_ns = NULL;
}
