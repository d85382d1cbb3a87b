#pragma once

#include "kvaggregator/answers/query_context.h"

/* The fleet that was used to record the answers of Dynamo's stand-alone indexer: model m, blocks of
 * 16 tokens, prompt 100 101 102 ...; worker 1 holds 4 blocks, worker 2 one on rank 0 and two on
 * rank 1.  All are EXACT. */
struct scene {
    struct kvb_prefix_index *index;
    struct kvb_followers *followers;
    struct kvb_load_tracker *tracker;
    struct kvb_requests *requests;
    struct kvb_predictions *predictions;
    struct kvb_query_context ctx;
    uint64_t event_id;
    const char *component; /* of what holds blocks from now on, like the next */
    const char *adapter;   /* whose blocks they are; NULL: the base model's */
};

enum { scene_block_size = 16, scene_now_s = 100 };

/* A fleet without streams, and the recorded one. */
void scene_empty(struct scene *scene);
void scene_recorded(struct scene *scene);
/* Lets decisions predict blocks from now on, with a TTL of 3 s. */
void scene_predict(struct scene *scene);
void scene_done(struct scene *scene);

/* A stream of the model stores the first `count` blocks of the prompt in a tier, and a heartbeat
 * proves them. */
struct scene_holding {
    uint64_t worker_id;
    uint32_t dp_rank;
    const char *model; /* NULL: no heartbeat */
    uint32_t block_size;
    enum kvb_tier tier;
    uint32_t count;
    bool is_eagle;
};
void scene_hold(struct scene *scene, const struct scene_holding *holding);

/* Reports a load. */
void scene_load(struct scene *scene, uint64_t worker_id, uint32_t dp_rank, uint64_t active_blocks);

/* The goodbye of the stream's bridge. */
void scene_bye(struct scene *scene, const struct scene_holding *holding);

/* The stream's next heartbeat: with a label such as "role=prefill" (NULL: none), draining or not.
 */
void scene_label(
    struct scene *scene, const struct scene_holding *holding, const char *label, bool is_draining);

/* The stream's next heartbeat, with these facts of its worker. */
void scene_tell(
    struct scene *scene, const struct scene_holding *holding, const struct kvb_worker_facts *facts);

/* The stream's next heartbeat: the worker serves these names too, each with a `+` in front if it is
 * an adapter.  The last one is NULL. */
void scene_serve(
    struct scene *scene, const struct scene_holding *holding, bool is_listed,
    const char *const names[]);

/* The stream's next heartbeat, which says that removals from this tier have not been seen. */
void scene_unverify_tier(
    struct scene *scene, const struct scene_holding *holding, enum kvb_tier tier);

/* The tiers beyond the device hold chunks of so many blocks. */
void scene_chunk(struct scene *scene, const struct scene_holding *holding, uint32_t blocks);

/* The stream's next heartbeat, which says that blocks have the engine's names, and gives this
 * address of its worker. */
void scene_name_by_engine(
    struct scene *scene, const struct scene_holding *holding, const char *address);

/* A query by tokens 100, 101, ... of this model; NULL: no model. */
struct kvb_query scene_query(size_t token_count, const char *model);
