#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decides whether an aggregator is ready, and so a member of the queue group.  nats-server gives
 * each request to one member of that group.
 *
 * The picture is complete when the lists of all streams that are known one heartbeat period after
 * the start have been fetched.  A fleet without streams has a complete picture too.
 *
 *     picture                 until                                    ready
 *     NONE                    nats-server confirms the subscriptions   no
 *     FIRST_HEARTBEATS        kvb_readiness_heartbeats_ms later        no
 *     FIRST_LISTS             no list is being fetched for the first   no
 *                             time, or kvb_readiness_lists_ms later
 *     COMPLETE                the end of the process                   as below
 *
 * A loss of NATS before COMPLETE sets the picture to NONE.  After COMPLETE the picture is kept, its
 * streams are STALE, and the aggregator is ready again as soon as the new subscriptions are
 * confirmed: all aggregators lose the same nats-server at the same time, and an old picture is
 * better than none.
 *
 * If min_exact_share is above 0, at least that share of the streams must be EXACT once.  After that
 * only a loss of NATS ends it: what makes a stream less than EXACT is seen by all aggregators at
 * the same time, and if all of them left, no request would reach the engines and make them EXACT
 * again. For the same reason a stream that waits for its engine is not counted;
 * kvb_stream_is_counted().
 *
 * The membership; a thread of the caller carries out its actions:
 *
 *               ready: JOIN               done
 *     OUTSIDE ---------------> JOINING ----------> MEMBER
 *       ^  ^                      |                   | not ready: LEAVE
 *       |  +----------------------+                   v
 *       |     failed: not before kvb_readiness_retry_ms
 *       +-----------------------------------------LEAVING
 *                             done
 *
 * A JOIN under way always ends before a LEAVE begins.
 *
 * Pure.  Threads: the caller locks.  Times are of the monotonic clock, in ns. */

enum {
    kvb_readiness_heartbeats_ms = 1200, /* bridges heartbeat every 1,000 ms */
    kvb_readiness_lists_ms = 10000,     /* so a bridge that never answers does not block it */
    kvb_readiness_retry_ms = 1000
};

enum kvb_readiness_cause {
    KVB_READY,
    KVB_UNREADY_STOPPING,
    KVB_UNREADY_NOT_CONNECTED,
    KVB_UNREADY_NOT_SUBSCRIBED,
    KVB_UNREADY_FIRST_HEARTBEATS,
    KVB_UNREADY_FIRST_LISTS,
    KVB_UNREADY_SHARE,
    KVB_READINESS_CAUSE_COUNT
};

enum kvb_group_state { KVB_GROUP_OUTSIDE, KVB_GROUP_JOINING, KVB_GROUP_MEMBER, KVB_GROUP_LEAVING };

/* What the caller must do. */
enum kvb_group_action { KVB_GROUP_NOTHING, KVB_GROUP_JOIN, KVB_GROUP_LEAVE };

/* The result of the last action. */
enum kvb_group_result { KVB_GROUP_UNDECIDED, KVB_GROUP_DONE, KVB_GROUP_FAILED };

enum kvb_picture {
    KVB_PICTURE_NONE,
    KVB_PICTURE_FIRST_HEARTBEATS,
    KVB_PICTURE_FIRST_LISTS,
    KVB_PICTURE_COMPLETE
};

/* The state of NATS and of the streams. */
struct kvb_readiness_facts {
    bool is_stopping;
    bool is_connected;
    bool is_subscribed; /* nats-server has confirmed the subscriptions of this connection */
    size_t streams;     /* those for which kvb_stream_is_counted() */
    size_t exact;       /* of them */
    size_t incomplete;  /* of them: their lists are being fetched from their bridges */
};

struct kvb_readiness {
    double min_exact_share; /* 0 .. 1; set by the caller; all else begins with 0 */
    enum kvb_readiness_cause cause;
    enum kvb_picture picture;
    uint64_t picture_ns; /* when the picture changed last */
    bool has_share;      /* the share was reached once */
    enum kvb_group_state group;
    uint64_t retry_ns; /* earliest time of the next JOIN */
};

/* Returns the next action.  result: the result of the last action; pass it once.  A returned action
 * counts as under way until its result is passed. */
enum kvb_group_action kvb_readiness_step(
    struct kvb_readiness *readiness, const struct kvb_readiness_facts *facts,
    enum kvb_group_result result, uint64_t now_ns);

/* A sentence for people; "" for KVB_READY.  Never NULL. */
const char *kvb_readiness_cause_text(enum kvb_readiness_cause cause);
