#include "core/array.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "index/block_hash.h"
#include "kvctl/kvctl.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* `verify`: compares what the aggregator lists with what the engines hold.
 *
 *     truth socket -> names, computed from tokens --+
 *                                                   +-- per rank: PHANTOM, MISSING
 *     R.kv_get.dump, R.kv_get.streams --------------+
 *
 * PHANTOM: listed, but not held.  MISSING: held, but not listed, beyond the number of
 * blocks that the stream reports as doubtful. */

/* ---- The truth ---- */

/* What the engines of a kvfleet really hold, read from its truth socket
 * (tests/fleet/truth.h); names of blocks are computed from their tokens.
 * Memory: 8 bytes a block, and the tokens of one prompt a rank. */

enum { salt_bytes = 128 + 1 }; /* as long as a query's, with a NUL */

struct truth_rank {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t block_size;
    uint64_t *held; /* owned; names, in ascending order, without duplicates */
    size_t held_count;
    uint32_t *prompt; /* owned; the longest prompt whose blocks are all held */
    size_t prompt_tokens;
    char salt[salt_bytes]; /* of that prompt; empty: none */
};

struct truth {
    struct truth_rank *ranks; /* owned */
    size_t count;
    size_t capacity;
    uint64_t held_blocks; /* of all ranks */
    uint64_t requests;    /* started since the fleet started */
    uint64_t hit_tokens;  /* tokens of those requests that were found in the cache */
};

enum { read_bytes = 1 << 16, max_values = 1 << 26 };

/* One command and the lines of its answer */

/* Called with each parsed line except the last. */
typedef kvb_status (*line_taker)(void *context, struct json_object *line);

struct talk {
    int fd;
    struct kvb_buf text; /* received, but not yet a whole line */
    line_taker take;
    void *context;
    struct kvb_detail *detail;
    bool is_ended;
};

static void end_talk(struct talk *talk)
{
    if (talk->fd >= 0) {
        (void)close(talk->fd); /* nothing to lose */
    }
    kvb_buf_done(&talk->text);
}

static kvb_status dial_truth(const char *path, int *out_fd, struct kvb_detail *detail)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (strlen(path) >= sizeof address.sun_path) {
        kvb_detail_set(detail, "%s: a path of at most %zu bytes", path, sizeof address.sun_path);
        return KVB_IO;
    }
    memcpy(address.sun_path, path, strlen(path));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        char text[128];
        kvb_detail_set(
            detail, "%s: %s: is kvfleet running with --truth?", path,
            strerror_r(errno, text, sizeof text));
        if (fd >= 0) {
            (void)close(fd);
        }
        return KVB_IO;
    }
    *out_fd = fd;
    return KVB_OK;
}

static kvb_status take_truth_line(struct talk *talk, kvb_span line)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = {
        .depth = 8,
        .containers = max_values,
        .values = max_values,
    };

    const kvb_status status = kvb_json_parse(line, &budget, &root);
    if (status != KVB_OK) {
        kvb_detail_set(talk->detail, "the fleet's answer is no JSON, or far too long");
        return status;
    }
    struct json_object *error = kvb_json_member(root, "error");
    if (error) {
        kvb_detail_set(talk->detail, "the fleet says: %s", json_object_get_string(error));
        return KVB_BAD_INPUT;
    }
    if (kvb_json_member(root, "end")) {
        talk->is_ended = true;
        return KVB_OK;
    }
    return talk->take ? talk->take(talk->context, root) : KVB_OK;
}

/* Takes whole lines and moves the rest to the front. */
static kvb_status take_lines(struct talk *talk)
{
    size_t begin = 0;

    while (begin < talk->text.len && !talk->is_ended) {
        const uint8_t *line = talk->text.data + begin;
        const uint8_t *end = memchr(line, '\n', talk->text.len - begin);
        if (!end) {
            break;
        }
        KVB_TRY(take_truth_line(talk, (kvb_span){ line, (size_t)(end - line) }));
        begin += (size_t)(end - line) + 1;
    }
    /* What is left is the beginning of a line. */
    if (begin > 0) {
        memmove(talk->text.data, talk->text.data + begin, talk->text.len - begin);
        talk->text.len -= begin;
    }
    return KVB_OK;
}

