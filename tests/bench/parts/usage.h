#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Processor time of a process, of all its threads: in its own code, and in the kernel on its
 * behalf (system calls, first touches of memory).
 * Threads: any thread. */
struct bench_usage {
    uint64_t user_ns;
    uint64_t kernel_ns;
};

/* So far.  pid 0: this process, in microseconds; another in the kernel's ticks of 10 ms.
 * Zero when the process is gone. */
struct bench_usage bench_usage_of(pid_t pid);

/* Zero where the later one is not later: the process is gone. */
struct bench_usage bench_usage_between(struct bench_usage earlier, struct bench_usage later);

struct bench_usage bench_usage_plus(struct bench_usage left, struct bench_usage right);

/* The kernel's share, percent; NAN where there is too little to tell. */
double bench_usage_kernel_percent(struct bench_usage usage);
