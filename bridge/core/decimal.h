#pragma once

#include <stddef.h>
#include <stdint.h>

/* Numbers as decimal digits: what most of our JSON is made of.
 * Threads: any thread. */
enum { kvb_decimal_bytes = 20 }; /* 2^64-1 has so many digits */

/* Writes the digits, without a NUL, and returns how many; what is behind them in out is
 * undefined. */
size_t kvb_decimal_write(char out[kvb_decimal_bytes], uint64_t value);