static kvb_status receive_lines(struct talk *talk)
{
    KVB_TRY(kvb_buf_reserve(&talk->text, read_bytes));
    const ssize_t got = recv(talk->fd, talk->text.data + talk->text.len, read_bytes, 0);
    if (got < 0 && errno == EINTR) {
        return KVB_OK;
    }
    if (got <= 0) {
        kvb_detail_set(talk->detail, "the fleet hung up in the middle of its answer");
        return KVB_IO;
    }
    talk->text.len += (size_t)got;
    return KVB_OK;
}

static kvb_status request_truth(
    const char *path, const char *command, line_taker take, void *context,
    struct kvb_detail *detail)
{
    KVB_OWN(end_talk)
    struct talk talk = { .fd = -1, .take = take, .context = context, .detail = detail };

    kvb_buf_init(&talk.text, kvb_max_answer_bytes);
    KVB_TRY(dial_truth(path, &talk.fd, detail));
    /* A short text to a new socket is sent completely or not at all. */
    if (send(talk.fd, command, strlen(command), MSG_NOSIGNAL) != (ssize_t)strlen(command)) {
        kvb_detail_set(detail, "the fleet does not take the command");
        return KVB_IO;
    }
    /* The line {"end":...} is the last one of each answer. */
    while (!talk.is_ended) {
        KVB_TRY(receive_lines(&talk));
        KVB_TRY(take_lines(&talk));
    }
    return KVB_OK;
}

/* The truth of one rank */

/* One block of the list, while its rank is read. */
struct block {
    struct json_object *tokens; /* borrowed from the line, like salt */
    const char *salt;           /* NULL: none */
    size_t parent;              /* an earlier position; no_parent at the root */
    uint64_t name;
    uint32_t depth; /* blocks from the root, itself included; 0: not all are held */
    bool is_held;
};

enum { no_parent = -1 };

static kvb_status read_salt(struct json_object *row, const char **out_salt)
{
    struct json_object *salt = kvb_json_member(row, "salt");

    *out_salt = salt ? json_object_get_string(salt) : NULL;
    return !*out_salt || strlen(*out_salt) < salt_bytes ? KVB_OK : KVB_BAD_INPUT;
}

static uint64_t salt_seed(const char *salt)
{
    const kvb_span none = { 0 };

    return kvb_block_seed(none, salt ? (kvb_span){ (const uint8_t *)salt, strlen(salt) } : none);
}

static kvb_status
read_block_tokens(struct json_object *list, uint32_t block_size, uint32_t *out_tokens)
{
    if (!json_object_is_type(list, json_type_array) ||
        json_object_array_length(list) != block_size) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < block_size; i++) {
        out_tokens[i] = (uint32_t)json_object_get_uint64(json_object_array_get_idx(list, i));
    }
    return KVB_OK;
}

/* For an engine whose blocks are named by its own hashes: no prompt can be computed for them. */
static kvb_status read_engine_hash(struct json_object *row, struct block *block)
{
    struct json_object *hash = kvb_json_member(row, "hash");

    block->name = json_object_get_uint64(hash);
    block->is_held = kvb_json_member_u64(row, "copies") > 0;
    block->depth = 0;
    return json_object_is_type(hash, json_type_int) ? KVB_OK : KVB_BAD_INPUT;
}

