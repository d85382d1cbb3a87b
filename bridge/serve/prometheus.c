#include "serve/prometheus.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *type_name(enum kvb_metric_type type)
{
    return type == KVB_METRIC_COUNTER ? "counter" : "gauge";
}

/* Backslash and line end everywhere, quotes in label values only. */
static const char *escape_of(char c, bool in_quotes)
{
    switch (c) {
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '"':
        return in_quotes ? "\\\"" : NULL;
    default:
        return NULL;
    }
}

static kvb_status append_escaped(struct kvb_buf *out, const char *text, bool in_quotes)
{
    const char *plain = text;

    for (; *text; text++) {
        const char *escape = escape_of(*text, in_quotes);
        if (escape) {
            KVB_TRY(kvb_buf_append(out, plain, (size_t)(text - plain)));
            KVB_TRY(kvb_buf_append_text(out, escape));
            plain = text + 1;
        }
    }
    return kvb_buf_append(out, plain, (size_t)(text - plain));
}

kvb_status kvb_prometheus_head(
    struct kvb_buf *out, const char *name, enum kvb_metric_type type, const char *help)
{
    KVB_TRY(kvb_buf_append_format(out, "# HELP %s ", name));
    KVB_TRY(append_escaped(out, help, false));
    return kvb_buf_append_format(out, "\n# TYPE %s %s\n", name, type_name(type));
}

static kvb_status append_row(const struct kvb_metrics *metrics, size_t id, struct kvb_buf *out)
{
    const struct kvb_metric_row *row = &metrics->rows[id];

    if (id == 0 || strcmp(row->name, metrics->rows[id - 1].name) != 0) {
        KVB_TRY(kvb_prometheus_head(out, row->name, row->type, row->help));
    }
    KVB_TRY(kvb_buf_append_text(out, row->name));
    if (row->labels[0]) {
        KVB_TRY(kvb_buf_append_format(out, "{%s}", row->labels));
    }
    KVB_TRY(kvb_buf_append_text(out, " "));
    KVB_TRY(kvb_buf_append_u64(out, kvb_metric_get(metrics, id)));
    return kvb_buf_append_text(out, "\n");
}

kvb_status kvb_prometheus_table(const struct kvb_metrics *metrics, struct kvb_buf *out)
{
    for (size_t id = 0; id < metrics->count; id++) {
        KVB_TRY(append_row(metrics, id, out));
    }
    return KVB_OK;
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
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    return kvb_buf_append_text(out, text);
}

kvb_status kvb_prometheus_sample(
    struct kvb_buf *out, const char *name, const struct kvb_prometheus_label *labels,
    size_t label_count, double value)
{
    KVB_TRY(kvb_buf_append_text(out, name));
    for (size_t i = 0; i < label_count; i++) {
        KVB_TRY(kvb_buf_append_format(out, "%c%s=\"", i == 0 ? '{' : ',', labels[i].name));
        KVB_TRY(append_escaped(out, labels[i].value, true));
        KVB_TRY(kvb_buf_append_text(out, "\""));
    }
    KVB_TRY(kvb_buf_append_text(out, label_count > 0 ? "} " : " "));
    KVB_TRY(append_value(out, value));
    return kvb_buf_append_text(out, "\n");
}
