#pragma once

#include "model/event_log.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a stream lists the blocks of a prompt, or does not: the answer of a bridge to P.kv_explain.
 *
 * Threads: any thread.  Memory: rows, owned. */

/* In the order in which they are looked for: the first that holds is the reason. */
enum kvb_explain_reason {
    KVB_EXPLAIN_HELD,           /* the device's list has it */
    KVB_EXPLAIN_WITHDRAWN,      /* the stream is published as empty; its state says why */
    KVB_EXPLAIN_DOUBTFUL,       /* it may or may not be held, and is not listed */
    KVB_EXPLAIN_OTHER_GROUP,    /* some cache groups hold it, but not all of full attention */
    KVB_EXPLAIN_OTHER_TIER,     /* only in another tier */
    KVB_EXPLAIN_PARENT_UNKNOWN, /* stored behind a parent that is not known: it has no name yet */
    KVB_EXPLAIN_REMOVED,        /* removed by an event of the trace */
    KVB_EXPLAIN_CLEARED,        /* all blocks were removed by an event of the trace */
    KVB_EXPLAIN_OTHER_NAME,     /* the same tokens are held with another LoRA name or salt */
    KVB_EXPLAIN_UNMATCHABLE,    /* behind the block before it is one that no query can name */
    KVB_EXPLAIN_NEVER_STORED,   /* not since all blocks were removed, or since the stream began */
    KVB_EXPLAIN_INCOMPLETE,     /* the list may lack blocks; the stream's state says why */
    KVB_EXPLAIN_OLDER,          /* whatever happened is older than the trace.  A block without name
                                 * may be held nevertheless, if the list has more than 65,536 */
    KVB_EXPLAIN_REASON_COUNT
};

/* "held", "parent_unknown", ...  Never NULL. */
const char *kvb_explain_reason_name(enum kvb_explain_reason reason);

/* "live", "replayed", ...  Never NULL. */
const char *kvb_event_origin_name(enum kvb_event_origin origin);

/* What the trace knows of one block in one tier. */
enum kvb_trace_verdict {
    KVB_TRACE_NOTHING,     /* no event about it */
    KVB_TRACE_HELD,        /* held since the event */
    KVB_TRACE_HELD_BEFORE, /* the event has only stored it again: held before that */
    KVB_TRACE_REMOVED,     /* by the event */
    KVB_TRACE_CLEARED,     /* by the event, with all others */
    KVB_TRACE_ABSENT       /* the event cleared all, and nothing stored it since */
};

struct kvb_explained_trace {
    enum kvb_trace_verdict verdict;
    uint64_t event_id;
    struct kvb_event_note note;
};

struct kvb_explained_block {
    bool has_name; /* false: nothing known has these tokens in this place (engine's names) */
    kvb_block_hash block;
    enum kvb_explain_reason reason;
    unsigned lists;               /* bit l: list l has it */
    uint32_t min[KVB_TIER_COUNT]; /* certain copies in all cache groups together */
    uint32_t max[KVB_TIER_COUNT];
    struct kvb_explained_trace traces[KVB_LIST_COUNT];
};

struct kvb_explanation {
    struct kvb_heartbeat beat; /* the stream as it is published now */
    const char *why;           /* which cache groups have no rule; NULL: none.  Borrowed */
    size_t blocks;             /* complete blocks of the prompt */
    size_t held_blocks;        /* listed on the device, from the beginning without a gap */
    bool is_held_at_least;     /* the next one may be listed too: its name was not looked for in all
                                  of a large list with the engine's names */
    size_t usable_blocks;      /* of these, what sliding windows leave to a request */
    size_t trace_events;       /* 0: there is no trace, and the next three mean nothing */
    bool is_trace_whole;       /* it goes back to the beginning of the stream */
    uint64_t trace_first_id;
    uint64_t trace_first_us;
    size_t from;                      /* the block of the first row */
    struct kvb_explained_block *rows; /* owned */
    size_t row_count;
};

/* {0} is fine. */
void kvb_explanation_done(struct kvb_explanation *explanation);

/* What decides about one block. */
struct kvb_explain_facts {
    bool is_withdrawn;
    bool is_partly_held; /* see kvb_mirror_look */
    bool is_waiting;
    bool has_other_name;
    bool is_unmatchable;
    bool is_incomplete;
    bool is_trace_whole;
};

/* The reason for the block, of which all other fields are set. */
enum kvb_explain_reason
kvb_explain_decide(const struct kvb_explained_block *block, const struct kvb_explain_facts *facts);