/* Reads one block; its parent comes before it in the list. */
static kvb_status
read_truth_block(struct json_object *row, uint32_t block_size, struct block *blocks, size_t at)
{
    uint32_t tokens[kvb_max_block_tokens]; /* 256 KiB of the main thread's 8 MiB */
    const int64_t parent = json_object_get_int64(kvb_json_member(row, "parent"));
    struct block *block = &blocks[at];

    if (parent >= (int64_t)at || parent < no_parent) {
        return KVB_BAD_INPUT;
    }
    block->tokens = kvb_json_member(row, "tokens");
    KVB_TRY(read_block_tokens(block->tokens, block_size, tokens));
    KVB_TRY(read_salt(row, &block->salt));
    const kvb_tokens_hash own =
        kvb_tokens_hash_of(tokens, block_size, NULL, 0, salt_seed(block->salt));
    block->is_held = kvb_json_member_u64(row, "copies") > 0;
    block->parent = parent == no_parent ? SIZE_MAX : (size_t)parent;
    if (parent == no_parent) {
        block->name = kvb_block_hash_root(own).value;
        block->depth = block->is_held ? 1 : 0;
        return KVB_OK;
    }
    /* Names form a chain: each is made of the parent's name and the own tokens. */
    const struct block *before = &blocks[parent];
    block->name = kvb_block_hash_next((kvb_block_hash){ before->name }, own).value;
    /* A block below one that is not held cannot be reached by a prompt. */
    block->depth = block->is_held && before->depth > 0 ? before->depth + 1 : 0;
    return KVB_OK;
}

static int compare_names(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a;
    const uint64_t right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static kvb_status keep_held(const struct block *blocks, size_t count, struct truth_rank *rank)
{
    rank->held = calloc(count + 1, sizeof *rank->held); /* + 1: calloc(0) may return NULL */
    if (!rank->held) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].is_held) {
            rank->held[rank->held_count++] = blocks[i].name;
        }
    }
    qsort(rank->held, rank->held_count, sizeof *rank->held, compare_names);
    return KVB_OK;
}

/* Keeps the tokens from the root to the deepest block whose ancestors are all held. */
static kvb_status keep_prompt(const struct block *blocks, size_t count, struct truth_rank *rank)
{
    size_t deepest = SIZE_MAX;

    for (size_t i = 0; i < count; i++) {
        if (blocks[i].depth > (deepest == SIZE_MAX ? 0 : blocks[deepest].depth)) {
            deepest = i;
        }
    }
    if (deepest == SIZE_MAX) {
        return KVB_OK;
    }
    const size_t tokens = (size_t)blocks[deepest].depth * rank->block_size;
    rank->prompt = calloc(tokens, sizeof *rank->prompt);
    if (!rank->prompt) {
        return KVB_NO_MEMORY;
    }
    rank->prompt_tokens = tokens;
    if (blocks[deepest].salt) { /* read_salt() has measured it */
        memcpy(rank->salt, blocks[deepest].salt, strlen(blocks[deepest].salt) + 1);
    }
    /* From the deepest block up: each depth says where its tokens belong. */
    for (size_t at = deepest; at != SIZE_MAX; at = blocks[at].parent) {
        KVB_TRY(read_block_tokens(
            blocks[at].tokens, rank->block_size,
            rank->prompt + ((size_t)(blocks[at].depth - 1) * rank->block_size)));
    }
    return KVB_OK;
}

static kvb_status
read_truth_blocks(struct json_object *list, bool by_hash, uint32_t block_size, struct block *blocks)
{
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *row = json_object_array_get_idx(list, i);
        KVB_TRY(
            by_hash ? read_engine_hash(row, &blocks[i])
                    : read_truth_block(row, block_size, blocks, i));
    }
    return KVB_OK;
}

static kvb_status read_truth_rank(struct json_object *line, struct truth_rank *rank)
{
    struct json_object *list = kvb_json_member(line, "blocks");
    const uint64_t block_size = kvb_json_member_u64(line, "block_size");

    if (!json_object_is_type(list, json_type_array) || block_size == 0 ||
        block_size > kvb_max_block_tokens) {
        return KVB_BAD_INPUT;
    }
    rank->worker_id = kvb_json_member_u64(line, "worker_id");
    rank->dp_rank = (uint32_t)kvb_json_member_u64(line, "dp_rank");
    rank->block_size = (uint32_t)block_size;

    const size_t count = json_object_array_length(list);
    struct block *blocks = calloc(count + 1, sizeof *blocks);
    if (!blocks) {
        return KVB_NO_MEMORY;
    }
    const bool by_hash = json_object_get_boolean(kvb_json_member(line, "by_hash"));
    kvb_status status = read_truth_blocks(list, by_hash, rank->block_size, blocks);
    status = status == KVB_OK ? keep_held(blocks, count, rank) : status;
    status = status == KVB_OK ? keep_prompt(blocks, count, rank) : status;
    free(blocks);
    return status;
}

