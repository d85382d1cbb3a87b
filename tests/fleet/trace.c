#include "fleet/trace.h"

#include "core/array.h"
#include "core/own.h"
#include "core/random.h"
#include "fleet/engine/engine.h"
#include "wire/json/scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    size_t id_at;
    uint32_t id_count;
    uint32_t input_length;
    uint32_t output_length;
};

struct kvb_trace {
    struct row *rows; /* owned, like ids */
    uint64_t *ids;
    size_t row_count;
    size_t row_capacity;
    size_t id_count;
    size_t id_capacity;
    uint32_t scale;
};

enum {
    max_rows = 1 << 20,
    max_ids = 1 << 25,
    max_line_bytes = 1 << 17, /* of kvb_trace_max_ids ids of 20 digits */
    max_tokens = kvb_trace_max_ids * kvb_trace_tokens_per_id,
};

/* ---- One line ---- */

static kvb_status read_timestamp(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;
    return kvb_json_u64(scan, &line->timestamp_ms);
}

static kvb_status read_input(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;
    return kvb_json_u32(scan, &line->input_length);
}

static kvb_status read_output(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;
    return kvb_json_u32(scan, &line->output_length);
}

static kvb_status read_id(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;

    if (line->id_count == kvb_trace_max_ids) {
        return KVB_BAD_INPUT;
    }
    return kvb_json_u64(scan, &line->ids[line->id_count++]);
}

static kvb_status read_ids(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_id, context);
}

kvb_status kvb_trace_line_decode(kvb_span text, struct kvb_trace_line *out_line)
{
    static const struct kvb_json_field fields[] = {
        { "timestamp", true, read_timestamp },
        { "input_length", true, read_input },
        { "output_length", true, read_output },
        { "hash_ids", true, read_ids },
    };
    struct kvb_json_scan scan = kvb_json_scan_of(text);

    out_line->id_count = 0;
    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), out_line));
    KVB_TRY(kvb_json_finish(&scan));

    const uint64_t max = (uint64_t)out_line->id_count * kvb_trace_tokens_per_id;
    const bool fits = out_line->input_length > 0 && out_line->input_length <= max &&
                      out_line->input_length + (uint64_t)kvb_trace_tokens_per_id > max;
    return fits ? KVB_OK : KVB_BAD_INPUT;
}

/* ---- The file ---- */

/* The state of the reader of a file. */
struct loader {
    const char *path;
    FILE *file;
    char *text;                  /* owned; one line */
    struct kvb_trace_line *line; /* owned */
    size_t number;
    struct kvb_trace *trace;
};

static void drop_loader(struct loader *loader)
{
    (void)fclose(loader->file); /* only read from */
    free(loader->text);
    free(loader->line);
}

static kvb_status add_row(struct kvb_trace *trace, const struct kvb_trace_line *line)
{
    KVB_TRY(kvb_array_reserve(
        &trace->rows, &trace->row_capacity, trace->row_count + 1, sizeof *trace->rows, max_rows));
    KVB_TRY(kvb_array_reserve(
        &trace->ids, &trace->id_capacity, trace->id_count + line->id_count, sizeof *trace->ids,
        max_ids));
    memcpy(trace->ids + trace->id_count, line->ids, line->id_count * sizeof *line->ids);
    trace->rows[trace->row_count++] = (struct row){
        .id_at = trace->id_count,
        .id_count = line->id_count,
        .input_length = line->input_length,
        .output_length = line->output_length,
    };
    trace->id_count += line->id_count;
    return KVB_OK;
}

static kvb_status load_line(struct loader *loader, struct kvb_detail *detail)
{
    const kvb_span text = { (const uint8_t *)loader->text, strlen(loader->text) };

    loader->number++;
    if (text.len + 1 == max_line_bytes) {
        kvb_detail_set(detail, "%s:%zu: the line is too long", loader->path, loader->number);
        return KVB_BAD_CONFIG;
    }
    if (kvb_trace_line_decode(text, loader->line) != KVB_OK) {
        kvb_detail_set(
            detail,
            "%s:%zu: expected {\"timestamp\", \"input_length\", \"output_length\", "
            "\"hash_ids\": one for each 512 tokens}",
            loader->path, loader->number);
        return KVB_BAD_CONFIG;
    }
    const kvb_status status = add_row(loader->trace, loader->line);
    if (status == KVB_TOO_LARGE) {
        kvb_detail_set(detail, "%s: more than %d lines or too many ids", loader->path, max_rows);
        return KVB_BAD_CONFIG;
    }
    return status;
}

