#pragma once

#include "contender.h"
#include "core/status.h"
#include "measure.h"
#include "parts/bench.h"

#include <stdbool.h>
#include <stdint.h>

/* Several relays on one stage, measured in turn, so that what disturbs the machine
 * disturbs all of them:
 *
 *     round 1   pass-through   protobuf   json   python
 *     round 2   pass-through   protobuf   json   python     ...
 *
 * A figure is the median of the rounds; a ratio is the median of the rounds' ratios. */

enum { rounds = 9 }; /* odd, so that the median is one of the values */

/* What the groups of rows share. */
struct relay_bench {
    struct bench options;
    struct stage stage;
};

struct field {
    struct contender contenders[contender_kinds];
    bool runs[contender_kinds];
};

/* Starts and warms up those that are wanted; without Python that relay is left out, and a
 * line says so.  On failure too field_stop() follows.
 * KVB_IO, KVB_NO_MEMORY, KVB_CLOSED; KVB_AGAIN: one does not come up */
kvb_status field_start(
    const struct relay_bench *bench, const bool is_wanted[contender_kinds],
    const struct script *script, struct field *out_field);
void field_stop(struct field *field);

/* What each relay did in each round, and the processor time of its process. */
struct results {
    struct run_result of[contender_kinds][rounds];
    struct bench_usage used[contender_kinds];
};

/* Runs all rounds. A run that lost something is reported and has a rate of 0. */
kvb_status field_run(
    const struct relay_bench *bench, struct field *field, const char *what,
    const struct run_options *options, struct results *out_results);

/* Selects a number of a result. */
typedef double (*picker)(const struct run_result *result);

/* Which number a figure shows, and which relay it is compared with. */
struct field_figure {
    enum contender_kind ours, against;
    picker pick;
    const char *unit;
    bool is_less_better;
};

void field_say(const struct results *results, const char *name, const struct field_figure *figure);
