#pragma once

#include "core/status.h"
#include "model/query.h"

#include <stddef.h>

struct kvb_exchange;

/* The prompt in the body of an OpenAI request, as a query. */

/* Makes the body's prompt, model and salt a query of tokens or of text.  Returns NULL, or why the
 * pick is by load: static, such as "media".  Any thread. */
const char *kvb_prompt_read(const struct kvb_exchange *exchange, struct kvb_query *query);

/* With the index, when a query of this door is to be answered: it becomes one of the tokens that
 * are known, of none at worst; if not of all, `reason` says why ("tokenize_timeout"). */
void kvb_prompt_settle(
    struct kvb_query *query, char *reason, size_t bytes, enum kvb_text_tokens *out_known);