static kvb_status take_truth(void *context, struct json_object *line)
{
    struct truth *truth = context;

    KVB_TRY(kvb_array_reserve(
        &truth->ranks, &truth->capacity, truth->count + 1, sizeof *truth->ranks, kvb_max_streams));
    /* Counted before it is read, so that a failure frees what it has. */
    struct truth_rank *rank = &truth->ranks[truth->count++];
    *rank = (struct truth_rank){ 0 };
    KVB_TRY(read_truth_rank(line, rank));
    truth->held_blocks += rank->held_count;
    return KVB_OK;
}

/* Sums the lines of workers; the line of totals at the end has no worker and is skipped. */
static kvb_status take_stats(void *context, struct json_object *line)
{
    struct truth *truth = context;

    if (kvb_json_member(line, "worker_id")) {
        truth->requests +=
            kvb_json_member_u64(line, "requests_finished") + kvb_json_member_u64(line, "running");
        truth->hit_tokens += kvb_json_member_u64(line, "hit_tokens");
    }
    return KVB_OK;
}

static void drop_truth(struct truth *truth)
{
    for (size_t i = 0; i < truth->count; i++) {
        free(truth->ranks[i].held);
        free(truth->ranks[i].prompt);
    }
    free(truth->ranks);
    *truth = (struct truth){ 0 };
}

/* Pauses the fleet, waits until all its events are published, and reads the truth.
 * The fleet stays paused.  On KVB_OK the caller ends it with drop_truth().
 *
 * KVB_IO         no process listens at the path, or the connection broke
 * KVB_BAD_INPUT  the answer is invalid, or the fleet's error, which detail repeats
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
static kvb_status read_truth(const char *path, struct kvb_detail *detail, struct truth *out_truth)
{
    KVB_OWN(drop_truth) struct truth truth = { 0 };

    kvb_detail_set(detail, "the fleet's answer is not what this kvctl expects");
    KVB_TRY(request_truth(path, "drain\n", NULL, NULL, detail));
    KVB_TRY(request_truth(path, "truth\n", take_truth, &truth, detail));
    KVB_TRY(request_truth(path, "stats\n", take_stats, &truth, detail));
    *out_truth = truth;
    truth = (struct truth){ 0 };
    return KVB_OK;
}

/* Resumes the fleet.  Errors as above. */
static kvb_status resume_fleet(const char *path, struct kvb_detail *detail)
{
    return request_truth(path, "resume\n", NULL, NULL, detail);
}

/* ---- The comparison ---- */

enum { retry_ms = 100 };

/* A replay that finds a batch sent before the pause takes less. */
static const uint64_t proof_ns = 5 * KVB_NS_PER_S;

struct verdict {
    uint64_t streams; /* followed */
    uint64_t exact;
    uint64_t no_base; /* UNVERIFIED(no_base): no batch has proven the list yet */
    uint64_t phantom;
    uint64_t missing;
    uint64_t doubtful; /* held, not listed, and reported as doubtful */
    uint64_t asked;    /* queries for prompts that a rank holds */
    uint64_t wrong;    /* queries answered with a wrong number of blocks */
};

/* ---- The lists of an aggregator: 8 bytes a block --------------------------------------- */

struct listed {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool is_exact;
    bool has_no_base;
    uint64_t doubtful;
    uint64_t *names; /* owned; of its blocks, in no order */
    size_t count;
    size_t capacity;
};

struct picture {
    struct listed *streams; /* owned */
    size_t count;
    size_t capacity;
};

static void drop_picture(struct picture *picture)
{
    for (size_t i = 0; i < picture->count; i++) {
        free(picture->streams[i].names);
    }
    free(picture->streams);
    *picture = (struct picture){ 0 };
}

/* NULL when no such stream is listed. */
static struct listed *
find_listed(const struct picture *picture, uint64_t worker_id, uint32_t dp_rank)
{
    for (size_t i = 0; i < picture->count; i++) {
        if (picture->streams[i].worker_id == worker_id && picture->streams[i].dp_rank == dp_rank) {
            return &picture->streams[i];
        }
    }
    return NULL;
}

