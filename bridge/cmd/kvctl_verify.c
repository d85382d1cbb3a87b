#include "cmd/kvctl.h"
#include "cmd/kvctl_picture.h"
#include "cmd/kvctl_truth.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json_tree.h"
#include "wire/json_writer.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* `verify`: is what the aggregator lists what the engines hold?
 *
 *     truth socket -> names, computed from tokens --+
 *                                                   +-- per rank: PHANTOM, MISSING
 *     R.kv_get.dump, R.kv_get.streams --------------+
 *
 * PHANTOM: listed, but not held.  MISSING: held, but not listed, beyond the number
 * that the stream itself calls doubtful. */

enum { ask_again_ms = 100 };

struct verdict {
    uint64_t streams; /* followed */
    uint64_t exact;
    uint64_t phantom;
    uint64_t missing;
    uint64_t doubtful; /* held, not listed, and said to be so */
    uint64_t asked;    /* prompts that a rank holds */
    uint64_t wrong;    /* answered with another number of blocks */
};

static uint64_t number_of(struct json_object *object, const char *name)
{
    return json_object_get_uint64(kvb_json_member(object, name));
}

/* ---- Comparing ------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a;
    const uint64_t right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

/* Both lists rise; each name stands once in each. */
static void compare_rank(
    const struct kvctl_truth_rank *rank, struct kvctl_listed *stream, struct verdict *verdict)
{
    uint64_t missing = 0;
    size_t at = 0;

    if (stream->count > 0) {
        qsort(stream->names, stream->count, sizeof *stream->names, compare_names);
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

static struct verdict compare(const struct kvctl_truth *truth, struct kvctl_picture *picture)
{
    struct verdict verdict = { .streams = picture->count };
    uint64_t listed = 0;
    uint64_t matched = 0;

    for (size_t i = 0; i < picture->count; i++) {
        verdict.exact += picture->streams[i].is_exact ? 1 : 0;
        listed += picture->streams[i].count;
    }
    for (size_t i = 0; i < truth->count; i++) {
        const struct kvctl_truth_rank *rank = &truth->ranks[i];
        struct kvctl_listed *stream = kvctl_picture_find(picture, rank->worker_id, rank->dp_rank);
        if (!stream) {
            verdict.missing += rank->held_count;
            continue;
        }
        compare_rank(rank, stream, &verdict);
        matched += stream->count;
    }
    verdict.phantom += listed - matched; /* of streams that the fleet does not have */
    return verdict;
}

/* ---- Asking about prompts ----------------------------------------------------------------- */

static kvb_status write_question(const struct kvctl_truth_rank *rank, struct kvb_buf *question)
{
    struct kvb_json_writer json = kvb_json_writer_of(question);

    kvb_buf_reset(question);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_key(&json, "token_ids");
    kvb_json_write_begin(&json, '[');
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
find_row(struct json_object *root, const char *list, const struct kvctl_truth_rank *rank)
{
    struct json_object *rows = kvb_json_member(root, list);
    const size_t count = rows ? json_object_array_length(rows) : 0;

    for (size_t i = 0; i < count; i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        if (number_of(row, "worker_id") == rank->worker_id &&
            number_of(row, "dp_rank") == rank->dp_rank) {
            return row;
        }
    }
    return NULL;
}

/* The rank must be listed with all blocks of the prompt; a store among those that are shared, in
 * whichever tier. */
static bool is_right(struct json_object *root, const struct kvctl_truth_rank *rank)
{
    struct json_object *worker = find_row(root, "workers", rank);
    struct json_object *store = find_row(root, "shared", rank);

    if (store) {
        return !worker &&
               number_of(kvb_json_member(store, "tokens"), "disk") == rank->prompt_tokens;
    }
    return worker && number_of(worker, "blocks") == rank->prompt_tokens / rank->block_size;
}

static enum kvctl_exit ask_about_prompt(
    const struct kvctl_line *line, const struct kvctl_truth_rank *rank, struct verdict *verdict)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf question = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf answer = { 0 };
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    kvb_buf_init(&question, kvb_max_query_body_bytes);
    kvb_buf_init(&answer, kvb_max_answer_bytes);
    if (write_question(rank, &question) != KVB_OK) {
        kvctl_say("a prompt of %zu tokens is too long to ask about", rank->prompt_tokens);
        return kvctl_failed;
    }
    const enum kvctl_exit asked = kvctl_ask(line, "kv_match", kvb_buf_span(&question), &answer);
    const enum kvctl_exit read = asked == kvctl_ok ? kvctl_read_answer(&answer, &root) : asked;
    if (read != kvctl_ok) {
        return read;
    }
    verdict->asked++;
    verdict->wrong += is_right(root, rank) ? 0 : 1;
    return kvctl_ok;
}

/* Where a rank has doubtful blocks, its answer may rightly be shorter: not asked. */
static enum kvctl_exit ask_about_prompts(
    const struct kvctl_line *line, const struct kvctl_truth *truth,
    const struct kvctl_picture *picture, struct verdict *verdict)
{
    for (size_t i = 0; i < truth->count; i++) {
        const struct kvctl_truth_rank *rank = &truth->ranks[i];
        const struct kvctl_listed *stream =
            kvctl_picture_find(picture, rank->worker_id, rank->dp_rank);
        if (!stream || stream->doubtful > 0 || rank->prompt_tokens == 0) {
            continue;
        }
        const enum kvctl_exit result = ask_about_prompt(line, rank, verdict);
        if (result != kvctl_ok) {
            return result;
        }
    }
    return kvctl_ok;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static bool is_clean(const struct kvctl_truth *truth, const struct verdict *verdict)
{
    return verdict->streams == truth->count && verdict->exact == truth->count &&
           verdict->phantom == 0 && verdict->missing == 0 && verdict->wrong == 0;
}

static enum kvctl_exit
look_once(const struct kvctl_line *line, const struct kvctl_truth *truth, struct verdict *verdict)
{
    KVB_OWN(kvctl_picture_done) struct kvctl_picture picture = { 0 };

    const enum kvctl_exit result = kvctl_picture_read(line, &picture);
    if (result != kvctl_ok) {
        return result;
    }
    *verdict = compare(truth, &picture);
    return is_clean(truth, verdict) ? ask_about_prompts(line, truth, &picture, verdict) : kvctl_ok;
}

/* The fleet stands still, so the two become equal, or never do. */
static enum kvctl_exit look_until_clean(
    const struct kvctl_line *line, const struct kvctl_truth *truth, struct verdict *verdict)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + (line->options->wait_ms * KVB_NS_PER_MS);

    for (;;) {
        const enum kvctl_exit result = look_once(line, truth, verdict);
        if (result != kvctl_ok || is_clean(truth, verdict) || kvb_clock_monotonic_ns() >= end_ns) {
            return result;
        }
        (void)poll(NULL, 0, ask_again_ms); /* cut short by a signal: asks earlier */
    }
}

static double mean_hit_tokens(const struct kvctl_truth *truth)
{
    return truth->requests > 0 ? (double)truth->hit_tokens / (double)truth->requests : 0.0;
}

static void print_verdict(const struct kvctl_truth *truth, const struct verdict *verdict)
{
    printf(
        "streams       %" PRIu64 " of %zu in sync\n"
        "blocks held   %" PRIu64 "\n"
        "requests      %" PRIu64 ", mean hit tokens %.1f\n"
        "match         %" PRIu64 " prompts that engines hold, %" PRIu64 " answered wrongly\n",
        verdict->exact, truth->count, truth->held_blocks, truth->requests, mean_hit_tokens(truth),
        verdict->asked, verdict->wrong);
    printf(
        "index == truth: PHANTOM %" PRIu64 " MISSING %" PRIu64, verdict->phantom, verdict->missing);
    if (verdict->doubtful > 0) {
        printf(" (doubtful %" PRIu64 ")", verdict->doubtful);
    }
    fputs("\n", stdout);
}

static void print_verdict_json(const struct kvctl_truth *truth, const struct verdict *verdict)
{
    printf(
        "{\"streams\":%zu,\"exact\":%" PRIu64 ",\"held_blocks\":%" PRIu64 ",\"requests\":%" PRIu64
        ",\"mean_hit_tokens\":%.1f,\"asked\":%" PRIu64 ",\"wrong\":%" PRIu64 ",\"phantom\":%" PRIu64
        ",\"missing\":%" PRIu64 ",\"doubtful\":%" PRIu64 "}\n",
        truth->count, verdict->exact, truth->held_blocks, truth->requests, mean_hit_tokens(truth),
        verdict->asked, verdict->wrong, verdict->phantom, verdict->missing, verdict->doubtful);
}

/* A file of tokens has no place for a salt: whoever asks with it must name that. */
static bool is_better_sample(const struct kvctl_truth_rank *a, const struct kvctl_truth_rank *b)
{
    const bool has_salt = a->salt[0] != '\0';

    return has_salt == (b->salt[0] != '\0') ? a->prompt_tokens > b->prompt_tokens : !has_salt;
}

/* The longest prompt that some rank holds, without a salt if any has none, as a file for
 * --tokens-file. */
static enum kvctl_exit write_sample(const struct kvctl_truth *truth, const char *path)
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

static enum kvctl_exit verify(const struct kvctl_line *line, const struct kvctl_truth *truth)
{
    struct verdict verdict = { 0 };

    const enum kvctl_exit result = look_until_clean(line, truth, &verdict);
    if (result != kvctl_ok) {
        return result;
    }
    (line->options->is_json ? print_verdict_json : print_verdict)(truth, &verdict);
    if (line->options->sample && write_sample(truth, line->options->sample) != kvctl_ok) {
        return kvctl_failed;
    }
    return is_clean(truth, &verdict) ? kvctl_ok : kvctl_failed;
}

enum kvctl_exit kvctl_verify(const struct kvctl_options *options)
{
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    KVB_OWN(kvctl_truth_done) struct kvctl_truth truth = { 0 };
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
    const enum kvctl_exit result = verify(&line, &truth);
    if (kvctl_truth_resume(options->truth, &detail) != KVB_OK) {
        kvctl_say("the fleet stays paused: %s", detail.text);
    }
    return result;
}
