#pragma once

#include "parts/bench.h"
#include "parts/corpus.h"

/* The rows of bench_index: each measures what its name in bench_index.c says, and prints
 * its figures.  Those of the first kind make their own blocks. */
void row_wide(const struct bench *bench);
void row_wide_long(const struct bench *bench);
void row_clear(const struct bench *bench);
void row_staircase(const struct bench *bench);
void row_deep(const struct bench *bench);
void row_growth(const struct bench *bench);
void row_snapshot(const struct bench *bench);
void row_cost(const struct bench *bench);
void row_linear(const struct bench *bench);
void row_fleet(const struct bench *bench);
void row_holes(const struct bench *bench);

enum { row_name_bytes = 96 };

/* index.<row><figure>, and for a corpus of other than 128 workers index.<row>.W<figure>. */
void row_name(char out[row_name_bytes], const char *row, uint32_t workers, const char *figure);

/* These replay a scene that bench_scenes wrote, for comparison by ../peers. */
void row_scene_rounds(const struct bench *bench, struct bench_corpus *corpus);
void row_scene_queries(const struct bench *bench, struct bench_corpus *corpus);
void row_scene_growth(const struct bench *bench, struct bench_corpus *corpus);

/* These replay a corpus; the last one changes its names. */
void row_conversation(const struct bench *bench, struct bench_corpus *corpus);
void row_events(const struct bench *bench, struct bench_corpus *corpus);
void row_quiet(const struct bench *bench, struct bench_corpus *corpus);
void row_readers(const struct bench *bench, struct bench_corpus *corpus);
void row_dump(const struct bench *bench, struct bench_corpus *corpus);
void row_two(const struct bench *bench, struct bench_corpus *corpus);
void row_own_names(const struct bench *bench, struct bench_corpus *corpus);
