#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

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
