#pragma once

#include <stdint.h>

/* What the kernel says of this process, under the names that every Prometheus
 * client library gives it.  Threads: any thread. */
struct kvb_process_figures {
    double cpu_s;            /* user and system, all threads */
    uint64_t resident_bytes; /* 0 where /proc is not mounted */
};

/* Two system calls and a small file: not on every turn of a loop. */
void kvb_process_measure(struct kvb_process_figures *out_figures);
