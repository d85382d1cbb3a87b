#include "core/own.h"
#include "rows.h"

#include <stdio.h>

enum { pool_blocks = 1 << 16, name_bytes = 64 };

/* The rate that has goals has no number in the names of its figures. */
static const struct {
    uint64_t batches_a_second;
    const char *name;
} rates[] = {
    { 1000, "relay.latency.1000" },
    { 10000, "relay.latency" },
    { 50000, "relay.latency.50000" },
};

static double pick_p50(const struct run_result *result)
{
    return result->p50_us;
}

static double pick_p99(const struct run_result *result)
{
    return result->p99_us;
}

static void
print_row(const struct results *results, const char *rate, const char *tail, picker pick)
{
    const struct field_figure figure = { .ours = contender_protobuf,
                                         .against = contender_pass_through,
                                         .pick = pick,
                                         .unit = "us",
                                         .is_less_better = true };
    char name[name_bytes];

    (void)snprintf(name, sizeof name, "%s.%s", rate, tail);
    field_say(results, name, &figure);
}

static bool wants(const struct relay_bench *bench, const char *rate)
{
    char p50[name_bytes];
    char p99[name_bytes];

    (void)snprintf(p50, sizeof p50, "%s.p50", rate);
    (void)snprintf(p99, sizeof p99, "%s.p99", rate);
    return bench_wants(&bench->options, p50) || bench_wants(&bench->options, p99);
}

static bool wants_any(const struct relay_bench *bench)
{
    bool is_any = false;

    for (size_t i = 0; i < KVB_COUNT_OF(rates); i++) {
        is_any |= wants(bench, rates[i].name);
    }
    return is_any;
}

static kvb_status run_rate(
    const struct relay_bench *bench, struct field *field, const struct script *script, size_t i)
{
    const struct run_options options = { .script = script,
                                         .batches_a_second = rates[i].batches_a_second };
    struct results results;

    KVB_TRY(field_run(bench, field, rates[i].name, &options, &results));
    print_row(&results, rates[i].name, "p50", pick_p50);
    print_row(&results, rates[i].name, "p99", pick_p99);
    return KVB_OK;
}

kvb_status rows_latency(struct relay_bench *bench)
{
    static const bool is_wanted[contender_kinds] = {
        [contender_pass_through] = true, [contender_protobuf] = true, [contender_python] = true
    };
    KVB_OWN(script_done) struct script script = { .count = 0 };
    KVB_OWN(field_stop) struct field field = { .runs = { false } };

    if (!wants_any(bench)) {
        return KVB_OK;
    }
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = pool_blocks, .seed = 3 },
        &script));
    KVB_TRY(field_start(bench, is_wanted, &script, &field));
    for (size_t i = 0; i < KVB_COUNT_OF(rates); i++) {
        if (wants(bench, rates[i].name)) {
            KVB_TRY(run_rate(bench, &field, &script, i));
        }
    }
    return KVB_OK;
}
