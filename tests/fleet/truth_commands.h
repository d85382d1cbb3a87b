#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "fleet/engine/content_log.h"
#include "fleet/fleet.h"

#include <stdbool.h>

/* What a line on the truth socket does: see truth.h.  No socket here.
 *
 * An answer may be large, so it goes out in pieces: send() gets whole lines and
 * empties the buffer.  */
struct kvb_truth_session {
    struct kvb_fleet *fleet; /* borrowed */
    struct kvb_buf *out;     /* borrowed; empty at the start and at the end */
    kvb_status (*send)(void *context, struct kvb_buf *out);
    void *context;
    bool is_stopped; /* out */
};

/* Runs one command, which it cuts into words in place; line has no newline.
 * An unknown command is answered with an error.
 * KVB_IO  from send; KVB_NO_MEMORY: the answer could not be made */
kvb_status kvb_truth_run(struct kvb_truth_session *session, char *line);

/* ---- What it answers ---- */

/* The truth of one rank as one line of JSON, with a newline at its end:
 *
 *     {"worker_id":7,"dp_rank":0,"seq":41,"unsent":0,"block_size":2,"blocks":[
 *      {"tokens":[5,6],"parent":-1,"copies":1},{"tokens":[7,8],"parent":0,"copies":2}]}
 *
 * tokens: the block's own; parent: an earlier position in the list, -1 at the root;
 * copies: physical ones, 0 for an ancestor that is no longer held; "salt":TEXT follows where
 * the block's request had one; seq: the last
 * batch that was numbered, -1 before the first; unsent: events that no batch
 * carries yet.  So a reader computes any hash from tokens and salt alone.
 *
 * An engine whose events hold no tokens (a pool of blocks under keys) is known by its
 * own hashes only: then "by_hash":true stands before blocks, and "hash" in each.
 *
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append(); out holds a part of it */
kvb_status kvb_truth_format(const struct kvb_truth *truth, struct kvb_buf *out);

/* What changed since change number `since`, as one line of JSON likewise:
 *
 *     {"worker_id":7,"dp_rank":0,"now_ns":9000,"lost":0,"next":44,"changes":[
 *      ["stored",5000,HASH,PARENT,[5,6]],["removed",6000,HASH],["cleared",7000]]}
 *
 * Times are of the monotonic clock; hashes are the engine's own, so that a change can
 * name what an earlier one listed; PARENT is HASH itself at a root; a salt follows the tokens where
 * there is one.  lost: changes that are no longer kept: read the truth anew.  At most 10,000
 * changes: request the rest from next; fewer: the list is complete at now_ns.
 *
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as above */
struct kvb_changes_head {
    uint64_t worker_id;
    uint32_t rank;
    uint64_t now_ns;
    uint64_t since;
};

enum { kvb_max_changes_shown = 10000 };

kvb_status kvb_changes_format(
    const struct kvb_changes_head *head, const struct kvb_content_log *log, struct kvb_buf *out);
