#include "kvb_test.h"

#include "core/clock.h"
#include "core/thread.h"

#include <errno.h>

/* A deadline of the monotonic clock lies decades in the past of the realtime clock. */
static void a_wait_uses_the_monotonic_clock(void **state)
{
    (void)state;
    const uint64_t until_ns = kvb_clock_monotonic_ns() + 20 * KVB_NS_PER_MS;
    const struct timespec until = { .tv_sec = (time_t)(until_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(until_ns % KVB_NS_PER_S) };
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition;
    int result = 0;

    kvb_cond_init_monotonic(&condition);
    pthread_mutex_lock(&lock);
    while (result == 0) {
        result = pthread_cond_timedwait(&condition, &lock, &until);
    }
    pthread_mutex_unlock(&lock);
    assert_int_equal(result, ETIMEDOUT);
    assert_true(kvb_clock_monotonic_ns() >= until_ns);
    pthread_cond_destroy(&condition);
}

SUITE(thread)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_uses_the_monotonic_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
