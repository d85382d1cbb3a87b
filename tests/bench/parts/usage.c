#include "parts/usage.h"

#include "core/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t ns_of(struct timeval time)
{
    return (uint64_t)time.tv_sec * KVB_NS_PER_S + (uint64_t)time.tv_usec * 1000;
}

static struct bench_usage own_usage(void)
{
    struct rusage usage = { 0 };

    (void)getrusage(RUSAGE_SELF, &usage); /* cannot fail for this process */
    return (struct bench_usage){ ns_of(usage.ru_utime), ns_of(usage.ru_stime) };
}

/* /proc/PID/stat: "pid (name) state ...", utime and stime are the 12th and 13th after the name,
 * which may have blanks and parentheses of its own. */
static struct bench_usage usage_in(const char *line)
{
    enum { before_utime = 11 };
    const uint64_t tick_ns = KVB_NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK);
    const char *at = strrchr(line, ')');
    char *end = NULL;

    for (int i = 0; at && i <= before_utime; i++) {
        at = strchr(at + 1, ' ');
    }
    if (!at) {
        return (struct bench_usage){ 0 };
    }
    const uint64_t user = strtoull(at, &end, 10);
    return (struct bench_usage){ user * tick_ns, strtoull(end, NULL, 10) * tick_ns };
}

struct bench_usage bench_usage_of(pid_t pid)
{
    char path[64];
    char line[1024] = "";

    if (pid == 0) {
        return own_usage();
    }
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) {
        return (struct bench_usage){ 0 };
    }
    const char *text = fgets(line, sizeof line, file);
    (void)fclose(file); /* only read from */
    return text ? usage_in(text) : (struct bench_usage){ 0 };
}

struct bench_usage bench_usage_between(struct bench_usage earlier, struct bench_usage later)
{
    if (later.user_ns < earlier.user_ns || later.kernel_ns < earlier.kernel_ns) {
        return (struct bench_usage){ 0 };
    }
    return (struct bench_usage){ later.user_ns - earlier.user_ns,
                                 later.kernel_ns - earlier.kernel_ns };
}

struct bench_usage bench_usage_plus(struct bench_usage left, struct bench_usage right)
{
    return (struct bench_usage){ left.user_ns + right.user_ns, left.kernel_ns + right.kernel_ns };
}

double bench_usage_kernel_percent(struct bench_usage usage)
{
    const uint64_t min_ns = 10 * KVB_NS_PER_MS; /* a tick */
    const uint64_t whole_ns = usage.user_ns + usage.kernel_ns;

    return whole_ns < min_ns ? (double)NAN : 100 * (double)usage.kernel_ns / (double)whole_ns;
}
