#pragma once

#include "core/status.h"
#include "model/router_batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The newest router events of one stream, by id: events that a reader may have missed, or events
 * that cannot be applied yet.
 *
 *     events   [ id 5 ][ id 6 ] | [ id 17 ][ id 18 ][ id 19 ] ...     rings: events
 *     blocks    b b     b       |  b b b     b        b b             rings: hashes, tokens
 *              earlier epoch      the range: consecutive ids
 *
 * The range is what readers can request.  The events before it, of earlier epochs, may still be
 * lent.
 *
 * Bounded: a full log drops its oldest events, each with all its blocks.  An event whose id does
 * not follow the newest one drops all earlier events.  The blocks of an event lie side by side, as
 * in a router batch, so that they can be published from here: at a ring's end fewer blocks than the
 * next event has stay unused, and count as held.
 *
 * Threads: the caller locks.
 * Memory:  16 bytes a block and 32 an event, in rings that double up to their
 *          ceilings and never shrink. */
struct kvb_event_log;

/* At most max_blocks blocks and as many events (1 .. kvb_max_router_blocks).
 * KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_event_log_new(size_t max_blocks, struct kvb_event_log **out_log);

/* NULL is fine. */
void kvb_event_log_free(struct kvb_event_log *log);

/* Drops all events. */
void kvb_event_log_clear(struct kvb_event_log *log);

/* A new epoch: the range is empty, and the next event begins it with any id.  Earlier events stay
 * until they are dropped. */
void kvb_event_log_begin_range(struct kvb_event_log *log);

/* Appends copies of the batch's events.  An event that has more than max_blocks
 * blocks, or for which no memory can be allocated, is dropped with all earlier ones. */
void kvb_event_log_add(struct kvb_event_log *log, const struct kvb_router_batch *batch);
/* The same for one event of a batch. */
void kvb_event_log_add_event(
    struct kvb_event_log *log, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event);

/* False when the range is empty. */
bool kvb_event_log_range(
    const struct kvb_event_log *log, uint64_t *out_first_id, uint64_t *out_last_id);

/* Appends events from_id .. to_id to *out, at least one and no more than max_blocks allows; each
 * event counts as one block more than it has.  *out_next_id is the first event left out.  Both ids
 * must be in the range.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: *out cannot grow. */
kvb_status kvb_event_log_read(
    const struct kvb_event_log *log, uint64_t from_id, uint64_t to_id, size_t max_blocks,
    struct kvb_router_batch *out, uint64_t *out_next_id);

/* ---- Lending ----
 *
 * Each event has a number: how many were added before it, those that were dropped included. */

/* As given to kvb_event_log_new(). */
size_t kvb_event_log_max_blocks(const struct kvb_event_log *log);

/* The number of the next event. */
uint64_t kvb_event_log_end(const struct kvb_event_log *log);

/* Lends the events from `number` on: *out refers to the log's own memory, until the log changes.
 * Its identity stays as it is.  Returns how many events these are: at most count, which is at least
 * 1, and fewer where a ring ends; 0: the log does not have all `count` events, and *out is
 * unchanged. */
size_t kvb_event_log_lend(
    const struct kvb_event_log *log, uint64_t number, size_t count, struct kvb_router_batch *out);
