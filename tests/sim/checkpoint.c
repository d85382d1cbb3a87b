#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* What a bridge leaves on its disk: daemon/bridge_checkpoint.c, and ingest/checkpoint_store.c
 * without the files.  Whoever changes those changes this.
 *
 *     due, and changed --> made, some items a turn --> written, for some time --> found again
 *
 * A crash loses what is not written; what it spoils on the way must be refused. */

enum { most_items_a_turn = 32, most_file_bytes = 1 << 20 };

static const uint64_t after_clear_ns = KVB_NS_PER_S;
static const uint64_t most_write_ns = 150 * KVB_NS_PER_MS;

static struct sim_disk *disk_of(struct sim_world *world, const struct sim_rank *rank)
{
    return &world->disks[rank->stream_number];
}

static bool is_same_epoch(const kvb_epoch *one, const kvb_epoch *other)
{
    return memcmp(one->bytes, other->bytes, sizeof one->bytes) == 0;
}

void sim_disk_begin(struct sim_disk *disk)
{
    kvb_buf_init(&disk->file.bytes, most_file_bytes);
    kvb_buf_init(&disk->coming.bytes, most_file_bytes);
}

void sim_disk_end(struct sim_disk *disk)
{
    kvb_buf_done(&disk->file.bytes);
    kvb_buf_done(&disk->coming.bytes);
}

/* ---- Void ---- */

void sim_void_checkpoint(struct sim_world *world, const struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    if (disk->file.is_there || disk->coming.is_there) {
        sim_note(world, "stream %u: its checkpoint is void", rank->stream_number);
    }
    disk->file.is_there = false;
    disk->coming.is_there = false;
}

void sim_telling_epoch(struct sim_world *world, const struct sim_rank *rank, const kvb_epoch *epoch)
{
    const struct sim_disk *disk = disk_of(world, rank);

    if ((disk->file.is_there && !is_same_epoch(&disk->file.epoch, epoch)) ||
        (disk->coming.is_there && !is_same_epoch(&disk->coming.epoch, epoch))) {
        sim_void_checkpoint(world, rank);
    }
}

/* ---- Saving ---- */

static bool has_changed(const struct sim_disk *disk, const struct sim_rank *rank)
{
    const kvb_epoch epoch = kvb_stream_epoch(rank->stream);
    uint64_t seq = 0;

    return kvb_stream_last_seq(rank->stream, &seq) &&
           (!disk->file.is_there || seq != disk->file.seq ||
            !is_same_epoch(&epoch, &disk->file.epoch));
}

/* The writer is through with it. */
static void land(struct sim_disk *disk)
{
    if (disk->coming.is_there) {
        const struct sim_file old = disk->file;
        disk->file = disk->coming;
        disk->coming = old;
        disk->coming.is_there = false;
    }
    disk->written_ns = 0;
}

static void note_made(struct sim_world *world, struct sim_disk *disk, const struct sim_rank *rank)
{
    struct sim_file *file = &disk->coming;

    file->is_there = true;
    file->epoch = kvb_stream_epoch(rank->stream);
    file->place = rank->place;
    (void)kvb_stream_last_seq(rank->stream, &file->seq); /* it has one */
    disk->written_ns = world->now_ns + 1 + kvb_random_below(&disk->dice, most_write_ns);
    kvb_checkpoint_save_end(&disk->save);
    sim_note(world, "stream %u is saved as of seq %lu", rank->stream_number, file->seq);
}

static void
make_part(struct sim_world *world, struct sim_disk *disk, const struct sim_rank *rank, size_t items)
{
    bool is_done = false;

    if (kvb_checkpoint_save_step(&disk->save, items, &disk->coming.bytes, &is_done) != KVB_OK) {
        kvb_checkpoint_save_end(&disk->save);
        disk->next_ns = world->now_ns + after_clear_ns;
    } else if (is_done) {
        note_made(world, disk, rank);
    }
}

static bool begin(struct sim_disk *disk, const struct sim_rank *rank)
{
    kvb_buf_reset(&disk->coming.bytes);
    return has_changed(disk, rank) &&
           kvb_checkpoint_save_begin(&disk->save, rank->stream, rank->told) == KVB_OK;
}

void sim_save(struct sim_world *world, const struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    if (world->checkpoint_ns == 0) {
        return;
    }
    if (disk->written_ns > 0 && world->now_ns >= disk->written_ns) {
        land(disk);
    }
    if (disk->written_ns > 0) {
        return;
    }
    if (!disk->save.stream) {
        if (world->now_ns < disk->next_ns || !begin(disk, rank)) {
            return;
        }
        disk->next_ns = world->now_ns + world->checkpoint_ns;
    }
    make_part(world, disk, rank, 1 + kvb_random_below(&disk->dice, most_items_a_turn));
}

