#include "core/limits.h"
#include "core/own.h"
#include "daemon/http.h"
#include "ingest/zmq/context.h"
#include "kvbridge/commands.h"
#include "kvbridge/ingest.h"
#include "kvbridge/loads.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"
#include "stream/stream.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Decides which ranks are removed and added, before any change is made. */

static void
say_who(struct bridge_command *command, const struct bridge_rank *rank, const char *registered)
{
    static const char *const places[] = {
        [KVB_BRIDGE_OF_FILE] = "is in the configuration file",
        [KVB_BRIDGE_OF_KUBERNETES] = "is a pod of Kubernetes",
        [KVB_BRIDGE_OF_DNS] = "is an address of the DNS name",
        [KVB_BRIDGE_OF_DISCOVERED] = "is a rank of an engine that was discovered",
    };
    const uint32_t origin =
        rank->origin < KVB_BRIDGE_OF_DISCOVERED ? rank->origin : KVB_BRIDGE_OF_DISCOVERED;

    kvb_detail_set(
        &command->answer.why, "instance %" PRIu64 " dp_rank %u %s", rank->worker_id, rank->dp_rank,
        origin == KVB_BRIDGE_OF_REGISTERED ? registered : places[origin]);
}

/* ---- The ranks that stay ---- */

/* A rank that stays open, keyed by its id or by its address. */
struct neighbour {
    uint64_t key;
    uint64_t part;
    const struct bridge_rank *rank;
};

/* Two sorted arrays, so that thousands of ranks are compared with thousands in one turn. */
struct neighbours {
    struct neighbour *by_id;      /* owned; sorted by worker_id, dp_rank */
    struct neighbour *by_address; /* owned; sorted by the hash of the events address */
    size_t id_count;
    size_t address_count;
};

static int compare_neighbours(const void *one, const void *other)
{
    const struct neighbour *a = one;
    const struct neighbour *b = other;

    if (a->key != b->key) {
        return a->key < b->key ? -1 : 1;
    }
    return (a->part > b->part) - (a->part < b->part);
}

static void neighbours_done(struct neighbours *neighbours)
{
    free(neighbours->by_id);
    free(neighbours->by_address);
}

/* False: the rank is being removed, or both come from the configuration file.  That file was
 * checked for collisions when it was read. */
static bool is_neighbour(const struct bridge_rank *rank, const struct bridge_command *command)
{
    const bool is_checked =
        rank->origin == KVB_BRIDGE_OF_FILE && command->wish.origin == KVB_BRIDGE_OF_FILE;

    return !rank->is_leaving && !is_checked;
}

static void add_neighbour(struct neighbours *neighbours, const struct bridge_rank *rank)
{
    struct kvb_endpoint_range range;

    neighbours->by_id[neighbours->id_count++] =
        (struct neighbour){ .key = rank->worker_id, .part = rank->dp_rank, .rank = rank };
    if (kvb_endpoint_range_of(rank->settings.events, 0, 1, &range, NULL) == KVB_OK) {
        neighbours->by_address[neighbours->address_count++] =
            (struct neighbour){ .key = kvb_endpoint_range_hash(&range), .rank = rank };
    }
}

static kvb_status list_neighbours(
    const struct bridge_membership *membership, const struct bridge_command *command,
    struct neighbours *out_neighbours)
{
    struct neighbours neighbours = { 0 };

    neighbours.by_id = calloc(membership->rank_count + 1, sizeof *neighbours.by_id);
    neighbours.by_address = calloc(membership->rank_count + 1, sizeof *neighbours.by_address);
    if (!neighbours.by_id || !neighbours.by_address) {
        neighbours_done(&neighbours);
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < membership->rank_count; i++) {
        if (is_neighbour(membership->ranks[i], command)) {
            add_neighbour(&neighbours, membership->ranks[i]);
        }
    }
    qsort(neighbours.by_id, neighbours.id_count, sizeof *neighbours.by_id, compare_neighbours);
    qsort(
        neighbours.by_address, neighbours.address_count, sizeof *neighbours.by_address,
        compare_neighbours);
    *out_neighbours = neighbours;
    return KVB_OK;
}

