#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvaggregator/answers/query_context.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Streams as text, for dashboard.c alone: made once, then read by any number of threads.
 *
 *     rows   [ state, where its text and words begin ] ...
 *     text   {"worker_id":7,...}{"worker_id":8,...}       as in GET /streams
 *     words  EXACT  7/0 dynamo VllmWorker m\0 ...         what a filter looks at
 *
 * Threads: one makes it; afterwards any, each with a reference. */
struct kvb_dashboard_row {
    enum kvb_stream_state state;
    size_t text_at;
    size_t text_bytes;
    size_t words_at;
};

struct kvb_dashboard_list {
    _Atomic unsigned users;
    uint64_t made_ns;
    uint64_t counts[KVB_STREAM_STATE_COUNT]; /* of all streams, listed or not */
    struct kvb_dashboard_row *rows;          /* owned */
    size_t row_count;
    size_t row_capacity;
    struct kvb_buf text;
    struct kvb_buf words;
};

/* With one reference, the caller's.  KVB_NO_MEMORY. */
kvb_status kvb_dashboard_list_new(struct kvb_dashboard_list **out_list);

void kvb_dashboard_list_ref(struct kvb_dashboard_list *list);
/* The last one frees it.  NULL is fine. */
void kvb_dashboard_list_unref(struct kvb_dashboard_list *list);

/* KVB_TOO_LARGE  counted, but there is no room to list it: kvb_max_dashboard_bytes
 * KVB_NO_MEMORY  the list is of no use any more */
kvb_status kvb_dashboard_list_add(
    struct kvb_dashboard_list *list, const struct kvb_query_context *ctx,
    const struct kvb_follower *follower);

/* Appends the first max_rows rows that have every word of the filter, with commas,
 * those in trouble first.  *out_matching: how many have, shown or not.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  of out */
kvb_status kvb_dashboard_list_write(
    const struct kvb_dashboard_list *list, const char *filter, size_t max_rows,
    size_t *out_matching, struct kvb_buf *out);
