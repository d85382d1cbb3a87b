#include "stream/checkpoint/checkpoint.h"

#include "core/little_endian.h"
#include "stream/checkpoint/inside.h"
#include "stream/inside.h"
#include "stream/mirror/inside.h"
#include "stream/mirror/record.h"
#include "stream/mirror/shown.h"

const char *kvb_checkpoint_rejection_name(enum kvb_checkpoint_rejection cause)
{
    static const char *const names[KVB_CHECKPOINT_FLAW_COUNT] = {
        [KVB_CHECKPOINT_UNREADABLE] = "unreadable", [KVB_CHECKPOINT_TORN] = "torn",
        [KVB_CHECKPOINT_CORRUPT] = "corrupt",       [KVB_CHECKPOINT_FORMAT] = "format",
        [KVB_CHECKPOINT_FOREIGN] = "foreign",       [KVB_CHECKPOINT_INCONSISTENT] = "inconsistent",
        [KVB_CHECKPOINT_TOO_LARGE] = "too_large",   [KVB_CHECKPOINT_NO_MEMORY] = "no_memory",
    };

    return cause < KVB_CHECKPOINT_FLAW_COUNT ? names[cause] : "";
}

const char *kvb_checkpoint_key_name(enum checkpoint_key key)
{
    static const char *const names[checkpoint_keys] = {
        [key_worker_id] = "workers.id",
        [key_dp_rank] = "dp_rank",
        [key_namespace] = "publish.namespace",
        [key_component] = "publish.component",
        [key_events] = "workers.events",
        [key_replay] = "workers.replay",
        [key_topic] = "workers.topic",
        [key_unknown_medium] = "workers.unknown_medium",
        [key_reannounce] = "publish.reannounce",
        [key_model] = "workers.model",
        [key_lora] = "workers.lora",
        [key_block_size] = "workers.block_size",
        [key_total_blocks] = "workers.total_blocks",
        [key_formats] = "publish.formats",
        [key_tiers] = "tiers",
        [key_hashes] = "hashes",
        [key_copies] = "publish.copies",
    };

    return key < checkpoint_keys ? names[key] : "";
}

struct checkpoint_identity kvb_checkpoint_identity(const struct kvb_stream *stream)
{
    const struct kvb_stream_options *options = &stream->options;
    const kvb_span model = { (const uint8_t *)options->model,
                             strnlen(options->model, sizeof options->model) };
    struct checkpoint_identity identity = {
        .values = { [key_worker_id] = options->worker_id,
                    [key_dp_rank] = options->dp_rank,
                    [key_model] = kvb_hash64(model, 0),
                    [key_lora] = kvb_hash64(stream->mirror->default_lora, 0),
                    [key_block_size] = options->block_size,
                    [key_total_blocks] = options->total_blocks,
                    [key_formats] =
                        options->formats - 1, /* 0 and 1: one format, as older files have it */
                    [key_tiers] = options->mirror.tiers,
                    [key_hashes] = options->mirror.hashes,
                    [key_copies] = options->mirror.copies },
    };

    _Static_assert(
        key_namespace + KVB_PLACE_REANNOUNCE == (int)key_reannounce, "a key for each place");
    memcpy(&identity.values[key_namespace], options->places, sizeof options->places);
    return identity;
}

/* ---- Sections ---- */

static kvb_status begin_section(struct kvb_buf *out, size_t *out_at)
{
    KVB_TRY(kvb_buf_reserve(out, section_header_bytes));
    *out_at = out->len;
    out->len += section_header_bytes;
    return KVB_OK;
}

static kvb_status end_section(
    struct kvb_checkpoint_save *save, enum section_kind kind, size_t count, size_t at,
    struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_reserve(out, section_hash_bytes));
    uint8_t *header = out->data + at;
    kvb_le_put_u32(header, kind);
    kvb_le_put_u32(header + 4, kvb_checkpoint_format);
    kvb_le_put_u32(header + 8, (uint32_t)count);
    kvb_le_put_u32(header + 12, (uint32_t)(out->len - at - section_header_bytes));
    const struct kvb_hash128 hash =
        kvb_hash128((kvb_span){ .data = header, .len = out->len - at }, save->chain);
    kvb_le_put_u64(out->data + out->len, hash.low);
    kvb_le_put_u64(out->data + out->len + 8, hash.high);
    out->len += section_hash_bytes;
    save->chain = hash.low;
    return KVB_OK;
}

