#include "kvbridge/announcer.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t list_period_ns = 10 * KVB_NS_PER_S;
static const uint64_t first_wait_ns = 500 * KVB_NS_PER_MS;
static const uint64_t longest_wait_ns = 30 * KVB_NS_PER_S;

enum { not_found = 404, not_allowed = 405, first_error = 400, first_server_error = 500 };

void kvb_announcer_done(struct kvb_announcer *announcer)
{
    free(announcer->items);
    *announcer = (struct kvb_announcer){ .count = 0 };
}

/* ---- What is wanted ---- */

static bool is_same_rank(const struct kvb_dynamo_worker *a, const struct kvb_dynamo_worker *b)
{
    return a->worker_id == b->worker_id && a->dp_rank == b->dp_rank &&
           strcmp(a->model, b->model) == 0;
}

static bool is_same_announced(const struct kvb_dynamo_worker *a, const struct kvb_dynamo_worker *b)
{
    return is_same_rank(a, b) && a->rank_id == b->rank_id && a->block_size == b->block_size &&
           a->max_batched_tokens == b->max_batched_tokens && strcmp(a->events, b->events) == 0 &&
           strcmp(a->replay, b->replay) == 0 && strcmp(a->address, b->address) == 0;
}

static struct kvb_announced *
find_announced(struct kvb_announced *items, size_t count, const struct kvb_dynamo_worker *worker)
{
    for (size_t i = 0; i < count; i++) {
        if (is_same_rank(&items[i].worker, worker)) {
            return &items[i];
        }
    }
    return NULL;
}

/* An item whose worker has changed is as one that the service lists at other sockets. */
static void want_announced(struct kvb_announced *item, const struct kvb_dynamo_worker *worker)
{
    const bool is_registered =
        item->state == KVB_ANNOUNCED_PRESENT || item->state == KVB_ANNOUNCED_LEAVING;
    const bool has_changed = !is_same_announced(&item->worker, worker);

    item->is_changed |= has_changed;
    if (is_registered) {
        item->state = item->is_changed ? KVB_ANNOUNCED_OTHER : KVB_ANNOUNCED_PRESENT;
    } else if (item->state == KVB_ANNOUNCED_REFUSED && has_changed) {
        item->state = KVB_ANNOUNCED_ABSENT;
    }
    item->worker = *worker;
    item->is_wanted = true;
}

/* A rank that no list has named stays until one does: an earlier process may have registered
 * it. */
static bool is_forgotten(const struct kvb_announced *item)
{
    return !item->is_wanted && item->state != KVB_ANNOUNCED_LEAVING &&
           item->state != KVB_ANNOUNCED_UNKNOWN;
}

static void unwant_announced(struct kvb_announced *item)
{
    const bool is_ours_of_before = item->state == KVB_ANNOUNCED_OTHER && item->is_changed;

    item->is_wanted = false;
    if (item->state == KVB_ANNOUNCED_PRESENT || is_ours_of_before) {
        item->state = KVB_ANNOUNCED_LEAVING;
    }
}

static void drop_forgotten(struct kvb_announcer *announcer)
{
    size_t kept = 0;

    for (size_t i = 0; i < announcer->count; i++) {
        if (!is_forgotten(&announcer->items[i])) {
            announcer->items[kept++] = announcer->items[i];
        }
    }
    announcer->count = kept;
}

kvb_status kvb_announcer_want(
    struct kvb_announcer *announcer, const struct kvb_dynamo_worker *workers, size_t count)
{
    const enum kvb_announced_state first =
        announcer->next_list_ns > 0 ? KVB_ANNOUNCED_ABSENT : KVB_ANNOUNCED_UNKNOWN;
    struct kvb_announced *items = calloc(announcer->count + count + 1, sizeof *items);
    size_t made = announcer->count;

