#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The clocks, the random numbers and the threads of a daemon that runs inside a fuzz target.
 *
 * Defines all functions of core/clock.h, so that the linker does not take the real ones.  Time
 * moves when the target says so, and a little with each reading, so that loops with a budget of
 * time end.  With the linker's --wrap, getrandom() repeats the same numbers for each input, and the
 * functions of pthreads below start no thread: everything runs on the target's own. */

void fake_clock_reset(void);
void fake_clock_advance_ms(uint64_t ms);
uint64_t fake_clock_now_ns(void);

/* From now on no thread is started.  The thread of this function is kept for fake_thread_run();
 * other threads never run.  A wait for another thread calls while_waiting(), which does its work.
 */
void fake_threads_hold(void *(*function)(void *), void (*while_waiting)(void));
void fake_threads_release(void);

/* Runs the function that was kept to its end, on this thread; false: there is none. */
bool fake_thread_run(void);
