#include "core/own.h"
#include "core/status.h"
#include "intake.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The aggregator's side: bytes -> decode -> followers -> index, queries meanwhile, start.
 *
 *     bench_intake [--seconds N] [--small] [--aggregator PROGRAM] [ROW ...]
 *
 * A row is named in full, or by how its name begins.  --small: of everything so little
 * that figures mean nothing, to try the bench itself. */

struct row {
    const char *name; /* with which those of its figures begin */
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

/* ---- Saying ---- */

void intake_note(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
}

void intake_say(const struct intake_figure *figure)
{
    printf(
        "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",", figure->name, figure->value,
        figure->unit);
    if (figure->against) {
        printf(
            "\"against\":\"%s\",\"against_value\":%.6g,\"ratio\":%.4g}\n", figure->against,
            figure->against_value, figure->ratio);
    } else {
        printf("\"against\":null,\"against_value\":null,\"ratio\":null}\n");
    }
    (void)fflush(stdout);
}

void intake_must(int status, const char *what)
{
    if (status != KVB_OK) {
        intake_note("bench_intake: %s: %s", what, kvb_status_name((kvb_status)status));
        exit(1); /* NOLINT(concurrency-mt-unsafe): whichever thread is first */
    }
}

static int by_size(const void *left, const void *right)
{
    const double *a = left;
    const double *b = right;

    return (*a > *b) - (*a < *b);
}

double intake_quantile(double *samples, size_t count, double part)
{
    if (count == 0) {
        return 0;
    }
    qsort(samples, count, sizeof *samples, by_size);
    const size_t at = (size_t)(part * (double)count);
    return samples[at < count ? at : count - 1];
}

/* ---- Which rows ---- */

/* "query" and "query.http.p99" both mean the row, as no name means all. */
static bool is_asked_for(const struct row *row, char *const names[], int count)
{
    for (int i = 0; i < count; i++) {
        const size_t asked = strlen(names[i]);
        const size_t own = strlen(row->name);
        if (strncmp(row->name, names[i], asked < own ? asked : own) == 0) {
            return true;
        }
    }
    return count == 0;
}

/* The options; *first is where the names of rows begin.  False: something else. */
static bool read_options(int argc, char *argv[], struct intake *intake, int *first)
{
    int at = 1;

    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--small") == 0) {
            intake->is_small = true;
            continue;
        }
        if (at + 1 == argc) {
            return false;
        }
        if (strcmp(argv[at], "--seconds") == 0) {
            intake->seconds = strtod(argv[at + 1], NULL);
        } else if (strcmp(argv[at], "--aggregator") == 0) {
            intake->aggregator = argv[at + 1];
        } else if (strcmp(argv[at], "--corpus") != 0) { /* for other programs of the bench */
            return false;
        }
        at++;
    }
    *first = at;
    return intake->seconds > 0;
}

int main(int argc, char *argv[])
{
    struct intake intake = { .seconds = 5, .aggregator = KVB_AGGREGATOR };
    int first = 1;

    if (!read_options(argc, argv, &intake, &first)) {
        intake_note("usage: bench_intake [--seconds N] [--small] [--aggregator PROGRAM] [ROW ...]");
        return 2;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (is_asked_for(&rows[i], argv + first, argc - first)) {
            intake_note("bench_intake: %s", rows[i].name);
            rows[i].run(&intake);
        }
    }
    return 0;
}
