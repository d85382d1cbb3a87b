#include "kvbridge/membership.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/ring.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/discovery.h"
#include "kvbridge/dns_list.h"
#include "kvbridge/ingest.h"
#include "kvbridge/kubernetes.h"
#include "kvbridge/loads.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/refresh.h"
#include "kvbridge/shown.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Carries out what kvbridge/reconcile.c decides, while the bridge runs.
 *
 *     a source's thread   list --+                       ingest thread
 *     discovery           answer +--> ring --> one command after another: decide, then one action
 *     HTTP threads        drain -+             a step, until the time of the turn is over
 *            ^                                          |
 *            +---- done, with the result ---------------+
 *
 * Only the requesting thread waits for a command.  A refused command changes nothing.
 *
 * While an HTTP thread reads the metrics of ranks, no rank is added or removed.  Only after half a
 * second does the ingest thread wait for such a reader. */

static const uint64_t work_ns = 2 * KVB_NS_PER_MS;
static const uint64_t patience_ns = 500 * KVB_NS_PER_MS;

/* How long a bound address is retried: libzmq frees a closed one asynchronously. */
static const uint64_t open_again_ns = 2 * KVB_NS_PER_S;

enum { max_waiting = 64 };

enum command_kind { command_list, command_answer, command_drain, command_find };

struct bridge_command {
    enum command_kind kind;
    enum kvb_source_number source;
    /* Of a list. */
    struct kvb_worker_list list; /* owned by the requesting thread; taken when it is accepted */
    enum kvb_verdict *out_verdicts;
    /* Of an answer: a worker of the source's list, and its new parts. */
    struct kvb_listed_worker worker; /* like `list` */
    /* Of the other two. */
    struct kvb_rank_choice choice;
    bool is_draining;

    pthread_mutex_t lock; /* protects is_done */
    pthread_cond_t changed;
    bool is_done;
    kvb_status status;
    struct kvb_membership_result answer;
};

/* ---- Deciding ---- */

/* True: this many sockets may be open. */
static bool
is_there_room(struct kvb_bridge *bridge, const struct kvb_plan *plan, struct kvb_detail *out_why)
{
    const struct kvb_zmq_size size = { .publishers = plan->ranks,
                                       .readers = plan->republished_ranks,
                                       .loads = plan->load_sources,
                                       .others = kvb_bridge_other_files(bridge->config) };

    return kvb_zmq_raise_limits(&size, out_why) == KVB_OK;
}

static size_t count_new_ranks(const struct kvb_plan *plan)
{
    size_t count = 0;

    for (size_t i = 0; i < plan->action_count; i++) {
        count +=
            plan->actions[i].kind == KVB_PLAN_OPEN && plan->actions[i].part->kind == KVB_PART_RANK;
    }
    return count;
}

/* Makes the plan.  A list of which a part may be left out loses the last half of its new ranks,
 * repeatedly, until the rest fits into the open files. */
static kvb_status
decide(struct kvb_bridge *bridge, struct kvb_reconcile_input *input, struct kvb_plan *out_plan)
{
    struct kvb_detail why = { .text = "" };

    for (;;) {
        KVB_TRY(kvb_reconcile(input, out_plan));
        if (is_there_room(bridge, out_plan, &why)) {
            break;
        }
        const size_t count = count_new_ranks(out_plan);
        if (!input->may_leave_out) {
            kvb_plan_done(out_plan);
            out_plan->why = why;
            return KVB_TOO_LARGE;
        }
        /* Nothing new is left: what runs already stays, whatever the limit. */
        if (count == 0) {
            break;
        }
        input->max_new_ranks = count / 2;
        kvb_plan_done(out_plan);
    }
    if (why.text[0] != '\0') {
        out_plan->why = why;
    }
    /* Before the sockets are opened: they ping as rarely as so many need. */
    kvb_zmq_expect(bridge->ingest->zmq, out_plan->ranks);
    return KVB_OK;
}

