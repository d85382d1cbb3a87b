#include "core/decimal.h"
#include "core/limits.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/selection.h"
#include "wire/json/writer.h"
#include "wire/query/text.h"
#include "wire/router/heartbeat.h"

#include <stdlib.h>
#include <string.h>

/* ---- Rows that are written through a pointer (kvb_json_write_open()) ---- */

enum {
    row_bytes = 256, /* the longest part of a row without its ranks: six numbers and their names */
    rank_bytes = 48  /* "4294967295":18446744073709551615, */
};

/* Inlined, like those that call it: strlen() of a constant then costs nothing. */
[[gnu::always_inline]] static inline char *put_row_text(char *at, const char *text)
{
    const size_t len = strlen(text);

    memcpy(at, text, len); /* NOLINT(bugprone-not-null-terminated-result) */
    return at + len;
}

static char *put_row_number(char *at, uint64_t value)
{
    return at + kvb_decimal_write(at, value);
}

/* before: the bracket or comma before the name. */
[[gnu::always_inline]] static inline char *
put_row_name(char *at, const char *before, const char *name)
{
    at = put_row_text(at, before);
    *at++ = '"';
    at = put_row_text(at, name);
    return put_row_text(at, "\":");
}

[[gnu::always_inline]] static inline char *
put_row_pair(char *at, const char *before, const char *name, uint64_t value)
{
    return put_row_number(put_row_name(at, before, name), value);
}

/* before: as above. */
[[gnu::always_inline]] static inline char *put_row_key(char *at, const char *before, uint64_t key)
{
    at = put_row_text(at, before);
    *at++ = '"';
    return put_row_text(put_row_number(at, key), "\":");
}

/* The longest prefix that any one tier up to `last` holds. */
static uint64_t tokens_up_to(const struct kvb_overlap *overlap, enum kvb_tier last)
{
    uint64_t tokens = 0;

    for (int tier = 0; tier <= (int)last; tier++) {
        tokens = overlap->tokens[tier] > tokens ? overlap->tokens[tier] : tokens;
    }
    return tokens;
}

/* "disk", and "external" where that tier holds more. */
static char *put_row_disks(char *at, uint64_t disk, uint64_t all)
{
    at = put_row_pair(at, ",", "disk", disk);
    return all > disk ? put_row_pair(at, ",", "external", all) : at;
}

static char *put_row_tokens(char *at, const struct kvb_overlap *overlap, bool with_device)
{
    at = put_row_text(put_row_name(at, "", "tokens"), "{");
    if (with_device) {
        at = put_row_pair(at, "", "device", tokens_up_to(overlap, KVB_TIER_DEVICE));
        *at++ = ',';
    }
    at = put_row_pair(at, "", "host", tokens_up_to(overlap, KVB_TIER_HOST));
    at = put_row_disks(
        at, tokens_up_to(overlap, KVB_TIER_DISK), tokens_up_to(overlap, KVB_TIER_EXTERNAL));
    return put_row_text(at, "}");
}

/* ---- Tiers ---- */

/* True when the stream holds blocks of the prompt in a tier that nothing proves right.  The
 * heartbeat is read only where blocks are held beyond the device. */
static bool has_unverified_blocks(const struct kvb_overlap *overlap)
{
    for (size_t tier = KVB_TIER_DEVICE + 1; tier < KVB_TIER_COUNT; tier++) {
        if (overlap->tokens[tier] > 0 &&
            overlap->follower->heartbeat.tier_reasons[tier] != KVB_REASON_NONE) {
            return true;
        }
    }
    return false;
}

static void write_unverified_tiers(struct kvb_json_writer *json, const struct kvb_overlap *overlap)
{
    if (has_unverified_blocks(overlap)) {
        kvb_unverified_tiers_json_write(&overlap->follower->heartbeat, json);
    }
}

/* ---- Stores ---- */

