#pragma once

#include "contender.h"
#include "core/status.h"
#include "measure.h"
#include "parts/bench.h"

#include <stdbool.h>

/* Several relays on one stage, which take turns (bench_take_turns()). */

/* What a run gives: numbers of a turn. */
enum field_number { field_rate, field_cpu, field_p50, field_p99 };

/* What the groups of rows share. */
struct relay_bench {
    struct bench options;
    struct stage stage;
};

struct field {
    struct contender contenders[contender_kinds];
    bool runs[contender_kinds];
    struct bench_turns turns;                 /* of the last field_run(); a side is a kind */
    struct bench_usage used[contender_kinds]; /* processor time meanwhile */
};

/* Starts and warms up those that are wanted; without Python that relay is left out, and a
 * line says so.  On failure too field_stop() follows.
 * KVB_IO, KVB_NO_MEMORY, KVB_CLOSED; KVB_AGAIN: one does not come up */
kvb_status field_start(
    const struct relay_bench *bench, const bool is_wanted[contender_kinds],
    const struct script *script, struct field *out_field);
void field_stop(struct field *field);

/* Runs all rounds. A run that lost something is reported and has a rate of 0. */
kvb_status field_run(
    const struct relay_bench *bench, struct field *field, const char *what,
    const struct run_options *options);

/* Which number a figure shows, and which relay it is compared with. */
struct field_figure {
    enum contender_kind ours, against;
    enum field_number number;
};

void field_say(const struct field *field, const char *name, const struct field_figure *figure);
