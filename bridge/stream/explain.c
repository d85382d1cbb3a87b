#include "stream/explain.h"

#include "core/array.h"
#include "core/id_table.h"
#include "core/own.h"
#include "index/block_hash.h"
#include "stream/inside.h"

#include <stdlib.h>
#include <string.h>

/* Other seeds with which the prompt's first missing block is tried. */
enum { max_seeds = 64 };

/* The blocks of the prompt. */
struct prompt_block {
    kvb_tokens_hash tokens;
    kvb_block_hash block;
    uint32_t first_same; /* the first block of the prompt with these tokens, if it has tokens */
    bool has_name;
    bool is_waiting;     /* an entry with these tokens waits for its parent */
    bool has_other_name; /* it is held with another seed */
};

/* What the walk through the trace has found so far of one block in one list.  The walk goes from
 * the newest event to the oldest. */
struct block_history {
    struct kvb_explained_trace trace;
    bool is_decided;
};

struct explaining {
    const struct kvb_stream *stream;
    const struct kvb_query *query;
    struct kvb_explanation *out;
    struct kvb_block_shape shape;
    uint64_t seed;
    struct prompt_block *prompt; /* owned; out->blocks of them */
    bool has_tokens;
    bool is_named_in_part;            /* a block without a name may be in the list */
    struct kvb_hash_key hash_key;     /* of the next two */
    struct kvb_id_table by_name;      /* of the rows, the first of each name */
    struct kvb_id_table by_tokens;    /* of the whole prompt, the first of equal tokens */
    struct block_history *histories;  /* owned; KVB_LIST_COUNT for each row */
    struct kvb_explained_trace clear; /* the oldest clear that the walk has met; NOTHING: none */
};

static void explaining_done(struct explaining *explaining)
{
    free(explaining->prompt);
    free(explaining->histories);
    kvb_id_table_done(&explaining->by_name);
    kvb_id_table_done(&explaining->by_tokens);
}

static uint32_t hash_of_value(const struct explaining *explaining, uint64_t value)
{
    return (uint32_t)kvb_hash_keyed(&explaining->hash_key, value, 0);
}

/* ---- The names of the blocks ---- */

/* Writes the hashes of the tokens with this seed, which the query must have. */
static kvb_status
hash_prompt_tokens(struct explaining *explaining, uint64_t seed, kvb_tokens_hash **out)
{
    const struct kvb_query *query = explaining->query;
    kvb_tokens_hash *hashes =
        calloc(query->count / explaining->shape.block_size + 1, sizeof *hashes);

    if (!hashes) {
        return KVB_NO_MEMORY;
    }
    (void)kvb_tokens_hash_prompt(query->tokens, query->count, explaining->shape, seed, hashes);
    *out = hashes;
    return KVB_OK;
}

static size_t count_prompt_blocks(const struct explaining *explaining)
{
    const struct kvb_query *query = explaining->query;
    const struct kvb_block_shape shape = explaining->shape;

    if (query->form != KVB_QUERY_TOKENS) {
        return query->count;
    }
    return query->count > shape.lookahead ? (query->count - shape.lookahead) / shape.block_size : 0;
}

static kvb_status read_explained_prompt(struct explaining *explaining)
{
    const struct kvb_query *query = explaining->query;
    KVB_OWN(kvb_own_free) kvb_tokens_hash *hashes = NULL;
    const size_t count = count_prompt_blocks(explaining);

    if (count > kvb_explain_blocks) {
        return KVB_TOO_LARGE;
    }
    explaining->out->blocks = count;
    explaining->has_tokens = query->form != KVB_QUERY_BLOCK_HASHES;
    explaining->prompt = calloc(count + 1, sizeof *explaining->prompt);
    if (!explaining->prompt) {
        return KVB_NO_MEMORY;
    }
    if (query->form == KVB_QUERY_TOKENS) {
        KVB_TRY(hash_prompt_tokens(explaining, explaining->seed, &hashes));
    }
    for (size_t i = 0; i < count; i++) {
        struct prompt_block *block = &explaining->prompt[i];
        block->tokens = hashes ? hashes[i] : (kvb_tokens_hash){ query->hashes[i] };
        block->block = (kvb_block_hash){ explaining->has_tokens ? 0 : query->hashes[i] };
        block->has_name = !explaining->has_tokens;
    }
    return KVB_OK;
}