    if (!items) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < announcer->count; i++) {
        items[i] = announcer->items[i];
        unwant_announced(&items[i]);
    }
    for (size_t i = 0; i < count; i++) {
        struct kvb_announced *item = find_announced(items, announcer->count, &workers[i]);
        if (!item) {
            item = &items[made++];
            *item = (struct kvb_announced){ .worker = workers[i], .state = first };
        }
        want_announced(item, &workers[i]);
    }
    free(announcer->items);
    announcer->items = items;
    announcer->count = made;
    if (announcer->step == KVB_ANNOUNCE_NOTHING) {
        drop_forgotten(announcer); /* else the request under way would be about another item */
    }
    return KVB_OK;
}

/* ---- What is sent ---- */

static enum kvb_announce_step step_of(const struct kvb_announced *item, enum kvb_dynamo_api api)
{
    switch (item->state) {
    case KVB_ANNOUNCED_LEAVING:
        return KVB_ANNOUNCE_REMOVE;
    case KVB_ANNOUNCED_OTHER:
        return api == KVB_DYNAMO_INDEXER ? KVB_ANNOUNCE_REMOVE : KVB_ANNOUNCE_ADD;
    case KVB_ANNOUNCED_ABSENT:
        return KVB_ANNOUNCE_ADD;
    default:
        return KVB_ANNOUNCE_NOTHING;
    }
}

/* Removals are first: the same id may be added with another model. */
static bool find_step(struct kvb_announcer *announcer, enum kvb_announce_step step)
{
    for (size_t i = 0; i < announcer->count; i++) {
        if (step_of(&announcer->items[i], announcer->api) == step) {
            announcer->step = step;
            announcer->at = i;
            return true;
        }
    }
    return false;
}

enum kvb_announce_step kvb_announcer_next(
    struct kvb_announcer *announcer, uint64_t now_ns, const struct kvb_dynamo_worker **out_worker)
{
    if (announcer->step != KVB_ANNOUNCE_NOTHING || now_ns < announcer->next_ns ||
        announcer->count == 0) {
        return KVB_ANNOUNCE_NOTHING;
    }
    if (announcer->is_failing || now_ns >= announcer->next_list_ns) {
        announcer->step = KVB_ANNOUNCE_LIST;
        for (size_t i = 0; i < announcer->count; i++) {
            announcer->items[i].is_seen = false;
        }
        return KVB_ANNOUNCE_LIST;
    }
    if (find_step(announcer, KVB_ANNOUNCE_REMOVE) || find_step(announcer, KVB_ANNOUNCE_ADD)) {
        struct kvb_announced *item = &announcer->items[announcer->at];
        announcer->was_changed = item->is_changed;
        item->is_changed &= announcer->step != KVB_ANNOUNCE_ADD;
        *out_worker = &item->worker;
    }
    return announcer->step;
}

/* ---- A list ---- */

static bool
is_listed_as(const struct kvb_dynamo_worker *worker, const struct kvb_dynamo_listed *listed)
{
    if (listed->api == KVB_DYNAMO_INDEXER) {
        return worker->worker_id == listed->id && worker->dp_rank == listed->dp_rank;
    }
    return worker->rank_id == listed->id;
}

static bool is_listed_at_our_sockets(
    const struct kvb_dynamo_worker *worker, const struct kvb_dynamo_listed *listed)
{
    return worker->dp_rank == listed->dp_rank && worker->block_size == listed->block_size &&
           strcmp(worker->events, listed->events) == 0 && strcmp(worker->model, listed->model) == 0;
}

/* In what only one of the two APIs lists. */
static bool is_listed_with_our_settings(
    const struct kvb_dynamo_worker *worker, const struct kvb_dynamo_listed *listed)
{
    return !listed->replay || (strcmp(worker->replay, listed->replay) == 0 &&
                               strcmp(worker->address, listed->address) == 0 &&
                               worker->max_batched_tokens == listed->max_batched_tokens);
}

