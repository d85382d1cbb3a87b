#include "sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Runs seeds, one after the other; tests/sim/run starts it. */

struct options {
    uint64_t first, seeds, seconds;
    uint32_t off;
    bool is_tracing;
};

struct sums {
    uint64_t seeds, failed;
    uint64_t stream_ms, exact_ms; /* of seeds without faults that a replay does not repair */
};

static bool read_number(const char *text, uint64_t *out)
{
    char *end = NULL;

    *out = strtoull(text, &end, 10);
    return *text && !*end;
}

/* "3,7": the faults that occur; all others do not. */
static bool read_only(const char *text, uint32_t *off)
{
    char *end = NULL;

    *off = UINT32_MAX;
    for (; *text; text = *end ? end + 1 : end) {
        const unsigned long long number = strtoull(text, &end, 10);
        if (end == text || number >= sim_faults) {
            return false;
        }
        *off &= ~(UINT32_C(1) << number);
    }
    return true;
}

static bool read_options(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool is_right = true;
        if (strcmp(argv[i], "--trace") == 0) {
            options->is_tracing = true;
            continue;
        }
        if (strcmp(argv[i], "--none") == 0) {
            options->off = UINT32_MAX;
            continue;
        }
        if (strcmp(argv[i], "--first") == 0) {
            is_right = read_number(value, &options->first);
        } else if (strcmp(argv[i], "--seeds") == 0) {
            is_right = read_number(value, &options->seeds);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            is_right = read_number(value, &options->seconds);
        } else if (strcmp(argv[i], "--only") == 0) {
            is_right = read_only(value, &options->off);
        } else {
            is_right = false;
        }
        if (!is_right) {
            (void)fprintf(stderr, "sim: %s %s: not understood\n", argv[i], value);
            return false;
        }
        i++;
    }
    return true;
}

/* ---- The smallest set of faults that fails ---- */

static bool fails_without(uint64_t seed, uint32_t off, char *failure)
{
    struct sim_result result;

    sim_run(seed, off, NULL, &result);
    if (result.has_failed) {
        memcpy(failure, result.failure, sizeof result.failure);
    }
    return result.has_failed;
}

/* Leaves out one fault after the other while the seed still fails. Ends, because each round leaves
 * out at least one. */
static uint32_t shrink(uint64_t seed, uint32_t off, size_t faults, char *failure)
{
    bool has_shrunk = true;

    while (has_shrunk) {
        has_shrunk = false;
        for (size_t i = faults; i-- > 0;) {
            const uint32_t without = off | UINT32_C(1) << i;
            if (without != off && fails_without(seed, without, failure)) {
                off = without;
                has_shrunk = true;
            }
        }
    }
    return off;
}

static void print_min(uint64_t seed, uint32_t off, const struct sim_result *result)
{
    char failure[sizeof result->failure];
    const char *separator = "";

    memcpy(failure, result->failure, sizeof failure);
    const uint32_t min = shrink(seed, off, result->fault_count, failure);
    printf("seed %" PRIu64 " fails at %s\n", seed, result->failure);
    printf("the least that fails, at %s\n", failure);
    for (size_t i = 0; i < result->fault_count; i++) {
        if (!(min >> i & 1)) {
            sim_print_fault(stdout, seed, i);
        }
    }
    printf("tests/sim/run --first %" PRIu64 " --seeds 1 --trace ", seed);
    if ((min | ~((UINT32_C(1) << result->fault_count) - 1)) == UINT32_MAX) {
        printf("--none");
    } else {
        printf("--only ");
    }
    for (size_t i = 0; i < result->fault_count; i++) {
        if (!(min >> i & 1)) {
            printf("%s%zu", separator, i);
            separator = ",";
        }
    }
    printf("\n");
    (void)fflush(stdout);
}

/* ---- Seeds ---- */

static void run_seed(const struct options *options, uint64_t seed, struct sums *sums)
{
    struct sim_result result;

    sim_run(seed, options->off, options->is_tracing ? stdout : NULL, &result);
    sums->seeds++;
    if (result.has_failed) {
        sums->failed++;
        print_min(seed, options->off, &result);
    }
    if (result.is_repairable) {
        sums->stream_ms += result.stream_ms;
        sums->exact_ms += result.exact_ms;
    }
}

/* The same seed must give the same trace. */
static void run_twice(const struct options *options, uint64_t seed, struct sums *sums)
{
    struct sim_result results[2];
    FILE *nowhere = fopen("/dev/null", "w");

    for (int i = 0; i < 2 && nowhere; i++) {
        sim_run(seed, options->off, nowhere, &results[i]);
    }
    if (!nowhere || results[0].trace_hash != results[1].trace_hash) {
        printf("seed %" PRIu64 " leaves two traces\n", seed);
        sums->failed++;
    }
    if (nowhere) {
        (void)fclose(nowhere);
    }
}

int main(int argc, char **argv)
{
    struct options options = { .seeds = 100 };
    struct sums sums = { 0 };
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    uint64_t said_ns = began_ns;

    if (!read_options(argc, argv, &options)) {
        return 64;
    }
    for (uint64_t i = 0; i < options.seeds && sums.failed < 10; i++) {
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        if (options.seconds > 0 && now_ns >= began_ns + options.seconds * KVB_NS_PER_S) {
            break;
        }
        if (now_ns >= said_ns + 2 * KVB_NS_PER_S) {
            said_ns = now_ns;
            (void)fprintf(stderr, "sim: %" PRIu64 " seeds from %" PRIu64 "\n", i, options.first);
        }
        run_seed(&options, options.first + i, &sums);
        if ((options.first + i) % 100 == 0 && !options.is_tracing) {
            run_twice(&options, options.first + i, &sums);
        }
    }
    printf(
        "sums %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", sums.seeds, sums.failed,
        sums.stream_ms, sums.exact_ms);
    return sums.failed > 0;
}
