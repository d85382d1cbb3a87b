#include "daemon/metrics.h"

#include "core/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* In the order of KVB_DAEMON_METRICS. */
enum daemon_metric {
#define DAEMON_METRIC_ID(id, type, name, labels, help) count_##id,
    KVB_DAEMON_METRICS(DAEMON_METRIC_ID)
#undef DAEMON_METRIC_ID
};

void kvb_daemon_metrics_begin(struct kvb_metrics *metrics, size_t first_metric)
{
    kvb_metric_set(metrics, first_metric + count_build, 1);
    kvb_metric_set_real(metrics, first_metric + count_started, (double)kvb_clock_wall_us() / 1e6);
}

void kvb_daemon_metrics_update(
    struct kvb_metrics *metrics, size_t first_metric, const struct kvb_log *log,
    struct kvb_bus *bus)
{
    uint64_t publishes = 0;
    uint64_t subscriptions = 0;

    kvb_bus_denials(bus, &publishes, &subscriptions);
    kvb_metric_set(metrics, first_metric + count_log_dropped, kvb_log_dropped(log));
    kvb_metric_set(metrics, first_metric + count_nats_connects, kvb_bus_connects(bus));
    kvb_metric_set(metrics, first_metric + count_nats_lame_ducks, kvb_bus_lame_ducks(bus));
    kvb_metric_set(metrics, first_metric + count_nats_denied_publish, publishes);
    kvb_metric_set(metrics, first_metric + count_nats_denied_subscribe, subscriptions);
    kvb_metric_set(metrics, first_metric + count_nats_connected, kvb_bus_is_connected(bus));
}

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

/* The second number of statm: "total resident shared ...", in pages. */
static uint64_t resident_pages(void)
{
    char text[128] = "";
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file) {
        return 0;
    }
    const bool has_text = fgets(text, sizeof text, file) != NULL;
    (void)fclose(file); /* nothing was written */
    const char *second = has_text ? strchr(text, ' ') : NULL;
    return second ? strtoull(second, NULL, 10) : 0;
}

void kvb_daemon_metrics_measure(struct kvb_metrics *metrics, size_t first_metric)
{
    struct rusage usage = { 0 };
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

    (void)getrusage(RUSAGE_SELF, &usage); /* cannot fail for the process itself */
    kvb_metric_set_real(
        metrics, first_metric + count_cpu, seconds(usage.ru_utime) + seconds(usage.ru_stime));
    kvb_metric_set(metrics, first_metric + count_resident, resident_pages() * page_bytes);
}
