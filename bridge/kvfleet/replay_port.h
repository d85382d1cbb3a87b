#pragma once

#include "core/status.h"
#include "kvfleet/publisher.h"
#include "kvfleet/replay_buffer.h"

#include <stdint.h>

/* The answering side of one ROUTER socket. */

struct kvb_replay_answer {
    bool is_ignored;   /* a request of another shape */
    bool is_full;      /* began at or before the oldest of several kept batches */
    uint64_t replayed; /* batches sent */
};

/* Reads one request and answers it from the buffer, all of it, before it returns.
 * Requests: ["", start seq in 8 bytes] as the peer sends it, nothing else; a Mooncake
 * also takes the one of its guide, [any name, "", start seq].
 * KVB_AGAIN  no request is there
 * KVB_IO     the socket is closed */
kvb_status kvb_replay_port_serve(
    void *router, const struct kvb_replay_buffer *buffer,
    const struct kvb_publisher_options *options, struct kvb_replay_answer *out_answer);

/* 8 bytes, big-endian. */
void kvb_replay_port_write_seq(uint8_t out[8], uint64_t seq);
