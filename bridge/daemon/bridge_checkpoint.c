#include "core/clock.h"
#include "daemon/bridge_inside.h"

#include <string.h>

/* Checkpoints: one stream at a time, some entries a turn, so that the engines wait a
 * millisecond at most; the disk is waited for by another thread.
 *
 *     due, and changed --> saving --- every turn a part ---> writing ---> on disk
 *                            |                                 |            |
 *                            +-- cleared: again in a second    +--- void ---+
 *
 * A restored stream goes on in its epoch.  What is told between a checkpoint and the end
 * of the process is told once more by the next one, in the same words, as long as
 * batches alone make it.  So a checkpoint is made void before the first word of another
 * epoch, and before a list is told once more.                                        */

static const uint64_t after_clear_ns = KVB_NS_PER_S;
static const uint64_t last_saves_ns = 5 * KVB_NS_PER_S; /* of the time that a stop may take */

enum { items_a_turn = kvb_checkpoint_step_items / 2 };

static void count(struct kvb_bridge *bridge, enum kvb_bridge_metric metric)
{
    kvb_metric_add(&bridge->metrics, metric, 1);
}

static bool is_same_epoch(const kvb_epoch *one, const kvb_epoch *other)
{
    return memcmp(one->bytes, other->bytes, sizeof one->bytes) == 0;
}

/* ---- Void ---- */

void kvb_bridge_void_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct rank_checkpoint *checkpoint = &rank->checkpoint;

    if (checkpoint->is_on_disk || checkpoint->is_pending) {
        kvb_checkpoint_store_void(bridge->checkpoints.store, &checkpoint->name);
        checkpoint->is_on_disk = false;
        checkpoint->is_pending = false;
        count(bridge, kvb_bridge_checkpoints_void);
    }
}

void kvb_bridge_telling_epoch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const kvb_epoch *epoch)
{
    const struct rank_checkpoint *checkpoint = &rank->checkpoint;

    if ((checkpoint->is_on_disk && !is_same_epoch(&checkpoint->epoch_on_disk, epoch)) ||
        (checkpoint->is_pending && !is_same_epoch(&checkpoint->epoch_pending, epoch))) {
        kvb_bridge_void_checkpoint(bridge, rank);
    }
}

/* ---- Saving ---- */

static bool has_changed(const struct bridge_rank *rank)
{
    const struct rank_checkpoint *checkpoint = &rank->checkpoint;
    const kvb_epoch epoch = kvb_stream_epoch(rank->stream);
    uint64_t seq = 0;

    return kvb_stream_last_seq(rank->stream, &seq) &&
           (!checkpoint->is_on_disk || seq != checkpoint->seq ||
            !is_same_epoch(&epoch, &checkpoint->epoch_on_disk));
}