static kvb_status take_streams(struct picture *picture, struct json_object *page)
{
    struct json_object *rows = kvb_json_member(page, "streams");
    const size_t more = rows ? json_object_array_length(rows) : 0;

    KVB_TRY(kvb_array_reserve(
        &picture->streams, &picture->capacity, picture->count + more, sizeof *picture->streams,
        kvb_max_streams));
    for (size_t i = 0; i < more; i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        const char *state = kvb_json_member_text(row, "state");
        const char *reason = kvb_json_member_text(row, "reason");
        picture->streams[picture->count++] = (struct listed){
            .worker_id = kvb_json_member_u64(row, "worker_id"),
            .dp_rank = (uint32_t)kvb_json_member_u64(row, "dp_rank"),
            .is_exact = strcmp(state, "EXACT") == 0,
            .has_no_base = strcmp(reason, "no_base") == 0,
            .doubtful = kvb_json_member_u64(row, "doubtful"),
        };
    }
    return KVB_OK;
}

/* Reads the next number of a row and moves *row behind it. */
static kvb_status read_row_number(const char **row, uint64_t *out_value)
{
    char *end = NULL;

    errno = 0;
    *out_value = strtoull(*row, &end, 10);
    if (errno != 0 || end == *row || (*end != ' ' && *end != '\n' && *end != '\0')) {
        return KVB_BAD_INPUT;
    }
    *row = end;
    return KVB_OK;
}

/* "worker rank tier hash" */
static kvb_status take_row(struct picture *picture, const char *row)
{
    uint64_t worker_id = 0;
    uint64_t dp_rank = 0;
    uint64_t name = 0;

    KVB_TRY(read_row_number(&row, &worker_id));
    KVB_TRY(read_row_number(&row, &dp_rank));
    row = strchr(row + 1, ' '); /* past the tier */
    if (!row) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_row_number(&row, &name));
    struct listed *stream = find_listed(picture, worker_id, (uint32_t)dp_rank);
    if (!stream) {
        return KVB_OK; /* a stream added after the list was read; the next attempt sees it */
    }
    KVB_TRY(kvb_array_reserve(
        &stream->names, &stream->capacity, stream->count + 1, sizeof *stream->names,
        kvb_max_stream_blocks));
    stream->names[stream->count++] = name;
    return KVB_OK;
}

static kvb_status take_rows(struct picture *picture, struct json_object *page)
{
    const char *row = json_object_get_string(kvb_json_member(page, "rows"));

    while (row && *row != '\0') {
        KVB_TRY(take_row(picture, row));
        const char *end = strchr(row, '\n');
        row = end ? end + 1 : NULL;
    }
    return KVB_OK;
}

/* The argument of take_listed_page(). */
struct page_target {
    const char *tail;
    kvb_status (*take)(struct picture *picture, struct json_object *page);
    struct picture *picture;
};

static enum kvctl_exit
take_listed_page(void *context, const struct kvb_buf *answer, struct json_object **out_page)
{
    const struct page_target *target = context;

    const enum kvctl_exit read = kvctl_read_answer(answer, out_page);
    if (read != kvctl_ok) {
        return read;
    }
    const kvb_status status = target->take(target->picture, *out_page);
    if (status != KVB_OK) {
        kvctl_say("%s: an answer that cannot be used: %s", target->tail, kvb_status_name(status));
        return kvctl_failed;
    }
    return kvctl_ok;
}

/* Reads kv_get.streams and kv_get.dump, page by page.  The caller ends *picture also after a
 * failure, which is printed on stderr. */
static enum kvctl_exit read_picture(const struct kvctl_line *line, struct picture *picture)
{
    struct page_target streams = { "kv_get.streams", take_streams, picture };
    struct page_target rows = { "kv_get.dump", take_rows, picture };
    const kvb_span all = { NULL, 0 };

    const enum kvctl_exit result =
        kvctl_request_pages(line, streams.tail, all, take_listed_page, &streams);
    return result == kvctl_ok ? kvctl_request_pages(line, rows.tail, all, take_listed_page, &rows)
                              : result;
}

