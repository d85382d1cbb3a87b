#include "kvctl/truth.h"

#include "core/array.h"
#include "core/buf.h"
#include "core/limits.h"
#include "core/own.h"
#include "index/block_hash.h"
#include "wire/json/tree.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { read_bytes = 1 << 16, max_values = 1 << 26 };

/* ---- One command and the lines of its answer ------------------------------------- */

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
    while (!talk.is_ended) {
        KVB_TRY(receive_lines(&talk));
        KVB_TRY(take_lines(&talk));
    }
    return KVB_OK;
}

/* ---- The truth of one rank ---------------------------------------------------------- */

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
    return !*out_salt || strlen(*out_salt) < kvctl_salt_bytes ? KVB_OK : KVB_BAD_INPUT;
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
    const struct block *before = &blocks[parent];
    block->name = kvb_block_hash_next((kvb_block_hash){ before->name }, own).value;
    block->depth = block->is_held && before->depth > 0 ? before->depth + 1 : 0;
    return KVB_OK;
}

int kvctl_compare_names(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a;
    const uint64_t right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static kvb_status keep_held(const struct block *blocks, size_t count, struct kvctl_truth_rank *rank)
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
    qsort(rank->held, rank->held_count, sizeof *rank->held, kvctl_compare_names);
    return KVB_OK;
}

/* Keeps the tokens from the root to the deepest block whose ancestors are all held. */
static kvb_status
keep_prompt(const struct block *blocks, size_t count, struct kvctl_truth_rank *rank)
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

static kvb_status read_truth_rank(struct json_object *line, struct kvctl_truth_rank *rank)
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
    struct kvctl_truth *truth = context;

    KVB_TRY(kvb_array_reserve(
        &truth->ranks, &truth->capacity, truth->count + 1, sizeof *truth->ranks, kvb_max_streams));
    struct kvctl_truth_rank *rank = &truth->ranks[truth->count++];
    *rank = (struct kvctl_truth_rank){ 0 };
    KVB_TRY(read_truth_rank(line, rank));
    truth->held_blocks += rank->held_count;
    return KVB_OK;
}

/* Sums the lines of workers; the line of totals at the end has no worker and is skipped. */
static kvb_status take_stats(void *context, struct json_object *line)
{
    struct kvctl_truth *truth = context;

    if (kvb_json_member(line, "worker_id")) {
        truth->requests +=
            kvb_json_member_u64(line, "requests_finished") + kvb_json_member_u64(line, "running");
        truth->hit_tokens += kvb_json_member_u64(line, "hit_tokens");
    }
    return KVB_OK;
}

static void drop_truth(struct kvctl_truth *truth)
{
    kvctl_truth_done(truth);
}

kvb_status
kvctl_truth_read(const char *path, struct kvb_detail *detail, struct kvctl_truth *out_truth)
{
    KVB_OWN(drop_truth) struct kvctl_truth truth = { 0 };

    kvb_detail_set(detail, "the fleet's answer is not what this kvctl expects");
    KVB_TRY(request_truth(path, "drain\n", NULL, NULL, detail));
    KVB_TRY(request_truth(path, "truth\n", take_truth, &truth, detail));
    KVB_TRY(request_truth(path, "stats\n", take_stats, &truth, detail));
    *out_truth = truth;
    truth = (struct kvctl_truth){ 0 };
    return KVB_OK;
}

kvb_status kvctl_truth_resume(const char *path, struct kvb_detail *detail)
{
    return request_truth(path, "resume\n", NULL, NULL, detail);
}

void kvctl_truth_done(struct kvctl_truth *truth)
{
    for (size_t i = 0; i < truth->count; i++) {
        free(truth->ranks[i].held);
        free(truth->ranks[i].prompt);
    }
    free(truth->ranks);
    *truth = (struct kvctl_truth){ 0 };
}
