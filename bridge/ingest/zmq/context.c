#include "core/file_limit.h"
#include "core/limits.h"
#include "ingest/zmq/inside.h"
#include "ingest/zmq/socket.h"

#include <inttypes.h>
#include <stdlib.h>

/* Sockets and descriptors, as measured with libzmq 4.3.  Each socket has a mailbox, which is a
 * descriptor.  Each connection is a descriptor, too.
 *
 *     publisher   SUB, both ends of its monitor    3 mailboxes, connection or listener,
 *                                                  a second connection for a moment
 *     load        SUB, both ends of its monitor    3 mailboxes, 1 or 2 connections
 *     replay      DEALER, at most 8 at once        the previous one may still be open
 *     readers     XPUB, ROUTER, both ends of       6 mailboxes, 2 listeners, some readers at both
 *                 their monitors */
enum {
    sockets_per_publisher = 3,
    sockets_per_load = 3,
    descriptors_per_publisher = 5,
    descriptors_per_load = 5,
    descriptors_per_readers = 24, /* with 16 connections */
    sockets_for_replays = 4 * kvb_max_replays_at_once,
    sockets_for_readers = 6 * kvb_max_republished_ranks,
    descriptors_for_replays = 2 * sockets_for_replays,
    own_descriptors =
        128 + 2 * kvb_max_lookups, /* also for NATS, pages, checkpoints, log, timers */
    spare_sockets = 64,
    owners_per_context = 256,
    descriptors_per_context = 8, /* for its threads */
};

enum { min_ping_ms = 500, max_ping_ms = 4000, pings_a_second = 250 };

static size_t contexts_of(const struct kvb_zmq_size *size)
{
    /* Each context has a thread of its own for input: a large fleet gets several. */
    const size_t need = (size->publishers + size->loads) / owners_per_context + 1;

    return need < kvb_max_zmq_contexts ? need : kvb_max_zmq_contexts;
}

static uint64_t descriptors_of(const struct kvb_zmq_size *size)
{
    return size->publishers * descriptors_per_publisher + size->loads * descriptors_per_load +
           size->readers * descriptors_per_readers + contexts_of(size) * descriptors_per_context +
           descriptors_for_replays + own_descriptors + size->others;
}

kvb_status kvb_zmq_raise_limits(const struct kvb_zmq_size *size, struct kvb_detail *detail)
{
    const uint64_t need = descriptors_of(size);
    const uint64_t limit = kvb_file_limit_raise(need);

    /* Asked at the start: later libzmq would try to connect for ever without a word. */
    if (limit >= need) {
        return KVB_OK;
    }
    kvb_detail_set(
        detail,
        "%zu ranks need %" PRIu64 " open files, the limit is %" PRIu64
        ": raise it (LimitNOFILE= of the unit, or ulimit -Hn)",
        size->publishers, need, limit);
    return KVB_BAD_CONFIG;
}

/* Sets the limits of a context: sockets for its share of all publishers, one I/O thread. */
static bool is_sized(void *context)
{
    const int publishers = kvb_max_streams / kvb_max_zmq_contexts;
    const int sockets = publishers * sockets_per_publisher + kvb_max_workers * sockets_per_load +
                        sockets_for_replays + sockets_for_readers + spare_sockets;

    return zmq_ctx_set(context, ZMQ_MAX_SOCKETS, sockets) == 0 &&
           zmq_ctx_set(context, ZMQ_IO_THREADS, 1) == 0;
}

kvb_status kvb_zmq_new(struct kvb_control *control, struct kvb_zmq **out_zmq)
{
    struct kvb_zmq *zmq = calloc(1, sizeof *zmq);

    if (!zmq) {
        return KVB_NO_MEMORY;
    }
    zmq->control = control;
    *out_zmq = zmq;
    return KVB_OK;
}

void kvb_zmq_expect(struct kvb_zmq *zmq, size_t publishers)
{
    zmq->publishers = publishers;
}

int kvb_zmq_ping_ms(size_t publishers)
{
    const size_t period_ms = 1000 * publishers / pings_a_second;

    return period_ms < min_ping_ms   ? min_ping_ms
           : period_ms > max_ping_ms ? max_ping_ms
                                     : (int)period_ms;
}

void kvb_zmq_free(struct kvb_zmq *zmq)
{
    if (!zmq) {
        return;
    }
    kvb_zmq_close_run(zmq);
    /* Its job reads sockets: it must have ended when the contexts do. */
    kvb_reader_watch_free(zmq->reader_watch);
    for (size_t i = 0; i < kvb_max_zmq_contexts; i++) {
        if (zmq->contexts[i]) {
            (void)zmq_ctx_term(zmq->contexts[i]); /* every socket is closed, linger is 0 */
        }
    }
    free(zmq);
}

void *kvb_zmq_context(struct kvb_zmq *zmq, size_t owner)
{
    void **place = &zmq->contexts[owner / owners_per_context % kvb_max_zmq_contexts];

    if (!*place) {
        void *context = zmq_ctx_new();
        /* The limit of sockets holds only if it is set before the first socket. */
        if (context && !is_sized(context)) {
            (void)zmq_ctx_term(context); /* has no sockets */
            context = NULL;
        }
        *place = context;
    }
    return *place;
}

void kvb_zmq_close_run(struct kvb_zmq *zmq)
{
    for (size_t i = 0; i < zmq->run_count; i++) {
        kvb_zmq_message_close(&zmq->run[i]);
    }
    zmq->run_count = 0;
}