static void write_store(struct kvb_json_writer *json, const struct kvb_overlap *overlap)
{
    const struct kvb_follower *follower = overlap->follower;

    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", follower->id.worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", follower->id.dp_rank);
    kvb_json_write_pair_text(json, "state", kvb_stream_state_name(follower->state));
    kvb_json_write_pair_text(json, "reason", kvb_stream_reason_name(follower->reason));
    write_unverified_tiers(json, overlap);
    char *at = kvb_json_write_open(json, row_bytes);
    if (at) {
        kvb_json_write_close(json, put_row_tokens(at, overlap, false));
    }
    kvb_json_write_end(json, '}');
}

/* Writes what every worker can load from stores; nothing when no store holds part of the prompt. */
static void
write_shared(struct kvb_json_writer *json, const struct kvb_query_context *ctx, size_t max_rows)
{
    const size_t shown = ctx->shared_count < max_rows ? ctx->shared_count : max_rows;

    if (shown == 0) {
        return;
    }
    kvb_json_write_pair_begin(json, "shared", '[');
    for (size_t i = 0; i < shown; i++) {
        write_store(json, &ctx->overlaps[ctx->shared_at + i]);
    }
    kvb_json_write_end(json, ']');
}

/* ---- Predicted blocks ---- */

/* Writes the blocks that streams are expected to hold soon, beyond those held; nothing when no
 * stream has predictions. */
static kvb_status write_predicted(
    struct kvb_json_writer *json, struct kvb_query_context *ctx, const struct kvb_query *query)
{
    const struct kvb_listing *listing = &ctx->listing;

    if (!kvb_predictions_any(ctx->predictions)) {
        return KVB_OK;
    }
    kvb_json_write_pair_begin(json, "predicted", '[');
    for (size_t i = 0; i < listing->count; i++) {
        const struct kvb_overlap *stream = &listing->streams[i];
        const kvb_block_hash *names = NULL;
        size_t count = 0;
        uint64_t held = 0;

        if (!kvb_predictions_has_stream(ctx->predictions, &stream->key) ||
            !kvb_selection_takes(query, stream->follower)) {
            continue;
        }
        /* The listing has lost what this query found; the overlaps have it, of holders only. */
        for (size_t at = 0; at < ctx->overlap_count; at++) {
            if (ctx->overlaps[at].follower == stream->follower) {
                held = ctx->overlaps[at].blocks;
            }
        }
        KVB_TRY(kvb_query_context_names(ctx, query, stream->shape, &names, &count));
        const uint64_t blocks =
            kvb_predictions_beyond(ctx->predictions, &stream->key, names, count, held, ctx->now_ns);
        if (blocks > 0) {
            kvb_json_write_begin(json, '{');
            kvb_json_write_pair_u64(json, "worker_id", stream->follower->id.worker_id);
            kvb_json_write_pair_u64(json, "dp_rank", stream->follower->id.dp_rank);
            kvb_json_write_pair_u64(json, "blocks", blocks);
            kvb_json_write_pair_u64(json, "tokens", blocks * stream->shape.block_size);
            kvb_json_write_end(json, '}');
        }
    }
    kvb_json_write_end(json, ']');
    return KVB_OK;
}

/* ---- Workers that are DOWN ---- */

enum { max_shown_down = 16 };

/* Where no worker can be listed because all are DOWN: says so, since an empty answer alone would
 * look as if nobody had the prompt. */
static void write_down(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx,
    const struct kvb_query *query)
{
    const struct kvb_follower *down[max_shown_down];
    const size_t count =
        ctx->overlap_count == 0 ? kvb_query_context_down(ctx, query, down, max_shown_down) : 0;

    if (count == 0) {
        return;
    }
    kvb_json_write_pair_begin(json, "down", '[');
    for (size_t i = 0; i < count; i++) {
        const struct kvb_stream_id *id = &down[i]->id;
        kvb_json_write_begin(json, '{');
        kvb_json_write_pair_u64(json, "worker_id", id->worker_id);
        kvb_json_write_pair_u64(json, "dp_rank", id->dp_rank);
        kvb_json_write_pair_text(json, "namespace", id->name_space);
        kvb_json_write_pair_text(json, "component", id->component);
        kvb_json_write_pair_text(json, "state", kvb_stream_state_name(down[i]->state));
        kvb_json_write_pair_text(json, "reason", kvb_stream_reason_name(down[i]->reason));
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, ']');
}

