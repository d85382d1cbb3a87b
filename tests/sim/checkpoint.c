#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* The disk of a bridge. stream/checkpoint/policy.h decides what is made and what is void. Each
 * stream has its own maker. Writing takes some time; a crash loses what is not written, and files
 * that it corrupts must be refused. */

enum { max_items_a_turn = 32, max_file_bytes = 1 << 20 };

static const uint64_t max_write_ns = 150 * KVB_NS_PER_MS;

static struct sim_disk *disk_of(struct sim_world *world, const struct sim_rank *rank)
{
    return &world->disks[rank->stream_number];
}

void sim_disk_begin(struct sim_disk *disk)
{
    kvb_buf_init(&disk->file.bytes, max_file_bytes);
    kvb_buf_init(&disk->coming.bytes, max_file_bytes);
}

void sim_disk_end(struct sim_disk *disk)
{
    kvb_buf_done(&disk->file.bytes);
    kvb_buf_done(&disk->coming.bytes);
}

/* ---- Void ---- */

static void remove_files(struct sim_world *world, const struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    sim_note(world, "stream %u: its checkpoint is void", rank->stream_number);
    disk->file.is_there = false;
    disk->coming.is_there = false;
}

void sim_void_checkpoint(struct sim_world *world, struct sim_rank *rank)
{
    if (kvb_checkpoint_becomes_void(&rank->checkpoint)) {
        remove_files(world, rank);
    }
}

void sim_telling_epoch(struct sim_world *world, struct sim_rank *rank, const kvb_epoch *epoch)
{
    if (kvb_checkpoint_enters_epoch(&rank->checkpoint, epoch)) {
        remove_files(world, rank);
    }
}

/* ---- Saving ---- */

/* The writer has finished. */
static void land(struct sim_disk *disk)
{
    if (disk->maker.stage != KVB_CHECKPOINT_STORING) {
        return;
    }
    if (disk->coming.is_there) {
        const struct sim_file old = disk->file;
        disk->file = disk->coming;
        disk->coming = old;
        disk->coming.is_there = false;
        kvb_checkpoint_written(&disk->maker, KVB_OK);
    } else {
        kvb_checkpoint_written(&disk->maker, KVB_CLOSED);
    }
}

static void note_made(struct sim_world *world, struct sim_disk *disk, const struct sim_rank *rank)
{
    struct sim_file *file = &disk->coming;

    file->is_there = true;
    file->place = rank->place;
    file->seq = rank->checkpoint.seq;
    disk->written_ns = world->now_ns + 1 + kvb_random_below(&disk->rng, max_write_ns);
    sim_note(world, "stream %u is saved as of seq %lu", rank->stream_number, file->seq);
}

static void
make_part(struct sim_world *world, struct sim_disk *disk, const struct sim_rank *rank, size_t items)
{
    struct kvb_checkpoint_progress made = { .is_last = false };

    if (kvb_checkpoint_step(&disk->maker, items, &disk->coming.bytes, world->now_ns, &made) ==
            KVB_OK &&
        made.is_last) {
        note_made(world, disk, rank);
    }
}

static void begin(const struct sim_world *world, struct sim_disk *disk, struct sim_rank *rank)
{
    if (kvb_checkpoint_begin(
            &disk->maker, &rank->checkpoint, rank->served.stream, world->now_ns,
            world->checkpoint_ns) == KVB_OK) {
        kvb_buf_reset(&disk->coming.bytes);
    }
}

void sim_save(struct sim_world *world, struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    if (world->checkpoint_ns == 0) {
        return;
    }
    if (disk->maker.stage == KVB_CHECKPOINT_STORING && world->now_ns >= disk->written_ns) {
        land(disk);
    }
    if (disk->maker.stage == KVB_CHECKPOINT_IDLE) {
        begin(world, disk, rank);
    }
    if (disk->maker.stage == KVB_CHECKPOINT_MAKING) {
        make_part(world, disk, rank, 1 + kvb_random_below(&disk->rng, max_items_a_turn));
    }
}

