#include "fake_clock.h"

#include "core/clock.h"
#include "core/random.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>

static const uint64_t began_ns = 1000 * KVB_NS_PER_S;
static const uint64_t began_wall_us = UINT64_C(1700000000) * 1000000;
static const uint64_t reading_ns = 100;

static uint64_t clock_ns;
static uint64_t dice;
static void *(*caught_function)(void *);
static void *caught_context;
static bool is_caught, is_held;
static void (*waited)(void);

void fake_clock_reset(void)
{
    clock_ns = began_ns;
    dice = 1;
    is_caught = false;
}

void fake_clock_advance_ms(uint64_t ms)
{
    clock_ns += ms * KVB_NS_PER_MS;
}

uint64_t fake_clock_now_ns(void)
{
    return clock_ns;
}

/* ---- core/clock.h ---- */

uint64_t kvb_clock_monotonic_ns(void)
{
    clock_ns += reading_ns;
    return clock_ns;
}

uint64_t kvb_clock_thread_ns(void)
{
    return kvb_clock_monotonic_ns();
}

uint64_t kvb_clock_wall_us(void)
{
    return began_wall_us + clock_ns / 1000;
}

void kvb_clock_format_us(uint64_t wall_us, char out[kvb_clock_text_bytes])
{
    (void)wall_us;
    memcpy(out, "2026-01-02T03:04:05.678Z", sizeof "2026-01-02T03:04:05.678Z");
}

/* ---- Wrapped: the names are the linker's ----
 * NOLINTBEGIN(bugprone-*,cert-*,readability-identifier-naming) */

ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags)
{
    uint8_t *out = bytes;

    (void)flags;
    for (size_t i = 0; i < size; i++) {
        out[i] = (uint8_t)kvb_random_next(&dice);
    }
    return (ssize_t)size;
}

void fake_threads_hold(void *(*function)(void *), void (*while_waiting)(void))
{
    caught_function = function;
    waited = while_waiting;
    is_held = true;
}

void fake_threads_release(void)
{
    is_held = false;
}

bool fake_thread_run(void)
{
    if (is_caught) {
        (void)caught_function(caught_context);
    }
    return is_caught;
}

int __real_pthread_create(
    pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *context);
int __wrap_pthread_create(
    pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *context);
int __wrap_pthread_create(
    pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *context)
{
    if (!is_held) {
        return __real_pthread_create(thread, attributes, function, context);
    }
    if (function == caught_function) {
        caught_context = context;
        is_caught = true;
    }
    *thread = pthread_self();
    return 0;
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    return pthread_equal(thread, pthread_self()) ? 0 : __real_pthread_join(thread, result);
}

int __real_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
    if (!is_held) {
        return __real_pthread_cond_wait(condition, lock);
    }
    (void)pthread_mutex_unlock(lock);
    waited();
    return pthread_mutex_lock(lock);
}

int __real_pthread_cond_timedwait(
    pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(
    pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(
    pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *until)
{
    return is_held ? __wrap_pthread_cond_wait(condition, lock)
                   : __real_pthread_cond_timedwait(condition, lock, until);
}

/* NOLINTEND(bugprone-*,cert-*,readability-identifier-naming) */
