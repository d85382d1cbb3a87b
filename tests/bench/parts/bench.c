#include "parts/bench.h"

#include "core/clock.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Only one thread runs while options are read and when the program gives up.
 * NOLINTBEGIN(concurrency-mt-unsafe) */

enum { ends_wrong_usage = 64, default_seconds = 10 };

/* Part of every figure of such a run, so that readers see it whatever else is printed. */
#ifdef __OPTIMIZE__
static const char *note = "";
#else
static const char *note = ",\"note\":\"built without optimisation\"";
#endif

/* ---- Options ---- */

static void say_help(const char *program, const char *what)
{
    printf("usage: %s [--seconds N] [--small] [--input FILE]... [NAME...]\n%s\n\n", program, what);
    printf("  --seconds N   each row takes about so long (%d)\n", default_seconds);
    printf("  --small       a hundredth of everything: to try the bench, not to measure\n");
    printf("  --input FILE  what the rows read; the script that runs this program knows\n");
    printf("  NAME          a row, or how names of rows begin (all)\n");
}

struct bench bench_begin(int argc, char **argv, const char *what)
{
    static const struct option options[] = { { "seconds", required_argument, NULL, 's' },
                                             { "small", no_argument, NULL, 'm' },
                                             { "input", required_argument, NULL, 'i' },
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    struct bench bench = { .seconds = default_seconds };

    for (int option = 0; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 's':
            bench.seconds = bench_real(optarg);
            break;
        case 'm':
            bench.is_small = true;
            note = ",\"note\":\"with --small\"";
            break;
        case 'i':
            if (bench.input_count == bench_max_inputs) {
                bench_fail("more than %d inputs", bench_max_inputs);
            }
            bench.inputs[bench.input_count++] = optarg;
            break;
        default:
            say_help(argv[0], what);
            exit(option == 'h' ? 0 : ends_wrong_usage);
        }
    }
    bench.names = argv + optind;
    bench.name_count = (size_t)(argc - optind);
#ifndef __OPTIMIZE__
    bench_progress("%s: built without optimisation; its figures have no meaning", argv[0]);
#endif
    return bench;
}

bool bench_wants(const struct bench *bench, const char *name)
{
    const size_t len = strlen(name);

    for (size_t i = 0; i < bench->name_count; i++) {
        const size_t asked = strlen(bench->names[i]);
        if (strncmp(name, bench->names[i], asked < len ? asked : len) == 0) {
            return true;
        }
    }
    return bench->name_count == 0;
}

size_t bench_size(const struct bench *bench, size_t count)
{
    enum { smaller = 100 };

    return !bench->is_small ? count : count > smaller ? count / smaller : 1;
}

/* ---- Commands ---- */

void bench_obey(const struct bench_command *commands, size_t count)
{
    enum { max_words = 8 };
    char line[512];

    while (fgets(line, sizeof line, stdin)) {
        char *words[max_words];
        char *rest = line;
        size_t word_count = 0;
        size_t at = 0;
        while (word_count < max_words && (words[word_count] = strtok_r(rest, " \n", &rest))) {
            word_count++;
        }
        while (at < count && word_count > 0 && strcmp(commands[at].name, words[0]) != 0) {
            at++;
        }
        if (word_count == 0 || at == count || commands[at].words != word_count - 1) {
            bench_fail("no such command: %s", line);
        }
        commands[at].obey(words + 1);
        printf("\n");
        (void)fflush(stdout);
    }
}

uint64_t bench_number(const char *word)
{
    char *end = NULL;
    const uint64_t number = strtoull(word, &end, 10);

    if (end == word || *end) {
        bench_fail("no number: %s", word);
    }
    return number;
}

double bench_real(const char *word)
{
    char *end = NULL;
    const double number = strtod(word, &end);

    if (end == word || *end) {
        bench_fail("no number: %s", word);
    }
    return number;
}

/* ---- Figures ---- */

/* Processor time of this process, whose kernel's share the next figures have. */
struct usage {
    uint64_t user_ns;
    uint64_t kernel_ns; /* on its behalf: system calls, first touches of memory */
};

static struct {
    bool is_running;
    struct usage began;
    struct usage sum;
} measured;

static uint64_t ns_of(struct timeval time)
{
    return (uint64_t)time.tv_sec * KVB_NS_PER_S + (uint64_t)time.tv_usec * 1000;
}

