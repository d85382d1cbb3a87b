#include "worth/engine.h"

#include "parts/bench.h"

#include <stdlib.h>

void worth_engine_init(struct worth_engine *engine, const struct worth_rates *rates)
{
    const uint32_t blocks = rates->pool_blocks;

    *engine = (struct worth_engine){ .rates = *rates };
    /* one more than can be used, and no tokens: a block is its name */
    bench_must(kvb_block_pool_new(blocks + 1, 0, &engine->pool), "an engine's pool");
    engine->running = bench_memory(rates->slots, sizeof(struct worth_request *));
    engine->waiting_end = &engine->waiting;
    engine->step.stored = bench_memory(rates->slots, sizeof *engine->step.stored);
    engine->step.removed = bench_memory(blocks, sizeof *engine->step.removed);
    engine->step.first_tokens = bench_memory(rates->slots, sizeof(struct worth_request *));
    engine->step.finished = bench_memory(rates->slots, sizeof(struct worth_request *));
}

void worth_engine_done(struct worth_engine *engine)
{
    for (uint32_t i = 0; i < engine->running_count; i++) {
        free(engine->running[i]->places);
    }
    kvb_block_pool_free(engine->pool);
    kvb_event_batch_done(&engine->evictions);
    free((void *)engine->running);
    free(engine->step.stored);
    free(engine->step.removed);
    free((void *)engine->step.first_tokens);
    free((void *)engine->step.finished);
}

uint32_t worth_prompt_blocks(const struct worth_request *request)
{
    return request->input_tokens / worth_block_tokens;
}

uint32_t worth_all_blocks(const struct worth_request *request)
{
    return (request->input_tokens + request->output_tokens + worth_block_tokens - 1) /
           worth_block_tokens;
}

bool worth_engine_send(struct worth_engine *engine, struct worth_request *request)
{
    if (worth_all_blocks(request) > engine->rates.pool_blocks) {
        return false;
    }
    request->next = NULL;
    *engine->waiting_end = request;
    engine->waiting_end = &request->next;
    engine->waiting_count++;
    return true;
}

/* ---- The pool ---- */

uint32_t worth_engine_blocks_in_use(const struct worth_engine *engine)
{
    return engine->rates.pool_blocks - kvb_block_pool_free_count(engine->pool);
}

static uint32_t find(const struct worth_engine *engine, kvb_block_hash block)
{
    return kvb_block_pool_find(engine->pool, (kvb_engine_hash){ block.value });
}

bool worth_engine_holds(const struct worth_engine *engine, kvb_block_hash block)
{
    return find(engine, block) != kvb_no_block;
}

/* For a block that is still to be computed: no look-up finds it.  Room was checked before.  What
 * is evicted for it is noted as removed, unless another copy of it is there. */
static uint32_t take_place(struct worth_engine *engine)
{
    struct worth_step *step = &engine->step;
    uint32_t place = 0;

    kvb_event_batch_reset(&engine->evictions);
    bench_must(kvb_block_pool_take(engine->pool, &engine->evictions, &place), "an engine's pool");
    if (engine->evictions.event_count > 0) {
        const kvb_block_hash evicted = { engine->evictions.hashes[0].value };
        if (!worth_engine_holds(engine, evicted)) {
            step->removed[step->removed_count++] = evicted;
        }
    }
    return place;
}

/* Blocks at the beginning of the prompt that can be reused; the last token is always computed. */
static uint32_t match(const struct worth_engine *engine, const struct worth_request *request)
{
    const uint32_t prompt_blocks = worth_prompt_blocks(request);
    uint32_t hits = 0;

    while (hits < prompt_blocks && worth_engine_holds(engine, request->blocks[hits])) {
        hits++;
    }
    return hits > 0 && hits * worth_block_tokens == request->input_tokens ? hits - 1 : hits;
}

static bool
has_room(const struct worth_engine *engine, const struct worth_request *request, uint32_t hits)
{
    uint32_t needed = worth_all_blocks(request) - hits;

    for (uint32_t i = 0; i < hits; i++) {
        needed += kvb_block_pool_is_free(engine->pool, find(engine, request->blocks[i]));
    }
    return needed <= kvb_block_pool_free_count(engine->pool);
}

static void reserve(struct worth_engine *engine, struct worth_request *request, uint32_t hits)
{
    const uint32_t all_blocks = worth_all_blocks(request);

    request->places = bench_memory(all_blocks, sizeof *request->places);
    for (uint32_t i = 0; i < hits; i++) {
        request->places[i] = find(engine, request->blocks[i]);
        kvb_block_pool_hold(engine->pool, request->places[i]);
    }
    for (uint32_t i = hits; i < all_blocks; i++) {
        request->places[i] = take_place(engine);
    }
    request->hit_blocks = hits;
    request->full_blocks = hits;
    request->computed_tokens = hits * worth_block_tokens;
    request->produced_tokens = 0;
}

