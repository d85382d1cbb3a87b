#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "load/history.h"
#include "serve/view.h"

#include <stddef.h>
#include <stdint.h>

/* What the status page shows, kept apart from the index: the thread that owns the
 * index pays the same for one browser and for two hundred.
 *
 *     index thread --a sample a second------> history       --copied by---> HTTP threads
 *     index thread --some streams a turn----> list to be
 *                       when it is whole----> list shown    --borrowed by-> HTTP threads
 *
 * The list is made anew every half second while somebody looks, until 5 s after the
 * last question; else it stands still, and its age says so.
 *
 * Threads: add_sample and renew on the thread that owns the view, the answers on any.
 * Memory:  90 KB of samples; two lists of some 450 bytes a stream, each at most
 *          2 * kvb_max_board_bytes. */
struct kvb_board;

struct kvb_board_options {
    uint64_t now_ns;     /* seconds of the history count from here */
    uint64_t started_ms; /* since 1970: tells this life from the next one */
    enum kvb_load_statistic statistic;
};

/* On KVB_OK the caller owns *out_board.  KVB_NO_MEMORY. */
kvb_status kvb_board_new(const struct kvb_board_options *options, struct kvb_board **out_board);

/* NULL is fine. */
void kvb_board_free(struct kvb_board *board);

/* To be called more often than once a second; keeps one reading of each. */
void kvb_board_add_sample(
    struct kvb_board *board, const struct kvb_history_reading *reading, uint64_t now_ns);

/* Goes on with the list of streams, if one is wanted.  Without memory the list shown
 * stays, and grows old. */
void kvb_board_renew(struct kvb_board *board, const struct kvb_view *view, uint64_t now_ns);

/* GET /history: {version, started_ms, not_ready, load_statistic, columns, samples}: the
 * samples later than second `after`, a row each.  not_ready: why no events can come just
 * now, or NULL.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: what was appended is to be thrown away. */
kvb_status kvb_board_history(
    struct kvb_board *board, uint64_t after, const char *not_ready, struct kvb_buf *out);

struct kvb_board_ask {
    const char *filter; /* words that a stream must all have, in any case; "" for every one */
    size_t max_rows;
    uint64_t now_ns;
};

/* GET /overview: {age_ms, states:{EXACT:n,...}, streams:[as in GET /streams], matching}:
 * the first max_rows of the streams that match, those in trouble first.  age_ms is null
 * before the first list.  Errors as above. */
kvb_status
kvb_board_streams(struct kvb_board *board, const struct kvb_board_ask *ask, struct kvb_buf *out);