static struct kvb_reconcile_input
input_of(struct bridge_membership *membership, enum kvb_source_number source)
{
    return (struct kvb_reconcile_input){ .running = &membership->running,
                                         .source = source,
                                         .max_new_ranks = SIZE_MAX,
                                         .max_ranks = kvb_max_streams };
}

/* Probes an engine at once when its container has restarted: its connection may not show the
 * restart. */
static void change_facts(struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_part *part)
{
    /* Compared before the part is replaced. */
    if (rank->facts.restarts != part->worker->facts.restarts) {
        kvb_stream_suspect_restart(rank->served.stream);
    }
    kvb_bridge_set_part(rank, part);
    kvb_bridge_note_speculation(rank);
    kvb_bridge_beat_at_once(bridge, rank);
}

/* Facts take no time: they are new before the first rank is closed. */
static void change_all_facts(struct kvb_bridge *bridge, const struct kvb_plan *plan)
{
    struct kvb_part_table *running = &bridge->membership->running;

    for (size_t i = 0; i < plan->action_count; i++) {
        const struct kvb_plan_action *action = &plan->actions[i];
        if (action->kind != KVB_PLAN_CHANGE_FACTS) {
            continue;
        }
        if (action->part->kind == KVB_PART_RANK) {
            change_facts(bridge, running->slots[action->number].owner, action->part);
        } else {
            kvb_bridge_set_load_part(running->slots[action->number].owner, action->part);
        }
        kvb_part_table_renew(running, action->number, action->part);
    }
}

static void tell_plan(struct bridge_command *command, const struct kvb_plan *plan, size_t workers)
{
    struct kvb_membership_result *answer = &command->answer;

    answer->added = plan->added;
    answer->gone = plan->gone;
    answer->changed = plan->changed;
    answer->same = plan->same;
    answer->updated = plan->updated;
    answer->left_out = plan->left_out;
    answer->why = plan->why;
    if (command->out_verdicts) {
        memcpy(command->out_verdicts, plan->verdicts, workers * sizeof *plan->verdicts);
    }
}

static kvb_status begin_list(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;
    struct kvb_worker_list *list = &reconciler->lists[command->source];
    struct kvb_reconcile_input input = input_of(bridge->membership, command->source);

    /* What engines have answered to the former list counts for the same workers of this one. */
    KVB_TRY(kvb_worker_list_inherit(&command->list, list));
    input.workers = command->list.items;
    input.worker_count = command->list.count;
    input.may_leave_out = command->out_verdicts != NULL;
    const kvb_status status = decide(bridge, &input, &reconciler->plan);
    if (status != KVB_OK) {
        command->answer.why = reconciler->plan.why;
        return status;
    }
    /* Before the lists change hands: the verdicts are in the order of this one. */
    tell_plan(command, &reconciler->plan, command->list.count);
    const struct kvb_worker_list former = *list;
    *list = command->list;
    command->list = former; /* the requesting thread frees it */
    change_all_facts(bridge, &reconciler->plan);
    return KVB_OK;
}

/* What an engine says is kept beside its worker, so that the whole list has it too. */
static kvb_status begin_answer(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;
    struct kvb_listed_worker *listed =
        kvb_worker_list_find(&reconciler->lists[command->source], command->worker.spec);
    struct kvb_reconcile_input input = input_of(bridge->membership, command->source);
    struct kvb_listed_worker worker = { .is_known = true };

    if (!listed || !kvb_worker_specs_are_same(listed->spec, command->worker.spec)) {
        return KVB_NOT_FOUND; /* the list is newer than the request */
    }
    worker.spec = listed->spec;
    /* Its facts may be newer than the request, too. */
    KVB_TRY(kvb_parts_renew(&command->worker.parts, listed->spec, &worker.parts));
    input.workers = &worker;
    input.worker_count = 1;
    /* Else all other workers of the source would count as gone. */
    input.is_one_worker = true;
    const kvb_status status = decide(bridge, &input, &reconciler->plan);
    if (status != KVB_OK) {
        command->answer.why = reconciler->plan.why;
        kvb_parts_done(&worker.parts);
        return status;
    }
    tell_plan(command, &reconciler->plan, 1);
    /* The table has references of its own to those parts that run. */
    kvb_parts_done(&listed->parts);
    listed->parts = worker.parts;
    listed->is_known = true;
    change_all_facts(bridge, &reconciler->plan);
    return KVB_OK;
}

