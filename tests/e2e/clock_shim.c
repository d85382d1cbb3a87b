#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Preloaded (LD_PRELOAD): a realtime clock that a test sets while the program runs.
 *
 *     shown = real + the 8 bytes of the file KVB_CLOCK_FILE, in ms
 *
 * The monotonic clock stays as it is.  A wait with a deadline on the realtime clock ends when
 * the clock that is shown passes it, as the kernel's would. */

enum { longest_nap_ns = 20000000, ns_per_s = 1000000000, ns_per_ms = 1000000 };

static int64_t shift_ms(void)
{
    static volatile int64_t *shift;
    static volatile int64_t none;

    if (!shift) {
        const char *path = getenv("KVB_CLOCK_FILE");
        const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *page = fd < 0 ? MAP_FAILED : mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
        shift = page == MAP_FAILED ? &none : page;
    }
    return *shift;
}

static int64_t in_ns(const struct timespec *at)
{
    return (int64_t)at->tv_sec * ns_per_s + at->tv_nsec;
}

static struct timespec of_ns(int64_t ns)
{
    return (struct timespec){ .tv_sec = ns / ns_per_s, .tv_nsec = ns % ns_per_s };
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    const int answer = (int)syscall(SYS_clock_gettime, clock, out);

    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        *out = of_ns(in_ns(out) + shift_ms() * ns_per_ms);
    }
    return answer;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){ .tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000 };
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (out) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

typedef int (*timed_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

/* glibc sets bit 1 of __wrefs for a condition variable that uses the monotonic clock. */
int pthread_cond_timedwait(
    pthread_cond_t *restrict cond, pthread_mutex_t *restrict lock,
    const struct timespec *restrict deadline)
{
    static timed_wait real;

    if (!real) {
        real = (timed_wait)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    }
    if (cond->__data.__wrefs & 2) {
        return real(cond, lock, deadline);
    }
    for (;;) {
        struct timespec shown;
        struct timespec nap;
        clock_gettime(CLOCK_REALTIME, &shown);
        const int64_t left_ns = in_ns(deadline) - in_ns(&shown);
        if (left_ns <= 0) {
            return ETIMEDOUT;
        }
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &nap);
        nap = of_ns(in_ns(&nap) + (left_ns < longest_nap_ns ? left_ns : longest_nap_ns));
        const int answer = real(cond, lock, &nap);
        if (answer != ETIMEDOUT) {
            return answer;
        }
    }
}
