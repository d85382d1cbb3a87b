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

static const uint64_t status_ns = 3 * KVB_NS_PER_S;
static const uint64_t start_pause_ns = 20 * KVB_NS_PER_MS;
static const uint64_t shortest_pause_ns = 10 * KVB_NS_PER_MS;
static const uint64_t longest_pause_ns = KVB_NS_PER_S;

enum { looks_a_beat = 4 };

void kvb_notify_update_init(struct kvb_notify_update *update, uint64_t limit_us)
{
    const uint64_t max_us = UINT64_MAX / 1000;

    /* A beat at half of the limit, as sd_watchdog_enabled(3) advises. */
    *update = (struct kvb_notify_update){
        .watchdog_ns = (limit_us < max_us ? limit_us : max_us) * 1000 / 2,
    };
}

static void add_notify_line(char text[kvb_notify_text_bytes], const char *line)
{
    const size_t len = strlen(text);

    (void)snprintf(text + len, kvb_notify_text_bytes - len, "%s", line);
}

static void add_status(char text[kvb_notify_text_bytes], const struct kvb_liveness *liveness)
{
    char line[128];

    (void)snprintf(
        line, sizeof line, "STATUS=%" PRIu64 " stream%s, %" PRIu64 " EXACT, NATS %s\n",
        liveness->streams, liveness->streams == 1 ? "" : "s", liveness->exact,
        liveness->is_connected ? "connected" : "not connected");
    add_notify_line(text, line);
}

static bool is_new(const struct kvb_liveness *liveness, const struct kvb_liveness *sent)
{
    return liveness->streams != sent->streams || liveness->exact != sent->exact ||
           liveness->is_connected != sent->is_connected;
}

static bool is_status_due(
    const struct kvb_notify_update *update, uint64_t now_ns, const struct kvb_liveness *liveness)
{
    return !update->is_ready ||
           (is_new(liveness, &update->sent) && now_ns - update->sent_ns >= status_ns);
}

/* True when WATCHDOG=1 is due.  The time is measured from READY=1 on, when the manager begins to
 * wait. */
static bool is_beat_due(
    const struct kvb_notify_update *update, uint64_t now_ns, const struct kvb_liveness *liveness)
{
    /* Without a new turn nothing is sent, and the manager restarts a daemon that hangs. */
    return update->is_ready && update->watchdog_ns > 0 &&
           liveness->turns != update->watched_turns &&
           now_ns - update->watched_ns >= update->watchdog_ns;
}

void kvb_notify_update_send(
    struct kvb_notify_update *update, uint64_t now_ns, const struct kvb_liveness *liveness,
    char out_text[kvb_notify_text_bytes])
{
    const bool becomes_ready = !update->is_ready && liveness->turns > 0;
    const bool beats = is_beat_due(update, now_ns, liveness);

    out_text[0] = '\0';
    /* READY=1 comes first, and with the first turn: until then the manager holds back those units
     * that start after this one. */
    if (!update->is_ready && !becomes_ready) {
        return;
    }
    if (becomes_ready) {
        add_notify_line(out_text, "READY=1\n");
    }
    if (is_status_due(update, now_ns, liveness)) {
        add_status(out_text, liveness);
        update->sent = *liveness;
        update->sent_ns = now_ns;
    }
    if (beats) {
        add_notify_line(out_text, "WATCHDOG=1\n");
    }
    if (becomes_ready || beats) {
        update->watched_ns = now_ns;
        update->watched_turns = liveness->turns;
    }
    update->is_ready = true;
}

uint64_t kvb_notify_update_pause_ns(const struct kvb_notify_update *update)
{
    const uint64_t pause_ns = update->watchdog_ns / looks_a_beat;

    if (!update->is_ready) {
        return start_pause_ns;
    }
    if (update->watchdog_ns == 0 || pause_ns > longest_pause_ns) {
        return longest_pause_ns;
    }
    return pause_ns > shortest_pause_ns ? pause_ns : shortest_pause_ns;
}

/* ---- The socket ---- */

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

/* The limit, when this process must send WATCHDOG=1; else 0.  WATCHDOG_PID names that process: a
 * child inherits the variables, but must not send it. */
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
        path[0] = '\0'; /* an abstract name begins with a NUL, and has no NUL at its end */
    }
    notify->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return true;
}

static bool open_notify_socket(struct kvb_notify *notify)
{
    const struct timeval patience = { .tv_sec = 1 };

    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    /* A manager that does not read must not stop this thread for good. */
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

static void send_notify_text(const struct kvb_notify *notify, const char *text)
{
    if (notify->fd < 0 || text[0] == '\0') {
        return;
    }
    (void)sendto(/* a lost message is detected by the manager */
                 notify->fd, text, strlen(text), MSG_NOSIGNAL,
                 (const struct sockaddr *)&notify->address, notify->address_bytes);
}

void kvb_notify_look(struct kvb_notify *notify, const struct kvb_liveness *liveness)
{
    char text[kvb_notify_text_bytes];

    kvb_notify_update_send(&notify->update, kvb_clock_monotonic_ns(), liveness, text);
    send_notify_text(notify, text);
}

/* The manager uses the time to match the message with its reload request: sd_notify(3). */
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
