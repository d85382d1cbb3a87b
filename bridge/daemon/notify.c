#include "daemon/notify.h"

#include "core/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* The value of a variable; 0 when it is not a number. */
static uint64_t environment_number(const char *name)
{
    const char *text = secure_getenv(name);
    char *end = NULL;

    if (!text || text[0] < '0' || text[0] > '9') {
        return 0;
    }
    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    return *end == '\0' && errno == 0 ? value : 0;
}

/* WATCHDOG_PID names the process that must send WATCHDOG=1; a child inherits the variables but
 * not that task. */
static uint64_t watchdog_limit_us(void)
{
    const bool is_for_all = secure_getenv("WATCHDOG_PID") == NULL;

    return is_for_all || environment_number("WATCHDOG_PID") == (uint64_t)getpid()
               ? environment_number("WATCHDOG_USEC")
               : 0;
}

/* False: the text is neither a path nor an abstract name. */
static bool take_address(struct kvb_notify *notify, const char *text)
{
    const size_t len = strlen(text);
    char *path = notify->address.sun_path;

    if ((text[0] != '/' && text[0] != '@') || len < 2 || len >= sizeof notify->address.sun_path) {
        return false;
    }
    notify->address.sun_family = AF_UNIX;
    memcpy(path, text, len + 1);
    if (path[0] == '@') {
        path[0] = '\0'; /* an abstract name begins with a NUL; its length ends it */
    }
    notify->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return true;
}

static bool open_notify_socket(struct kvb_notify *notify)
{
    const struct timeval patience = { .tv_sec = 1 };

    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return notify->fd >= 0 &&
           setsockopt(notify->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0;
}

void kvb_notify_open(struct kvb_notify *notify, struct kvb_log *log, const char *name)
{
    const char *text = secure_getenv("NOTIFY_SOCKET");

    *notify = (struct kvb_notify){ .fd = -1 };
    kvb_notify_update_init(&notify->update, watchdog_limit_us());
    if (!text || text[0] == '\0') {
        return;
    }
    if (!take_address(notify, text) || !open_notify_socket(notify)) {
        kvb_notify_close(notify);
        kvb_log_write(
            log, KVB_LOG_WARNING, name, "cannot tell the service manager", "NOTIFY_SOCKET", text,
            NULL);
    }
}

void kvb_notify_close(struct kvb_notify *notify)
{
    if (notify->fd >= 0) {
        (void)close(notify->fd);
    }
    notify->fd = -1;
}

bool kvb_notify_is_open(const struct kvb_notify *notify)
{
    return notify->fd >= 0;
}

static void send_notify_text(const struct kvb_notify *notify, const char *text)
{
    if (notify->fd < 0 || text[0] == '\0') {
        return;
    }
    (void)sendto(/* on failure the manager notices the missing message */
                 notify->fd, text, strlen(text), MSG_NOSIGNAL,
                 (const struct sockaddr *)&notify->address, notify->address_bytes);
}

void kvb_notify_look(struct kvb_notify *notify, const struct kvb_liveness *liveness)
{
    char text[kvb_notify_text_bytes];

    kvb_notify_update_send(&notify->update, kvb_clock_monotonic_ns(), liveness, text);
    send_notify_text(notify, text);
}

/* The manager needs the time to match it with its reload request: sd_notify(3). */
void kvb_notify_say_reloading(const struct kvb_notify *notify)
{
    char text[kvb_notify_text_bytes];

    (void)snprintf(
        text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64 "\n",
        kvb_clock_monotonic_ns() / 1000);
    send_notify_text(notify, text);
}

void kvb_notify_say_reloaded(const struct kvb_notify *notify)
{
    send_notify_text(notify, "READY=1\n");
}

void kvb_notify_say_stopping(const struct kvb_notify *notify)
{
    send_notify_text(notify, "STOPPING=1\nSTATUS=stopping\n");
}
