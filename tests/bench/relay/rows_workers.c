#include "core/clock.h"
#include "core/own.h"
#include "rows.h"

#include <inttypes.h>
#include <stdio.h>

/* Each engine is a connection and a stream of its own, and holds few blocks; together
 * they say `batches_a_second`, whatever their number. */
enum { pool_blocks = 1 << 10, batches_a_second = 20000, name_bytes = 64 };

/* 10,000 engines would need 50,000 open files in the bridge and as many here. */
static const size_t numbers[] = { 10, 100, 1000 };

struct cost {
    struct run_result run;
    double rest_ms; /* a second */
};

static kvb_status measure_number(
    const struct relay_bench *bench, const struct script *script, size_t engines,
    struct cost *out_cost)
{
    KVB_OWN(contender_stop) struct contender contender = { .pid = 0 };
    const struct run_options options = {
        .script = script,
        .batches_a_second = batches_a_second,
        .duration_ns = (uint64_t)(bench->options.seconds / 3 * (double)KVB_NS_PER_S),
    };

    bench_progress("starting protobuf with %zu engines", engines);
    KVB_TRY(contender_start(&bench->stage, contender_protobuf, engines, &contender));
    KVB_TRY(measure_warm_up(&bench->stage, &contender, script));
    KVB_TRY(measure_rest(&bench->stage, &contender, options.duration_ns / 3, &out_cost->rest_ms));
    return measure_run(&bench->stage, &contender, &options, &out_cost->run);
}

static void print(size_t engines, const struct cost *cost, const struct cost *of_ten)
{
    char name[name_bytes];

    if (cost->run.lost > 0) {
        bench_progress("  LOST %" PRIu64 " batches", cost->run.lost);
    }
    (void)snprintf(name, sizeof name, "relay.workers.%zu", engines);
    bench_figure_against(
        name, cost->run.cpu_ns, "ns/batch", "10 engines", of_ten->run.cpu_ns,
        cost->run.lost > 0 ? 0 : of_ten->run.cpu_ns / cost->run.cpu_ns);
    (void)snprintf(name, sizeof name, "relay.workers.%zu.rest", engines);
    bench_figure(name, cost->rest_ms, "ms/s");
}

kvb_status rows_workers(struct relay_bench *bench)
{
    KVB_OWN(script_done) struct script script = { .count = 0 };
    struct cost costs[KVB_COUNT_OF(numbers)];

    if (!bench_wants(&bench->options, "relay.workers")) {
        return KVB_OK;
    }
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = pool_blocks, .seed = 4 },
        &script));
    for (size_t i = 0; i < KVB_COUNT_OF(numbers); i++) {
        KVB_TRY(measure_number(bench, &script, numbers[i], &costs[i]));
        print(numbers[i], &costs[i], &costs[0]);
    }
    return KVB_OK;
}
