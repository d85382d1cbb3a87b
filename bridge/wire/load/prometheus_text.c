#include "wire/load/prometheus_text.h"

#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

/* ---- Lines ---- */

void kvb_text_lines_init(struct kvb_text_lines *lines, kvb_text_line *take, void *context)
{
    *lines = (struct kvb_text_lines){ .take = take, .context = context };
    kvb_buf_init(&lines->part, kvb_max_page_line_bytes);
}

void kvb_text_lines_done(struct kvb_text_lines *lines)
{
    kvb_buf_done(&lines->part);
}

void kvb_text_lines_reset(struct kvb_text_lines *lines)
{
    kvb_buf_reset(&lines->part);
    lines->is_skipping = false;
    lines->too_long = 0;
}

/* Keeps the beginning of a line whose end has not arrived yet. */
static kvb_status keep_part(struct kvb_text_lines *lines, kvb_span bytes)
{
    if (lines->is_skipping) {
        return KVB_OK;
    }
    const kvb_status status = kvb_buf_append(&lines->part, bytes.data, bytes.len);
    if (status == KVB_TOO_LARGE) {
        /* What comes until its end is dropped; the page goes on. */
        lines->is_skipping = true;
        lines->too_long++;
        return KVB_OK;
    }
    return status;
}

/* Takes the rest of a line, without the line end. */
static kvb_status take_sample_line(struct kvb_text_lines *lines, kvb_span rest)
{
    kvb_status status = KVB_OK;

    if (lines->part.len == 0 && !lines->is_skipping && rest.len <= kvb_max_page_line_bytes) {
        return lines->take(lines->context, rest); /* most lines arrive in one piece */
    }
    status = keep_part(lines, rest);
    if (status == KVB_OK && !lines->is_skipping) {
        status = lines->take(lines->context, kvb_buf_span(&lines->part));
    }
    /* Here the line is over, whether it was taken or too long. */
    kvb_buf_reset(&lines->part);
    lines->is_skipping = false;
    return status;
}

kvb_status kvb_text_lines_feed(struct kvb_text_lines *lines, kvb_span bytes)
{
    while (bytes.len > 0) {
        const uint8_t *end = memchr(bytes.data, '\n', bytes.len);
        if (!end) {
            return keep_part(lines, bytes);
        }
        const size_t len = (size_t)(end - bytes.data);
        KVB_TRY(take_sample_line(lines, (kvb_span){ .data = bytes.data, .len = len }));
        bytes.data += len + 1;
        bytes.len -= len + 1;
    }
    return KVB_OK;
}

kvb_status kvb_text_lines_end(struct kvb_text_lines *lines)
{
    /* As if a line end had come.  Where no line was begun, `take` gets an empty one. */
    return take_sample_line(lines, (kvb_span){ .data = (const uint8_t *)"", .len = 0 });
}

/* ---- One line ---- */

/* The unread part of a line. */
struct scan {
    const uint8_t *at;
    const uint8_t *end;
};

static struct scan scan_of(kvb_span text)
{
    return (struct scan){ .at = text.data, .end = text.data + text.len };
}

static bool is_blank_byte(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r';
}

static void skip_blanks(struct scan *scan)
{
    while (scan->at < scan->end && is_blank_byte(*scan->at)) {
        scan->at++;
    }
}

static bool is_metric_name_byte(uint8_t byte, bool is_first)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '_' ||
           byte == ':' || (!is_first && byte >= '0' && byte <= '9');
}

static kvb_span take_metric_name(struct scan *scan)
{
    const uint8_t *from = scan->at;

    while (scan->at < scan->end && is_metric_name_byte(*scan->at, scan->at == from)) {
        scan->at++;
    }
    return (kvb_span){ .data = from, .len = (size_t)(scan->at - from) };
}

static bool take_byte(struct scan *scan, uint8_t byte)
{
    skip_blanks(scan);
    if (scan->at < scan->end && *scan->at == byte) {
        scan->at++;
        return true;
    }
    return false;
}

