#pragma once

#include "core/status.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What `kvctl top` shows at one moment: plain values, no clock, no I/O.
 *
 *     fleet (all that was received) --copy--> model --select--> shown rows --draw--> picture
 *
 * Texts are as they came from the wire: only the canvas may bring them to a terminal.
 *
 * Threads: the caller locks.
 * Memory:  about 450 bytes a stream, at most kvb_max_streams of them. */

enum { kvctl_top_word_bytes = 32, kvctl_top_filter_bytes = 64 };

/* A number that may not be known (yet, or any more). */
struct kvctl_top_figure {
    bool is_known;
    double value;
};

/* One stream. */
struct kvctl_top_row {
    struct kvb_stream_id id;
    char state[kvctl_top_word_bytes];
    char reason[kvctl_top_word_bytes];
    char tier_reasons[KVB_TIER_COUNT]
                     [kvctl_top_word_bytes]; /* of tiers that are UNVERIFIED alone */
    struct kvctl_top_figure events_per_s;
    struct kvctl_top_figure lag_s;
    struct kvctl_top_figure blocks; /* in all tiers */
    struct kvctl_top_figure load;
    struct kvctl_top_figure active; /* requests */
    struct kvctl_top_figure waiting;
    struct kvctl_top_figure reconnects;
    struct kvctl_top_figure kept; /* cached tokens delivered of those promised, 0 to 1 */
};

struct kvctl_top_totals {
    size_t states[KVB_STREAM_STATE_COUNT];
    size_t other_states; /* of names that we do not know */
    size_t bridges;
    size_t new_bridges; /* received once: nothing to compute a rate from */
    struct kvctl_top_figure events_per_s;
    struct kvctl_top_figure blocks;
    struct kvctl_top_figure active;
    struct kvctl_top_figure waiting;
    struct kvctl_top_figure load_avg;
    struct kvctl_top_figure load_std;
    struct kvctl_top_figure hit_rate; /* 0 to 1, of the prompts routed lately */
    uint64_t routed;                  /* how many those were */
    struct kvctl_top_figure engine_hit_rate;
    uint64_t engine_reconnects;
    uint64_t nats_reconnects; /* of bridges */
};

/* Where the figures come from, and whether it still does. */
struct kvctl_top_link {
    bool is_connected;
    uint64_t connected_ns;
    uint64_t lost_ns;     /* since when not */
    bool is_answering;    /* an aggregator did, in the newest round */
    bool has_answer;      /* ever */
    uint64_t answered_ns; /* the newest answer */
    char trouble[256];    /* why the newest round failed */
    char version[kvctl_top_word_bytes];
};

struct kvctl_top_model {
    struct kvctl_top_row *rows; /* owned */
    size_t count;
    size_t capacity;
    const struct kvctl_top_row **shown; /* owned; into rows, as the view wants them */
    size_t shown_count;
    size_t shown_capacity;
    struct kvctl_top_totals totals;
    struct kvctl_top_link link;
};

/* What a person chose with keys or options. */
struct kvctl_top_view {
    size_t sort; /* of kvctl_top_columns() */
    bool is_reversed;
    bool is_paused;
    bool is_help;
    bool is_done;
    bool is_typing; /* the filter, into typed */
    char filter[kvctl_top_filter_bytes];
    char typed[kvctl_top_filter_bytes];
    size_t first; /* row on top of the table, or line of the help; draw cuts it */
    size_t page;  /* out: rows that fit */
};

/* Chooses the rows that match the filter (every word of it somewhere in worker, rank,
 * state, reason, namespace or component; case aside) and sorts them.  Invalid after
 * rows change.  KVB_NO_MEMORY. */
kvb_status kvctl_top_select(struct kvctl_top_model *model, const struct kvctl_top_view *view);

/* {0} is fine. */
void kvctl_top_model_done(struct kvctl_top_model *model);
