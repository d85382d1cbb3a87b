#include "core/random.h"
#include "kvfleet/engine/event_writer.h"
#include "kvfleet/engine/inside.h"

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
        kvb_engine_preempt_last(engine);
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
        kvb_engine_release(engine, request);
        return status;
    }
    request->scheduled = more;
    step->budget -= more;
    engine->sums.queried_tokens += request->token_count;
    engine->sums.hit_tokens += hit_tokens;
    engine->waiting_at = (engine->waiting_at + 1) % engine->waiting_capacity;
    engine->waiting_count--;
    engine->running[engine->running_count++] = request;
    return KVB_OK;
}

kvb_status kvb_engine_schedule(struct kvb_engine *engine)
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

/* True when the request is done. */
static bool run_request(struct kvb_engine *engine, struct kvb_request *request)
{
    const bool was_scheduled = request->scheduled > 0;

    request->computed += request->scheduled;
    request->scheduled = 0;
    if (!was_scheduled || request->computed < request->token_count) {
        return false;
    }
    kvb_request_append(request, (uint32_t)kvb_random_below(&engine->dice, kvb_fleet_vocabulary));
    return request->output_left == 0;
}

void kvb_engine_run_model(struct kvb_engine *engine)
{
    uint32_t kept = 0;

    for (uint32_t at = 0; at < engine->running_count; at++) {
        struct kvb_request *request = engine->running[at];
        if (run_request(engine, request)) {
            kvb_engine_release(engine, request);
            kvb_request_free(request);
            engine->sums.requests_finished++;
        } else {
            engine->running[kept++] = request;
        }
    }
    engine->running_count = kept;
}
