#include "control/control.h"

#include "core/clock.h"
#include "core/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <uv.h>

struct kvb_job {
    struct kvb_control *control; /* borrowed */
    struct kvb_job_options options;
    struct kvb_job *next;     /* in the control's list; under its lock */
    uint64_t due_ns;          /* of the next turn; the control thread's, like the next two */
    struct kvb_thread worker; /* the control thread starts and joins it */
    void (*work)(void *context);
    atomic_bool is_working;
    atomic_bool is_woken;
    bool is_leaving; /* to be ended; under the lock, like the next */
    bool is_ended;
};

struct kvb_fd_watch {
    uv_poll_t poll;
    struct kvb_job *job; /* borrowed; NULL: it was freed, and libuv has not closed it yet */
    struct kvb_fd_watch_options options;
};

struct kvb_control {
    uv_loop_t loop;
    uv_async_t async; /* wakes the loop */
    uv_timer_t timer; /* the next turn of any job */
    uint64_t due_ns;  /* when that is; used by kvb_control_run_once() alone */
    struct kvb_thread thread;
    pthread_mutex_t lock; /* guards the list of jobs and all below; is not held in a turn */
    pthread_cond_t ended; /* a job has */
    struct kvb_job *jobs; /* owned, a list */
    bool is_alive;        /* the thread runs the loop */
    bool is_stopping;
};

/* ---- The loop ---- */

static void on_async(uv_async_t *async)
{
    (void)async; /* the loop looks at all jobs after each event */
}

/* libuv before 1.45 runs timers before it waits as well.  If the time is over by then, it must not
 * wait: the timer does not run again. */
static void on_timer(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

/* Ends a job that is to leave.  False: its work has not ended. */
static bool end_job(struct kvb_job *job)
{
    if (atomic_load(&job->is_working)) {
        return false;
    }
    kvb_thread_join(&job->worker); /* it has ended, or is about to */
    /* After the work, so that nothing uses what end() gives back. */
    if (job->options.end) {
        job->options.end(job->options.context);
    }
    return true;
}

/* The next job after this one; NULL: the first.  The control thread alone unlinks jobs while it
 * runs, so `job` is still in the list. */
static struct kvb_job *next_job(struct kvb_control *control, struct kvb_job *job, bool *is_leaving)
{
    (void)pthread_mutex_lock(&control->lock);
    struct kvb_job *next = job ? job->next : control->jobs;
    *is_leaving = next && next->is_leaving;
    (void)pthread_mutex_unlock(&control->lock);
    return next;
}

/* lock is held. */
static void unlink_job(struct kvb_job *job)
{
    struct kvb_job **at = &job->control->jobs;

    while (*at != job) {
        at = &(*at)->next;
    }
    *at = job->next;
}

/* From here on kvb_job_remove() may free it. */
static void tell_ended(struct kvb_job *job)
{
    struct kvb_control *control = job->control;

    (void)pthread_mutex_lock(&control->lock);
    unlink_job(job);
    job->is_ended = true;
    (void)pthread_cond_broadcast(&control->ended);
    (void)pthread_mutex_unlock(&control->lock);
}

/* Runs the turns that are due.  Returns when the next one is. */
static uint64_t run_turns(struct kvb_control *control)
{
    uint64_t due_ns = UINT64_MAX;
    bool is_leaving = false;
    struct kvb_job *after = NULL; /* the last job that stays */

    for (struct kvb_job *job = NULL; (job = next_job(control, after, &is_leaving));) {
        /* `after` stays where it is, because kvb_job_remove() may free this job at once. */
        if (is_leaving && end_job(job)) {
            tell_ended(job);
            continue;
        }
        after = job;
        /* woken is read first: what comes during the turn gets another one */
        const bool is_woken = atomic_exchange(&job->is_woken, false);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        if (!is_leaving && (is_woken || now_ns >= job->due_ns)) {
            job->due_ns = job->options.turn(job->options.context, now_ns);
        }
        /* Woken during its own turn: the loop must not sleep. */
        if (!is_leaving && atomic_load(&job->is_woken)) {
            due_ns = 0;
        } else if (!is_leaving && job->due_ns < due_ns) {
            due_ns = job->due_ns;
        }
    }
    return due_ns;
}

/* Waits for an event of libuv until due_ns. */
static void wait_for_event(struct kvb_control *control, uint64_t due_ns)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (due_ns <= now_ns) {
        (void)uv_run(&control->loop, UV_RUN_NOWAIT); /* descriptors of others are not passed over */
        return;
    }
    if (due_ns != UINT64_MAX) {
        /* rounded up: a turn that comes too early would spin for the rest of a millisecond */
        const uint64_t wait_ms = (due_ns - now_ns + KVB_NS_PER_MS - 1) / KVB_NS_PER_MS;
        uv_update_time(&control->loop);
        (void)uv_timer_start(&control->timer, on_timer, wait_ms, 0); /* fails only when closing */
    }
    (void)uv_run(&control->loop, UV_RUN_ONCE);
    /* Another event may have come first, and the next wait has another end. */
    (void)uv_timer_stop(&control->timer);
}

