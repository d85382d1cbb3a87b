#pragma once

#include "cmd/notify_news.h"
#include "core/log.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The service manager's socket: systemd, or whoever sets NOTIFY_SOCKET.
 *
 *     NOTIFY_SOCKET  a path, or @name for an abstract socket
 *     WATCHDOG_USEC  it waits so long for a sign of life; of WATCHDOG_PID alone
 *
 * One datagram a message, no library.  A manager that does not take it within a
 * second loses it: whether we are well does not depend on who listens.
 * Threads: only the main thread. */
struct kvb_notify {
    int fd; /* owned; -1: nobody asked */
    struct sockaddr_un address;
    socklen_t address_bytes;
    struct kvb_notify_news news;
};

/* Reads the environment, once.  A NOTIFY_SOCKET that cannot be used is logged as a
 * warning, and nobody is told. */
void kvb_notify_open(struct kvb_notify *notify, struct kvb_log *log, const char *name);
void kvb_notify_close(struct kvb_notify *notify);

bool kvb_notify_is_open(const struct kvb_notify *notify);

/* Says what is due; nothing when nothing is. */
void kvb_notify_look(struct kvb_notify *notify, const struct kvb_pulse *pulse);

/* The configuration is read again, and then it has been. */
void kvb_notify_say_reloading(const struct kvb_notify *notify);
void kvb_notify_say_reloaded(const struct kvb_notify *notify);

/* The end has begun. */
void kvb_notify_say_stopping(const struct kvb_notify *notify);
