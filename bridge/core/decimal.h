#pragma once

#include <stddef.h>
#include <stdint.h>

/* Numbers as decimal digits: what most of our JSON is made of.
 * Threads: any thread. */
enum { kvb_decimal_bytes = 20 }; /* the number of digits of 2^64-1 */

/* Writes the digits, without a NUL, and returns their number.  The rest of out is undefined. */
size_t kvb_decimal_write(char out[kvb_decimal_bytes], uint64_t value);
