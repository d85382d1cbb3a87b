#pragma once

#include "parts/bench.h"

#include <stdint.h>

/* The rows of bench_intake. */

struct intake {
    struct bench bench;
    const char *aggregator; /* the program */
};

/* The name of a row is the prefix of its figures' names. */
struct intake_row {
    const char *name;
    void (*run)(const struct intake *intake);
};

/* The main() of such a program: runs the selected rows. */
int intake_main(
    int argc, char **argv, const char *what, const struct intake_row *rows, size_t row_count);

/* Ends the program when a step has failed. */
#define INTAKE_MUST(expression) bench_must((expression), #expression)

/* ---- direct.c: in one thread, without sockets ---- */
void intake_whole(const struct intake *intake);
void intake_snapshot(const struct intake *intake);

/* ---- daemons.c: a real nats-server and a real kvaggregator ---- */
void intake_ready(const struct intake *intake);
void intake_nats(const struct intake *intake);
void intake_queries(const struct intake *intake);
