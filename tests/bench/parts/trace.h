#pragma once

#include "fleet/trace.h"

#include <stddef.h>
#include <stdio.h>

/* The rows of a chat trace, one after the other.  One that is none ends the program. */
struct bench_trace {
    const char *path; /* borrowed */
    FILE *file;       /* owned, as text */
    char *text;
    size_t text_bytes;
    size_t rows; /* read so far */
    struct kvb_trace_line row;
};

void bench_trace_open(struct bench_trace *trace, const char *path);

/* Reads the next row; NULL at the end. */
const struct kvb_trace_line *bench_trace_next(struct bench_trace *trace);

/* A trace of which no row was read ends the program. */
void bench_trace_close(struct bench_trace *trace);
