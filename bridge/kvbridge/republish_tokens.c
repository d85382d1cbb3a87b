#include "core/hash.h"
#include "core/little_endian.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"
#include "kvbridge/republish.h"
#include "kvbridge/shown.h"
#include "stream/checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

/* The tokens of a republished rank, in a file beside its checkpoint, which contains no tokens:
 *
 *     head     "KVBT" | version u32 | block size u32 | 0
 *     chunk    bytes u32 | XXH3 u64 of the records, its seed the number of the chunk | records
 *     ...      the last one has no bytes
 *
 * They are written after the checkpoint, so the file has tokens for every block in the checkpoint.
 * Tokens of other blocks are dropped when the file is read.  The records are those of
 * stream/mirror/shown.h; each is true by itself. */

enum {
    tokens_magic = 0x5442564b, /* "KVBT" */
    tokens_version = 2,
    head_bytes = 16,
    chunk_head_bytes = 12,
    part_bytes = 512 << 10,
    part_looks = 8192,
    max_chunk_bytes = 2 << 20
};

static struct kvb_checkpoint_name tokens_name_of(const struct bridge_rank *rank)
{
    struct kvb_checkpoint_name name;

    (void)snprintf(name.text, sizeof name.text, "%.50s.tokens", rank->checkpoint_name.text);
    return name;
}

void kvb_bridge_void_tokens(struct bridge_checkpoints *checkpoints, const struct bridge_rank *rank)
{
    const struct kvb_checkpoint_name name = tokens_name_of(rank);

    kvb_checkpoint_store_void(checkpoints->store, &name);
}

/* ---- Writing ---- */

static bool is_tokens_save_due(const struct bridge_rank *rank)
{
    return rank->republish && rank->is_tokens_due &&
           kvb_shown_count(kvb_bridge_shown_of(rank))->contents != rank->contents_saved;
}

/* The checkpoint of the rank is on the disk. */
void kvb_bridge_want_tokens(struct bridge_rank *rank)
{
    rank->is_tokens_due = rank->republish != NULL;
}

bool kvb_bridge_begin_tokens(struct kvb_bridge *bridge)
{
    struct bridge_tokens *tokens = &bridge->checkpoints->tokens;

    if (bridge->membership->republished_count == 0) {
        return false;
    }
    for (size_t i = 0; i < bridge->membership->rank_count && tokens->stage == BRIDGE_TOKENS_IDLE;
         i++) {
        struct bridge_rank *rank = bridge->membership->ranks[i];
        if (is_tokens_save_due(rank)) {
            *tokens =
                (struct bridge_tokens){ .stage = BRIDGE_TOKENS_MAKING,
                                        .rank = rank,
                                        .contents =
                                            kvb_shown_count(kvb_bridge_shown_of(rank))->contents };
        }
        rank->is_tokens_due = is_tokens_save_due(rank) && tokens->rank != rank;
    }
    return tokens->stage != BRIDGE_TOKENS_IDLE;
}

static kvb_status put_tokens_head(uint32_t block_size, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_reserve(out, head_bytes));
    uint8_t *at = out->data + out->len;
    kvb_le_put_u32(at, tokens_magic);
    kvb_le_put_u32(at + 4, tokens_version);
    kvb_le_put_u32(at + 8, block_size);
    kvb_le_put_u32(at + 12, 0);
    out->len += head_bytes;
    return KVB_OK;
}

static kvb_status put_chunk(struct bridge_tokens *tokens, struct kvb_buf *out)
{
    const bool was_last = tokens->place == SIZE_MAX;

    KVB_TRY(kvb_buf_reserve(out, chunk_head_bytes));
    const size_t head = out->len;
    out->len += chunk_head_bytes;
    if (!was_last) {
        KVB_TRY(kvb_shown_save(
            kvb_bridge_shown_of(tokens->rank), part_bytes, part_looks, &tokens->place, out));
    }
    const kvb_span records = { out->data + head + chunk_head_bytes,
                               out->len - head - chunk_head_bytes };
    if (records.len == 0 && !was_last) { /* an empty chunk would mean the end */
        out->len = head;
        return KVB_OK;
    }
    kvb_le_put_u32(out->data + head, (uint32_t)records.len);
    kvb_le_put_u64(out->data + head + 4, kvb_hash64(records, tokens->chunks++));
    return KVB_OK;
}

/* The parts that were handed over stay in a file that is not finished. */
static void give_up_tokens(struct bridge_tokens *tokens)
{
    *tokens = (struct bridge_tokens){ .stage = BRIDGE_TOKENS_IDLE };
}

