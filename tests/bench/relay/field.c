#include "field.h"

#include "core/clock.h"

#include <inttypes.h>
#include <stdio.h>

static bool takes_part(
    const struct relay_bench *bench, const bool is_wanted[contender_kinds],
    enum contender_kind kind)
{
    const bool is_missing = kind == contender_python && !bench->stage.programs.python;

    if (is_wanted[kind] && is_missing) {
        bench_progress("no --python: without the Python relay");
    }
    return is_wanted[kind] && !is_missing;
}

kvb_status field_start(
    const struct relay_bench *bench, const bool is_wanted[contender_kinds],
    const struct script *script, struct field *out_field)
{
    *out_field = (struct field){ .runs = { false } };
    for (enum contender_kind kind = 0; kind < contender_kinds; kind++) {
        struct contender *contender = &out_field->contenders[kind];
        if (!takes_part(bench, is_wanted, kind)) {
            continue;
        }
        bench_progress("starting %s", contender_name(kind));
        KVB_TRY(contender_start(&bench->stage, kind, 1, contender));
        out_field->runs[kind] = true;
        KVB_TRY(measure_warm_up(&bench->stage, contender, script));
    }
    return KVB_OK;
}

void field_stop(struct field *field)
{
    for (enum contender_kind kind = 0; kind < contender_kinds; kind++) {
        contender_stop(&field->contenders[kind]);
        field->runs[kind] = false;
    }
}

static void
say_result(const char *what, int round, enum contender_kind kind, const struct run_result *result)
{
    char delay[64] = "";

    if (result->p50_us > 0) {
        (void)snprintf(
            delay, sizeof delay, ", p50 %.0f us, p99 %.0f us", result->p50_us, result->p99_us);
    }
    bench_progress(
        "%s, round %d: %-12s %9.0f batches/s, %6.0f ns CPU, %4.0f bytes%s", what, round + 1,
        contender_name(kind), result->batches_a_second, result->cpu_ns, result->bytes, delay);
    if (result->lost > 0) {
        bench_progress("  LOST %" PRIu64 " of them: it counts as 0", result->lost);
    }
}

/* The kernel counts processor time in ticks of 10 ms, too few in one turn; relays that have no turn
 * wait in poll() and add nothing. */
static void begin_usage(const struct field *field, struct results *results)
{
    for (enum contender_kind kind = 0; kind < contender_kinds; kind++) {
        if (field->runs[kind]) {
            results->used[kind] = bench_usage_of(field->contenders[kind].pid);
        }
    }
}

static void end_usage(const struct field *field, struct results *results)
{
    for (enum contender_kind kind = 0; kind < contender_kinds; kind++) {
        if (field->runs[kind]) {
            results->used[kind] = bench_usage_between(
                results->used[kind], bench_usage_of(field->contenders[kind].pid));
        }
    }
}

kvb_status field_run(
    const struct relay_bench *bench, struct field *field, const char *what,
    const struct run_options *options, struct results *out_results)
{
    enum { max_in_one_row = 3 }; /* the relay, and the two it is compared with */
    const double run_s = bench->options.seconds / max_in_one_row / rounds;
    struct run_options each = *options;

    each.duration_ns = (uint64_t)(run_s * (double)KVB_NS_PER_S);
    *out_results = (struct results){ 0 };
    begin_usage(field, out_results);
    for (int round = 0; round < rounds; round++) {
        for (enum contender_kind kind = 0; kind < contender_kinds; kind++) {
            struct run_result *result = &out_results->of[kind][round];
            if (!field->runs[kind]) {
                continue;
            }
            KVB_TRY(measure_run(&bench->stage, &field->contenders[kind], &each, result));
            say_result(what, round, kind, result);
            if (result->lost > 0) {
                result->batches_a_second = 0;
            }
        }
    }
    end_usage(field, out_results);
    return KVB_OK;
}

static void
pick_all(const struct results *results, enum contender_kind kind, picker pick, double out[rounds])
{
    for (int round = 0; round < rounds; round++) {
        out[round] = pick(&results->of[kind][round]);
    }
}

void field_say(const struct results *results, const char *name, const struct field_figure *figure)
{
    double ours[rounds];
    double theirs[rounds];

    pick_all(results, figure->ours, figure->pick, ours);
    pick_all(results, figure->against, figure->pick, theirs);
    bench_measured(results->used[figure->ours]);
    bench_figure_turns(
        name,
        &(struct bench_turns){ .against = contender_name(figure->against),
                               .ours = ours,
                               .theirs = theirs,
                               .count = rounds,
                               .is_less_better = figure->is_less_better },
        figure->unit);
}
