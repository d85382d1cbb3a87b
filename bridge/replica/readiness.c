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

/* ---- Ready or not ---- */

static enum kvb_readiness_cause find_unready_cause(
    struct kvb_readiness *readiness, const struct kvb_readiness_facts *facts, uint64_t now_ns)
{
    const enum kvb_readiness_cause cause = facts->is_stopping      ? KVB_UNREADY_STOPPING
                                           : !facts->is_connected  ? KVB_UNREADY_NOT_CONNECTED
                                           : !facts->is_subscribed ? KVB_UNREADY_NOT_SUBSCRIBED
                                                                   : KVB_READY;

    if (cause != KVB_READY) {
        /* Without NATS nothing arrives, so a picture that is not complete begins again. */
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
    /* Once is enough: what takes it away is seen by all aggregators at the same time. */
    readiness->has_share |=
        (double)facts->exact >= readiness->min_exact_share * (double)facts->streams;
    return readiness->has_share ? KVB_READY : KVB_UNREADY_SHARE;
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

enum kvb_group_action kvb_readiness_step(
    struct kvb_readiness *readiness, const struct kvb_readiness_facts *facts,
    enum kvb_group_result result, uint64_t now_ns)
{
    /* The action under way has ended.  Whoever could not leave is outside all the same: the thread
     * that leaves drops the subscription in any case. */
    if (result == KVB_GROUP_FAILED) {
        readiness->retry_ns = now_ns + kvb_readiness_retry_ms * KVB_NS_PER_MS;
    }
    if (result != KVB_GROUP_UNDECIDED && readiness->group == KVB_GROUP_JOINING) {
        readiness->group = result == KVB_GROUP_DONE ? KVB_GROUP_MEMBER : KVB_GROUP_OUTSIDE;
    } else if (result != KVB_GROUP_UNDECIDED && readiness->group == KVB_GROUP_LEAVING) {
        readiness->group = KVB_GROUP_OUTSIDE;
    }
    readiness->cause = find_unready_cause(readiness, facts, now_ns);
    const bool is_ready = readiness->cause == KVB_READY;
    if (readiness->group == KVB_GROUP_OUTSIDE && is_ready && now_ns >= readiness->retry_ns) {
        readiness->group = KVB_GROUP_JOINING;
        return KVB_GROUP_JOIN;
    }
    if (readiness->group == KVB_GROUP_MEMBER && !is_ready) {
        readiness->group = KVB_GROUP_LEAVING;
        return KVB_GROUP_LEAVE;
    }
    return KVB_GROUP_NOTHING; /* while joining or leaving it waits for the result */
}
