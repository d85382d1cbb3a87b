#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Writes the lines of a log on its own thread, so that no other thread waits while nobody reads
 * stderr.  The thread is there while lines come, and ends a second later.
 *
 *     any thread --put--> [ ring of 256 KiB ] --> "kvb-log" --write(2)--> fd
 *                              | full
 *                              +--> dropped and counted; a later line reports the count
 *
 * Each line is one write(2), so that lines of another process do not split it.
 *
 * Threads: any thread may call kvb_log_writer_put() and kvb_log_writer_dropped(); only the owner
 *          may call the others.
 * Memory:  the ring. */
struct kvb_log_writer;

enum { kvb_log_ring_bytes = 256 << 10, kvb_log_line_bytes = 4096 };

/* Starts the writer.  On KVB_OK the caller stops *out_writer.  KVB_NO_MEMORY; KVB_IO: no
 * descriptor is free.
 *
 * note(dropped, text) writes the line that reports the dropped lines into text, and returns its
 * length, at most kvb_log_line_bytes.  It is called on the writer's thread. */
typedef size_t kvb_log_note(void *context, uint64_t dropped, char *text);
kvb_status
kvb_log_writer_start(int fd, kvb_log_note *note, void *context, struct kvb_log_writer **out_writer);

/* Waits at most wait_ns until the lines in the ring are written, and drops the rest.  No thread may
 * put lines any more.  NULL is fine. */
void kvb_log_writer_stop(struct kvb_log_writer *writer, uint64_t wait_ns);

/* Puts a copy of the line into the ring, or drops it.  len is at most kvb_log_line_bytes. */
void kvb_log_writer_put(struct kvb_log_writer *writer, const char *line, size_t len);

/* Returns how many lines were dropped since the start. */
uint64_t kvb_log_writer_dropped(struct kvb_log_writer *writer);

/* Writes the whole text.  Blocks while fd does.  Stops at a write error. */
void kvb_log_write_all(int fd, const char *text, size_t len);
