#include "core/own.h"
#include "index/rows.h"

#include <inttypes.h>
#include <stdio.h>

/* The rows index.*: the index alone, one thread, through index/index.h. */

enum { max_corpora = 8, quiet_workers = 128 };

struct subject {
    const char *paths[max_corpora];
    size_t path_count;
};

static void measure_corpus(const struct bench *bench, const char *path)
{
    struct bench_corpus corpus = bench_corpus_load(path);
    char name[64];

    (void)snprintf(name, sizeof name, "index.conversation.%" PRIu32, corpus.workers);
    if (bench_wants(bench, name)) {
        row_conversation(bench, &corpus);
    }
    if (corpus.workers == quiet_workers &&
        (bench_wants(bench, "index.query") || bench_wants(bench, "index.bytes_per_membership"))) {
        row_quiet(bench, &corpus);
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
    if (bench_wants(&bench, "index.growth")) {
        row_growth(&bench);
    }
    return 0;
}
