#pragma once

#include "blaster.h"
#include "core/status.h"
#include "parts/bench.h"
#include "script.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>

/* An engine that makes as much work for its bridge as one can, once a second:
 *
 *     [ Cleared ][ one of the scenes ]      ... a second later the same bytes again
 *
 *     tierclear  two Stored of 200,000 blocks, then 60,000 AllBlocksCleared of a tier
 *                that holds nothing: a walk over all blocks for each would be 24 billion steps
 *     waiting    300,000 Stored of one block, all children of a parent that was never stored
 *     collide    one Stored of 300,000 hashes that splitmix64 without a key puts in one line
 *                of a table
 *
 * The Cleared bounds what the bridge holds, however long this goes on. */

enum hostile_kind { hostile_tierclear, hostile_waiting, hostile_collide, hostile_kinds };

/* "tierclear", ...; never NULL. */
const char *hostile_name(enum hostile_kind kind);

/* The scene, encoded.  Undone by script_done().  KVB_NO_MEMORY, KVB_TOO_LARGE */
kvb_status
hostile_make(enum hostile_kind kind, const struct bench *options, struct script *out_script);

struct hostile {
    struct engine *engine;       /* borrowed */
    const struct script *script; /* borrowed: ZeroMQ sends from its bytes, until the context ends */
    uint64_t duration_ns;        /* it begins no scene after that */
    pthread_t thread;
    sem_t is_over;
    uint64_t scenes_sent; /* the thread's; to be read after hostile_end() */
};

/* Starts the thread; engine and script are set.  hostile_end() follows.  KVB_IO */
kvb_status hostile_begin(struct hostile *hostile);

/* Stops the thread; a scene that has begun is sent to its end. */
void hostile_end(struct hostile *hostile);