static void name_canonically(const struct explaining *explaining)
{
    struct prompt_block *prompt = explaining->prompt;

    for (size_t i = 0; i < explaining->out->blocks; i++) {
        prompt[i].has_name = true;
        prompt[i].block = i == 0 ? kvb_block_hash_root(prompt[0].tokens)
                                 : kvb_block_hash_next(prompt[i - 1].block, prompt[i].tokens);
    }
}

/* The first block of the prompt with these tokens.  KVB_NO_ID: none. */
static uint32_t find_with_tokens(const struct explaining *explaining, kvb_tokens_hash tokens)
{
    const uint32_t hash = hash_of_value(explaining, tokens.value);
    size_t at = kvb_id_table_start(&explaining->by_tokens, hash);

    for (uint32_t id; (id = kvb_id_table_next(&explaining->by_tokens, hash, &at)) != KVB_NO_ID;) {
        if (explaining->prompt[id].tokens.value == tokens.value) {
            return id;
        }
    }
    return KVB_NO_ID;
}

/* A table with many equal keys would be walked for each of them: one block stands for all with the
 * same tokens. */
static kvb_status index_tokens(struct explaining *explaining)
{
    for (uint32_t i = 0; i < explaining->out->blocks; i++) {
        struct prompt_block *block = &explaining->prompt[i];
        block->first_same = find_with_tokens(explaining, block->tokens);
        if (block->first_same == KVB_NO_ID) {
            block->first_same = i;
            KVB_TRY(kvb_id_table_put(
                &explaining->by_tokens, hash_of_value(explaining, block->tokens.value), i));
        }
    }
    return KVB_OK;
}

/* ---- The engine's names: a block is found by its tokens and its parent ---- */

/* Blocks with tokens of the prompt, those that are held first; then from the newest event on.  Of
 * those with the same tokens and parent, the first. */
struct name_candidates {
    struct kvb_mirror_named *items; /* owned */
    size_t count, capacity;
    struct kvb_id_table by_place; /* tokens and parent */
};

/* The blocks of the mirror and of the trace that are looked at; the trace's last event may be
 * longer than what is left of these. */
enum { max_candidates = 2 << 16 };

static void drop_candidates(struct name_candidates *candidates)
{
    free(candidates->items);
    kvb_id_table_done(&candidates->by_place);
}

static bool is_same_candidate(const struct kvb_mirror_named *a, const struct kvb_mirror_named *b)
{
    return a->tokens.value == b->tokens.value && a->has_parent == b->has_parent &&
           (!a->has_parent || a->parent.value == b->parent.value);
}

static uint32_t
hash_of_candidate(const struct explaining *explaining, const struct kvb_mirror_named *named)
{
    return (uint32_t)kvb_hash_keyed(
        &explaining->hash_key, named->tokens.value, named->has_parent ? named->parent.value : 0);
}

/* The candidate with the tokens and the parent of `named`.  NULL: none. */
static const struct kvb_mirror_named *find_candidate(
    const struct explaining *explaining, const struct name_candidates *candidates,
    const struct kvb_mirror_named *named)
{
    const uint32_t hash = hash_of_candidate(explaining, named);
    size_t at = kvb_id_table_start(&candidates->by_place, hash);

    for (uint32_t id; (id = kvb_id_table_next(&candidates->by_place, hash, &at)) != KVB_NO_ID;) {
        if (is_same_candidate(&candidates->items[id], named)) {
            return &candidates->items[id];
        }
    }
    return NULL;
}

static kvb_status add_candidate(
    const struct explaining *explaining, struct name_candidates *candidates,
    const struct kvb_mirror_named *named)
{
    if (candidates->count == max_candidates ||
        find_with_tokens(explaining, named->tokens) == KVB_NO_ID ||
        find_candidate(explaining, candidates, named)) {
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &candidates->items, &candidates->capacity, candidates->count + 1, sizeof *candidates->items,
        max_candidates));
    candidates->items[candidates->count] = *named;
    return kvb_id_table_put(
        &candidates->by_place, hash_of_candidate(explaining, named), (uint32_t)candidates->count++);
}

