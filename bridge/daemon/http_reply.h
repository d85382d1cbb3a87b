#pragma once

#include "daemon/http.h"

#include <stdbool.h>
#include <stddef.h>

/* Helpers for handlers of kvb_http_start(): errors, and the parts of a request.
 *
 * Threads: any. */

/* Fills the answer with the status and {"error":"..."}. */
void kvb_http_refuse(struct kvb_http_answer *answer, unsigned status, const char *sentence);

/* {"error":"..."}; KVB_NO_MEMORY, KVB_TOO_LARGE. */
kvb_status kvb_http_write_error(const char *sentence, struct kvb_buf *out);

/* "application/json", with or without parameters, in any case. */
bool kvb_http_is_json(const char *content_type);

/* The value of a key in a query part such as "format=rows&down=true", not decoded.
 * False when it is missing or too long for out. */
bool kvb_http_parameter(const char *query, const char *key, char *out, size_t out_bytes);
