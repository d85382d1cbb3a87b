#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* One thread for everything that waits for time, HTTP, name servers or files, and not for engines'
 * events or routers' requests.  It is a loop of libuv.  Whoever has such work adds a job:
 *
 *     another thread wakes it ---------+
 *     one of its descriptors is ready -+--> turn(now) --> when its next turn is due
 *     its time has come ---------------+
 *     its work is done ----------------+
 *
 * Turns of all jobs run one after the other, so a turn must not wait.  What waits for a disk runs
 * by kvb_job_work() on a thread that ends with it: libuv's pool would keep its threads, and one
 * slow disk would keep all other work waiting.  What waits for a name server: ingest/dns/lookup.h.
 *
 * Threads: "any thread" where it says so; else only the control thread, which is the thread in
 *          turn(), end() and on_ready(), and the caller's own before kvb_control_start() and after
 *          kvb_control_stop(). */
struct kvb_control;
struct kvb_job;

/* Makes the loop; its thread does not run yet.  KVB_NO_MEMORY, KVB_IO: no descriptors are left. */
kvb_status kvb_control_new(struct kvb_control **out_control);
/* KVB_IO: the system has no more threads. */
kvb_status kvb_control_start(struct kvb_control *control);
/* Waits for the turn and the work that run; no turn begins afterwards.  NULL is fine, and so is a
 * loop that does not run. */
void kvb_control_stop(struct kvb_control *control);
/* Stops it.  All jobs must have been removed.  NULL is fine. */
void kvb_control_free(struct kvb_control *control);

/* Without kvb_control_start(), on the caller's thread: waits at most wait_ms until a turn is due,
 * and runs those that are. */
void kvb_control_run_once(struct kvb_control *control, int wait_ms);

/* ---- Jobs ---- */

struct kvb_job_options {
    /* Returns the time of the next turn, monotonic ns; UINT64_MAX: when it is woken. */
    uint64_t (*turn)(void *context, uint64_t now_ns);
    /* The last call: gives back what belongs to the control thread.  NULL: nothing does. */
    void (*end)(void *context);
    void *context;
};

/* It has no turn before it is woken, so that its owner can make what a turn uses.  Any thread.
 * KVB_NO_MEMORY */
kvb_status kvb_job_add(
    struct kvb_control *control, const struct kvb_job_options *options, struct kvb_job **out_job);
/* Its turn and its work have ended, and end() was called, when this returns.  Any thread, but not
 * in a turn.  NULL is fine. */
void kvb_job_remove(struct kvb_job *job);
/* A turn follows soon.  Any thread. */
void kvb_job_wake(struct kvb_job *job);

/* Runs work(context of the job) on a thread of its own, and then the next turn.  Not while it is
 * working.  KVB_IO: the system has no more threads. */
kvb_status kvb_job_work(struct kvb_job *job, void (*work)(void *context));
bool kvb_job_is_working(const struct kvb_job *job);

/* ---- Descriptors of a job ---- */

struct kvb_fd_watch;
struct kvb_fd_watch_options {
    int fd; /* borrowed; becomes non-blocking */
    /* Before the turn of the job. */
    void (*on_ready)(void *context, int fd, bool is_readable, bool is_writable);
    void *context;
};

/* Nothing is watched before kvb_fd_watch_set().  KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_fd_watch_new(
    struct kvb_job *job, const struct kvb_fd_watch_options *options, struct kvb_fd_watch **out);
void kvb_fd_watch_set(struct kvb_fd_watch *watch, bool wants_read, bool wants_write);
/* Before fd is closed.  NULL is fine. */
void kvb_fd_watch_free(struct kvb_fd_watch *watch);
