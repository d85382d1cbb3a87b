#include "fleet/engine/engine.h"

#include "core/random.h"
#include "fleet/engine/block_pool.h"
#include "fleet/engine/event_writer.h"
#include "fleet/engine/request.h"

#include <stdlib.h>

/* waiting is a ring: the oldest at waiting_at.  It has room for all running
 * requests too, so that a preempted one always finds its place at the front. */
struct kvb_engine {
    struct kvb_engine_options options;
    struct kvb_block_pool *pool; /* owned */
    struct kvb_content_log log;
    struct kvb_request **running; /* owned, like waiting */
    struct kvb_request **waiting;
    uint32_t running_count;
    uint32_t waiting_at;
    uint32_t waiting_count;
    uint32_t waiting_capacity;
    const char *salt; /* of new requests; borrowed; NULL: none */
    uint64_t rng;
    uint64_t first_seq; /* since the restart */
    uint64_t next_seq;
    struct kvb_event_batch pending; /* events of the step, or handed out */
    enum kvb_engine_sleep sleep;
    uint64_t losing;              /* batches whose events are to be lost */
    bool is_handed;               /* pending went out and may be forgotten */
    struct kvb_engine_stats sums; /* the counters of it */
};

/* ---- From start to end ---- */

static bool is_probability(double value)
{
    return value >= 0 && value <= 1;
}

static bool options_fit(const struct kvb_engine_options *options)
{
    return options->block_size > 0 && options->max_running > 0 && options->max_running <= 1 << 16 &&
           options->max_waiting > 0 && options->max_waiting <= 1 << 16 &&
           options->step_tokens > 0 && is_probability(options->report_probability) &&
           is_probability(options->bypass_probability);
}

kvb_status kvb_engine_new(const struct kvb_engine_options *options, struct kvb_engine **out_engine)
{
    if (!options_fit(options)) {
        return KVB_BAD_INPUT;
    }
    struct kvb_engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        return KVB_NO_MEMORY;
    }
    engine->options = *options;
    engine->rng = options->seed;
    engine->first_seq = engine->next_seq = options->first_seq;
    engine->waiting_capacity = options->max_waiting + options->max_running;

    kvb_status status = kvb_block_pool_new(options->blocks, options->block_size, &engine->pool);
    if (status == KVB_OK) {
        kvb_block_pool_log(engine->pool, &engine->log);
        status = kvb_content_log_init(&engine->log, options->log_changes, options->block_size);
    }
    if (status == KVB_OK) {
        engine->running = calloc(options->max_running, sizeof(struct kvb_request *));
        engine->waiting = calloc(engine->waiting_capacity, sizeof(struct kvb_request *));
        status = engine->running && engine->waiting ? KVB_OK : KVB_NO_MEMORY;
    }
    if (status == KVB_OK && options->clears_first) {
        status = kvb_event_writer_cleared(&engine->pending);
    }
    if (status != KVB_OK) {
        kvb_engine_free(engine);
        return status;
    }
    *out_engine = engine;
    return KVB_OK;
}

static struct kvb_request **waiting_place(struct kvb_engine *engine, uint32_t from_front)
{
    return &engine->waiting[(engine->waiting_at + from_front) % engine->waiting_capacity];
}

static void end_request(struct kvb_request *request)
{
    if (request->progress) {
        request->progress->is_over = true;
    }
    kvb_request_free(request);
}

static void forget_requests(struct kvb_engine *engine)
{
    for (uint32_t i = 0; i < engine->running_count; i++) {
        end_request(engine->running[i]);
    }
    for (uint32_t i = 0; i < engine->waiting_count; i++) {
        end_request(*waiting_place(engine, i));
    }
    engine->running_count = 0;
    engine->waiting_count = 0;
}

void kvb_engine_free(struct kvb_engine *engine)
{
    if (!engine) {
        return;
    }
    forget_requests(engine);
    kvb_event_batch_done(&engine->pending);
    kvb_block_pool_free(engine->pool);
    kvb_content_log_done(&engine->log);
    free(engine->running);
    free(engine->waiting);
    free(engine);
}

kvb_status kvb_engine_admit(
    struct kvb_engine *engine, const uint32_t *tokens, uint32_t count, uint32_t output_length)
{
    return kvb_engine_admit_watched(engine, tokens, count, output_length, NULL);
}

kvb_status kvb_engine_admit_watched(
    struct kvb_engine *engine, const uint32_t *tokens, uint32_t count, uint32_t output_length,
    struct kvb_request_progress *progress)
{
    const uint32_t block_size = engine->options.block_size;
    const uint64_t max_tokens = (uint64_t)(engine->options.blocks - 1) * block_size;
    struct kvb_request *request = NULL;

