#include "kvbridge/reconcile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A part of the list. */
struct wanted {
    struct kvb_part *part;
    size_t worker;     /* its index in the list */
    bool is_new;       /* it is to be opened */
    bool was_draining; /* the one that it replaces */
};

/* One decision.  What runs and is compared with the list is the scope; its parts have the round
 * `leaves`, and `stays` once the list has them too. */
struct decision {
    const struct kvb_reconcile_input *in;
    uint32_t *scope; /* owned: numbers */
    size_t scope_count;
    struct wanted *wanted; /* owned */
    size_t wanted_count;
    uint64_t leaves;
    uint64_t stays;
    size_t renewed; /* parts that stay, of another spec */
    size_t new_parts;
    struct kvb_plan *plan;
};

void kvb_plan_done(struct kvb_plan *plan)
{
    free(plan->actions);
    free(plan->verdicts);
    *plan = (struct kvb_plan){ 0 };
}

const char *kvb_running_place(const struct kvb_running *running)
{
    static const char *const places[KVB_SOURCE_COUNT] = {
        [KVB_SOURCE_FILE] = "is in the configuration file",
        [KVB_SOURCE_REGISTERED] = "already registered",
        [KVB_SOURCE_KUBERNETES] = "is a pod of Kubernetes",
        [KVB_SOURCE_DNS] = "is an address of the DNS name",
    };

    return running->part->worker->discover[0] != '\0' ? "is a rank of an engine that was discovered"
                                                      : places[running->source];
}

/* ---- The scope ---- */

static void add_to_scope(struct decision *decision, uint32_t number)
{
    struct kvb_running *running = &decision->in->running->slots[number];

    /* Each part once, however its worker's ids lead here: `scope` has room for no more. */
    if (running->round != decision->leaves) {
        running->round = decision->leaves;
        decision->scope[decision->scope_count++] = number;
    }
}

/* Parts of the one worker. */
static void add_parts_of_worker(struct decision *decision, uint64_t id, uint32_t first_rank)
{
    const struct kvb_part_table *table = decision->in->running;
    const struct kvb_worker_spec *spec = decision->in->workers[0].spec;
    const uint32_t load =
        kvb_part_table_find(table, KVB_PART_LOAD, id, first_rank, decision->in->source);
    size_t at = kvb_part_table_start(table, id);

    for (uint32_t number; (number = kvb_part_table_next(table, id, &at)) != KVB_NO_ID;) {
        /* Another worker of the source may have its id by mistake: that one is left alone. */
        if (table->slots[number].source == decision->in->source &&
            kvb_worker_specs_are_same(table->slots[number].part->worker, spec)) {
            add_to_scope(decision, number);
        }
    }
    if (load != KVB_NO_ID && kvb_worker_specs_are_same(table->slots[load].part->worker, spec)) {
        add_to_scope(decision, load);
    }
}

static kvb_status find_scope(struct decision *decision)
{
    const struct kvb_reconcile_input *in = decision->in;
    struct kvb_part_table *table = in->running;

    /* Rounds only grow, so no mark of an earlier decision counts. */
    decision->leaves = ++table->round;
    decision->stays = ++table->round;
    decision->scope = calloc(table->count + 1, sizeof *decision->scope);
    if (!decision->scope) {
        return KVB_NO_MEMORY;
    }
    /* What one engine has answered says nothing of the source's other workers. */
    if (in->is_one_worker) {
        const struct kvb_worker_spec *spec = in->workers[0].spec;
        const size_t ids = spec->id_count > 0 ? spec->id_count : 1;
        for (size_t i = 0; i < ids; i++) {
            add_parts_of_worker(
                decision, kvb_worker_id_of_rank(spec, (uint32_t)i), spec->first_rank);
        }
        return KVB_OK;
    }
    for (uint32_t number = 0; number < table->slot_count; number++) {
        if (table->slots[number].part && table->slots[number].source == in->source) {
            add_to_scope(decision, number);
        }
    }
    return KVB_OK;
}

static bool is_in_scope(const struct decision *decision, const struct kvb_running *running)
{
    return running->round == decision->leaves || running->round == decision->stays;
}

