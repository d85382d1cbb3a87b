#include "core/thread.h"

#include <time.h>

kvb_status kvb_thread_start(struct kvb_thread *thread, void *(*run)(void *), void *context)
{
    if (pthread_create(&thread->id, NULL, run, context) != 0) {
        return KVB_IO;
    }
    thread->is_running = true;
    return KVB_OK;
}

void kvb_thread_join(struct kvb_thread *thread)
{
    if (thread->is_running) {
        (void)pthread_join(thread->id, NULL);
        thread->is_running = false;
    }
}

void kvb_cond_init_monotonic(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;

    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(condition, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}