    if (output_length == 0) {
        return KVB_BAD_INPUT;
    }
    if ((uint64_t)count + output_length > max_tokens) {
        return KVB_TOO_LARGE;
    }
    if (engine->waiting_count >= engine->options.max_waiting) {
        return KVB_AGAIN;
    }
    KVB_TRY(kvb_request_new(tokens, count, output_length, block_size, &request));
    request->salt = engine->salt;
    request->progress = progress;
    request->reports = kvb_random_chance(&engine->rng, engine->options.report_probability);
    request->bypasses = kvb_random_chance(&engine->rng, engine->options.bypass_probability);
    *waiting_place(engine, engine->waiting_count++) = request;
    return KVB_OK;
}

void kvb_engine_set_salt(struct kvb_engine *engine, const char *salt)
{
    engine->salt = salt;
}

/* ---- One step: what is computed, and what comes out of it ---- */

/* Forgets the batch that was handed out last. */
static void forget_handed(struct kvb_engine *engine)
{
    if (engine->is_handed) {
        kvb_event_batch_reset(&engine->pending);
        engine->is_handed = false;
    }
}

/* Gives all blocks back, tail first, and starts over. */
static void release_blocks(struct kvb_engine *engine, struct kvb_request *request)
{
    while (request->block_count > 0) {
        kvb_block_pool_release(engine->pool, request->blocks[--request->block_count]);
    }
    request->computed = 0;
    request->scheduled = 0;
    request->committed = 0;
}

/* Stops the youngest running request; it waits at the front of the queue. */
static void preempt_last(struct kvb_engine *engine)
{
    struct kvb_request *request = engine->running[--engine->running_count];

    release_blocks(engine, request);
    engine->waiting_at =
        (engine->waiting_at + engine->waiting_capacity - 1) % engine->waiting_capacity;
    engine->waiting_count++;
    *waiting_place(engine, 0) = request;
    engine->sums.preemptions++;
}

/* What one step may still do. */
struct step {
    struct kvb_engine *engine;
    uint32_t budget; /* tokens */
};

