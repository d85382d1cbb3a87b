#pragma once

#include "core/detail.h"
#include "core/status.h"

#include <stdbool.h>

/* The bearer token that authorizes changes to a running bridge over HTTP.  It is in a file of its
 * own, which other users cannot read.  The file is read for each request: a new token needs no
 * restart.
 *
 * Threads: any thread. */

enum { kvb_register_token_bytes = 257, kvb_register_token_min = 16 };

/* The first line of the file: kvb_register_token_min .. 256 bytes, printable, no blanks.
 * KVB_BAD_CONFIG  it cannot be read, is none, or may be read or written by users who are
 *                 neither its owner nor of its group; detail says which */
kvb_status kvb_register_token_read(
    const char *path, char out_token[kvb_register_token_bytes], struct kvb_detail *detail);

/* Does the header say "Bearer TOKEN"?  Compares hashes, so the time shows nothing of the token. */
bool kvb_register_token_is_shown(
    const char authorization[], const char token[kvb_register_token_bytes]);
