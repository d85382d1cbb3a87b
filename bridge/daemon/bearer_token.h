#pragma once

#include "core/status.h"

#include <stdbool.h>

/* Bearer tokens (RFC 6750) that authorize HTTP requests: one to query, one to register workers.
 * Each is in a file of its own, which other users cannot read.
 *
 * Threads: any thread. */

enum { kvb_bearer_token_bytes = 257, kvb_bearer_token_min = 16 };

/* The first line of the file: kvb_bearer_token_min .. 256 bytes, printable, no blanks.
 * KVB_BAD_CONFIG  it cannot be read, is none, or may be read or written by users who are
 *                 neither its owner nor of its group; detail says which */
kvb_status kvb_bearer_token_read(
    const char *path, char out_token[kvb_bearer_token_bytes], struct kvb_detail *detail);

/* Does the header say "Bearer TOKEN"?  In constant time; an empty token is never shown. */
bool kvb_bearer_token_is_shown(
    const char authorization[], const char token[kvb_bearer_token_bytes]);
