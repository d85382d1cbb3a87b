#include "core/own.h"
#include "intake/intake.h"

#include <stdbool.h>

/* The aggregator's side: bytes -> decode -> followers -> index, queries meanwhile, start. */

/* A row is named as its figures begin. */
struct row {
    const char *name;
    void (*run)(const struct intake *intake);
};

/* clang-format off */
static const struct row rows[] = {
    { "intake.decode",      intake_decode },
    { "intake.whole",       intake_whole },
    { "intake.allocations", intake_count_allocations },
    { "intake.nats",        intake_nats },
    { "query",              intake_queries },
    { "start.serving",      intake_serving },
    { "start.snapshot",     intake_snapshot },
};
/* clang-format on */

static bool take_aggregator(void *context, const char *value)
{
    struct intake *intake = context;

    intake->aggregator = value;
    return *value != '\0';
}

int main(int argc, char **argv)
{
    struct intake intake = { .aggregator = KVB_AGGREGATOR };
    const struct bench_option options[] = {
        { "--aggregator", "PROGRAM  a kvaggregator of another build", take_aggregator },
    };
    const struct bench_about about = { .what = "What an aggregator does with what it hears.",
                                       .options = options,
                                       .option_count = KVB_COUNT_OF(options),
                                       .context = &intake };

    intake.bench = bench_begin(argc, argv, &about);
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (bench_wants(&intake.bench, rows[i].name)) {
            bench_progress("%s", rows[i].name);
            rows[i].run(&intake);
        }
    }
    return 0;
}
