#include "core/clock.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/commands.h"
#include "kvbridge/ingest.h"
#include "kvbridge/loads.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/refresh.h"
#include "kvbridge/shown.h"

/* One step of a command: closes or opens one rank or load source. */

static const uint64_t patience_ns = 500 * KVB_NS_PER_MS;

/* How long a bound address is retried: libzmq frees a closed one asynchronously. */
static const uint64_t open_again_ns = 2 * KVB_NS_PER_S;

/* False: an HTTP thread is reading the values; try again in the next turn. */
static bool lock_values(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct membership_work *members = bridge->membership->work;

    if (pthread_rwlock_trywrlock(&bridge->shown->sets_lock) == 0) {
        members->waits_ns = 0;
        return true;
    }
    if (members->waits_ns == 0) {
        members->waits_ns = now_ns;
    }
    if (now_ns < members->waits_ns + patience_ns) {
        return false;
    }
    members->waits_ns = 0;
    return pthread_rwlock_wrlock(&bridge->shown->sets_lock) == 0;
}

/* Publishes the changed list of ranks and unlocks the values.  The caller has locked them. */
static void list_ranks_anew(struct kvb_bridge *bridge)
{
    kvb_bridge_list_stats(bridge);
    (void)pthread_rwlock_unlock(&bridge->shown->sets_lock);
    atomic_store(&bridge->shown->stream_count, bridge->membership->rank_count);
    bridge->ingest->server.is_round_wanted = true;
}

static void say_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (bridge->publisher->was_allowed) {
        kvb_bridge_say_goodbye(bridge, rank);
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "a rank was removed while publishing is not possible: routers receive no clear", "worker",
        KVB_LOG_U64(rank->worker_id), "dp_rank", KVB_LOG_U64(rank->dp_rank), NULL);
}

static void close_rank(struct kvb_bridge *bridge, size_t at)
{
    struct bridge_rank *rank = bridge->membership->ranks[at];

    kvb_bridge_drop_checkpoint(bridge->checkpoints, rank);
    kvb_bridge_drop_refresh(bridge, rank);
    kvb_bridge_remove_rank(bridge, at);
}

/* Closes one rank or load source.  Done: none is marked. */
static enum member_step close_one(struct kvb_bridge *bridge, uint64_t now_ns)
{
    for (size_t i = 0; i < bridge->membership->load_count; i++) {
        if (bridge->membership->loads[i]->is_leaving) {
            kvb_bridge_close_load(bridge, i);
            return member_step_again;
        }
    }
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        if (!bridge->membership->ranks[i]->is_leaving) {
            continue;
        }
        if (!lock_values(bridge, now_ns)) {
            return member_step_later;
        }
        say_goodbye(bridge, bridge->membership->ranks[i]);
        close_rank(bridge, i);
        list_ranks_anew(bridge);
        return member_step_again;
    }
    return member_step_done;
}

static void say_not_opened(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings,
    const struct kvb_detail *why)
{
    kvb_log_write(
        bridge->log, KVB_LOG_ERROR, "bridge", "a rank cannot be opened", "why", why->text, "worker",
        KVB_LOG_U64(settings->id), "dp_rank", KVB_LOG_U64(settings->first_rank), NULL);
}

/* Decides after an attempt to open a rank: it was added, is tried again, or is given up. */
static enum member_step classify_opening(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, kvb_status status,
    uint64_t now_ns)
{
    struct membership_work *members = bridge->membership->work;
    struct kvb_membership_result *answer = &members->command->answer;

    if (status != KVB_OK && members->give_up_ns == 0) {
        members->give_up_ns = now_ns + open_again_ns;
    }
    if (status != KVB_OK && settings->bind && now_ns < members->give_up_ns) {
        return member_step_later;
    }
    members->give_up_ns = 0;
    if (status != KVB_OK) {
        answer->failed++;
        say_not_opened(bridge, settings, &answer->why);
    }
    return member_step_again;
}

static enum member_step open_rank(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct membership_work *members = bridge->membership->work;
    const struct kvb_worker_config *settings = &members->command->wanted->ranks[members->next_rank];

    if (!lock_values(bridge, now_ns)) {
        return member_step_later;
    }
    const kvb_status status = kvb_bridge_open_rank(
        bridge, settings, members->command->wish.origin, &members->command->answer.why);
    if (status == KVB_OK && members->are_draining) {
        bridge->membership->ranks[bridge->membership->rank_count - 1]->is_draining =
            members->are_draining[members->next_rank];
    }
    list_ranks_anew(bridge);
    const enum member_step step = classify_opening(bridge, settings, status, now_ns);
    members->next_rank += step == member_step_again;
    return step;
}

static enum member_step open_load(struct kvb_bridge *bridge)
{
    struct membership_work *members = bridge->membership->work;
    const struct kvb_worker_config *settings = &members->command->wanted->loads[members->next_load];
    const kvb_status status = kvb_bridge_open_load(
        bridge, settings, members->command->wish.origin, &members->command->answer.why);

    members->next_load++;
    if (status != KVB_OK) {
        members->command->answer.failed++;
        say_not_opened(bridge, settings, &members->command->answer.why);
    }
    return member_step_again;
}

static enum member_step open_one(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct membership_work *members = bridge->membership->work;
    const struct kvb_members *wanted = members->command->wanted;

    if (!wanted) {
        return member_step_done;
    }
    while (members->next_rank < wanted->rank_count && !members->ranks_come[members->next_rank]) {
        members->next_rank++;
    }
    if (members->next_rank < wanted->rank_count) {
        return open_rank(bridge, now_ns);
    }
    while (members->next_load < wanted->load_count && !members->loads_come[members->next_load]) {
        members->next_load++;
    }
    return members->next_load < wanted->load_count ? open_load(bridge) : member_step_done;
}

enum member_step kvb_bridge_take_step(struct kvb_bridge *bridge, uint64_t now_ns)
{
    const enum member_step step = close_one(bridge, now_ns);

    return step == member_step_done ? open_one(bridge, now_ns) : step;
}
