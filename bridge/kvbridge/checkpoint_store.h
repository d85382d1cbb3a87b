#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "stream/checkpoint/checkpoint.h"

#include <stdint.h>

/* The checkpoints of a bridge's streams, one file each, in one directory.
 *
 *     owner (ingest thread)              work of a job (control/control.h)
 *       room -> fill -> push   ------>     write to NAME.new
 *       room: NULL while it writes         ...
 *       push the last part     ------>     write, fsync, rename to NAME, fsync directory
 *       take_outcome           <------     done, or failed
 *
 * The owner does not wait for the disk: room() returns NULL, and the owner tries again later.
 *
 * kvb_checkpoint_store_void() invalidates a checkpoint with one rename.  It is called before
 * events are published that a process restored from this checkpoint would not publish
 * identically.  The effect survives the end of this process as soon as the call returns, and a
 * crash of the machine some ms later, when the directory has been written to the disk.
 *
 * Threads: the owner's thread calls everything.
 * Memory:  one buffer, 2 MiB at most. */
struct kvb_checkpoint_store;
struct kvb_control;

/* A file name.  It is made of numbers only, so it cannot lead out of the directory. */
struct kvb_checkpoint_name {
    char text[64];
};

/* home: a hash that differs between streams of equal worker_id and dp_rank, such as the hash of
 * their NATS subject. */
struct kvb_checkpoint_name
kvb_checkpoint_name_of(uint64_t home, uint64_t worker_id, uint32_t dp_rank);

/* Checks that files can be created in the directory, and not by every user: a forged checkpoint is
 * read as far as the engine confirms it.  KVB_BAD_CONFIG: detail says why not. */
kvb_status kvb_checkpoint_directory_check(const char *directory, struct kvb_detail *detail);

/* True: the directory does not exist, but the one that would contain it does. */
bool kvb_checkpoint_directory_may_come(const char *directory);

/* Takes the directory for this process alone.
 * KVB_BAD_CONFIG  as above
 * KVB_AGAIN       another process uses it, perhaps one that is about to end; two processes
 *                 restored from one checkpoint would publish as the same bridge
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_checkpoint_store_open(
    struct kvb_control *control, const char *directory, struct kvb_checkpoint_store **out_store,
    struct kvb_detail *detail);

/* Waits for what is being written; a checkpoint whose last part was not pushed is dropped.  NULL is
 * fine. */
void kvb_checkpoint_store_close(struct kvb_checkpoint_store *store);

/* ---- Writing, one checkpoint at a time ---- */

/* The buffer for the next part; NULL: it is still being written. */
struct kvb_buf *kvb_checkpoint_store_room(struct kvb_checkpoint_store *store);

/* The same, but waits until the buffer is free. */
struct kvb_buf *kvb_checkpoint_store_wait(struct kvb_checkpoint_store *store);

enum kvb_checkpoint_part { KVB_CHECKPOINT_FIRST = 1, KVB_CHECKPOINT_LAST = 2 };

/* Has the buffer's content written.  parts: bits of the enum above. */
void kvb_checkpoint_store_push(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name, unsigned parts);

/* The result of the checkpoint whose last part was pushed; returned once.
 * KVB_OK      it is on the disk
 * KVB_AGAIN   it is still being written, or there is none
 * KVB_CLOSED  it was voided while it was being written
 * KVB_IO      *out_detail says what failed */
kvb_status kvb_checkpoint_store_take_outcome(
    struct kvb_checkpoint_store *store, struct kvb_detail *out_detail);

/* Invalidates the checkpoint, whether it is on the disk or still being written. */
void kvb_checkpoint_store_void(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name);

/* ---- Reading, before the first checkpoint is written ---- */

struct kvb_checkpoint_file {
    int fd;
};

/* Opens the checkpoint file.  KVB_NOT_FOUND, KVB_IO.  Undone by kvb_checkpoint_file_close(). */
kvb_status kvb_checkpoint_file_open(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name,
    struct kvb_checkpoint_file *out_file);
void kvb_checkpoint_file_close(struct kvb_checkpoint_file *file);

/* A reader for the checkpoint decoder; borrows the file. */
struct kvb_checkpoint_source kvb_checkpoint_file_source(struct kvb_checkpoint_file *file);