/* At a clean stop nothing waits for its period. */
void sim_save_all(struct sim_world *world, struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    if (world->checkpoint_ns == 0) {
        return;
    }
    kvb_checkpoint_give_up(&disk->maker, world->now_ns);
    land(disk);
    kvb_checkpoint_hurry(&rank->checkpoint, world->now_ns);
    begin(world, disk, rank);
    /* ends, because each part is made or the checkpoint is abandoned */
    while (disk->maker.stage == KVB_CHECKPOINT_MAKING) {
        make_part(world, disk, rank, kvb_checkpoint_step_items);
    }
    land(disk);
}

/* The process and its memory are gone. */
void sim_disk_crash(struct sim_world *world, const struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);

    if (disk->maker.stage == KVB_CHECKPOINT_STORING && kvb_random_below(&disk->rng, 2)) {
        land(disk);
    }
    kvb_checkpoint_forget(&disk->maker, &rank->checkpoint);
    disk->maker = (struct kvb_checkpoint_maker){ .stage = KVB_CHECKPOINT_IDLE };
    disk->coming.is_there = false;
}

/* ---- Corruption ---- */

void sim_spoil_file(struct sim_world *world, size_t stream, uint64_t rng)
{
    struct sim_file *file = &world->disks[stream].file;
    const struct sim_file *other = &world->disks[(stream + 1) % world->stream_count].file;
    const size_t at = kvb_random_below(&rng, file->bytes.len + 1);

    if (!file->is_there || file->is_spoilt || file->bytes.len == 0) {
        return;
    }
    file->is_spoilt = true;
    switch (kvb_random_below(&rng, 4)) {
    case 0:
        file->bytes.len = at < file->bytes.len ? at : 0; /* a truncated file */
        break;
    case 1:
        file->bytes.data[at % file->bytes.len] ^= (uint8_t)(1U << kvb_random_below(&rng, 8));
        break;
    case 2: /* the file of another stream, if that has one */
        kvb_buf_reset(&file->bytes);
        if (!other->is_spoilt) {
            (void)kvb_buf_append(&file->bytes, other->bytes.data, other->bytes.len);
        }
        break;
    default: /* bytes behind the end */
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
    kvb_checkpoint_restored(&rank->checkpoint, rank->served.stream);
    kvb_serve_restored(&rank->served, needs_epoch, world->now_ns);
    rank->has_place = true;
    rank->place = file->place;
    sim_story_restore(&rank->story, rank->served.stream, !needs_epoch);
}

void sim_restore(struct sim_world *world, struct sim_rank *rank)
{
    struct sim_disk *disk = disk_of(world, rank);
    struct sim_file *file = &disk->file;
    struct reader reader = { .bytes = &file->bytes };
    const struct kvb_checkpoint_source source = { .read = read_bytes, .context = &reader };
    struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_UNREADABLE };
    bool needs_epoch = true;

    rank->checkpoint.next_ns =
        world->now_ns + kvb_random_below(&disk->rng, world->checkpoint_ns + 1);
    if (!file->is_there) {
        return;
    }
    if (kvb_stream_restore(rank->served.stream, &source, &needs_epoch, &refusal) == KVB_OK) {
        take_restored(world, rank, file, needs_epoch);
        sim_note(world, "stream %u goes on after seq %lu", rank->stream_number, file->seq);
        if (file->is_spoilt) {
            sim_fail(world, "stream %u takes a spoilt checkpoint", rank->stream_number);
        }
    } else {
        sim_note(
            world, "stream %u: checkpoint refused, %s", rank->stream_number,
            kvb_checkpoint_rejection_name(refusal.cause));
        if (!file->is_spoilt) {
            sim_fail(
                world, "stream %u refuses its checkpoint: %s", rank->stream_number,
                kvb_checkpoint_rejection_name(refusal.cause));
        }
        file->is_there = false;
    }
    file->is_spoilt = false;
}