static kvb_status load_lines(struct loader *loader, struct kvb_detail *detail)
{
    loader->text = malloc(max_line_bytes);
    loader->line = malloc(sizeof *loader->line);
    if (!loader->text || !loader->line) {
        return KVB_NO_MEMORY;
    }
    while (fgets(loader->text, max_line_bytes, loader->file)) {
        KVB_TRY(load_line(loader, detail));
    }
    if (ferror(loader->file) || loader->trace->row_count == 0) {
        kvb_detail_set(detail, "%s: cannot be read, or is empty", loader->path);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status load_file(const char *path, struct kvb_trace *trace, struct kvb_detail *detail)
{
    struct loader loader = { .path = path, .file = fopen(path, "re"), .trace = trace };

    if (!loader.file) {
        kvb_detail_set(detail, "%s: the trace cannot be opened", path);
        return KVB_BAD_CONFIG;
    }
    const kvb_status status = load_lines(&loader, detail);
    drop_loader(&loader);
    return status;
}

kvb_status kvb_trace_load(
    const char *path, uint32_t scale, struct kvb_detail *detail, struct kvb_trace **out_trace)
{
    if (scale == 0 || scale > kvb_trace_tokens_per_id) {
        kvb_detail_set(detail, "scale: expected 1 .. %d", kvb_trace_tokens_per_id);
        return KVB_BAD_CONFIG;
    }
    struct kvb_trace *trace = calloc(1, sizeof *trace);
    if (!trace) {
        return KVB_NO_MEMORY;
    }
    trace->scale = scale;
    const kvb_status status = load_file(path, trace, detail);
    if (status != KVB_OK) {
        kvb_trace_free(trace);
        return status;
    }
    *out_trace = trace;
    return KVB_OK;
}

void kvb_trace_free(struct kvb_trace *trace)
{
    if (!trace) {
        return;
    }
    free(trace->rows);
    free(trace->ids);
    free(trace);
}

/* ---- Requests ---- */

static uint32_t scaled(const struct kvb_trace *trace, uint32_t tokens)
{
    const uint32_t less = tokens / trace->scale;
    return less > 0 ? less : 1;
}

/* The tokens of one id: a random sequence that begins at the id and the lap. */
static void write_id_tokens(uint32_t *out, uint32_t count, uint64_t id, uint64_t lap)
{
    uint64_t rng = id + (lap << 40);

    /* One step apart, neighbouring ids would give the same sequence shifted. */
    rng = kvb_random_next(&rng);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = (uint32_t)kvb_random_below(&rng, kvb_fleet_vocabulary);
    }
}

/* Every prompt of a trace begins with the same system prompt; the second id is
 * the first that belongs to a conversation. */
static uint64_t conversation_of(const uint64_t *ids, const struct row *row, uint64_t lap)
{
    return ids[row->id_count > 1 ? 1 : 0] + (lap << 40);
}

kvb_status kvb_trace_request_make(
    const struct kvb_trace *trace, uint64_t index, struct kvb_trace_request *out_request)
{
    const struct row *row = &trace->rows[index % trace->row_count];
    const uint64_t lap = index / trace->row_count;
    const uint64_t *ids = trace->ids + row->id_at;
    const uint32_t tokens_per_id = kvb_trace_tokens_per_id / trace->scale;
    /* 512 / scale is rounded down, so the ids may hold fewer tokens than the length. */
    const uint32_t room = row->id_count * tokens_per_id;
    const uint32_t length = scaled(trace, row->input_length);
    const uint32_t count = length < room ? length : room;

    KVB_TRY(kvb_array_reserve(
        &out_request->tokens, &out_request->capacity, count, sizeof *out_request->tokens,
        max_tokens));
    uint32_t at = 0;
    for (const uint64_t *id = ids; at < count; id++) {
        const uint32_t left = count - at;
        const uint32_t more = left < tokens_per_id ? left : tokens_per_id;
        write_id_tokens(out_request->tokens + at, more, *id, lap);
        at += more;
    }
    out_request->count = count;
    out_request->output_length = scaled(trace, row->output_length);
    out_request->conversation = conversation_of(ids, row, lap);
    return KVB_OK;
}

void kvb_trace_request_done(struct kvb_trace_request *request)
{
    free(request->tokens);
    *request = (struct kvb_trace_request){ 0 };
}