static bool is_chosen(const struct kvb_rank_choice *choice, const struct kvb_part *part)
{
    return (!choice->has_rank || part->dp_rank == choice->dp_rank) &&
           (choice->model[0] == '\0' || strcmp(part->worker->model, choice->model) == 0);
}

/* Marks ranks of any source.  A rank that is already marked counts too. */
static kvb_status mark_draining(struct kvb_bridge *bridge, struct bridge_command *command)
{
    struct kvb_part_table *running = &bridge->membership->running;
    const uint64_t id = command->choice.worker_id;
    size_t at = kvb_part_table_start(running, id);

    for (uint32_t number; (number = kvb_part_table_next(running, id, &at)) != KVB_NO_ID;) {
        struct bridge_rank *rank = running->slots[number].owner;
        if (is_chosen(&command->choice, rank->part)) {
            /* In both: the slot gives it to the rank that replaces this one. */
            running->slots[number].is_draining = command->is_draining;
            rank->is_draining = command->is_draining;
            kvb_bridge_beat_at_once(bridge, rank);
            command->answer.marked++;
        }
    }
    if (command->answer.marked == 0) {
        kvb_detail_set(&command->answer.why, "worker %" PRIu64 " not found", id);
    }
    return command->answer.marked > 0 ? KVB_OK : KVB_NOT_FOUND;
}

static kvb_status find_source(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const struct kvb_part_table *running = &bridge->membership->running;
    const uint64_t id = command->choice.worker_id;
    size_t at = kvb_part_table_start(running, id);

    for (uint32_t number; (number = kvb_part_table_next(running, id, &at)) != KVB_NO_ID;) {
        const struct kvb_running *found = &running->slots[number];
        if (is_chosen(&command->choice, found->part)) {
            kvb_detail_set(
                &command->answer.why, "instance %" PRIu64 " dp_rank %u %s", id,
                found->part->dp_rank, kvb_running_place(found));
            return KVB_BAD_CONFIG;
        }
    }
    kvb_detail_set(&command->answer.why, "instance %" PRIu64 " not found", id);
    return KVB_NOT_FOUND;
}

static kvb_status begin(struct kvb_bridge *bridge, struct bridge_command *command)
{
    switch (command->kind) {
    case command_list:
        return begin_list(bridge, command);
    case command_answer:
        return begin_answer(bridge, command);
    case command_drain:
        return mark_draining(bridge, command);
    default:
        return find_source(bridge, command);
    }
}

/* ---- Carrying out, one action a step ---- */

enum step {
    step_done,  /* no action is left */
    step_again, /* one was carried out */
    step_later  /* another thread holds the lock, or an address is not free yet: in the next turn */
};

/* False: an HTTP thread is reading the values; try again in the next turn. */
static bool lock_values(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;

    if (pthread_rwlock_trywrlock(&bridge->shown->sets_lock) == 0) {
        reconciler->waits_ns = 0;
        return true;
    }
    if (reconciler->waits_ns == 0) {
        reconciler->waits_ns = now_ns;
    }
    /* Trying alone might never succeed, because readers may follow each other without a gap. */
    if (now_ns < reconciler->waits_ns + patience_ns) {
        return false;
    }
    reconciler->waits_ns = 0;
    /* At most for the pages that are being written: those that come now wait for this thread. */
    return pthread_rwlock_wrlock(&bridge->shown->sets_lock) == 0;
}

/* Shows that another rank has this index, or none, and unlocks the values.  The caller has locked
 * them. */
