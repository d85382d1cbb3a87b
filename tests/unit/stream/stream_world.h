#pragma once

#include "stream/stream.h"

/* A stream that tests drive by hand, and the list that a router would build from its events. */
struct stream_world {
    struct kvb_stream *stream;
    struct kvb_stream_output output;
    struct kvb_event_batch batch;
    uint64_t now_ns;
    uint64_t last_id;          /* of the newest event published */
    bool saw_cleared;          /* published in the last step */
    kvb_block_hash held[4096]; /* the router's list */
    size_t held_count;
};

/* Set options of the stream. */
struct kvb_stream_options stream_world_options(bool has_replay);

void stream_world_begin(struct stream_world *world, bool has_replay);
void stream_world_begin_holding(
    struct stream_world *world, bool has_replay, size_t max_buffered_bytes);
void stream_world_end(struct stream_world *world);

/* Gives the stream one input, with world->batch as its content (is_poison: undecodable), then
 * empties the batch. salt makes the fingerprints of one incarnation differ from another's. */
void give_batch(
    struct stream_world *world, enum kvb_stream_input_kind kind, uint64_t seq, uint64_t salt,
    bool is_poison);
void give(struct stream_world *world, enum kvb_stream_input_kind kind);
void pass_ms(struct stream_world *world, uint64_t ms);

/* Starts the replay that the stream must want; returns its first number. */
uint64_t start_wanted_replay(struct stream_world *world);

/* Gives END, and then the second round that guards against a cut reply: the last batch again, of
 * this incarnation, and END. */
void end_replay(struct stream_world *world, uint64_t salt);

/* The stream looks for its newest live batch in the replay, and finds it. */
void find_live(struct stream_world *world, uint64_t seq, uint64_t salt);

/* ---- Scenes: batch seq of an incarnation stores one prompt of one token ---- */

enum { first_incarnation = 1, second_incarnation = 2 };

/* The published name of the prompt's block. */
kvb_block_hash root(uint32_t token);

void live(struct stream_world *world, uint64_t seq, uint64_t life, uint32_t token);
void replayed(struct stream_world *world, uint64_t seq, uint64_t life, uint32_t token);

/* Connects and replays history from 0: batches 0 .. count - 1 with token = seq + 1. The newest also
 * comes live (a duplicate), so the stream is EXACT, unless count is 0. */
void begin_exact(struct stream_world *world, uint64_t count);

/* ---- Checks ---- */

bool router_holds(const struct stream_world *world, kvb_block_hash block);
void assert_state(
    const struct stream_world *world, enum kvb_stream_state state, enum kvb_stream_reason reason);
