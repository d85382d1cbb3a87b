#include "index/usable.h"

#include <assert.h>

size_t kvb_window_need(uint32_t window_tokens, uint32_t block_size)
{
    const uint64_t behind = window_tokens > 0 ? window_tokens - 1 : 0; /* without the new token */

    return (size_t)((behind + block_size - 1) / block_size);
}

size_t kvb_hit_blocks_max(size_t tokens, uint32_t block_size, bool is_paired)
{
    const size_t computed = is_paired ? 2 : 1;

    return tokens > computed ? (tokens - computed) / block_size : 0;
}

/* What is looked up: the prompt, and the rules of the groups beside full attention. */
struct usable {
    const struct kvb_heartbeat *heartbeat;
    const struct kvb_usable_prompt *prompt;
    struct kvb_window_rule rules[kvb_max_windows];
    unsigned count;
    size_t step; /* lengths are multiples of it: the least common multiple of all sizes */
};

static size_t gcd(size_t a, size_t b)
{
    while (b != 0) {
        const size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static struct usable
usable_of(const struct kvb_heartbeat *heartbeat, const struct kvb_usable_prompt *prompt)
{
    struct usable usable = { .heartbeat = heartbeat, .prompt = prompt, .step = 1 };

    for (size_t i = 0; i < heartbeat->window_count; i++) {
        usable.rules[usable.count++] = heartbeat->windows[i];
    }
    if (usable.count == 0 && heartbeat->window_tokens > 0) {
        usable.rules[usable.count++] =
            (struct kvb_window_rule){ .tokens = heartbeat->window_tokens, .size = 1 };
    }
    for (unsigned i = 0; i < usable.count; i++) {
        const size_t size = usable.rules[i].size;
        assert(size > 0);
        usable.step = usable.step / gcd(usable.step, size) * size;
        if (usable.step > prompt->count) {
            usable.step = prompt->count + 1; /* only the length 0 is left */
        }
    }
    return usable;
}

static size_t sum_of(size_t a, size_t b)
{
    return a < SIZE_MAX - b ? a + b : SIZE_MAX;
}

static size_t less(size_t blocks, size_t drop)
{
    return blocks > drop ? blocks - drop : 0;
}

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t steps_of(const struct usable *usable, size_t length)
{
    return length - length % usable->step;
}

/* The longest length up to `most` that the full-attention groups accept. */
static size_t find_full(const struct usable *usable, size_t most)
{
    return less(min_of(usable->prompt->held, most), usable->heartbeat->speculative_drop);
}

/* The longest length up to most - drop that a sliding window accepts: the end of the last run that
 * is long enough, less what is dropped; without one, the run at the beginning. */
static size_t find_window(const struct usable *usable, unsigned window, size_t most, size_t drop)
{
    const struct kvb_window_rule *rule = &usable->rules[window];
    const struct kvb_usable_prompt *prompt = usable->prompt;
    const size_t size = rule->size;
    const size_t need =
        kvb_window_need(rule->tokens, usable->heartbeat->block_size * rule->size) + drop;
    size_t run = 0;

    /* From the end, so that the first run that is long enough is that of the longest prefix. */
    for (size_t end = most / size; end > 0 && need > 0; end--) { /* in blocks of the group */
        if (!prompt->has(prompt->context, end * size - 1, window)) {
            run = 0;
            continue;
        }
        if (++run == need) {
            return (end - 1 + need - drop) * size;
        }
    }
    /* vLLM rounds the run at the beginning down before it drops blocks, and once more after. */
    return need == 0 ? steps_of(usable, most)
                     : steps_of(usable, less(steps_of(usable, run * size), drop * size));
}

/* The longest length up to `most` whose last chunk is held from its beginning on. */
static size_t find_chunk(const struct usable *usable, unsigned window, size_t most)
{
    const struct kvb_usable_prompt *prompt = usable->prompt;
    const uint64_t block_size = usable->heartbeat->block_size;
    const uint64_t chunk = usable->rules[window].tokens;
    size_t length = (size_t)(most * block_size / chunk * chunk / block_size);

    while (length < most && prompt->has(prompt->context, length, window)) {
        length++;
    }
    return steps_of(usable, length);
}

/* One pass over all groups, from a candidate length on.  Each accepts it or shortens it.  Bit i of
 * *dropped: window i has dropped its blocks behind the candidate; shortened by another group, it
 * has to look there again. */
static size_t shorten(const struct usable *usable, size_t length, unsigned *dropped)
{
    const bool is_alone = usable->count == 1 && usable->heartbeat->is_without_full;

    for (unsigned i = 0; i < usable->count; i++) {
        const struct kvb_window_rule *rule = &usable->rules[i];
        const size_t drop = *dropped >> i & 1 ? 0 : rule->drop;
        const size_t margin = is_alone ? 0 : drop * rule->size; /* a group alone looks no further */
        const size_t most = min_of(sum_of(length, margin), usable->prompt->count);
        const size_t found =
            rule->is_chunked ? find_chunk(usable, i, most) : find_window(usable, i, most, drop);
        if (drop > 0) {
            *dropped |= 1U << i;
        } else if (found < length) {
            *dropped = 0;
        }
        length = found;
    }
    return length;
}

size_t kvb_usable_blocks(
    const struct kvb_heartbeat *heartbeat, const struct kvb_usable_prompt *prompt, size_t most)
{
    const struct usable usable = usable_of(heartbeat, prompt);
    size_t length = min_of(most, prompt->count);
    unsigned dropped = 0;

    if (!heartbeat->is_without_full) {
        /* Beside other groups it looks past the most that a request takes by what it drops. */
        const size_t margin = usable.count > 0 ? heartbeat->speculative_drop : 0;
        length = min_of(length, find_full(&usable, sum_of(most, margin)));
    }
    for (size_t candidate = SIZE_MAX; length < candidate;) {
        candidate = length;
        length = shorten(&usable, candidate, &dropped);
    }
    return length;
}