static void show_rank_at(struct kvb_bridge *bridge, size_t at)
{
    kvb_bridge_list_stats(bridge, at);
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

static enum step close_part(struct kvb_bridge *bridge, uint32_t number, uint64_t now_ns)
{
    const struct kvb_running *running = &bridge->membership->running.slots[number];

    if (running->part->kind == KVB_PART_LOAD) {
        kvb_bridge_close_load(bridge, running->owner);
        return step_again;
    }
    if (!lock_values(bridge, now_ns)) {
        return step_later;
    }
    struct bridge_rank *rank = running->owner;
    const size_t at = rank->at;
    /* First: the bye needs the stream, and a checkpoint of it must not be restored after it. */
    say_goodbye(bridge, rank);
    kvb_bridge_drop_checkpoint(bridge->checkpoints, rank);
    kvb_bridge_drop_refresh(bridge, rank);
    kvb_bridge_remove_rank(bridge, rank); /* the last rank takes its index */
    show_rank_at(bridge, at);
    return step_again;
}

static void
say_not_opened(struct kvb_bridge *bridge, const struct kvb_part *part, const struct kvb_detail *why)
{
    kvb_log_write(
        bridge->log, KVB_LOG_ERROR, "bridge", "a rank cannot be opened", "why", why->text, "worker",
        KVB_LOG_U64(part->id), "dp_rank", KVB_LOG_U64(part->dp_rank), NULL);
}

/* Decides after an attempt to open a rank: it was added, is tried again, or is given up. */
static enum step judge_opening(
    struct kvb_bridge *bridge, const struct kvb_part *part, kvb_status status,
    struct kvb_membership_result *answer, uint64_t now_ns)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;

    if (status != KVB_OK && reconciler->give_up_ns == 0) {
        reconciler->give_up_ns = now_ns + open_again_ns;
    }
    /* The address may still be that of the rank that was closed a moment ago. */
    if (status != KVB_OK && part->worker->bind && now_ns < reconciler->give_up_ns) {
        return step_later;
    }
    reconciler->give_up_ns = 0;
    if (status != KVB_OK) {
        answer->failed++;
        say_not_opened(bridge, part, &answer->why);
    }
    return step_again;
}

static enum step open_part(
    struct kvb_bridge *bridge, struct bridge_command *command, const struct kvb_plan_action *action,
    uint64_t now_ns)
{
    struct kvb_part *part = action->part;

    if (part->kind == KVB_PART_LOAD) {
        if (kvb_bridge_open_load(bridge, part, command->source, &command->answer.why) != KVB_OK) {
            command->answer.failed++;
            say_not_opened(bridge, part, &command->answer.why);
        }
        return step_again;
    }
    if (!lock_values(bridge, now_ns)) {
        return step_later;
    }
    struct bridge_rank *rank = NULL;
    const kvb_status status =
        kvb_bridge_open_rank(bridge, part, command->source, &rank, &command->answer.why);
    if (status == KVB_OK && action->is_draining) {
        rank->is_draining = true;
        bridge->membership->running.slots[rank->number].is_draining = true;
    }
    /* Also after a failure: it releases the lock of the values. */
    show_rank_at(bridge, rank ? rank->at : SIZE_MAX);
    return judge_opening(bridge, part, status, &command->answer, now_ns);
}

static enum step
take_step(struct kvb_bridge *bridge, struct bridge_command *command, uint64_t now_ns)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;
    enum step step = step_again;

    if (reconciler->next_action == reconciler->plan.action_count) {
        return step_done;
    }
    const struct kvb_plan_action *action = &reconciler->plan.actions[reconciler->next_action];
    if (action->kind == KVB_PLAN_CLOSE) {
        step = close_part(bridge, action->number, now_ns);
    } else if (action->kind == KVB_PLAN_OPEN) {
        step = open_part(bridge, command, action, now_ns);
    }
    /* What is to be done later is the same action in the next turn: the order must not change. */
    reconciler->next_action += step == step_again;
    return step;
}

/* ---- Commands, on the ingest thread ---- */

