#include "kvb_test.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/own.h"
#include "fail_alloc.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>
#include <uv.h>

static const uint64_t patience_ns = 20 * KVB_NS_PER_S;

/* What a job has done. */
struct seen {
    atomic_uint turns;
    atomic_uint ends;
    sem_t had_turn;
    uint64_t pause_ns; /* until its next turn; 0: when it is woken */
    pthread_t thread;
};

static uint64_t take_turn(void *context, uint64_t now_ns)
{
    struct seen *seen = context;

    seen->thread = pthread_self();
    seen->turns++;
    (void)sem_post(&seen->had_turn);
    return seen->pause_ns > 0 ? now_ns + seen->pause_ns : UINT64_MAX;
}

static void end(void *context)
{
    struct seen *seen = context;

    seen->ends++;
}

static struct kvb_job *add(struct kvb_control *control, struct seen *seen)
{
    const struct kvb_job_options options = { .turn = take_turn, .end = end, .context = seen };
    struct kvb_job *job = NULL;

    (void)sem_init(&seen->had_turn, 0, 0);
    assert_ok(kvb_job_add(control, &options, &job));
    return job;
}

static struct kvb_control *open_loop(void)
{
    struct kvb_control *control = NULL;

    assert_ok(kvb_control_new(&control));
    return control;
}

static struct kvb_control *start_loop(void)
{
    struct kvb_control *control = open_loop();

    assert_ok(kvb_control_start(control));
    return control;
}

static void await_turn(struct seen *seen)
{
    while (sem_wait(&seen->had_turn) != 0) {
    }
}

/* ---- Turns ---- */

static void a_turn_comes_at_its_time_and_not_before(void **state)
{
    (void)state;
    struct kvb_control *control = open_loop();
    struct seen seen = { .pause_ns = 30 * KVB_NS_PER_MS };
    struct kvb_job *job = add(control, &seen);

    kvb_job_wake(job);
    const uint64_t from_ns = kvb_clock_monotonic_ns();
    while (seen.turns < 3 && kvb_clock_monotonic_ns() < from_ns + patience_ns) {
        kvb_control_run_once(control, 20000);
    }
    assert_int_equal(seen.turns, 3);
    assert_true(kvb_clock_monotonic_ns() - from_ns >= 2 * seen.pause_ns);
    kvb_job_remove(job);
    kvb_control_free(control);
}

/* ---- The end ---- */

static void a_removed_job_ends_on_the_thread_and_has_no_turn_more(void **state)
{
    (void)state;
    struct kvb_control *control = start_loop();
    struct seen stays = { .turns = 0 };
    struct seen leaves = { .pause_ns = 1 };
    struct kvb_job *staying = add(control, &stays);
    struct kvb_job *leaving = add(control, &leaves);

    kvb_job_wake(leaving);
    await_turn(&leaves);
    kvb_job_remove(leaving);
    assert_int_equal(leaves.ends, 1);
    const unsigned turns = leaves.turns;
    kvb_job_wake(staying);
    await_turn(&stays);
    assert_int_equal(leaves.turns, turns);
    kvb_control_stop(control);
    kvb_job_remove(staying); /* there is no thread any more */
    assert_int_equal(stays.ends, 1);
    kvb_job_remove(NULL);
    kvb_control_free(control);
    kvb_control_free(NULL);
}

/* ---- Work that waits ---- */

struct slow {
    struct kvb_job *job;
    sem_t may_end;
    atomic_uint done;
    bool is_begun;
    bool has_failed;
    sem_t was_told; /* its turn after the work */
    struct kvb_fd_watch *watch;
};

static void wait_long(void *context)
{
    struct slow *slow = context;

    while (sem_wait(&slow->may_end) != 0) {
    }
    slow->done++;
}

static uint64_t begin_or_take(void *context, uint64_t now_ns)
{
    struct slow *slow = context;

    (void)now_ns;
    if (!slow->is_begun) {
        slow->is_begun = true;
        slow->has_failed = kvb_job_work(slow->job, wait_long) != KVB_OK;
    } else if (!kvb_job_is_working(slow->job)) {
        (void)sem_post(&slow->was_told);
    }
    return UINT64_MAX;
}

