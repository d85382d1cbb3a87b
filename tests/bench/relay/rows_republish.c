#include "core/clock.h"
#include "core/own.h"
#include "rows.h"

#include <stdio.h>

enum {
    pool_blocks = 1 << 16,
    name_bytes = 64,
    held_blocks = 1000000,
    held_blocks_per_batch = 8,
};

/* ---- Rates ---- */

static const char *name_row(char out[name_bytes], size_t blocks, const char *tail)
{
    (void)snprintf(out, name_bytes, "republish.%zublock%s", blocks, tail);
    return out;
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
    struct field_figure figure = { .ours = contender_republish, .against = contender_pass_through };
    char name[name_bytes];

    KVB_TRY(field_run(bench, field, "republished", &(struct run_options){ .script = script }));
    field_say(field, name_row(name, blocks, ""), &figure);
    figure.against = contender_protobuf;
    field_say(field, name_row(name, blocks, ".vs_protobuf"), &figure);
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

/* ---- A million blocks: an engine stores them, then a reader requests all of them ---- */

enum {
    few_blocks = 1 << 10,  /* to warm up with */
    max_announcements = 3, /* --small: one */
    period_ms = 10200,     /* readers may send many requests, but blocks are announced at most every
                              10 s; and a little */
    snapshot_ms = 30000,
};

static const uint64_t fill_ns = 120 * KVB_NS_PER_S;

/* From the script's beginning, so that each block is held once. */
static kvb_status
fill(const struct stage *stage, struct contender *contender, const struct script *script)
{
    const struct run_options options = { .script = script,
                                         .max_kept_batches = script->count,
                                         .duration_ns = fill_ns };
    struct run_result result = { .lost = 0 };

    KVB_TRY(measure_run(stage, contender, &options, &result));
    return result.lost == 0 && result.batches == script->count ? KVB_OK : KVB_AGAIN;
}

/* Seconds from a new reader's request until it has all blocks. */
static kvb_status
read_all(struct contender *contender, const struct script *script, double *out_seconds)
{
    struct republished *reader = &contender->republished;
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const uint64_t laps = reader->laps;
    const uint64_t bytes = reader->bytes;

    KVB_TRY(republished_ask_for_all(reader, contender->republished_replay));
    while (reader->laps == laps || reader->blocks < script->block_count) {
        const kvb_status status = republished_read(reader);
        KVB_TRY(status == KVB_AGAIN ? KVB_OK : status);
        if (kvb_clock_monotonic_ns() - began_ns > snapshot_ms * KVB_NS_PER_MS) {
            return KVB_AGAIN;
        }
    }
    *out_seconds = bench_seconds_since(began_ns);
    bench_progress(
        "all of %zu blocks in %.2f s, %.1f MB", script->block_count, *out_seconds,
        (double)(reader->bytes - bytes) / 1e6);
    return KVB_OK;
}

static kvb_status run_million(
    const struct relay_bench *bench, struct contender *contender, const struct script *script,
    const struct script *few)
{
    const struct stage *stage = &bench->stage;
    const size_t announcements = bench->options.is_small ? 1 : max_announcements;
    double seconds[max_announcements] = { 0 };
    double rest_ms = 0;

    KVB_TRY(contender_start(stage, contender_republish, 1, contender));
    KVB_TRY(measure_warm_up(stage, contender, few));
    const uint64_t idle_bytes = contender_resident_bytes(contender);
    KVB_TRY(fill(stage, contender, script));
    const uint64_t full_bytes = contender_resident_bytes(contender);
    bench_measure(contender->pid);
    for (size_t i = 0; i < announcements; i++) {
        KVB_TRY(measure_rest(stage, contender, period_ms * KVB_NS_PER_MS, &rest_ms));
        KVB_TRY(read_all(contender, script, &seconds[i]));
    }
    bench_figure(
        "republish.memory.block",
        ((double)full_bytes - (double)idle_bytes) / (double)script->block_count, "bytes");
    bench_figure_rounds("republish.snapshot", seconds, announcements, "s");
    return KVB_OK;
}

kvb_status rows_republish(struct relay_bench *bench)
{
    const size_t batches = bench_size(&bench->options, held_blocks / held_blocks_per_batch);
    KVB_OWN(script_done) struct script script = { .count = 0 };
    KVB_OWN(script_done) struct script few = { .count = 0 };
    KVB_OWN(contender_stop) struct contender contender = { .pid = 0 };

    KVB_TRY(run_rates(bench));
    if (!bench_wants(&bench->options, "republish.memory") &&
        !bench_wants(&bench->options, "republish.snapshot")) {
        return KVB_OK;
    }
    bench_progress("republish: a million blocks");
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = held_blocks_per_batch,
                                  .pool_blocks = batches * held_blocks_per_batch,
                                  .seed = 8 },
        &script));
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = few_blocks, .seed = 9 },
        &few));
    return run_million(bench, &contender, &script, &few);
}
