#pragma once

#include "core/status.h"

#include <pthread.h>
#include <stdbool.h>

/* A thread that one owner starts and joins.  {0} is a thread that does not run.
 *
 * Threads: only the owner's thread. */
struct kvb_thread {
    pthread_t id;
    bool is_running; /* started, and not joined yet */
};

/* Calls run(context) on a new thread.  The thread names itself (for top -H): to name another
 * thread, glibc writes to a file in /proc, which the sandbox of systemd refuses.
 * KVB_IO  the system has no more threads */
kvb_status kvb_thread_start(struct kvb_thread *thread, void *(*run)(void *), void *context);

/* Waits until the thread ends, if it runs. */
void kvb_thread_join(struct kvb_thread *thread);

/* Timed waits on this condition use the monotonic clock.  Cannot fail with glibc. */
void kvb_cond_init_monotonic(pthread_cond_t *condition);