static void slow_work_delays_no_other_job(void **state)
{
    (void)state;
    struct kvb_control *control = start_loop();
    struct slow slow = { .done = 0 };
    const struct kvb_job_options options = { .turn = begin_or_take, .context = &slow };
    struct seen seen = { .turns = 0 };
    struct kvb_job *quick = add(control, &seen);

    (void)sem_init(&slow.may_end, 0, 0);
    (void)sem_init(&slow.was_told, 0, 0);
    assert_ok(kvb_job_add(control, &options, &slow.job));
    kvb_job_wake(slow.job);
    for (int i = 0; i < 10; i++) {
        kvb_job_wake(quick);
        await_turn(&seen);
    }
    assert_int_equal(slow.done, 0);
    (void)sem_post(&slow.may_end);
    while (sem_wait(&slow.was_told) != 0) {
    }
    assert_false(slow.has_failed);
    assert_int_equal(slow.done, 1);
    kvb_job_remove(quick);
    kvb_job_remove(slow.job);
    kvb_control_free(control);
}

static void *let_go(void *context)
{
    struct slow *slow = context;

    (void)sem_post(&slow->may_end);
    return NULL;
}

static void a_job_ends_after_its_work(void **state)
{
    (void)state;
    for (int has_thread = 0; has_thread < 2; has_thread++) {
        struct kvb_control *control = has_thread ? start_loop() : open_loop();
        struct slow slow = { .done = 0 };
        const struct kvb_job_options options = { .turn = begin_or_take, .context = &slow };
        struct seen seen = { .turns = 0 };
        struct kvb_job *later = add(control, &seen); /* its turn follows that of the slow one */
        pthread_t helper;

        (void)sem_init(&slow.may_end, 0, 0);
        (void)sem_init(&slow.was_told, 0, 0);
        assert_ok(kvb_job_add(control, &options, &slow.job));
        kvb_job_wake(slow.job);
        kvb_job_wake(later);
        if (!has_thread) {
            kvb_control_run_once(control, 20000);
        }
        await_turn(&seen);
        assert_int_equal(pthread_create(&helper, NULL, let_go, &slow), 0);
        kvb_job_remove(slow.job);
        assert_int_equal(slow.done, 1);
        (void)pthread_join(helper, NULL);
        kvb_job_remove(later);
        kvb_control_free(control);
    }
}

/* ---- Time that passes before the wait begins ---- */

static int timer_takes_ms;