/* ---- kv_match ---- */

struct columns {
    bool with_block_size; /* the workers have several sizes */
    bool with_hits;       /* the query is given as tokens */
};

/* Where the row before says its namespace and component: neighbours mostly have the same. */
struct place {
    const struct kvb_stream_id *id; /* NULL: there is no row before */
    size_t at, bytes;               /* in the answer */
};

static void write_overlap_place(
    struct kvb_json_writer *json, const struct kvb_stream_id *id, struct place *before)
{
    const bool is_same = before->id && strcmp(before->id->component, id->component) == 0 &&
                         strcmp(before->id->name_space, id->name_space) == 0;
    char *at = is_same ? kvb_json_write_open(json, before->bytes) : NULL;

    if (at) {
        memcpy(at, json->out->data + before->at, before->bytes);
        kvb_json_write_close(json, at + before->bytes);
        return;
    }
    before->at = json->out->len + 1; /* behind the comma */
    kvb_json_write_pair_text(json, "namespace", id->name_space);
    kvb_json_write_pair_text(json, "component", id->component);
    before->bytes = json->out->len - before->at;
    before->id = json->status == KVB_OK ? id : NULL;
}

/* Begins a row. */
static void
write_overlap_id(struct kvb_json_writer *json, const struct kvb_stream_id *id, struct place *before)
{
    char *at = kvb_json_write_open(json, row_bytes);

    if (at) {
        at = put_row_pair(at, "{", "worker_id", id->worker_id);
        kvb_json_write_close(json, put_row_pair(at, ",", "dp_rank", id->dp_rank));
    }
    write_overlap_place(json, id, before);
}

/* The names of states and reasons need no escapes. */
static void write_overlap_state(struct kvb_json_writer *json, const struct kvb_overlap *overlap)
{
    /* A prompt that is shorter than a block has none: then nothing of it is held. */
    const double all_blocks = (double)(overlap->request_blocks ? overlap->request_blocks : 1);
    char *at = kvb_json_write_open(json, row_bytes);

    if (at) {
        at = put_row_text(put_row_name(at, "", "state"), "\"");
        at = put_row_text(at, kvb_stream_state_name(overlap->follower->state));
        at = put_row_text(put_row_name(at, "\",", "reason"), "\"");
        at = put_row_text(at, kvb_stream_reason_name(overlap->follower->reason));
        at = put_row_pair(at, "\",", "blocks", overlap->blocks);
        kvb_json_write_close(json, put_row_name(at, ",", "percent"));
        json->is_after_value = false;
    }
    kvb_json_write_number(json, 100.0 * (double)overlap->blocks / all_blocks);
}

static void write_overlap_doubts(struct kvb_json_writer *json, const struct kvb_overlap *overlap)
{
    char *at = kvb_json_write_open(json, row_bytes);

    if (at) {
        kvb_json_write_close(
            json, put_row_pair(at, "", "doubtful", overlap->follower->heartbeat.doubtful));
    }
    write_unverified_tiers(json, overlap);
}

static void write_overlap_held(
    struct kvb_json_writer *json, const struct kvb_overlap *overlap, struct columns columns)
{
    char *at = kvb_json_write_open(json, row_bytes);

    if (!at) {
        return;
    }
    if (columns.with_block_size) {
        at = put_row_pair(at, "", "block_size", overlap->shape.block_size);
        *at++ = ',';
    }
    at = put_row_tokens(at, overlap, true);
    if (columns.with_hits) {
        at = put_row_pair(at, ",", "hit_tokens", overlap->hit_tokens);
    }
    kvb_json_write_close(json, at);
}

static void write_overlap_worker(
    struct kvb_json_writer *json, const struct kvb_overlap *overlap, struct columns columns,
    struct place *before)
{
    const struct kvb_follower *follower = overlap->follower;

