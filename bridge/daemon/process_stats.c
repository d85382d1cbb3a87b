#include "daemon/process_stats.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

/* The second number of statm: "total resident shared ...", in pages. */
static uint64_t resident_pages(void)
{
    char text[128] = "";
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file) {
        return 0;
    }
    const bool has_text = fgets(text, sizeof text, file) != NULL;
    (void)fclose(file); /* only read */
    const char *second = has_text ? strchr(text, ' ') : NULL;
    return second ? strtoull(second, NULL, 10) : 0;
}

void kvb_process_measure(struct kvb_process_stats *out_stats)
{
    struct rusage usage = { 0 };

    (void)getrusage(RUSAGE_SELF, &usage); /* cannot fail for the process itself */
    out_stats->cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    out_stats->resident_bytes = resident_pages() * (uint64_t)sysconf(_SC_PAGESIZE);
}