static struct usage usage_now(void)
{
    struct rusage usage = { 0 };

    (void)getrusage(RUSAGE_SELF, &usage); /* cannot fail for this process */
    return (struct usage){ ns_of(usage.ru_utime), ns_of(usage.ru_stime) };
}

void bench_measure(void)
{
    measured.sum = (struct usage){ 0 };
    bench_resume();
}

void bench_resume(void)
{
    measured.is_running = true;
    measured.began = usage_now();
}

void bench_pause(void)
{
    const struct usage now = usage_now();

    if (measured.is_running) {
        measured.sum.user_ns += now.user_ns - measured.began.user_ns;
        measured.sum.kernel_ns += now.kernel_ns - measured.began.kernel_ns;
    }
    measured.is_running = false;
}

/* Percent; NAN where there is too little to tell. */
static double kernel_percent(void)
{
    const uint64_t whole_ns = measured.sum.user_ns + measured.sum.kernel_ns;

    return whole_ns < 10 * KVB_NS_PER_MS ? (double)NAN
                                         : 100 * (double)measured.sum.kernel_ns / (double)whole_ns;
}

/* What a figure may have beside its value. */
struct beside {
    const char *against; /* NULL: nothing */
    double against_value, ratio;
    size_t rounds; /* 0: not printed, like spreads that are NAN */
    double spread, ratio_spread;
    const char *more; /* JSON; NULL: none */
};

static void print_spread(const char *name, double spread)
{
    if (!isnan(spread)) {
        printf(",\"%s\":%.4f", name, spread);
    }
}

static void print_against(const struct beside *beside)
{
    if (!beside->against) {
        printf("\"against\":null,\"against_value\":null,\"ratio\":null");
        return;
    }
    printf(
        "\"against\":\"%s\",\"against_value\":%.17g,\"ratio\":%.17g", beside->against,
        beside->against_value, beside->ratio);
}

static void
print_figure(const char *name, double value, const char *unit, const struct beside *beside)
{
    bench_pause();
    printf("{\"name\":\"%s\",\"value\":%.17g,\"unit\":\"%s\",", name, value, unit);
    print_against(beside);
    if (beside->rounds > 0) {
        printf(",\"rounds\":%zu", beside->rounds);
        print_spread("spread", beside->spread);
        print_spread("ratio_spread", beside->ratio_spread);
    }
    if (!isnan(kernel_percent())) {
        printf(",\"kernel_percent\":%.1f", kernel_percent());
    }
    printf("%s%s%s}\n", beside->more ? "," : "", beside->more ? beside->more : "", note);
    (void)fflush(stdout);
}

void bench_figure(const char *name, double value, const char *unit)
{
    print_figure(name, value, unit, &(struct beside){ .against = NULL });
}

void bench_figure_with(const char *name, double value, const char *unit, const char *more)
{
    print_figure(name, value, unit, &(struct beside){ .more = more });
}

void bench_figure_against(
    const char *name, double value, const char *unit, const char *against, double against_value,
    double ratio)
{
    const struct beside beside = { .against = against,
                                   .against_value = against_value,
                                   .ratio = ratio };

    print_figure(name, value, unit, &beside);
}

/* Median and spread of values that stay as they are. */
static double median_of(const double *values, size_t count, double *out_spread)
{
    double *sorted = bench_memory(count > 0 ? count : 1, sizeof *sorted);

    memcpy(sorted, values, count * sizeof *sorted);
    const double median = bench_median(sorted, count);
    *out_spread = bench_spread(sorted, count);
    free(sorted);
    return median;
}

void bench_figure_rounds(const char *name, const double *values, size_t count, const char *unit)
{
    struct beside beside = { .rounds = count, .ratio_spread = NAN };
    const double median = median_of(values, count, &beside.spread);

    print_figure(name, median, unit, &beside);
}

void bench_figure_versus(
    const char *name, const double *ours, const char *against, const double *theirs, size_t count,
    const char *unit)
{
    struct beside beside = { .against = against, .rounds = count };
    double *ratios = bench_memory(count > 0 ? count : 1, sizeof *ratios);
    double their_spread = 0;

    for (size_t i = 0; i < count; i++) {
        ratios[i] = theirs[i] > 0 ? ours[i] / theirs[i] : 0;
    }
    const double median = median_of(ours, count, &beside.spread);
    beside.against_value = median_of(theirs, count, &their_spread);
    beside.ratio = median_of(ratios, count, &beside.ratio_spread);
    print_figure(name, median, unit, &beside);
    free(ratios);
}

