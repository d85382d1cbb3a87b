#pragma once

#include "core/status.h"

#include <stdbool.h>

/* Bearer tokens (RFC 6750) that authorize HTTP requests: one to query, one to register workers.
 * Each is in its own file, which other users must not be able to read.
 *
 * Threads: any thread. */

enum { kvb_bearer_token_bytes = 257, kvb_bearer_token_min = 16 };

/* Reads the token from the first line of the file: kvb_bearer_token_min .. 256 printable bytes, no
 * blanks.
 * KVB_BAD_CONFIG  the file cannot be read, its first line is no token, or users other than its
 *                 owner and group may read or write it; detail says which */
kvb_status kvb_bearer_token_read(
    const char *path, char out_token[kvb_bearer_token_bytes], struct kvb_detail *detail);

/* The same for the key of another server, which may be as short as that server accepts. */
kvb_status
kvb_api_key_read(const char *path, char out_key[kvb_bearer_token_bytes], struct kvb_detail *detail);

/* True when the header is "Bearer TOKEN".  Compares in constant time.  False for an empty token. */
bool kvb_bearer_token_is_shown(
    const char authorization[], const char token[kvb_bearer_token_bytes]);
