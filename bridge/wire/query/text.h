#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/query.h"
#include "wire/json/writer.h"

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

/* Cuts the prompt out of a query.  The text is copied and never parsed, so that the engine is given
 * what the requester sent.
 *
 * On KVB_OK the caller owns *out_text, and the query without the members was appended to *rest:
 * each is replaced by `true`.
 * KVB_NOT_FOUND  the query has neither "text" nor "messages" of the right type, or one of the
 *                members twice, or is not JSON: nothing was made
 * KVB_BAD_INPUT  the prompt is not UTF-8
 * KVB_TOO_LARGE  nested too deep, or larger than *rest takes
 * KVB_NO_MEMORY */
kvb_status
kvb_query_text_cut(kvb_span query, struct kvb_query_text *out_text, struct kvb_buf *rest);

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
