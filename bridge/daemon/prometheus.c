#include "daemon/prometheus.h"

#include "core/own.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *type_name(enum kvb_metric_type type)
{
    static const char *const names[] = {
        [KVB_METRIC_COUNTER] = "counter",      [KVB_METRIC_GAUGE] = "gauge",
        [KVB_METRIC_REAL_COUNTER] = "counter", [KVB_METRIC_REAL_GAUGE] = "gauge",
        [KVB_METRIC_HISTOGRAM] = "histogram",
    };

    return names[type];
}

/* Appends a help text, with backslashes and line ends escaped. */
static kvb_status append_help(struct kvb_buf *out, const char *text)
{
    while (*text) {
        const size_t plain = strcspn(text, "\\\n");
        KVB_TRY(kvb_buf_append(out, text, plain));
        text += plain;
        if (*text) {
            KVB_TRY(kvb_buf_append_text(out, *text++ == '\n' ? "\\n" : "\\\\"));
        }
    }
    return KVB_OK;
}

static kvb_status append_head(struct kvb_buf *out, const struct kvb_metric_row *row)
{
    KVB_TRY(kvb_buf_append_format(out, "# HELP %s ", row->name));
    KVB_TRY(append_help(out, row->help));
    return kvb_buf_append_format(out, "\n# TYPE %s %s\n", row->name, type_name(row->type));
}

static kvb_status append_value(struct kvb_buf *out, double value)
{
    char text[32];

    if (isnan(value)) {
        return kvb_buf_append_text(out, "NaN");
    }
    if (isinf(value)) {
        return kvb_buf_append_text(out, value > 0 ? "+Inf" : "-Inf");
    }
    /* The fewest digits that read back as the same number. */
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    return kvb_buf_append_text(out, text);
}

/* Name and labels of one sample. */
struct line {
    const char *name;
    const char *suffix;    /* "_bucket", ...; "" for none */
    const char *labels[3]; /* written one after the other; "" for none */
};

static kvb_status append_name(struct kvb_buf *out, const struct line *line)
{
    bool is_first = true;

    KVB_TRY(kvb_buf_append_text(out, line->name));
    KVB_TRY(kvb_buf_append_text(out, line->suffix));
    for (size_t i = 0; i < KVB_COUNT_OF(line->labels); i++) {
        if (line->labels[i][0] == '\0') {
            continue;
        }
        KVB_TRY(kvb_buf_append_text(out, is_first ? "{" : ","));
        KVB_TRY(kvb_buf_append_text(out, line->labels[i]));
        is_first = false;
    }
    return kvb_buf_append_text(out, is_first ? " " : "} ");
}

static kvb_status append_whole(struct kvb_buf *out, const struct line *line, uint64_t value)
{
    KVB_TRY(append_name(out, line));
    KVB_TRY(kvb_buf_append_u64(out, value));
    return kvb_buf_append_text(out, "\n");
}

static kvb_status append_real(struct kvb_buf *out, const struct line *line, double value)
{
    KVB_TRY(append_name(out, line));
    KVB_TRY(append_value(out, value));
    return kvb_buf_append_text(out, "\n");
}

/* Sums up the buckets, because the page has cumulative counts.  The last sum is also the value of
 * _count, so that the two agree even while other threads count. */
static kvb_status append_histogram(
    struct kvb_buf *out, const struct line *row, const struct kvb_metrics *metrics, size_t id)
{
    struct line line = *row;
    uint64_t count = 0;
    char bound[40];

    line.suffix = "_bucket";
    line.labels[2] = bound;
    for (size_t bucket = 0; bucket < kvb_metric_buckets; bucket++) {
        const uint64_t bound_ns = kvb_metric_bound_ns(bucket);
        count += kvb_metric_get(metrics, id + bucket);
        if (bound_ns == UINT64_MAX) {
            (void)snprintf(bound, sizeof bound, "le=\"+Inf\"");
        } else {
            (void)snprintf(bound, sizeof bound, "le=\"%.9g\"", (double)bound_ns / 1e9);
        }
        KVB_TRY(append_whole(out, &line, count));
    }
    line.labels[2] = "";
    line.suffix = "_sum";
    KVB_TRY(
        append_real(out, &line, (double)kvb_metric_get(metrics, id + kvb_metric_buckets) / 1e9));
    line.suffix = "_count";
    return append_whole(out, &line, count);
}

static kvb_status append_set(struct kvb_buf *out, const struct kvb_prometheus_set *set, size_t id)
{
    const struct kvb_metrics *metrics = &set->metrics;
    const struct kvb_metric_row *row = &metrics->rows[id];
    const struct line line = { row->name, "", { set->labels, row->labels, "" } };

    switch (row->type) {
    case KVB_METRIC_HISTOGRAM:
        return append_histogram(out, &line, metrics, id);
    case KVB_METRIC_REAL_COUNTER:
    case KVB_METRIC_REAL_GAUGE:
        return append_real(out, &line, kvb_metric_get_real(metrics, id));
    case KVB_METRIC_COUNTER:
    case KVB_METRIC_GAUGE:
        break;
    }
    return append_whole(out, &line, kvb_metric_get(metrics, id));
}

kvb_status
kvb_prometheus_sets(const struct kvb_prometheus_set *sets, size_t count, struct kvb_buf *out)
{
    const char *last = "";

    for (size_t id = 0; count > 0 && id < sets->metrics.count; id++) {
        const struct kvb_metric_row *row = &sets->metrics.rows[id];
        if (!row->name) {
            continue; /* the row of a bucket, which append_histogram() writes */
        }
        /* Rows of one name differ in labels and stand side by side: they have one head, and the
         * page may not have samples of other names between them. */
        if (strcmp(row->name, last) != 0) {
            KVB_TRY(append_head(out, row));
            last = row->name;
        }
        for (size_t i = 0; i < count; i++) {
            KVB_TRY(append_set(out, &sets[i], id));
        }
    }
    return KVB_OK;
}

kvb_status kvb_prometheus_table(const struct kvb_metrics *metrics, struct kvb_buf *out)
{
    const struct kvb_prometheus_set set = { .labels = "", .metrics = *metrics };

    return kvb_prometheus_sets(&set, 1, out);
}
