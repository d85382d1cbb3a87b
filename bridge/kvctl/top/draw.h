#pragma once

#include "core/buf.h"
#include "kvctl/top/model.h"

/* Makes the picture of `kvctl top`: text, and colours where wanted.
 *
 *     kvctl top  NATS connected  aggregator 0.1.0  2 bridges  12:34:56
 *     16 streams  15 EXACT  1 PARTIAL
 *     812.5 events/s  25600 blocks  hit rate 61% (120 routed)
 *     load 0.431 std 0.052  12 active 3 waiting  reconnects 0 engines 0 NATS
 *     (what is wrong, if anything)
 *     WORKER^ RANK STATE      REASON ...
 *          1     0 EXACT      -
 *     1-16 of 16  q quit  h help ...
 *
 * Where there are few rows or columns the less important goes; nothing is longer
 * than a line.
 *
 * Threads: the caller locks. */

struct kvctl_top_frame {
    size_t columns;
    size_t rows; /* of the terminal; 0: as many as it takes, and no line for keys */
    bool has_color;
    uint64_t now_ns;
    const char *clock; /* "12:34:56" */
};

/* Replaces out; NULL: draws on curses' screen.  The model's rows must have been selected for this
 * view, whose first and page are set to what is shown.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvctl_top_draw(
    const struct kvctl_top_model *model, struct kvctl_top_view *view,
    const struct kvctl_top_frame *frame, struct kvb_buf *out);
