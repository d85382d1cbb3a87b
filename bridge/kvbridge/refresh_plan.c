#include "kvbridge/refresh_plan.h"

#include "core/clock.h"
#include "core/limits.h"

/* The share of the period that is planned, as a reserve for late turns. */
static const double share_of_period = 0.9;

/* How long unused budget is kept, so that a pause is not followed by a burst. */
static const double kept_s = 0.05;
static const double kept_blocks_s = 1;

/* The size of a block as JSON, with its share of the event around it. */
enum { bytes_a_block = 80 };

void kvb_refresh_plan_init(struct kvb_refresh_plan *plan, uint32_t period_s, uint64_t now_ns)
{
    *plan = (struct kvb_refresh_plan){ .period_ns = period_s * KVB_NS_PER_S,
                                       .filled_ns = now_ns,
                                       .round = 1 };
}

void kvb_refresh_plan_measure(struct kvb_refresh_plan *plan, uint64_t blocks, uint64_t largest)
{
    plan->blocks = blocks;
    plan->largest = largest;
}

static double blocks_a_second(const struct kvb_refresh_plan *plan)
{
    const double period_s = (double)plan->period_ns / (double)KVB_NS_PER_S;

    return period_s > 0 ? (double)(plan->blocks + plan->largest) / (share_of_period * period_s) : 0;
}

static double smaller_rate(double one, double other)
{
    return one < other ? one : other;
}

static void earn(struct kvb_refresh_plan *plan, uint64_t now_ns)
{
    const uint64_t passed_ns = now_ns > plan->filled_ns ? now_ns - plan->filled_ns : 0;
    const double passed_s = (double)passed_ns / (double)KVB_NS_PER_S;
    const double speed = blocks_a_second(plan);
    const double kept = speed * kept_blocks_s;
    /* A whole piece must fit, or a slow rate would never publish one. */
    const double max = kept > kvb_refresh_piece_blocks ? kept : kvb_refresh_piece_blocks;
    const double bytes = kvb_max_refresh_bytes_a_second;

    plan->filled_ns += passed_ns;
    plan->earned_blocks = smaller_rate(plan->earned_blocks + speed * passed_s, max);
    /* It may be negative: a piece that was larger than planned is paid for first. */
    plan->earned_bytes = smaller_rate(plan->earned_bytes + bytes * passed_s, bytes * kept_s);
}

/* The budget that a piece of the stream needs. */
static double piece_of(uint64_t stream_blocks)
{
    return stream_blocks == 0                         ? 1
           : stream_blocks < kvb_refresh_piece_blocks ? (double)stream_blocks
                                                      : kvb_refresh_piece_blocks;
}

uint64_t kvb_refresh_plan_due_ns(const struct kvb_refresh_plan *plan, uint64_t stream_blocks)
{
    static const double longest_s = 3600;
    const double missing = piece_of(stream_blocks) - plan->earned_blocks;
    const double speed = blocks_a_second(plan);

    if (missing <= 0) {
        return plan->filled_ns;
    }
    /* Limited, because the quotient by a tiny rate fits no uint64_t. */
    return speed > 0 ? plan->filled_ns +
                           (uint64_t)(smaller_rate(missing / speed, longest_s) * KVB_NS_PER_S)
                     : UINT64_MAX;
}

size_t kvb_refresh_plan_allows(
    struct kvb_refresh_plan *plan, uint64_t now_ns, uint64_t stream_blocks, bool is_requested)
{
    earn(plan, now_ns);
    if (now_ns < plan->not_before_ns || plan->earned_bytes < bytes_a_block) {
        return 0;
    }
    const size_t fit = (size_t)(plan->earned_bytes / bytes_a_block);
    /* A request waits for the two ceilings, not for the rate of the round. */
    if (is_requested) {
        return fit;
    }
    if (plan->earned_blocks < piece_of(stream_blocks)) {
        return 0;
    }
    return (size_t)smaller_rate((double)fit, plan->earned_blocks);
}

void kvb_refresh_plan_published(
    struct kvb_refresh_plan *plan, uint64_t blocks, uint64_t bytes, bool is_requested)
{
    /* The round does not become slower by what was requested. */
    plan->earned_blocks -= is_requested ? 0 : (double)blocks;
    plan->earned_bytes -= (double)bytes;
}

void kvb_refresh_plan_rest(struct kvb_refresh_plan *plan, uint64_t now_ns, uint64_t took_ns)
{
    const uint64_t busy = kvb_max_refresh_cpu_percent;

    plan->not_before_ns = now_ns + took_ns * (100 - busy) / busy;
}

uint64_t kvb_refresh_plan_next_round(struct kvb_refresh_plan *plan, uint64_t now_ns)
{
    const uint64_t took_ns = plan->round_began_ns > 0 ? now_ns - plan->round_began_ns : 0;

    plan->round++;
    plan->round_began_ns = now_ns;
    return took_ns;
}

bool kvb_refresh_turn_request(struct kvb_refresh_turn *turn, uint64_t now_ns)
{
    /* 0 is a time, too, so a flag says whether there was a request. */
    if (turn->was_requested && now_ns < turn->requested_ns + kvb_refresh_ration_s * KVB_NS_PER_S) {
        return false;
    }
    turn->is_requested = true;
    turn->was_requested = true;
    turn->requested_ns = now_ns;
    return true;
}
