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

struct running {
    const struct relay_bench *bench;
    struct field *field;
    const char *what;
    struct run_options options;
};

static void
say_result(const struct running *running, enum contender_kind kind, const struct run_result *result)
{
    char delay[64] = "";

    if (result->p50_us > 0) {
        (void)snprintf(
            delay, sizeof delay, ", p50 %.0f us, p99 %.0f us", result->p50_us, result->p99_us);
    }
    bench_progress(
        "%s, round %zu: %-12s %9.0f batches/s, %6.0f ns CPU, %4.0f bytes%s", running->what,
        running->field->turns.done + 1, contender_name(kind), result->batches_a_second,
        result->cpu_ns, result->bytes, delay);
    if (result->lost > 0) {
        bench_progress("  LOST %" PRIu64 " of them: it counts as 0", result->lost);
    }
}

static kvb_status take_run(void *context, size_t kind, double out_numbers[bench_max_numbers])
{
    struct running *running = context;
    struct run_result result = { .lost = 0 };

    if (!running->field->runs[kind]) {
        return KVB_OK;
    }
    KVB_TRY(measure_run(
        &running->bench->stage, &running->field->contenders[kind], &running->options, &result));
    say_result(running, (enum contender_kind)kind, &result);
    out_numbers[field_rate] = result.lost > 0 ? 0 : result.batches_a_second;
    out_numbers[field_cpu] = result.cpu_ns;
    out_numbers[field_p50] = result.p50_us;
    out_numbers[field_p99] = result.p99_us;
    return KVB_OK;
}

kvb_status field_run(
    const struct relay_bench *bench, struct field *field, const char *what,
    const struct run_options *options)
{
    /* Odd rounds, so that the median is one of the values; in one row a relay, and the two that it
     * is compared with. */
    enum { rounds = 9, max_in_one_row = 3 };
    struct running running = { .bench = bench, .field = field, .what = what, .options = *options };

    running.options.duration_ns =
        (uint64_t)(bench->options.seconds / max_in_one_row / rounds * (double)KVB_NS_PER_S);
    field->turns = (struct bench_turns){
        .sides = contender_kinds, .rounds = rounds, .take = take_run, .context = &running
    };
    /* The kernel counts processor time in ticks of 10 ms, too few in one turn; relays that have no
     * turn wait in poll() and add nothing. */
    for (enum contender_kind kind = 0; kind < contender_kinds; kind++) {
        field->used[kind] = bench_usage_of(field->contenders[kind].pid);
    }
    KVB_TRY(bench_take_turns(&field->turns));
    for (enum contender_kind kind = 0; kind < contender_kinds; kind++) {
        field->used[kind] =
            bench_usage_between(field->used[kind], bench_usage_of(field->contenders[kind].pid));
    }
    return KVB_OK;
}

void field_say(const struct field *field, const char *name, const struct field_figure *figure)
{
    static const char *const units[] = {
        [field_rate] = "batches/s", [field_cpu] = "ns/batch", [field_p50] = "us", [field_p99] = "us"
    };
    const struct bench_versus versus = { .ours = figure->ours,
                                         .theirs = figure->against,
                                         .number = figure->number,
                                         .against = contender_name(figure->against),
                                         .is_less_better = figure->number != field_rate };

    bench_measured(field->used[figure->ours]);
    bench_figure_turns(name, &field->turns, &versus, units[figure->number]);
}
