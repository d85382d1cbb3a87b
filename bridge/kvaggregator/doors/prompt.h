#pragma once

#include "core/status.h"
#include "model/query.h"

#include <stddef.h>

struct kvb_exchange;
struct kvb_pending_query;

/* The prompt in the body of an OpenAI request, as a query. */

/* How much is known of it when the pick is made. */
enum kvb_prompt_known { KVB_PROMPT_NONE, KVB_PROMPT_PREFIX, KVB_PROMPT_WHOLE };

/* Makes the body's prompt, model and salt a query of tokens or of text.  Returns NULL, or why the
 * pick is by load: static, such as "media".  Any thread. */
const char *kvb_prompt_read(const struct kvb_exchange *exchange, struct kvb_query *query);

/* With the index, when a query of this door is to be answered: it becomes one of the tokens that
 * are known, of none at worst; then `reason` says why ("tokenize_timeout"). */
void kvb_prompt_settle(
    struct kvb_pending_query *pending, char *reason, size_t bytes,
    enum kvb_prompt_known *out_known);