/* The last block is released first, so that it is evicted first: the others are useful without it.
 */
static void release(struct worth_engine *engine, struct worth_request *request)
{
    for (uint32_t i = worth_all_blocks(request); i > 0; i--) {
        kvb_block_pool_release(engine->pool, request->places[i - 1]);
    }
    free(request->places);
    request->places = NULL;
}

/* ---- A step ---- */

static void note_full_blocks(struct worth_engine *engine, struct worth_request *request)
{
    struct worth_step *step = &engine->step;
    const uint32_t first = request->full_blocks;
    const uint32_t end = request->computed_tokens / worth_block_tokens;

    if (end == first) {
        return;
    }
    for (uint32_t i = first; i < end; i++) {
        const struct kvb_block_content content = { .hash = { request->blocks[i].value } };
        const uint32_t before = i > 0 ? request->places[i - 1] : kvb_no_block;
        bench_must(
            kvb_block_pool_fill(engine->pool, request->places[i], before, &content),
            "an engine's pool");
    }
    request->full_blocks = end;
    step->stored[step->stored_count++] =
        (struct worth_stored){ .request = request, .first = first, .count = end - first };
}

static uint32_t compute(struct worth_engine *engine, struct worth_request *request, uint32_t budget)
{
    const bool is_decoding = request->computed_tokens >= request->input_tokens;
    const uint32_t left = is_decoding ? 1 : request->input_tokens - request->computed_tokens;
    const uint32_t tokens = left < budget ? left : budget;

    request->computed_tokens += tokens;
    if (tokens > 0 && request->computed_tokens >= request->input_tokens) {
        request->produced_tokens++;
    }
    note_full_blocks(engine, request);
    return tokens;
}

struct work {
    uint32_t budget;
    uint64_t prefill_tokens, decode_tokens;
};

static void compute_running(struct worth_engine *engine, bool is_decoding, struct work *work)
{
    for (uint32_t i = 0; i < engine->running_count; i++) {
        struct worth_request *request = engine->running[i];
        if ((request->produced_tokens > 0) == is_decoding) {
            const uint32_t tokens = compute(engine, request, work->budget);
            *(is_decoding ? &work->decode_tokens : &work->prefill_tokens) += tokens;
            work->budget -= tokens;
        }
    }
}

static bool admit_next(struct worth_engine *engine)
{
    struct worth_request *request = engine->waiting;

    if (!request || engine->running_count == engine->rates.slots) {
        return false;
    }
    const uint32_t hits = match(engine, request);
    if (!has_room(engine, request, hits)) {
        return false;
    }
    engine->waiting = request->next;
    engine->waiting_end = engine->waiting ? engine->waiting_end : &engine->waiting;
    engine->waiting_count--;
    reserve(engine, request, hits);
    engine->running[engine->running_count++] = request;
    return true;
}

static void clear_step(struct worth_step *step)
{
    step->stored_count = 0;
    step->removed_count = 0;
    step->first_token_count = 0;
    step->finished_count = 0;
}

bool worth_engine_begin_step(struct worth_engine *engine, uint64_t now_us)
{
    const struct worth_rates *rates = &engine->rates;
    struct work work = { .budget = rates->step_tokens };

    if (engine->is_stepping || (engine->running_count == 0 && !engine->waiting)) {
        return false;
    }
    clear_step(&engine->step);
    compute_running(engine, true, &work);
    compute_running(
        engine, false, &work); /* one whose prefill ends here decodes from the next on */
    while (work.budget > 0 && admit_next(engine)) {
        const uint32_t tokens =
            compute(engine, engine->running[engine->running_count - 1], work.budget);
        work.prefill_tokens += tokens;
        work.budget -= tokens;
    }
    const uint64_t took_us = rates->step_us + work.decode_tokens * rates->decode_us +
                             work.prefill_tokens * 1000000 / rates->prefill_tokens_per_s;
    engine->step.end_us = now_us + took_us;
    engine->busy_us += took_us;
    engine->is_stepping = true;
    return true;
}

const struct worth_step *worth_engine_end_step(struct worth_engine *engine)
{
    struct worth_step *step = &engine->step;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < engine->running_count; i++) {
        struct worth_request *request = engine->running[i];
        if (request->produced_tokens == 1 && request->first_token_us == 0) {
            request->first_token_us = step->end_us;
            step->first_tokens[step->first_token_count++] = request;
        }
        if (request->produced_tokens == request->output_tokens) {
            release(engine, request);
            step->finished[step->finished_count++] = request;
        } else {
            engine->running[kept++] = request;
        }
    }
    engine->running_count = kept;
    engine->is_stepping = false;
    return step;
}
