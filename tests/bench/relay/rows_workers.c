#include "core/clock.h"
#include "core/file_limit.h"
#include "core/own.h"
#include "rows.h"

#include <inttypes.h>
#include <stdio.h>

/* Each engine is a connection and a stream of its own, and holds few blocks; together
 * they send `batches_a_second`, whatever their number. */
enum {
    pool_blocks = 1 << 10,
    batches_a_second = 20000,
    turns = 5,
    max_files = 6000,
    name_bytes = 64
};

/* 10,000 engines would need 50,000 open files in the bridge and as many here. */
static const size_t numbers[] = { 10, 100, 1000 };

/* A bridge for each number.  All run at once and are measured in turns; the others wait in
 * poll(). */
struct crew {
    struct contender contender;
    double rest_ms; /* a second */
    double cpu_ns[turns];
    struct bench_usage used;
    uint64_t lost;
};

static kvb_status crew_begin(
    const struct relay_bench *bench, const struct script *script, size_t engines, struct crew *crew)
{
    const uint64_t rest_ns = (uint64_t)(bench->options.seconds / 9 * (double)KVB_NS_PER_S);

    bench_progress("starting protobuf with %zu engines", engines);
    KVB_TRY(contender_start(&bench->stage, contender_protobuf, engines, &crew->contender));
    KVB_TRY(measure_warm_up(&bench->stage, &crew->contender, script));
    return measure_rest(&bench->stage, &crew->contender, rest_ns, &crew->rest_ms);
}

static kvb_status take_turn(
    const struct relay_bench *bench, const struct script *script, size_t turn, struct crew *crew)
{
    const double turn_s = bench->options.seconds / (double)KVB_COUNT_OF(numbers) / turns;
    const struct run_options options = {
        .script = script,
        .batches_a_second = batches_a_second,
        .duration_ns = (uint64_t)(turn_s * (double)KVB_NS_PER_S),
    };
    const struct bench_usage began = bench_usage_of(crew->contender.pid);
    struct run_result result;

    KVB_TRY(measure_run(&bench->stage, &crew->contender, &options, &result));
    crew->used = bench_usage_plus(
        crew->used, bench_usage_between(began, bench_usage_of(crew->contender.pid)));
    crew->cpu_ns[turn] = result.cpu_ns;
    crew->lost += result.lost;
    return KVB_OK;
}

/* Against ten engines; a lost batch is a ratio of 0. */
static void print(size_t engines, const struct crew *crew, const struct crew *of_ten)
{
    static const double none[turns];
    const struct bench_turns cost = { .against = "10 engines",
                                      .ours = crew->cpu_ns,
                                      .theirs = crew->lost > 0 ? none : of_ten->cpu_ns,
                                      .count = turns,
                                      .is_less_better = true };
    char name[name_bytes];

    if (crew->lost > 0) {
        bench_progress("  LOST %" PRIu64 " batches", crew->lost);
    }
    bench_measured(crew->used);
    (void)snprintf(name, sizeof name, "relay.workers.%zu", engines);
    bench_figure_turns(name, &cost, "ns/batch");
    (void)snprintf(name, sizeof name, "relay.workers.%zu.rest", engines);
    bench_figure(name, crew->rest_ms, "ms/s");
}

static kvb_status
measure_crews(const struct relay_bench *bench, const struct script *script, struct crew *crews)
{
    for (size_t i = 0; i < KVB_COUNT_OF(numbers); i++) {
        KVB_TRY(crew_begin(bench, script, numbers[i], &crews[i]));
    }
    for (size_t turn = 0; turn < turns; turn++) {
        for (size_t i = 0; i < KVB_COUNT_OF(numbers); i++) {
            KVB_TRY(take_turn(bench, script, turn, &crews[i]));
        }
    }
    for (size_t i = 0; i < KVB_COUNT_OF(numbers); i++) {
        print(numbers[i], &crews[i], &crews[0]);
    }
    return KVB_OK;
}

kvb_status rows_workers(struct relay_bench *bench)
{
    KVB_OWN(script_done) struct script script = { .count = 0 };
    struct crew crews[KVB_COUNT_OF(numbers)] = { 0 };

    if (!bench_wants(&bench->options, "relay.workers")) {
        return KVB_OK;
    }
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = pool_blocks, .seed = 4 },
        &script));
    (void)kvb_file_limit_raise(max_files);
    const kvb_status status = measure_crews(bench, &script, crews);
    for (size_t i = 0; i < KVB_COUNT_OF(numbers); i++) {
        contender_stop(&crews[i].contender);
    }
    return status;
}