static kvb_status add_traced_candidates(
    const struct explaining *explaining, struct name_candidates *candidates,
    const struct kvb_traced_event *traced)
{
    const struct kvb_event_log *log = explaining->stream->log;
    struct kvb_mirror_named named = { .has_parent = traced->event.has_parent,
                                      .parent = traced->event.parent };

    for (uint32_t i = 0; i < traced->event.block_count; i++) {
        named.block = kvb_event_log_traced_block(log, traced, i);
        named.tokens = kvb_event_log_traced_tokens(log, traced, i);
        KVB_TRY(add_candidate(explaining, candidates, &named));
        named.parent = named.block;
        named.has_parent = true;
    }
    return KVB_OK;
}

static kvb_status
find_candidates(const struct explaining *explaining, struct name_candidates *candidates)
{
    const struct kvb_event_log *log = explaining->stream->log;
    struct kvb_mirror_named named = { 0 };
    size_t place = 0;
    size_t number = log ? kvb_event_log_trace_count(log) : 0;
    size_t work = 0;

    while (kvb_mirror_next_named(explaining->stream->mirror, &place, &named)) {
        KVB_TRY(add_candidate(explaining, candidates, &named));
    }
    while (number > 0 && work < kvb_explain_trace_blocks) {
        const struct kvb_traced_event traced = kvb_event_log_traced(log, --number);
        work += 1 + traced.event.block_count;
        if (traced.event.kind == KVB_ROUTER_STORED && traced.event.tier < KVB_TIER_COUNT) {
            KVB_TRY(add_traced_candidates(explaining, candidates, &traced));
        }
    }
    return KVB_OK;
}

/* Names block i, whose parent has a name.  False: no candidate has its tokens and its parent. */
static bool name_from_candidates(
    const struct explaining *explaining, const struct name_candidates *candidates, size_t i)
{
    struct prompt_block *block = &explaining->prompt[i];
    const struct kvb_mirror_named wanted = { .tokens = block->tokens,
                                             .has_parent = i > 0,
                                             .parent = { i > 0 ? block[-1].block.value : 0 } };
    const struct kvb_mirror_named *named = find_candidate(explaining, candidates, &wanted);

    if (named) {
        block->block = named->block;
        block->has_name = true;
    }
    return named != NULL;
}

static kvb_status name_as_engine(struct explaining *explaining)
{
    KVB_OWN(drop_candidates) struct name_candidates candidates = { 0 };
    size_t i = 0;

    KVB_TRY(find_candidates(explaining, &candidates));
    while (i < explaining->out->blocks && candidates.count > 0 &&
           name_from_candidates(explaining, &candidates, i)) {
        i++;
    }
    explaining->is_named_in_part = candidates.count == max_candidates ||
                                   kvb_mirror_is_named_in_part(explaining->stream->mirror);
    return KVB_OK;
}

static kvb_status name_blocks(struct explaining *explaining)
{
    if (!explaining->has_tokens) {
        return KVB_OK;
    }
    KVB_TRY(index_tokens(explaining));
    if (explaining->out->beat.hashes == KVB_HASHES_ENGINE) {
        return name_as_engine(explaining);
    }
    name_canonically(explaining);
    return KVB_OK;
}

/* ---- What is held ---- */

static bool is_block_listed(const struct explaining *explaining, size_t at, unsigned list)
{
    const struct prompt_block *block = &explaining->prompt[at];

    return block->has_name && !explaining->stream->is_withdrawn &&
           (kvb_mirror_look_up(explaining->stream->mirror, block->block).lists >> list & 1) != 0;
}

/* Of the first `held` blocks, those up to the end of the last run of blocks that the window list
 * has and a request needs; without one, the run at the beginning (proto/README.md). */
static size_t usable_of(const struct explaining *explaining, size_t held)
{
    const uint32_t window_tokens = explaining->out->beat.window_tokens;
    const uint32_t size = explaining->shape.block_size;
    const size_t need = window_tokens > 0 ? (window_tokens - 1 + size - 1) / size : 0;
    size_t run = 0;

    if (need == 0) {
        return held;
    }
    for (size_t at = held; at > 0; at--) {
        run = is_block_listed(explaining, at - 1, KVB_LIST_WINDOW) ? run + 1 : 0;
        if (run == need) {
            return at - 1 + need;
        }
    }
    return run;
}

