#pragma once

#include "core/log.h"
#include "model/liveness.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Notifications to the service manager (sd_notify(3)): systemd, or another one that sets
 * NOTIFY_SOCKET.
 *
 *     NOTIFY_SOCKET  a path, or @name for an abstract socket
 *     WATCHDOG_USEC  how long the manager waits for WATCHDOG=1; only for the process WATCHDOG_PID
 *
 * One datagram for each message, sent without a library.  A message that the manager does not
 * receive within a second is dropped, so that a slow manager cannot block the daemon.
 * Threads: only the main thread. */

/* ---- What is sent, and when ----
 *
 *     READY=1      once, after the first turn of the working thread
 *     STATUS=...   with READY=1, and when the status changes, at most every 3 s
 *     WATCHDOG=1   twice in the time that the manager waits, but only when the working
 *                  thread has made a turn since the last one.  So a working thread that
 *                  hangs is detected even while other threads run
 *
 * Pure: time and liveness are arguments. */

enum { kvb_notify_text_bytes = 192 };

struct kvb_notify_update {
    uint64_t watchdog_ns; /* between two WATCHDOG=1; 0: not expected */
    uint64_t watched_ns;  /* when WATCHDOG=1 was sent last, and at which turn */
    uint64_t watched_turns;
    bool is_ready;
    uint64_t sent_ns; /* the last STATUS */
    struct kvb_liveness sent;
};

/* limit_us: the time without WATCHDOG=1 after which the manager treats the daemon as hung; 0:
 * no limit. */
void kvb_notify_update_init(struct kvb_notify_update *update, uint64_t limit_us);

/* Writes the message to be sent now, one assignment in each line; "" for none. */
void kvb_notify_update_send(
    struct kvb_notify_update *update, uint64_t now_ns, const struct kvb_liveness *liveness,
    char out_text[kvb_notify_text_bytes]);

/* The time until the next call: short enough not to delay READY=1 or WATCHDOG=1. */
uint64_t kvb_notify_update_pause_ns(const struct kvb_notify_update *update);

/* ---- The socket ---- */

struct kvb_notify {
    int fd; /* owned; -1: no NOTIFY_SOCKET, or it cannot be used */
    struct sockaddr_un address;
    socklen_t address_bytes;
    struct kvb_notify_update update;
};

/* Reads the environment.  When NOTIFY_SOCKET cannot be used, it logs a warning, and no
 * notifications are sent. */
void kvb_notify_open(struct kvb_notify *notify, struct kvb_log *log, const char *name);
void kvb_notify_close(struct kvb_notify *notify);

/* Sends the notifications that are due, if any. */
void kvb_notify_look(struct kvb_notify *notify, const struct kvb_liveness *liveness);

/* Before and after the configuration is read again. */
void kvb_notify_say_reloading(const struct kvb_notify *notify);
void kvb_notify_say_reloaded(const struct kvb_notify *notify);

/* Before the daemon stops. */
void kvb_notify_say_stopping(const struct kvb_notify *notify);
