#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Prometheus's text format 0.0.4, and OpenMetrics as far as it looks the same, read as
 * it comes in:
 *
 *     bytes --kvb_text_lines_feed--> lines --kvb_prometheus_read--> name, labels, value
 *
 *     # HELP vllm:num_requests_running Number of requests in model execution batches.
 *     vllm:num_requests_running{engine="0",model_name="m"} 4.0
 *     http_requests_total 7 1795249764058
 *
 * Threads: the caller locks. */

/* ---- Lines ---- */

/* The line's bytes are borrowed for the call; without its end. */
typedef kvb_status kvb_text_line(void *context, kvb_span line);

/* Memory: the part of one line, at most kvb_max_page_line_bytes. */
struct kvb_text_lines {
    kvb_text_line *take;
    void *context;
    struct kvb_buf part; /* owned: of a line whose end has not come */
    bool is_skipping;    /* that line is too long */
    uint64_t too_long;   /* lines passed over */
};

/* Allocates nothing.  Undone by kvb_text_lines_done(), which also takes {0}. */
void kvb_text_lines_init(struct kvb_text_lines *lines, kvb_text_line *take, void *context);
void kvb_text_lines_done(struct kvb_text_lines *lines);

/* Begins anew: what is left of a line is forgotten, and so is the count. */
void kvb_text_lines_reset(struct kvb_text_lines *lines);

/* Calls take with each line that is whole.  What take returns but KVB_OK ends it, and is
 * returned; else KVB_NO_MEMORY. */
kvb_status kvb_text_lines_feed(struct kvb_text_lines *lines, kvb_span bytes);

/* The text is over: its last line may lack an end.  As kvb_text_lines_feed(). */
kvb_status kvb_text_lines_end(struct kvb_text_lines *lines);

/* ---- One line ---- */

struct kvb_prometheus_sample {
    kvb_span name;   /* borrowed from the line, like the labels */
    kvb_span labels; /* what stands between the braces, well-formed */
    double value;    /* may be NaN or infinite */
};

/* The name that the line begins with; empty for comments, empty lines and nonsense. */
kvb_span kvb_prometheus_name(kvb_span line);

/* Timestamps and exemplars are passed over.
 * KVB_NOT_FOUND  a comment, or an empty line   KVB_BAD_INPUT  no sample */
kvb_status kvb_prometheus_read(kvb_span line, struct kvb_prometheus_sample *out_sample);

/* The value of a label as it is written: escapes stand in it.  False: there is none. */
bool kvb_prometheus_label(
    const struct kvb_prometheus_sample *sample, const char *key, kvb_span *out_value);
