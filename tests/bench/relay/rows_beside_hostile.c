#include "bridge_page.h"
#include "core/clock.h"
#include "core/own.h"
#include "hostile.h"
#include "rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <zmq.h>

/* Two engines of one bridge.  The first one's batches are measured, at a rate that costs next to
 * nothing.  The second one is hostile, and silent for a fifth of the row: the latency of that time
 * is printed beside the figure.  The two share no socket and no I/O thread, because ZeroMQ would
 * otherwise send the first one's batches behind the other's megabytes.
 *
 * A scene is sent each second, because one that is sent every 10 s could delay 1 % of the batches
 * without affecting their p99. */
enum {
    good = 0,
    bad = 1,
    engines = 2,
    good_worker = 1, /* of the engines' ids, which begin with 1 */
    pool_blocks = 1 << 10,
    batches_a_second = 200,
    quiet_parts = 5, /* one part of so many is without the hostile engine */
    taken_ms = 5000,
    max_page_bytes = 4 << 20,
    name_bytes = 64,
};

/* What the bridge has done with the hostile engine's batches. */
struct account {
    uint64_t applied; /* batches */
    uint64_t unread;
    uint64_t quarantines;
};

struct beside {
    const struct relay_bench *bench;
    enum hostile_kind kind;
    struct contender contender;
    struct script script; /* the measured engine's */
    struct script scene;
    struct account account;
    struct run_result quiet;
    struct run_result result;
    uint64_t scenes_sent;
};

/* ---- The bridge's counters ---- */

/* The page counts both engines' batches; those of the measured one have all arrived by then. */
static kvb_status read_account(const struct contender *contender, struct account *out_account)
{
    const uint64_t others = contender->engines[good].next_seq;
    KVB_OWN(kvb_buf_done) struct kvb_buf page;

    kvb_buf_init(&page, max_page_bytes);
    KVB_TRY(bridge_page_fetch(contender->http_port, &page));
    const uint64_t applied = bridge_page_value(&page, "kvb_batches_applied_total");
    *out_account = (struct account){
        .applied = applied > others ? applied - others : 0,
        .unread = bridge_page_value(&page, "kvb_batches_unread_total"),
        .quarantines = bridge_page_value(&page, "kvb_quarantines_total"),
    };
    return KVB_OK;
}

static uint64_t hostile_sent(const struct beside *beside)
{
    return beside->scenes_sent * beside->scene.count;
}

static bool is_all_applied(void *context)
{
    struct beside *beside = context;

    return read_account(&beside->contender, &beside->account) == KVB_OK &&
           beside->account.applied >= hostile_sent(beside);
}

/* ---- Measuring ---- */

/* The same bridge, with the measured engine alone: borrowed. */
static struct contender good_of(const struct contender *contender)
{
    struct contender view = *contender;

    view.engine_count = 1;
    return view;
}

static kvb_status
measure_beside(struct beside *beside, const struct stage *stage, struct run_options *options)
{
    struct contender view = good_of(&beside->contender);
    struct hostile hostile = { .engine = &beside->contender.engines[bad],
                               .script = &beside->scene };
    const double quiet_s = beside->bench->options.seconds / quiet_parts;

    KVB_TRY(measure_warm_up(stage, &view, &beside->script));
    options->duration_ns = (uint64_t)(quiet_s * (double)KVB_NS_PER_S);
    KVB_TRY(measure_run(stage, &view, options, &beside->quiet));
    options->duration_ns *= quiet_parts - 1;
    hostile.duration_ns = options->duration_ns;
    const struct bench_usage began = bench_usage_of(view.pid);
    KVB_TRY(hostile_begin(&hostile));
    const kvb_status status = measure_run(stage, &view, options, &beside->result);
    hostile_end(&hostile);
    bench_measured(bench_usage_between(began, bench_usage_of(view.pid)));
    beside->scenes_sent = hostile.scenes_sent;
    (void)wait_until(is_all_applied, beside, taken_ms); /* or not: that is a figure */
    return status;
}

/* ---- Its figures ---- */

