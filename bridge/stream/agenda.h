#pragma once

#include "stream/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* Which work is due in an iteration of the thread that serves all streams, and what a new
 * connection to NATS means for events already published.
 *
 *     tick    every 50 ms: time passes for each stream
 *     round   every 5 ms, sooner when a stream has changed: replays are requested, streams are
 *             announced, heartbeats are sent.  To look at a thousand ranks in every iteration
 *             would take too long.
 *
 * Pure: time is an argument.  Threads: the caller locks. */
struct kvb_agenda {
    uint64_t connects_seen;
    uint64_t next_tick_ns;
    uint64_t next_round_ns;
    bool is_round_wanted; /* a stream has changed, or one came or left */
};

/* Notes the output of a stream's step. */
void kvb_agenda_note_step(
    struct kvb_agenda *agenda, enum kvb_stream_input_kind kind,
    const struct kvb_stream_output *output);

bool kvb_agenda_takes_tick(struct kvb_agenda *agenda, uint64_t now_ns);
bool kvb_agenda_takes_round(struct kvb_agenda *agenda, uint64_t now_ns);

/* connects: how often NATS was connected so far.  True: there is a new connection, and what was
 * published before may never have arrived; nothing is announced before *out_announce_ns, when
 * readers are connected again. */
bool kvb_agenda_takes_connection(
    struct kvb_agenda *agenda, uint64_t connects, uint64_t now_ns, uint64_t *out_announce_ns);
