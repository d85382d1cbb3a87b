#include "kvb_test.h"

#include "core/clock.h"
#include "core/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { lines_written = 20000, read_bytes = 4 << 20 };

/* A log that writes into a pipe which holds one page. */
struct world {
    struct kvb_log log;
    int reader;
};

static void begin(struct world *world)
{
    int ends[2];

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 0);
    world->reader = ends[0];
    world->log = (struct kvb_log){ .level = KVB_LOG_INFO, .fd = ends[1] };
    assert_ok(kvb_log_start(&world->log));
}

static void write_lines(struct world *world, unsigned count)
{
    char text[24];

    for (unsigned i = 0; i < count; i++) {
        kvb_log_write(
            &world->log, KVB_LOG_INFO, "test", "a line", "number", kvb_log_u64(text, i), NULL);
    }
}

/* Reads until the writing end is closed, or until `last` has arrived. */
static char *read_until(const struct world *world, const char *last)
{
    char *text = calloc(1, read_bytes);
    size_t len = 0;
    ssize_t got = 1;

    assert_non_null(text);
    while (got > 0 && !(last && strstr(text, last))) {
        assert_true(len < read_bytes - 1);
        got = read(world->reader, text + len, read_bytes - 1 - len);
        assert_true(got >= 0);
        len += (size_t)got;
    }
    return text;
}

static unsigned count_of(const char *text, const char *word)
{
    unsigned count = 0;

    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        count++;
    }
    return count;
}

static void end(struct world *world)
{
    kvb_log_stop(&world->log);
    (void)close(world->log.fd);
    (void)close(world->reader);
}

/* A write(2) by this thread would wait forever, because nobody reads. */
static void writing_a_line_never_waits_for_the_reader(void **state)
{
    (void)state;
    struct world world;

    begin(&world);
    write_lines(&world, lines_written);
    assert_in_range(kvb_log_dropped(&world.log), 1, lines_written - 1000);
    end(&world); /* closing the log does not wait either */
}

static void dropped_lines_are_counted_and_reported_when_there_is_room_again(void **state)
{
    (void)state;
    struct world world;
    char said[32];

    begin(&world);
    write_lines(&world, lines_written);
    const uint64_t dropped = kvb_log_dropped(&world.log);
    (void)snprintf(said, sizeof said, "count=%llu\n", (unsigned long long)dropped);
    char *text = read_until(&world, said);
    assert_non_null(strstr(text, "lines were dropped"));
    assert_int_equal(count_of(text, " a line number="), lines_written - dropped);
    free(text);
    end(&world);
}

static void the_last_lines_are_written_before_the_end(void **state)
{
    (void)state;
    struct world world;

    begin(&world);
    /* poll(2) reports a pipe writable only with a free page, and a pipe of one page has none after
     * the first line */
    assert_true(fcntl(world.reader, F_SETPIPE_SZ, 1 << 16) > 0);
    write_lines(&world, 10);
    kvb_log_stop(&world.log);
    (void)close(world.log.fd);
    char *text = read_until(&world, NULL);
    assert_int_equal(count_of(text, " a line number="), 10);
    free(text);
    (void)close(world.reader);
}

static unsigned count_threads(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");

    assert_non_null(tasks);
    while (readdir(tasks)) { /* NOLINT(concurrency-mt-unsafe): a DIR of its own */
        count++;
    }
    (void)closedir(tasks);
    return count;
}

static void its_thread_ends_while_there_are_no_lines(void **state)
{
    (void)state;
    const unsigned before = count_threads();
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 20 * KVB_NS_PER_S;
    struct world world;

    begin(&world);
    assert_int_equal(count_threads(), before);
    for (int i = 0; i < 2; i++) {
        write_lines(&world, 1);
        free(read_until(&world, "a line number=0\n"));
        while (count_threads() > before) {
            assert_true(kvb_clock_monotonic_ns() < deadline_ns);
            (void)poll(NULL, 0, 20);
        }
    }
    end(&world);
}

SUITE(log_writer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing_a_line_never_waits_for_the_reader),
        cmocka_unit_test(dropped_lines_are_counted_and_reported_when_there_is_room_again),
        cmocka_unit_test(the_last_lines_are_written_before_the_end),
        cmocka_unit_test(its_thread_ends_while_there_are_no_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