static bool is_over(struct kvb_control *control)
{
    bool is_working = false;

    (void)pthread_mutex_lock(&control->lock);
    /* Works that run end first: their threads use the jobs. */
    for (const struct kvb_job *job = control->jobs; job; job = job->next) {
        is_working |= atomic_load(&job->is_working);
    }
    const bool is = control->is_stopping && !is_working;
    /* Under the lock under which kvb_job_remove() looks whether somebody runs the loop. */
    control->is_alive = !is;
    if (is) { /* whoever waits to remove a job ends it without this thread */
        (void)pthread_cond_broadcast(&control->ended);
    }
    (void)pthread_mutex_unlock(&control->lock);
    return is;
}

static bool is_stopping(struct kvb_control *control)
{
    (void)pthread_mutex_lock(&control->lock);
    const bool is = control->is_stopping;
    (void)pthread_mutex_unlock(&control->lock);
    return is;
}

static void *run_control(void *context)
{
    struct kvb_control *control = context;

    (void)pthread_setname_np(pthread_self(), "kvb-control"); /* for top -H; may fail */
    while (!is_over(control)) {
        /* While stopping no turn begins; the loop waits for the works that run. */
        const uint64_t due_ns = is_stopping(control) ? UINT64_MAX : run_turns(control);
        wait_for_event(control, due_ns);
    }
    return NULL;
}

void kvb_control_run_once(struct kvb_control *control, int wait_ms)
{
    const uint64_t until_ns = kvb_clock_monotonic_ns() + (uint64_t)wait_ms * KVB_NS_PER_MS;

    wait_for_event(control, control->due_ns < until_ns ? control->due_ns : until_ns);
    /* After the wait: events of descriptors come before the turn of their job. */
    control->due_ns = run_turns(control);
}

kvb_status kvb_control_new(struct kvb_control **out_control)
{
    struct kvb_control *control = calloc(1, sizeof *control);

    if (!control) {
        return KVB_NO_MEMORY;
    }
    if (uv_loop_init(&control->loop) != 0) {
        free(control);
        return KVB_IO;
    }
    if (uv_async_init(&control->loop, &control->async, on_async) != 0) {
        (void)uv_loop_close(&control->loop); /* it has no handle */
        free(control);
        return KVB_IO;
    }
    (void)uv_timer_init(&control->loop, &control->timer); /* cannot fail */
    (void)pthread_mutex_init(&control->lock, NULL);       /* neither fails without attributes */
    (void)pthread_cond_init(&control->ended, NULL);
    *out_control = control;
    return KVB_OK;
}

kvb_status kvb_control_start(struct kvb_control *control)
{
    return kvb_thread_start(&control->thread, run_control, control);
}

void kvb_control_stop(struct kvb_control *control)
{
    if (!control || !control->thread.is_running) {
        return;
    }
    (void)pthread_mutex_lock(&control->lock);
    control->is_stopping = true;
    (void)pthread_mutex_unlock(&control->lock);
    (void)uv_async_send(&control->async); /* fails only when closing */
    kvb_thread_join(&control->thread);
}

void kvb_control_free(struct kvb_control *control)
{
    if (!control) {
        return;
    }
    kvb_control_stop(control);
    uv_close((uv_handle_t *)&control->async, NULL);
    uv_close((uv_handle_t *)&control->timer, NULL);
    (void)uv_run(&control->loop, UV_RUN_DEFAULT); /* until all are closed, freed watches too */
    (void)uv_loop_close(&control->loop);
    (void)pthread_cond_destroy(&control->ended);
    (void)pthread_mutex_destroy(&control->lock);
    free(control);
}

/* ---- Jobs ---- */

