#include "core/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now = { 0 };

    (void)clock_gettime(clock, &now); /* cannot fail for the clocks below */
    return (uint64_t)now.tv_sec * KVB_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t kvb_clock_monotonic_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t kvb_clock_thread_ns(void)
{
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t kvb_clock_wall_us(void)
{
    return read_ns(CLOCK_REALTIME) / 1000;
}

void kvb_clock_format_us(uint64_t wall_us, char out[kvb_clock_text_bytes])
{
    const time_t seconds = (time_t)(wall_us / 1000000);
    struct tm parts = { 0 };

    out[0] = '\0';
    if (!gmtime_r(&seconds, &parts)) {
        return;
    }
    const size_t len = strftime(out, kvb_clock_text_bytes, "%Y-%m-%dT%H:%M:%S", &parts);
    (void)snprintf(
        out + len, kvb_clock_text_bytes - len, ".%03uZ", (unsigned)(wall_us / 1000 % 1000));
}
