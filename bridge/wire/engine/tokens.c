#include "core/limits.h"
#include "wire/engine/fields.h"

#include <string.h>

/* An event's tokens: those of its blocks, and the lookahead tokens after each block. */

/* EAGLE: the pairs (a,b) (b,c) mean the tokens a b.  If b ends a block, c is the lookahead token of
 * that block. */
static kvb_status
take_pairs(struct kvb_mp_cursor *cursor, const struct kvb_engine_event *event, uint32_t *out)
{
    uint32_t *lookahead = out + event->token_count;
    uint32_t blocks_left = event->hash_count;

    for (uint32_t i = 0; i < event->token_count; i++) {
        uint32_t members = 0;
        uint32_t second = 0;
        KVB_TRY(kvb_mp_take_array(cursor, &members));
        if (members != 2) {
            return KVB_BAD_INPUT;
        }
        KVB_TRY(kvb_mp_take_u32(cursor, &out[i]));
        KVB_TRY(kvb_mp_take_u32(cursor, &second));
        /* The second of a block's last pair is the token behind the block. */
        if ((i + 1) % event->block_size == 0 && blocks_left > 0) {
            *lookahead++ = second;
            blocks_left--;
        }
    }
    return KVB_OK;
}

/* Whether the tokens cover the blocks; there may be more tokens. */
static kvb_status check_cover(const struct kvb_engine_event *event, uint32_t tokens)
{
    const uint64_t need = (uint64_t)event->hash_count * event->block_size;

    return event->block_size > 0 && tokens >= need ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_event_block_size(const struct engine_fields *fields, uint32_t *out_size)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_block_size);

    if (fields->has[field_block_size]) {
        KVB_TRY(kvb_mp_take_u32(&cursor, out_size));
    }
    return *out_size <= kvb_max_block_tokens ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_engine_read_tokens(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    KVB_TRY(read_event_block_size(fields, &event->block_size));
    return kvb_engine_read_token_list(batch, fields, event);
}

/* TensorRT-LLM may write a token id as text.  No query can contain such a token, so its block is
 * unmatchable and 0 is stored as the token. */
static kvb_status take_tokens_or_texts(
    struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor, struct kvb_engine_event *event,
    uint32_t *out)
{
    for (uint32_t i = 0; i < event->token_count; i++) {
        kvb_span text = { 0 };
        if (kvb_mp_next(cursor) != KVB_MP_TEXT) {
            KVB_TRY(kvb_mp_take_u32(cursor, &out[i]));
            continue;
        }
        KVB_TRY(kvb_mp_take_text(cursor, &text));
        KVB_TRY(kvb_engine_need_extras(batch, event));
        out[i] = 0;
        /* A text behind the last whole block spoils none. */
        if (i / event->block_size < event->extra_count) {
            batch->extras[event->extra_at + i / event->block_size].unmatchable = true;
        }
    }
    return KVB_OK;
}

/* Reads a list that was not read when it was located: pairs, texts, or an invalid list. */
static kvb_status read_odd_tokens(
    struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor, struct kvb_engine_event *event)
{
    event->is_paired = kvb_mp_next(cursor) == KVB_MP_ARRAY;
    event->lookahead = event->is_paired ? 1 : 0;
    event->lookahead_at = event->token_at + event->token_count;
    KVB_TRY(kvb_event_batch_reserve_tokens(
        batch, event->token_count + ((size_t)event->lookahead * event->hash_count)));
    uint32_t *out = batch->tokens + batch->token_count;
    return event->is_paired ? take_pairs(cursor, event, out)
                            : take_tokens_or_texts(batch, cursor, event, out);
}

[[gnu::hot]] kvb_status kvb_engine_read_token_list(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_token_ids);
    uint32_t count = 0;

    if (!fields->has[field_token_ids]) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_array(&cursor, &count));
    event->token_at = (uint32_t)batch->token_count;
    if (count == 0) {
        return KVB_OK; /* tokenless */
    }
    KVB_TRY(check_cover(event, count));
    /* A window's event with more tokens than its hashes cover leaves blocks out. */
    event->is_sparse = event->group_kind == KVB_GROUP_WINDOW &&
                       count > (uint64_t)event->hash_count * event->block_size;
    if (event->is_sparse) {
        return KVB_OK; /* it is unknown which tokens belong to which block */
    }
    event->token_count = count;
    if (!fields->tokens.is_read) {
        KVB_TRY(read_odd_tokens(batch, &cursor, event));
    }
    /* Lookahead tokens that came with pairs stand behind the tokens. */
    batch->token_count += event->token_count + ((size_t)event->lookahead * event->hash_count);
    return KVB_OK;
}

