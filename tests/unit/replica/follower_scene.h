#pragma once

#include "core/clock.h"
#include "replica/follower.h"

/* One index, one table of followers, and the one stream that the tests are about: worker 7, rank 1.
 * Epochs are small numbers; epoch 0 means JSON, whose events name no epoch. */

#define S KVB_NS_PER_S

enum { first_id = 1000 };

struct scene {
    struct kvb_prefix_index *index;
    struct kvb_followers *followers;
    struct kvb_router_batch batch;
    bool is_json; /* the newest batch: heartbeats name its format, unless they name one */
    uint64_t now_ns;
};

extern const struct kvb_stream_id stream;

struct scene scene_of(size_t max_streams, size_t max_nodes, size_t max_slots);
struct scene begin(void);
/* A follower that requests missed events from bridges. */
struct scene begin_requests(void);
struct scene begin_requests_with(size_t max_nodes);

/* Fails when the index still contains anything of a stream. */
void end(struct scene *scene);

/* ---- Events and heartbeats ---- */

void start_batch(struct scene *scene, int epoch);
void add(
    struct scene *scene, enum kvb_router_kind kind, uint64_t event_id, uint64_t block,
    enum kvb_tier tier);
void say(struct scene *scene);

void cleared(struct scene *scene, int epoch, uint64_t event_id);
void stored(struct scene *scene, int epoch, uint64_t event_id, uint64_t block);
void removed(struct scene *scene, int epoch, uint64_t event_id, uint64_t block);

/* A heartbeat that says EXACT, with this many blocks on the device. */
struct kvb_heartbeat beat_of(int epoch, uint64_t last_id, uint64_t blocks);
void beat_as(struct scene *scene, const struct kvb_heartbeat *heartbeat);
void beat(struct scene *scene, int epoch, uint64_t last_id, uint64_t blocks);

/* Makes the stream EXACT with one block (5) at first_id + 1. */
void make_exact(struct scene *scene, int epoch);

/* ---- Queries ---- */

/* NULL when the stream is forgotten. */
const struct kvb_follower *follower(const struct scene *scene);
void assert_state(
    const struct scene *scene, enum kvb_stream_state state, enum kvb_stream_reason reason);
void assert_blocks(const struct scene *scene, uint64_t blocks);
size_t count_followed(const struct scene *scene);
uint64_t blocks_in(const struct scene *scene, enum kvb_tier tier);
struct kvb_follower_counters counters_of(const struct scene *scene);

/* ---- Repair ---- */

/* Takes the next request, which must be of this kind. */
struct kvb_follower_request asked(struct scene *scene, enum kvb_sync_kind kind);

/* A chunk from the stream's bridge in epoch 1; tests change its fields. */
struct kvb_sync_reply reply_of(enum kvb_sync_answer answer, uint64_t last_id);

/* Answers with the events of the scene's batch. */
void answer(
    struct scene *scene, const struct kvb_follower_request *ask, struct kvb_sync_reply *reply);