/* ---- Comparing ------------------------------------------------------------------------- */

/* Merges the two lists, which are in ascending order without duplicates. */
static void
compare_rank_lists(const struct truth_rank *rank, struct listed *stream, struct verdict *verdict)
{
    uint64_t missing = 0;
    size_t at = 0;

    if (stream->count > 0) {
        qsort(stream->names, stream->count, sizeof *stream->names, compare_names);
    }
    for (size_t i = 0; i < rank->held_count; i++) {
        /* Listed names below the next held one are held by nobody. */
        while (at < stream->count && stream->names[at] < rank->held[i]) {
            verdict->phantom++;
            at++;
        }
        if (at < stream->count && stream->names[at] == rank->held[i]) {
            at++;
        } else {
            missing++;
        }
    }
    verdict->phantom += stream->count - at;
    /* As many may be missing as the stream itself admits. */
    const uint64_t doubtful = missing < stream->doubtful ? missing : stream->doubtful;
    verdict->doubtful += doubtful;
    verdict->missing += missing - doubtful;
}

static struct verdict compare_truth(const struct truth *truth, struct picture *picture)
{
    struct verdict verdict = { .streams = picture->count };
    uint64_t listed = 0;
    uint64_t matched = 0;

    for (size_t i = 0; i < picture->count; i++) {
        verdict.exact += picture->streams[i].is_exact ? 1 : 0;
        verdict.no_base += picture->streams[i].has_no_base ? 1 : 0;
        listed += picture->streams[i].count;
    }
    for (size_t i = 0; i < truth->count; i++) {
        const struct truth_rank *rank = &truth->ranks[i];
        struct listed *stream = find_listed(picture, rank->worker_id, rank->dp_rank);
        /* The aggregator does not know the rank. */
        if (!stream) {
            verdict.missing += rank->held_count;
            continue;
        }
        compare_rank_lists(rank, stream, &verdict);
        matched += stream->count;
    }
    verdict.phantom += listed - matched; /* of streams that the fleet does not have */
    return verdict;
}

/* ---- Queries for prompts ------------------------------------------------------------------ */

