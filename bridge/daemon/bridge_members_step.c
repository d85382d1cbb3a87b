#include "core/clock.h"
#include "daemon/bridge_members.h"

/* One rank or load less, or one more. */

static const uint64_t patience_ns = 500 * KVB_NS_PER_MS;

/* A bound address that has just been left is free again when libzmq has closed it. */
static const uint64_t open_again_ns = 2 * KVB_NS_PER_S;

/* False: somebody reads the values; it is tried again in the next turn. */
static bool lock_values(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_members *members = bridge->members;

    if (pthread_rwlock_trywrlock(&bridge->sets_lock) == 0) {
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
    return pthread_rwlock_wrlock(&bridge->sets_lock) == 0;
}

/* The caller has locked the values. */
static void list_ranks_anew(struct kvb_bridge *bridge)
{
    kvb_bridge_list_figures(bridge);
    (void)pthread_rwlock_unlock(&bridge->sets_lock);
    atomic_store(&bridge->stream_count, bridge->rank_count);
    bridge->is_round_due = true;
}

static void say_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    char worker[24];
    char dp_rank[24];

    if (bridge->was_allowed) {
        kvb_bridge_tell_goodbye(bridge, rank, now_ns);
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge", "a rank leaves and routers cannot be told",
        "worker", kvb_log_u64(worker, rank->worker_id), "dp_rank",
        kvb_log_u64(dp_rank, rank->dp_rank), NULL);
}

/* Done: nobody leaves. */
static enum member_step close_one(struct kvb_bridge *bridge, uint64_t now_ns)
{
    for (size_t i = 0; i < bridge->load_count; i++) {
        if (bridge->loads[i]->is_leaving) {
            kvb_bridge_close_load(bridge, i);
            return member_step_again;
        }
    }
    for (size_t i = 0; i < bridge->rank_count; i++) {
        if (!bridge->ranks[i]->is_leaving) {
            continue;
        }
        if (!lock_values(bridge, now_ns)) {
            return member_step_later;
        }
        say_goodbye(bridge, bridge->ranks[i], now_ns);
        kvb_bridge_close_rank(bridge, i);
        list_ranks_anew(bridge);
        return member_step_again;
    }
    return member_step_done;
}

static void say_not_opened(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings,
    const struct kvb_detail *why)
{
    char worker[24];
    char dp_rank[24];

    kvb_log_write(
        bridge->log, KVB_LOG_ERROR, "bridge", "a rank cannot be opened", "why", why->text, "worker",
        kvb_log_u64(worker, settings->id), "dp_rank", kvb_log_u64(dp_rank, settings->first_rank),
        NULL);
}

/* What came of opening one: it is there, is tried again, or is given up. */
static enum member_step judge(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, kvb_status status,
    uint64_t now_ns)
{
    struct bridge_members *members = bridge->members;
    struct kvb_bridge_answer_to_asking *answer = &members->command->answer;

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
    struct bridge_members *members = bridge->members;
    const struct kvb_worker_config *settings = &members->command->wanted->ranks[members->next_rank];

    if (!lock_values(bridge, now_ns)) {
        return member_step_later;
    }
    const kvb_status status = kvb_bridge_open_rank(
        bridge, settings, members->command->asking.origin, &members->command->answer.why);
    list_ranks_anew(bridge);
    const enum member_step step = judge(bridge, settings, status, now_ns);
    members->next_rank += step == member_step_again;
    return step;
}

static enum member_step open_load(struct kvb_bridge *bridge)
{
    struct bridge_members *members = bridge->members;
    const struct kvb_worker_config *settings = &members->command->wanted->loads[members->next_load];
    const kvb_status status = kvb_bridge_open_load(
        bridge, settings, members->command->asking.origin, &members->command->answer.why);

    members->next_load++;
    (void)judge(bridge, settings, status, UINT64_MAX - open_again_ns);
    return member_step_again;
}

static enum member_step open_one(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_members *members = bridge->members;
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