/* The algorithm is that of CPython from 3.8 on, which is xxHash's: Objects/tupleobject.c, with each
 * token as its own hash. */
bool kvb_engine_is_hash_of_page(
    const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    static const uint64_t prime_1 = UINT64_C(11400714785074694791);
    static const uint64_t prime_2 = UINT64_C(14029467366897019727);
    static const uint64_t prime_5 = UINT64_C(2870177450012600261);
    static const uint64_t length_mask = UINT64_C(3527539);
    uint64_t hash = prime_5;

    if (event->hash_count == 0 || event->token_count < event->block_size || event->is_paired) {
        return false;
    }
    for (uint32_t i = 0; i < event->block_size; i++) {
        hash += batch->tokens[event->token_at + i] * prime_2;
        hash = hash << 31 | hash >> 33;
        hash *= prime_1;
    }
    hash += event->block_size ^ (prime_5 ^ length_mask);
    return batch->hashes[event->hash_at].value == hash;
}

/* Reads [[token...]...], one list for each block, all of the same length, into out. */
static kvb_status
take_lookahead(struct kvb_mp_cursor *cursor, uint32_t lists, uint32_t lookahead, uint32_t *out)
{
    for (uint32_t i = 0; i < lists; i++) {
        uint32_t count = 0;
        if (!kvb_mp_take_nil(cursor)) {
            KVB_TRY(kvb_mp_take_array(cursor, &count));
        }
        /* nil counts as an empty list: all or none of the blocks have them. */
        if (count != lookahead) {
            return KVB_BAD_INPUT;
        }
        for (uint32_t k = 0; k < lookahead; k++) {
            KVB_TRY(kvb_mp_take_u32(cursor, out++));
        }
    }
    return KVB_OK;
}

/* The number of tokens in the first list. */
static kvb_status
measure_lookahead(const struct kvb_mp_cursor *lists, uint32_t count, uint32_t *out_lookahead)
{
    struct kvb_mp_cursor first = *lists;

    if (!kvb_mp_take_nil(&first)) {
        KVB_TRY(kvb_mp_take_array(&first, out_lookahead));
    }
    /* all lists have this length; check before allocating that the bytes left can contain them */
    const bool is_backed = (uint64_t)*out_lookahead * count <= (uint64_t)(lists->end - lists->at);
    return *out_lookahead <= kvb_max_lookahead_tokens && is_backed ? KVB_OK : KVB_BAD_INPUT;
}

/* Pairs already contain the lookahead tokens.  A separate list must then be equal to them. */
static kvb_status
keep_lookahead(struct kvb_event_batch *batch, struct kvb_engine_event *event, uint32_t lookahead)
{
    const size_t count = (size_t)lookahead * event->hash_count;
    const uint32_t *read = batch->tokens + batch->token_count;

    if (event->is_paired) {
        const uint32_t *known = batch->tokens + event->lookahead_at;
        const bool is_same =
            lookahead == event->lookahead && memcmp(known, read, count * sizeof *read) == 0;
        return is_same ? KVB_OK : KVB_BAD_INPUT;
    }
    event->lookahead = lookahead;
    event->lookahead_at = (uint32_t)batch->token_count;
    batch->token_count += count;
    return KVB_OK;
}

kvb_status kvb_engine_read_lookahead(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_lookahead);
    uint32_t lookahead = 0;
    uint32_t lists = 0;

    if (!fields->has[field_lookahead]) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_array(&cursor, &lists));
    if (event->token_count == 0 || event->hash_count == 0) {
        return KVB_OK; /* the event has no tokens, or no hashes */
    }
    if (lists != event->hash_count) {
        return KVB_BAD_INPUT;
    }
    /* Measured first, so that the reservation is of what the bytes can hold. */
    KVB_TRY(measure_lookahead(&cursor, lists, &lookahead));
    KVB_TRY(kvb_event_batch_reserve_tokens(batch, (size_t)lookahead * lists));
    KVB_TRY(take_lookahead(&cursor, lists, lookahead, batch->tokens + batch->token_count));
    return keep_lookahead(batch, event, lookahead);
}
