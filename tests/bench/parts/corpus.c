#include "parts/corpus.h"

#include "parts/bench.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "a corpus is read where it lies in memory");

static const char magic[8] = "KVBCORP1"; /* without its end */

/* Words of a header, and of a record before its hashes. */
enum { header_words = 8, record_words = 3 };

struct head {
    uint32_t kind_and_flags;
    uint32_t worker;
    uint64_t count;
    uint64_t parent;
};
_Static_assert(sizeof(struct head) == record_words * sizeof(uint64_t), "no padding");

enum { kind_mask = 3 }; /* leaves one value that no kind has */
static const uint32_t parent_flag = 1 << 8;

/* Hashes that a record of each kind has for one block. */
static const size_t words_a_block[kind_mask + 1] = {
    [bench_query] = 1, [bench_store] = 2, [bench_remove] = 1
};

const uint64_t *bench_corpus_next(const uint64_t *at, struct bench_record *out_record)
{
    struct head head;
    memcpy(&head, at, sizeof head);
    const enum bench_kind kind = head.kind_and_flags & kind_mask;
    const uint64_t *hashes = at + record_words;
    const uint64_t *tokens = kind == bench_store ? hashes + head.count : hashes;

    *out_record = (struct bench_record){
        .kind = kind,
        .has_parent = head.kind_and_flags & parent_flag,
        .worker = head.worker,
        .count = head.count,
        .parent = { head.parent },
        .blocks = kind == bench_query ? NULL : (const kvb_block_hash *)hashes,
        .tokens = kind == bench_remove ? NULL : (const kvb_tokens_hash *)tokens,
    };
    return hashes + head.count * words_a_block[kind];
}

/* ---- Reading ---- */

/* Reads the file into memory of its own, rounded up to a huge page. */
static void read_file(const char *path, int fd, size_t bytes, struct bench_corpus *corpus)
{
    const size_t huge_page = 2 << 20;

    corpus->memory_bytes = (bytes + huge_page) & ~(huge_page - 1);
    corpus->memory = mmap(
        NULL, corpus->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (corpus->memory == MAP_FAILED) {
        bench_fail("%s: no memory for %zu bytes", path, bytes);
    }
    (void)madvise(
        corpus->memory, corpus->memory_bytes,
        MADV_HUGEPAGE); /* advice, which the kernel may ignore */
    for (size_t got = 0; got < bytes;) {
        const ssize_t more = read(fd, (char *)corpus->memory + got, bytes - got);
        if (more <= 0) {
            bench_fail("%s: cannot be read to its end", path);
        }
        got += (size_t)more;
    }
}

/* A record that ends within the corpus and names a worker of it. */
static bool is_whole(const struct bench_corpus *corpus, const uint64_t *at)
{
    const size_t left = (size_t)(corpus->end - at);
    struct head head;

    if (left < record_words) {
        return false;
    }
    memcpy(&head, at, sizeof head);
    const uint32_t kind = head.kind_and_flags & kind_mask;
    return kind < bench_kind_count && head.worker < corpus->workers && head.count > 0 &&
           head.count <= (left - record_words) / words_a_block[kind];
}

static void check_records(const char *path, const struct bench_corpus *corpus)
{
    uint64_t records = 0;
    uint64_t block_operations = 0;

    for (const uint64_t *at = corpus->begin; at < corpus->end; records++) {
        struct bench_record record;
        if (!is_whole(corpus, at)) {
            bench_fail("%s: record %llu is invalid", path, (unsigned long long)records);
        }
        at = bench_corpus_next(at, &record);
        block_operations += record.count;
    }
    if (records != corpus->records || block_operations != corpus->block_operations) {
        bench_fail("%s: not complete", path);
    }
}

static bool read_header(struct bench_corpus *corpus, size_t bytes)
{
    const uint64_t *words = corpus->memory;

    if (bytes < header_words * sizeof *words || bytes % sizeof *words ||
        memcmp(words, magic, sizeof magic) != 0) {
        return false;
    }
    corpus->workers = (uint32_t)words[1];
    corpus->records = words[2];
    corpus->block_operations = words[3];
    corpus->begin = words + header_words;
    corpus->end = words + bytes / sizeof *words;
    return corpus->workers > 0 && corpus->records > 0;
}

struct bench_corpus bench_corpus_load(const char *path)
{
    struct bench_corpus corpus = { 0 };
    struct stat file;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &file) != 0 || file.st_size == 0) {
        bench_fail("%s: cannot be opened, or is empty", path);
    }
    read_file(path, fd, (size_t)file.st_size, &corpus);
    (void)close(fd); /* only read from */
    if (!read_header(&corpus, (size_t)file.st_size)) {
        bench_fail("%s: not a corpus", path);
    }
    check_records(path, &corpus);
    return corpus;
}

void bench_corpus_done(struct bench_corpus *corpus)
{
    if (corpus->memory) {
        (void)munmap(corpus->memory, corpus->memory_bytes); /* it was mapped like this */
    }
    *corpus = (struct bench_corpus){ 0 };
}

/* ---- Writing ---- */

static void put(struct bench_corpus_writer *writer, const void *bytes, size_t count)
{
    if (fwrite(bytes, 1, count, writer->file) != count) {
        bench_fail("%s: cannot be written", writer->path);
    }
}

static void put_header(struct bench_corpus_writer *writer)
{
    uint64_t words[header_words] = { 0, writer->workers, writer->records,
                                     writer->block_operations };

    memcpy(words, magic, sizeof magic);
    put(writer, words, sizeof words);
}

void bench_corpus_open(struct bench_corpus_writer *writer, const char *path, uint32_t workers)
{
    *writer = (struct bench_corpus_writer){ .path = path, .workers = workers };
    writer->file = fopen(path, "we");
    if (!writer->file) {
        bench_fail("%s: cannot be written", path);
    }
    put_header(writer);
}

void bench_corpus_write(struct bench_corpus_writer *writer, const struct bench_record *record)
{
    const struct head head = {
        .kind_and_flags = record->kind | (record->has_parent ? parent_flag : 0),
        .worker = record->worker,
        .count = record->count,
        .parent = record->has_parent ? record->parent.value : 0,
    };

    put(writer, &head, sizeof head);
    if (record->kind != bench_query) {
        put(writer, record->blocks, record->count * sizeof *record->blocks);
    }
    if (record->kind != bench_remove) {
        put(writer, record->tokens, record->count * sizeof *record->tokens);
    }
    writer->records++;
    writer->block_operations += record->count;
}

void bench_corpus_close(struct bench_corpus_writer *writer)
{
    /* The counts are known now. */
    if (fseek(writer->file, 0, SEEK_SET) != 0) {
        bench_fail("%s: cannot be written", writer->path);
    }
    put_header(writer);
    if (fclose(writer->file) != 0) {
        bench_fail("%s: cannot be written", writer->path);
    }
    writer->file = NULL;
}
