#include "kvb_test.h"

#include "core/hash.h"
#include "core/little_endian.h"
#include "kvbridge/republish_numbers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static char path[128];

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/kvb-numbers-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/rank.numbers", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)remove(path);
    (void)remove(folder);
    return 0;
}

/* Replaces the system call, to count who waits for the disk. */
static int waits;
int count_wait(int file) __asm__("fdatasync");

int count_wait(int file)
{
    (void)file;
    waits++;
    return 0;
}

static uint64_t read_end(void)
{
    uint64_t end = 0;

    return kvb_republish_numbers_read(folder, "rank", &end) == KVB_OK ? end : 0;
}

static void flip(long at)
{
    uint8_t byte = 0;
    const int file = open(path, O_RDWR | O_CLOEXEC);

    assert_true(file >= 0);
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    (void)close(file);
}

static void a_corrupt_file_is_ignored(void **state)
{
    (void)state;
    for (long at = 0; at < 40; at++) {
        assert_ok(kvb_republish_numbers_write(folder, "rank", 77, true));
        flip(at);
        assert_int_equal(read_end(), 0);
    }
    assert_ok(kvb_republish_numbers_write(folder, "rank", 77, true));
    assert_int_equal(truncate(path, 39), 0);
    assert_int_equal(read_end(), 0);
}

static void a_process_begins_behind_the_used_numbers_and_reserves_on_disk(void **state)
{
    (void)state;
    const struct kvb_republish_numbers fresh =
        kvb_republish_numbers_begin(folder, "rank", 500, 100, false);
    assert_true(fresh.first == 500 && fresh.end == 600);
    assert_int_equal(read_end(), 600);
    assert_ok(kvb_republish_numbers_write(folder, "rank", 507, true));

    waits = 0;
    const struct kvb_republish_numbers next =
        kvb_republish_numbers_begin(folder, "rank", 9000, 100, false);
    assert_true(next.first == 507 && next.end == 607);
    assert_int_equal(waits, 1); /* otherwise the exact file would be used after a power loss */
    flip(16);                   /* as if the machine had rebooted */
    assert_int_equal(read_end(), 0);
}

static void a_reservation_does_not_wait_for_the_disk(void **state)
{
    (void)state;
    waits = 0;
    (void)kvb_republish_numbers_begin(folder, "rank", 500, 100, false); /* there is no file */
    assert_ok(kvb_republish_numbers_write(folder, "rank", 700, false));
    assert_int_equal(waits, 0);
    assert_ok(kvb_republish_numbers_write(folder, "rank", 700, true));
    assert_int_equal(waits, 1);
}

static uint64_t first_at(uint64_t clock, bool from_clock)
{
    return kvb_republish_numbers_begin(folder, "rank", clock, 100, from_clock).first;
}

static void numbers_do_not_go_back_with_the_clock(void **state)
{
    (void)state;
    assert_int_equal(first_at(9000, true), 9000);
    assert_int_equal(first_at(5000, true), 9100); /* after a kill, and the clock was set back */
    assert_int_equal(first_at(9900, true), 9900);
    assert_int_equal(first_at(9900, false), 10000);
}

/* ---- Killed at each step ----
 *
 * A process says each step, and waits until it may go on: so it can be killed there. */

enum step_kind { step_begun, step_used, step_reserved };

struct number_step {
    enum step_kind kind;
    uint64_t number;
};

static void say(int to, int from, enum step_kind kind, uint64_t number)
{
    const struct number_step step = { kind, number };
    char go = 0;

    if (write(to, &step, sizeof step) != sizeof step || read(from, &go, 1) != 1) {
        _exit(1);
    }
}

/* Numbers batches as republish.c does, three at a time. */
_Noreturn static void number_batches(int to, int from, uint64_t clock)
{
    struct kvb_republish_numbers numbers =
        kvb_republish_numbers_begin(folder, "rank", clock, 3, false);

    say(to, from, step_begun, numbers.first);
    for (uint64_t number = numbers.first;; number++) {
        if (number == numbers.end) {
            numbers.end += 3;
            (void)kvb_republish_numbers_write(folder, "rank", numbers.end, false);
            say(to, from, step_reserved, numbers.end);
        }
        say(to, from, step_used, number);
    }
}

