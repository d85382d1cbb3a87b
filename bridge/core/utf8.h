#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the UTF-8 character at `at`, of which `left` bytes (1 at least) may be read; 0: it is
 * none.  Text that ends with a NUL may be read with any `left`: no byte after the NUL is. */
size_t kvb_utf8_len(const uint8_t *at, size_t left);

/* Whether the text, up to its NUL, is UTF-8 without control characters. */
bool kvb_utf8_is_plain(const char *text);