/* The linker prescribes these names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
int __real_uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t wait_ms, uint64_t again_ms);
int __wrap_uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t wait_ms, uint64_t again_ms);

/* As if the thread had to wait for a processor behind it. */
int __wrap_uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t wait_ms, uint64_t again_ms)
{
    const int status = __real_uv_timer_start(timer, call, wait_ms, again_ms);

    (void)poll(NULL, 0, timer_takes_ms);
    return status;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

struct ending {
    struct kvb_job *job;
    atomic_bool has_waited;
    bool came_first;
};

static void end_after_the_wait(void *context)
{
    struct ending *ending = context;

    for (int i = 0; i < 3000 && !ending->has_waited; i++) {
        (void)poll(NULL, 0, 1);
    }
    ending->came_first = !ending->has_waited;
}

static uint64_t begin_once(void *context, uint64_t now_ns)
{
    struct ending *ending = context;

    (void)now_ns;
    if (!kvb_job_is_working(ending->job) && !ending->came_first && !ending->has_waited) {
        assert_ok(kvb_job_work(ending->job, end_after_the_wait));
    }
    return UINT64_MAX;
}

/* Nothing else ends such a wait: the turns that are due would not come. */
static void a_wait_ends_whose_time_is_over_before_it_begins(void **state)
{
    (void)state;
    struct kvb_control *control = open_loop();
    struct ending ending = { .came_first = false };
    const struct kvb_job_options options = { .turn = begin_once, .context = &ending };

    assert_ok(kvb_job_add(control, &options, &ending.job));
    kvb_job_wake(ending.job);
    kvb_control_run_once(control, 20000);
    timer_takes_ms = 5;
    kvb_control_run_once(control, 1);
    timer_takes_ms = 0;
    ending.has_waited = true;
    kvb_job_remove(ending.job);
    assert_false(ending.came_first);
    kvb_control_free(control);
}

/* ---- Descriptors ---- */

struct reader {
    struct kvb_fd_watch *watch;
    char text[8];
    size_t len;
};

static void read_one(void *context, int fd, bool is_readable, bool is_writable)
{
    struct reader *reader = context;

    assert_true(is_readable);
    assert_false(is_writable);
    assert_int_equal(read(fd, reader->text + reader->len++, 1), 1);
    if (reader->len == 3) {
        kvb_fd_watch_free(reader->watch); /* in its own call */
        reader->watch = NULL;
    }
}

static void a_ready_descriptor_is_reported_before_the_turn(void **state)
{
    (void)state;
    struct kvb_control *control = open_loop();
    struct seen seen = { .turns = 0 };
    struct kvb_job *job = add(control, &seen);
    struct reader reader = { .len = 0 };
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    const struct kvb_fd_watch_options options = { .fd = ends[0],
                                                  .on_ready = read_one,
                                                  .context = &reader };
    assert_ok(kvb_fd_watch_new(job, &options, &reader.watch));
    assert_int_equal(write(ends[1], "abcd", 4), 4);
    kvb_control_run_once(control, 0);
    assert_int_equal(reader.len, 0); /* nothing is wanted yet */
    kvb_fd_watch_set(reader.watch, true, false);
    for (size_t want = 1; want <= 3; want++) {
        kvb_control_run_once(control, 20000);
        assert_int_equal(reader.len, want);
        assert_int_equal(seen.turns, want);
    }
    kvb_control_run_once(control, 0);
    assert_int_equal(reader.len, 3);
    kvb_fd_watch_free(NULL);
    kvb_job_remove(job);
    (void)close(ends[0]);
    (void)close(ends[1]);
    kvb_control_free(control);
}

static void let_work_end(void *context, int fd, bool is_readable, bool is_writable)
{
    struct slow *slow = context;
    char byte = 0;

    (void)is_writable;
    assert_true(is_readable);
    assert_int_equal(read(fd, &byte, 1), 1);
    kvb_fd_watch_free(slow->watch);
    (void)sem_post(&slow->may_end);
}

/* A ready descriptor asks for a turn, and none follows: the end of the work is noticed all the
 * same. */
static void a_job_that_is_due_for_a_turn_ends_after_its_work(void **state)
{
    (void)state;
    struct kvb_control *control = open_loop();
    struct slow slow = { .done = 0 };
    const struct kvb_job_options options = { .turn = begin_or_take, .context = &slow };
    int ends[2];

    (void)sem_init(&slow.may_end, 0, 0);
    (void)sem_init(&slow.was_told, 0, 0);
    assert_int_equal(pipe(ends), 0);
    assert_ok(kvb_job_add(control, &options, &slow.job));
    const struct kvb_fd_watch_options ready = { .fd = ends[0],
                                                .on_ready = let_work_end,
                                                .context = &slow };
    assert_ok(kvb_fd_watch_new(slow.job, &ready, &slow.watch));
    kvb_fd_watch_set(slow.watch, true, false);
    kvb_job_wake(slow.job);
    kvb_control_run_once(control, 20000);
    assert_true(kvb_job_is_working(slow.job));
    assert_int_equal(write(ends[1], "a", 1), 1);
    kvb_job_remove(slow.job);
    assert_int_equal(slow.done, 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
    kvb_control_free(control);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        const struct kvb_job_options options = { .turn = take_turn };
        struct kvb_control *control = NULL;
        struct kvb_job *job = NULL;
        fail_alloc_after(n);
        status = kvb_control_new(&control);
        if (status == KVB_OK) {
            status = kvb_job_add(control, &options, &job);
        }
        fail_alloc_after(-1);
        kvb_job_remove(job);
        kvb_control_free(control);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 50);
    }
}

SUITE(control)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_comes_at_its_time_and_not_before),
        cmocka_unit_test(a_removed_job_ends_on_the_thread_and_has_no_turn_more),
        cmocka_unit_test(slow_work_delays_no_other_job),
        cmocka_unit_test(a_job_ends_after_its_work),
        cmocka_unit_test(a_wait_ends_whose_time_is_over_before_it_begins),
        cmocka_unit_test(a_ready_descriptor_is_reported_before_the_turn),
        cmocka_unit_test(a_job_that_is_due_for_a_turn_ends_after_its_work),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