static void end(struct kvb_bridge *bridge, struct bridge_command *command, kvb_status status)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;

    kvb_plan_done(&reconciler->plan);
    reconciler->next_action = 0;
    reconciler->give_up_ns = 0;
    reconciler->waits_ns = 0;
    /* The command lives on the stack of the waiting thread, and is gone once it is told below. */
    reconciler->command = NULL;
    if (command->kind != command_find) { /* /state shows the current ranks */
        kvb_bridge_publish_status(bridge, kvb_clock_monotonic_ns());
    }
    (void)pthread_mutex_lock(&command->lock);
    command->status = status;
    command->is_done = true;
    (void)pthread_cond_signal(&command->changed);
    (void)pthread_mutex_unlock(&command->lock);
}

/* The command that is under way, else the next one; NULL: there is none, or it was refused. */
static struct bridge_command *current_command(struct kvb_bridge *bridge)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;
    void *item = NULL;

    if (reconciler->command || kvb_ring_take(reconciler->commands, &item) != KVB_OK) {
        return reconciler->command;
    }
    reconciler->command = item;
    const kvb_status status = begin(bridge, reconciler->command);
    if (status != KVB_OK) {
        end(bridge, reconciler->command, status);
    }
    return reconciler->command;
}

bool kvb_bridge_work_membership(struct kvb_bridge *bridge, uint64_t now_ns)
{
    enum step step = step_again;

    while (step == step_again && kvb_clock_monotonic_ns() < now_ns + work_ns) {
        struct bridge_command *command = current_command(bridge);
        /* It may have been refused: then there may be a next one. */
        if (!command) {
            return kvb_ring_count(bridge->membership->reconciler.commands) > 0;
        }
        step = take_step(bridge, command, now_ns);
        if (step == step_done) {
            end(bridge, command, command->answer.failed > 0 ? KVB_IO : KVB_OK);
            step = step_again;
        }
    }
    return step == step_again;
}

/* ---- Requests, on other threads ---- */

static kvb_status refuse_command(struct bridge_command *command, const char *why)
{
    kvb_detail_set(&command->answer.why, "%s", why);
    return KVB_AGAIN;
}

static kvb_status pass_command(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const uint64_t one = 1;

    /* HTTP answers before the ingest thread runs: nobody would take the command. */
    if (!atomic_load(&bridge->is_running)) {
        return refuse_command(command, "the bridge is starting");
    }
    if (kvb_ring_put(bridge->membership->reconciler.commands, command) != KVB_OK) {
        return refuse_command(command, "too many requests are waiting: try again later");
    }
    (void)!write(bridge->wake_fd, &one, sizeof one); /* on failure the thread wakes within 200 ms */
    (void)pthread_mutex_lock(&command->lock);
    while (!command->is_done) {
        (void)pthread_cond_wait(&command->changed, &command->lock);
    }
    (void)pthread_mutex_unlock(&command->lock);
    return command->status;
}

static kvb_status request(
    struct kvb_bridge *bridge, struct bridge_command *command,
    struct kvb_membership_result *out_answer)
{
    (void)pthread_mutex_init(&command->lock, NULL); /* neither can fail without attributes */
    (void)pthread_cond_init(&command->changed, NULL);
    const kvb_status status = pass_command(bridge, command);
    (void)pthread_cond_destroy(&command->changed);
    (void)pthread_mutex_destroy(&command->lock);
    *out_answer = command->answer;
    return status;
}

kvb_status kvb_bridge_take_list(
    struct kvb_bridge *bridge, enum kvb_source_number source, const struct kvb_worker_list *list,
    enum kvb_verdict *out_verdicts, struct kvb_membership_result *out_answer)
{
    struct bridge_command command = { .kind = command_list, .source = source };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list targets = { 0 };

