#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvaggregator/answers/query_context.h"
#include "load/history.h"

#include <stddef.h>
#include <stdint.h>

/* What the status page shows, kept apart from the index: the thread that owns the
 * index pays the same for one browser and for two hundred.
 *
 *     index thread --a sample a second------> history       --copied by---> HTTP threads
 *     index thread --some streams a turn----> list to be
 *                       when it is whole----> list shown    --borrowed by-> HTTP threads
 *
 * The list is rebuilt every half second until 5 s after the last query; after that it does not
 * change, and its age shows that.
 *
 * Threads: add_sample and renew on the thread that owns the query context, the answers on any.
 * Memory:  90 KB of samples; two lists of some 450 bytes a stream, each at most
 *          2 * kvb_max_dashboard_bytes. */
struct kvb_dashboard;

struct kvb_dashboard_options {
    uint64_t now_ns;     /* seconds of the history count from here */
    uint64_t started_ms; /* since 1970: differs after each restart */
    enum kvb_load_statistic statistic;
};

/* On KVB_OK the caller owns *out_dashboard.  KVB_NO_MEMORY. */
kvb_status kvb_dashboard_new(
    const struct kvb_dashboard_options *options, struct kvb_dashboard **out_dashboard);

/* NULL is fine. */
void kvb_dashboard_free(struct kvb_dashboard *dashboard);

/* To be called more often than once a second; keeps one reading of each. */
void kvb_dashboard_add_sample(
    struct kvb_dashboard *dashboard, const struct kvb_history_reading *reading, uint64_t now_ns);

/* Goes on with the list of streams, if one is wanted.  Without memory the list shown
 * stays, and grows old. */
void kvb_dashboard_renew(
    struct kvb_dashboard *dashboard, const struct kvb_query_context *ctx, uint64_t now_ns);

/* GET /history: {version, started_ms, not_ready, load_statistic, columns, samples}: the
 * samples later than second `after`, a row each.  not_ready: why no events can come just
 * now, or NULL.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: what was appended is to be thrown away. */
kvb_status kvb_dashboard_history(
    struct kvb_dashboard *dashboard, uint64_t after, const char *not_ready, struct kvb_buf *out);

struct kvb_dashboard_query {
    const char *filter; /* words that a stream must all have, in any case; "" for every one */
    size_t max_rows;
    uint64_t now_ns;
};

/* GET /overview: {age_ms, states:{EXACT:n,...}, streams:[as in GET /streams], matching}:
 * the first max_rows of the streams that match, those in trouble first.  age_ms is null
 * before the first list.  Errors as above. */
kvb_status kvb_dashboard_streams(
    struct kvb_dashboard *dashboard, const struct kvb_dashboard_query *wanted, struct kvb_buf *out);

/* status_page.html, as status_page.cmake puts it into the program.  Constant. */
extern const char kvb_status_page[];
extern const size_t kvb_status_page_bytes;

/* Its Content-Security-Policy: allows the one script and the one style in it, by the
 * hash of their bytes, and queries to the address it came from. */
extern const char kvb_status_page_policy[];

/* Quoted; another page has another one. */
extern const char kvb_status_page_etag[];
