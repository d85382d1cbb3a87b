#include "fleet/fleet_scene.h"

#include "core/clock.h"
#include "fleet/truth_commands.h"
#include "kvb_test.h"

#include <stdio.h>

enum { tick_ms = 20 };

static kvb_status collect(void *context, struct kvb_buf *out)
{
    struct fixture *fixture = context;

    KVB_TRY(kvb_buf_append(&fixture->said, out->data, out->len));
    kvb_buf_reset(out);
    return KVB_OK;
}

/* The whole answer as a string, valid until the next one. */
const char *say(struct fixture *fixture, const char *command)
{
    struct kvb_truth_session session = {
        .fleet = fixture->fleet, .out = &fixture->out, .send = collect, .context = fixture
    };
    char line[256];

    (void)snprintf(line, sizeof line, "%s", command);
    kvb_buf_reset(&fixture->said);
    assert_ok(kvb_truth_run(&session, line));
    assert_ok(kvb_buf_append(&fixture->said, "", 1));
    return (const char *)fixture->said.data;
}

static struct kvb_fleet_options sample_options(const struct fixture *fixture)
{
    return (struct kvb_fleet_options){
        .first_worker = 7,
        .workers = workers,
        .ranks = ranks,
        .dialects = { KVB_DIALECT_VLLM_0_11, KVB_DIALECT_VLLM_0_22, KVB_DIALECT_VLLM_0_31 },
        .dialect_count = 3,
        .address = "127.0.0.1",
        .engine = { .blocks = 256,
                    .block_size = 16,
                    .max_running = 8,
                    .max_waiting = 8,
                    .step_tokens = 1024 },
        .replay_batches = 100,
        .trace = fixture->trace,
        .requests_per_s = 50,
        .seed = 3,
    };
}

struct kvb_fleet_options begin_set_up(struct fixture *fixture)
{
    struct kvb_detail detail = { 0 };

    *fixture = (struct fixture){ .now_ns = KVB_NS_PER_S };
    kvb_buf_init(&fixture->said, 1 << 24);
    kvb_buf_init(&fixture->out, 1 << 24);
    assert_ok(kvb_trace_load(KVB_DATA "/conversation_trace.jsonl", 64, &detail, &fixture->trace));
    return sample_options(fixture);
}

void set_up_with(
    struct fixture *fixture, uint64_t max_requests, uint32_t count, uint32_t log_changes)
{
    struct kvb_fleet_options options = begin_set_up(fixture);

    options.max_requests = max_requests;
    options.workers = count;
    options.engine.log_changes = log_changes;
    assert_ok(kvb_fleet_new(&options, NULL, &fixture->fleet));
}

void set_up(struct fixture *fixture, uint64_t max_requests)
{
    set_up_with(fixture, max_requests, workers, 0);
}

void tear_down(struct fixture *fixture)
{
    kvb_fleet_free(fixture->fleet);
    kvb_trace_free(fixture->trace);
    kvb_buf_done(&fixture->said);
    kvb_buf_done(&fixture->out);
}

void tick(struct fixture *fixture, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        assert_ok(kvb_fleet_tick(fixture->fleet, fixture->now_ns));
        fixture->now_ns += tick_ms * KVB_NS_PER_MS;
    }
}

struct kvb_fleet_totals totals_of(const struct fixture *fixture)
{
    struct kvb_fleet_totals totals = { 0 };

    kvb_fleet_totals(fixture->fleet, &totals);
    return totals;
}

struct kvb_fleet_rank_state state_of(const struct fixture *fixture, size_t at)
{
    struct kvb_fleet_rank_state state = { 0 };

    kvb_fleet_rank_state(fixture->fleet, at, &state);
    return state;
}
