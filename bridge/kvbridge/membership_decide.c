#include "core/limits.h"
#include "core/own.h"
#include "kvbridge/membership.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Decides which ranks are removed and added, before any change is made. */

static void
say_who(struct bridge_command *command, const struct bridge_rank *rank, const char *what)
{
    kvb_detail_set(
        &command->answer.why, "instance %" PRIu64 " dp_rank %u %s", rank->worker_id, rank->dp_rank,
        rank->origin == KVB_BRIDGE_OF_REGISTERED ? what : "stands in the configuration file");
}

/* Its address is read already, for another rank or under another id. */
static bool is_read_already(const struct bridge_rank *rank, const struct kvb_worker_config *wanted)
{
    struct kvb_endpoint_range one;
    struct kvb_endpoint_range other;

    return kvb_endpoint_range_of(rank->settings.events, 0, 1, &one, NULL) == KVB_OK &&
           kvb_endpoint_range_of(wanted->events, 0, 1, &other, NULL) == KVB_OK &&
           kvb_endpoint_range_clashes(&one, &other);
}

/* A file that was read without a mistake does not collide with itself. */
static bool is_list_checked(const struct bridge_rank *rank, const struct bridge_command *command)
{
    return rank->origin == KVB_BRIDGE_OF_FILE && command->wish.origin == KVB_BRIDGE_OF_FILE;
}

/* May this rank come beside those that stay? */
static kvb_status check_beside(
    struct bridge_membership *membership, struct bridge_command *command,
    const struct kvb_worker_config *wanted)
{
    for (size_t i = 0; i < membership->rank_count; i++) {
        const struct bridge_rank *rank = membership->ranks[i];
        if (rank->is_leaving || is_list_checked(rank, command)) {
            continue;
        }
        if (rank->worker_id == wanted->id && rank->dp_rank == wanted->first_rank) {
            say_who(command, rank, "already registered");
            return KVB_BAD_CONFIG;
        }
        if (is_read_already(rank, wanted)) {
            kvb_detail_set(
                &command->answer.why,
                "endpoint: %.80s is read already, as instance %" PRIu64 " dp_rank %u",
                wanted->events, rank->worker_id, rank->dp_rank);
            return KVB_BAD_CONFIG;
        }
        if (rank->origin == KVB_BRIDGE_OF_REGISTERED &&
            command->wish.origin == KVB_BRIDGE_OF_REGISTERED &&
            strcmp(rank->settings.model, wanted->model) == 0 &&
            rank->settings.block_size != wanted->block_size) {
            kvb_detail_set(
                &command->answer.why,
                "block_size mismatch for model=%.80s: existing=%u, requested=%u", wanted->model,
                rank->settings.block_size, wanted->block_size);
            return KVB_BAD_CONFIG;
        }
    }
    return KVB_OK;
}

static kvb_status
check_room(struct kvb_bridge *bridge, struct bridge_command *command, size_t is_added)
{
    struct kvb_zmq_size size = { .publishers = is_added,
                                 .loads = kvb_bridge_load_sources(&bridge->membership),
                                 .others = kvb_bridge_other_files(bridge->config) };

    for (size_t i = 0; i < bridge->membership.rank_count; i++) {
        size.publishers += !bridge->membership.ranks[i]->is_leaving;
    }
    if (size.publishers > kvb_max_streams) {
        kvb_detail_set(
            &command->answer.why, "the bridge is full: it reads %d ranks at most", kvb_max_streams);
        return KVB_TOO_LARGE;
    }
    for (size_t i = 0; i < command->wanted->load_count; i++) {
        size.loads += kvb_worker_load_sources(&command->wanted->loads[i]);
    }
    return kvb_zmq_raise_limits(&size, &command->answer.why) == KVB_OK ? KVB_OK : KVB_TOO_LARGE;
}

static kvb_status check_added(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const struct kvb_members *wanted = command->wanted;
    size_t is_added = 0;

    for (size_t i = 0; i < wanted->rank_count; i++) {
        if (bridge->membership.work->ranks_come[i]) {
            KVB_TRY(check_beside(&bridge->membership, command, &wanted->ranks[i]));
            is_added++;
        }
    }
    return check_room(bridge, command, is_added);
}

/* The settings of the ranks of one list, for the comparison; NULL: memory is out. */
static const struct kvb_worker_config **
list_ranks(struct bridge_membership *membership, uint32_t origin, size_t *out_count)
{
    const struct kvb_worker_config **list =
        calloc(membership->rank_count + 1, sizeof(struct kvb_worker_config *));

    *out_count = 0;
    for (size_t i = 0; list && i < membership->rank_count; i++) {
        if (membership->ranks[i]->origin == origin) {
            list[(*out_count)++] = &membership->ranks[i]->settings;
        }
    }
    return list;
}

static const struct kvb_worker_config **
list_loads(struct bridge_membership *membership, uint32_t origin, size_t *out_count)
{
    const struct kvb_worker_config **list =
        calloc(membership->load_count + 1, sizeof(struct kvb_worker_config *));

    *out_count = 0;
    for (size_t i = 0; list && i < membership->load_count; i++) {
        if (membership->loads[i]->origin == origin) {
            list[(*out_count)++] = &membership->loads[i]->settings;
        }
    }
    return list;
}

static bool is_gone(const struct kvb_membership_request *wish, uint32_t origin)
{
    return wish->gone_origins && origin >= KVB_BRIDGE_OF_DISCOVERED &&
           wish->gone_origins[origin - KVB_BRIDGE_OF_DISCOVERED];
}

/* Marks the removed ranks, in the order of list_ranks(). */
static void mark_ranks(
    struct bridge_membership *membership, struct bridge_command *command, const bool *is_removed)
{
    size_t at = 0;