/* Another rank each time, or KVB_NOT_FOUND. */
static kvb_status begin_next(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_checkpoints *all = &bridge->checkpoints;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        const size_t at = (all->next_rank + i) % bridge->rank_count;
        struct bridge_rank *rank = bridge->ranks[at];
        if (now_ns < rank->checkpoint.next_ns || !has_changed(rank)) {
            continue;
        }
        rank->checkpoint.next_ns = now_ns + bridge->config->checkpoint_s * KVB_NS_PER_S;
        if (kvb_checkpoint_save_begin(&all->save, rank->stream, rank->told) == KVB_OK) {
            all->rank = rank;
            all->is_first_part = true;
            all->next_rank = at + 1;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

/* The last part was made: the checkpoint is of this moment. */
static void note_made(struct bridge_checkpoints *all)
{
    struct rank_checkpoint *checkpoint = &all->rank->checkpoint;

    checkpoint->is_pending = true;
    checkpoint->epoch_pending = kvb_stream_epoch(all->rank->stream);
    (void)kvb_stream_last_seq(all->rank->stream, &checkpoint->seq); /* it has one */
    all->written = all->rank;
    all->is_writing = true;
}

static void give_up(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_checkpoints *all = &bridge->checkpoints;

    kvb_checkpoint_save_end(&all->save);
    all->rank->checkpoint.next_ns = now_ns + after_clear_ns;
    all->rank = NULL;
}

static void make_part(struct kvb_bridge *bridge, struct kvb_buf *room, uint64_t now_ns)
{
    struct bridge_checkpoints *all = &bridge->checkpoints;
    bool is_done = false;

    if (kvb_checkpoint_save_step(&all->save, items_a_turn, room, &is_done) != KVB_OK) {
        give_up(bridge, now_ns); /* it was cleared meanwhile, or memory is out */
        return;
    }
    kvb_metric_add(&bridge->metrics, kvb_bridge_checkpoint_bytes, room->len);
    if (is_done) {
        note_made(all);
    }
    kvb_checkpoint_store_push(
        all->store, &all->rank->checkpoint.name,
        (all->is_first_part ? KVB_CHECKPOINT_FIRST : 0U) | (is_done ? KVB_CHECKPOINT_LAST : 0U));
    all->is_first_part = false;
    if (is_done) {
        kvb_checkpoint_save_end(&all->save);
        all->rank = NULL;
    }
}

static void say_failed(struct kvb_bridge *bridge, const struct kvb_detail *why, uint64_t now_ns)
{
    uint64_t times = 0;
    char text[24];

    count(bridge, kvb_bridge_checkpoint_failures);
    if (kvb_log_limit_due(&bridge->checkpoints.limit, now_ns, &times)) {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge", "no checkpoint written", "why", why->text,
            "times", kvb_log_u64(text, times), NULL);
    }
}

static void note_outcome(struct rank_checkpoint *checkpoint, kvb_status outcome)
{
    if (outcome == KVB_OK && checkpoint->is_pending) {
        checkpoint->is_on_disk = true;
        checkpoint->epoch_on_disk = checkpoint->epoch_pending;
    } else if (outcome != KVB_OK && outcome != KVB_CLOSED) {
        checkpoint->seq = UINT64_MAX; /* what is on the disk is older */
    }
    checkpoint->is_pending = false;
}

/* What became of the one that was written. */
static void take_outcome(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_checkpoints *all = &bridge->checkpoints;
    struct kvb_detail why = { .text = "" };
    const kvb_status outcome = kvb_checkpoint_store_take_outcome(all->store, &why);

    if (outcome == KVB_AGAIN) {
        return;
    }
    if (outcome == KVB_OK) {
        count(bridge, kvb_bridge_checkpoints_written);
    } else if (outcome != KVB_CLOSED) {
        say_failed(bridge, &why, now_ns);
    }
    if (all->written) {
        note_outcome(&all->written->checkpoint, outcome);
    }
    all->written = NULL;
    all->is_writing = false;
}

static void note_pause(struct kvb_bridge *bridge, uint64_t began_ns)
{
    const double pause_s = (double)(kvb_clock_monotonic_ns() - began_ns) / 1e9;

    if (pause_s > kvb_metric_get_real(&bridge->metrics, kvb_bridge_checkpoint_pause)) {
        kvb_metric_set_real(&bridge->metrics, kvb_bridge_checkpoint_pause, pause_s);
    }
}

static void save_part(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_checkpoints *all = &bridge->checkpoints;

    if (all->is_writing) {
        take_outcome(bridge, now_ns);
    }
    if (all->is_writing || (!all->rank && begin_next(bridge, now_ns) != KVB_OK)) {
        return;
    }
    struct kvb_buf *room = kvb_checkpoint_store_room(all->store);
    if (room) {
        make_part(bridge, room, now_ns);
    }
}

static bool is_saving(const struct bridge_checkpoints *all)
{
    return all->rank || all->is_writing;
}

void kvb_bridge_save(struct kvb_bridge *bridge)
{
    const bool was_saving = is_saving(&bridge->checkpoints);
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (!bridge->checkpoints.store) {
        return;
    }
    save_part(bridge, now_ns);
    if (was_saving || is_saving(&bridge->checkpoints)) {
        note_pause(bridge, now_ns);
    }
}

/* Nothing waits any more: the disk may take its time. */
void kvb_bridge_save_all(struct kvb_bridge *bridge)
{
    struct bridge_checkpoints *all = &bridge->checkpoints;
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    if (!all->store) {
        return;
    }
    if (all->rank) {
        give_up(bridge, began_ns);
    }
    for (size_t i = 0; i < bridge->rank_count; i++) {
        bridge->ranks[i]->checkpoint.next_ns = began_ns;
    }
    do {
        (void)kvb_checkpoint_store_wait(all->store);
        kvb_bridge_save(bridge);
    } while (is_saving(all) && kvb_clock_monotonic_ns() < began_ns + last_saves_ns);
}

bool kvb_bridge_is_saving(const struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    return bridge->checkpoints.rank == rank;
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

/* It must not be found again either: by then it may fit, and be of the past. */
static void refuse(
    struct kvb_bridge *bridge, struct bridge_rank *rank,
    const struct kvb_checkpoint_refusal *refusal)
{
    const bool has_keys = refusal->keys.text[0] != '\0';

    count(bridge, refused[refusal->flaw]);
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "checkpoint refused: the list is fetched from the engine", "file",
        rank->checkpoint.name.text, "why", kvb_checkpoint_flaw_name(refusal->flaw),
        has_keys ? "changed" : NULL, refusal->keys.text, NULL);
    kvb_checkpoint_store_void(bridge->checkpoints.store, &rank->checkpoint.name);
}

static void take_restored(struct kvb_bridge *bridge, struct bridge_rank *rank, bool needs_epoch)
{
    struct rank_checkpoint *checkpoint = &rank->checkpoint;

    count(bridge, kvb_bridge_checkpoints_restored);
    checkpoint->is_on_disk = true;
    checkpoint->epoch_on_disk = kvb_stream_epoch(rank->stream);
    (void)kvb_stream_last_seq(rank->stream, &checkpoint->seq); /* it has one */
    rank->needs_epoch = needs_epoch;
    rank->is_withdrawn = kvb_stream_is_withdrawn(rank->stream);
    rank->waits_for_proof = true;
    rank->down_ns = kvb_clock_monotonic_ns(); /* readers may hold what it lists */
}

void kvb_bridge_restore_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t home)
{
    struct kvb_checkpoint_file file = { .fd = -1 };
    struct kvb_checkpoint_refusal refusal = { .flaw = KVB_CHECKPOINT_UNREADABLE };
    bool needs_epoch = true;

    if (!bridge->checkpoints.store) {
        return;
    }
    rank->checkpoint.name = kvb_checkpoint_name_of(home, rank->worker_id, rank->dp_rank);
    kvb_status status =
        kvb_checkpoint_file_open(bridge->checkpoints.store, &rank->checkpoint.name, &file);
    if (status == KVB_NOT_FOUND) {
        return;
    }
    if (status == KVB_OK) {
        const struct kvb_checkpoint_source source = kvb_checkpoint_file_source(&file);
        status = kvb_stream_restore(rank->stream, rank->told, &source, &needs_epoch, &refusal);
        kvb_checkpoint_file_close(&file);
    }
    if (status == KVB_OK) {
        take_restored(bridge, rank, needs_epoch);
    } else {
        refuse(bridge, rank, &refusal);
    }
}

