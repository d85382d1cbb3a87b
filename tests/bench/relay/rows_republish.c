#include "bridge_page.h"
#include "core/clock.h"
#include "core/own.h"
#include "rows.h"

#include <pthread.h>
#include <stdio.h>
#include <zmq.h>

enum {
    pool_blocks = 1 << 16,
    name_bytes = 64,
    held_blocks = 1000000,
    held_blocks_per_batch = 8,
    max_page_bytes = 4 << 20,
};

static double pick_rate(const struct run_result *result)
{
    return result->batches_a_second;
}

static double pick_cpu(const struct run_result *result)
{
    return result->cpu_ns;
}

/* ---- Rates ---- */

static const char *name_row(char out[name_bytes], size_t blocks, const char *tail)
{
    (void)snprintf(out, name_bytes, "republish.%zublock%s", blocks, tail);
    return out;
}

static void print_rate(
    const struct results *results, enum contender_kind against, size_t blocks, const char *tail)
{
    const struct field_figure figure = {
        .ours = contender_republish, .against = against, .pick = pick_rate, .unit = "batches/s"
    };
    char name[name_bytes];

    field_say(results, name_row(name, blocks, tail), &figure);
}

static void print_cpu(const struct results *results, size_t blocks)
{
    const struct field_figure figure = { .ours = contender_republish,
                                         .against = contender_pass_through,
                                         .pick = pick_cpu,
                                         .unit = "ns/batch",
                                         .is_less_better = true };
    char name[name_bytes];

    field_say(results, name_row(name, blocks, ".cpu"), &figure);
}

static bool wants_shape(const struct relay_bench *bench, size_t blocks)
{
    char name[name_bytes];

    return bench_wants(&bench->options, name_row(name, blocks, ""));
}

static kvb_status
run_shape(const struct relay_bench *bench, struct field *field, const struct script *script)
{
    const size_t blocks = script->blocks_per_batch;
    struct results results;

    KVB_TRY(field_run(
        bench, field, "republished", &(struct run_options){ .script = script }, &results));
    print_rate(&results, contender_pass_through, blocks, "");
    print_rate(&results, contender_protobuf, blocks, ".vs_protobuf");
    print_cpu(&results, blocks);
    return KVB_OK;
}

static kvb_status make_script(size_t blocks, struct script *out_script)
{
    return script_make(
        &(struct script_options){
            .blocks_per_batch = blocks, .pool_blocks = pool_blocks, .seed = 6 + blocks },
        out_script);
}

/* Relays compare scripts by address, so both scripts live as long as the relays. */
static kvb_status run_shapes(const struct relay_bench *bench)
{
    static const bool is_wanted[contender_kinds] = {
        [contender_pass_through] = true, [contender_protobuf] = true, [contender_republish] = true
    };
    KVB_OWN(script_done) struct script one = { .count = 0 };
    KVB_OWN(script_done) struct script eight = { .count = 0 };
    KVB_OWN(field_stop) struct field field = { .runs = { false } };

    KVB_TRY(make_script(1, &one));
    KVB_TRY(make_script(8, &eight));
    KVB_TRY(field_start(bench, is_wanted, &one, &field));
    if (wants_shape(bench, 1)) {
        KVB_TRY(run_shape(bench, &field, &one));
    }
    return wants_shape(bench, 8) ? run_shape(bench, &field, &eight) : KVB_OK;
}

static kvb_status run_rates(const struct relay_bench *bench)
{
    return wants_shape(bench, 1) || wants_shape(bench, 8) ? run_shapes(bench) : KVB_OK;
}

/* ---- A million blocks ----
 *
 * The first engine is republished and stores them.  Then a reader requests all of them, and
 * meanwhile the batches of the second engine are measured, on their way to NATS. */

enum {
    big = 0,
    other = 1,
    engines = 2,
    other_worker = 2, /* of the engines' ids, which begin with 1 */
    other_blocks = 1 << 10,
    other_batches_a_second = 1000,
    max_announcements = 3, /* --small: one */
    window_ms = 2000,      /* an announcement and some of the time behind it */
    small_window_ms = 300,
    period_ms = 10200, /* of announcements, and a little */
    snapshot_ms = 30000,
};

static const uint64_t fill_ns = 120 * KVB_NS_PER_S;

struct million {
    const struct relay_bench *bench;
    struct contender contender;
    struct script script;
    struct script other_script;
    struct run_result quiet[max_announcements];
    size_t announcements;
    struct run_result beside[max_announcements];
    double snapshot_s[max_announcements];
    double snapshot_bytes;
    uint64_t idle_bytes;
    uint64_t full_bytes;
    uint64_t token_bytes;
};

