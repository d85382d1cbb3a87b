#include "core/clock.h"
#include "core/file_limit.h"
#include "core/own.h"
#include "rows.h"

#include <inttypes.h>

/* As many workers as a bridge takes, each with two ranks; every rank is a PUB socket.  All of them
 * are in this process, which spends little on each: libzmq's thread answers the bridge's pings,
 * and one thread sends. */
enum {
    publishers = 2048,
    ranks_a_worker = 2,
    batches_a_second_each = 5,
    pool_blocks = 1 << 10,
    files_a_publisher = 4,
    spare_files = 512
};

struct figures {
    size_t publishers;
    double idle_percent; /* of a core */
    double intake_percent;
    struct run_result run;
};

static double percent_of_core(const struct run_result *run)
{
    return run->cpu_ns * run->batches_a_second / 1e7;
}

static kvb_status measure_publishers(
    const struct relay_bench *bench, const struct stage *stage, const struct script *script,
    struct figures *out_figures)
{
    KVB_OWN(contender_stop) struct contender contender = { .pid = 0 };
    const struct run_options options = {
        .script = script,
        .batches_a_second = batches_a_second_each * out_figures->publishers,
        .duration_ns = (uint64_t)(bench->options.seconds * (double)KVB_NS_PER_S),
    };
    double idle_ms = 0;

    KVB_TRY(contender_start(stage, contender_protobuf, out_figures->publishers, &contender));
    KVB_TRY(measure_warm_up(stage, &contender, script));
    const struct bench_usage began = bench_usage_of(contender.pid);
    KVB_TRY(measure_rest(stage, &contender, options.duration_ns, &idle_ms));
    KVB_TRY(measure_run(stage, &contender, &options, &out_figures->run));
    bench_measured(bench_usage_between(began, bench_usage_of(contender.pid)));
    out_figures->idle_percent = idle_ms / 10;
    out_figures->intake_percent = percent_of_core(&out_figures->run);
    bench_progress(
        "%zu publishers: %.0f batches/s, %.0f ns of the bridge for each, p99 %.0f us; %zu open "
        "files, %.0f MB",
        out_figures->publishers, out_figures->run.batches_a_second, out_figures->run.cpu_ns,
        out_figures->run.p99_us, contender_open_files(&contender),
        (double)contender_resident_bytes(&contender) / 1e6);
    if (out_figures->run.lost > 0) {
        bench_progress("  LOST %" PRIu64 " of them", out_figures->run.lost);
        return KVB_AGAIN;
    }
    return KVB_OK;
}

kvb_status rows_publishers(struct relay_bench *bench)
{
    KVB_OWN(script_done) struct script script = { .count = 0 };
    struct stage stage = bench->stage; /* borrowed; with workers of its own kind */
    struct figures figures = { .publishers = bench_size(&bench->options, publishers) /
                                             ranks_a_worker * ranks_a_worker };

    if (!bench_wants(&bench->options, "scale.publishers")) {
        return KVB_OK;
    }
    stage.ranks = ranks_a_worker;
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = pool_blocks, .seed = 6 },
        &script));
    (void)kvb_file_limit_raise(files_a_publisher * figures.publishers + spare_files);
    bench_progress("starting protobuf with %zu publishers", figures.publishers);
    KVB_TRY(measure_publishers(bench, &stage, &script, &figures));
    bench_figure("scale.publishers.idle", figures.idle_percent, "% of a core");
    bench_figure("scale.publishers.intake", figures.intake_percent, "% of a core");
    return KVB_OK;
}