static uint32_t smaller_token_count(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t blocks_for(const struct kvb_engine *engine, uint32_t tokens)
{
    const uint32_t block_size = engine->options.block_size;

    return (tokens + block_size - 1) / block_size;
}

/* Blocks for so many tokens, all or none: KVB_AGAIN, as vLLM asks before it takes.
 * (Out of memory it may stop half way; the blocks so far are the request's.) */
static kvb_status
grow_request(struct kvb_engine *engine, struct kvb_request *request, uint32_t tokens)
{
    const uint32_t need = blocks_for(engine, tokens);

    if (need > request->block_count + kvb_block_pool_free_count(engine->pool)) {
        return KVB_AGAIN;
    }
    while (request->block_count < need) {
        uint32_t *place = &request->blocks[request->block_count];
        KVB_TRY(kvb_block_pool_take(engine->pool, &engine->pending, place));
        request->block_count++;
    }
    return KVB_OK;
}

static kvb_status announce_stored(
    struct kvb_engine *engine, const struct kvb_request *request, uint32_t from, uint32_t to)
{
    const uint32_t block_size = engine->options.block_size;
    const struct kvb_stored_run run = {
        .parent = from > 0 ? &request->hashes[from - 1] : NULL,
        .hashes = request->hashes + from,
        .tokens = request->tokens + (size_t)from * block_size,
        .count = to - from,
        .block_size = block_size,
        .salt = request->salt,
    };
    return kvb_event_writer_stored(&engine->pending, &run);
}

/* The blocks that are whole with so many tokens enter the prefix cache. */
static kvb_status commit(struct kvb_engine *engine, struct kvb_request *request, uint32_t tokens)
{
    const uint32_t block_size = engine->options.block_size;
    const uint32_t whole = tokens / block_size;

    if (whole <= request->committed) {
        return KVB_OK;
    }
    kvb_request_hash(request, block_size, engine->options.seed);
    KVB_TRY(announce_stored(engine, request, request->committed, whole));
    while (request->committed < whole) {
        const uint32_t at = request->committed;
        const struct kvb_block_content content = {
            .hash = request->hashes[at],
            .tokens = request->tokens + (size_t)at * block_size,
            .salt = request->salt,
        };
        KVB_TRY(kvb_block_pool_fill(
            engine->pool, request->blocks[at], at > 0 ? request->blocks[at - 1] : kvb_no_block,
            &content));
        request->committed++;
    }
    return KVB_OK;
}

/* Gives request number `at` its next tokens; preempts younger ones for it, and in
 * the end itself: then running_count is at most `at`. */
static kvb_status continue_running(struct step *step, uint32_t at)
{
    struct kvb_engine *engine = step->engine;
    struct kvb_request *request = engine->running[at];
    const uint32_t more =
        smaller_token_count(request->token_count - request->computed, step->budget);
    kvb_status status = KVB_AGAIN;

    while (engine->running_count > at) {
        status = grow_request(engine, request, request->computed + more);
        if (status != KVB_AGAIN) {
            break;
        }
        preempt_last(engine);
    }
    if (status == KVB_AGAIN) {
        return KVB_OK;
    }
    KVB_TRY(status);
    KVB_TRY(commit(engine, request, request->computed + more));
    request->scheduled = more;
    step->budget -= more;
    return KVB_OK;
}

/* How many blocks at the front are cached.  The last token is always computed, as
 * its output is wanted: that is where second copies come from. */
static uint32_t count_hits(struct kvb_engine *engine, struct kvb_request *request)
{
    const uint32_t block_size = engine->options.block_size;
    const uint32_t max = request->bypasses ? 0 : (request->token_count - 1) / block_size;
    uint32_t hits = 0;

    kvb_request_hash(request, block_size, engine->options.seed);
    while (hits < max) {
        const uint32_t block = kvb_block_pool_find(engine->pool, request->hashes[hits]);
        if (block == kvb_no_block) {
            break;
        }
        request->blocks[hits++] = block;
    }
    return hits;
}

/* Free blocks that holding the hits and adding `fresh` more would use up. */
static uint32_t free_blocks_wanted(
    const struct kvb_engine *engine, const struct kvb_request *request, uint32_t hits,
    uint32_t fresh)
{
    uint32_t wanted = fresh;

    for (uint32_t i = 0; i < hits; i++) {
        wanted += kvb_block_pool_is_free(engine->pool, request->blocks[i]);
    }
    return wanted;
}

static kvb_status start_request(
    struct kvb_engine *engine, struct kvb_request *request, uint32_t hits, uint32_t tokens)
{
    for (uint32_t i = 0; i < hits; i++) {
        kvb_block_pool_hold(engine->pool, request->blocks[i]);
    }
    request->block_count = hits;
    request->committed = hits;
    request->computed = hits * engine->options.block_size;
    KVB_TRY(grow_request(engine, request, tokens));
    return commit(engine, request, tokens);
}

/* After a preemption it starts again and finds its own blocks, which says nothing of the prompt. */
static void note_start(struct kvb_request *request, uint32_t hit_tokens)
{
    struct kvb_request_progress *progress = request->progress;

    if (progress && !progress->is_started) {
        progress->is_started = true;
        progress->cached_tokens = hit_tokens;
    }
}

/* Moves the oldest waiting request to the running ones.  KVB_AGAIN: no room. */
static kvb_status start_waiting(struct step *step)
{
    struct kvb_engine *engine = step->engine;
    struct kvb_request *request = engine->waiting[engine->waiting_at];
    const uint32_t hits = count_hits(engine, request);
    const uint32_t hit_tokens = hits * engine->options.block_size;
    const uint32_t more = smaller_token_count(request->token_count - hit_tokens, step->budget);
    const uint32_t fresh = blocks_for(engine, hit_tokens + more) - hits;

    if (request->reports && hits > 0) {
        KVB_TRY(announce_stored(engine, request, 0, hits));
    }
    if (free_blocks_wanted(engine, request, hits, fresh) >
        kvb_block_pool_free_count(engine->pool)) {
        return KVB_AGAIN;
    }
    const kvb_status status = start_request(engine, request, hits, hit_tokens + more);
    if (status != KVB_OK) {
        release_blocks(engine, request);
        return status;
    }
    request->scheduled = more;
    step->budget -= more;
    engine->sums.queried_tokens += request->token_count;
    engine->sums.hit_tokens += hit_tokens;
    note_start(request, hit_tokens);
    engine->waiting_at = (engine->waiting_at + 1) % engine->waiting_capacity;
    engine->waiting_count--;
    engine->running[engine->running_count++] = request;
    return KVB_OK;
}

static kvb_status schedule_requests(struct kvb_engine *engine)
{
    struct step step = { .engine = engine, .budget = engine->options.step_tokens };
    const uint64_t preemptions = engine->sums.preemptions;

    for (uint32_t at = 0; at < engine->running_count && step.budget > 0; at++) {
        KVB_TRY(continue_running(&step, at));
    }
    /* Like vLLM: a step that preempts a request admits none. */
    while (engine->sums.preemptions == preemptions && engine->waiting_count > 0 &&
           engine->running_count < engine->options.max_running && step.budget > 0) {
        const kvb_status status = start_waiting(&step);
        if (status == KVB_AGAIN) {
            break;
        }
        KVB_TRY(status);
    }
    return KVB_OK;
}

static void append_output(struct kvb_engine *engine, struct kvb_request *request)
{
    struct kvb_request_progress *progress = request->progress;
    const uint32_t token = (uint32_t)kvb_random_below(&engine->rng, kvb_fleet_vocabulary);

    kvb_request_append(request, token);
    if (progress) {
        progress->output[progress->output_count++] = token;
    }
}

/* True when the request is done. */
static bool run_request(struct kvb_engine *engine, struct kvb_request *request)
{
    const bool was_scheduled = request->scheduled > 0;

    request->computed += request->scheduled;
    request->scheduled = 0;
    if (was_scheduled && request->computed >= request->token_count) {
        append_output(engine, request);
    }
    return request->output_left == 0 || (request->progress && request->progress->is_abandoned);
}

static void run_model(struct kvb_engine *engine)
{
    uint32_t kept = 0;

    for (uint32_t at = 0; at < engine->running_count; at++) {
        struct kvb_request *request = engine->running[at];
        if (run_request(engine, request)) {
            release_blocks(engine, request);
            end_request(request);
            engine->sums.requests_finished++;
        } else {
            engine->running[kept++] = request;
        }
    }
    engine->running_count = kept;
}

static void hand_out(
    struct kvb_engine *engine, double now_s, const struct kvb_event_batch **out_batch,
    uint64_t *out_seq)
{
    engine->pending.timestamp_s = now_s;
    engine->pending.has_rank = true;
    engine->pending.rank = engine->options.rank;
    engine->is_handed = true;
    *out_batch = &engine->pending;
    *out_seq = engine->next_seq++;
}

kvb_status kvb_engine_step(
    struct kvb_engine *engine, double now_s, const struct kvb_event_batch **out_batch,
    uint64_t *out_seq)
{
    forget_handed(engine);
    const bool is_awake = engine->sleep <= KVB_SLEEP_AWAKE;
    if (!is_awake || (engine->running_count == 0 && engine->waiting_count == 0)) {
        return KVB_AGAIN;
    }

    const kvb_status status = schedule_requests(engine);
    run_model(engine);
    if (status != KVB_OK) {
        return status;
    }
    if (engine->pending.event_count == 0) {
        return KVB_AGAIN;
    }
    if (engine->losing > 0) {
        engine->losing--;
        engine->sums.lost++;
        kvb_event_batch_reset(&engine->pending);
        return KVB_AGAIN;
    }
    hand_out(engine, now_s, out_batch, out_seq);
    return KVB_OK;
}

/* ---- What happens to the process ---- */

kvb_status kvb_engine_reset_cache(struct kvb_engine *engine)
{
    forget_handed(engine);
    KVB_TRY(kvb_event_writer_cleared(&engine->pending));
    while (engine->running_count > 0) {
        preempt_last(engine);
    }
    kvb_block_pool_clear(engine->pool);
    return KVB_OK;
}

kvb_status kvb_engine_set_sleep(struct kvb_engine *engine, enum kvb_engine_sleep sleep)
{
    if (sleep == KVB_SLEEP_DISCARDED && engine->sleep != sleep) {
        KVB_TRY(kvb_engine_reset_cache(engine));
    }
    engine->sleep = sleep;
    return KVB_OK;
}

void kvb_engine_lose_events(struct kvb_engine *engine, uint64_t batches)
{
    engine->losing = batches;
}

void kvb_engine_restart(struct kvb_engine *engine, uint64_t seed)
{
    while (engine->running_count > 0) {
        preempt_last(engine);
    }
    forget_requests(engine);
    kvb_block_pool_clear(engine->pool);
    kvb_event_batch_reset(&engine->pending);
    engine->is_handed = false;
    engine->sleep = KVB_SLEEP_AWAKE;
    engine->losing = 0;
    engine->options.seed = seed;
    engine->rng = seed;
    engine->first_seq = engine->next_seq = engine->options.first_seq;
    engine->sums = (struct kvb_engine_stats){ 0 };
    if (engine->options.clears_first) {
        (void)kvb_event_writer_cleared(&engine->pending); /* its memory was reserved at the start */
    }
}

void kvb_engine_set_first_seq(struct kvb_engine *engine, uint64_t first_seq)
{
    engine->options.first_seq = first_seq;
}

uint64_t kvb_engine_take_seq(struct kvb_engine *engine)
{
    return engine->next_seq++;
}

void kvb_engine_set_time(struct kvb_engine *engine, uint64_t now_ns)
{
    engine->log.now_ns = now_ns;
}

const struct kvb_content_log *kvb_engine_log(const struct kvb_engine *engine)
{
    return &engine->log;
}

/* ---- What it says of itself ---- */

void kvb_engine_stats(const struct kvb_engine *engine, struct kvb_engine_stats *out_stats)
{
    const uint32_t usable = engine->options.blocks - 1;
    const uint32_t active = usable - kvb_block_pool_free_count(engine->pool);
    struct kvb_engine_stats stats = engine->sums;

    stats.batches = engine->next_seq - engine->first_seq;
    stats.is_asleep = engine->sleep == KVB_SLEEP_DISCARDED;
    stats.held_blocks = kvb_block_pool_filled_count(engine->pool);
    stats.load = (struct kvb_load){
        .request_active_slots = engine->running_count,
        .request_total_slots = engine->options.max_running,
        .kv_active_blocks = active,
        .kv_total_blocks = engine->options.blocks,
        .num_requests_waiting = engine->waiting_count,
        .gpu_cache_usage_perc = (float)((double)active / usable),
    };
    if (stats.queried_tokens > 0) {
        stats.load.gpu_prefix_cache_hit_rate =
            (float)((double)stats.hit_tokens / (double)stats.queried_tokens);
    }
    *out_stats = stats;
}

/* Numbers the nodes parents first, while it walks them in any order. */
struct lister {
    const struct kvb_prefix_tree *tree;
    uint32_t *position; /* of each node; kvb_no_parent: not listed yet */
    uint32_t *path;     /* a node and its unlisted ancestors, upwards */
    struct kvb_truth_block *blocks;
    uint32_t count;
};

static void list_one(struct lister *lister, uint32_t at)
{
    const struct kvb_prefix_node *node = &lister->tree->nodes[at];
    const bool is_root = node->parent == kvb_no_node;

    lister->position[at] = lister->count;
    lister->blocks[lister->count++] = (struct kvb_truth_block){
        .hash = node->hash,
        .tokens = kvb_prefix_tree_tokens(lister->tree, at),
        .salt = node->salt,
        .parent = is_root ? kvb_no_parent : lister->position[node->parent],
        .copies = node->copies,
    };
}

/* Every node is on one path once, so the walk is linear. */
static void list_path(struct lister *lister, uint32_t at)
{
    uint32_t length = 0;

    while (at != kvb_no_node && lister->position[at] == kvb_no_parent) {
        lister->path[length++] = at;
        at = lister->tree->nodes[at].parent;
    }
    while (length > 0) {
        list_one(lister, lister->path[--length]);
    }
}

static void list_all(struct lister *lister)
{
    for (uint32_t at = 0; at < lister->tree->capacity; at++) {
        lister->position[at] = kvb_no_parent;
    }
    for (uint32_t at = 0; at < lister->tree->capacity; at++) {
        if (lister->tree->nodes[at].copies > 0) {
            list_path(lister, at);
        }
    }
}

kvb_status kvb_engine_truth(const struct kvb_engine *engine, struct kvb_truth *out_truth)
{
    const struct kvb_prefix_tree *tree = kvb_block_pool_tree(engine->pool);
    struct lister lister = {
        .tree = tree,
        .position = calloc(tree->capacity, sizeof *lister.position),
        .path = calloc(tree->capacity, sizeof *lister.path),
        .blocks = calloc(tree->used + 1, sizeof *lister.blocks),
    };
    const bool has_memory = lister.position && lister.path && lister.blocks;

    if (has_memory) {
        list_all(&lister);
        *out_truth = (struct kvb_truth){
            .rank = engine->options.rank,
            .has_seq = engine->next_seq > engine->first_seq,
            .seq = engine->next_seq - (engine->next_seq > engine->first_seq),
            .unsent = engine->is_handed ? 0 : engine->pending.event_count,
            .block_size = engine->options.block_size,
            .count = lister.count,
            .blocks = lister.blocks,
        };
    } else {
        free(lister.blocks);
    }
    free(lister.position);
    free(lister.path);
    return has_memory ? KVB_OK : KVB_NO_MEMORY;
}

void kvb_truth_done(struct kvb_truth *truth)
{
    free(truth->blocks);
    *truth = (struct kvb_truth){ 0 };
}
