#include "core/clock.h"
#include "core/own.h"
#include "rows.h"

/* One engine that stores a script without an end, and 256 engines that hold next to
 * nothing: the growth of the resident memory is theirs. */
enum { max_blocks = 1 << 20, blocks_a_second = 1 << 18, blocks_per_batch = 8, engines = 256 };

static const uint64_t patience_ns = 60 * KVB_NS_PER_S;

static kvb_status make_script(const struct relay_bench *bench, struct script *out_script)
{
    const double wanted = bench->options.seconds * blocks_a_second;
    const size_t blocks = wanted < max_blocks ? (size_t)wanted : max_blocks;

    return script_make(
        &(struct script_options){ .blocks_per_batch = blocks_per_batch,
                                  .pool_blocks = blocks / blocks_per_batch * blocks_per_batch,
                                  .seed = 5 },
        out_script);
}

/* The memory of a bridge of so many engines, each of which has sent a batch and holds next to
 * nothing. */
static kvb_status measure_idle(
    const struct relay_bench *bench, const struct script *script, size_t count,
    struct contender *contender, uint64_t *out_bytes)
{
    KVB_TRY(contender_start(&bench->stage, contender_protobuf, count, contender));
    KVB_TRY(measure_warm_up(&bench->stage, contender, script));
    *out_bytes = contender_resident_bytes(contender);
    return KVB_OK;
}

/* From the script's beginning, so that it holds each block once; no faster than it reads, or the
 * batches that wait in its sockets would count as memory of the blocks. */
static kvb_status
fill(const struct relay_bench *bench, struct contender *contender, const struct script *script)
{
    const struct run_options options = { .script = script,
                                         .batches_a_second = blocks_a_second / blocks_per_batch,
                                         .max_kept_batches = script->count,
                                         .duration_ns = patience_ns };
    struct run_result result = { .lost = 0 };

    contender->script = NULL;
    KVB_TRY(measure_run(&bench->stage, contender, &options, &result));
    return result.lost == 0 && result.batches == script->count ? KVB_OK : KVB_AGAIN;
}

kvb_status rows_memory(struct relay_bench *bench)
{
    KVB_OWN(script_done) struct script script = { .count = 0 };
    KVB_OWN(contender_stop) struct contender one = { .pid = 0 };
    KVB_OWN(contender_stop) struct contender many = { .pid = 0 };
    uint64_t one_bytes = 0;
    uint64_t many_bytes = 0;

    if (!bench_wants(&bench->options, "relay.memory")) {
        return KVB_OK;
    }
    KVB_TRY(make_script(bench, &script));
    bench_progress("memory: %zu blocks", script.block_count);
    KVB_TRY(measure_idle(bench, &script, 1, &one, &one_bytes));
    bench_measure(one.pid);
    KVB_TRY(fill(bench, &one, &script));
    const uint64_t full_bytes = contender_resident_bytes(&one);
    bench_figure(
        "relay.memory.block", ((double)full_bytes - (double)one_bytes) / (double)script.block_count,
        "bytes");
    contender_stop(&one);

    bench_progress("memory: %d engines", engines);
    KVB_TRY(measure_idle(bench, &script, engines, &many, &many_bytes));
    bench_measured(bench_usage_of(many.pid)); /* since its start */
    bench_figure(
        "relay.memory.connection", ((double)many_bytes - (double)one_bytes) / (engines - 1),
        "bytes");
    return KVB_OK;
}
