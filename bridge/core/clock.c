#include "core/clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now = { 0 };

    (void)clock_gettime(clock, &now); /* cannot fail for these two clocks */
    return (uint64_t)now.tv_sec * KVB_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t kvb_clock_monotonic_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t kvb_clock_wall_us(void)
{
    return read_ns(CLOCK_REALTIME) / 1000;
}