static void count_prompt_held(struct explaining *explaining)
{
    struct kvb_explanation *out = explaining->out;

    while (out->held_blocks < out->blocks &&
           is_block_listed(explaining, out->held_blocks, KVB_TIER_DEVICE)) {
        out->held_blocks++;
    }
    out->is_held_at_least = explaining->is_named_in_part && !explaining->stream->is_withdrawn &&
                            out->held_blocks < out->blocks &&
                            !explaining->prompt[out->held_blocks].has_name;
    out->usable_blocks = usable_of(explaining, out->held_blocks);
}

/* ---- The trace ---- */

/* The first row with this name.  KVB_NO_ID: none. */
static uint32_t find_row(const struct explaining *explaining, kvb_block_hash block)
{
    const uint32_t hash = hash_of_value(explaining, block.value);
    size_t at = kvb_id_table_start(&explaining->by_name, hash);

    for (uint32_t row; (row = kvb_id_table_next(&explaining->by_name, hash, &at)) != KVB_NO_ID;) {
        if (explaining->out->rows[row].block.value == block.value) {
            return row;
        }
    }
    return KVB_NO_ID;
}

static kvb_status make_rows(struct explaining *explaining, size_t from, size_t max_rows)
{
    struct kvb_explanation *out = explaining->out;
    const size_t left = from < out->blocks ? out->blocks - from : 0;

    out->from = from;
    out->row_count = left < max_rows ? left : max_rows;
    out->rows = calloc(out->row_count + 1, sizeof *out->rows);
    explaining->histories =
        calloc(out->row_count * KVB_LIST_COUNT + 1, sizeof *explaining->histories);
    if (!out->rows || !explaining->histories) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < out->row_count; i++) {
        const struct prompt_block *block = &explaining->prompt[from + i];
        out->rows[i] =
            (struct kvb_explained_block){ .has_name = block->has_name, .block = block->block };
        if (block->has_name && find_row(explaining, block->block) == KVB_NO_ID) {
            KVB_TRY(kvb_id_table_put(
                &explaining->by_name, hash_of_value(explaining, block->block.value), (uint32_t)i));
        }
    }
    return KVB_OK;
}

static struct kvb_explained_trace
trace_of(enum kvb_trace_verdict verdict, const struct kvb_traced_event *traced)
{
    return (struct kvb_explained_trace){ .verdict = verdict,
                                         .event_id = traced->event.event_id,
                                         .note = traced->note };
}

/* Everything that is newer than this event is known.  Only transitions are published, so a stored
 * event that is no repetition is the beginning of a time in which the block was held. */
static void note_event(
    const struct explaining *explaining, struct block_history *history,
    const struct kvb_traced_event *traced)
{
    const bool is_repetition = traced->note.origin == KVB_ORIGIN_ANNOUNCED;
    const bool is_stored = traced->event.kind == KVB_ROUTER_STORED;
    const bool is_held_after = history->trace.verdict == KVB_TRACE_HELD_BEFORE;
    const bool was_cleared = explaining->clear.verdict != KVB_TRACE_NOTHING && !is_held_after;

    if (history->is_decided || (is_repetition && !is_stored)) {
        return;
    }
    history->is_decided = !is_repetition;
    if (is_stored && was_cleared) {
        history->trace = explaining->clear;
        history->is_decided = true;
    } else if (is_stored) {
        history->trace = trace_of(is_repetition ? KVB_TRACE_HELD_BEFORE : KVB_TRACE_HELD, traced);
    } else if (!is_held_after) {
        history->trace = trace_of(KVB_TRACE_REMOVED, traced);
    }
}

/* A block that was stored again after this clear was held from then on at least. */
static void note_clear_event(struct explaining *explaining, const struct kvb_traced_event *traced)
{
    if (traced->note.origin == KVB_ORIGIN_ANNOUNCED) {
        return; /* readers get an empty list and then the same one; the engine changed nothing */
    }
    for (size_t i = 0; explaining->clear.verdict == KVB_TRACE_NOTHING &&
                       i < explaining->out->row_count * KVB_LIST_COUNT;
         i++) {
        struct block_history *history = &explaining->histories[i];
        history->is_decided |= history->trace.verdict == KVB_TRACE_HELD_BEFORE;
    }
    explaining->clear = trace_of(KVB_TRACE_CLEARED, traced);
}