static kvb_status write_query(const struct truth_rank *rank, struct kvb_buf *query)
{
    struct kvb_json_writer json = kvb_json_writer_of(query);

    kvb_buf_reset(query);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_begin(&json, "token_ids", '[');
    for (size_t i = 0; i < rank->prompt_tokens; i++) {
        kvb_json_write_u64(&json, rank->prompt[i]);
    }
    kvb_json_write_end(&json, ']');
    if (rank->salt[0] != '\0') {
        kvb_json_write_pair_text(&json, "cache_salt", rank->salt);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* The rank's row in a list of the answer; NULL: it has none. */
static struct json_object *
find_rank_row(struct json_object *root, const char *list, const struct truth_rank *rank)
{
    struct json_object *rows = kvb_json_member(root, list);
    const size_t count = rows ? json_object_array_length(rows) : 0;

    for (size_t i = 0; i < count; i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        if (kvb_json_member_u64(row, "worker_id") == rank->worker_id &&
            kvb_json_member_u64(row, "dp_rank") == rank->dp_rank) {
            return row;
        }
    }
    return NULL;
}

/* The answer must list the rank with all blocks of the prompt; a shared store may hold them in
 * any tier. */
static bool is_right(struct json_object *root, const struct truth_rank *rank)
{
    struct json_object *worker = find_rank_row(root, "workers", rank);
    struct json_object *store = find_rank_row(root, "shared", rank);

    /* A rank is listed as a worker or as a store, never as both. */
    if (store) {
        return !worker &&
               kvb_json_member_u64(kvb_json_member(store, "tokens"), "disk") == rank->prompt_tokens;
    }
    return worker &&
           kvb_json_member_u64(worker, "blocks") == rank->prompt_tokens / rank->block_size;
}

static enum kvctl_exit
query_prompt(const struct kvctl_line *line, const struct truth_rank *rank, struct verdict *verdict)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf query = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf answer = { 0 };
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    kvb_buf_init(&query, kvb_max_query_body_bytes);
    kvb_buf_init(&answer, kvb_max_answer_bytes);
    if (write_query(rank, &query) != KVB_OK) {
        kvctl_say("a prompt of %zu tokens is too long to ask about", rank->prompt_tokens);
        return kvctl_failed;
    }
    const enum kvctl_exit asked =
        kvctl_request_answer(line, "kv_match", kvb_buf_span(&query), &answer);
    const enum kvctl_exit read = asked == kvctl_ok ? kvctl_read_answer(&answer, &root) : asked;
    if (read != kvctl_ok) {
        return read;
    }
    verdict->asked++;
    verdict->wrong += is_right(root, rank) ? 0 : 1;
    return kvctl_ok;
}

/* Skips ranks with doubtful blocks, for which a shorter answer is correct. */
static enum kvctl_exit query_prompts(
    const struct kvctl_line *line, const struct truth *truth, const struct picture *picture,
    struct verdict *verdict)
{
    for (size_t i = 0; i < truth->count; i++) {
        const struct truth_rank *rank = &truth->ranks[i];
        const struct listed *stream = find_listed(picture, rank->worker_id, rank->dp_rank);
        if (!stream || stream->doubtful > 0 || rank->prompt_tokens == 0) {
            continue;
        }
        const enum kvctl_exit result = query_prompt(line, rank, verdict);
        if (result != kvctl_ok) {
            return result;
        }
    }
    return kvctl_ok;
}

/* ---- The command ---------------------------------------------------------------------------- */

static bool is_clean(const struct truth *truth, const struct verdict *verdict)
{
    return verdict->streams == truth->count && verdict->exact == truth->count &&
           verdict->phantom == 0 && verdict->missing == 0 && verdict->wrong == 0;
}

static enum kvctl_exit
look_once(const struct kvctl_line *line, const struct truth *truth, struct verdict *verdict)
{
    KVB_OWN(drop_picture) struct picture picture = { 0 };

    const enum kvctl_exit result = read_picture(line, &picture);
    if (result != kvctl_ok) {
        return result;
    }
    *verdict = compare_truth(truth, &picture);
    /* Queries cost more than lists, and mean little while these differ. */
    return is_clean(truth, verdict) ? query_prompts(line, truth, &picture, verdict) : kvctl_ok;
}

/* All is right but for lists that only their engine's next batch can prove. */
static bool lacks_batches_only(const struct truth *truth, const struct verdict *verdict)
{
    return verdict->no_base > 0 && verdict->streams == truth->count &&
           verdict->exact + verdict->no_base == truth->count && verdict->phantom == 0 &&
           verdict->missing == 0;
}

/* Repeats the comparison until both are equal or --wait has passed; the fleet is paused, so what
 * only its next batch can prove is not waited for. */
static enum kvctl_exit
look_until_clean(const struct kvctl_line *line, const struct truth *truth, struct verdict *verdict)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + (line->options->wait_ms * KVB_NS_PER_MS);
    uint64_t proven_ns = 0; /* when a list was proven, or something else was wrong */
    uint64_t no_base = 0;

    for (;;) {
        const enum kvctl_exit result = look_once(line, truth, verdict);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        /* The clock of what cannot be proven begins anew with each change. */
        if (!lacks_batches_only(truth, verdict) || verdict->no_base != no_base) {
            proven_ns = now_ns;
        }
        no_base = verdict->no_base;
        if (result != kvctl_ok || is_clean(truth, verdict) || now_ns >= end_ns ||
            now_ns - proven_ns >= proof_ns) {
            return result;
        }
        (void)poll(NULL, 0, retry_ms); /* a signal only shortens the wait */
    }
}

