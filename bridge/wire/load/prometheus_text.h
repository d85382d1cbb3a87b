#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads Prometheus's text format 0.0.4, and the common part of OpenMetrics, in pieces as it
 * arrives:
 *
 *     bytes --kvb_text_lines_feed--> lines --kvb_prometheus_read--> name, labels, value
 *
 *     # HELP vllm:num_requests_running Number of requests in model execution batches.
 *     vllm:num_requests_running{engine="0",model_name="m"} 4.0
 *     http_requests_total 7 1795249764058
 *
 * Threads: the caller locks. */

/* ---- Lines ---- */

/* Called with each line, without the line end; its bytes are borrowed for the call. */
typedef kvb_status kvb_text_line(void *context, kvb_span line);

/* Memory: the part of one line, at most kvb_max_page_line_bytes. */
struct kvb_text_lines {
    kvb_text_line *take;
    void *context;
    struct kvb_buf part; /* owned: the beginning of an incomplete line */
    bool is_skipping;    /* that line is too long */
    uint64_t too_long;   /* lines skipped */
};

/* Allocates nothing.  kvb_text_lines_done() frees the part of a line; {0} is fine. */
void kvb_text_lines_init(struct kvb_text_lines *lines, kvb_text_line *take, void *context);
void kvb_text_lines_done(struct kvb_text_lines *lines);

/* Begins a new text: discards an incomplete line and resets the count. */
void kvb_text_lines_reset(struct kvb_text_lines *lines);

/* Calls `take` with each complete line.  Stops at the first status of `take` that is not KVB_OK,
 * and returns it; also KVB_NO_MEMORY. */
kvb_status kvb_text_lines_feed(struct kvb_text_lines *lines, kvb_span bytes);

/* Ends the text, whose last line may lack a line end.  As kvb_text_lines_feed(). */
kvb_status kvb_text_lines_end(struct kvb_text_lines *lines);

/* ---- One line ---- */

struct kvb_prometheus_sample {
    kvb_span name;   /* borrowed from the line, like the labels */
    kvb_span labels; /* the text between the braces, well-formed */
    double value;    /* may be NaN or infinite */
};

/* The name at the beginning of the line; empty for comments, empty lines and invalid lines. */
kvb_span kvb_prometheus_name(kvb_span line);

/* Timestamps and exemplars are skipped.
 * KVB_NOT_FOUND  a comment, or an empty line   KVB_BAD_INPUT  not a sample */
kvb_status kvb_prometheus_read(kvb_span line, struct kvb_prometheus_sample *out_sample);

/* The raw value of a label, with its escapes.  False: there is no such label. */
bool kvb_prometheus_label(
    const struct kvb_prometheus_sample *sample, const char *key, kvb_span *out_value);

/* Takes the next label from the front of *labels, which begins as the labels of a sample.  False:
 * there is none. */
bool kvb_prometheus_next_label(kvb_span *labels, kvb_span *out_key, kvb_span *out_value);
