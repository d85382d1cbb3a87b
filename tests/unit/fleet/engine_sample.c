#include "fleet/engine_sample.h"

#include "kvb_test.h"

const struct kvb_engine_options plain_engine = {
    .rank = 3,
    .blocks = 65,
    .block_size = block_size,
    .max_running = 8,
    .max_waiting = 32,
    .step_tokens = 64,
    .seed = 7,
};

struct kvb_engine *engine_with(const struct kvb_engine_options *options)
{
    struct kvb_engine *engine = NULL;

    assert_ok(kvb_engine_new(options, &engine));
    return engine;
}

void admit(struct kvb_engine *engine, uint32_t first, uint32_t count, uint32_t output)
{
    uint32_t tokens[1024];

    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = first + i;
    }
    assert_ok(kvb_engine_admit(engine, tokens, count, output));
}

void run_dry(struct kvb_engine *engine, struct kvb_reader *reader)
{
    struct kvb_engine_stats stats = { .load.request_active_slots = 1 };

    while (stats.load.request_active_slots + stats.load.num_requests_waiting > 0) {
        const struct kvb_event_batch *batch = NULL;
        uint64_t seq = 0;
        if (kvb_engine_step(engine, 0, &batch, &seq) == KVB_OK && reader) {
            kvb_reader_apply(reader, batch);
        }
        kvb_engine_stats(engine, &stats);
    }
}

void assert_no_block_in_use(const struct kvb_engine *engine)
{
    struct kvb_engine_stats stats = { 0 };

    kvb_engine_stats(engine, &stats);
    assert_int_equal(stats.load.kv_active_blocks, 0);
}

struct kvb_truth truth_of(const struct kvb_engine *engine)
{
    struct kvb_truth truth = { 0 };

    assert_ok(kvb_engine_truth(engine, &truth));
    return truth;
}
