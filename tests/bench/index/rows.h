#pragma once

#include "parts/bench.h"
#include "parts/corpus.h"

/* The rows of bench_index: each prints its figures.  Those of a corpus are measured for each
 * corpus; query and memory for the one of 128 workers alone. */
void row_conversation(const struct bench *bench, const struct bench_corpus *corpus);
void row_quiet(const struct bench *bench, const struct bench_corpus *corpus);

void row_growth(const struct bench *bench);
