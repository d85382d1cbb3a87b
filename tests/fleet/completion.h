#pragma once

#include "core/buf.h"
#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* OpenAI's API for completions, as far as a router in front of an engine can tell: the bodies that
 * a simulated engine reads and writes have the fields and names of vLLM's server.
 *
 * There is no language model, so there is no vocabulary either: a text is one token a byte, the
 * messages of a chat are their texts one after the other, and a token of the answer is its number
 * (" 4711").  Fields that are not in the struct are ignored.
 *
 * Pure.  Threads: the caller locks. */

enum { kvb_max_completion_tokens = 4096, kvb_default_completion_tokens = 16 };

struct kvb_completion_request {
    char model[kvb_model_bytes + 1]; /* "": none is named */
    uint32_t *tokens;                /* owned; of the prompt */
    uint32_t count;
    uint32_t max_tokens; /* of the answer, 1 .. kvb_max_completion_tokens */
    bool is_chat;        /* it has messages in place of a prompt */
    bool is_stream;
    bool wants_usage; /* stream_options.include_usage */
};

/* Reads the body of POST /v1/completions, /v1/chat/completions or /tokenize.  On KVB_OK the caller
 * ends it with kvb_completion_request_done().
 * KVB_BAD_INPUT  detail names the field and what it may be
 * KVB_NO_MEMORY */
kvb_status kvb_completion_request_read(
    kvb_span json, struct kvb_completion_request *out_request, struct kvb_detail *detail);

/* {0} is fine. */
void kvb_completion_request_done(struct kvb_completion_request *request);

/* What the answer to a request is made of; everything is borrowed. */
struct kvb_completion {
    const struct kvb_completion_request *request;
    const char *model;
    uint64_t number;    /* part of its id */
    uint64_t created_s; /* wall clock */
    const uint32_t *output;
    uint32_t output_count; /* tokens made so far */
    uint32_t cached_tokens;
};

/* All of these append to out.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append(); out holds a part */

/* The whole answer, as one object of JSON. */
kvb_status kvb_completion_write(const struct kvb_completion *completion, struct kvb_buf *out);

/* The same as server-sent events: one for each token from number `from` on. */
kvb_status kvb_completion_write_tokens(
    const struct kvb_completion *completion, uint32_t from, struct kvb_buf *out);

/* The last events: the usage if the request wants it, and [DONE]. */
kvb_status kvb_completion_write_end(const struct kvb_completion *completion, struct kvb_buf *out);

/* The answer to POST /tokenize. */
kvb_status
kvb_completion_write_tokenized(const struct kvb_completion_request *request, struct kvb_buf *out);

/* The answer to a request that is refused with this HTTP status. */
kvb_status kvb_completion_write_error(unsigned status, const char *sentence, struct kvb_buf *out);
