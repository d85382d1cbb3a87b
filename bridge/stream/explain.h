#pragma once

#include "core/status.h"
#include "model/explain.h"
#include "model/query.h"
#include "stream/stream.h"

#include <stddef.h>

/* Explains block by block what a stream holds of a prompt, and why not more: from the mirror, and
 * from the trace, which is the log of the events that were published (model/event_log.h).
 *
 *     prompt --> names --> mirror: held where?            --+
 *                     \--> trace: by which event, when?    --+--> reason of each block
 *                      \-> other seeds, unknown parents    --+
 *
 * The names are the canonical ones.  Where blocks have the engine's names, those of a query of
 * token ids are found by the tokens and the parent, among the first 65,536 blocks of the mirror and
 * in the trace.  What is in neither has no name, and is older than the trace.
 *
 * Pure.  Threads: the caller locks.
 * Time: some milliseconds at most: the ceilings are kvb_explain_blocks, kvb_explain_trace_blocks
 *       and those of stream/mirror/look.c. */

enum {
    kvb_explain_blocks = 1 << 16,      /* of a prompt */
    kvb_explain_trace_blocks = 1 << 16 /* the newest of the trace */
};

/* Explains the blocks from .. of the prompt, max_rows (>= 1) of them at most.  On KVB_OK the caller
 * owns *out and frees it with kvb_explanation_done().
 *
 * KVB_BAD_INPUT  a query of text, or a stream of which no block size is known
 * KVB_TOO_LARGE  more than kvb_explain_blocks
 * KVB_NO_MEMORY */
kvb_status kvb_stream_explain(
    const struct kvb_stream *stream, const struct kvb_query *query, size_t from, size_t max_rows,
    struct kvb_explanation *out);
