#include "stream/checkpoint/checkpoint.h"
#include "core/clock.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"
#include "stream/advertiser.h"

/* Carries out what stream/checkpoint/policy.h decides: one stream at a time, some entries in each
 * turn, so that engines wait at most a millisecond.  Another thread waits for the disk. */

static const uint64_t last_saves_ns = 5 * KVB_NS_PER_S; /* the limit for checkpoints at the stop */

enum { items_a_turn = kvb_checkpoint_step_items / 2 };

/* ---- Invalidating ---- */

static void remove_file(struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    kvb_checkpoint_store_void(bridge->checkpoints->store, &rank->checkpoint_name);
    kvb_bridge_count(bridge->shown, kvb_bridge_checkpoints_void, 1);
}

void kvb_bridge_void_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (kvb_checkpoint_becomes_void(&rank->checkpoint)) {
        remove_file(bridge, rank);
    }
}

void kvb_bridge_telling_epoch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const kvb_epoch *epoch)
{
    if (kvb_checkpoint_enters_epoch(&rank->checkpoint, epoch)) {
        remove_file(bridge, rank);
    }
}

/* ---- Saving ---- */

void kvb_bridge_look_for_checkpoint(
    struct kvb_bridge *bridge, const struct bridge_rank *rank, uint64_t now_ns)
{
    bridge->checkpoints->is_due |=
        kvb_checkpoint_is_due(&rank->checkpoint, rank->served.stream, now_ns);
}

/* Begins the checkpoint of the next rank, in turn. */
static void begin_next(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_checkpoints *all = bridge->checkpoints;
    const uint64_t period_ns = bridge->config->checkpoint_s * KVB_NS_PER_S;

    if (!all->is_due && !all->is_stopping) {
        return;
    }
    /* Where the last search has ended, so that a busy stream does not keep the others from it. */
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        const size_t at = (all->next_rank + i) % bridge->membership->rank_count;
        struct bridge_rank *rank = bridge->membership->ranks[at];
        if (kvb_checkpoint_begin(
                &all->maker, &rank->checkpoint, rank->served.stream, now_ns, period_ns) == KVB_OK) {
            all->rank = rank;
            all->next_rank = at + 1;
            return;
        }
    }
    /* Nobody needs one: the search rests until a rank says that it is due. */
    all->is_due = false;
}

static void make_part(struct kvb_bridge *bridge, struct kvb_buf *room, uint64_t now_ns)
{
    struct bridge_checkpoints *all = bridge->checkpoints;
    struct kvb_checkpoint_progress made = { .is_last = false };

    /* Given up: the parts before this one stay in a file that is never renamed. */
    if (kvb_checkpoint_step(&all->maker, items_a_turn, room, now_ns, &made) != KVB_OK) {
        return;
    }
    kvb_metric_add(&bridge->shown->metrics, kvb_bridge_checkpoint_bytes, room->len);
    kvb_checkpoint_store_push(
        all->store, &all->rank->checkpoint_name,
        (made.is_first ? KVB_CHECKPOINT_FIRST : 0U) | (made.is_last ? KVB_CHECKPOINT_LAST : 0U));
}

static void say_failed(struct kvb_bridge *bridge, const struct kvb_detail *why, uint64_t now_ns)
{
    uint64_t times = 0;

    kvb_bridge_count(bridge->shown, kvb_bridge_checkpoint_failures, 1);
    if (kvb_log_limit_due(&bridge->checkpoints->limit, now_ns, &times)) {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge", "a checkpoint was not written", "why",
            why->text, "times", KVB_LOG_U64(times), NULL);
    }
}

/* Takes the outcome of the checkpoint that was written. */
static void take_outcome(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_checkpoints *all = bridge->checkpoints;
    struct kvb_detail why = { .text = "" };
    const kvb_status outcome = kvb_checkpoint_store_take_outcome(all->store, &why);

    if (outcome == KVB_AGAIN) {
        return;
    }
    if (outcome == KVB_OK) {
        kvb_bridge_count(bridge->shown, kvb_bridge_checkpoints_written, 1);
        /* KVB_CLOSED: it became void while it was written, which is no failure of the disk. */
    } else if (outcome != KVB_CLOSED) {
        say_failed(bridge, &why, now_ns);
    }
    kvb_checkpoint_written(&all->maker, outcome);
}

static void save_part(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_checkpoints *all = bridge->checkpoints;

    if (all->maker.stage == KVB_CHECKPOINT_STORING) {
        take_outcome(bridge, now_ns);
    }
    if (all->maker.stage == KVB_CHECKPOINT_IDLE) {
        begin_next(bridge, now_ns);
    }
    if (all->maker.stage == KVB_CHECKPOINT_MAKING) {
        /* None while the disk is slow: engines must not wait for it, the checkpoint can. */
        struct kvb_buf *room = kvb_checkpoint_store_room(all->store);
        if (room) {
            make_part(bridge, room, now_ns);
        }
    }
}

bool kvb_bridge_is_saving(const struct bridge_checkpoints *all)
{
    return all->maker.stage != KVB_CHECKPOINT_IDLE;
}

void kvb_bridge_save(struct kvb_bridge *bridge)
{
    const bool was_saving = kvb_bridge_is_saving(bridge->checkpoints);
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (!bridge->checkpoints->store) {
        return;
    }
    save_part(bridge, now_ns);
    if (was_saving || kvb_bridge_is_saving(bridge->checkpoints)) {
        /* Engines have waited for it: the longest of these pauses is shown. */
        const double pause_s = (double)(kvb_clock_monotonic_ns() - now_ns) / 1e9;
        struct kvb_metrics *metrics = &bridge->shown->metrics;
        if (pause_s > kvb_metric_get_real(metrics, kvb_bridge_checkpoint_pause)) {
            kvb_metric_set_real(metrics, kvb_bridge_checkpoint_pause, pause_s);
        }
    }
}

