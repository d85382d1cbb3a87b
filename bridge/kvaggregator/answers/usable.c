#include "kvaggregator/answers/usable.h"

size_t kvb_window_need(uint32_t window_tokens, uint32_t block_size)
{
    const uint64_t behind = window_tokens > 0 ? window_tokens - 1 : 0; /* the token's own is new */

    return (size_t)((behind + block_size - 1) / block_size);
}

size_t kvb_usable_blocks(
    const struct kvb_block_set *window, const kvb_block_hash *names, size_t count, size_t need)
{
    size_t run = 0;

    if (need == 0) {
        return count;
    }
    for (size_t at = count; at > 0; at--) {
        run = window && kvb_block_set_has(window, names[at - 1]) ? run + 1 : 0;
        if (run == need) {
            return at - 1 + need;
        }
    }
    return run; /* the one at the beginning */
}

size_t kvb_hit_blocks_max(size_t tokens, uint32_t block_size, bool is_paired)
{
    const size_t computed = is_paired ? 2 : 1;

    return tokens > computed ? (tokens - computed) / block_size : 0;
}
