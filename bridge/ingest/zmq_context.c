#include "ingest/zmq_context.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <zmq.h>

/* A connected socket has its own descriptor, one in libzmq's mailbox, and while
 * it reconnects a timer: measured 2 to 3; plus what the process needs itself. */
enum { descriptors_per_socket = 3, spare_descriptors = 64, spare_sockets = 16 };

struct kvb_zmq {
    void *context; /* owned */
};

static kvb_status check_descriptors(size_t sockets, struct kvb_detail *detail)
{
    struct rlimit limit = { 0 };
    const rlim_t need = sockets * descriptors_per_socket + spare_descriptors;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) {
        return KVB_OK;
    }
    limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* judged by what it leaves */
    if (limit.rlim_cur >= need) {
        return KVB_OK;
    }
    kvb_detail_set(
        detail, "%zu sockets need %llu open files, the limit is %llu: raise it with ulimit -n",
        sockets, (unsigned long long)need, (unsigned long long)limit.rlim_max);
    return KVB_BAD_CONFIG;
}

kvb_status kvb_zmq_new(size_t sockets, struct kvb_zmq **out_zmq, struct kvb_detail *detail)
{
    KVB_TRY(check_descriptors(sockets, detail));

    struct kvb_zmq *zmq = calloc(1, sizeof *zmq);
    if (!zmq) {
        return KVB_NO_MEMORY;
    }
    zmq->context = zmq_ctx_new();
    if (!zmq->context ||
        zmq_ctx_set(zmq->context, ZMQ_MAX_SOCKETS, (int)(sockets + spare_sockets)) != 0) {
        kvb_detail_set(detail, "libzmq: %s", zmq_strerror(errno));
        kvb_zmq_free(zmq);
        return KVB_IO;
    }
    *out_zmq = zmq;
    return KVB_OK;
}

void kvb_zmq_free(struct kvb_zmq *zmq)
{
    if (!zmq) {
        return;
    }
    if (zmq->context) {
        (void)zmq_ctx_term(zmq->context); /* every socket is closed, linger is 0 */
    }
    free(zmq);
}

void *kvb_zmq_handle(struct kvb_zmq *zmq)
{
    return zmq->context;
}