static void take_listed(struct kvb_announced *item, const struct kvb_dynamo_listed *listed)
{
    const bool is_ours = is_listed_at_our_sockets(&item->worker, listed);

    item->is_seen = true;
    kvb_detail_set(&item->why, "%s", listed->why);
    if (!item->is_wanted) {
        item->state = is_ours ? KVB_ANNOUNCED_LEAVING : KVB_ANNOUNCED_ABSENT;
        return;
    }
    if (!is_ours) {
        item->state = KVB_ANNOUNCED_OTHER;
        item->is_changed = false; /* it may be another bridge's */
        return;
    }
    /* Once, before this process has added it: the service may write an address in its own way. */
    item->is_changed |=
        item->state == KVB_ANNOUNCED_UNKNOWN && !is_listed_with_our_settings(&item->worker, listed);
    if (item->is_changed) { /* in what is not listed */
        item->state = KVB_ANNOUNCED_OTHER;
    } else if (item->state != KVB_ANNOUNCED_OTHER) { /* else an ADD was lost */
        item->state = KVB_ANNOUNCED_PRESENT;
    }
}

void kvb_announcer_listed(void *context, const struct kvb_dynamo_listed *listed)
{
    struct kvb_announcer *announcer = context;

    announcer->api = listed->api;
    for (size_t i = 0; i < announcer->count; i++) {
        if (is_listed_as(&announcer->items[i].worker, listed)) {
            take_listed(&announcer->items[i], listed);
        }
    }
}

static void end_list(struct kvb_announcer *announcer, uint64_t now_ns)
{
    for (size_t i = 0; i < announcer->count; i++) {
        if (!announcer->items[i].is_seen) {
            announcer->items[i].state = KVB_ANNOUNCED_ABSENT;
        }
    }
    announcer->has_flipped = false;
    announcer->next_list_ns = now_ns + list_period_ns;
}

/* ---- Answers ---- */

static void note_announce_failure(struct kvb_announcer *announcer, const char *why, uint64_t now_ns)
{
    const uint64_t wait_ns = announcer->pause_ns > 0 ? announcer->pause_ns : first_wait_ns;

    announcer->is_failing = true;
    kvb_detail_set(&announcer->failure, "%s", why);
    announcer->next_ns = now_ns + wait_ns;
    announcer->pause_ns = 2 * wait_ns < longest_wait_ns ? 2 * wait_ns : longest_wait_ns;
}

static void note_success(struct kvb_announcer *announcer)
{
    announcer->is_failing = false;
    announcer->failure.text[0] = '\0';
    announcer->pause_ns = 0;
}

/* True: the path to add does not exist there, so the service has the other API. */
static bool flip_api(
    struct kvb_announcer *announcer, enum kvb_announce_step step,
    const struct kvb_announce_answer *answer)
{
    const bool is_no_path = answer->code == not_found || answer->code == not_allowed;

    if (step != KVB_ANNOUNCE_ADD || !is_no_path || announcer->has_flipped) {
        return false;
    }
    announcer->has_flipped = true;
    announcer->api =
        announcer->api == KVB_DYNAMO_INDEXER ? KVB_DYNAMO_SELECT_SERVICE : KVB_DYNAMO_INDEXER;
    return true;
}

static void take_added(struct kvb_announced *item, const struct kvb_announce_answer *answer)
{
    const bool is_refused = answer->code >= first_error;

    item->state = is_refused ? KVB_ANNOUNCED_REFUSED : KVB_ANNOUNCED_PRESENT;
    kvb_detail_set(&item->why, "%s", answer->why);
    if (is_refused && answer->why[0] == '\0') {
        kvb_detail_set(&item->why, "answered HTTP %u", answer->code);
    }
    if (!item->is_wanted && !is_refused) {
        item->state = KVB_ANNOUNCED_LEAVING; /* it was unwanted while the request was under way */
    } else if (item->is_changed) {
        item->state = is_refused ? KVB_ANNOUNCED_ABSENT : KVB_ANNOUNCED_OTHER;
    }
}

