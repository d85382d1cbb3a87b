#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "daemon/file_watch.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder below /tmp, with the paths of files in it. */
struct folder {
    char path[32];
    char file[64];
};

static void open_folder(struct folder *folder)
{
    (void)snprintf(folder->path, sizeof folder->path, "/tmp/kvb-watch-XXXXXX");
    assert_non_null(mkdtemp(folder->path));
    (void)snprintf(folder->file, sizeof folder->file, "%s/a.cfg", folder->path);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void remove_folder(const char *path)
{
    char name[512];
    DIR *directory = opendir(path);

    assert_non_null(directory);
    for (struct dirent *entry;
         /* NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread uses this folder */
         (entry = readdir(directory));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%s/%.200s", path, entry->d_name);
        assert_int_equal(unlink(name), 0);
    }
    (void)closedir(directory);
    assert_int_equal(rmdir(path), 0);
}

/* Waits until kvb_file_watch_now() is later than the file's newest change. */
static void wait_for_tick(const char *path)
{
    struct timespec now;
    struct stat about;

    assert_int_equal(stat(path, &about), 0);
    do {
        now = kvb_file_watch_now();
    } while (now.tv_sec < about.st_ctim.tv_sec ||
             (now.tv_sec == about.st_ctim.tv_sec && now.tv_nsec <= about.st_ctim.tv_nsec));
}

static struct kvb_log silent = { .level = KVB_LOG_ERROR, .fd = 2 };

static void watch_one(struct kvb_file_watch *watch, const char *path)
{
    wait_for_tick(path);
    kvb_file_watch_set(watch, &path, 1, kvb_file_watch_now(), &silent);
}

/* Waits as kvb_daemon_wait_for_end() does after SIGIO, until no more changes come. */
static bool has_changed_soon(struct kvb_file_watch *watch)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    kvb_file_watch_take_events(watch, now_ns);
    assert_false(kvb_file_watch_has_changed(watch, now_ns));
    return kvb_file_watch_has_changed(watch, now_ns + KVB_NS_PER_S);
}

static void a_change_during_the_read_is_noticed(void **state)
{
    (void)state;
    KVB_OWN(kvb_file_watch_close) struct kvb_file_watch watch = { .fd = -1 };
    struct folder folder;

    open_folder(&folder);
    const struct timespec since = kvb_file_watch_now();
    write_file(folder.file, "one");
    const char *path = folder.file;
    kvb_file_watch_set(&watch, &path, 1, since, &silent);
    assert_true(kvb_file_watch_has_changed(&watch, kvb_clock_monotonic_ns()));
    assert_false(has_changed_soon(&watch));
    remove_folder(folder.path);
}

static void without_inotify_files_are_compared_every_ten_seconds(void **state)
{
    (void)state;
    KVB_OWN(kvb_file_watch_close) struct kvb_file_watch watch = { .fd = -1 };
    struct folder folder;

    open_folder(&folder);
    write_file(folder.file, "one");
    watch_one(&watch, folder.file);
    (void)close(watch.fd);
    watch.fd = -1;
    write_file(folder.file, "three");
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    kvb_file_watch_take_events(&watch, now_ns);
    assert_false(kvb_file_watch_has_changed(&watch, now_ns));
    assert_in_range(
        kvb_file_watch_due_ns(&watch), now_ns + 8 * KVB_NS_PER_S, now_ns + 10 * KVB_NS_PER_S);
    assert_true(kvb_file_watch_has_changed(&watch, kvb_file_watch_due_ns(&watch)));
    remove_folder(folder.path);
}

SUITE(file_watch)
{
    /* As kvb_daemon_block_signals() does. */
    sigset_t signals;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGIO);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_change_during_the_read_is_noticed),
        cmocka_unit_test(without_inotify_files_are_compared_every_ten_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