static void note_traced(struct explaining *explaining, const struct kvb_traced_event *traced)
{
    const struct kvb_event_log *log = explaining->stream->log;

    if (traced->event.kind == KVB_ROUTER_CLEARED) {
        note_clear_event(explaining, traced);
        return;
    }
    for (uint32_t i = 0; i < traced->event.block_count; i++) {
        const uint32_t row = find_row(explaining, kvb_event_log_traced_block(log, traced, i));
        if (row != KVB_NO_ID) {
            note_event(
                explaining, &explaining->histories[row * KVB_LIST_COUNT + traced->event.tier],
                traced);
        }
    }
}

/* What no event names is absent since the oldest clear of the trace.  Rows with the same name have
 * one history, the first row's. */
static void end_trace(struct explaining *explaining)
{
    struct kvb_explanation *out = explaining->out;

    for (size_t i = 0; i < out->row_count * KVB_LIST_COUNT; i++) {
        struct kvb_explained_block *row = &out->rows[i / KVB_LIST_COUNT];
        const size_t list = i % KVB_LIST_COUNT;
        const size_t first = row->has_name ? find_row(explaining, row->block) : i / KVB_LIST_COUNT;
        struct kvb_explained_trace *trace = &row->traces[list];
        *trace = explaining->histories[first * KVB_LIST_COUNT + list].trace;
        if (trace->verdict == KVB_TRACE_NOTHING && explaining->clear.verdict != KVB_TRACE_NOTHING) {
            *trace = explaining->clear;
            trace->verdict = KVB_TRACE_ABSENT;
        }
    }
}

static void walk_trace(struct explaining *explaining)
{
    const struct kvb_event_log *log = explaining->stream->log;
    struct kvb_explanation *out = explaining->out;
    size_t number = log ? kvb_event_log_trace_count(log) : 0;
    size_t work = 0;

    while (number > 0 && work < kvb_explain_trace_blocks) {
        const struct kvb_traced_event traced = kvb_event_log_traced(log, --number);
        work += 1 + traced.event.block_count;
        note_traced(explaining, &traced);
        out->trace_events++;
        out->trace_first_id = traced.event.event_id;
        out->trace_first_us = traced.note.wall_us;
    }
    out->is_trace_whole = log && number == 0 && kvb_event_log_trace_is_whole(log);
    end_trace(explaining);
}

/* ---- Other places where the tokens may be ---- */

static void find_waiting_blocks(struct explaining *explaining)
{
    const struct kvb_mirror *mirror = explaining->stream->mirror;
    kvb_tokens_hash tokens = { 0 };
    kvb_engine_hash parent = { 0 };
    size_t place = 0;

    while (explaining->has_tokens && kvb_mirror_next_waiting(mirror, &place, &tokens, &parent)) {
        const uint32_t id = find_with_tokens(explaining, tokens);
        if (id != KVB_NO_ID) {
            explaining->prompt[id].is_waiting = true;
        }
    }
    for (size_t i = 0; explaining->has_tokens && i < explaining->out->blocks; i++) {
        struct prompt_block *block = &explaining->prompt[i];
        block->is_waiting = explaining->prompt[block->first_same].is_waiting;
    }
}

/* True: the first block is held with this seed; then all blocks that are, are marked. */
static bool mark_with_seed(struct explaining *explaining, const kvb_tokens_hash *hashes)
{
    const struct kvb_mirror *mirror = explaining->stream->mirror;
    kvb_block_hash name = kvb_block_hash_root(hashes[0]);

    if (!kvb_mirror_look_up(mirror, name).is_partly_held) {
        return false;
    }
    for (size_t i = 0; i < explaining->out->blocks; i++) {
        name = i == 0 ? name : kvb_block_hash_next(name, hashes[i]);
        explaining->prompt[i].has_other_name = kvb_mirror_look_up(mirror, name).is_partly_held;
    }
    return true;
}

/* A LoRA name or a salt changes all names of a prompt.  Only the seeds that both make are known,
 * not the names and salts themselves. */
