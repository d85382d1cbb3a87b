#include "kvbridge/members.h"

#include "core/own.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- Splitting workers into ranks ---- */

/* True: the worker is discovered, so its ranks are separate workers in the list, or not known
 * yet. */
static bool is_given_elsewhere(const struct kvb_worker_config *worker)
{
    return worker->discover[0] != '\0';
}

static bool has_load(const struct kvb_worker_config *worker)
{
    return kvb_worker_load_sources(worker) > 0 &&
           (!is_given_elsewhere(worker) || worker->is_discovered);
}

static uint32_t ranks_of(const struct kvb_worker_config *worker)
{
    return is_given_elsewhere(worker) ? 0 : worker->ranks;
}

static void put_rank_address(
    const struct kvb_worker_config *worker, uint32_t dp_rank, const char *base,
    char out_address[kvb_endpoint_bytes])
{
    if (worker->has_own_addresses) {
        return; /* the copy has them already */
    }
    memset(out_address, 0, kvb_endpoint_bytes);
    if (base[0] != '\0') {
        const kvb_status status = kvb_endpoint_for_rank(base, dp_rank, out_address);
        assert(status == KVB_OK); /* kvb_bridge_config_read() has checked the list */
        (void)status;
    }
}

/* The configuration gives those of rank 0, also of a worker that is discovered.  A rank that is
 * beyond what they can carry is not republished. */
static void put_republished_addresses(
    const struct kvb_worker_config *worker, uint32_t dp_rank, struct kvb_republish_config *out)
{
    const struct kvb_republish_config *base = &worker->republish;
    char events[kvb_endpoint_bytes] = "";
    char replay[kvb_endpoint_bytes] = "";

    if (base->is_of_rank || base->events[0] == '\0') {
        return;
    }
    out->is_of_rank = true;
    if (kvb_endpoint_for_rank(base->events, dp_rank, events) != KVB_OK ||
        (base->replay[0] != '\0' &&
         kvb_endpoint_for_rank(base->replay, dp_rank, replay) != KVB_OK)) {
        events[0] = '\0';
    }
    memcpy(out->events, events, sizeof events);
    memcpy(out->replay, replay, sizeof replay);
}

static void
make_member_rank(const struct kvb_worker_config *worker, uint32_t at, struct kvb_worker_config *out)
{
    const uint64_t total_slots = worker->load.total_slots;

    *out = *worker;
    out->id = kvb_worker_id_of_rank(worker, at);
    memset(out->ids, 0, sizeof out->ids);
    out->id_count = 0;
    out->first_rank = worker->first_rank + at;
    out->ranks = 1;
    put_rank_address(worker, out->first_rank, worker->events, out->events);
    put_rank_address(worker, out->first_rank, worker->replay, out->replay);
    out->has_own_addresses = true;
    put_republished_addresses(worker, out->first_rank, &out->republish);
    memset(&out->load, 0, sizeof out->load);
    out->load.total_slots = total_slots;
}

static kvb_status
make_member_room(const struct kvb_worker_config *workers, size_t count, struct kvb_members *members)
{
    size_t ranks = 1; /* not 0, so that calloc() returns an array */
    size_t loads = 1;

    for (size_t i = 0; i < count; i++) {
        ranks += ranks_of(&workers[i]);
        loads += has_load(&workers[i]);
    }
    members->ranks = calloc(ranks, sizeof *members->ranks);
    members->loads = calloc(loads, sizeof *members->loads);
    members->worker_of_rank = calloc(ranks, sizeof *members->worker_of_rank);
    members->worker_of_load = calloc(loads, sizeof *members->worker_of_load);
    return members->ranks && members->loads && members->worker_of_rank && members->worker_of_load
               ? KVB_OK
               : KVB_NO_MEMORY;
}

kvb_status kvb_members_of(
    const struct kvb_worker_config *workers, size_t count, const struct kvb_label_names *published,
    struct kvb_members *out_members)
{
    struct kvb_members members = { 0 };
    const kvb_status status = make_member_room(workers, count, &members);

    if (status != KVB_OK) {
        kvb_members_done(&members);
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        for (uint32_t at = 0; at < ranks_of(&workers[i]); at++) {
            struct kvb_worker_config *rank = &members.ranks[members.rank_count];
            make_member_rank(&workers[i], at, rank);
            kvb_members_limit_facts(&rank->facts, published);
            members.worker_of_rank[members.rank_count++] = i;
        }
        if (has_load(&workers[i])) {
            members.worker_of_load[members.load_count] = i;
            members.loads[members.load_count++] = workers[i];
        }
    }
    *out_members = members;
    return KVB_OK;
}

void kvb_members_limit_facts(
    struct kvb_worker_facts *facts, const struct kvb_label_names *published)
{
    if (published->count > 0) {
        kvb_labels_keep(&facts->labels, published);
    }
}