/* The service may have carried the request out: the next list shows it. */
static void take_lost_answer(struct kvb_announcer *announcer, enum kvb_announce_step step)
{
    struct kvb_announced *item = &announcer->items[announcer->at];

    if (step == KVB_ANNOUNCE_ADD && item->state == KVB_ANNOUNCED_ABSENT) {
        item->state = KVB_ANNOUNCED_UNKNOWN;
    } else if (step == KVB_ANNOUNCE_ADD) {
        item->is_changed |= announcer->was_changed; /* else nobody removes its registration */
    }
}

static void take_step_answer(
    struct kvb_announcer *announcer, enum kvb_announce_step step,
    const struct kvb_announce_answer *answer)
{
    struct kvb_announced *item = &announcer->items[announcer->at];

    if (step == KVB_ANNOUNCE_ADD) {
        take_added(item, answer);
        if (announcer->api == KVB_DYNAMO_UNKNOWN && answer->code < first_error) {
            announcer->api = KVB_DYNAMO_SELECT_SERVICE;
        }
    } else {
        item->state = KVB_ANNOUNCED_ABSENT; /* refused: there is nothing else to send */
    }
}

void kvb_announcer_answered(
    struct kvb_announcer *announcer, const struct kvb_announce_answer *answer, uint64_t now_ns)
{
    const enum kvb_announce_step step = announcer->step;
    const bool is_list = step == KVB_ANNOUNCE_LIST;

    announcer->step = KVB_ANNOUNCE_NOTHING;
    if (flip_api(announcer, step, answer)) {
        return;
    }
    if (answer->code == 0 || answer->code >= first_server_error ||
        (is_list && (answer->code >= first_error || answer->is_unreadable))) {
        note_announce_failure(announcer, answer->why, now_ns);
        take_lost_answer(announcer, step);
        return;
    }
    note_success(announcer);
    if (is_list) {
        end_list(announcer, now_ns);
    } else {
        take_step_answer(announcer, step, answer);
    }
    drop_forgotten(announcer);
}

/* ---- What is shown ---- */

bool kvb_announcer_is_gone(const struct kvb_announcer *announcer)
{
    if (announcer->is_failing) {
        return true;
    }
    for (size_t i = 0; i < announcer->count; i++) {
        const struct kvb_announced *item = &announcer->items[i];
        if (item->is_wanted || !is_forgotten(item)) {
            return false;
        }
    }
    return announcer->step == KVB_ANNOUNCE_NOTHING;
}

bool kvb_announcer_is_settled(const struct kvb_announcer *announcer)
{
    for (size_t i = 0; i < announcer->count; i++) {
        if (announcer->items[i].state == KVB_ANNOUNCED_UNKNOWN ||
            step_of(&announcer->items[i], announcer->api) != KVB_ANNOUNCE_NOTHING) {
            return false;
        }
    }
    return true;
}

size_t kvb_announcer_count_present(const struct kvb_announcer *announcer)
{
    size_t present = 0;

    for (size_t i = 0; i < announcer->count; i++) {
        present +=
            announcer->items[i].is_wanted && announcer->items[i].state == KVB_ANNOUNCED_PRESENT;
    }
    return present;
}

size_t kvb_announcer_count_wanted(const struct kvb_announcer *announcer)
{
    size_t wanted = 0;

    for (size_t i = 0; i < announcer->count; i++) {
        wanted += announcer->items[i].is_wanted;
    }
    return wanted;
}

const char *kvb_announcer_why(const struct kvb_announcer *announcer)
{
    if (announcer->is_failing) {
        return announcer->failure.text;
    }
    for (size_t i = 0; i < announcer->count; i++) {
        if (announcer->items[i].is_wanted && announcer->items[i].why.text[0] != '\0') {
            return announcer->items[i].why.text;
        }
    }
    return "";
}
