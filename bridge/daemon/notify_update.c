#include "daemon/notify_update.h"

#include "core/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t status_ns = 3 * KVB_NS_PER_S;
static const uint64_t start_pause_ns = 20 * KVB_NS_PER_MS;
static const uint64_t shortest_pause_ns = 10 * KVB_NS_PER_MS;
static const uint64_t longest_pause_ns = KVB_NS_PER_S;

enum { looks_a_beat = 4 };

void kvb_notify_update_init(struct kvb_notify_update *update, uint64_t limit_us)
{
    const uint64_t max_us = UINT64_MAX / 1000;

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

/* True when WATCHDOG=1 is due.  READY=1 counts as one: the manager's wait begins there. */
static bool is_beat_due(
    const struct kvb_notify_update *update, uint64_t now_ns, const struct kvb_liveness *liveness)
{
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
