#pragma once

#include "core/span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns how many bytes the UTF-8 character at `at` has, or 0 if there is none.  `left` bytes, at
 * least 1, may be read.  For text that ends with a NUL `left` may be larger, because nothing after
 * the NUL is read. */
size_t kvb_utf8_len(const uint8_t *at, size_t left);

/* Whether all of the text is UTF-8; the empty text is. */
bool kvb_utf8_is_whole(kvb_span text);

/* Whether the text is UTF-8 without ASCII control characters. */
bool kvb_utf8_is_plain(const char *text);
