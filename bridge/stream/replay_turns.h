#pragma once

#include "core/limits.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chooses the streams whose replay is requested next.  Each replay stops its engine's publishing
 * and takes memory, so only kvb_max_replays_at_once run.  After a thousand engines have
 * restarted, all of them need one.
 *
 *     proofs   reconnected, DOWN until the first reply   |  in each line, the replays that
 *     others   missing batches, histories, probes        |  have waited longest go first
 *
 * Proofs go first: each makes a worker usable again, and costs its engine least.  Neither line
 * may take all places, so engines that never reply delay only their own line.
 *
 * Pure.  Threads: the caller locks.  Use: {0}, offer each stream once, then take until false. */

enum { kvb_max_replays_of_a_line = kvb_max_replays_at_once * 3 / 4 };

struct kvb_served;

struct kvb_replay_turn {
    struct kvb_served *rank; /* borrowed */
    uint64_t from;
    enum kvb_replay_need need;
    uint64_t wanted_ns;
};

struct kvb_replay_line {
    size_t running;
    size_t count;
    size_t taken;
    struct kvb_replay_turn turns[kvb_max_replays_of_a_line]; /* in order of service */
};

struct kvb_replay_turns {
    struct kvb_replay_line proofs;
    struct kvb_replay_line others;
};

void kvb_replay_turns_offer(
    struct kvb_replay_turns *turns, struct kvb_served *rank, const struct kvb_stream *stream,
    uint64_t now_ns);

/* Takes the next replay to request, which counts as running from now on.  False: none is wanted, or
 * no place is free. */
bool kvb_replay_turns_take(struct kvb_replay_turns *turns, struct kvb_replay_turn *out_turn);

size_t kvb_replay_turns_running(const struct kvb_replay_turns *turns);
