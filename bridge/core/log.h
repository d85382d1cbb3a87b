#pragma once

#include "core/backoff.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kvb_log_writer;

/* A log on stderr, with one line per record:
 *
 *     info 2026-01-31T12:00:00.123Z bus connected url=nats://127.0.0.1:4222
 *
 * With is_json each line is a JSON object.  Values that come from peers are escaped and cut.
 * Events are counted and not logged one by one.
 *
 * After kvb_log_start() a thread of the log writes the lines, and no other thread waits for
 * stderr.  Lines that do not fit into 256 KiB are dropped and counted; a later line reports the
 * count.  Before kvb_log_start() each line is one blocking write(2).
 *
 * Threads: any thread.  kvb_log_start() comes before all other calls, kvb_log_stop() after them. */

enum kvb_log_level {
    KVB_LOG_ERROR,
    KVB_LOG_WARNING,
    KVB_LOG_INFO,
    KVB_LOG_DEBUG,
    KVB_LOG_LEVEL_COUNT
};

struct kvb_log {
    enum kvb_log_level level; /* records of lower importance are not written */
    bool is_json;
    int fd;                        /* 2 = stderr */
    struct kvb_log_writer *writer; /* NULL: each thread writes its own lines */
};

/* Starts the thread, which borrows log until kvb_log_stop().  KVB_NO_MEMORY, KVB_IO: the log works
 * without the thread. */
kvb_status kvb_log_start(struct kvb_log *log);

/* Stops the thread.  Lines that it cannot write within a second are lost.  Does nothing when the
 * log was not started. */
void kvb_log_stop(struct kvb_log *log);

/* Returns how many lines were dropped since the start.  log may be NULL. */
uint64_t kvb_log_dropped(const struct kvb_log *log);

/* Writes a record with pairs of key and value, all strings.  NULL ends the pairs:
 *
 *     kvb_log_write(log, KVB_LOG_INFO, "bus", "connected", "url", url, NULL);
 *
 * Does nothing when log is NULL. */
void kvb_log_write(
    struct kvb_log *log, enum kvb_log_level level, const char *room, const char *message, ...)
    __attribute__((sentinel));

/* Writes value in decimal into text and returns text. */
const char *kvb_log_u64(char text[24], uint64_t value);

/* The same as a value of kvb_log_write(), which writes it as a number of JSON: a text that consists
 * of digits stays a text. */
const char *kvb_log_number(char text[24], uint64_t value);

/* The same, in memory of the enclosing block. */
#define KVB_LOG_U64(value) kvb_log_number((char[24]){ 0 }, (value))

/* "error", "warning", "info", "debug".  Never NULL. */
const char *kvb_log_level_name(enum kvb_log_level level);

/* Rate limit for a repeated message: one line at first, then one line with a count every 10 s. */
struct kvb_log_limit {
    uint64_t last_ns;    /* monotonic; 0 = never logged */
    uint64_t suppressed; /* occurrences since then */
};

/* Counts one occurrence.  Returns true when a line is due; *out_count is the number of occurrences
 * that the line reports.  The caller locks. */
bool kvb_log_limit_due(struct kvb_log_limit *limit, uint64_t now_ns, uint64_t *out_count);

/* Exponential backoff for a lasting problem, such as an unreachable engine.  The first line is due
 * at once, the next after 10 s, 20 s, 40 s, and so on, up to 10 min.  {0} is the initial state. */
struct kvb_log_backoff {
    struct kvb_backoff lines;
};

/* Returns true when a line is due.  The caller locks. */
bool kvb_log_backoff_due(struct kvb_log_backoff *backoff, uint64_t now_ns);

/* Call this when the problem is over.  The next line is due 10 s after the newest one. */
void kvb_log_backoff_end(struct kvb_log_backoff *backoff);