bool sim_is_saving(struct sim_world *world, const struct sim_rank *rank)
{
    return disk_of(world, rank)->save.stream != NULL;
}

/* At a clean stop: nothing waits any more. */
void sim_save_all(struct sim_world *world, const struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    kvb_checkpoint_save_end(&disk->save);
    land(disk);
    if (world->checkpoint_ns > 0 && begin(disk, rank)) {
        while (disk->save.stream) { /* ends: each part does, or gives up */
            make_part(world, disk, rank, kvb_checkpoint_step_items);
        }
        land(disk);
    }
}

void sim_disk_crash(struct sim_world *world, const struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    kvb_checkpoint_save_end(&disk->save);
    if (disk->written_ns > 0 && kvb_random_below(&disk->dice, 2)) {
        land(disk);
    }
    disk->coming.is_there = false;
    disk->written_ns = 0;
}

/* ---- Spoiling ---- */

void sim_spoil_file(struct sim_world *world, size_t stream, uint64_t dice)
{
    struct sim_file *file = &world->disks[stream].file;
    const struct sim_file *other = &world->disks[(stream + 1) % world->stream_count].file;
    const size_t at = kvb_random_below(&dice, file->bytes.len + 1);

    if (!file->is_there || file->is_spoilt || file->bytes.len == 0) {
        return;
    }
    file->is_spoilt = true;
    switch (kvb_random_below(&dice, 4)) {
    case 0:
        file->bytes.len = at < file->bytes.len ? at : 0; /* torn */
        break;
    case 1:
        file->bytes.data[at % file->bytes.len] ^= (uint8_t)(1U << kvb_random_below(&dice, 8));
        break;
    case 2: /* another stream's, if it has its own */
        kvb_buf_reset(&file->bytes);
        if (!other->is_spoilt) {
            (void)kvb_buf_append(&file->bytes, other->bytes.data, other->bytes.len);
        }
        break;
    default: /* something behind its end */
        (void)kvb_buf_append(&file->bytes, "x", 1);
        break;
    }
    sim_note(world, "stream %zu: its checkpoint is spoilt", stream);
}

/* ---- Restoring ---- */

struct reader {
    const struct kvb_buf *bytes;
    size_t at;
};

static kvb_status read_bytes(void *context, void *to, size_t bytes)
{
    struct reader *reader = context;

    if (bytes > reader->bytes->len - reader->at) {
        return KVB_NOT_FOUND;
    }
    memcpy(to, reader->bytes->data + reader->at, bytes);
    reader->at += bytes;
    return KVB_OK;
}

static void take_restored(
    struct sim_world *world, struct sim_rank *rank, const struct sim_file *file, bool needs_epoch)
{
    rank->needs_epoch = needs_epoch;
    rank->is_withdrawn = kvb_stream_is_withdrawn(rank->stream);
    rank->waits_for_proof = true;
    rank->down_ns = world->now_ns;
    rank->has_place = true;
    rank->place = file->place;
    sim_story_restore(&rank->story, rank->stream, !needs_epoch);
}

void sim_restore(struct sim_world *world, struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);
    struct sim_file *file = &disk->file;
    struct reader reader = { .bytes = &file->bytes };
    const struct kvb_checkpoint_source source = { .read = read_bytes, .context = &reader };
    struct kvb_checkpoint_refusal refusal = { .flaw = KVB_CHECKPOINT_UNREADABLE };
    bool needs_epoch = true;

    disk->next_ns = world->now_ns + kvb_random_below(&disk->dice, world->checkpoint_ns + 1);
    if (!file->is_there) {
        return;
    }
    if (kvb_stream_restore(rank->stream, rank->told, &source, &needs_epoch, &refusal) == KVB_OK) {
        take_restored(world, rank, file, needs_epoch);
        sim_note(world, "stream %u goes on after seq %lu", rank->stream_number, file->seq);
        if (file->is_spoilt) {
            sim_fail(world, "stream %u takes a spoilt checkpoint", rank->stream_number);
        }
    } else {
        sim_note(
            world, "stream %u: checkpoint refused, %s", rank->stream_number,
            kvb_checkpoint_flaw_name(refusal.flaw));
        if (!file->is_spoilt) {
            sim_fail(
                world, "stream %u refuses its checkpoint: %s", rank->stream_number,
                kvb_checkpoint_flaw_name(refusal.flaw));
        }
        file->is_there = false;
    }
    file->is_spoilt = false;
}

bool sim_is_proven(struct sim_rank *rank)
{
    rank->waits_for_proof = rank->waits_for_proof && !kvb_stream_is_settled(rank->stream);
    return !rank->waits_for_proof;
}