static void
print_value(const struct beside *beside, const char *tail, double value, const char *unit)
{
    char name[name_bytes];

    (void)snprintf(
        name, sizeof name, "relay.beside_hostile.%s.%s", hostile_name(beside->kind), tail);
    bench_figure(name, value, unit);
}

/* A batch that never arrived counts with the time that it was waited for. */
static double ms_of(const struct run_result *result, double us)
{
    return result->lost > 0 ? measure_lost_ms : us / 1000;
}

static void print(const struct beside *beside)
{
    const struct run_result *result = &beside->result;
    const uint64_t sent = hostile_sent(beside);
    const struct account *account = &beside->account;

    bench_progress(
        "beside %s: p99 %.2f ms, worst %.2f ms (quiet: %.2f and %.2f) of %" PRIu64
        " batches; %" PRIu64 " scenes, %" PRIu64 " of their %" PRIu64
        " batches applied, %.0f ms CPU of the bridge for each scene",
        hostile_name(beside->kind), result->p99_us / 1000, result->max_us / 1000,
        beside->quiet.p99_us / 1000, beside->quiet.max_us / 1000, result->batches,
        beside->scenes_sent, account->applied, sent,
        result->cpu_ns * (double)result->batches / 1e6 / (double)beside->scenes_sent);
    if (result->lost > 0) {
        bench_progress("  LOST %" PRIu64 " of the measured batches", result->lost);
    }
    if (account->quarantines > 0) {
        bench_progress(
            "  quarantined: %" PRIu64 " batches of the hostile engine were dropped unread",
            account->unread);
    }
    print_value(beside, "p99", ms_of(result, result->p99_us), "ms");
    print_value(beside, "max", ms_of(result, result->max_us), "ms");
    print_value(beside, "quiet_p99", ms_of(&beside->quiet, beside->quiet.p99_us), "ms");
    print_value(
        beside, "applied", sent > 0 ? (double)account->applied / (double)sent : 0, "of sent");
    print_value(beside, "quarantines", (double)account->quarantines, "");
}

/* ---- The whole ---- */

/* The relay's own stage has one thread for all engines' sockets. */
static kvb_status run_on_two_threads(struct beside *beside)
{
    struct stage stage = beside->bench->stage; /* its server is borrowed */
    struct run_options options = { .script = &beside->script,
                                   .batches_a_second = batches_a_second,
                                   .only_worker = good_worker };

    stage.has_http = true;
    stage.io_threads = engines;
    stage.zmq_context = zmq_ctx_new();
    if (!stage.zmq_context) {
        return KVB_NO_MEMORY;
    }
    (void)zmq_ctx_set(stage.zmq_context, ZMQ_IO_THREADS, engines); /* before its first socket */
    kvb_status status = contender_start(&stage, contender_protobuf, engines, &beside->contender);
    if (status == KVB_OK) {
        status = measure_beside(beside, &stage, &options);
    }
    contender_stop(&beside->contender);
    (void)zmq_ctx_term(stage.zmq_context); /* nothing reads the scene any more */
    return status;
}

static kvb_status run_beside(const struct relay_bench *bench, enum hostile_kind kind)
{
    static const struct script_options small = { .blocks_per_batch = 1,
                                                 .pool_blocks = pool_blocks,
                                                 .seed = 6 };
    struct beside beside = { .bench = bench, .kind = kind };

    kvb_status status = script_make(&small, &beside.script);
    if (status == KVB_OK) {
        status = hostile_make(kind, &bench->options, &beside.scene);
    }
    if (status == KVB_OK) {
        status = run_on_two_threads(&beside);
    }
    if (status == KVB_OK) {
        print(&beside);
    }
    script_done(&beside.scene);
    script_done(&beside.script);
    return status;
}

kvb_status rows_beside_hostile(struct relay_bench *bench)
{
    for (enum hostile_kind kind = 0; kind < hostile_kinds; kind++) {
        char row[name_bytes];
        (void)snprintf(row, sizeof row, "relay.beside_hostile.%s", hostile_name(kind));
        if (bench_wants(&bench->options, row)) {
            KVB_TRY(run_beside(bench, kind));
        }
    }
    return KVB_OK;
}