kvb_status kvb_job_add(
    struct kvb_control *control, const struct kvb_job_options *options, struct kvb_job **out_job)
{
    struct kvb_job *job = calloc(1, sizeof *job);

    if (!job) {
        return KVB_NO_MEMORY;
    }
    job->control = control;
    job->options = *options;
    job->due_ns = UINT64_MAX;
    /* Set before the job is in the list: its turns may use it. */
    *out_job = job;
    (void)pthread_mutex_lock(&control->lock);
    job->next = control->jobs;
    control->jobs = job;
    (void)pthread_mutex_unlock(&control->lock);
    return KVB_OK;
}

void kvb_job_wake(struct kvb_job *job)
{
    atomic_store(&job->is_woken, true);
    /* Also when a turn is due already: while stopping none follows, and the end of a work must be
     * noticed.  libuv writes once until the loop runs, however often this is called. */
    (void)uv_async_send(&job->control->async); /* fails only when closing */
}

void kvb_job_remove(struct kvb_job *job)
{
    if (!job) {
        return;
    }
    struct kvb_control *control = job->control;

    (void)pthread_mutex_lock(&control->lock);
    job->is_leaving = true;
    /* The thread ends the job between two turns, or has ended itself when this wakes. */
    if (control->is_alive) {
        (void)uv_async_send(&control->async);
        while (!job->is_ended && control->is_alive) {
            (void)pthread_cond_wait(&control->ended, &control->lock);
        }
    }
    if (!job->is_ended) { /* no thread runs the loop, or begins to while the lock is held */
        unlink_job(job);
        while (!end_job(job)) {
            (void)uv_run(&control->loop, UV_RUN_ONCE);
        }
    }
    (void)pthread_mutex_unlock(&control->lock);
    free(job);
}

static void *run_work(void *context)
{
    struct kvb_job *job = context;

    (void)pthread_setname_np(pthread_self(), "kvb-work"); /* for top -H; may fail */
    job->work(job->options.context);
    /* First: the turn that follows asks whether it is working. */
    atomic_store(&job->is_working, false);
    kvb_job_wake(job); /* the job is not freed before this thread is joined */
    return NULL;
}

kvb_status kvb_job_work(struct kvb_job *job, void (*work)(void *context))
{
    kvb_thread_join(&job->worker); /* of the work before, which has ended */
    job->work = work;
    atomic_store(&job->is_working, true);
    const kvb_status status = kvb_thread_start(&job->worker, run_work, job);
    if (status != KVB_OK) {
        atomic_store(&job->is_working, false);
    }
    return status;
}

bool kvb_job_is_working(const struct kvb_job *job)
{
    return atomic_load(&job->is_working);
}

/* ---- Descriptors ---- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct kvb_fd_watch *watch = poll->data;

    atomic_store(&watch->job->is_woken, true); /* before on_ready(), which may free the watch */
    /* after an error both are said, so that whoever reads or writes meets the error */
    watch->options.on_ready(
        watch->options.context, watch->options.fd, status != 0 || (events & UV_READABLE),
        status != 0 || (events & UV_WRITABLE));
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

kvb_status kvb_fd_watch_new(
    struct kvb_job *job, const struct kvb_fd_watch_options *options, struct kvb_fd_watch **out)
{
    struct kvb_fd_watch *watch = calloc(1, sizeof *watch);

    if (!watch) {
        return KVB_NO_MEMORY;
    }
    watch->job = job;
    watch->options = *options;
    watch->poll.data = watch;
    if (uv_poll_init(&job->control->loop, &watch->poll, options->fd) != 0) {
        free(watch);
        return KVB_IO;
    }
    *out = watch;
    return KVB_OK;
}

void kvb_fd_watch_set(struct kvb_fd_watch *watch, bool wants_read, bool wants_write)
{
    const int events = (wants_read ? UV_READABLE : 0) | (wants_write ? UV_WRITABLE : 0);

    if (events == 0) {
        (void)uv_poll_stop(&watch->poll); /* cannot fail, like the next */
    } else {
        (void)uv_poll_start(&watch->poll, events, on_poll);
    }
}

void kvb_fd_watch_free(struct kvb_fd_watch *watch)
{
    if (watch) {
        /* libuv closes in a later round: until then the memory stays, but the descriptor is free.
         */
        (void)uv_poll_stop(&watch->poll);
        uv_close((uv_handle_t *)&watch->poll, on_closed);
    }
}