bool kvb_bridge_is_proven(struct bridge_rank *rank)
{
    rank->waits_for_proof = rank->waits_for_proof && !kvb_stream_is_settled(rank->stream);
    return !rank->waits_for_proof;
}

void kvb_bridge_drop_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct bridge_checkpoints *all = &bridge->checkpoints;

    if (!all->store) {
        return;
    }
    if (all->rank == rank) {
        kvb_checkpoint_save_end(&all->save);
        all->rank = NULL;
    }
    if (all->written == rank) {
        all->written = NULL; /* nobody asks any more what became of it */
    }
    kvb_checkpoint_store_void(all->store, &rank->checkpoint.name);
}

/* ---- Start, stop ---- */

kvb_status kvb_bridge_open_checkpoints(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    const char *directory = bridge->config->checkpoint;

    return directory[0] ? kvb_checkpoint_store_open(directory, &bridge->checkpoints.store, detail)
                        : KVB_OK;
}

void kvb_bridge_spread_checkpoints(struct kvb_bridge *bridge)
{
    const uint64_t period_ns = bridge->config->checkpoint_s * KVB_NS_PER_S;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        bridge->ranks[i]->checkpoint.next_ns =
            bridge->started_ns + period_ns * (i + 1) / bridge->rank_count;
    }
}

void kvb_bridge_close_checkpoints(struct kvb_bridge *bridge)
{
    kvb_checkpoint_save_end(&bridge->checkpoints.save);
    kvb_checkpoint_store_close(bridge->checkpoints.store);
}
