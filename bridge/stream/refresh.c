#include "stream/inside.h"

/* Some 0.2 ms, when all of them miss the cache. */
enum { looks_a_step = 2048 };

kvb_status kvb_stream_refresh_begin(struct kvb_stream *stream)
{
    return kvb_mirror_refresh_begin(stream->mirror);
}

void kvb_stream_refresh_end(struct kvb_stream *stream)
{
    kvb_mirror_refresh_end(stream->mirror);
}

kvb_status kvb_stream_refresh_step(
    struct kvb_stream *stream, size_t max_blocks, struct kvb_router_batch *out, bool *out_is_done)
{
    kvb_router_batch_reset(out);
    KVB_TRY(kvb_mirror_refresh_step(stream->mirror, max_blocks, looks_a_step, out, out_is_done));
    kvb_stream_sign(stream, out);
    return KVB_OK;
}
