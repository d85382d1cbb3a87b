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

/* The tokens of one republished rank, being written. */
enum bridge_tokens_stage { BRIDGE_TOKENS_IDLE, BRIDGE_TOKENS_MAKING, BRIDGE_TOKENS_STORING };

struct bridge_tokens {
    enum bridge_tokens_stage stage;
    struct bridge_rank *rank; /* NULL: it has left */
    size_t place;             /* of the entries; SIZE_MAX: only the end is missing */
    uint64_t chunks;
    bool has_head;
    uint64_t contents; /* kvb_shown_counts, when it was begun */
};

/* Checkpoints are written one after another. */
struct bridge_checkpoints {
    struct kvb_checkpoint_store *store; /* owned; NULL: no checkpoints */
    struct kvb_checkpoint_maker maker;
    struct bridge_rank *rank; /* the rank whose checkpoint is being written */
    struct bridge_tokens tokens;
    bool is_due;      /* a rank may need one */
    bool is_stopping; /* checkpoints of all ranks come before tokens of any */
    size_t next_rank;
    struct kvb_log_limit limit;
};

/* ---- kvbridge/checkpoint.c: restarts continue from checkpoints ---- */
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
/* A checkpoint, or tokens, are being written. */
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

/* ---- kvbridge/republish_tokens.c: tokens beside a checkpoint ---- */

void kvb_bridge_want_tokens(struct bridge_rank *rank);
/* True: those of some rank are being written. */
bool kvb_bridge_begin_tokens(struct kvb_bridge *bridge);
void kvb_bridge_save_tokens(struct kvb_bridge *bridge); /* the next part */
/* False: they could not be written, *out_why says why. */
bool kvb_bridge_take_tokens_outcome(struct kvb_bridge *bridge, struct kvb_detail *out_why);
/* What is not written to its end is given up, and due again. */
void kvb_bridge_postpone_tokens(struct bridge_tokens *tokens);
/* The rank leaves. */
void kvb_bridge_drop_tokens(struct bridge_checkpoints *checkpoints, const struct bridge_rank *rank);
void kvb_bridge_void_tokens(struct bridge_checkpoints *checkpoints, const struct bridge_rank *rank);

bool kvb_bridge_has_tokens(const struct kvb_bridge *bridge, const struct bridge_rank *rank);
/* After its stream was restored and is shown. */
void kvb_bridge_restore_tokens(struct kvb_bridge *bridge, struct bridge_rank *rank);
