#include "parts/trace.h"

#include "parts/bench.h"

#include <stdlib.h>

void bench_trace_open(struct bench_trace *trace, const char *path)
{
    *trace = (struct bench_trace){ .path = path, .file = fopen(path, "re") };
    if (!trace->file) {
        bench_fail("%s: the trace cannot be opened", path);
    }
}

const struct kvb_trace_line *bench_trace_next(struct bench_trace *trace)
{
    const ssize_t len = getline(&trace->text, &trace->text_bytes, trace->file);

    if (len <= 0) {
        return NULL;
    }
    trace->rows++;
    const kvb_span text = { (const uint8_t *)trace->text, (size_t)len };
    if (kvb_trace_line_decode(text, &trace->row) != KVB_OK) {
        bench_fail(
            "%s:%zu: expected {\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\": "
            "one "
            "for each 512 tokens}",
            trace->path, trace->rows);
    }
    return &trace->row;
}

void bench_trace_close(struct bench_trace *trace)
{
    if (trace->rows == 0) {
        bench_fail("%s: no line in it", trace->path);
    }
    (void)fclose(trace->file); /* only read from */
    free(trace->text);
}