void kvb_members_done(struct kvb_members *members)
{
    free(members->ranks);
    free(members->loads);
    free(members->worker_of_rank);
    free(members->worker_of_load);
    *members = (struct kvb_members){ 0 };
}

/* ---- Comparing ---- */

/* A member of the old list, as an entry of a sorted array. */
struct place {
    uint64_t id;
    uint32_t dp_rank;
    size_t at;
};

static struct place member_place(const struct kvb_worker_config *member, size_t at)
{
    return (struct place){ .id = kvb_worker_id_of_rank(member, 0),
                           .dp_rank = member->first_rank,
                           .at = at };
}

static int compare_places(const void *one, const void *other)
{
    const struct place *a = one;
    const struct place *b = other;

    if (a->id != b->id) {
        return a->id < b->id ? -1 : 1;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

/* True: the key is a fact, which may change without making another worker. */
static bool is_fact(const char *path)
{
    static const char *const facts[] = { "address", "tokenize", "role", "labels" };

    for (size_t i = 0; i < KVB_COUNT_OF(facts); i++) {
        if (strcmp(path, facts[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void note_key_difference(void *context, const char *path)
{
    bool *differs = context;

    *differs = *differs || !is_fact(path);
}

bool kvb_members_are_same(
    const struct kvb_worker_config *one, const struct kvb_worker_config *other)
{
    bool differs = one->has_own_addresses != other->has_own_addresses ||
                   strcmp(one->pod_uid, other->pod_uid) != 0;

    kvb_conf_differences(kvb_worker_config_keys(), one, other, note_key_difference, &differs);
    return !differs;
}

/* Two lists and their differences. */
struct comparison {
    const struct kvb_worker_config *const *old;
    size_t old_count;
    struct place *places; /* owned; the old list, sorted */
    const struct kvb_worker_config *new;
    size_t new_count;
    struct kvb_member_changes changes;
};

static kvb_status make_places(struct comparison *comparison)
{
    struct kvb_member_changes *changes = &comparison->changes;

    comparison->places = calloc(comparison->old_count + 1, sizeof *comparison->places);
    changes->is_removed = calloc(comparison->old_count + 1, sizeof *changes->is_removed);
    changes->is_added = calloc(comparison->new_count + 1, sizeof *changes->is_added);
    changes->updates = calloc(comparison->old_count + 1, sizeof(struct kvb_worker_facts *));
    if (!comparison->places || !changes->is_removed || !changes->is_added || !changes->updates) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < comparison->old_count; i++) {
        comparison->places[i] = member_place(comparison->old[i], i);
        changes->is_removed[i] = true;
    }
    qsort(comparison->places, comparison->old_count, sizeof *comparison->places, compare_places);
    return KVB_OK;
}

/* Keeps a member that is in both lists and of which at most the facts differ. */
static void keep_member(struct comparison *comparison, size_t old, size_t new)
{
    struct kvb_member_changes *changes = &comparison->changes;
    const struct kvb_worker_facts *facts = &comparison->new[new].facts;

    changes->is_removed[old] = false;
    changes->same++;
    if (!kvb_worker_facts_are_same(&comparison->old[old]->facts, facts)) {
        changes->updates[old] = facts;
        changes->updated++;
    }
}

static void classify_member(struct comparison *comparison, size_t at)
{
    struct kvb_member_changes *changes = &comparison->changes;
    const struct place wanted = member_place(&comparison->new[at], at);
    const struct place *found =
        bsearch(&wanted, comparison->places, comparison->old_count, sizeof wanted, compare_places);

    if (found && kvb_members_are_same(comparison->old[found->at], &comparison->new[at])) {
        keep_member(comparison, found->at, at);
        return;
    }
    changes->is_added[at] = true;
    changes->changed += found != NULL;
    changes->added += found == NULL;
}

kvb_status kvb_members_compare(
    const struct kvb_worker_config *const *old, size_t old_count,
    const struct kvb_worker_config *new, size_t new_count, struct kvb_member_changes *out_changes)
{
    struct comparison comparison = {
        .old = old, .old_count = old_count, .new = new, .new_count = new_count
    };
    const kvb_status status = make_places(&comparison);

    if (status == KVB_OK) {
        for (size_t i = 0; i < new_count; i++) {
            classify_member(&comparison, i);
        }
        comparison.changes.gone = old_count - comparison.changes.same - comparison.changes.changed;
        *out_changes = comparison.changes;
    } else {
        kvb_member_changes_done(&comparison.changes);
    }
    free(comparison.places);
    return status;
}

void kvb_member_changes_done(struct kvb_member_changes *changes)
{
    free(changes->is_removed);
    free(changes->is_added);
    free((void *)changes->updates);
    *changes = (struct kvb_member_changes){ 0 };
}