    command.out_verdicts = out_verdicts;
    /* What can fail comes first: once the list runs, discovery has it too. */
    KVB_TRY(kvb_discovery_choose(list, &targets));
    KVB_TRY(kvb_worker_list_share(list, &command.list));
    const kvb_status status = request(bridge, &command, out_answer);
    /* The list that was replaced, or this one if it was refused: not freed on the ingest thread. */
    kvb_worker_list_done(&command.list);
    /* Engines are asked only for workers of a list that runs. */
    if (status == KVB_OK || status == KVB_IO) {
        kvb_discovery_set(bridge->membership->discovery, source, &targets);
    }
    return status;
}

kvb_status kvb_bridge_drain(
    struct kvb_bridge *bridge, const struct kvb_rank_choice *choice, bool is_draining,
    struct kvb_membership_result *out_answer)
{
    struct bridge_command command = { .kind = command_drain,
                                      .choice = *choice,
                                      .is_draining = is_draining };

    return request(bridge, &command, out_answer);
}

kvb_status kvb_bridge_find_source(
    struct kvb_bridge *bridge, const struct kvb_rank_choice *choice,
    struct kvb_membership_result *out_answer)
{
    struct bridge_command command = { .kind = command_find, .choice = *choice };

    return request(bridge, &command, out_answer);
}

kvb_status kvb_bridge_take_answer(
    void *context, uint32_t source, struct kvb_worker_spec *spec, struct kvb_parts *parts,
    struct kvb_detail *why)
{
    struct bridge_command command = { .kind = command_answer,
                                      .source = (enum kvb_source_number)source,
                                      .worker = { .spec = spec, .parts = *parts } };
    struct kvb_membership_result answer = { 0 };
    const kvb_status status = request(context, &command, &answer);

    *why = answer.why;
    return status;
}

/* ---- At the start and the end ---- */

/* What is wrong with the address of one worker, such as a port that another process has, keeps no
 * other worker away. */
static kvb_status pass_over(
    struct kvb_bridge *bridge, const struct kvb_part *part, kvb_status status,
    const struct kvb_detail *why)
{
    if (status != KVB_BAD_CONFIG && status != KVB_IO) {
        return status;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_ERROR, "bridge",
        "a rank cannot be opened: it is left out until the configuration is read again (SIGHUP)",
        "why", why->text, "worker", KVB_LOG_U64(part->id), "dp_rank", KVB_LOG_U64(part->dp_rank),
        NULL);
    return KVB_OK;
}

/* The list of the file, while no other thread runs. */
static kvb_status open_listed(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    struct bridge_reconciler *reconciler = &bridge->membership->reconciler;
    struct kvb_worker_list *list = &reconciler->lists[KVB_SOURCE_FILE];
    struct kvb_reconcile_input input = input_of(bridge->membership, KVB_SOURCE_FILE);
    KVB_OWN(kvb_plan_done) struct kvb_plan plan = { 0 };

    KVB_TRY(kvb_worker_list_share(&bridge->config->workers, list));
    input.workers = list->items;
    input.worker_count = list->count;
    KVB_TRY(kvb_reconcile(&input, &plan));
    for (size_t i = 0; i < plan.action_count; i++) {
        struct kvb_part *part = plan.actions[i].part;
        struct bridge_rank *rank = NULL;
        const kvb_status status =
            part->kind == KVB_PART_RANK
                ? kvb_bridge_open_rank(bridge, part, KVB_SOURCE_FILE, &rank, detail)
                : kvb_bridge_open_load(bridge, part, KVB_SOURCE_FILE, detail);
        KVB_TRY(pass_over(bridge, part, status, detail));
        if (rank) {
            kvb_bridge_list_stats(bridge, rank->at);
        }
    }
    atomic_store(&bridge->shown->stream_count, bridge->membership->rank_count);
    return KVB_OK;
}

kvb_status kvb_bridge_open_membership(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    struct bridge_membership *membership = bridge->membership;

    (void)pthread_mutex_init(&membership->registered.lock, NULL); /* cannot fail */
    KVB_TRY(kvb_ring_new(max_waiting, NULL, &membership->reconciler.commands));
    return open_listed(bridge, detail);
}