static void make_tokens_part(struct kvb_bridge *bridge, struct kvb_buf *room)
{
    struct bridge_tokens *tokens = &bridge->checkpoints->tokens;
    const struct kvb_checkpoint_name name = tokens_name_of(tokens->rank);
    const bool is_first = !tokens->has_head;
    const bool is_last = tokens->place == SIZE_MAX;
    kvb_status status =
        is_first ? put_tokens_head(tokens->rank->part->worker->block_size, room) : KVB_OK;

    tokens->has_head = true;
    if (status == KVB_OK) {
        status = put_chunk(tokens, room);
    }
    if (status != KVB_OK) {
        give_up_tokens(tokens);
        return;
    }
    if (is_last) {
        tokens->stage = BRIDGE_TOKENS_STORING;
    }
    kvb_metric_add(&bridge->shown->metrics, kvb_bridge_checkpoint_bytes, room->len);
    kvb_checkpoint_store_push(
        bridge->checkpoints->store, &name,
        (is_first ? KVB_CHECKPOINT_FIRST : 0U) | (is_last ? KVB_CHECKPOINT_LAST : 0U));
}

bool kvb_bridge_take_tokens_outcome(struct kvb_bridge *bridge, struct kvb_detail *out_why)
{
    struct bridge_tokens *tokens = &bridge->checkpoints->tokens;
    const kvb_status outcome =
        kvb_checkpoint_store_take_outcome(bridge->checkpoints->store, out_why);

    if (outcome == KVB_AGAIN) {
        return true;
    }
    if (outcome == KVB_OK && tokens->rank) {
        tokens->rank->contents_saved = tokens->contents;
    }
    give_up_tokens(tokens);
    return outcome == KVB_OK || outcome == KVB_CLOSED;
}

void kvb_bridge_save_tokens(struct kvb_bridge *bridge)
{
    struct kvb_buf *room = kvb_checkpoint_store_room(bridge->checkpoints->store);

    if (room) {
        make_tokens_part(bridge, room);
    }
}

void kvb_bridge_postpone_tokens(struct bridge_tokens *tokens)
{
    if (tokens->stage == BRIDGE_TOKENS_MAKING) {
        tokens->rank->is_tokens_due = true;
        give_up_tokens(tokens);
    }
}

void kvb_bridge_drop_tokens(struct bridge_checkpoints *checkpoints, const struct bridge_rank *rank)
{
    struct bridge_tokens *tokens = &checkpoints->tokens;

    if (tokens->rank == rank && tokens->stage == BRIDGE_TOKENS_MAKING) {
        give_up_tokens(tokens);
    } else if (tokens->rank == rank) {
        tokens->rank = NULL; /* the result comes later */
    }
    if (rank->republish) {
        kvb_bridge_void_tokens(checkpoints, rank);
    }
}

/* ---- Reading ---- */

static kvb_status open_tokens(
    const struct kvb_bridge *bridge, const struct bridge_rank *rank,
    struct kvb_checkpoint_file *out_file)
{
    const struct kvb_checkpoint_name name = tokens_name_of(rank);

    return kvb_checkpoint_file_open(bridge->checkpoints->store, &name, out_file);
}

bool kvb_bridge_has_tokens(const struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    struct kvb_checkpoint_file file = { .fd = -1 };

    if (open_tokens(bridge, rank, &file) != KVB_OK) {
        return false;
    }
    kvb_checkpoint_file_close(&file);
    return true;
}

static kvb_status check_tokens_head(const struct kvb_checkpoint_source *source, uint32_t block_size)
{
    uint8_t head[head_bytes];

    KVB_TRY(source->read(source->context, head, sizeof head));
    return kvb_le_get_u32(head) == tokens_magic && kvb_le_get_u32(head + 4) == tokens_version &&
                   kvb_le_get_u32(head + 8) == block_size
               ? KVB_OK
               : KVB_BAD_INPUT;
}

/* KVB_NOT_FOUND: the chunk was the last. */
static kvb_status read_chunk(
    const struct kvb_checkpoint_source *source, uint64_t number, uint8_t *bytes,
    struct kvb_shown *shown)
{
    uint8_t head[chunk_head_bytes];

    KVB_TRY(source->read(source->context, head, sizeof head));
    const kvb_span records = { bytes, kvb_le_get_u32(head) };
    if (records.len == 0) {
        return KVB_NOT_FOUND;
    }
    if (records.len > max_chunk_bytes) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(source->read(source->context, bytes, records.len));
    return kvb_hash64(records, number) == kvb_le_get_u64(head + 4) ? kvb_shown_load(shown, records)
                                                                   : KVB_BAD_INPUT;
}

/* A bad file is no error: blocks without tokens are left out until they are stored again. */
void kvb_bridge_restore_tokens(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct kvb_checkpoint_file file = { .fd = -1 };
    uint8_t *bytes = NULL;
    uint64_t number = 0;

    if (!bridge->checkpoints->store || open_tokens(bridge, rank, &file) != KVB_OK) {
        return;
    }
    const struct kvb_checkpoint_source source = kvb_checkpoint_file_source(&file);
    bytes = malloc(max_chunk_bytes);
    if (bytes && check_tokens_head(&source, rank->part->worker->block_size) == KVB_OK) {
        while (read_chunk(&source, number, bytes, kvb_bridge_shown_of(rank)) == KVB_OK) {
            number++;
        }
    }
    free(bytes);
    kvb_checkpoint_file_close(&file);
}
