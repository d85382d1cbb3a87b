#include "core/own.h"
#include "index/rows.h"

#include <inttypes.h>
#include <stdio.h>

/* The rows index.*: the index alone, one thread, through index/index.h. */

void row_name(char out[row_name_bytes], const char *row, uint32_t workers, const char *figure)
{
    if (workers == 128) {
        (void)snprintf(out, row_name_bytes, "index.%s%s", row, figure);
    } else {
        (void)snprintf(out, row_name_bytes, "index.%s.%" PRIu32 "%s", row, workers, figure);
    }
}

struct row {
    const char *name; /* its figures begin so */
    void (*measure)(const struct bench *bench);
};

/* clang-format off */
static const struct row rows[] = {
    { "index.wide", row_wide },           /* 10,000 workers hold one prompt of 64 blocks */
    { "index.wide_long", row_wide_long }, /* of 512 */
    { "index.clear", row_clear },         /* one of 1,000 workers is cleared */
    { "index.staircase", row_staircase }, /* 999 depths in one answer */
    { "index.deep", row_deep },           /* a query of 6,250 blocks */
    { "index.growth", row_growth },       /* the worst store while it grows */
    { "index.snapshot", row_snapshot },   /* 10 million blocks from index to index */
    { "index.cost", row_cost },           /* an event among 10 .. 10,000 workers */
    { "index.linear", row_linear },       /* an event of 64 and of 4,096 blocks */
    { "index.query.10000", row_fleet },   /* a query among 10,000 workers */
    { "index.holes", row_holes },         /* wrong answers */
};
/* clang-format on */

struct corpus_row {
    const char *name;
    bool has_workers; /* .W follows, and then the figures */
    void (*measure)(const struct bench *bench, struct bench_corpus *corpus);
};

/* clang-format off */
static const struct corpus_row corpus_rows[] = {
    { "index.conversation", true, row_conversation },
    { "index.events", true, row_events },
    { "index.query", false, row_quiet },
    { "index.bytes_per_membership", false, row_quiet },
    { "index.readers", false, row_readers },
    { "index.dump", true, row_dump },
    { "index.two", true, row_two },
    { "scene.rounds", false, row_scene_rounds },
    { "scene.queries", false, row_scene_queries },
    { "scene.growth", false, row_scene_growth },
    { "index.own_names", true, row_own_names }, /* last: it changes the corpus */
};
/* clang-format on */

enum { max_corpora = 8 };

struct subject {
    const char *paths[max_corpora];
    size_t path_count;
};

static bool
wants_corpus_row(const struct bench *bench, const struct corpus_row *row, uint32_t workers)
{
    char name[96];

    (void)snprintf(name, sizeof name, "%s.%" PRIu32, row->name, workers);
    return bench_wants(bench, row->has_workers ? name : row->name);
}

static void measure_corpus(const struct bench *bench, const char *path)
{
    struct bench_corpus corpus = bench_corpus_load(path);
    bool was_quiet = false;

    for (size_t i = 0; i < KVB_COUNT_OF(corpus_rows); i++) {
        const struct corpus_row *row = &corpus_rows[i];
        const bool is_again = row->measure == row_quiet && was_quiet;
        if (!is_again && wants_corpus_row(bench, row, corpus.workers)) {
            bench_measure(0); /* a row may begin later */
            row->measure(bench, &corpus);
            was_quiet = was_quiet || row->measure == row_quiet;
        }
    }
    bench_corpus_done(&corpus);
}

static bool take_corpus(void *context, const char *value)
{
    struct subject *subject = context;

    if (!*value || subject->path_count == max_corpora) {
        return false;
    }
    subject->paths[subject->path_count++] = value;
    return true;
}

int main(int argc, char **argv)
{
    struct subject subject = { 0 };
    static const struct bench_option options[] = {
        { "--corpus", "FILE  written by bench_corpus; may be given several times", take_corpus },
    };
    const struct bench_about about = {
        .what = "Measures the prefix index alone: rows index.*.",
        .options = options,
        .option_count = KVB_COUNT_OF(options),
        .context = &subject,
    };
    const struct bench bench = bench_begin(argc, argv, &about);

    for (size_t i = 0; i < subject.path_count; i++) {
        measure_corpus(&bench, subject.paths[i]);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (bench_wants(&bench, rows[i].name)) {
            bench_measure(0); /* a row may begin later */
            rows[i].measure(&bench);
        }
    }
    return 0;
}
