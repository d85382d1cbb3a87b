#pragma once

#include <stdint.h>

/* CPU time and memory of this process, from the kernel; the metrics have the names that
 * Prometheus client libraries use.  Threads: any thread. */
struct kvb_process_stats {
    double cpu_s;            /* user and system, all threads */
    uint64_t resident_bytes; /* 0 where /proc is not mounted */
};

/* Costs two system calls and reading a small file: do not call it on every turn of a loop. */
void kvb_process_measure(struct kvb_process_stats *out_stats);
