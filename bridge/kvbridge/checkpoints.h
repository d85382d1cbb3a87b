#pragma once

#include "core/log.h"
#include "kvbridge/checkpoint_store.h"
#include "model/stream.h"
#include "stream/checkpoint/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The streams on the disk: a restarted bridge continues from them. */

struct kvb_bridge;
struct bridge_rank;

/* Checkpoints are written one after another. */
struct bridge_checkpoints {
    struct kvb_checkpoint_store *store; /* owned; NULL: no checkpoints */
    struct kvb_checkpoint_maker maker;
    struct bridge_rank *rank; /* borrowed: the rank whose checkpoint is being written */
    bool is_due;              /* a rank may need one */
    bool is_stopping;         /* each changed stream gets a last one */
    size_t next_rank;         /* where the search for such a rank continues */
    struct kvb_log_limit limit;
};

kvb_status kvb_bridge_open_checkpoints(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_checkpoints(struct bridge_checkpoints *checkpoints);

/* Restores the stream of a newly opened rank from its checkpoint, if there is one. */
void kvb_bridge_restore_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t home);
/* Called after the ranks are open: spreads their checkpoints over time. */
void kvb_bridge_spread_checkpoints(struct kvb_bridge *bridge);

/* Called for each rank once a second: is its checkpoint due? */
void kvb_bridge_look_for_checkpoint(
    struct kvb_bridge *bridge, const struct bridge_rank *rank, uint64_t now_ns);

/* Called in every turn: writes a part of a checkpoint, if one is due. */
void kvb_bridge_save(struct kvb_bridge *bridge);
/* A checkpoint is being written. */
bool kvb_bridge_is_saving(const struct bridge_checkpoints *checkpoints);
/* Called at the end: writes checkpoints of all changed streams. */
void kvb_bridge_save_all(struct kvb_bridge *bridge);

/* Removes the checkpoint of a rank that is removed. */
void kvb_bridge_drop_checkpoint(struct bridge_checkpoints *checkpoints, struct bridge_rank *rank);

/* Called before events are published that do not come from a batch, and before the first event of
 * an epoch. */
void kvb_bridge_void_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank);
void kvb_bridge_telling_epoch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const kvb_epoch *epoch);