static kvb_status put_head(struct kvb_checkpoint_save *save, struct kvb_buf *out)
{
    const struct checkpoint_identity identity = kvb_checkpoint_identity(save->stream);
    size_t at = 0;

    KVB_TRY(begin_section(out, &at));
    KVB_TRY(kvb_buf_reserve(out, head_bytes));
    for (size_t key = 0; key < checkpoint_keys; key++) {
        kvb_le_put_u64(out->data + out->len + 8 * key, identity.values[key]);
    }
    out->len += head_bytes;
    return end_section(save, section_head, 1, at, out);
}

/* ---- State ---- */

static uint32_t flags_of(const struct kvb_stream *stream)
{
    const bool speculates = /* as the engine's metrics page has shown */
        stream->speculation[KVB_SPECULATION_OF_PAGE] == KVB_SPECULATION_UNDECIDED;

    return (stream->history == history_whole ? state_is_complete : 0U) |
           (stream->list.has_skipped ? state_has_skipped : 0U) |
           (stream->list.has_unknown_event ? state_has_unknown_event : 0U) |
           (stream->is_withdrawn ? state_is_withdrawn : 0U) |
           (stream->has_objects ? state_has_objects : 0U) |
           (stream->origin == origin_found ? state_is_origin_found : 0U) |
           (stream->life.cache != cache_published ? state_is_cache_discarded : 0U) |
           (stream->life.has_misfit ? state_has_misfit : 0U) |
           (stream->life.lacks_salts ? state_lacks_salts : 0U) |
           (stream->life.is_ambiguous ? state_is_ambiguous : 0U) |
           (stream->life.has_hashes_of_pages ? state_has_hashes_of_pages : 0U) |
           (stream->has_hidden_pools ? state_has_hidden_pools : 0U) |
           (stream->life.has_reset ? state_has_reset : 0U) |
           (stream->first_number == first_is_zero ? state_counts_from_zero : 0U) |
           (stream->first_number == first_is_one ? state_counts_from_one : 0U) |
           (speculates ? state_speculates : 0U) |
           (kvb_mirror_shown(stream->mirror) ? state_has_tokens : 0U) |
           ((stream->life.removal_tiers & kvb_offload_tiers) << state_removals_shift);
}

static void put_fixed_state(const struct kvb_stream *stream, uint8_t *to)
{
    memset(to, 0, state_fingerprints);
    kvb_le_put_u64(to + state_last_seq, stream->last_seq);
    memcpy(to + state_epoch, stream->epoch.bytes, sizeof stream->epoch.bytes);
    kvb_le_put_u64(to + state_first_id, stream->epoch_first_id);
    kvb_le_put_u64(to + state_last_id, stream->last_id);
    kvb_le_put_u64(to + state_digest_seed, stream->digest_seed);
    kvb_le_put_u32(to + state_flags, flags_of(stream));
    kvb_le_put_u32(to + state_cause, stream->cause);
    kvb_mirror_put_ends(stream->mirror, to + state_ends);
    to += state_tiers;
    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++, to += state_tier_bytes) {
        const struct kvb_hash128 digest =
            kvb_mirror_digest(stream->mirror, (enum kvb_tier)tier)->total;
        kvb_le_put_u64(to, kvb_mirror_count(stream->mirror)->held[tier]);
        kvb_le_put_u64(to + 8, digest.low);
        kvb_le_put_u64(to + 16, digest.high);
    }
}

