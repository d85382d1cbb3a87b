#pragma once

#include "core/buf.h"
#include "core/detail.h"
#include "core/status.h"
#include "stream/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The checkpoints of a bridge's streams, one file each, in one directory.
 *
 *     owner (ingest thread)              writer thread
 *       room -> fill -> push   ------>     write to NAME.new
 *       room: none while it writes         ...
 *       push the last          ------>     write, fsync, rename to NAME, fsync directory
 *       take_outcome           <------     done, or failed
 *
 * The owner never waits for the disk: where there is no room, it comes again later.
 *
 * void_name() makes a checkpoint useless at once, by one rename.  It is called before events
 * are published that the next process would not publish identically.  The effect survives the
 * end of this process as soon as the call returns, and a crash of the machine once the
 * directory is written, some ms later.
 *
 * Threads: only the thread that made it, but for the writer of its own.
 * Memory:  one buffer, 2 MiB at most. */
struct kvb_checkpoint_store;

/* Of a file: made from numbers alone, so it is inside the directory. */
struct kvb_checkpoint_name {
    char text[64];
};

/* home: a hash of what makes streams of equal numbers different, as their subject. */
struct kvb_checkpoint_name
kvb_checkpoint_name_of(uint64_t home, uint64_t worker_id, uint32_t dp_rank);

/* Is it a directory in which files can be made?  KVB_BAD_CONFIG: it says why not. */
kvb_status kvb_checkpoint_directory_check(const char *directory, struct kvb_detail *detail);

/* Takes the directory for this process alone.
 * KVB_BAD_CONFIG  as above
 * KVB_AGAIN       another process has it, perhaps one that is about to end: two that go on
 *                 from the same checkpoint would both be the same bridge
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_checkpoint_store_open(
    const char *directory, struct kvb_checkpoint_store **out_store, struct kvb_detail *detail);

/* Waits for the writer; a checkpoint that was not pushed to its end is dropped.  NULL is
 * fine. */
void kvb_checkpoint_store_close(struct kvb_checkpoint_store *store);

/* ---- Writing, one checkpoint at a time ---- */

/* Where the next part goes; NULL: the writer still has the last one. */
struct kvb_buf *kvb_checkpoint_store_room(struct kvb_checkpoint_store *store);

/* The same, but waits for it. */
struct kvb_buf *kvb_checkpoint_store_wait(struct kvb_checkpoint_store *store);

enum kvb_checkpoint_part { KVB_CHECKPOINT_FIRST = 1, KVB_CHECKPOINT_LAST = 2 };

/* Hands what was appended to the writer.  parts: bits of the enum above. */
void kvb_checkpoint_store_push(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name, unsigned parts);

/* How the checkpoint whose last part was pushed ended, once, when the writer is through
 * with it; KVB_AGAIN until then, and when there is none.
 * KVB_CLOSED  it was made void while it was written
 * KVB_IO      *out_detail says what failed */
kvb_status kvb_checkpoint_store_take_outcome(
    struct kvb_checkpoint_store *store, struct kvb_detail *out_detail);

/* Makes the checkpoint void, whether it is on the disk or still being written. */
void kvb_checkpoint_store_void(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name);

/* ---- Reading, before anything is written ---- */

struct kvb_checkpoint_file {
    int fd;
};

/* KVB_NOT_FOUND, KVB_IO.  Undone by kvb_checkpoint_file_close(). */
kvb_status kvb_checkpoint_file_open(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name,
    struct kvb_checkpoint_file *out_file);
void kvb_checkpoint_file_close(struct kvb_checkpoint_file *file);

/* Borrows the file. */
struct kvb_checkpoint_source kvb_checkpoint_file_source(struct kvb_checkpoint_file *file);