void kvb_bridge_close_membership(struct bridge_membership *membership)
{
    kvb_ring_free(membership->reconciler.commands);
    kvb_plan_done(&membership->reconciler.plan);
    for (size_t i = 0; i < KVB_SOURCE_COUNT; i++) {
        kvb_worker_list_done(&membership->reconciler.lists[i]);
    }
    kvb_worker_list_done(&membership->registered.list);
    (void)pthread_mutex_destroy(&membership->registered.lock);
}

/* ---- Sources with a thread or a job of their own ----
 *
 * What names workers while the bridge runs: pods, a DNS name, the engines' own answers.  The file
 * and registrations have none: main.c and http.c give their lists. */

static kvb_status take_pods(
    void *context, const struct kvb_worker_list *list, enum kvb_verdict *out_verdicts,
    struct kvb_membership_result *out_answer)
{
    return kvb_bridge_take_list(context, KVB_SOURCE_KUBERNETES, list, out_verdicts, out_answer);
}

static kvb_status take_dns(
    void *context, const struct kvb_worker_list *list, enum kvb_verdict *out_verdicts,
    struct kvb_membership_result *out_answer)
{
    return kvb_bridge_take_list(context, KVB_SOURCE_DNS, list, out_verdicts, out_answer);
}

kvb_status kvb_bridge_make_sources(struct kvb_bridge *bridge)
{
    const struct kvb_kubernetes_options kubernetes = { .config = &bridge->config->kubernetes,
                                                       .defaults = &bridge->config->defaults,
                                                       .log = bridge->log,
                                                       .resolver = bridge->ingest->resolver,
                                                       .metrics = &bridge->shown->metrics,
                                                       .take = take_pods,
                                                       .context = bridge };
    const struct kvb_dns_list_options dns = { .control = bridge->control,
                                              .config = &bridge->config->dns,
                                              .defaults = &bridge->config->defaults,
                                              .log = bridge->log,
                                              .take = take_dns,
                                              .context = bridge };

    if (kvb_dns_list_is_configured(dns.config)) {
        KVB_TRY(kvb_dns_list_new(&dns, &bridge->membership->dns_list));
    }
    return kubernetes.config->is_on
               ? kvb_kubernetes_new(&kubernetes, &bridge->membership->kubernetes)
               : KVB_OK;
}

kvb_status kvb_bridge_start_sources(struct kvb_bridge *bridge)
{
    struct bridge_membership *membership = bridge->membership;
    const struct kvb_discovery_options discovery = { .control = bridge->control,
                                                     .log = bridge->log,
                                                     .resolver = bridge->ingest->resolver,
                                                     .take = kvb_bridge_take_answer,
                                                     .context = bridge,
                                                     .sources = KVB_SOURCE_COUNT };

    /* First, because it stands between the other lists and their ranks. */
    KVB_TRY(kvb_discovery_start(&discovery, &membership->discovery));
    /* From here on commands are carried out, so those who give lists may wait for one.  Not before:
     * a list that comes over HTTP goes to discovery, too. */
    atomic_store(&bridge->is_running, true);
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list targets = { 0 };
    KVB_TRY(kvb_discovery_choose(&bridge->config->workers, &targets));
    kvb_discovery_set(membership->discovery, KVB_SOURCE_FILE, &targets);
    kvb_dns_list_start(membership->dns_list);
    return membership->kubernetes ? kvb_kubernetes_start(membership->kubernetes) : KVB_OK;
}

void kvb_bridge_stop_sources(struct bridge_membership *membership)
{
    /* Each may wait for a command now: the ingest thread must still run. */
    kvb_kubernetes_stop(membership->kubernetes);
    kvb_dns_list_stop(membership->dns_list);
    kvb_discovery_stop(membership->discovery);
}

void kvb_bridge_free_sources(struct bridge_membership *membership)
{
    kvb_kubernetes_free(membership->kubernetes);
    kvb_dns_list_free(membership->dns_list);
    kvb_discovery_free(membership->discovery);
}
