#pragma once

#include "core/status.h"
#include "model/router_batch.h"

#include <stddef.h>
#include <stdint.h>

/* The block names that readers of one stream may hold.  Some readers do not know `cleared`: for
 * them a clear is published as removals of these names.
 *
 *     stored --> held --- removed ---> leaving --- kvb_advertised_leave_ns ---> forgotten
 *                  ^                      |
 *                  +------- stored -------+
 *
 * A removal may be lost together with the connection that carried it.  So a name is kept until a
 * loss would have been noticed; a clear in that time removes it once more.  Readers ignore the
 * removal of what they do not hold.
 *
 * Device tier only, like the profile of these readers; events of other lists are skipped.
 * Threads: the caller locks.
 * Memory:  24 to 40 bytes a name. */
struct kvb_advertised_names;

/* A lost connection is noticed within about 3 s. */
static const uint64_t kvb_advertised_leave_ns = 10ULL * 1000 * 1000 * 1000;

/* At most max_names (>= 1) are kept.  hash_key: see core/hash.h.  KVB_NO_MEMORY. */
kvb_status kvb_advertised_new(
    size_t max_names, uint64_t hash_key, struct kvb_advertised_names **out_advertised);

/* NULL is fine. */
void kvb_advertised_free(struct kvb_advertised_names *advertised);

/* Notes events that are published now; `cleared` among them changes nothing.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: the rest of the batch is not noted. */
kvb_status kvb_advertised_note(
    struct kvb_advertised_names *advertised, const struct kvb_router_batch *events,
    uint64_t now_ns);

/* Forgets the names whose time is over.  Cost: a pass over all names, at most once in
 * kvb_advertised_leave_ns.  Don't call it while removals may have been lost. */
void kvb_advertised_forget(struct kvb_advertised_names *advertised, uint64_t now_ns);

/* Adds a name that an earlier process published.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_advertised_add(struct kvb_advertised_names *advertised, kvb_block_hash block);

/* Name number `at`, below kvb_advertised_count(). */
kvb_block_hash kvb_advertised_at(const struct kvb_advertised_names *advertised, size_t at);

size_t kvb_advertised_count(const struct kvb_advertised_names *advertised);

/* Adds removed events for the names from number `from` on, at most max_blocks
 * (>= 1) of them, and returns how many.  Numbers change with kvb_advertised_forget()
 * only.  KVB_TOO_LARGE, KVB_NO_MEMORY of out. */
kvb_status kvb_advertised_list(
    const struct kvb_advertised_names *advertised, size_t from, size_t max_blocks,
    struct kvb_router_batch *out, size_t *out_count);
