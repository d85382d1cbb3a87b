#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvfleet/fleet.h"

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
