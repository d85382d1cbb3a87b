#include "daemon/file_watch.h"

#include "core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

/* Waits this long after an event, because a file may be written in several parts. */
static const uint64_t settle_ns = 200 * KVB_NS_PER_MS;
static const uint64_t compare_period_ns = 10 * KVB_NS_PER_S;

static void watch_directory_of(struct kvb_file_watch *watch, const char *file)
{
    char path[PATH_MAX];
    const char *slash = strrchr(file, '/');
    const size_t len = slash ? (size_t)(slash - file) : 0;

    /* The directory and not the file: a rename puts another file in the place of the watched
     * one. */
    if (len < sizeof path) {
        (void)snprintf(path, sizeof path, "%.*s/", slash ? (int)len : 1, slash ? file : ".");
        /* Adding a directory again does not add a second watch.  On failure the periodic check
         * remains. */
        (void)inotify_add_watch(
            watch->fd, path, IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_ATTRIB);
    }
}

/* Called at each comparison, because links may point to other directories by then. */
static void watch_directories(struct kvb_file_watch *watch)
{
    char target[PATH_MAX];

    for (size_t i = 0; i < watch->count && watch->fd >= 0; i++) {
        watch_directory_of(watch, watch->files[i].path);
        /* A file of a mounted ConfigMap is a link, and Kubernetes changes only what the link leads
         * to. */
        if (realpath(watch->files[i].path, target)) {
            watch_directory_of(watch, target);
        }
    }
}

static bool is_before(const struct timespec *one, const struct timespec *other)
{
    return one->tv_sec != other->tv_sec ? one->tv_sec < other->tv_sec
                                        : one->tv_nsec < other->tv_nsec;
}

static bool is_same_file(const struct stat *one, const struct stat *other)
{
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino &&
           one->st_size == other->st_size && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
           one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

struct timespec kvb_file_watch_now(void)
{
    struct timespec now = { 0 };

    (void)clock_gettime(CLOCK_REALTIME_COARSE, &now); /* fails only for unknown clocks */
    return now;
}

static void open_inotify(struct kvb_file_watch *watch, struct kvb_log *log)
{
    watch->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    /* SIGIO, because the thread that compares the files waits for signals and not for
     * descriptors. */
    if (watch->fd < 0 || fcntl(watch->fd, F_SETOWN, getpid()) != 0 ||
        fcntl(watch->fd, F_SETFL, O_NONBLOCK | O_ASYNC) != 0) {
        kvb_log_write(
            log, KVB_LOG_WARNING, "kvbridge",
            "inotify cannot be used: changed files are noticed every 10 s", "why",
            strerrordesc_np(errno), NULL);
        if (watch->fd >= 0) {
            (void)close(watch->fd);
        }
        watch->fd = -1;
    }
}

void kvb_file_watch_close(struct kvb_file_watch *watch)
{
    if (watch->fd >= 0) {
        (void)close(watch->fd);
    }
    *watch = (struct kvb_file_watch){ .fd = -1 };
}

void kvb_file_watch_set(
    struct kvb_file_watch *watch, const char *const *paths, size_t count, struct timespec since,
    struct kvb_log *log)
{
    kvb_file_watch_close(watch);
    if (count == 0) {
        return;
    }
    open_inotify(watch, log);
    watch->count = count;
    watch->compare_ns = kvb_clock_monotonic_ns() + compare_period_ns;
    for (size_t i = 0; i < count; i++) {
        watch->files[i].path = paths[i];
    }
    /* Before the files are looked at: a change in between is noticed twice rather than never. */
    watch_directories(watch);
    for (size_t i = 0; i < count; i++) {
        struct stat *seen = &watch->files[i].seen;
        /* Missing, or changed while it was being read: it is compared at once, with what no file
         * is. */
        if (stat(paths[i], seen) != 0 || !is_before(&seen->st_ctim, &since)) {
            *seen = (struct stat){ .st_size = -1 };
            watch->compare_ns = kvb_clock_monotonic_ns();
        }
    }
}

void kvb_file_watch_take_events(struct kvb_file_watch *watch, uint64_t now_ns)
{
    char events[4096];

    /* Only that there are events counts: stat() says which files have changed. */
    while (watch->fd >= 0 && read(watch->fd, events, sizeof events) > 0) {
        watch->compare_ns = now_ns + settle_ns;
    }
}

bool kvb_file_watch_has_changed(struct kvb_file_watch *watch, uint64_t now_ns)
{
    bool has_changed = false;

    if (watch->count == 0 || now_ns < watch->compare_ns) {
        return false;
    }
    watch->compare_ns = now_ns + compare_period_ns;
    watch_directories(watch);
    for (size_t i = 0; i < watch->count; i++) {
        struct stat now;
        /* One that is missing now is being replaced, and is compared when it is there again. */
        if (stat(watch->files[i].path, &now) == 0 && !is_same_file(&now, &watch->files[i].seen)) {
            watch->files[i].seen = now;
            has_changed = true;
        }
    }
    return has_changed;
}

uint64_t kvb_file_watch_due_ns(const struct kvb_file_watch *watch)
{
    return watch->count > 0 ? watch->compare_ns : UINT64_MAX;
}
