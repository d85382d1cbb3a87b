#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>

/* Shows that the sender of a message knows a secret, without sending it: HMAC-SHA256 (RFC 2104) of
 * the message with the secret as the key, as 64 hex digits.
 * Threads: any thread. */

enum { kvb_proof_bytes = 64 + 1 };

/* KVB_NO_MEMORY: libcrypto failed. */
kvb_status kvb_proof_make(const char *secret, kvb_span message, char out_proof[kvb_proof_bytes]);

/* Compares in constant time.  False also when libcrypto fails. */
bool kvb_proof_is_right(const char *secret, kvb_span message, const char *proof);