/* ---- Comparing ---- */

static kvb_status list_wanted(struct decision *decision)
{
    const struct kvb_reconcile_input *in = decision->in;
    size_t count = 0;

    for (size_t i = 0; i < in->worker_count; i++) {
        count += in->workers[i].parts.count;
    }
    decision->wanted = calloc(count + 1, sizeof *decision->wanted);
    if (!decision->wanted) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < in->worker_count; i++) {
        for (size_t k = 0; k < in->workers[i].parts.count; k++) {
            decision->wanted[decision->wanted_count++] =
                (struct wanted){ .part = in->workers[i].parts.items[k], .worker = i };
        }
    }
    return KVB_OK;
}

/* The part stays, but its worker is described otherwise: other facts, or more ranks beside it. */
static bool is_other_spec(const struct kvb_part *one, const struct kvb_part *other)
{
    return !kvb_part_facts_are_same(one, other) ||
           !kvb_worker_specs_are_same(one->worker, other->worker);
}

/* What the list has and what runs under the same key. */
static void compare(struct decision *decision, struct wanted *wanted)
{
    struct kvb_part_table *table = decision->in->running;
    struct kvb_plan *plan = decision->plan;
    const struct kvb_part *part = wanted->part;
    const bool is_rank = part->kind == KVB_PART_RANK;
    const uint32_t number =
        kvb_part_table_find(table, part->kind, part->id, part->dp_rank, decision->in->source);
    struct kvb_running *running = number != KVB_NO_ID ? &table->slots[number] : NULL;

    /* Nothing has the key, or another worker of this source: of a rank judge_all() finds that. */
    if (!running || !is_in_scope(decision, running)) {
        wanted->is_new = true;
        plan->added += is_rank;
        return;
    }
    if (!kvb_parts_are_same(running->part, part)) {
        /* A new pod with the same name is a new worker, and is not draining. */
        wanted->is_new = true;
        wanted->was_draining = running->is_draining &&
                               strcmp(running->part->worker->pod_uid, part->worker->pod_uid) == 0;
        plan->changed += is_rank;
        return;
    }
    /* From here on it is not closed, and its address counts as taken. */
    running->round = decision->stays;
    plan->same += is_rank;
    plan->updated += is_rank && !kvb_part_facts_are_same(running->part, part);
    decision->renewed += is_other_spec(running->part, part);
}

/* ---- Collisions with what stays ---- */

/* The rank of another worker that has this id and number; NULL: none. */
static const struct kvb_running *
find_same_id(const struct decision *decision, const struct kvb_part *part)
{
    const struct kvb_part_table *table = decision->in->running;
    const uint32_t number =
        kvb_part_table_find(table, KVB_PART_RANK, part->id, part->dp_rank, KVB_ANY_SOURCE);

    /* compare() has decided on parts of the scope: they stay, or leave. */
    return number != KVB_NO_ID && !is_in_scope(decision, &table->slots[number])
               ? &table->slots[number]
               : NULL;
}

/* A rank that reads this address and stays; NULL: none. */
static const struct kvb_running *
find_same_address(const struct decision *decision, const struct kvb_part *part)
{
    const struct kvb_part_table *table = decision->in->running;
    /* What leaves is closed before anything is opened, so its address is free. */
    const uint32_t number = kvb_part_table_find_reader(table, part->events, decision->leaves);

    return number != KVB_NO_ID ? &table->slots[number] : NULL;
}

static enum kvb_verdict judge(struct decision *decision, const struct kvb_part *part)
{
    const struct kvb_running *other = find_same_id(decision, part);

    if (other) {
        kvb_detail_set(
            &decision->plan->why, "instance %" PRIu64 " dp_rank %u %s", part->id, part->dp_rank,
            kvb_running_place(other));
        return KVB_VERDICT_ID_TAKEN;
    }
    other = find_same_address(decision, part);
    if (other) {
        kvb_detail_set(
            &decision->plan->why,
            "endpoint: %.80s is read already, as instance %" PRIu64 " dp_rank %u", part->events,
            other->part->id, other->part->dp_rank);
        return KVB_VERDICT_ADDRESS_TAKEN;
    }
    return KVB_VERDICT_TAKEN;
}

