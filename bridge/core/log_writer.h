#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Writes the lines of a log on a thread of its own, so that no other thread waits while
 * nobody reads stderr.
 *
 *     any thread --put--> [ ring of 256 KiB ] --> "kvb-log" --write(2)--> fd
 *                              | full
 *                              +--> dropped, counted; a line says so once there is room
 *
 * Each line is one write(2), so that lines of another process do not split it.
 *
 * Threads: kvb_log_writer_put() and kvb_log_writer_dropped() any thread; the others their
 *          owner's alone.
 * Memory:  the ring. */
struct kvb_log_writer;

enum { kvb_log_ring_bytes = 256 << 10, kvb_log_line_bytes = 4096 };

/* note(dropped, text) writes the line that says how many were dropped, at most
 * kvb_log_line_bytes, and returns its length; called on the writer's thread.
 *
 * On KVB_OK the caller stops *out_writer.  KVB_NO_MEMORY, KVB_IO: no thread, no descriptor */
typedef size_t kvb_log_note(void *context, uint64_t dropped, char *text);
kvb_status
kvb_log_writer_start(int fd, kvb_log_note *note, void *context, struct kvb_log_writer **out_writer);

/* Waits at most wait_ns for what is in the ring to be written, and leaves the rest.
 * NULL is fine.  Nobody may put lines any more. */
void kvb_log_writer_stop(struct kvb_log_writer *writer, uint64_t wait_ns);

/* Takes a copy of the line, or drops it; len is at most kvb_log_line_bytes. */
void kvb_log_writer_put(struct kvb_log_writer *writer, const char *line, size_t len);

/* Lines dropped since the start. */
uint64_t kvb_log_writer_dropped(struct kvb_log_writer *writer);

/* Writes the whole text and blocks as long as fd does; stops at a write error. */
void kvb_log_write_all(int fd, const char *text, size_t len);
