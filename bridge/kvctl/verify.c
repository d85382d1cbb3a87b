#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvctl/kvctl.h"
#include "kvctl/truth.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* `verify`: compares what the aggregator lists with what the engines hold.
 *
 *     truth socket -> names, computed from tokens --+
 *                                                   +-- per rank: PHANTOM, MISSING
 *     R.kv_get.dump, R.kv_get.streams --------------+
 *
 * PHANTOM: listed, but not held.  MISSING: held, but not listed, beyond the number of
 * blocks that the stream reports as doubtful. */

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
static void compare_rank_lists(
    const struct kvctl_truth_rank *rank, struct listed *stream, struct verdict *verdict)
{
    uint64_t missing = 0;
    size_t at = 0;

    if (stream->count > 0) {
        qsort(stream->names, stream->count, sizeof *stream->names, kvctl_compare_names);
    }
    for (size_t i = 0; i < rank->held_count; i++) {
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
    const uint64_t doubtful = missing < stream->doubtful ? missing : stream->doubtful;
    verdict->doubtful += doubtful;
    verdict->missing += missing - doubtful;
}

static struct verdict compare_truth(const struct kvctl_truth *truth, struct picture *picture)
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
        const struct kvctl_truth_rank *rank = &truth->ranks[i];
        struct listed *stream = find_listed(picture, rank->worker_id, rank->dp_rank);
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

static kvb_status write_query(const struct kvctl_truth_rank *rank, struct kvb_buf *query)
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
find_rank_row(struct json_object *root, const char *list, const struct kvctl_truth_rank *rank)
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
static bool is_right(struct json_object *root, const struct kvctl_truth_rank *rank)
{
    struct json_object *worker = find_rank_row(root, "workers", rank);
    struct json_object *store = find_rank_row(root, "shared", rank);

    if (store) {
        return !worker &&
               kvb_json_member_u64(kvb_json_member(store, "tokens"), "disk") == rank->prompt_tokens;
    }
    return worker &&
           kvb_json_member_u64(worker, "blocks") == rank->prompt_tokens / rank->block_size;
}

static enum kvctl_exit query_prompt(
    const struct kvctl_line *line, const struct kvctl_truth_rank *rank, struct verdict *verdict)
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
    const struct kvctl_line *line, const struct kvctl_truth *truth, const struct picture *picture,
    struct verdict *verdict)
{
    for (size_t i = 0; i < truth->count; i++) {
        const struct kvctl_truth_rank *rank = &truth->ranks[i];
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

static bool is_clean(const struct kvctl_truth *truth, const struct verdict *verdict)
{
    return verdict->streams == truth->count && verdict->exact == truth->count &&
           verdict->phantom == 0 && verdict->missing == 0 && verdict->wrong == 0;
}

static enum kvctl_exit
look_once(const struct kvctl_line *line, const struct kvctl_truth *truth, struct verdict *verdict)
{
    KVB_OWN(drop_picture) struct picture picture = { 0 };

    const enum kvctl_exit result = read_picture(line, &picture);
    if (result != kvctl_ok) {
        return result;
    }
    *verdict = compare_truth(truth, &picture);
    return is_clean(truth, verdict) ? query_prompts(line, truth, &picture, verdict) : kvctl_ok;
}

/* All is right but for lists that only their engine's next batch can prove. */
static bool lacks_batches_only(const struct kvctl_truth *truth, const struct verdict *verdict)
{
    return verdict->no_base > 0 && verdict->streams == truth->count &&
           verdict->exact + verdict->no_base == truth->count && verdict->phantom == 0 &&
           verdict->missing == 0;
}

/* Repeats the comparison until both are equal or --wait has passed; the fleet is paused, so what
 * only its next batch can prove is not waited for. */
static enum kvctl_exit look_until_clean(
    const struct kvctl_line *line, const struct kvctl_truth *truth, struct verdict *verdict)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + (line->options->wait_ms * KVB_NS_PER_MS);
    uint64_t proven_ns = 0; /* when a list was proven, or something else was wrong */
    uint64_t no_base = 0;

    for (;;) {
        const enum kvctl_exit result = look_once(line, truth, verdict);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
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

static void
print_verdict(const struct kvctl_truth *truth, const struct verdict *verdict, bool is_json)
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
static bool is_better_sample(const struct kvctl_truth_rank *a, const struct kvctl_truth_rank *b)
{
    const bool has_salt = a->salt[0] != '\0';

    return has_salt == (b->salt[0] != '\0') ? a->prompt_tokens > b->prompt_tokens : !has_salt;
}

/* Writes the longest prompt that any rank holds, preferably one without a salt, as a file for
 * --tokens-file. */
static enum kvctl_exit write_sample_prompt(const struct kvctl_truth *truth, const char *path)
{
    const struct kvctl_truth_rank *longest = NULL;

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
    KVB_OWN(kvctl_truth_done) struct kvctl_truth truth = { 0 };
    struct verdict verdict = { 0 };
    struct kvb_detail detail = { 0 };

    const enum kvctl_exit connected = kvctl_connect(options, NULL, &line);
    if (connected != kvctl_ok) {
        return connected;
    }
    const kvb_status status = kvctl_truth_read(options->truth, &detail, &truth);
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
    if (kvctl_truth_resume(options->truth, &detail) != KVB_OK) {
        kvctl_say("the fleet stays paused: %s", detail.text);
    }
    return result;
}
