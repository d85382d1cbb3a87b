#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rows of bench_intake, and how a figure is said. */

struct intake {
    double seconds; /* that a row may take, about */
    bool is_small;
    const char *aggregator; /* the program */
};

/* One figure, as a line of JSON on stdout; against NULL: no baseline.  A ratio above 1
 * is ours. */
struct intake_figure {
    const char *name;
    double value;
    const char *unit;
    const char *against;
    double against_value;
    double ratio;
};

void intake_say(const struct intake_figure *figure);

/* A line on stderr. */
void intake_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the program when a step failed. */
#define INTAKE_MUST(expression) intake_must((expression), #expression)
void intake_must(int status, const char *what);

/* Sorts the samples.  part: 0.5, 0.99. */
double intake_quantile(double *samples, size_t count, double part);

/* Allocations since the program began, of all threads: malloc, calloc, realloc. */
uint64_t intake_allocations(void);

/* ---- direct.c: in one thread, without sockets ---- */
void intake_decode(const struct intake *intake);
void intake_whole(const struct intake *intake);
void intake_count_allocations(const struct intake *intake);
void intake_snapshot(const struct intake *intake);

/* ---- daemons.c: a real nats-server and a real kvaggregator ---- */
void intake_serving(const struct intake *intake);
void intake_nats(const struct intake *intake);
void intake_queries(const struct intake *intake);
