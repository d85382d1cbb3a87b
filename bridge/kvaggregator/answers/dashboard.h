#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvaggregator/answers/query_context.h"

#include <stddef.h>
#include <stdint.h>

/* A copy of what the status page shows, so that the index thread does the same work for one browser
 * as for two hundred.
 *
 *     index thread --a sample a second------> samples       --copied by---> HTTP threads
 *     index thread --some streams a turn----> next list
 *                       when complete------> shown list    --borrowed by-> HTTP threads
 *
 * The list is rebuilt every half second until 5 s after the last query.  After that it only ages,
 * and answers give its age.
 *
 * Samples are a ring: the newest kvb_max_history_samples, one a second.  Seconds are counted from
 * the start, the first is 1.  Where nobody had the time to take one, its second is missing.
 *
 * Threads: add_sample and renew: the thread that owns the query context; the answers: any thread.
 * Memory:  115 KB of samples; two lists of some 450 bytes a stream, each at most
 *          2 * kvb_max_dashboard_bytes. */
struct kvb_dashboard;

enum { kvb_dashboard_subjects = 4 };

struct kvb_dashboard_options {
    uint64_t now_ns;     /* history seconds count from here */
    uint64_t started_ms; /* since 1970: differs after each restart */
    enum kvb_load_statistic statistic;
    /* Where bridges are listened to, for who sees no stream.  Borrowed until the end. */
    const char *nats; /* without user and password; NULL: not said */
    const char *subjects[kvb_dashboard_subjects];
};

/* On KVB_OK the caller owns *out_dashboard.  KVB_NO_MEMORY. */
kvb_status kvb_dashboard_new(
    const struct kvb_dashboard_options *options, struct kvb_dashboard **out_dashboard);

/* NULL is fine. */
void kvb_dashboard_free(struct kvb_dashboard *dashboard);

/* The figures at one moment. */
struct kvb_dashboard_reading {
    uint64_t events_applied;   /* this and the next four are counters: they never go back */
    uint64_t asked_blocks;     /* blocks of the requests that were routed */
    uint64_t hit_blocks;       /* those of them that the chosen worker held */
    uint64_t promised_tokens;  /* of requests that were audited */
    uint64_t delivered_tokens; /* of these, at most what was promised */
    uint64_t held_blocks;      /* the fields from here on are gauges */
    double load_avg;
    double load_std;
    uint64_t streams[KVB_STREAM_STATE_COUNT];
};

/* Call it more than once a second; it keeps one sample for each second. */
void kvb_dashboard_add_sample(
    struct kvb_dashboard *dashboard, const struct kvb_dashboard_reading *reading, uint64_t now_ns);

/* Continues to build the list of streams, if one is wanted.  Without memory the shown list stays
 * and ages. */
void kvb_dashboard_renew(
    struct kvb_dashboard *dashboard, const struct kvb_query_context *ctx, uint64_t now_ns);

/* GET /history: {version, started_ms, not_ready, load_statistic, columns, samples}: the samples
 * after second `after`, one row each; all of them where `after` is in the future, because then it
 * is that of an earlier process.  not_ready: why no events can arrive now, or NULL.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: the caller discards what was appended. */
kvb_status kvb_dashboard_history(
    struct kvb_dashboard *dashboard, uint64_t after, const char *not_ready, struct kvb_buf *out);

struct kvb_dashboard_query {
    const char *filter; /* words that a stream must all have, ignoring case; "": all streams */
    size_t max_rows;
    uint64_t now_ns;
};

/* GET /overview: {age_ms, states:{EXACT:n,...}, streams:[as in GET /streams], matching}: the first
 * max_rows of the matching streams, worst states first.  age_ms is null before the first list.
 * Where there is no stream: also listens:{nats, subjects:[...]}.
 * Errors as above. */
kvb_status kvb_dashboard_streams(
    struct kvb_dashboard *dashboard, const struct kvb_dashboard_query *wanted, struct kvb_buf *out);

/* The text of status_page.html, which status_page.cmake compiles in.  Constant. */
extern const char kvb_status_page[];
extern const size_t kvb_status_page_bytes;

/* The Content-Security-Policy of the page: allows its one script and its one style, by their
 * hashes, and requests to its own origin. */
extern const char kvb_status_page_policy[];

/* The quoted ETag of the page, a hash of its content. */
extern const char kvb_status_page_etag[];
