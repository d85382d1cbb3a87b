#pragma once

#include "core/detail.h"
#include "core/log.h"
#include "core/status.h"

#include <signal.h>
#include <stdint.h>

/* What the mains of both daemons do around their daemon: signals, and the lines
 * that say how it went.  Threads: only the main thread. */

/* Before any thread starts, so that all inherit the mask and only the main thread,
 * in kvb_daemon_wait_for_end(), sees them.  SIGPIPE is ignored: a peer that hangs
 * up is no reason to end. */
void kvb_daemon_block_signals(sigset_t *out_signals);

/* Logs the start, then returns at SIGTERM or SIGINT.  SIGHUP is ignored: nothing is
 * read again. */
void kvb_daemon_wait_for_end(
    const sigset_t *signals, struct kvb_log *log, const char *name, uint16_t http_port);

/* Logs why the daemon could not start; returns the exit status that says it. */
int kvb_daemon_say_not_started(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *detail);
