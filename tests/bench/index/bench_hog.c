#include "core/clock.h"
#include "core/own.h"
#include "parts/bench.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Takes memory bandwidth on one core, as another tenant of the host would: a single thread copies
 * from one half of its memory to the other, again and again.  It is bounded in memory and in time,
 * and prints what it copied. */

enum { half_bytes = 128 << 20 }; /* a whole one exceeds the last-level cache of one guest */

struct hog {
    uint64_t cpu;
    bool is_pinned;
};

static bool take_cpu(void *context, const char *value)
{
    struct hog *hog = context;

    hog->is_pinned = true;
    return bench_read_number(value, CPU_SETSIZE - 1, &hog->cpu) ||
           (hog->cpu = 0, strcmp(value, "0") == 0);
}

static void pin_to(uint64_t cpu)
{
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
        bench_fail("no such CPU: %d", (int)cpu);
    }
}

int main(int argc, char **argv)
{
    struct hog hog = { 0 };
    static const struct bench_option options[] = {
        { "--cpu", "N  the CPU to run on, from 0 (any)", take_cpu },
    };
    const struct bench_about about = {
        .what = "Copies memory for --seconds: what is measured beside it has less bandwidth.",
        .options = options,
        .option_count = KVB_COUNT_OF(options),
        .context = &hog,
    };
    const struct bench bench = bench_begin(argc, argv, &about);
    char *memory = bench_memory(2, half_bytes);
    double copied = 0;

    if (hog.is_pinned) {
        pin_to(hog.cpu);
    }
    memset(memory, 1, 2 * (size_t)half_bytes);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    while (bench_seconds_since(began_ns) < bench.seconds) {
        memcpy(memory + half_bytes, memory, half_bytes);
        memory[0]++; /* each copy is needed */
        copied += half_bytes;
    }
    bench_figure("hog.copied", copied / bench_seconds_since(began_ns) / 1e9, "GB/s");
    free(memory);
    return 0;
}