/* The rank that stays open and has this id and number; NULL: none. */
static const struct bridge_rank *
find_by_id(const struct neighbours *neighbours, const struct kvb_worker_config *wanted)
{
    const struct neighbour key = { .key = wanted->id, .part = wanted->first_rank };
    const struct neighbour *found =
        bsearch(&key, neighbours->by_id, neighbours->id_count, sizeof key, compare_neighbours);

    return found ? found->rank : NULL;
}

/* The rank that stays open and reads this address; NULL: none.  No two such ranks read one address,
 * so the first match of the hash is enough. */
static const struct bridge_rank *
find_by_address(const struct neighbours *neighbours, const struct kvb_worker_config *wanted)
{
    struct kvb_endpoint_range range;
    struct kvb_endpoint_range other;

    if (kvb_endpoint_range_of(wanted->events, 0, 1, &range, NULL) != KVB_OK) {
        return NULL;
    }
    const struct neighbour key = { .key = kvb_endpoint_range_hash(&range) };
    const struct neighbour *found = bsearch(
        &key, neighbours->by_address, neighbours->address_count, sizeof key, compare_neighbours);
    return found &&
                   kvb_endpoint_range_of(found->rank->settings.events, 0, 1, &other, NULL) ==
                       KVB_OK &&
                   kvb_endpoint_range_clashes(&range, &other)
               ? found->rank
               : NULL;
}

/* ---- The ranks that are added ---- */