/* Lets a process make so many steps, and kills it.  Returns the newest number that it used. */
static uint64_t run_and_kill(int steps, uint64_t clock, uint64_t used)
{
    struct number_step step = { step_begun, 0 };
    int said[2];
    int going[2];

    assert_int_equal(pipe(said), 0);
    assert_int_equal(pipe(going), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        number_batches(said[1], going[0], clock);
    }
    for (int i = 0; i < steps; i++) {
        assert_true(i == 0 || write(going[1], "", 1) == 1);
        assert_int_equal(read(said[0], &step, sizeof step), sizeof step);
        if (step.kind == step_used) {
            assert_true(step.number > used); /* never twice */
            used = step.number;
        }
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < 2; i++) {
        (void)close(said[i]);
        (void)close(going[i]);
    }
    return used;
}

/* The clock goes back with each process. */
static void no_number_is_used_twice_wherever_a_process_is_killed(void **state)
{
    (void)state;
    uint64_t used = 0;

    for (int steps = 1; steps <= 14; steps++) {
        used = run_and_kill(steps, 10000 - 100 * (uint64_t)steps, used);
    }
    assert_true(used > 9900);
}

/* Makes the file one of an earlier boot. */
static void reboot(void)
{
    uint8_t bytes[40];
    const int file = open(path, O_RDWR | O_CLOEXEC);

    assert_true(file >= 0);
    assert_int_equal(pread(file, bytes, sizeof bytes, 0), sizeof bytes);
    bytes[16] ^= 1;
    kvb_le_put_u64(bytes + 32, kvb_hash64((kvb_span){ .data = bytes, .len = 32 }, 0));
    assert_int_equal(pwrite(file, bytes, sizeof bytes, 0), sizeof bytes);
    (void)close(file);
}

/* The newest writes may not have reached the disk, and the battery of the clock may be empty. */
static void after_a_crash_of_the_machine_numbers_jump_ahead(void **state)
{
    (void)state;
    const uint64_t jump = UINT64_C(1) << 32;

    assert_int_equal(first_at(9000, false), 9000);
    reboot();
    assert_int_equal(first_at(10, false), 9100 + jump);
    reboot();
    assert_int_equal(first_at(5 * jump, false), 5 * jump);
}

static void keep_directory(const char *named, mode_t mode, kvb_status wanted)
{
    char found[kvb_republish_directory_bytes];

    assert_int_equal(chmod(folder, mode), 0);
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): one thread uses the environment */
    assert_int_equal(setenv("STATE_DIRECTORY", named, 1), 0);
    assert_int_equal(kvb_republish_numbers_directory(found), wanted);
    if (wanted == KVB_OK) {
        assert_string_equal(found, folder);
    }
}

static void only_a_directory_that_others_cannot_write_keeps_numbers(void **state)
{
    (void)state;
    char several[160];
    char found[kvb_republish_directory_bytes];
    char own[64];

    (void)snprintf(several, sizeof several, "%s:/nowhere", folder);
    keep_directory(folder, 0700, KVB_OK);
    keep_directory(several, 0755, KVB_OK);
    keep_directory(folder, 0770, KVB_IO);
    keep_directory(folder, 0707, KVB_IO);
    keep_directory("/nowhere", 0700, KVB_IO);
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): as above */
    assert_int_equal(unsetenv("STATE_DIRECTORY"), 0);
    assert_ok(kvb_republish_numbers_directory(found));
    (void)snprintf(own, sizeof own, "/var/tmp/kvbridge-%lu", (unsigned long)geteuid());
    assert_string_equal(found, own);
    (void)rmdir(own); /* fails where another process keeps numbers there */
}

SUITE(republish_numbers)
{
#define NUMBERS(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        NUMBERS(a_corrupt_file_is_ignored),
        NUMBERS(a_process_begins_behind_the_used_numbers_and_reserves_on_disk),
        NUMBERS(a_reservation_does_not_wait_for_the_disk),
        NUMBERS(numbers_do_not_go_back_with_the_clock),
        NUMBERS(no_number_is_used_twice_wherever_a_process_is_killed),
        NUMBERS(after_a_crash_of_the_machine_numbers_jump_ahead),
        NUMBERS(only_a_directory_that_others_cannot_write_keeps_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