static struct contender view_of(const struct million *million, size_t engine)
{
    struct contender view = million->contender;

    view.engines += engine;
    view.engine_count = 1;
    view.script = NULL;
    if (engine == other) {
        view.kind = contender_protobuf; /* what arrives on NATS is counted */
    }
    return view;
}

/* From the script's beginning, so that each block is held once. */
static kvb_status fill(struct million *million, const struct stage *stage)
{
    const struct run_options options = { .script = &million->script,
                                         .max_kept_batches = million->script.count,
                                         .duration_ns = fill_ns };
    struct run_result result = { .lost = 0 };
    struct contender view = view_of(million, big);

    KVB_TRY(measure_run(stage, &view, &options, &result));
    million->contender.republished = view.republished;
    million->full_bytes = contender_resident_bytes(&million->contender);
    return result.lost == 0 && result.batches == million->script.count ? KVB_OK : KVB_AGAIN;
}

static kvb_status read_token_bytes(struct million *million)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf page;

    kvb_buf_init(&page, max_page_bytes);
    KVB_TRY(bridge_page_fetch(million->contender.http_port, &page));
    million->token_bytes = bridge_page_value(&page, "kvb_republish_token_bytes");
    return KVB_OK;
}

/* ---- One announcement, on a thread of its own ---- */

struct asking {
    struct republished *reader; /* borrowed, like the next two */
    const char *replay;
    const struct script *script;
    kvb_status status;
    double took_s;
    uint64_t bytes;
};

static void *ask_and_read(void *context)
{
    struct asking *asking = context;
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const uint64_t laps = asking->reader->laps;
    const uint64_t bytes = asking->reader->bytes;

    asking->status = republished_ask_for_all(asking->reader, asking->replay);
    while (asking->status == KVB_OK &&
           (asking->reader->laps == laps || asking->reader->blocks < asking->script->block_count)) {
        const kvb_status status = republished_read(asking->reader);
        asking->status = status == KVB_AGAIN ? KVB_OK : status;
        if (kvb_clock_monotonic_ns() - began_ns > snapshot_ms * KVB_NS_PER_MS) {
            asking->status = KVB_AGAIN;
        }
    }
    asking->took_s = bench_seconds_since(began_ns);
    asking->bytes = asking->reader->bytes - bytes;
    return NULL;
}

/* How the other engine sends. */
static struct run_options other_options(const struct million *million)
{
    const uint64_t ms = million->bench->options.is_small ? small_window_ms : window_ms;

    return (struct run_options){ .script = &million->other_script,
                                 .batches_a_second = other_batches_a_second,
                                 .duration_ns = ms * KVB_NS_PER_MS,
                                 .only_worker = other_worker };
}

static kvb_status
measure_announcement(struct million *million, const struct stage *stage, size_t at)
{
    const struct run_options options = other_options(million);
    struct asking asking = { .reader = &million->contender.republished,
                             .replay = million->contender.republished_replay,
                             .script = &million->script };
    struct contender view = view_of(million, other);
    pthread_t thread;

    if (pthread_create(&thread, NULL, ask_and_read, &asking) != 0) {
        return KVB_IO;
    }
    const kvb_status status = measure_run(stage, &view, &options, &million->beside[at]);
    (void)pthread_join(thread, NULL);
    KVB_TRY(status);
    KVB_TRY(asking.status);
    million->snapshot_s[at] = asking.took_s;
    million->snapshot_bytes = (double)asking.bytes;
    bench_progress(
        "all of %zu blocks in %.2f s, %.1f MB; beside it p99 %.2f ms, worst %.2f ms of %llu "
        "batches",
        million->script.block_count, asking.took_s, million->snapshot_bytes / 1e6,
        million->beside[at].p99_us / 1000, million->beside[at].max_us / 1000,
        (unsigned long long)million->beside[at].batches);
    return KVB_OK;
}

/* Readers may send many requests, but blocks are announced at most every 10 s. */
static kvb_status wait_for_next(const struct stage *stage, struct million *million, uint64_t ms)
{
    struct contender view = view_of(million, other);
    double rest = 0;

    return measure_rest(stage, &view, ms * KVB_NS_PER_MS, &rest);
}

