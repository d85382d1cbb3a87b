#pragma once

#include "bus/bus.h"
#include "core/log.h"
#include "core/metric.h"

#include <stddef.h>

/* The metrics that both daemons have: of the process (with the names that Prometheus client
 * libraries use), of the log, and of NATS.  first_metric is the index of the first of these rows in
 * the daemon's table.  Threads: any thread. */

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_DAEMON_METRICS(X) \
    X(build, GAUGE, "kvb_build_info", "version=\"" KVB_VERSION "\"", "Always 1; the label version is the version of the program") \
    X(started, REAL_GAUGE, "process_start_time_seconds", "", "Start time of the process, in seconds since 1970") \
    X(cpu, REAL_COUNTER, "process_cpu_seconds_total", "", "Processor time used by the process, in seconds") \
    X(resident, GAUGE, "process_resident_memory_bytes", "", "Resident memory of the process, in bytes") \
    X(log_dropped, COUNTER, "kvb_log_lines_dropped_total", "", "Log lines dropped because stderr was not read fast enough") \
    X(nats_connects, COUNTER, "kvb_nats_connects_total", "", "Connections made to NATS. A rise after the start means that connections are lost") \
    X(nats_lame_ducks, COUNTER, "kvb_nats_lame_ducks_total", "", "Times that nats-server announced lame duck mode: it will stop, and the client moves to another server") \
    X(nats_denied_publish, COUNTER, "kvb_nats_denied_total", "what=\"publish\"", "Publishes and subscriptions that nats-server denied, because the user lacks the permission") \
    X(nats_denied_subscribe, COUNTER, "kvb_nats_denied_total", "what=\"subscribe\"", "Publishes and subscriptions that nats-server denied, because the user lacks the permission") \
    X(nats_connected, GAUGE, "kvb_nats_connected", "", "1 while connected to NATS, else 0")
/* clang-format on */

/* Sets the values that never change: version and start time. */
void kvb_daemon_metrics_begin(struct kvb_metrics *metrics, size_t first_metric);

/* Copies the counters of the log and of the connection to NATS. */
void kvb_daemon_metrics_update(
    struct kvb_metrics *metrics, size_t first_metric, const struct kvb_log *log,
    struct kvb_bus *bus);

/* Reads CPU time and memory from the kernel; memory is 0 where /proc is not mounted.  It costs two
 * system calls and the read of a small file, so do not call it on every turn of a loop. */
void kvb_daemon_metrics_measure(struct kvb_metrics *metrics, size_t first_metric);