static void print_verdict(const struct truth *truth, const struct verdict *verdict, bool is_json)
{
    const double requests = truth->requests > 0 ? (double)truth->requests : 1;
    const double mean_hit_tokens = (double)truth->hit_tokens / requests;

    if (is_json) {
        printf(
            "{\"streams\":%zu,\"exact\":%" PRIu64 ",\"no_base\":%" PRIu64
            ",\"held_blocks\":%" PRIu64 ",\"requests\":%" PRIu64
            ",\"mean_hit_tokens\":%.1f,\"asked\":%" PRIu64 ",\"wrong\":%" PRIu64
            ",\"phantom\":%" PRIu64 ",\"missing\":%" PRIu64 ",\"doubtful\":%" PRIu64 "}\n",
            truth->count, verdict->exact, verdict->no_base, truth->held_blocks, truth->requests,
            mean_hit_tokens, verdict->asked, verdict->wrong, verdict->phantom, verdict->missing,
            verdict->doubtful);
        return;
    }
    printf(
        "streams       %" PRIu64 " of %zu in sync\n"
        "blocks held   %" PRIu64 "\n"
        "requests      %" PRIu64 ", mean hit tokens %.1f\n"
        "match         %" PRIu64 " prompts that engines hold, %" PRIu64 " answered wrongly\n",
        verdict->exact, truth->count, truth->held_blocks, truth->requests, mean_hit_tokens,
        verdict->asked, verdict->wrong);
    printf(
        "index == truth: PHANTOM %" PRIu64 " MISSING %" PRIu64, verdict->phantom, verdict->missing);
    if (verdict->doubtful > 0) {
        printf(" (doubtful %" PRIu64 ")", verdict->doubtful);
    }
    fputs("\n", stdout);
}

/* A prompt without a salt is better, because a file of tokens cannot contain the salt. */
static bool is_better_sample(const struct truth_rank *a, const struct truth_rank *b)
{
    const bool has_salt = a->salt[0] != '\0';

    return has_salt == (b->salt[0] != '\0') ? a->prompt_tokens > b->prompt_tokens : !has_salt;
}

/* Writes the longest prompt that any rank holds, preferably one without a salt, as a file for
 * --tokens-file. */
static enum kvctl_exit write_sample_prompt(const struct truth *truth, const char *path)
{
    const struct truth_rank *longest = NULL;

    for (size_t i = 0; i < truth->count; i++) {
        if (!longest || is_better_sample(&truth->ranks[i], longest)) {
            longest = &truth->ranks[i];
        }
    }
    FILE *out = fopen(path, "we");
    if (!out) {
        kvctl_say("%s: cannot be written", path);
        return kvctl_failed;
    }
    /* Without any prompt the file is empty. */
    for (size_t i = 0; longest && i < longest->prompt_tokens; i++) {
        (void)fprintf(out, "%" PRIu32 "\n", longest->prompt[i]); /* seen by fclose */
    }
    if (fclose(out) != 0) {
        kvctl_say("%s: cannot be written", path);
        return kvctl_failed;
    }
    return kvctl_ok;
}

enum kvctl_exit kvctl_verify(const struct kvctl_options *options)
{
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    KVB_OWN(drop_truth) struct truth truth = { 0 };
    struct verdict verdict = { 0 };
    struct kvb_detail detail = { 0 };

    const enum kvctl_exit connected = kvctl_connect(options, NULL, &line);
    if (connected != kvctl_ok) {
        return connected;
    }
    const kvb_status status = read_truth(options->truth, &detail, &truth);
    if (status != KVB_OK) {
        kvctl_say("%s", detail.text);
        return kvctl_failed;
    }
    /* The fleet is paused now, so that its truth stays true: nothing may return before the end. */
    enum kvctl_exit result = look_until_clean(&line, &truth, &verdict);
    if (result == kvctl_ok) {
        print_verdict(&truth, &verdict, options->is_json);
        if (verdict.no_base > 0) {
            kvctl_say(
                "%" PRIu64 " streams are UNVERIFIED(no_base): the fleet was paused before a batch "
                "had proven their lists. Let it answer some requests, and verify again",
                verdict.no_base);
        }
        result = is_clean(&truth, &verdict) ? kvctl_ok : kvctl_failed;
        if (options->sample && write_sample_prompt(&truth, options->sample) != kvctl_ok) {
            result = kvctl_failed;
        }
    }
    /* Whatever the verdict: the fleet must not stay paused because of us. */
    if (resume_fleet(options->truth, &detail) != KVB_OK) {
        kvctl_say("the fleet stays paused: %s", detail.text);
    }
    return result;
}
