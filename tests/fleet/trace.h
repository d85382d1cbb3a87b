#pragma once

#include "core/span.h"
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

/* One line of a chat trace (the format of Mooncake's conversation_trace.jsonl):
 *
 *     {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
 *
 * Each hash id stands for 512 tokens of the prompt, the last one for the rest;
 * equal ids at the start are an equal prefix. */
enum { kvb_trace_tokens_per_id = 512, kvb_trace_max_ids = 4096 };

struct kvb_trace_line {
    uint64_t timestamp_ms;
    uint32_t input_length;  /* tokens, 1 .. 512 * id_count */
    uint32_t output_length; /* tokens */
    uint32_t id_count;
    uint64_t ids[kvb_trace_max_ids]; /* 32 KiB: not for the stack of a small thread */
};

/* Threads: the caller locks.
 *
 * KVB_BAD_INPUT  no such JSON object, a field is missing or out of range, or the
 *                length does not fit the number of ids; *out_line is then undefined */
kvb_status kvb_trace_line_decode(kvb_span text, struct kvb_trace_line *out_line);
