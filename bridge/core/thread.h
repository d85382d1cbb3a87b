#pragma once

#include "core/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

/* A thread that one owner starts and joins; {0} is one that does not run.
 *
 * Threads: the owner's. */
struct kvb_thread {
    pthread_t id;
    bool is_running; /* started, and not joined yet */
};

/* Calls run(context) on a new thread, which names itself for top -H: to name another one, glibc
 * writes to a file in /proc.
 * KVB_IO  the system has no more threads */
static inline kvb_status
kvb_thread_start(struct kvb_thread *thread, void *(*run)(void *), void *context)
{
    if (pthread_create(&thread->id, NULL, run, context) != 0) {
        return KVB_IO;
    }
    thread->is_running = true;
    return KVB_OK;
}

/* Waits for its end, when it runs. */
static inline void kvb_thread_join(struct kvb_thread *thread)
{
    if (thread->is_running) {
        (void)pthread_join(thread->id, NULL);
        thread->is_running = false;
    }
}

/* Waits on it end by the monotonic clock.  Cannot fail with glibc. */
static inline void kvb_cond_init_monotonic(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;

    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(condition, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}
