#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/query.h"
#include "wire/json/scan.h"
#include "wire/json/writer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prompts that are text: what a query has of one, and how an engine is asked for its tokens.
 *
 *     query     {"model":"m","messages":[...],"tools":[...],"ttl_ms":5}
 *     members   "tools":[...],"messages":[...]           byte for byte, in the order of the table
 *     request   {"model":"m","tools":[...],"messages":[...]}            POST /tokenize
 *     answer    {"count":3,"max_model_len":4096,"tokens":[1,2,3]}
 *
 * "text" of a query is "prompt" of the request.  The other members of a query that change its
 * tokens are passed on: add_special_tokens, and with messages also add_generation_prompt,
 * continue_final_message, tools, chat_template and chat_template_kwargs.  What grows from one turn
 * to the next comes last (tokenize/chain.h).
 *
 * Sources: vLLM's entrypoints/serve/tokenize/protocol.py, SGLang's serving_tokenize.py, which takes
 * a prompt only.
 * Threads: any thread. */

/* The members of a query that may belong to a prompt, where they stand in it. */
enum { kvb_query_part_count = 8 };
struct kvb_query_parts {
    kvb_span values[kvb_query_part_count]; /* borrowed */
    bool is_twice;                         /* one of them is there twice */
    bool is_large;                         /* one of them exceeds the budget of other members */
};

/* Skips the value of a member, as kvb_json_value(), and notes it if the key, as it is spelt, is
 * that of a part.  A part takes nothing of the budget and may be nested 32 deep. */
kvb_status kvb_query_text_part(
    struct kvb_query_parts *found, kvb_span key, struct kvb_json_scan *scan,
    struct kvb_json_budget *budget, kvb_span *out_value);

/* Copies the prompt out of a query of at most max_bytes.  The text is never parsed, so that the
 * engine is given what the requester sent.  On KVB_OK the caller owns *out_text.
 * KVB_NOT_FOUND  the query has neither "text" nor "messages" of the right type, or a part twice
 * KVB_NO_MEMORY */
kvb_status kvb_query_text_join(
    const struct kvb_query_parts *found, size_t max_bytes, struct kvb_query_text *out_text);

/* Appends the body of POST /tokenize.  Errors as kvb_buf_append(). */
kvb_status kvb_tokenize_request_encode(const char *model, kvb_span members, struct kvb_buf *out);

/* Writes what an answer says of a query of text: prompt_tokens, tokens and, where not all tokens
 * are known, tokens_reason.  Nothing for other queries. */
void kvb_text_tokens_write(const struct kvb_query *query, struct kvb_json_writer *json);

/* Reads the tokens of an answer.  On KVB_OK the caller owns *out_tokens; there is at least one.
 * KVB_BAD_INPUT  no such answer: not JSON, no tokens, or `count` is another number
 * KVB_TOO_LARGE  more than kvb_max_query_tokens
 * KVB_NO_MEMORY */
kvb_status kvb_tokenize_answer_decode(kvb_span answer, uint32_t **out_tokens, size_t *out_count);