/* KVB_BAD_CONFIG: a rank that stays open has the same id or address. */
static kvb_status check_beside(
    const struct neighbours *neighbours, struct bridge_command *command,
    const struct kvb_worker_config *wanted, enum kvb_bridge_taken *out_taken)
{
    const struct bridge_rank *rank = find_by_id(neighbours, wanted);

    if (rank) {
        *out_taken = KVB_BRIDGE_ID_TAKEN;
        say_who(command, rank, "already registered");
        return KVB_BAD_CONFIG;
    }
    rank = find_by_address(neighbours, wanted);
    if (rank) {
        *out_taken = KVB_BRIDGE_ADDRESS_TAKEN;
        kvb_detail_set(
            &command->answer.why,
            "endpoint: %.80s is read already, as instance %" PRIu64 " dp_rank %u", wanted->events,
            rank->worker_id, rank->dp_rank);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

/* All registered ranks of one model must have one block size. */
static kvb_status check_block_size(
    const struct bridge_membership *membership, struct bridge_command *command,
    const struct kvb_worker_config *wanted)
{
    for (size_t i = 0; i < membership->rank_count; i++) {
        const struct bridge_rank *rank = membership->ranks[i];
        if (!rank->is_leaving && rank->origin == KVB_BRIDGE_OF_REGISTERED &&
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

static size_t
count_coming(const struct bridge_membership *membership, const struct kvb_members *wanted)
{
    size_t count = 0;

    for (size_t i = 0; i < wanted->rank_count; i++) {
        count += membership->work->ranks_come[i];
    }
    return count;
}

/* The ranks that stay and those that come, and their readers. */
static void add_rank_sockets(
    const struct bridge_membership *membership, const struct kvb_members *wanted,
    struct kvb_zmq_size *size)
{
    for (size_t i = 0; i < membership->rank_count; i++) {
        const struct bridge_rank *rank = membership->ranks[i];
        size->publishers += !rank->is_leaving;
        size->readers += !rank->is_leaving && rank->republish;
    }
    size->publishers += count_coming(membership, wanted);
    for (size_t i = 0; i < wanted->rank_count; i++) {
        size->readers +=
            membership->work->ranks_come[i] && kvb_worker_is_republished(&wanted->ranks[i]);
    }
}

static kvb_status check_room(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const struct bridge_membership *membership = bridge->membership;
    const struct kvb_members *wanted = command->wanted;
    struct kvb_zmq_size size = { .loads = kvb_bridge_load_sources(membership),
                                 .others = kvb_bridge_other_files(bridge->config) };

    add_rank_sockets(membership, wanted, &size);
    if (size.publishers > kvb_max_streams) {
        kvb_detail_set(
            &command->answer.why, "the bridge is full: it reads at most %d ranks", kvb_max_streams);
        return KVB_TOO_LARGE;
    }
    for (size_t i = 0; i < wanted->load_count; i++) {
        if (membership->work->loads_come[i]) {
            size.loads += kvb_worker_load_sources(&wanted->loads[i]);
        }
    }
    if (kvb_zmq_raise_limits(&size, &command->answer.why) != KVB_OK) {
        return KVB_TOO_LARGE;
    }
    kvb_zmq_expect(bridge->ingest->zmq, size.publishers);
    return KVB_OK;
}

/* ---- Lists of which a part may be left out ---- */

/* Unmarks the ranks and load sources of workers that are left out. */
static void leave_out(struct bridge_membership *membership, struct bridge_command *command)
{
    const struct kvb_members *wanted = command->wanted;
    const enum kvb_bridge_taken *taken = command->wish.out_taken;

    for (size_t i = 0; i < wanted->rank_count; i++) {
        bool *comes = &membership->work->ranks_come[i];
        if (*comes && taken[wanted->worker_of_rank[i]] != KVB_BRIDGE_TAKEN) {
            *comes = false;
            command->answer.left_out++;
        }
    }
    for (size_t i = 0; i < wanted->load_count; i++) {
        if (taken[wanted->worker_of_load[i]] != KVB_BRIDGE_TAKEN) {
            membership->work->loads_come[i] = false;
        }
    }
}

/* Leaves out the last half of the added ranks, repeatedly, until the rest fits. */
static void fit_into_room(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct bridge_membership *membership = bridge->membership;
    const struct kvb_members *wanted = command->wanted;
    size_t max = count_coming(membership, wanted);

    while (max > 0 && check_room(bridge, command) != KVB_OK) {
        size_t count = 0;
        max /= 2;
        for (size_t i = 0; i < wanted->rank_count; i++) {
            if (membership->work->ranks_come[i] && ++count > max) {
                command->wish.out_taken[wanted->worker_of_rank[i]] = KVB_BRIDGE_FULL;
            }
        }
        leave_out(membership, command);
    }
}

static kvb_status check_added(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct bridge_membership *membership = bridge->membership;
    const struct kvb_members *wanted = command->wanted;
    KVB_OWN(neighbours_done) struct neighbours neighbours = { 0 };

    KVB_TRY(list_neighbours(membership, command, &neighbours));
    for (size_t i = 0; i < wanted->rank_count; i++) {
        enum kvb_bridge_taken taken = KVB_BRIDGE_TAKEN;
        const kvb_status status =
            membership->work->ranks_come[i]
                ? check_beside(&neighbours, command, &wanted->ranks[i], &taken)
                : KVB_OK;
        if (status != KVB_OK && !command->wish.out_taken) {
            return status;
        }
        if (status != KVB_OK) {
            command->wish.out_taken[wanted->worker_of_rank[i]] = taken;
        }
    }
    if (!command->wish.out_taken) {
        return check_room(bridge, command);
    }
    leave_out(membership, command);
    fit_into_room(bridge, command);
    return KVB_OK;
}

/* The settings of the ranks of one list, for the comparison; NULL: out of memory. */
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

static kvb_status
compare_loads(struct bridge_membership *membership, struct bridge_command *command)
{
    size_t count = 0;
    KVB_OWN(kvb_own_free)
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

static kvb_status compare_with_ranks(
    struct bridge_membership *membership, struct bridge_command *command,
    const struct kvb_worker_facts ***out_updates)
{
    size_t count = 0;
    KVB_OWN(kvb_own_free)
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
    command->answer.updated = changes.updated;
    mark_ranks(membership, command, changes.is_removed);
    membership->work->ranks_come = changes.is_added;
    changes.is_added = NULL;
    *out_updates = changes.updates;
    changes.updates = NULL;
    return KVB_OK;
}

/* A worker whose keys change stays draining after a POST /drain.  A new pod with the same name is a
 * new worker, and is not draining. */
static kvb_status keep_drains(struct bridge_membership *membership, struct bridge_command *command)
{
    const struct kvb_members *wanted = command->wanted;
    bool *are_draining = calloc(wanted->rank_count + 1, sizeof *are_draining);

    if (!are_draining) {
        return KVB_NO_MEMORY;
    }
    membership->work->are_draining = are_draining;
    for (size_t i = 0; i < membership->rank_count; i++) {
        const struct bridge_rank *rank = membership->ranks[i];
        for (size_t at = 0; rank->is_leaving && rank->is_draining && at < wanted->rank_count;
             at++) {
            are_draining[at] |= rank->worker_id == wanted->ranks[at].id &&
                                rank->dp_rank == wanted->ranks[at].first_rank &&
                                strcmp(rank->settings.pod_uid, wanted->ranks[at].pod_uid) == 0;
        }
    }
    return KVB_OK;
}

/* Probes an engine at once when its container has restarted: its connection may not show the
 * restart. */
static void
set_facts(struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_worker_facts *facts)
{
    if (rank->settings.facts.restarts != facts->restarts) {
        kvb_stream_suspect_restart(rank->served.stream);
    }
    rank->settings.facts = *facts;
    kvb_bridge_note_speculation(rank);
    kvb_bridge_beat_at_once(bridge, rank);
}

/* In the order of list_ranks(). */
static void update_facts(
    struct kvb_bridge *bridge, const struct bridge_command *command,
    const struct kvb_worker_facts *const *updates)
{
    size_t at = 0;

    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        struct bridge_rank *rank = bridge->membership->ranks[i];
        if (rank->origin != command->wish.origin) {
            continue;
        }
        if (updates[at]) {
            set_facts(bridge, rank, updates[at]);
        }
        at++;
    }
}

static kvb_status begin_replacing(struct kvb_bridge *bridge, struct bridge_command *command)
{
    KVB_OWN(kvb_own_free) const struct kvb_worker_facts **updates = NULL;

    KVB_TRY(compare_with_ranks(bridge->membership, command, &updates));
    KVB_TRY(compare_loads(bridge->membership, command));
    KVB_TRY(check_added(bridge, command));
    KVB_TRY(keep_drains(bridge->membership, command));
    update_facts(bridge, command, updates);
    return KVB_OK;
}

static kvb_status update_list(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct kvb_worker_facts facts = *command->wish.facts;

    kvb_members_limit_facts(&facts, &bridge->config->publish.labels);
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        struct bridge_rank *rank = bridge->membership->ranks[i];
        if (rank->origin == command->wish.origin &&
            !kvb_worker_facts_are_same(&rank->settings.facts, &facts)) {
            set_facts(bridge, rank, &facts);
            command->answer.updated++;
        }
    }
    return KVB_OK;
}

static kvb_status begin_registering(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct membership_work *members = bridge->membership->work;

    members->ranks_come = calloc(1, sizeof *members->ranks_come);
    if (!members->ranks_come) {
        return KVB_NO_MEMORY;
    }
    members->ranks_come[0] = true;
    command->answer.added = 1;
    KVB_TRY(check_block_size(bridge->membership, command, &command->wanted->ranks[0]));
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

    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        struct bridge_rank *rank = bridge->membership->ranks[i];
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

/* Marks ranks of any list.  A rank that is already marked counts too. */
static kvb_status mark_draining(struct kvb_bridge *bridge, struct bridge_command *command)
{
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        struct bridge_rank *rank = bridge->membership->ranks[i];
        if (is_rank_wanted(&command->wish, rank)) {
            rank->is_draining = command->wish.kind == KVB_BRIDGE_DRAIN;
            kvb_bridge_beat_at_once(bridge, rank);
            command->answer.marked++;
        }
    }
    if (command->answer.marked > 0) {
        return KVB_OK;
    }
    kvb_detail_set(&command->answer.why, "worker %" PRIu64 " not found", command->wish.worker_id);
    return KVB_NOT_FOUND;
}

static kvb_status count_ranks_of(struct kvb_bridge *bridge, struct bridge_command *command)
{
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        command->answer.marked += is_rank_wanted(&command->wish, bridge->membership->ranks[i]);
    }
    command->answer.same = bridge->membership->rank_count;
    return KVB_OK;
}

kvb_status kvb_bridge_decide(struct kvb_bridge *bridge, struct bridge_command *command)
{
    static kvb_status (*const kinds[])(struct kvb_bridge *, struct bridge_command *) = {
        [KVB_BRIDGE_REPLACE] = begin_replacing, [KVB_BRIDGE_REGISTER] = begin_registering,
        [KVB_BRIDGE_UPDATE] = update_list,      [KVB_BRIDGE_FORGET] = begin_forgetting,
        [KVB_BRIDGE_DRAIN] = mark_draining,     [KVB_BRIDGE_UNDRAIN] = mark_draining,
        [KVB_BRIDGE_LOOK_UP] = count_ranks_of,
    };

    return kinds[command->wish.kind](bridge, command);
}