/* This may wait for the disk, because at the stop no engine has to wait. */
void kvb_bridge_save_all(struct kvb_bridge *bridge)
{
    struct bridge_checkpoints *all = bridge->checkpoints;
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    if (!all->store) {
        return;
    }
    all->is_stopping = true;
    /* Before the hurry below, which makes the stream of the one that is given up due again. */
    kvb_checkpoint_give_up(&all->maker, began_ns);
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        kvb_checkpoint_hurry(&bridge->membership->ranks[i]->checkpoint, began_ns);
    }
    do {
        (void)kvb_checkpoint_store_wait(all->store);
        kvb_bridge_save(bridge);
    } while (kvb_bridge_is_saving(all) && kvb_clock_monotonic_ns() < began_ns + last_saves_ns);
}

/* ---- Restoring ---- */

static const enum kvb_bridge_metric refused[KVB_CHECKPOINT_FLAW_COUNT] = {
    [KVB_CHECKPOINT_UNREADABLE] = kvb_bridge_checkpoints_unreadable,
    [KVB_CHECKPOINT_TORN] = kvb_bridge_checkpoints_torn,
    [KVB_CHECKPOINT_CORRUPT] = kvb_bridge_checkpoints_corrupt,
    [KVB_CHECKPOINT_FORMAT] = kvb_bridge_checkpoints_format,
    [KVB_CHECKPOINT_FOREIGN] = kvb_bridge_checkpoints_foreign,
    [KVB_CHECKPOINT_INCONSISTENT] = kvb_bridge_checkpoints_inconsistent,
    [KVB_CHECKPOINT_TOO_LARGE] = kvb_bridge_checkpoints_too_large,
    [KVB_CHECKPOINT_NO_MEMORY] = kvb_bridge_checkpoints_no_memory,
};

/* A refused checkpoint is made void: under a later configuration it might be accepted although it
 * is outdated. */
static void refuse(
    struct kvb_bridge *bridge, struct bridge_rank *rank,
    const struct kvb_checkpoint_refusal *refusal)
{
    const bool has_keys = refusal->keys.text[0] != '\0';

    kvb_bridge_count(bridge->shown, refused[refusal->cause], 1);
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "checkpoint refused: the list is fetched from the engine", "file",
        rank->checkpoint_name.text, "why", kvb_checkpoint_rejection_name(refusal->cause),
        has_keys ? "changed" : NULL, refusal->keys.text, NULL);
    kvb_checkpoint_store_void(bridge->checkpoints->store, &rank->checkpoint_name);
}

void kvb_bridge_restore_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t home)
{
    struct kvb_checkpoint_file file = { .fd = -1 };
    struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_UNREADABLE };
    bool needs_epoch = true;

    if (!bridge->checkpoints->store) {
        return;
    }
    rank->checkpoint_name = kvb_checkpoint_name_of(home, rank->worker_id, rank->dp_rank);
    kvb_status status =
        kvb_checkpoint_file_open(bridge->checkpoints->store, &rank->checkpoint_name, &file);
    /* A new stream, or one whose checkpoint was voided: no reason for a warning. */
    if (status == KVB_NOT_FOUND) {
        return;
    }
    if (status == KVB_OK) {
        const struct kvb_checkpoint_source source = kvb_checkpoint_file_source(&file);
        status = kvb_stream_restore(rank->served.stream, &source, &needs_epoch, &refusal);
        kvb_checkpoint_file_close(&file);
    }
    if (status != KVB_OK) {
        refuse(bridge, rank, &refusal);
        return;
    }
    kvb_bridge_count(bridge->shown, kvb_bridge_checkpoints_restored, 1);
    kvb_checkpoint_restored(&rank->checkpoint, rank->served.stream);
    kvb_serve_restored(&rank->served, needs_epoch, kvb_clock_monotonic_ns());
}

void kvb_bridge_drop_checkpoint(struct bridge_checkpoints *checkpoints, struct bridge_rank *rank)
{
    if (checkpoints->store) {
        /* The maker first: it must not touch a stream that is about to be freed. */
        kvb_checkpoint_forget(&checkpoints->maker, &rank->checkpoint);
        kvb_checkpoint_store_void(checkpoints->store, &rank->checkpoint_name);
    }
}

/* ---- Start, stop ---- */

kvb_status kvb_bridge_open_checkpoints(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    const char *directory = bridge->config->checkpoint;

    return directory[0] ? kvb_checkpoint_store_open(
                              bridge->control, directory, &bridge->checkpoints->store, detail)
                        : KVB_OK;
}

void kvb_bridge_spread_checkpoints(struct kvb_bridge *bridge)
{
    const uint64_t period_ns = bridge->config->checkpoint_s * KVB_NS_PER_S;

    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        bridge->membership->ranks[i]->checkpoint.next_ns =
            bridge->started_ns + period_ns * (i + 1) / bridge->membership->rank_count;
    }
}

void kvb_bridge_close_checkpoints(struct bridge_checkpoints *checkpoints)
{
    kvb_checkpoint_give_up(&checkpoints->maker, kvb_clock_monotonic_ns());
    kvb_checkpoint_store_close(checkpoints->store);
}
