#include "serve/answers.h"

#include "wire/json_writer.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t tokens_in(const struct kvb_overlap *overlap, enum kvb_tier tier)
{
    return (uint64_t)overlap->depths[tier] * overlap->shape.block_size;
}

/* ---- kv_match ---- */

static void write_tokens(struct kvb_json_writer *json, const struct kvb_overlap *overlap)
{
    kvb_json_write_key(json, "tokens");
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "device", tokens_in(overlap, KVB_TIER_DEVICE));
    kvb_json_write_pair_u64(json, "host", tokens_in(overlap, KVB_TIER_HOST));
    kvb_json_write_pair_u64(json, "disk", tokens_in(overlap, KVB_TIER_DISK));
    if (overlap->depths[KVB_TIER_EXTERNAL] > 0) {
        kvb_json_write_pair_u64(json, "external", tokens_in(overlap, KVB_TIER_EXTERNAL));
    }
    kvb_json_write_end(json, '}');
}

static void
write_worker(struct kvb_json_writer *json, const struct kvb_overlap *overlap, bool with_shape)
{
    const struct kvb_follower *follower = overlap->follower;
    const double asked = (double)(overlap->request_blocks ? overlap->request_blocks : 1);

    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", follower->id.worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", follower->id.dp_rank);
    kvb_json_write_pair_text(json, "namespace", follower->id.name_space);
    kvb_json_write_pair_text(json, "component", follower->id.component);
    kvb_json_write_pair_text(json, "state", kvb_stream_state_name(follower->state));
    kvb_json_write_pair_text(json, "reason", kvb_stream_reason_name(follower->reason));
    kvb_json_write_pair_u64(json, "blocks", overlap->blocks);
    kvb_json_write_pair_number(json, "percent", 100.0 * (double)overlap->blocks / asked);
    kvb_json_write_pair_u64(json, "doubtful", follower->heartbeat.doubtful);
    if (with_shape) {
        kvb_json_write_pair_u64(json, "block_size", overlap->shape.block_size);
    }
    write_tokens(json, overlap);
    kvb_json_write_end(json, '}');
}

kvb_status kvb_answer_match(
    struct kvb_view *view, const struct kvb_query *query, size_t max_rows, struct kvb_buf *out,
    struct kvb_detail *detail)
{
    const struct kvb_view_ask ask = { 0 };

    KVB_TRY(kvb_view_overlaps(view, query, ask, detail));
    const struct kvb_view_head head = view->head;
    const size_t holders = view->overlap_count;
    const size_t shown = holders < max_rows ? holders : max_rows;
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "block_size", head.block_size);
    kvb_json_write_pair_u64(&json, "blocks", head.blocks);
    kvb_json_write_key(&json, "workers");
    kvb_json_write_begin(&json, '[');
    for (size_t i = 0; i < shown; i++) {
        write_worker(&json, &view->overlaps[i], head.has_several);
    }
    kvb_json_write_end(&json, ']');
    if (shown < holders) {
        kvb_json_write_pair_u64(&json, "more", holders - shown);
    }
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

/* One worker id and rank may live in two components; these answers name neither,
 * so the better of the two stands for both. */
static void merge_equal_names(struct kvb_view *view)
{
    size_t kept = 0;

    qsort(view->overlaps, view->overlap_count, sizeof *view->overlaps, by_worker_and_rank);
    for (size_t i = 0; i < view->overlap_count; i++) {
        struct kvb_overlap *last = kept > 0 ? &view->overlaps[kept - 1] : NULL;
        if (!last || by_worker_and_rank(last, &view->overlaps[i]) != 0) {
            view->overlaps[kept++] = view->overlaps[i];
        } else if (last->blocks < view->overlaps[i].blocks) {
            *last = view->overlaps[i];
        }
    }
    view->overlap_count = kept;
}

/* The first overlap after those of the worker at `at`. */
static size_t next_worker(const struct kvb_view *view, size_t at)
{
    const uint64_t worker_id = view->overlaps[at].follower->id.worker_id;

    while (at < view->overlap_count && view->overlaps[at].follower->id.worker_id == worker_id) {
        at++;
    }
    return at;
}

static void
write_ranks(struct kvb_json_writer *json, const struct kvb_view *view, size_t from, size_t to)
{
    kvb_json_write_begin(json, '{');
    for (size_t i = from; i < to; i++) {
        const struct kvb_overlap *overlap = &view->overlaps[i];
        if (overlap->depths[KVB_TIER_DEVICE] > 0) {
            kvb_json_write_key_u64(json, overlap->follower->id.dp_rank);
            kvb_json_write_u64(json, tokens_in(overlap, KVB_TIER_DEVICE));
        }
    }
    kvb_json_write_end(json, '}');
}

