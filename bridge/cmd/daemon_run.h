#pragma once

#include "cmd/notify.h"
#include "core/conf.h"
#include "core/detail.h"
#include "core/log.h"
#include "core/status.h"
#include "model/pulse.h"

#include <signal.h>
#include <stdint.h>

/* What the mains of both daemons do around their daemon: signals, what the service
 * manager hears, and the lines that say how it went.  Threads: only the main thread. */

/* Before any thread starts, so that all inherit the mask and only the main thread,
 * in kvb_daemon_wait_for_end(), sees them.  SIGPIPE is ignored: a peer that hangs
 * up is no reason to end. */
void kvb_daemon_block_signals(sigset_t *out_signals);

/* Each mistake of a configuration that is read again, one line each. */
void kvb_daemon_log_errors(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors);

/* What --check would warn of, for whoever starts without it. */
void kvb_daemon_log_warnings(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors);

/* A daemon that has started; all borrowed. */
struct kvb_daemon_running {
    const char *name;
    struct kvb_log *log;
    uint16_t http_port;
    const void *daemon; /* what read_pulse is called with */
    void (*read_pulse)(const void *daemon, struct kvb_pulse *out_pulse);
    void *reloader;                 /* what reload is called with */
    void (*reload)(void *reloader); /* at SIGHUP; NULL: it is ignored, nothing is read again */
};

/* Logs the start, then returns at SIGTERM or SIGINT, and tells the service manager
 * how it goes meanwhile. */
void kvb_daemon_wait_for_end(
    const sigset_t *signals, struct kvb_notify *notify, const struct kvb_daemon_running *running);

/* Logs why the daemon could not start; returns the exit status that says it. */
int kvb_daemon_say_not_started(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *detail);
