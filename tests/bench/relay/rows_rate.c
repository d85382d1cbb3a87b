#include "core/own.h"
#include "rows.h"

#include <stdio.h>

enum { pool_blocks = 1 << 16, name_bytes = 64 };

static const enum contender_kind ours[] = { contender_protobuf, contender_json };
static const size_t shapes[] = { 1, 8 };

static const char *
name_row(char out[name_bytes], enum contender_kind kind, size_t blocks, const char *tail)
{
    (void)snprintf(out, name_bytes, "relay.%s.%zublock%s", contender_name(kind), blocks, tail);
    return out;
}

static bool
wants(const struct relay_bench *bench, enum contender_kind kind, size_t blocks, const char *tail)
{
    char name[name_bytes];

    return bench_wants(&bench->options, name_row(name, kind, blocks, tail));
}

static bool wants_shape(const struct relay_bench *bench, size_t blocks)
{
    return wants(bench, contender_protobuf, blocks, "") || wants(bench, contender_json, blocks, "");
}

/* The relays that a wanted row needs; false: none. */
static bool choose(const struct relay_bench *bench, bool is_wanted[contender_kinds])
{
    for (size_t i = 0; i < KVB_COUNT_OF(ours); i++) {
        for (size_t shape = 0; shape < KVB_COUNT_OF(shapes); shape++) {
            is_wanted[ours[i]] |= wants(bench, ours[i], shapes[shape], "");
            is_wanted[contender_python] |= wants(bench, ours[i], shapes[shape], ".vs_python");
        }
        is_wanted[contender_pass_through] |= is_wanted[ours[i]];
    }
    return is_wanted[contender_pass_through];
}

static void print_rows(const struct field *field, enum contender_kind kind, size_t blocks)
{
    struct field_figure figure = { .ours = kind, .against = contender_pass_through };
    char name[name_bytes];

    field_say(field, name_row(name, kind, blocks, ""), &figure);
    figure.number = field_cpu;
    field_say(field, name_row(name, kind, blocks, ".cpu"), &figure);
    if (field->runs[contender_python]) {
        figure = (struct field_figure){ .ours = kind, .against = contender_python };
        field_say(field, name_row(name, kind, blocks, ".vs_python"), &figure);
    }
}

static kvb_status
run_shape(const struct relay_bench *bench, struct field *field, const struct script *script)
{
    const size_t blocks = script->blocks_per_batch;
    char what[32];

    (void)snprintf(what, sizeof what, "%zu-block", blocks);
    KVB_TRY(field_run(bench, field, what, &(struct run_options){ .script = script }));
    for (size_t i = 0; i < KVB_COUNT_OF(ours); i++) {
        if (wants(bench, ours[i], blocks, "")) {
            print_rows(field, ours[i], blocks);
        }
    }
    return KVB_OK;
}

static kvb_status
run_shapes(const struct relay_bench *bench, struct field *field, const struct script *scripts)
{
    for (size_t shape = 0; shape < KVB_COUNT_OF(shapes); shape++) {
        if (wants_shape(bench, shapes[shape])) {
            KVB_TRY(run_shape(bench, field, &scripts[shape]));
        }
    }
    return KVB_OK;
}

static kvb_status
start_and_run(const struct relay_bench *bench, const bool is_wanted[contender_kinds])
{
    KVB_OWN(script_done) struct script one = { .count = 0 };
    KVB_OWN(script_done) struct script eight = { .count = 0 };
    KVB_OWN(field_stop) struct field field = { .runs = { false } };

    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = pool_blocks, .seed = 1 },
        &one));
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 8, .pool_blocks = pool_blocks, .seed = 2 },
        &eight));
    KVB_TRY(field_start(bench, is_wanted, &one, &field));
    const struct script scripts[] = { one, eight };
    return run_shapes(bench, &field, scripts);
}

kvb_status rows_rate(struct relay_bench *bench)
{
    bool is_wanted[contender_kinds] = { false };

    return choose(bench, is_wanted) ? start_and_run(bench, is_wanted) : KVB_OK;
}
