#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kvb_log_writer;

/* One line a record on stderr:
 *
 *     info 2026-01-31T12:00:00.123Z bus connected url=nats://127.0.0.1:4222
 *
 * or, with is_json, one JSON object a line.  Values that come from peers are
 * escaped and cut.  Never called once per event: count those.
 *
 * After kvb_log_start() a thread of the log writes the lines, and no other thread waits for
 * stderr.  Lines that do not fit into 256 KiB are dropped and counted; a later line reports the
 * count.  Before kvb_log_start() each line is one blocking write(2).
 *
 * Threads: any thread; kvb_log_start() and kvb_log_stop() before and after all others. */

enum kvb_log_level {
    KVB_LOG_ERROR,
    KVB_LOG_WARNING,
    KVB_LOG_INFO,
    KVB_LOG_DEBUG,
    KVB_LOG_LEVEL_COUNT
};

struct kvb_log {
    enum kvb_log_level level; /* the least important that is written */
    bool is_json;
    int fd;                        /* 2 = stderr */
    struct kvb_log_writer *writer; /* NULL: each thread writes its own lines */
};

/* Starts the thread; log is borrowed by it until kvb_log_stop().  KVB_NO_MEMORY, KVB_IO: the log
 * keeps working without the thread. */
kvb_status kvb_log_start(struct kvb_log *log);

/* Stops the thread; lines not written within a second are lost.  Does nothing when the log was
 * not started. */
void kvb_log_stop(struct kvb_log *log);

/* Lines dropped since the start.  log may be NULL. */
uint64_t kvb_log_dropped(const struct kvb_log *log);

/* Pairs of key and value, both strings, closed by NULL:
 *
 *     kvb_log_write(log, KVB_LOG_INFO, "bus", "connected", "url", url, NULL);
 *
 * log may be NULL: nothing happens. */
void kvb_log_write(
    struct kvb_log *log, enum kvb_log_level level, const char *room, const char *message, ...)
    __attribute__((sentinel));

/* value in decimal, written into text (24 bytes), returned for use as a value. */
const char *kvb_log_u64(char text[24], uint64_t value);

/* The same into memory of the block in which it stands. */
#define KVB_LOG_U64(value) kvb_log_u64((char[24]){ 0 }, (value))

/* "error", "warning", "info", "debug".  Never NULL. */
const char *kvb_log_level_name(enum kvb_log_level level);

/* Rate limit of a repeated message: one line at first, then a count every 10 s. */
struct kvb_log_limit {
    uint64_t last_ns;    /* monotonic; 0 = never logged */
    uint64_t suppressed; /* since then */
};

/* Counts one occurrence.  True when a line is due; *out_count: how many occurrences it stands
 * for.  The caller locks. */
bool kvb_log_limit_due(struct kvb_log_limit *limit, uint64_t now_ns, uint64_t *out_count);

/* Exponential backoff for a lasting problem, such as an unreachable engine: one line at first,
 * the next after 10 s, 20 s, 40 s, and so on, up to one in 10 min.  {0} is the initial state. */
struct kvb_log_backoff {
    uint64_t next_ns;  /* monotonic; 0 = nothing logged yet */
    uint64_t pause_ns; /* after the newest line */
};

/* True when a line is due.  The caller locks. */
bool kvb_log_backoff_due(struct kvb_log_backoff *backoff, uint64_t now_ns);

/* The problem is over: the next line is due 10 s after the newest one. */
void kvb_log_backoff_end(struct kvb_log_backoff *backoff);
