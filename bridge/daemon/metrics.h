#pragma once

#include "bus/bus.h"
#include "core/log.h"
#include "core/metric.h"

#include <stddef.h>

/* What both daemons count of themselves: of the process, under the names that Prometheus client
 * libraries use, of the log and of NATS.  first_metric is where the block below begins in the
 * daemon's table.  Threads: any thread. */

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_DAEMON_METRICS(X) \
    X(build, GAUGE, "kvb_build_info", "version=\"" KVB_VERSION "\"", "Always 1; version: of the program") \
    X(started, REAL_GAUGE, "process_start_time_seconds", "", "When the program started, seconds since 1970") \
    X(cpu, REAL_COUNTER, "process_cpu_seconds_total", "", "Processor time used, seconds") \
    X(resident, GAUGE, "process_resident_memory_bytes", "", "Resident memory of the process") \
    X(log_dropped, COUNTER, "kvb_log_lines_dropped_total", "", "Lines of the log that were dropped: stderr was not read fast enough") \
    X(nats_connects, COUNTER, "kvb_nats_connects_total", "", "Connections made to NATS") \
    X(nats_renewals, COUNTER, "kvb_nats_renewals_total", "", "Connections to NATS that were replaced without a loss because the login had changed") \
    X(nats_certificate_end, GAUGE, "kvb_nats_certificate_expires_seconds", "", "When the certificate in nats.cert_file ends, seconds since 1970; 0: there is none") \
    X(nats_lame_ducks, COUNTER, "kvb_nats_lame_ducks_total", "", "Times that nats-server announced lame duck mode: it will stop, and another one is used") \
    X(nats_denied_publish, COUNTER, "kvb_nats_denied_total", "what=\"publish\"", "Publishes and subscriptions that nats-server denied: the user has no permission") \
    X(nats_denied_subscribe, COUNTER, "kvb_nats_denied_total", "what=\"subscribe\"", "Publishes and subscriptions that nats-server denied: the user has no permission") \
    X(nats_connected, GAUGE, "kvb_nats_connected", "", "1 while connected to NATS")
/* clang-format on */

/* Sets what does not change: version and start. */
void kvb_daemon_metrics_begin(struct kvb_metrics *metrics, size_t first_metric);

/* Copies the counters of log and connection. */
void kvb_daemon_metrics_update(
    struct kvb_metrics *metrics, size_t first_metric, const struct kvb_log *log,
    struct kvb_bus *bus);

/* Reads from the kernel CPU time and memory, which is 0 where /proc is not mounted.  Costs two
 * system calls and reading a small file: do not call it on every turn of a loop. */
void kvb_daemon_metrics_measure(struct kvb_metrics *metrics, size_t first_metric);
