#pragma once

#include <stdint.h>

/* The two clocks.  Pure rooms never call these: they take now as an argument.
 * Threads: any thread. */

/* Nanoseconds since some fixed point; never goes back, not moved by ntp. */
uint64_t kvb_clock_monotonic_ns(void);

/* Processor time that the calling thread has used. */
uint64_t kvb_clock_thread_ns(void);

/* Microseconds since 1970, UTC.  May jump; only for names and event ids. */
uint64_t kvb_clock_wall_us(void);

enum { kvb_clock_text_bytes = 32 };

/* 2026-01-02T03:04:05.678Z (RFC 3339); "" beyond the year 2^31. */
void kvb_clock_format_us(uint64_t wall_us, char out[kvb_clock_text_bytes]);

#define KVB_NS_PER_MS UINT64_C(1000000)
#define KVB_NS_PER_S UINT64_C(1000000000)
