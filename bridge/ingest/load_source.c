#include "ingest/load_source.h"

#include "ingest/zmq_message.h"
#include "wire/forward_pass.h"

#include <errno.h>
#include <stdlib.h>

enum { load_high_water = 1000, most_load_bytes = 64 << 10 };

struct kvb_load_source {
    void *sub; /* owned */
};

static kvb_status open_sub(struct kvb_load_source *source, void *context, const char *endpoint)
{
    const int none = 0;
    const int high_water = load_high_water;
    const int64_t most_bytes = most_load_bytes;

    source->sub = zmq_socket(context, ZMQ_SUB);
    if (!source->sub || zmq_setsockopt(source->sub, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_setsockopt(source->sub, ZMQ_RCVHWM, &high_water, sizeof high_water) != 0 ||
        zmq_setsockopt(source->sub, ZMQ_MAXMSGSIZE, &most_bytes, sizeof most_bytes) != 0 ||
        zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, "", 0) != 0) {
        return KVB_IO;
    }
    return zmq_connect(source->sub, endpoint) == 0 ? KVB_OK : KVB_BAD_CONFIG;
}

kvb_status kvb_load_source_open(
    struct kvb_zmq *zmq, const char *endpoint, struct kvb_load_source **out_source,
    struct kvb_detail *detail)
{
    struct kvb_load_source *source = calloc(1, sizeof *source);

    if (!source) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = open_sub(source, kvb_zmq_handle(zmq), endpoint);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "connect %s: %s", endpoint, zmq_strerror(errno));
        kvb_load_source_close(source);
        return status;
    }
    *out_source = source;
    return KVB_OK;
}

void kvb_load_source_close(struct kvb_load_source *source)
{
    if (!source) {
        return;
    }
    if (source->sub) {
        (void)zmq_close(source->sub);
    }
    free(source);
}

kvb_status
kvb_load_source_receive(struct kvb_load_source *source, struct kvb_load_sample *out_sample)
{
    struct kvb_zmq_message message;

    KVB_TRY(kvb_zmq_message_receive(source->sub, &message));
    const kvb_span payload = message.frames.frame[message.part_count - 1];
    const kvb_status status = message.frames.count > kvb_most_frames
                                  ? KVB_BAD_INPUT
                                  : kvb_forward_pass_decode(payload, out_sample);
    kvb_zmq_message_close(&message);
    return status == KVB_OK ? KVB_OK : KVB_BAD_INPUT;
}

void *kvb_load_source_handle(const struct kvb_load_source *source)
{
    return source->sub;
}
