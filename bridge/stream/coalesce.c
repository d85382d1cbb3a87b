#include "stream/coalesce.h"

#include "core/clock.h"

#include <stdbool.h>

static const uint64_t window_ns = 10 * KVB_NS_PER_MS;
static const uint64_t longest_pause_ns = 2 * KVB_NS_PER_MS;

/* Engines that send at random times have some repeats.  Up to an eighth, a stream's next batch
 * comes after some 80 ms on average. */
enum { runs_a_repeat = 8 };

void kvb_coalescing_note(struct kvb_coalescing *coalescing, uint64_t *newest)
{
    const uint64_t window = coalescing->windows + 1;

    coalescing->runs++;
    coalescing->repeats += *newest == window;
    *newest = window;
}

uint64_t kvb_coalescing_pause_ns(struct kvb_coalescing *coalescing, uint64_t now_ns)
{
    const uint64_t lasted_ns = now_ns - coalescing->began_ns;

    if (lasted_ns >= window_ns) {
        /* So many that at least one more comes in a pause, on average: 500 a second. */
        const bool are_many = coalescing->runs >= lasted_ns / longest_pause_ns;
        const bool are_seldom = coalescing->repeats <= coalescing->runs / runs_a_repeat;
        *coalescing =
            (struct kvb_coalescing){ .windows = coalescing->windows + 1,
                                     .began_ns = now_ns,
                                     .pause_ns = are_many && are_seldom ? longest_pause_ns : 0 };
    }
    return coalescing->pause_ns;
}