static kvb_status find_other_names(struct explaining *explaining)
{
    uint64_t seeds[max_seeds];
    const size_t count = kvb_mirror_seeds(explaining->stream->mirror, seeds, max_seeds);
    const bool can_tell = explaining->query->form == KVB_QUERY_TOKENS &&
                          explaining->out->beat.hashes == KVB_HASHES_CANONICAL &&
                          explaining->out->blocks > 0 && explaining->out->held_blocks == 0;
    const struct kvb_query *query = explaining->query;
    bool is_found = false;

    for (size_t i = 0; i < count && can_tell && !is_found; i++) {
        KVB_OWN(kvb_own_free) kvb_tokens_hash *hashes = NULL;
        const kvb_tokens_hash first = kvb_tokens_hash_of(
            query->tokens, explaining->shape.block_size + explaining->shape.lookahead, NULL, 0,
            seeds[i]);
        const bool is_held =
            seeds[i] != explaining->seed &&
            kvb_mirror_look_up(explaining->stream->mirror, kvb_block_hash_root(first))
                .is_partly_held;
        if (is_held) {
            KVB_TRY(hash_prompt_tokens(explaining, seeds[i], &hashes));
            is_found = mark_with_seed(explaining, hashes);
        }
    }
    return KVB_OK;
}

/* ---- Deciding ---- */

static void explain_row(struct explaining *explaining, size_t i)
{
    const struct kvb_stream *stream = explaining->stream;
    struct kvb_explanation *out = explaining->out;
    struct kvb_explained_block *row = &out->rows[i];
    const size_t at = out->from + i;
    const struct prompt_block *block = &explaining->prompt[at];
    const struct kvb_mirror_look look = block->has_name
                                            ? kvb_mirror_look_up(stream->mirror, block->block)
                                            : (struct kvb_mirror_look){ 0 };
    const bool is_break = at == out->held_blocks;
    const kvb_block_hash parent = { at > 0 ? explaining->prompt[at - 1].block.value : 0 };
    const enum kvb_mirror_unmatchable unmatchable =
        is_break ? kvb_mirror_find_unmatchable(stream->mirror, at > 0, parent)
                 : KVB_UNMATCHABLE_NONE;
    const struct kvb_explain_facts facts = {
        .is_withdrawn = stream->is_withdrawn,
        .is_partly_held = look.is_partly_held,
        .is_waiting = block->is_waiting,
        .has_other_name = block->has_other_name,
        .is_unmatchable = unmatchable == KVB_UNMATCHABLE_FOUND,
        .is_incomplete = !stream->is_complete || stream->has_skipped || stream->has_unknown_event ||
                         unmatchable == KVB_UNMATCHABLE_UNKNOWN,
        .is_trace_whole = out->is_trace_whole,
    };

    row->lists = stream->is_withdrawn ? 0 : look.lists;
    memcpy(row->min, look.min, sizeof row->min);
    memcpy(row->max, look.max, sizeof row->max);
    row->reason = kvb_explain_decide(row, &facts);
}

static kvb_status explain_prompt(struct explaining *explaining, size_t from, size_t max_rows)
{
    KVB_TRY(read_explained_prompt(explaining));
    KVB_TRY(name_blocks(explaining));
    count_prompt_held(explaining);
    KVB_TRY(make_rows(explaining, from, max_rows));
    walk_trace(explaining);
    find_waiting_blocks(explaining);
    KVB_TRY(find_other_names(explaining));
    for (size_t i = 0; i < explaining->out->row_count; i++) {
        explain_row(explaining, i);
    }
    return KVB_OK;
}

kvb_status kvb_stream_explain(
    const struct kvb_stream *stream, const struct kvb_query *query, size_t from, size_t max_rows,
    struct kvb_explanation *out)
{
    struct kvb_explanation explanation = { .why = kvb_stream_odd_groups_why(stream) };
    struct explaining explaining = { .stream = stream, .query = query, .out = &explanation };

    kvb_stream_heartbeat(stream, &explanation.beat);
    explaining.hash_key = kvb_hash_key_of(stream->options.mirror.hash_key);
    explaining.shape = (struct kvb_block_shape){ .block_size = explanation.beat.block_size,
                                                 .lookahead = explanation.beat.lookahead };
    explaining.seed = kvb_block_seed(kvb_span_of(query->lora_name), kvb_span_of(query->cache_salt));
    if (query->form == KVB_QUERY_TEXT ||
        (query->form == KVB_QUERY_TOKENS && explaining.shape.block_size == 0)) {
        return KVB_BAD_INPUT;
    }
    const kvb_status status = explain_prompt(&explaining, from, max_rows);
    explaining_done(&explaining);
    if (status != KVB_OK) {
        kvb_explanation_done(&explanation);
        return status;
    }
    *out = explanation;
    return KVB_OK;
}
