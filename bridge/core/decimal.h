#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers as decimal digits.  Most of our JSON consists of them.
 * Threads: any thread. */
enum { kvb_decimal_bytes = 20 }; /* the number of digits of 2^64-1 */

/* Writes the digits without a NUL.  Returns how many.  The rest of out is undefined. */
size_t kvb_decimal_write(char out[kvb_decimal_bytes], uint64_t value);

/* Reads a text of decimal digits, without sign or blank.  For any other text, and for a number
 * beyond 64 bits, returns false and changes nothing. */
bool kvb_decimal_read(const char *text, uint64_t *out);
