#pragma once

#include "core/detail.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* A chat trace, and the requests made from it.
 *
 *     row 0, row 1, ... last row, then row 0 of the next lap, whose ids are others:
 *     the same shape again with other content, for ever.
 *
 * A hash id stands for 512 / scale tokens, lengths are divided likewise; the token
 * ids of a hash id follow from it alone.
 *
 * Threads: any thread reads, one makes.
 * Memory:  24 bytes a row and 8 an id; the file is bounded to 256 MiB. */
struct kvb_trace;

/* scale 1 .. 512.
 * KVB_BAD_CONFIG  the file cannot be read, or a line of it is no trace line: detail
 *                 says which
 * KVB_NO_MEMORY */
kvb_status kvb_trace_load(
    const char *path, uint32_t scale, struct kvb_detail *detail, struct kvb_trace **out_trace);

/* NULL is fine. */
void kvb_trace_free(struct kvb_trace *trace);

/* Never 0. */
size_t kvb_trace_rows(const struct kvb_trace *trace);

struct kvb_trace_request {
    uint32_t *tokens; /* owned; reused from call to call */
    size_t capacity;
    uint32_t count;
    uint32_t output_length; /* tokens, at least 1 */
    uint64_t conversation;  /* equal for rows that are turns of one conversation, mostly */
};

/* Request number `index`, 0 .. for ever.  out_request is {0} or an earlier one.
 * KVB_NO_MEMORY  *out_request is as it was */
kvb_status kvb_trace_request_make(
    const struct kvb_trace *trace, uint64_t index, struct kvb_trace_request *out_request);
void kvb_trace_request_done(struct kvb_trace_request *request);