    write_overlap_id(json, &follower->id, before);
    write_overlap_state(json, overlap);
    write_overlap_doubts(json, overlap);
    write_overlap_held(json, overlap, columns);
    if (overlap->has_facts) {
        kvb_worker_facts_json_write(&follower->heartbeat.facts, json);
    }
    kvb_json_write_end(json, '}');
}

kvb_status kvb_answer_match(
    struct kvb_query_context *ctx, struct kvb_query *query, size_t max_rows, struct kvb_buf *out,
    struct kvb_detail *detail)
{
    const struct kvb_listing_options options = { .ordered = max_rows };

    KVB_TRY(kvb_query_context_overlaps(ctx, query, options, detail));
    const struct kvb_query_head head = ctx->head;
    const struct columns columns = { .with_block_size = head.has_several,
                                     .with_hits = query->form == KVB_QUERY_TOKENS };
    const size_t holders = ctx->overlap_count;
    const size_t shown = holders < max_rows ? holders : max_rows;
    struct kvb_json_writer json = kvb_json_writer_of(out);
    struct place before = { 0 };

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "block_size", head.block_size);
    kvb_json_write_pair_u64(&json, "blocks", head.blocks);
    kvb_json_write_pair_begin(&json, "workers", '[');
    for (size_t i = 0; i < shown; i++) {
        write_overlap_worker(&json, &ctx->overlaps[i], columns, &before);
    }
    kvb_json_write_end(&json, ']');
    if (shown < holders) {
        kvb_json_write_pair_u64(&json, "more", holders - shown);
    }
    /* The rest is written only where it is not empty, which is rare. */
    write_down(&json, ctx, query);
    write_shared(&json, ctx, max_rows);
    KVB_TRY(write_predicted(&json, ctx, query));
    kvb_text_tokens_write(query, &json);
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- /query ---- */

