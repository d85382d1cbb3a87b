#pragma once

#include "core/buf.h"
#include "model/digest.h"
#include "model/router_batch.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What bridges of a fleet publish, made up from one seed, with the truth beside it.
 *
 * A prompt is a system prefix that many share and a body of its own, then a few
 * decoded blocks, published one by one:
 *
 *     [ prefix of its group: 16 ][ body: 48 ][ decoded ][ decoded ] ...
 *       stored once a worker       one run     one run each
 *
 * Each worker holds up to `held` prompts of a pool that all draw from; a new one costs
 * the oldest, which goes tail first in one removal.  Names are canonical, 16 tokens a
 * block.  A message is one worker's, as many events as a bridge would put into it.
 *
 * Threads: the caller locks.  Memory: some 8 KiB a worker; none ends the program. */

enum {
    fleet_prefix_blocks = 16,
    fleet_body_blocks = 48,
    fleet_query_blocks = fleet_prefix_blocks + fleet_body_blocks,
    fleet_block_tokens = 16,
    fleet_max_token = 128000, /* token ids are below it */
    fleet_query_tokens = fleet_query_blocks * fleet_block_tokens,
    fleet_message_blocks = 448, /* a message of a bridge: 8 KiB */
    fleet_max_groups = 64,
    fleet_max_decoded = 64,
    fleet_digest_seed = 7
};

#define FLEET_NAMESPACE "bench"
#define FLEET_COMPONENT "worker"
#define FLEET_MODEL "bench"

struct fleet_options {
    uint32_t workers;
    uint32_t held;           /* prompts a worker holds */
    uint32_t pool;           /* prompts that there are: a multiple of 64, well above what is held */
    uint32_t groups;         /* of 64, that a worker serves: 1 .. 64 */
    uint32_t decoded;        /* blocks that a prompt grows by at most: 0 .. 64 */
    uint32_t message_events; /* in a message at most; 0: as many as fit */
};

struct fleet_worker {
    uint64_t last_id;
    uint64_t blocks;
    struct kvb_digest digest;
    uint64_t groups;   /* whose prefix is held: a bit each */
    uint32_t *prompts; /* owned: a ring of `held` */
    uint32_t oldest;
    uint32_t count;
};

struct fleet {
    struct fleet_options options;
    bool has_addresses; /* in heartbeats, which then also say that engines name the blocks */
    struct fleet_worker *workers; /* owned */
    uint64_t random;
    uint32_t next_worker;
    struct kvb_router_batch batch; /* owned: the message being made */
};

void fleet_init(struct fleet *fleet, const struct fleet_options *options);

void fleet_done(struct fleet *fleet);

/* A round of messages that are ready to be sent. */
struct fleet_round {
    struct kvb_buf bytes;
    size_t *ends; /* owned; of each message, in bytes */
    size_t count, capacity;
    uint64_t blocks; /* block operations */
    uint64_t events;
};

void fleet_round_init(struct fleet_round *round);
void fleet_round_done(struct fleet_round *round);

/* A message of it; borrowed. */
kvb_span fleet_message(const struct fleet_round *round, size_t at);

/* The next `blocks` block operations or a few more, workers in turn.  Replaces what the
 * round held. */
void fleet_make(struct fleet *fleet, uint64_t blocks, struct fleet_round *round);

/* The current heartbeat of the worker's bridge. */
void fleet_heartbeat(
    const struct fleet *fleet, uint32_t worker, struct kvb_heartbeat *out_heartbeat);

/* One chunk of a bridge's answer to a request for the worker's list: the bodies of
 * its prompts from number *prompt on, which becomes the next chunk's; at fleet.options.held
 * the list ends.  Nobody else holds any of them.  Appends to out. */
void fleet_list_chunk(
    struct fleet *fleet, uint32_t worker, uint32_t chunk, uint32_t *prompt, struct kvb_buf *out);

/* A bridge's answer to a request for all that the worker holds: one chunk, of the state
 * after the last message that was made.  Appends to out. */
void fleet_list(struct fleet *fleet, uint32_t worker, struct kvb_buf *out);

/* The tokens of the first 64 blocks of a prompt that some worker holds. */
void fleet_query(struct fleet *fleet, uint32_t tokens[fleet_query_tokens]);
