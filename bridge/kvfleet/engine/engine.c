#include "kvfleet/engine/engine.h"

#include "core/random.h"
#include "kvfleet/engine/event_writer.h"
#include "kvfleet/engine/inside.h"

#include <stdlib.h>

static bool is_probability(double value)
{
    return value >= 0 && value <= 1;
}

static bool options_fit(const struct kvb_engine_options *options)
{
    return options->max_running > 0 && options->max_running <= 1 << 16 &&
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
    engine->dice = options->seed;
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

static void forget_requests(struct kvb_engine *engine)
{
    for (uint32_t i = 0; i < engine->running_count; i++) {
        kvb_request_free(engine->running[i]);
    }
    for (uint32_t i = 0; i < engine->waiting_count; i++) {
        kvb_request_free(*waiting_place(engine, i));
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
    request->reports = kvb_random_chance(&engine->dice, engine->options.report_probability);
    request->bypasses = kvb_random_chance(&engine->dice, engine->options.bypass_probability);
    *waiting_place(engine, engine->waiting_count++) = request;
    return KVB_OK;
}

void kvb_engine_set_salt(struct kvb_engine *engine, const char *salt)
{
    engine->salt = salt;
}

void kvb_engine_begin(struct kvb_engine *engine)
{
    if (engine->is_handed) {
        kvb_event_batch_reset(&engine->pending);
        engine->is_handed = false;
    }
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
    kvb_engine_begin(engine);
    if (engine->running_count == 0 && engine->waiting_count == 0) {
        return KVB_AGAIN;
    }

    const kvb_status status = kvb_engine_schedule(engine);
    kvb_engine_run_model(engine);
    if (status != KVB_OK) {
        return status;
    }
    if (engine->pending.event_count == 0) {
        return KVB_AGAIN;
    }
    hand_out(engine, now_s, out_batch, out_seq);
    return KVB_OK;
}

void kvb_engine_release(struct kvb_engine *engine, struct kvb_request *request)
{
    while (request->block_count > 0) {
        kvb_block_pool_release(engine->pool, request->blocks[--request->block_count]);
    }
    request->computed = 0;
    request->scheduled = 0;
    request->committed = 0;
}

void kvb_engine_preempt_last(struct kvb_engine *engine)
{
    struct kvb_request *request = engine->running[--engine->running_count];

    kvb_engine_release(engine, request);
    engine->waiting_at =
        (engine->waiting_at + engine->waiting_capacity - 1) % engine->waiting_capacity;
    engine->waiting_count++;
    *waiting_place(engine, 0) = request;
    engine->sums.preemptions++;
}

kvb_status kvb_engine_reset_cache(struct kvb_engine *engine)
{
    kvb_engine_begin(engine);
    KVB_TRY(kvb_event_writer_cleared(&engine->pending));
    while (engine->running_count > 0) {
        kvb_engine_preempt_last(engine);
    }
    kvb_block_pool_clear(engine->pool);
    return KVB_OK;
}

void kvb_engine_restart(struct kvb_engine *engine, uint64_t seed)
{
    while (engine->running_count > 0) {
        kvb_engine_preempt_last(engine);
    }
    forget_requests(engine);
    kvb_block_pool_clear(engine->pool);
    kvb_event_batch_reset(&engine->pending);
    engine->is_handed = false;
    engine->options.seed = seed;
    engine->dice = seed;
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

void kvb_engine_stats(const struct kvb_engine *engine, struct kvb_engine_stats *out_stats)
{
    const uint32_t usable = engine->options.blocks - 1;
    const uint32_t active = usable - kvb_block_pool_free_count(engine->pool);
    struct kvb_engine_stats stats = engine->sums;

    stats.batches = engine->next_seq - engine->first_seq;
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
