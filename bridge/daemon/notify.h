#pragma once

#include "core/log.h"
#include "daemon/notify_update.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Notifications to the service manager: systemd, or any other that sets NOTIFY_SOCKET.
 *
 *     NOTIFY_SOCKET  a path, or @name for an abstract socket
 *     WATCHDOG_USEC  how long it waits for WATCHDOG=1; valid for WATCHDOG_PID only
 *
 * One datagram for each message, without a library.  A message that the manager does not
 * take within a second is dropped, so that a slow manager cannot block the daemon.
 * Threads: only the main thread. */
struct kvb_notify {
    int fd; /* owned; -1: no NOTIFY_SOCKET, or it cannot be used */
    struct sockaddr_un address;
    socklen_t address_bytes;
    struct kvb_notify_update update;
};

/* Reads the environment, once.  A NOTIFY_SOCKET that cannot be used is logged as a
 * warning, and no notifications are sent. */
void kvb_notify_open(struct kvb_notify *notify, struct kvb_log *log, const char *name);
void kvb_notify_close(struct kvb_notify *notify);

bool kvb_notify_is_open(const struct kvb_notify *notify);

/* Sends the notifications that are due, if any. */
void kvb_notify_look(struct kvb_notify *notify, const struct kvb_liveness *liveness);

/* Before and after the configuration is read again. */
void kvb_notify_say_reloading(const struct kvb_notify *notify);
void kvb_notify_say_reloaded(const struct kvb_notify *notify);

/* Before the daemon stops. */
void kvb_notify_say_stopping(const struct kvb_notify *notify);
