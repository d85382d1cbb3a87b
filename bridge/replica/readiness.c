#include "replica/readiness.h"

#include "core/clock.h"

/* ---- The picture ---- */

static void set_picture(struct kvb_readiness *readiness, enum kvb_picture picture, uint64_t now_ns)
{
    readiness->picture = picture;
    readiness->picture_ns = now_ns;
}

static void advance_picture(
    struct kvb_readiness *readiness, const struct kvb_readiness_facts *facts, uint64_t now_ns)
{
    const uint64_t passed_ms = (now_ns - readiness->picture_ns) / KVB_NS_PER_MS;

    switch (readiness->picture) {
    case KVB_PICTURE_NONE:
        set_picture(readiness, KVB_PICTURE_FIRST_HEARTBEATS, now_ns);
        break;
    case KVB_PICTURE_FIRST_HEARTBEATS:
        if (passed_ms >= kvb_readiness_heartbeats_ms) {
            set_picture(readiness, KVB_PICTURE_FIRST_LISTS, now_ns);
        }
        break;
    case KVB_PICTURE_FIRST_LISTS:
        if (facts->incomplete == 0 || passed_ms >= kvb_readiness_lists_ms) {
            set_picture(readiness, KVB_PICTURE_COMPLETE, now_ns);
        }
        break;
    case KVB_PICTURE_COMPLETE:
        break;
    }
}

/* ---- The share of streams that are EXACT ---- */

static bool has_share(struct kvb_readiness *readiness, const struct kvb_readiness_facts *facts)
{
    readiness->has_share |=
        (double)facts->exact >= readiness->min_exact_share * (double)facts->streams;
    return readiness->has_share;
}

/* ---- Ready or not ---- */

static enum kvb_readiness_cause unready_by_nats(const struct kvb_readiness_facts *facts)
{
    if (facts->is_stopping) {
        return KVB_UNREADY_STOPPING;
    }
    if (!facts->is_connected) {
        return KVB_UNREADY_NOT_CONNECTED;
    }
    return facts->is_subscribed ? KVB_READY : KVB_UNREADY_NOT_SUBSCRIBED;
}

static enum kvb_readiness_cause find_unready_cause(
    struct kvb_readiness *readiness, const struct kvb_readiness_facts *facts, uint64_t now_ns)
{
    const enum kvb_readiness_cause cause = unready_by_nats(facts);

    if (cause != KVB_READY) {
        if (readiness->picture != KVB_PICTURE_COMPLETE) {
            readiness->picture = KVB_PICTURE_NONE;
        }
        return cause;
    }
    advance_picture(readiness, facts, now_ns);
    switch (readiness->picture) {
    case KVB_PICTURE_NONE:
    case KVB_PICTURE_FIRST_HEARTBEATS:
        return KVB_UNREADY_FIRST_HEARTBEATS;
    case KVB_PICTURE_FIRST_LISTS:
        return KVB_UNREADY_FIRST_LISTS;
    case KVB_PICTURE_COMPLETE:
        break;
    }
    return has_share(readiness, facts) ? KVB_READY : KVB_UNREADY_SHARE;
}

const char *kvb_readiness_cause_text(enum kvb_readiness_cause cause)
{
    /* clang-format off */
    static const char *const texts[KVB_READINESS_CAUSE_COUNT] = {
        [KVB_READY]                    = "",
        [KVB_UNREADY_STOPPING]         = "stopping",
        [KVB_UNREADY_NOT_CONNECTED]    = "not connected to NATS (nats.url); trying again",
        [KVB_UNREADY_NOT_SUBSCRIBED]   = "connected to NATS, but not subscribed yet",
        [KVB_UNREADY_FIRST_HEARTBEATS] = "just started: waiting for the first heartbeats of bridges",
        [KVB_UNREADY_FIRST_LISTS]      = "just started: fetching the lists of streams",
        [KVB_UNREADY_SHARE]            = "too few streams are EXACT for router.ready_exact",
    };
    /* clang-format on */
    return texts[cause];
}

/* ---- The membership ---- */

enum group_event { event_unready, event_ready, event_done, event_failed, group_event_count };

struct transition {
    enum kvb_group_state next;
    enum kvb_group_action action;
};

/* clang-format off */
#define STAY(state)  { KVB_GROUP_##state, KVB_GROUP_NOTHING }
static const struct transition transitions[KVB_GROUP_STATE_COUNT][group_event_count] = {
    [KVB_GROUP_OUTSIDE] = {
        [event_unready] = STAY(OUTSIDE),
        [event_ready]   = { KVB_GROUP_JOINING, KVB_GROUP_JOIN },
        [event_done]    = STAY(OUTSIDE),
        [event_failed]  = STAY(OUTSIDE),
    },
    [KVB_GROUP_JOINING] = {
        [event_unready] = STAY(JOINING),
        [event_ready]   = STAY(JOINING),
        [event_done]    = STAY(MEMBER),
        [event_failed]  = STAY(OUTSIDE),
    },
    [KVB_GROUP_MEMBER] = {
        [event_unready] = { KVB_GROUP_LEAVING, KVB_GROUP_LEAVE },
        [event_ready]   = STAY(MEMBER),
        [event_done]    = STAY(MEMBER),
        [event_failed]  = STAY(MEMBER),
    },
    [KVB_GROUP_LEAVING] = {
        [event_unready] = STAY(LEAVING),
        [event_ready]   = STAY(LEAVING),
        [event_done]    = STAY(OUTSIDE),
        [event_failed]  = STAY(OUTSIDE),
    },
};
#undef STAY
/* clang-format on */

static enum kvb_group_action take_event(struct kvb_readiness *readiness, enum group_event event)
{
    const struct transition transition = transitions[readiness->group][event];

    readiness->group = transition.next;
    return transition.action;
}

static void
take_result(struct kvb_readiness *readiness, enum kvb_group_result result, uint64_t now_ns)
{
    if (result == KVB_GROUP_FAILED) {
        readiness->retry_ns = now_ns + kvb_readiness_retry_ms * KVB_NS_PER_MS;
    }
    if (result != KVB_GROUP_UNDECIDED) {
        (void)take_event(readiness, result == KVB_GROUP_DONE ? event_done : event_failed);
    }
}

enum kvb_group_action kvb_readiness_step(
    struct kvb_readiness *readiness, const struct kvb_readiness_facts *facts,
    enum kvb_group_result result, uint64_t now_ns)
{
    take_result(readiness, result, now_ns);
    readiness->cause = find_unready_cause(readiness, facts, now_ns);
    const bool may_join = readiness->cause == KVB_READY && now_ns >= readiness->retry_ns;
    if (readiness->group == KVB_GROUP_OUTSIDE && !may_join) {
        return KVB_GROUP_NOTHING;
    }
    return take_event(readiness, readiness->cause == KVB_READY ? event_ready : event_unready);
}