__attribute__((format(printf, 1, 0))) static void say(const char *format, va_list words)
{
    (void)vfprintf(stderr, format, words);
    (void)fputc('\n', stderr);
}

void bench_progress(const char *format, ...)
{
    va_list words;

    va_start(words, format);
    say(format, words);
    va_end(words);
}

void bench_progress_now_and_then(const char *format, ...)
{
    static uint64_t said_ns;
    va_list words;

    if (said_ns == 0 || bench_seconds_since(said_ns) >= 1) {
        said_ns = kvb_clock_monotonic_ns();
        va_start(words, format);
        say(format, words);
        va_end(words);
    }
}

void bench_fail(const char *format, ...)
{
    va_list words;

    va_start(words, format);
    say(format, words);
    va_end(words);
    exit(1);
}

void bench_must(kvb_status status, const char *what)
{
    if (status != KVB_OK) {
        bench_fail("%s: %s", what, kvb_status_name(status));
    }
}

/* NOLINTEND(concurrency-mt-unsafe) */

void *bench_memory(size_t count, size_t item_bytes)
{
    void *memory = calloc(count, item_bytes);

    if (!memory) {
        bench_fail("no memory for %zu times %zu bytes", count, item_bytes);
    }
    return memory;
}

/* ---- Measuring ---- */

uint64_t bench_cpu_ns(void)
{
    struct timespec now = { 0 };

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * KVB_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t bench_cpu_ns_of(pid_t pid)
{
    struct timespec used = { 0 };
    clockid_t clock = 0;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) {
        return 0;
    }
    return (uint64_t)used.tv_sec * KVB_NS_PER_S + (uint64_t)used.tv_nsec;
}

double bench_seconds_since(uint64_t since_ns)
{
    return (double)(kvb_clock_monotonic_ns() - since_ns) / (double)KVB_NS_PER_S;
}

static int by_number(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left;
    const uint32_t b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

uint32_t bench_percentile(uint32_t *values, size_t count, unsigned permille)
{
    if (count == 0) {
        return 0;
    }
    qsort(values, count, sizeof *values, by_number);
    const size_t at = count * permille / 1000;
    return values[at < count ? at : count - 1];
}

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;

    return (a > b) - (a < b);
}

double bench_median(double *values, size_t count)
{
    if (count == 0) {
        return 0;
    }
    qsort(values, count, sizeof *values, by_size);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Of sorted values, linear between them. */
static double quantile(const double *values, size_t count, double part)
{
    const double at = part * (double)(count - 1);
    const size_t below = (size_t)at;
    const size_t above = below + 1 < count ? below + 1 : below;

    return values[below] + (at - (double)below) * (values[above] - values[below]);
}

double bench_spread(double *values, size_t count)
{
    enum { min_rounds = 3 };

    if (count < min_rounds) {
        return NAN;
    }
    const double median = bench_median(values, count); /* sorts */
    const double range = quantile(values, count, 0.75) - quantile(values, count, 0.25);
    if (median <= 0) {
        return range > 0 ? 1 : 0;
    }
    return range / median;
}

double bench_percentile_spread(const uint32_t *samples, size_t count, unsigned permille)
{
    enum { parts = 9, min_above = 5 };
    const size_t part = count / parts;
    double of_parts[parts];

    if (part * (1000 - permille) < (size_t)min_above * 1000) {
        return NAN;
    }
    uint32_t *copy = bench_memory(part, sizeof *copy);
    for (size_t i = 0; i < parts; i++) {
        memcpy(copy, samples + i * part, part * sizeof *copy);
        of_parts[i] = bench_percentile(copy, part, permille);
    }
    free(copy);
    return bench_spread(of_parts, parts);
}

size_t bench_resident_bytes(void)
{
    char text[128] = "";
    char *resident = text;
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file || !fgets(text, sizeof text, file)) {
        bench_fail("/proc/self/statm cannot be read");
    }
    (void)fclose(file); /* only read from */
    /* In pages: all that is mapped, then what is resident of it. */
    (void)strtoul(text, &resident, 10);
    return strtoul(resident, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- Random numbers and mixing ---- */

uint64_t bench_mix(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

uint64_t bench_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}