static kvb_status measure_announcements(struct million *million, const struct stage *stage)
{
    const struct run_options options = other_options(million);
    struct contender view = view_of(million, other);

    KVB_TRY(measure_warm_up(stage, &view, &million->other_script));
    bench_measure(million->contender.pid);
    for (size_t i = 0; i < million->announcements; i++) {
        KVB_TRY(wait_for_next(stage, million, i > 0 ? period_ms : 0));
        KVB_TRY(measure_run(stage, &view, &options, &million->quiet[i]));
        KVB_TRY(measure_announcement(million, stage, i));
    }
    return KVB_OK;
}

/* ---- Its figures ---- */

static double ms_of(const struct run_result *result, double us)
{
    return result->lost > 0 ? measure_lost_ms : us / 1000;
}

static void say_beside_p99(const struct million *million)
{
    double beside[max_announcements];
    double quiet[max_announcements];
    const struct bench_turns turns = { .against = "before it",
                                       .ours = beside,
                                       .theirs = quiet,
                                       .count = million->announcements,
                                       .is_less_better = true };

    for (size_t i = 0; i < million->announcements; i++) {
        beside[i] = ms_of(&million->beside[i], million->beside[i].p99_us);
        quiet[i] = ms_of(&million->quiet[i], million->quiet[i].p99_us);
    }
    bench_figure_turns("republish.snapshot.beside_p99", &turns, "ms");
}

static double worst_ms(const struct million *million)
{
    double worst = 0;

    for (size_t i = 0; i < million->announcements; i++) {
        const double ms = ms_of(&million->beside[i], million->beside[i].max_us);
        worst = ms > worst ? ms : worst;
    }
    return worst;
}

static void print_million(struct million *million)
{
    const double blocks = (double)million->script.block_count;

    bench_figure(
        "republish.memory.block",
        ((double)million->full_bytes - (double)million->idle_bytes) / blocks, "bytes");
    bench_figure("republish.memory.tokens", (double)million->token_bytes / blocks, "bytes");
    bench_figure_rounds("republish.snapshot", million->snapshot_s, million->announcements, "s");
    bench_figure("republish.snapshot.bytes", million->snapshot_bytes / 1e6, "MB");
    say_beside_p99(million);
    bench_figure("republish.snapshot.beside_max", worst_ms(million), "ms");
}

static kvb_status run_million(struct million *million, const struct stage *stage)
{
    KVB_TRY(contender_start(stage, contender_republish, engines, &million->contender));
    struct contender view = view_of(million, big);
    KVB_TRY(measure_warm_up(stage, &view, &million->other_script));
    million->contender.republished = view.republished;
    million->idle_bytes = contender_resident_bytes(&million->contender);
    million->contender.engines[big].next_batch = 0;
    KVB_TRY(fill(million, stage));
    KVB_TRY(measure_announcements(million, stage));
    KVB_TRY(read_token_bytes(million)); /* the page is some seconds old at most */
    print_million(million);
    return KVB_OK;
}

/* The relay's own stage has one thread for all engines' sockets. */
static kvb_status run_on_two_threads(struct million *million)
{
    struct stage stage = million->bench->stage; /* its server is borrowed */

    stage.has_http = true;
    stage.io_threads = engines;
    stage.zmq_context = zmq_ctx_new();
    if (!stage.zmq_context) {
        return KVB_NO_MEMORY;
    }
    (void)zmq_ctx_set(stage.zmq_context, ZMQ_IO_THREADS, engines); /* before its first socket */
    const kvb_status status = run_million(million, &stage);
    contender_stop(&million->contender);
    (void)zmq_ctx_term(stage.zmq_context);
    return status;
}

static kvb_status make_scripts(const struct relay_bench *bench, struct million *million)
{
    const size_t batches = bench_size(&bench->options, held_blocks / held_blocks_per_batch);

    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = held_blocks_per_batch,
                                  .pool_blocks = batches * held_blocks_per_batch,
                                  .seed = 8 },
        &million->script));
    return script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = other_blocks, .seed = 9 },
        &million->other_script);
}

kvb_status rows_republish(struct relay_bench *bench)
{
    struct million million = { .bench = bench,
                               .announcements = bench->options.is_small ? 1 : max_announcements };

    KVB_TRY(run_rates(bench));
    if (!bench_wants(&bench->options, "republish.memory") &&
        !bench_wants(&bench->options, "republish.snapshot")) {
        return KVB_OK;
    }
    bench_progress("republish: a million blocks");
    kvb_status status = make_scripts(bench, &million);
    if (status == KVB_OK) {
        status = run_on_two_threads(&million);
    }
    script_done(&million.script);
    script_done(&million.other_script);
    return status;
}