/* Takes "..." with escapes; false: the closing quote is missing. */
static bool take_quoted(struct scan *scan, kvb_span *out_value)
{
    if (!take_byte(scan, '"')) {
        return false;
    }
    const uint8_t *from = scan->at;
    for (; scan->at < scan->end; scan->at++) {
        if (*scan->at == '"') {
            *out_value = (kvb_span){ .data = from, .len = (size_t)(scan->at - from) };
            scan->at++;
            return true;
        }
        if (*scan->at == '\\') {
            scan->at++; /* skips the escaped byte; at the end of the line the loop ends */
            if (scan->at == scan->end) {
                break;
            }
        }
    }
    return false;
}

static bool take_label(struct scan *scan, kvb_span *out_key, kvb_span *out_value)
{
    skip_blanks(scan);
    *out_key = take_metric_name(scan);
    return out_key->len > 0 && take_byte(scan, '=') && take_quoted(scan, out_value);
}

/* Takes {key="value",...} or nothing. */
static kvb_status take_labels(struct scan *scan, kvb_span *out_labels)
{
    kvb_span key = { .len = 0 };
    kvb_span value = { .len = 0 };

    *out_labels = (kvb_span){ .data = scan->at, .len = 0 };
    if (!take_byte(scan, '{')) {
        return KVB_OK;
    }
    const uint8_t *from = scan->at;
    while (!take_byte(scan, '}')) { /* each turn takes a label, or fails */
        if (!take_label(scan, &key, &value)) {
            return KVB_BAD_INPUT;
        }
        skip_blanks(scan);
        /* The format allows a comma after the last label. */
        if (!take_byte(scan, ',') && (scan->at == scan->end || *scan->at != '}')) {
            return KVB_BAD_INPUT;
        }
    }
    *out_labels = (kvb_span){ .data = from, .len = (size_t)(scan->at - 1 - from) };
    return KVB_OK;
}

static kvb_status take_sample_value(struct scan *scan, double *out_value)
{
    char text[64];
    size_t len = 0;
    char *end = NULL;

    skip_blanks(scan);
    /* Copied, because strtod() needs a NUL; it would also accept hexadecimal numbers. */
    while (scan->at < scan->end && !is_blank_byte(*scan->at)) {
        if (len + 1 == sizeof text || *scan->at == 'x' || *scan->at == 'X') {
            return KVB_BAD_INPUT;
        }
        text[len++] = (char)*scan->at++;
    }
    text[len] = '\0';
    *out_value = strtod(text, &end);
    return len > 0 && end == text + len ? KVB_OK : KVB_BAD_INPUT;
}

kvb_span kvb_prometheus_name(kvb_span line)
{
    struct scan scan = scan_of(line);

    skip_blanks(&scan);
    return take_metric_name(&scan);
}

kvb_status kvb_prometheus_read(kvb_span line, struct kvb_prometheus_sample *out_sample)
{
    struct kvb_prometheus_sample sample = { .value = 0 };
    struct scan scan = scan_of(line);

    skip_blanks(&scan);
    if (scan.at == scan.end || *scan.at == '#') {
        return KVB_NOT_FOUND;
    }
    sample.name = take_metric_name(&scan);
    if (sample.name.len == 0) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(take_labels(&scan, &sample.labels));
    KVB_TRY(take_sample_value(&scan, &sample.value));
    /* A timestamp or an exemplar may follow, which nobody needs. */
    *out_sample = sample;
    return KVB_OK;
}

bool kvb_prometheus_next_label(kvb_span *labels, kvb_span *out_key, kvb_span *out_value)
{
    struct scan scan = scan_of(*labels);

    if (!take_label(&scan, out_key, out_value)) {
        return false;
    }
    /* take_labels() has checked that a comma or the end follows. */
    (void)take_byte(&scan, ',');
    *labels = (kvb_span){ .data = scan.at, .len = (size_t)(scan.end - scan.at) };
    return true;
}

bool kvb_prometheus_label(
    const struct kvb_prometheus_sample *sample, const char *key, kvb_span *out_value)
{
    kvb_span labels = sample->labels;
    kvb_span name = { .len = 0 };

    while (kvb_prometheus_next_label(&labels, &name, out_value)) {
        if (kvb_span_is(name, key)) {
            return true;
        }
    }
    return false;
}
