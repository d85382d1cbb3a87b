#include "load/newest.h"

#include <string.h>

static void copy_figure(struct kvb_load *to, const struct kvb_load *from, size_t figure)
{
    const struct kvb_load_field *field = &kvb_load_fields[figure];
    const size_t bytes = field->is_ratio ? sizeof(float) : sizeof(uint64_t);

    memcpy((uint8_t *)to + field->offset, (const uint8_t *)from + field->offset, bytes);
}

void kvb_newest_load_take(
    struct kvb_newest_load *newest, const struct kvb_load_sample *sample, uint32_t source,
    uint64_t now_ns, uint64_t life_ns)
{
    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        /* Sources are read on their own, so an older figure may come after a newer one. */
        if ((sample->stats & (1U << i)) == 0 || now_ns < newest->received[i].at_ns) {
            continue;
        }
        copy_figure(&newest->load, &sample->load, i);
        newest->received[i] = (struct kvb_received){ .at_ns = now_ns,
                                                     .until_ns = now_ns + life_ns,
                                                     .source = source };
    }
}

void kvb_newest_load_forget(struct kvb_newest_load *newest, uint32_t source)
{
    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        if (newest->received[i].source == source) {
            newest->received[i] = (struct kvb_received){ .at_ns = 0 };
        }
    }
}

bool kvb_newest_load_was_received(const struct kvb_newest_load *newest)
{
    bool was_received = false;

    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        was_received = was_received || newest->received[i].at_ns > 0;
    }
    return was_received;
}

static bool is_fresh(const struct kvb_newest_load *newest, size_t figure, uint64_t now_ns)
{
    return newest->received[figure].at_ns > 0 && now_ns < newest->received[figure].until_ns;
}

/* Computes the number of blocks in use from their share: vLLM's coordinator is the one source
 * that does not send the number. */
static void
count_active_blocks(const struct kvb_newest_load *newest, uint64_t now_ns, struct kvb_load *load)
{
    const bool has_number = is_fresh(newest, KVB_FIGURE_ACTIVE_BLOCKS, now_ns);
    const uint64_t share_ns = newest->received[KVB_FIGURE_USAGE].at_ns;

    /* A number that is newer than the share counts as it is.  - 1: a share is always vLLM's, which
     * never gives out one of its blocks. */
    if (load->kv_total_blocks > 0 && is_fresh(newest, KVB_FIGURE_USAGE, now_ns) &&
        (!has_number || newest->received[KVB_FIGURE_ACTIVE_BLOCKS].at_ns < share_ns)) {
        load->kv_active_blocks =
            kvb_load_active_blocks((double)load->gpu_cache_usage_perc, load->kv_total_blocks - 1);
    }
}

bool kvb_newest_load_at(
    const struct kvb_newest_load *newest, const struct kvb_load_fallback *fallback, uint64_t now_ns,
    struct kvb_load *out_load)
{
    struct kvb_load load = { 0 };
    bool has_any = false;

    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        if (is_fresh(newest, i, now_ns)) {
            copy_figure(&load, &newest->load, i);
            has_any = true;
        }
    }
    if (!has_any) {
        return false;
    }
    /* Totals first: the number of blocks is computed from theirs. */
    if (load.request_total_slots == 0) {
        load.request_total_slots = fallback->total_slots;
    }
    if (load.kv_total_blocks == 0) {
        load.kv_total_blocks = fallback->total_blocks;
    }
    count_active_blocks(newest, now_ns, &load);
    *out_load = load;
    return true;
}