static kvb_status put_state(struct kvb_checkpoint_save *save, struct kvb_buf *out)
{
    const struct kvb_stream *stream = save->stream;
    size_t count = 0;
    size_t at = 0;

    KVB_TRY(begin_section(out, &at));
    KVB_TRY(kvb_buf_reserve(out, state_fingerprints + kvb_fingerprints * fingerprint_bytes));
    put_fixed_state(stream, out->data + out->len);
    out->len += state_fingerprints;
    for (size_t i = 0; i < kvb_fingerprints; i++) {
        const struct kvb_fingerprint *slot = kvb_fingerprints_at(&stream->fingerprints, i);
        if (slot) {
            kvb_le_put_u64(out->data + out->len, slot->seq);
            kvb_le_put_u64(out->data + out->len + 8, slot->hash.low);
            kvb_le_put_u64(out->data + out->len + 16, slot->hash.high);
            out->len += fingerprint_bytes;
            count++;
        }
    }
    return end_section(save, section_state, count, at, out);
}

/* ---- Saving ---- */

enum { token_bytes_a_step = 512 << 10 };

/* Whether the stream can be saved.  A list that no replay can prove is not saved, because it is
 * cleared when the engine connects.  A half-applied batch is not saved, because no sequence number
 * describes that state. */
static bool is_worth_it(const struct kvb_stream *stream)
{
    return stream->has_last && stream->options.has_replay && !stream->unfinished.is_there;
}

kvb_status kvb_checkpoint_save_begin(struct kvb_checkpoint_save *save, struct kvb_stream *stream)
{
    if (!is_worth_it(stream)) {
        return KVB_NOT_FOUND;
    }
    KVB_TRY(kvb_mirror_watch(stream->mirror));
    *save = (struct kvb_checkpoint_save){ .stream = stream };
    return KVB_OK;
}

void kvb_checkpoint_save_end(struct kvb_checkpoint_save *save)
{
    if (save->stream) {
        kvb_mirror_unwatch(save->stream->mirror);
    }
    *save = (struct kvb_checkpoint_save){ 0 };
}

/* Entries that are left, the state, and before all the head. */
static kvb_status
put_stream(struct kvb_checkpoint_save *save, size_t max_items, struct kvb_buf *out)
{
    size_t changed = 0;
    size_t records = 0;
    size_t at = 0;

    /* First of all: a mirror that was emptied has nothing to do with what was written of it. */
    KVB_TRY(kvb_mirror_changed(save->stream->mirror, &changed));
    if (!is_worth_it(save->stream)) {
        return KVB_CLOSED;
    }
    if (save->chain == 0) {
        KVB_TRY(put_head(save, out));
    }
    if (changed > 0) {
        KVB_TRY(begin_section(out, &at));
        KVB_TRY(
            kvb_mirror_put_changed(save->stream->mirror, max_items, &save->place, out, &records));
        KVB_TRY(end_section(save, section_entries, records, at, out));
    }
    /* All entries are written as they are now, and the state in the same step. */
    if (changed <= max_items) {
        KVB_TRY(put_state(save, out));
        save->has_state = true;
        kvb_mirror_unwatch(save->stream->mirror);
    }
    return KVB_OK;
}

kvb_status kvb_checkpoint_save_step(
    struct kvb_checkpoint_save *save, size_t max_items, struct kvb_buf *out, bool *out_is_done)
{
    const struct kvb_shown *shown = kvb_mirror_shown(save->stream->mirror);
    size_t at = 0;

    if (!save->has_state) {
        KVB_TRY(put_stream(save, max_items, out));
        *out_is_done = save->has_state && !shown;
        return KVB_OK;
    }
    /* The tokens of a block do not change, so they may be written after the state. */
    KVB_TRY(begin_section(out, &at));
    KVB_TRY(kvb_shown_save(shown, token_bytes_a_step, max_items, &save->tokens_place, out));
    KVB_TRY(end_section(save, section_tokens, 0, at, out));
    *out_is_done = save->tokens_place == SIZE_MAX;
    if (!*out_is_done) {
        return KVB_OK;
    }
    KVB_TRY(begin_section(out, &at));
    return end_section(save, section_end, 0, at, out);
}
