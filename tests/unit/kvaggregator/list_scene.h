#pragma once

#include "kvaggregator/query_scene.h"

/* Streams of model m that are EXACT and hold blocks of the prompt 100 101 102 ... as a test says,
 * list by list and block by block. */

struct lists {
    uint64_t worker_id;
    struct kvb_block_shape shape; /* of the device list */
    const char *device;           /* blocks held from the beginning: "111" is 3; NULL: none */
    const char *window;           /* blocks in the window list: "0110"; NULL: none */
    uint32_t window_tokens;       /* 0: no hybrid model */
    struct kvb_block_shape host_shape;
    const char *host; /* NULL: none */
    enum kvb_hashes hashes;
    bool is_paired;
    uint32_t speculative_drop;
    bool is_without_full;
    bool is_store;
};

/* The name of block i in the engine, for streams whose blocks have the engine's names. */
kvb_block_hash engine_name(uint32_t i);

void hold_lists(struct scene *scene, const struct lists *lists);

/* The overlap of a worker, or of a store; NULL when it is not listed. */
const struct kvb_overlap *overlap_of(const struct scene *scene, uint64_t worker_id);
const struct kvb_overlap *shared_of(const struct scene *scene, uint64_t worker_id);

/* Sends a query with this many tokens of the prompt, as a router does. */
void query_tokens(struct scene *scene, size_t token_count);
