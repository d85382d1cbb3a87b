#pragma once

#include <stdint.h>

/* The clocks.  Code without I/O never calls these; it takes the time as an argument.
 * Threads: any thread. */

/* Nanoseconds since a fixed point.  Never goes back; NTP does not set it. */
uint64_t kvb_clock_monotonic_ns(void);

/* Processor time that the calling thread has used. */
uint64_t kvb_clock_thread_ns(void);

/* Microseconds since 1970, UTC.  May jump, so it is only for timestamps, names and event ids. */
uint64_t kvb_clock_wall_us(void);

enum { kvb_clock_text_bytes = 32 };

/* Writes the time as RFC 3339: 2026-01-02T03:04:05.678Z.  Writes "" beyond the year 2^31. */
void kvb_clock_format_us(uint64_t wall_us, char out[kvb_clock_text_bytes]);

#define KVB_NS_PER_MS UINT64_C(1000000)
#define KVB_NS_PER_S UINT64_C(1000000000)
