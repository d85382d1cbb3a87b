#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers as decimal digits: what most of our JSON is made of.
 * Threads: any thread. */
enum { kvb_decimal_bytes = 20 }; /* the number of digits of 2^64-1 */

/* Writes the digits, without a NUL, and returns their number.  The rest of out is undefined. */
size_t kvb_decimal_write(char out[kvb_decimal_bytes], uint64_t value);

/* Reads a text of decimal digits only: no sign, no blank.  False, and nothing changed, for another
 * text or a number beyond 64 bits. */
bool kvb_decimal_read(const char *text, uint64_t *out);
