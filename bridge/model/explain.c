#include "model/explain.h"

#include <stdlib.h>

/* clang-format off */
static const char *const reason_names[KVB_EXPLAIN_REASON_COUNT] = {
    [KVB_EXPLAIN_HELD]           = "held",
    [KVB_EXPLAIN_WITHDRAWN]      = "withdrawn",
    [KVB_EXPLAIN_DOUBTFUL]       = "doubtful",
    [KVB_EXPLAIN_OTHER_GROUP]    = "other_group",
    [KVB_EXPLAIN_OTHER_TIER]     = "other_tier",
    [KVB_EXPLAIN_PARENT_UNKNOWN] = "parent_unknown",
    [KVB_EXPLAIN_REMOVED]        = "removed",
    [KVB_EXPLAIN_CLEARED]        = "cleared",
    [KVB_EXPLAIN_OTHER_NAME]     = "other_lora_or_salt",
    [KVB_EXPLAIN_UNMATCHABLE]    = "unmatchable",
    [KVB_EXPLAIN_NEVER_STORED]   = "never_stored",
    [KVB_EXPLAIN_INCOMPLETE]     = "incomplete",
    [KVB_EXPLAIN_OLDER]          = "older_than_trace",
};

static const char *const origin_names[KVB_ORIGIN_COUNT] = {
    [KVB_ORIGIN_LIVE]      = "live",
    [KVB_ORIGIN_REPLAYED]  = "replayed",
    [KVB_ORIGIN_RESTARTED] = "restarted",
    [KVB_ORIGIN_ANNOUNCED] = "announced",
};
/* clang-format on */

const char *kvb_explain_reason_name(enum kvb_explain_reason reason)
{
    return reason_names[reason];
}

const char *kvb_event_origin_name(enum kvb_event_origin origin)
{
    return origin_names[origin];
}

void kvb_explanation_done(struct kvb_explanation *explanation)
{
    free(explanation->rows);
    *explanation = (struct kvb_explanation){ 0 };
}

static bool is_in_other_tier(const struct kvb_explained_block *block)
{
    for (size_t tier = KVB_TIER_DEVICE + 1; tier < KVB_TIER_COUNT; tier++) {
        if (block->max[tier] > 0) {
            return true;
        }
    }
    return false;
}

/* A row that holds sets one bit; the lowest bit is the reason. */
static unsigned reason_bit(bool holds, enum kvb_explain_reason reason)
{
    return (unsigned)holds << reason;
}

enum kvb_explain_reason
kvb_explain_decide(const struct kvb_explained_block *block, const struct kvb_explain_facts *facts)
{
    const enum kvb_trace_verdict verdict = block->traces[KVB_TIER_DEVICE].verdict;
    const uint32_t min = block->min[KVB_TIER_DEVICE];
    const bool is_listed = (block->lists >> KVB_TIER_DEVICE & 1) != 0;
    const bool is_known_absent = verdict == KVB_TRACE_ABSENT || facts->is_trace_whole;
    const unsigned holds =
        reason_bit(is_listed && !facts->is_withdrawn, KVB_EXPLAIN_HELD) |
        reason_bit(facts->is_withdrawn, KVB_EXPLAIN_WITHDRAWN) |
        reason_bit(min == 0 && block->max[KVB_TIER_DEVICE] > 0, KVB_EXPLAIN_DOUBTFUL) |
        reason_bit(facts->is_partly_held || min > 0, KVB_EXPLAIN_OTHER_GROUP) |
        reason_bit(is_in_other_tier(block), KVB_EXPLAIN_OTHER_TIER) |
        reason_bit(facts->is_waiting, KVB_EXPLAIN_PARENT_UNKNOWN) |
        reason_bit(verdict == KVB_TRACE_REMOVED, KVB_EXPLAIN_REMOVED) |
        reason_bit(verdict == KVB_TRACE_CLEARED, KVB_EXPLAIN_CLEARED) |
        reason_bit(facts->has_other_name, KVB_EXPLAIN_OTHER_NAME) |
        reason_bit(facts->is_unmatchable, KVB_EXPLAIN_UNMATCHABLE) |
        reason_bit(is_known_absent && !facts->is_incomplete, KVB_EXPLAIN_NEVER_STORED) |
        reason_bit(facts->is_incomplete, KVB_EXPLAIN_INCOMPLETE) |
        reason_bit(true, KVB_EXPLAIN_OLDER);

    return (enum kvb_explain_reason)__builtin_ctz(holds);
}
