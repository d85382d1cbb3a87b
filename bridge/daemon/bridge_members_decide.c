#include "core/limits.h"
#include "core/own.h"
#include "daemon/bridge_members.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Who leaves and who comes, before anybody does. */

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
    return rank->origin == KVB_BRIDGE_OF_FILE && command->asking.origin == KVB_BRIDGE_OF_FILE;
}

/* May this rank come beside those that stay? */
static kvb_status check_beside(
    struct kvb_bridge *bridge, struct bridge_command *command,
    const struct kvb_worker_config *wanted)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        const struct bridge_rank *rank = bridge->ranks[i];
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
            command->asking.origin == KVB_BRIDGE_OF_REGISTERED &&
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
check_room(struct kvb_bridge *bridge, struct bridge_command *command, size_t comes)
{
    struct kvb_zmq_size size = { .publishers = comes, .loads = kvb_bridge_load_sources(bridge) };

    for (size_t i = 0; i < bridge->rank_count; i++) {
        size.publishers += !bridge->ranks[i]->is_leaving;
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

static kvb_status check_comers(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const struct kvb_members *wanted = command->wanted;
    size_t comes = 0;

    for (size_t i = 0; i < wanted->rank_count; i++) {
        if (bridge->members->ranks_come[i]) {
            KVB_TRY(check_beside(bridge, command, &wanted->ranks[i]));
            comes++;
        }
    }
    return check_room(bridge, command, comes);
}

/* The settings of the ranks of one list, for the comparison; NULL: memory is out. */
static const struct kvb_worker_config **
list_ranks(struct kvb_bridge *bridge, uint32_t origin, size_t *out_count)
{
    const struct kvb_worker_config **list =
        calloc(bridge->rank_count + 1, sizeof(struct kvb_worker_config *));

    *out_count = 0;
    for (size_t i = 0; list && i < bridge->rank_count; i++) {
        if (bridge->ranks[i]->origin == origin) {
            list[(*out_count)++] = &bridge->ranks[i]->settings;
        }
    }
    return list;
}

static const struct kvb_worker_config **
list_loads(struct kvb_bridge *bridge, uint32_t origin, size_t *out_count)
{
    const struct kvb_worker_config **list =
        calloc(bridge->load_count + 1, sizeof(struct kvb_worker_config *));

    *out_count = 0;
    for (size_t i = 0; list && i < bridge->load_count; i++) {
        if (bridge->loads[i]->origin == origin) {
            list[(*out_count)++] = &bridge->loads[i]->settings;
        }
    }
    return list;
}

static bool is_gone(const struct kvb_bridge_asking *asking, uint32_t origin)
{
    return asking->gone_origins && origin >= KVB_BRIDGE_OF_DISCOVERED &&
           asking->gone_origins[origin - KVB_BRIDGE_OF_DISCOVERED];
}

/* Marks who goes; in the order of list_ranks(). */
static void mark_ranks(struct kvb_bridge *bridge, struct bridge_command *command, const bool *goes)
{
    size_t at = 0;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        struct bridge_rank *rank = bridge->ranks[i];
        if (rank->origin == command->asking.origin) {
            rank->is_leaving = goes[at++];
        } else if (is_gone(&command->asking, rank->origin)) {
            rank->is_leaving = true;
            command->answer.gone++;
        }
    }
}

static void
mark_loads(struct kvb_bridge *bridge, const struct bridge_command *command, const bool *goes)
{
    size_t at = 0;

    for (size_t i = 0; i < bridge->load_count; i++) {
        struct bridge_load *load = bridge->loads[i];
        load->is_leaving = load->origin == command->asking.origin
                               ? goes[at++]
                               : is_gone(&command->asking, load->origin);
    }
}

static void drop_list(const struct kvb_worker_config ***list)
{
    free((void *)*list);
}

static kvb_status compare_loads(struct kvb_bridge *bridge, struct bridge_command *command)
{
    size_t count = 0;
    KVB_OWN(drop_list)
    const struct kvb_worker_config **list = list_loads(bridge, command->asking.origin, &count);
    KVB_OWN(kvb_member_changes_done) struct kvb_member_changes changes = { 0 };

    if (!list) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_members_compare(
        list, count, command->wanted->loads, command->wanted->load_count, &changes));
    mark_loads(bridge, command, changes.goes);
    bridge->members->loads_come = changes.comes;
    changes.comes = NULL;
    return KVB_OK;
}

static kvb_status compare_ranks(struct kvb_bridge *bridge, struct bridge_command *command)
{
    size_t count = 0;
    KVB_OWN(drop_list)
    const struct kvb_worker_config **list = list_ranks(bridge, command->asking.origin, &count);
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
    mark_ranks(bridge, command, changes.goes);
    bridge->members->ranks_come = changes.comes;
    changes.comes = NULL;
    return KVB_OK;
}

static kvb_status begin_replacing(struct kvb_bridge *bridge, struct bridge_command *command)
{
    KVB_TRY(compare_ranks(bridge, command));
    KVB_TRY(compare_loads(bridge, command));
    return check_comers(bridge, command);
}

static kvb_status begin_registering(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct bridge_members *members = bridge->members;

    members->ranks_come = calloc(1, sizeof *members->ranks_come);
    if (!members->ranks_come) {
        return KVB_NO_MEMORY;
    }
    members->ranks_come[0] = true;
    command->answer.added = 1;
    return check_comers(bridge, command);
}

static bool is_meant(const struct kvb_bridge_asking *asking, const struct bridge_rank *rank)
{
    return rank->worker_id == asking->worker_id &&
           (!asking->has_rank || rank->dp_rank == asking->dp_rank) &&
           (asking->model[0] == '\0' || strcmp(rank->settings.model, asking->model) == 0);
}

static kvb_status begin_forgetting(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const struct bridge_rank *of_file = NULL;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        struct bridge_rank *rank = bridge->ranks[i];
        if (!is_meant(&command->asking, rank)) {
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
    kvb_detail_set(
        &command->answer.why, "instance %" PRIu64 " not found", command->asking.worker_id);
    return KVB_NOT_FOUND;
}

kvb_status kvb_bridge_decide(struct kvb_bridge *bridge, struct bridge_command *command)
{
    static kvb_status (*const kinds[])(struct kvb_bridge *, struct bridge_command *) = {
        [KVB_BRIDGE_REPLACE] = begin_replacing,
        [KVB_BRIDGE_REGISTER] = begin_registering,
        [KVB_BRIDGE_FORGET] = begin_forgetting,
    };

    return kinds[command->asking.kind](bridge, command);
}