    for (size_t i = 0; i < membership->rank_count; i++) {
        struct bridge_rank *rank = membership->ranks[i];
        if (rank->origin == command->wish.origin) {
            rank->is_leaving = is_removed[at++];
        } else if (is_gone(&command->wish, rank->origin)) {
            rank->is_leaving = true;
            command->answer.gone++;
        }
    }
}

static void mark_loads(
    struct bridge_membership *membership, const struct bridge_command *command,
    const bool *is_removed)
{
    size_t at = 0;

    for (size_t i = 0; i < membership->load_count; i++) {
        struct bridge_load *load = membership->loads[i];
        load->is_leaving = load->origin == command->wish.origin
                               ? is_removed[at++]
                               : is_gone(&command->wish, load->origin);
    }
}

static void drop_worker_list(const struct kvb_worker_config ***list)
{
    free((void *)*list);
}

static kvb_status
compare_loads(struct bridge_membership *membership, struct bridge_command *command)
{
    size_t count = 0;
    KVB_OWN(drop_worker_list)
    const struct kvb_worker_config **list = list_loads(membership, command->wish.origin, &count);
    KVB_OWN(kvb_member_changes_done) struct kvb_member_changes changes = { 0 };

    if (!list) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_members_compare(
        list, count, command->wanted->loads, command->wanted->load_count, &changes));
    mark_loads(membership, command, changes.is_removed);
    membership->work->loads_come = changes.is_added;
    changes.is_added = NULL;
    return KVB_OK;
}

static kvb_status
compare_with_ranks(struct bridge_membership *membership, struct bridge_command *command)
{
    size_t count = 0;
    KVB_OWN(drop_worker_list)
    const struct kvb_worker_config **list = list_ranks(membership, command->wish.origin, &count);
    KVB_OWN(kvb_member_changes_done) struct kvb_member_changes changes = { 0 };

    if (!list) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_members_compare(
        list, count, command->wanted->ranks, command->wanted->rank_count, &changes));
    command->answer.added = changes.added;
    command->answer.gone = changes.gone;
    command->answer.changed = changes.changed;
    command->answer.same = changes.same;
    mark_ranks(membership, command, changes.is_removed);
    membership->work->ranks_come = changes.is_added;
    changes.is_added = NULL;
    return KVB_OK;
}

static kvb_status begin_replacing(struct kvb_bridge *bridge, struct bridge_command *command)
{
    KVB_TRY(compare_with_ranks(&bridge->membership, command));
    KVB_TRY(compare_loads(&bridge->membership, command));
    return check_added(bridge, command);
}

static kvb_status begin_registering(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct membership_work *members = bridge->membership.work;

    members->ranks_come = calloc(1, sizeof *members->ranks_come);
    if (!members->ranks_come) {
        return KVB_NO_MEMORY;
    }
    members->ranks_come[0] = true;
    command->answer.added = 1;
    return check_added(bridge, command);
}

static bool
is_rank_wanted(const struct kvb_membership_request *wish, const struct bridge_rank *rank)
{
    return rank->worker_id == wish->worker_id &&
           (!wish->has_rank || rank->dp_rank == wish->dp_rank) &&
           (wish->model[0] == '\0' || strcmp(rank->settings.model, wish->model) == 0);
}

static kvb_status begin_forgetting(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const struct bridge_rank *of_file = NULL;

    for (size_t i = 0; i < bridge->membership.rank_count; i++) {
        struct bridge_rank *rank = bridge->membership.ranks[i];
        if (!is_rank_wanted(&command->wish, rank)) {
            continue;
        }
        if (rank->origin != KVB_BRIDGE_OF_REGISTERED) {
            of_file = rank;
        } else {
            rank->is_leaving = true;
            command->answer.gone++;
        }
    }
    if (command->answer.gone > 0) {
        return KVB_OK;
    }
    if (of_file) {
        say_who(command, of_file, "");
        return KVB_BAD_CONFIG;
    }
    kvb_detail_set(&command->answer.why, "instance %" PRIu64 " not found", command->wish.worker_id);
    return KVB_NOT_FOUND;
}

/* Whatever list a rank stands in; one that has the mark already is counted too. */
static kvb_status mark_draining(struct kvb_bridge *bridge, struct bridge_command *command)
{
    for (size_t i = 0; i < bridge->membership.rank_count; i++) {
        struct bridge_rank *rank = bridge->membership.ranks[i];
        if (is_rank_wanted(&command->wish, rank)) {
            rank->is_draining = command->wish.kind == KVB_BRIDGE_DRAIN;
            rank->served.advertiser.is_beat_due = true;
            command->answer.marked++;
        }
    }
    if (command->answer.marked > 0) {
        bridge->ingest.server.agenda.is_round_wanted = true; /* heartbeats say it at once */
        return KVB_OK;
    }
    kvb_detail_set(&command->answer.why, "worker %" PRIu64 " not found", command->wish.worker_id);
    return KVB_NOT_FOUND;
}

kvb_status kvb_bridge_decide(struct kvb_bridge *bridge, struct bridge_command *command)
{
    static kvb_status (*const kinds[])(struct kvb_bridge *, struct bridge_command *) = {
        [KVB_BRIDGE_REPLACE] = begin_replacing, [KVB_BRIDGE_REGISTER] = begin_registering,
        [KVB_BRIDGE_FORGET] = begin_forgetting, [KVB_BRIDGE_DRAIN] = mark_draining,
        [KVB_BRIDGE_UNDRAIN] = mark_draining,
    };

    return kinds[command->wish.kind](bridge, command);
}
