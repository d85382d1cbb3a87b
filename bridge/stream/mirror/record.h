#pragma once

#include "core/buf.h"
#include "stream/mirror/mirror.h"

#include <stddef.h>
#include <stdint.h>

/* A mirror's entries as bytes, written while the mirror goes on changing.
 *
 *     watch            every entry counts as changed
 *     put, put, ...    some changed entries each; those that change again come again
 *     put              all that are left: with the ends, this is the mirror as it stands
 *     unwatch
 *
 *     record   id older newer u32 | standing flags group size | most, least of each tier
 *              engine tokens parent seed key u64                         64 bytes
 *     counts   id u32 0 | 0 flags 0 | most, least of each tier u32 | 0   64 bytes
 *
 * Counts follow the record of an entry with more than 255 copies in some tier.
 *
 * Whoever takes the records in their order, the last of each id holding, and then
 * settles, has the same mirror: the same ids, the same order of doubtful and of free
 * entries, so that the same events change it in the same way.  Only the order of the
 * children that wait for one parent is not kept.
 *
 * Threads: the caller locks.  Memory: while watched, one bit for each of max_blocks. */
enum { kvb_mirror_record_bytes = 64 };

/* KVB_NO_MEMORY. */
kvb_status kvb_mirror_watch(struct kvb_mirror *mirror);
void kvb_mirror_unwatch(struct kvb_mirror *mirror);

/* Entries still to be put; KVB_CLOSED: the mirror was emptied since, watch again. */
kvb_status kvb_mirror_changed(const struct kvb_mirror *mirror, size_t *out_entries);

/* Appends at most max_entries of them, going on from *place, which is 0 to begin with;
 * *out_records: how many records that are.  KVB_TOO_LARGE, KVB_NO_MEMORY of out: nothing changed.
 */
kvb_status kvb_mirror_put_changed(
    struct kvb_mirror *mirror, size_t max_entries, size_t *place, struct kvb_buf *out,
    size_t *out_records);

/* What is no entry's own, as bytes. */
enum { kvb_mirror_ends_bytes = 664 };

/* From here on the mirror remembers nothing that a record or these bytes do not tell, so that
 * it and the one made of them do the same. */
void kvb_mirror_put_ends(struct kvb_mirror *mirror, uint8_t to[kvb_mirror_ends_bytes]);

/* ---- Back: into an empty mirror ---- */

/* KVB_BAD_INPUT it is no record, or skips an id; KVB_TOO_LARGE, KVB_NO_MEMORY.  After
 * any error the mirror is to be cleared. */
kvb_status
kvb_mirror_take_record(struct kvb_mirror *mirror, const uint8_t record[kvb_mirror_record_bytes]);

/* Files and counts all that was taken.  The digests get this key.  *out_is_same: as said above;
 * false where a republished mirror kept numbers of dropped entries: then the same events may change
 * other entries, in another order.
 * KVB_BAD_INPUT  no mirror can look like that
 * KVB_NO_MEMORY */
kvb_status kvb_mirror_settle(
    struct kvb_mirror *mirror, const uint8_t ends[kvb_mirror_ends_bytes],
    const struct kvb_digest_key *key, bool *out_is_same);
