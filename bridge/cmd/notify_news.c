#include "cmd/notify_news.h"

#include "core/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t status_ns = 3 * KVB_NS_PER_S;
static const uint64_t start_pause_ns = 20 * KVB_NS_PER_MS;
static const uint64_t shortest_pause_ns = 10 * KVB_NS_PER_MS;
static const uint64_t longest_pause_ns = KVB_NS_PER_S;

enum { looks_a_beat = 4 };

void kvb_notify_news_init(struct kvb_notify_news *news, uint64_t limit_us)
{
    const uint64_t most_us = UINT64_MAX / 1000;

    *news = (struct kvb_notify_news){
        .watchdog_ns = (limit_us < most_us ? limit_us : most_us) * 1000 / 2,
    };
}

static void add(char text[kvb_notify_text_bytes], const char *line)
{
    const size_t len = strlen(text);

    (void)snprintf(text + len, kvb_notify_text_bytes - len, "%s", line);
}

static void add_status(char text[kvb_notify_text_bytes], const struct kvb_pulse *pulse)
{
    char line[128];

    (void)snprintf(
        line, sizeof line, "STATUS=%" PRIu64 " stream%s, %" PRIu64 " EXACT, NATS %s\n",
        pulse->streams, pulse->streams == 1 ? "" : "s", pulse->exact,
        pulse->is_connected ? "connected" : "not connected");
    add(text, line);
}

static bool is_new(const struct kvb_pulse *pulse, const struct kvb_pulse *told)
{
    return pulse->streams != told->streams || pulse->exact != told->exact ||
           pulse->is_connected != told->is_connected;
}

static bool
is_status_due(const struct kvb_notify_news *news, uint64_t now_ns, const struct kvb_pulse *pulse)
{
    return !news->is_ready || (is_new(pulse, &news->told) && now_ns - news->told_ns >= status_ns);
}

/* Ready says as much as a beat: the manager begins to wait there. */
static bool
is_beat_due(const struct kvb_notify_news *news, uint64_t now_ns, const struct kvb_pulse *pulse)
{
    return news->is_ready && news->watchdog_ns > 0 && pulse->turns != news->watched_turns &&
           now_ns - news->watched_ns >= news->watchdog_ns;
}

void kvb_notify_news_tell(
    struct kvb_notify_news *news, uint64_t now_ns, const struct kvb_pulse *pulse,
    char out_text[kvb_notify_text_bytes])
{
    const bool becomes_ready = !news->is_ready && pulse->turns > 0;
    const bool beats = is_beat_due(news, now_ns, pulse);

    out_text[0] = '\0';
    if (!news->is_ready && !becomes_ready) {
        return;
    }
    if (becomes_ready) {
        add(out_text, "READY=1\n");
    }
    if (is_status_due(news, now_ns, pulse)) {
        add_status(out_text, pulse);
        news->told = *pulse;
        news->told_ns = now_ns;
    }
    if (beats) {
        add(out_text, "WATCHDOG=1\n");
    }
    if (becomes_ready || beats) {
        news->watched_ns = now_ns;
        news->watched_turns = pulse->turns;
    }
    news->is_ready = true;
}

uint64_t kvb_notify_news_pause_ns(const struct kvb_notify_news *news)
{
    const uint64_t pause_ns = news->watchdog_ns / looks_a_beat;

    if (!news->is_ready) {
        return start_pause_ns;
    }
    if (news->watchdog_ns == 0 || pause_ns > longest_pause_ns) {
        return longest_pause_ns;
    }
    return pause_ns > shortest_pause_ns ? pause_ns : shortest_pause_ns;
}