static int by_worker_and_rank(const void *left, const void *right)
{
    const struct kvb_stream_id *a = &((const struct kvb_overlap *)left)->follower->id;
    const struct kvb_stream_id *b = &((const struct kvb_overlap *)right)->follower->id;

    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

/* Two components may have the same worker id and rank.  These answers do not name the component, so
 * only the better of the two is kept. */
static void merge_equal_names(struct kvb_query_context *ctx)
{
    bool is_in_order = true;
    size_t kept = 0;

    /* The components have different workers, as usual: then the order by id is this one too. */
    for (size_t i = 1; i < ctx->overlap_count && is_in_order; i++) {
        is_in_order = by_worker_and_rank(&ctx->overlaps[i - 1], &ctx->overlaps[i]) <= 0;
    }
    if (!is_in_order) {
        qsort(ctx->overlaps, ctx->overlap_count, sizeof *ctx->overlaps, by_worker_and_rank);
    }
    for (size_t i = 0; i < ctx->overlap_count; i++) {
        struct kvb_overlap *last = kept > 0 ? &ctx->overlaps[kept - 1] : NULL;
        if (!last || by_worker_and_rank(last, &ctx->overlaps[i]) != 0) {
            ctx->overlaps[kept++] = ctx->overlaps[i];
        } else if (last->max_tokens < ctx->overlaps[i].max_tokens) { /* the better of the two */
            *last = ctx->overlaps[i];
        }
    }
    ctx->overlap_count = kept;
}

/* The index of the first overlap of the next worker. */
static size_t next_worker(const struct kvb_query_context *ctx, size_t at)
{
    const uint64_t worker_id = ctx->overlaps[at].follower->id.worker_id;

    while (at < ctx->overlap_count && ctx->overlaps[at].follower->id.worker_id == worker_id) {
        at++;
    }
    return at;
}

static uint64_t held_on_device(const struct kvb_overlap *overlap)
{
    return overlap->tokens[KVB_TIER_DEVICE];
}

static uint64_t hit_on_device(const struct kvb_overlap *overlap)
{
    return overlap->hit_tokens;
}

typedef uint64_t (*tokens_of)(const struct kvb_overlap *overlap);

/* Room for the row of a worker with these ranks. */
static char *open_worker_row(struct kvb_json_writer *json, size_t ranks)
{
    return kvb_json_write_open(json, row_bytes + (ranks * rank_bytes));
}

/* The ranks that hold something on the device. */
static char *put_row_ranks(
    char *at, const struct kvb_query_context *ctx, size_t from, size_t to, tokens_of tokens)
{
    const char *before = "{";

    for (size_t i = from; i < to; i++) {
        const struct kvb_overlap *overlap = &ctx->overlaps[i];
        if (held_on_device(overlap) > 0) {
            at = put_row_number(
                put_row_key(at, before, overlap->follower->id.dp_rank), tokens(overlap));
            before = ",";
        }
    }
    return put_row_text(at, *before == '{' ? "{}" : "}"); /* no rank: nothing is written yet */
}

static void write_workers(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx, const char *key,
    tokens_of tokens)
{
    kvb_json_write_pair_begin(json, key, '{');
    for (size_t at = 0; at < ctx->overlap_count;) {
        const size_t end = next_worker(ctx, at);
        char *row = open_worker_row(json, end - at);
        if (row) {
            row = put_row_key(row, "", ctx->overlaps[at].follower->id.worker_id);
            kvb_json_write_close(json, put_row_ranks(row, ctx, at, end, tokens));
        }
        at = end;
    }
    kvb_json_write_end(json, '}');
}

static uint64_t
longest(const struct kvb_query_context *ctx, size_t from, size_t to, enum kvb_tier last)
{
    uint64_t tokens = 0;

    for (size_t i = from; i < to; i++) {
        const uint64_t there = tokens_up_to(&ctx->overlaps[i], last);
        tokens = there > tokens ? there : tokens;
    }
    return tokens;
}

static void write_instances(struct kvb_json_writer *json, const struct kvb_query_context *ctx)
{
    kvb_json_write_pair_begin(json, "instances", '{');
    for (size_t from = 0; from < ctx->overlap_count;) {
        const size_t to = next_worker(ctx, from);
        const uint64_t all = longest(ctx, from, to, KVB_TIER_EXTERNAL);
        char *at = open_worker_row(json, to - from);

        if (at) { /* else the writer has failed, which the end of the answer finds */
            at = put_row_key(at, "", ctx->overlaps[from].follower->id.worker_id);
            at = put_row_pair(at, "{", "longest_matched", all);
            at = put_row_pair(at, ",", "gpu", longest(ctx, from, to, KVB_TIER_DEVICE));
            at = put_row_ranks(put_row_name(at, ",", "dp"), ctx, from, to, held_on_device);
            at = put_row_pair(at, ",", "cpu", longest(ctx, from, to, KVB_TIER_HOST));
            at = put_row_disks(at, longest(ctx, from, to, KVB_TIER_DISK), all);
            kvb_json_write_close(json, put_row_text(at, "}"));
        }
        from = to;
    }
    kvb_json_write_end(json, '}');
}

static const struct kvb_worker_facts *facts_at(const struct kvb_query_context *ctx, size_t at)
{
    return &ctx->overlaps[at].follower->heartbeat.facts;
}

/* Writes the published facts of the listed workers; nothing when none has any. */
static void write_known_workers(struct kvb_json_writer *json, const struct kvb_query_context *ctx)
{
    bool is_open = false;

    for (size_t at = 0; at < ctx->overlap_count; at = next_worker(ctx, at)) {
        if (!ctx->overlaps[at].has_facts) {
            continue;
        }
        if (!is_open) {
            kvb_json_write_pair_begin(json, "workers", '{');
            is_open = true;
        }
        kvb_json_write_key_u64(json, ctx->overlaps[at].follower->id.worker_id);
        kvb_json_write_begin(json, '{');
        kvb_worker_facts_json_write(facts_at(ctx, at), json);
        kvb_json_write_end(json, '}');
    }
    if (is_open) {
        kvb_json_write_end(json, '}');
    }
}

/* {worker:{rank:...}} of the ranks that is_told() selects; nothing where there are none. */
static void write_some_ranks(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx, const char *name,
    bool (*is_told)(const struct kvb_overlap *overlap),
    void (*write)(struct kvb_json_writer *json, const struct kvb_overlap *overlap))
{
    const struct kvb_stream_id *last = NULL;

    for (size_t i = 0; i < ctx->overlap_count; i++) {
        const struct kvb_overlap *overlap = &ctx->overlaps[i];
        if (!is_told(overlap)) {
            continue;
        }
        const struct kvb_stream_id *id = &overlap->follower->id;
        const bool is_same_worker = last && last->worker_id == id->worker_id;
        if (!last) {
            kvb_json_write_pair_begin(json, name, '{');
        } else if (!is_same_worker) {
            kvb_json_write_end(json, '}');
        }
        if (!is_same_worker) {
            kvb_json_write_key_u64(json, id->worker_id);
            kvb_json_write_begin(json, '{');
        }
        kvb_json_write_key_u64(json, id->dp_rank);
        write(json, overlap);
        last = id;
    }
    if (last) { /* the last worker, and all of them */
        kvb_json_write_end(json, '}');
        kvb_json_write_end(json, '}');
    }
}

/* A rank that "states" leaves out is EXACT. */
static bool is_not_exact(const struct kvb_overlap *overlap)
{
    return overlap->follower->state != KVB_STREAM_EXACT;
}

/* "PARTIAL(gone)" */
static void write_state(struct kvb_json_writer *json, const struct kvb_overlap *overlap)
{
    const char *reason = kvb_stream_reason_name(overlap->follower->reason);
    char *at = kvb_json_write_open(json, row_bytes);

    if (at) {
        at = put_row_text(put_row_text(at, "\""), kvb_stream_state_name(overlap->follower->state));
        if (*reason) {
            at = put_row_text(put_row_text(put_row_text(at, "("), reason), ")");
        }
        kvb_json_write_close(json, put_row_text(at, "\""));
    }
}

/* {"unverified_tiers":{tier:reason}} */
static void write_tier_state(struct kvb_json_writer *json, const struct kvb_overlap *overlap)
{
    kvb_json_write_begin(json, '{');
    kvb_unverified_tiers_json_write(&overlap->follower->heartbeat, json);
    kvb_json_write_end(json, '}');
}

kvb_status kvb_answer_query(
    struct kvb_query_context *ctx, struct kvb_query *query, bool with_down, struct kvb_buf *out,
    struct kvb_detail *detail)
{
    const struct kvb_listing_options options = { .with_down = with_down, .by_id = true };

    /* By id, so that the ranks of a worker are neighbours: its row is written in one go. */
    KVB_TRY(kvb_query_context_overlaps(ctx, query, options, detail));
    merge_equal_names(ctx);
    struct kvb_json_writer json = kvb_json_writer_of(out);
    kvb_json_write_begin(&json, '{');
    write_workers(&json, ctx, "scores", held_on_device);
    kvb_json_write_pair_begin(&json, "frequencies", '[');
    kvb_json_write_end(&json, ']');
    write_instances(&json, ctx);
    /* So far Dynamo's keys.  Ours follow, and most of them are written only where they say
     * something, because the whole fleet may hold a common prompt. */
    if (query->form == KVB_QUERY_TOKENS) {
        write_workers(&json, ctx, "hits", hit_on_device);
    }
    write_some_ranks(&json, ctx, "states", is_not_exact, write_state);
    write_down(&json, ctx, query);
    write_some_ranks(&json, ctx, "tier_states", has_unverified_blocks, write_tier_state);
    write_known_workers(&json, ctx);
    write_shared(&json, ctx, kvb_max_streams);
    KVB_TRY(write_predicted(&json, ctx, query));
    kvb_text_tokens_write(query, &json);
    kvb_json_write_end(&json, '}');
    return json.status;
}
