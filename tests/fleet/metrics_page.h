#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "fleet/engine/engine.h"

#include <stdint.h>

/* GET /workers/ID/metrics over HTTP: one small server for the whole fleet.
 *
 * The figures are copied in by the fleet's thread; pages are made from the copy.
 * Threads: libmicrohttpd's own one; all calls are for any thread. */
struct kvb_metrics_page;

struct kvb_metrics_page_options {
    const char *address; /* "127.0.0.1", borrowed for the call; NULL: no server of its own */
    uint16_t port;       /* 0: any free one */
    const char *model;   /* borrowed until _stop() */
    uint64_t first_worker;
    uint32_t workers;
    uint32_t ranks;
    uint32_t block_size;
};

/* KVB_BAD_CONFIG  no such address, or it cannot be listened on: detail says which
 * KVB_NO_MEMORY */
kvb_status kvb_metrics_page_start(
    const struct kvb_metrics_page_options *options, struct kvb_detail *detail,
    struct kvb_metrics_page **out_page);

/* NULL is fine. */
void kvb_metrics_page_stop(struct kvb_metrics_page *page);

/* The port that is listened on. */
uint16_t kvb_metrics_page_port(const struct kvb_metrics_page *page);

/* worker and rank count from 0, whatever their ids. */
void kvb_metrics_page_set(
    struct kvb_metrics_page *page, uint32_t worker, uint32_t rank,
    const struct kvb_engine_stats *stats);

/* Appends the page of this worker, which counts from 0.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
kvb_status
kvb_metrics_page_write(struct kvb_metrics_page *page, uint32_t worker, struct kvb_buf *out);

/* One worker's GET /metrics as vLLM words it: the series that a bridge reads, with
 * the label engine="rank", and one neighbour whose name begins alike.  Under data
 * parallelism num_gpu_blocks is the sum over the ranks, as in vLLM.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
struct kvb_metrics_source {
    const char *model; /* borrowed; no quotes or backslashes in it */
    uint32_t block_size;
    const struct kvb_engine_stats *stats; /* one a rank; borrowed */
    uint32_t ranks;
};

kvb_status kvb_metrics_text(const struct kvb_metrics_source *source, struct kvb_buf *out);
