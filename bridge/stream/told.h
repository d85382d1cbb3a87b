#pragma once

#include "core/status.h"
#include "model/router_batch.h"

#include <stddef.h>
#include <stdint.h>

/* What readers of one stream may hold who know no `cleared`: for them a clear is
 * spelt out as removals.
 *
 *     stored --> held --- removed ---> leaving --- kvb_told_leave_ns ---> forgotten
 *                  ^                      |
 *                  +------- stored -------+
 *
 * A removal may be lost together with the connection that carried it, so a name is
 * kept, and removed once more by the next clear, until a loss would have been
 * noticed.  Readers ignore the removal of what they do not hold.
 *
 * Device tier only, as the profile that these readers speak; events of other lists are
 * passed over.
 * Threads: the caller locks.
 * Memory:  24 to 40 bytes a name. */
struct kvb_told;

/* A lost connection is noticed within some 3 s. */
static const uint64_t kvb_told_leave_ns = 10ULL * 1000 * 1000 * 1000;

/* At most max_names (>= 1) are kept.  KVB_NO_MEMORY. */
kvb_status kvb_told_new(size_t max_names, struct kvb_told **out_told);

/* NULL is fine. */
void kvb_told_free(struct kvb_told *told);

/* Notes events that are published now; `cleared` among them changes nothing.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: the rest of the batch is not noted. */
kvb_status
kvb_told_note(struct kvb_told *told, const struct kvb_router_batch *events, uint64_t now_ns);

/* Forgets what has left by now.  Cost: goes through all names, at most once in
 * kvb_told_leave_ns.  Not while removals may have been lost. */
void kvb_told_forget(struct kvb_told *told, uint64_t now_ns);

/* As if it had been told: what a predecessor told.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_told_add(struct kvb_told *told, kvb_block_hash block);

/* Name number `at`, below kvb_told_count(). */
kvb_block_hash kvb_told_at(const struct kvb_told *told, size_t at);

size_t kvb_told_count(const struct kvb_told *told);

/* Adds removed events for the names from number `from` on, at most max_blocks
 * (>= 1) of them, and returns how many.  Numbers change with kvb_told_forget()
 * only.  KVB_TOO_LARGE, KVB_NO_MEMORY of out. */
kvb_status kvb_told_list(
    const struct kvb_told *told, size_t from, size_t max_blocks, struct kvb_router_batch *out,
    size_t *out_count);
