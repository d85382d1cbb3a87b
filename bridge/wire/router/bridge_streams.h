#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "wire/router/bridge_status.h"

#include <stddef.h>
#include <stdint.h>

/* P.bridge_streams: which streams a bridge publishes.  Other bridges read it, to notice that they
 * publish one of these too.
 *
 *     {"bridge_id":"host-4711-0a1b2c3d","streams":[[7,0],[7,1]]}      [worker_id,dp_rank]
 *
 * A bridge with more streams than fit a message sends several. */

/* 48 KiB as the longest text: kvb_min_nats_payload_bytes. */
enum { kvb_bridge_streams_most = 1024 };

struct kvb_bridge_stream {
    uint64_t worker_id;
    uint32_t dp_rank;
};

struct kvb_bridge_streams {
    char bridge_id[kvb_bridge_id_bytes + 1];
    size_t count;
    struct kvb_bridge_stream streams[kvb_bridge_streams_most];
};

/* count: at most kvb_bridge_streams_most.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_bridge_streams_encode(
    const char *bridge_id, const struct kvb_bridge_stream *streams, size_t count,
    struct kvb_buf *out);

/* On failure *out has no meaning.
 * KVB_BAD_INPUT  not such a message
 * KVB_TOO_LARGE  more streams */
kvb_status kvb_bridge_streams_decode(kvb_span json, struct kvb_bridge_streams *out);
