#pragma once

#include "core/status.h"

/* NKeys of NATS users: Ed25519 keys as text.  The public key is derived from the seed:
 *
 *     SUAM...   base32( 'S' and 'U': 2 bytes | seed: 32 bytes | CRC-16/XMODEM, little-endian )
 *     UDXU...   base32( 'U': 1 byte | public key: 32 bytes | CRC-16/XMODEM, little-endian )
 *
 * Threads: any thread. */

enum { kvb_nkey_seed_chars = 58, kvb_nkey_public_chars = 56 };

/* Writes the public key of a user's seed.  Blanks around the seed are ignored.
 * KVB_BAD_INPUT  not a user's seed; detail says why, without the seed
 * KVB_NO_MEMORY */
kvb_status kvb_nkey_public_of_seed(
    const char *seed, char out[kvb_nkey_public_chars + 1], struct kvb_detail *detail);