/* A worker of which one rank cannot come is left out as a whole.  What ran of it with other keys is
 * closed all the same. */
static void leave_out(struct decision *decision)
{
    for (size_t i = 0; i < decision->wanted_count; i++) {
        struct wanted *wanted = &decision->wanted[i];
        if (wanted->is_new && decision->plan->verdicts[wanted->worker] != KVB_VERDICT_TAKEN) {
            wanted->is_new = false;
            decision->plan->left_out += wanted->part->kind == KVB_PART_RANK;
        }
    }
}

static kvb_status judge_all(struct decision *decision)
{
    for (size_t i = 0; i < decision->wanted_count; i++) {
        const struct wanted *wanted = &decision->wanted[i];
        const enum kvb_verdict verdict = wanted->is_new && wanted->part->kind == KVB_PART_RANK
                                             ? judge(decision, wanted->part)
                                             : KVB_VERDICT_TAKEN;
        if (verdict != KVB_VERDICT_TAKEN) {
            decision->plan->verdicts[wanted->worker] = verdict;
            /* The first collision is enough to refuse the list: plan->why names it. */
            if (!decision->in->may_leave_out) {
                return KVB_BAD_CONFIG;
            }
        }
    }
    leave_out(decision);
    return KVB_OK;
}

/* ---- Room ---- */

/* The sums over what is open when the plan is carried out. */
static size_t count_open(struct decision *decision)
{
    const struct kvb_part_table *table = decision->in->running;
    struct kvb_plan *plan = decision->plan;
    size_t new_ranks = 0;

    plan->ranks = table->ranks;
    plan->republished_ranks = table->republished_ranks;
    plan->load_sources = table->load_sources;
    for (size_t i = 0; i < decision->scope_count; i++) {
        const struct kvb_running *running = &table->slots[decision->scope[i]];
        /* It is closed before anything is opened. */
        if (running->round == decision->leaves) {
            const bool is_rank = running->part->kind == KVB_PART_RANK;
            plan->ranks -= is_rank;
            plan->republished_ranks -= is_rank && kvb_part_is_republished(running->part);
            plan->load_sources -= is_rank ? 0 : kvb_worker_load_sources(running->part->worker);
        }
    }
    decision->new_parts = 0;
    for (size_t i = 0; i < decision->wanted_count; i++) {
        const struct kvb_part *part = decision->wanted[i].part;
        if (decision->wanted[i].is_new) {
            const bool is_rank = part->kind == KVB_PART_RANK;
            decision->new_parts++;
            new_ranks += is_rank;
            plan->republished_ranks += is_rank && kvb_part_is_republished(part);
            plan->load_sources += is_rank ? 0 : kvb_worker_load_sources(part->worker);
        }
    }
    plan->ranks += new_ranks;
    return new_ranks;
}

static kvb_status fit(struct decision *decision)
{
    const struct kvb_reconcile_input *in = decision->in;
    const size_t new_ranks = count_open(decision);
    const size_t staying = decision->plan->ranks - new_ranks;
    const size_t room = staying < in->max_ranks ? in->max_ranks - staying : 0;
    /* The caller lowers max_new_ranks while the process may not open enough files. */
    const size_t most = in->max_new_ranks < room ? in->max_new_ranks : room;
    size_t count = 0;

    if (new_ranks <= most) {
        return KVB_OK;
    }
    kvb_detail_set(
        &decision->plan->why, "the bridge is full: it reads at most %zu ranks", in->max_ranks);
    if (!in->may_leave_out) {
        return KVB_TOO_LARGE;
    }
    for (size_t i = 0; i < decision->wanted_count; i++) {
        const struct wanted *wanted = &decision->wanted[i];
        if (wanted->is_new && wanted->part->kind == KVB_PART_RANK && ++count > most) {
            decision->plan->verdicts[wanted->worker] = KVB_VERDICT_FULL;
        }
    }
    leave_out(decision);
    /* A worker is left out with all its new parts, so the sums are others now. */
    (void)count_open(decision);
    return KVB_OK;
}

