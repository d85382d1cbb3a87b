#include "stream/turn.h"

#include "core/clock.h"

static const uint64_t second_ns = KVB_NS_PER_S;
static const struct kvb_backoff_range of_quarantines = { .first_ns = KVB_NS_PER_S,
                                                         .longest_ns = 30 * KVB_NS_PER_S };

enum {
    share_divisor = 2, /* half of the thread's time */
    first_patience_seconds = 10,
    next_patience_seconds = 2,
    forgiven_after_seconds = 30
};

void kvb_turn_use(struct kvb_turn *turn, uint64_t used_ns)
{
    turn->used_ns += used_ns;
}

static void begin_second(struct kvb_turn *turn, uint64_t now_ns, uint64_t others)
{
    turn->second_ns = now_ns;
    turn->used_ns = 0;
    turn->others = others;
}

static void count_second(struct kvb_turn *turn, uint64_t now_ns, uint64_t others)
{
    const uint64_t passed_ns = now_ns - turn->second_ns;
    const bool is_over = others > turn->others && turn->used_ns > passed_ns / share_divisor;

    turn->over_seconds = is_over ? turn->over_seconds + 1 : 0;
    turn->cooldown_seconds = is_over ? 0 : turn->cooldown_seconds + 1;
    if (turn->cooldown_seconds >= forgiven_after_seconds) {
        turn->quarantines = (struct kvb_backoff){ 0 };
    }
    begin_second(turn, now_ns, others);
}

static void quarantine(struct kvb_turn *turn, uint64_t now_ns)
{
    turn->until_ns = now_ns + kvb_backoff_fail(&turn->quarantines, &of_quarantines, now_ns);
}

static void release(struct kvb_turn *turn, uint64_t now_ns, uint64_t others)
{
    turn->until_ns = 0;
    turn->over_seconds = 0;
    turn->cooldown_seconds = 0;
    begin_second(turn, now_ns, others);
}

enum kvb_turn_verdict kvb_turn_classify(struct kvb_turn *turn, uint64_t now_ns, uint64_t others)
{
    if (kvb_turn_is_quarantined(turn)) {
        if (now_ns < turn->until_ns) {
            return KVB_TURN_GO_ON;
        }
        release(turn, now_ns, others);
        return KVB_TURN_RELEASE;
    }
    if (turn->second_ns == 0) {
        begin_second(turn, now_ns, others);
    }
    if (now_ns < turn->second_ns + second_ns) {
        return KVB_TURN_GO_ON;
    }
    const unsigned patience =
        turn->quarantines.pause_ns > 0 ? next_patience_seconds : first_patience_seconds;
    count_second(turn, now_ns, others);
    if (turn->over_seconds < patience) {
        return KVB_TURN_GO_ON;
    }
    quarantine(turn, now_ns);
    return KVB_TURN_QUARANTINE;
}
