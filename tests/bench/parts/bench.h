#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What the programs of the bench have in common: their options, the clock that bounds a
 * row, and the output of figures.
 *
 *     bench_x [--seconds N] [--small] [--input FILE]... [NAME...]
 *
 * stdout: one JSON object a figure, one a line; stderr: progress and trouble.  A name is
 * that of a row or of a figure, or how such names begin; none means all.
 * Threads: only the thread that made it; figures and progress from any one at a time.
 * Memory:  nothing grows.  A bench that cannot continue prints why and ends with 1, so
 *          functions return no errors. */
enum { bench_max_inputs = 8 };

struct bench {
    double seconds; /* for each row; what must run once may take longer */
    bool is_small;  /* everything a hundredth of its size: to try the bench, not to measure */
    const char *inputs[bench_max_inputs]; /* borrowed from argv, like names: what the rows read */
    size_t input_count;
    char **names;
    size_t name_count;
};

/* Reads the options. Ends the program with 0 after --help, and with 64 on wrong usage.
 * what: a sentence about the program. */
struct bench bench_begin(int argc, char **argv, const char *what);

/* Whether the row is selected: by its name, by a prefix of it, or by the name of one of its
 * figures, which begins with the row's. */
bool bench_wants(const struct bench *bench, const char *name);

/* count, or with --small a hundredth of it, but at least 1. */
size_t bench_size(const struct bench *bench, size_t count);

/* ---- Programs that a script drives ---- */

struct bench_command {
    const char *name;
    size_t words;                      /* behind the name */
    void (*obey)(char *const words[]); /* prints the answer, one line of JSON */
};

/* Reads commands from stdin, a line each, until its end.  One that is unknown, or has more or fewer
 * words, ends the program. */
void bench_obey(const struct bench_command *commands, size_t count);

/* The value of a word; one that is no such number ends the program. */
uint64_t bench_number(const char *word);
double bench_real(const char *word);

/* ---- Figures ---- */

void bench_figure(const char *name, double value, const char *unit);

/* more: further fields of the figure, as JSON. */
void bench_figure_with(const char *name, double value, const char *unit, const char *more);

/* ratio: above 1, ours is better.  Where nothing varies. */
void bench_figure_against(
    const char *name, double value, const char *unit, const char *against, double against_value,
    double ratio);

/* The median of rounds, with their spread. */
void bench_figure_rounds(const char *name, const double *values, size_t count, const char *unit);

/* Ours against theirs, where more is better, measured in turns: what disturbs the machine disturbs
 * both.  The values are the medians of the rounds, the ratio that of the rounds' ratios. */
void bench_figure_versus(
    const char *name, const double *ours, const char *against, const double *theirs, size_t count,
    const char *unit);

/* What is measured begins now: the next figures have the kernel's share of this process's processor
 * time from here to the first of them, without what is between bench_pause() and bench_resume(). */
void bench_measure(void);
void bench_pause(void);
void bench_resume(void);

/* A line on stderr. */
void bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, unless a line was printed less than a second ago. */
void bench_progress_now_and_then(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the program with 1 and the text of what failed, unless status is KVB_OK. */
void bench_must(kvb_status status, const char *what);
#define BENCH_MUST(expression) bench_must((expression), #expression)
#define BENCH_MUST_BE(condition) bench_must((condition) ? KVB_OK : KVB_IO, #condition)
void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Zeroed memory; ends the program when there is none. */
void *bench_memory(size_t count, size_t item_bytes);

/* ---- Measuring ---- */

/* Seconds since `since_ns` of kvb_clock_monotonic_ns(). */
double bench_seconds_since(uint64_t since_ns);

/* CPU time of this thread: page faults are in it, waiting for a busy core is not.  Some
 * 0.3 us a reading. */
uint64_t bench_cpu_ns(void);

/* The same of a whole process; 0 when it has ended. */
uint64_t bench_cpu_ns_of(pid_t pid);

/* Of values in any order, which are sorted; permille 0 .. 1000.  0 when there are none. */
uint32_t bench_percentile(uint32_t *values, size_t count, unsigned permille);
double bench_median(double *values, size_t count);

/* Interquartile range (linear between values) over the median, of values in any order, which
 * are sorted: 0.05 is 5 %.  0 when all are equal, 1 when only the median is 0, NAN for less than
 * three. */
double bench_spread(double *values, size_t count);

/* The spread of a percentile of samples in the order in which they were taken: that of the same
 * percentile of nine consecutive parts of them; NAN for few samples. */
double bench_percentile_spread(const uint32_t *samples, size_t count, unsigned permille);

/* Of this process, resident. */
size_t bench_resident_bytes(void);

/* ---- Random numbers and mixing ---- */

/* Spreads 64 bits over 64 bits; never two to one (the finaliser of splitmix64). */
uint64_t bench_mix(uint64_t value);

/* xorshift64*: state is never 0. */
uint64_t bench_random(uint64_t *state);