static void write_scores(struct kvb_json_writer *json, const struct kvb_view *view)
{
    kvb_json_write_key(json, "scores");
    kvb_json_write_begin(json, '{');
    for (size_t at = 0; at < view->overlap_count;) {
        const size_t end = next_worker(view, at);
        kvb_json_write_key_u64(json, view->overlaps[at].follower->id.worker_id);
        write_ranks(json, view, at, end);
        at = end;
    }
    kvb_json_write_end(json, '}');
}

static uint64_t longest(const struct kvb_view *view, size_t from, size_t to, enum kvb_tier last)
{
    uint64_t tokens = 0;

    for (size_t i = from; i < to; i++) {
        for (int tier = 0; tier <= (int)last; tier++) {
            const uint64_t there = tokens_in(&view->overlaps[i], (enum kvb_tier)tier);
            tokens = there > tokens ? there : tokens;
        }
    }
    return tokens;
}

static void
write_instance(struct kvb_json_writer *json, const struct kvb_view *view, size_t from, size_t to)
{
    const uint64_t all = longest(view, from, to, KVB_TIER_EXTERNAL);

    kvb_json_write_key_u64(json, view->overlaps[from].follower->id.worker_id);
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "longest_matched", all);
    kvb_json_write_pair_u64(json, "gpu", longest(view, from, to, KVB_TIER_DEVICE));
    kvb_json_write_key(json, "dp");
    write_ranks(json, view, from, to);
    kvb_json_write_pair_u64(json, "cpu", longest(view, from, to, KVB_TIER_HOST));
    kvb_json_write_pair_u64(json, "disk", all);
    kvb_json_write_end(json, '}');
}

static void write_instances(struct kvb_json_writer *json, const struct kvb_view *view)
{
    kvb_json_write_key(json, "instances");
    kvb_json_write_begin(json, '{');
    for (size_t at = 0; at < view->overlap_count;) {
        const size_t end = next_worker(view, at);
        write_instance(json, view, at, end);
        at = end;
    }
    kvb_json_write_end(json, '}');
}

static bool is_exact(const struct kvb_overlap *overlap)
{
    return overlap->follower->state == KVB_STREAM_EXACT;
}

static bool are_all_exact(const struct kvb_view *view, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (!is_exact(&view->overlaps[i])) {
            return false;
        }
    }
    return true;
}

static void write_state(struct kvb_json_writer *json, const struct kvb_follower *follower)
{
    const char *reason = kvb_stream_reason_name(follower->reason);
    char text[64];

    (void)snprintf(
        text, sizeof text, *reason ? "%s(%s)" : "%s", kvb_stream_state_name(follower->state),
        reason);
    kvb_json_write_key_u64(json, follower->id.dp_rank);
    kvb_json_write_text(json, text);
}

/* Of the ranks that are not EXACT: a rank that is left out is, whatever its siblings are. */
static void write_states(struct kvb_json_writer *json, const struct kvb_view *view)
{
    if (are_all_exact(view, 0, view->overlap_count)) {
        return;
    }
    kvb_json_write_key(json, "states");
    kvb_json_write_begin(json, '{');
    for (size_t at = 0; at < view->overlap_count;) {
        const size_t end = next_worker(view, at);
        if (!are_all_exact(view, at, end)) {
            kvb_json_write_key_u64(json, view->overlaps[at].follower->id.worker_id);
            kvb_json_write_begin(json, '{');
            for (size_t i = at; i < end; i++) {
                if (!is_exact(&view->overlaps[i])) {
                    write_state(json, view->overlaps[i].follower);
                }
            }
            kvb_json_write_end(json, '}');
        }
        at = end;
    }
    kvb_json_write_end(json, '}');
}

kvb_status kvb_answer_query(
    struct kvb_view *view, const struct kvb_query *query, bool with_down, struct kvb_buf *out,
    struct kvb_detail *detail)
{
    const struct kvb_view_ask ask = { .with_down = with_down };

    KVB_TRY(kvb_view_overlaps(view, query, ask, detail));
    merge_equal_names(view);
    struct kvb_json_writer json = kvb_json_writer_of(out);
    kvb_json_write_begin(&json, '{');
    write_scores(&json, view);
    kvb_json_write_key(&json, "frequencies");
    kvb_json_write_begin(&json, '[');
    kvb_json_write_end(&json, ']');
    write_instances(&json, view);
    write_states(&json, view);
    kvb_json_write_end(&json, '}');
    return json.status;
}