/* ---- Actions ---- */

static void act(struct kvb_plan *plan, struct kvb_plan_action action)
{
    plan->actions[plan->action_count++] = action;
}

static void close_parts(struct decision *decision, enum kvb_part_kind kind)
{
    const struct kvb_part_table *table = decision->in->running;

    for (size_t i = 0; i < decision->scope_count; i++) {
        const struct kvb_running *running = &table->slots[decision->scope[i]];
        if (running->round == decision->leaves && running->part->kind == kind) {
            act(decision->plan,
                (struct kvb_plan_action){ .kind = KVB_PLAN_CLOSE, .number = decision->scope[i] });
        }
    }
}

static void open_parts(struct decision *decision, enum kvb_part_kind kind)
{
    for (size_t i = 0; i < decision->wanted_count; i++) {
        const struct wanted *wanted = &decision->wanted[i];
        if (wanted->is_new && wanted->part->kind == kind) {
            act(decision->plan, (struct kvb_plan_action){ .kind = KVB_PLAN_OPEN,
                                                          .part = wanted->part,
                                                          .is_draining = wanted->was_draining });
        }
    }
}

static void change_facts(struct decision *decision)
{
    const struct kvb_part_table *table = decision->in->running;

    for (size_t i = 0; i < decision->wanted_count; i++) {
        struct kvb_part *part = decision->wanted[i].part;
        /* Looked up again, because compare() only counted: there was no room for actions then. */
        const uint32_t number =
            kvb_part_table_find(table, part->kind, part->id, part->dp_rank, decision->in->source);
        if (number != KVB_NO_ID && table->slots[number].round == decision->stays &&
            is_other_spec(table->slots[number].part, part)) {
            act(decision->plan, (struct kvb_plan_action){ .kind = KVB_PLAN_CHANGE_FACTS,
                                                          .number = number,
                                                          .part = part });
        }
    }
}

static kvb_status list_actions(struct decision *decision)
{
    struct kvb_plan *plan = decision->plan;
    const size_t most = decision->scope_count + decision->renewed + decision->new_parts;

    plan->actions = calloc(most + 1, sizeof *plan->actions);
    if (!plan->actions) {
        return KVB_NO_MEMORY;
    }
    if (decision->renewed > 0) {
        change_facts(decision); /* first, because it takes no time */
    }
    close_parts(decision, KVB_PART_LOAD); /* an address must be free before it is used again */
    close_parts(decision, KVB_PART_RANK);
    open_parts(decision, KVB_PART_RANK);
    open_parts(decision, KVB_PART_LOAD);
    return KVB_OK;
}

/* ---- All together ---- */

static kvb_status decide(struct decision *decision)
{
    struct kvb_plan *plan = decision->plan;

    plan->verdicts = calloc(decision->in->worker_count + 1, sizeof *plan->verdicts);
    if (!plan->verdicts) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(find_scope(decision));
    KVB_TRY(list_wanted(decision));
    for (size_t i = 0; i < decision->wanted_count; i++) {
        compare(decision, &decision->wanted[i]);
    }
    for (size_t i = 0; i < decision->scope_count; i++) {
        plan->gone += decision->in->running->slots[decision->scope[i]].part->kind == KVB_PART_RANK;
    }
    /* What stays, or is opened again, is not gone. */
    plan->gone -= plan->same + plan->changed;
    KVB_TRY(judge_all(decision));
    KVB_TRY(fit(decision));
    return list_actions(decision);
}

kvb_status kvb_reconcile(const struct kvb_reconcile_input *input, struct kvb_plan *out_plan)
{
    struct kvb_plan plan = { 0 };
    struct decision decision = { .in = input, .plan = &plan };
    const kvb_status status = decide(&decision);

    free(decision.scope);
    free(decision.wanted);
    if (status != KVB_OK) {
        /* The reason outlives the plan. */
        out_plan->why = plan.why;
        kvb_plan_done(&plan);
        return status;
    }
    *out_plan = plan;
    return KVB_OK;
}
