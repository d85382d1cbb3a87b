#include "core/limits.h"
#include "core/little_endian.h"
#include "stream/checkpoint/inside.h"
#include "stream/inside.h"
#include "stream/mirror/inside.h"
#include "stream/mirror/record.h"
#include "stream/mirror/shown.h"

/* The previous process may have used this many event ids in epochs after its last checkpoint.  A
 * new epoch begins after them, even if the clock was set back. */
static const uint64_t max_unknown_ids = 1 << 24;

struct section {
    uint32_t kind;
    size_t count;
    kvb_span payload; /* borrowed from restore.bytes */
};

struct restore {
    struct kvb_stream *stream;
    const struct kvb_checkpoint_source *source;
    struct kvb_buf bytes; /* owned: the current section */
    uint64_t chain;
    bool is_same; /* the mirror takes events as the saved one would */
    bool needs_epoch;
    struct kvb_checkpoint_refusal refusal;
};

static kvb_status refuse_checkpoint(struct restore *restore, enum kvb_checkpoint_rejection cause)
{
    restore->refusal.cause = cause;
    return KVB_BAD_INPUT;
}

/* Maps a status of the mirror or of a buffer to the cause of a refusal. */
static kvb_status classify_restore_status(struct restore *restore, kvb_status status)
{
    switch (status) {
    case KVB_OK:
        return KVB_OK;
    case KVB_NO_MEMORY:
        return refuse_checkpoint(restore, KVB_CHECKPOINT_NO_MEMORY);
    case KVB_TOO_LARGE:
        return refuse_checkpoint(restore, KVB_CHECKPOINT_TOO_LARGE);
    default:
        return refuse_checkpoint(restore, KVB_CHECKPOINT_INCONSISTENT);
    }
}

/* ---- Sections ---- */

/* Reads so many bytes of the source and appends them. */
static kvb_status pull(struct restore *restore, size_t bytes)
{
    KVB_TRY(classify_restore_status(restore, kvb_buf_reserve(&restore->bytes, bytes)));
    const kvb_status status = restore->source->read(
        restore->source->context, restore->bytes.data + restore->bytes.len, bytes);
    if (status != KVB_OK) {
        return refuse_checkpoint(
            restore, status == KVB_IO ? KVB_CHECKPOINT_UNREADABLE : KVB_CHECKPOINT_TORN);
    }
    restore->bytes.len += bytes;
    return KVB_OK;
}

static kvb_status next_section(struct restore *restore, struct section *section)
{
    kvb_buf_reset(&restore->bytes);
    KVB_TRY(pull(restore, section_header_bytes));
    const uint8_t *header = restore->bytes.data;
    const size_t bytes = kvb_le_get_u32(header + 12);

    section->kind = kvb_le_get_u32(header);
    section->count = kvb_le_get_u32(header + 8);
    const bool is_known = section->kind == section_head || section->kind == section_entries ||
                          section->kind == section_state || section->kind == section_tokens ||
                          section->kind == section_end;
    /* The kind and the length are not trusted before the hash is compared: they must only do no
     * harm. */
    if (!is_known || bytes > kvb_max_checkpoint_section_bytes) {
        return refuse_checkpoint(restore, KVB_CHECKPOINT_CORRUPT);
    }
    if (kvb_le_get_u32(header + 4) != kvb_checkpoint_format) {
        return refuse_checkpoint(restore, KVB_CHECKPOINT_FORMAT);
    }
    KVB_TRY(pull(restore, bytes + section_hash_bytes));
    const size_t len = restore->bytes.len - section_hash_bytes;
    const uint8_t *stored = restore->bytes.data + len;
    const struct kvb_hash128 hash =
        kvb_hash128((kvb_span){ .data = restore->bytes.data, .len = len }, restore->chain);
    restore->chain = hash.low;
    if (kvb_le_get_u64(stored) != hash.low || kvb_le_get_u64(stored + 8) != hash.high) {
        return refuse_checkpoint(restore, KVB_CHECKPOINT_CORRUPT);
    }
    section->payload =
        (kvb_span){ .data = restore->bytes.data + section_header_bytes, .len = bytes };
    return KVB_OK;
}

static kvb_status read_head(struct restore *restore)
{
    const struct checkpoint_identity identity = kvb_checkpoint_identity(restore->stream);
    struct section section = { 0 };

    KVB_TRY(next_section(restore, &section));
    if (section.kind != section_head || section.payload.len != head_bytes) {
        return refuse_checkpoint(restore, KVB_CHECKPOINT_CORRUPT);
    }
    for (size_t key = 0; key < checkpoint_keys; key++) {
        if (kvb_le_get_u64(section.payload.data + 8 * key) != identity.values[key]) {
            const struct kvb_detail before = restore->refusal.keys;
            kvb_detail_set(
                &restore->refusal.keys, "%s%s%s", before.text, before.text[0] ? ", " : "",
                kvb_checkpoint_key_name((enum checkpoint_key)key));
        }
    }
    return restore->refusal.keys.text[0] ? refuse_checkpoint(restore, KVB_CHECKPOINT_FOREIGN)
                                         : KVB_OK;
}

static kvb_status read_entries(struct restore *restore, const struct section *section)
{
    if (section->payload.len != section->count * kvb_mirror_record_bytes) {
        return refuse_checkpoint(restore, KVB_CHECKPOINT_INCONSISTENT);
    }
    for (size_t i = 0; i < section->count; i++) {
        const uint8_t *record = section->payload.data + i * kvb_mirror_record_bytes;
        KVB_TRY(classify_restore_status(
            restore, kvb_mirror_take_record(restore->stream->mirror, record)));
    }
    return KVB_OK;
}

/* ---- State ---- */

/* What was read of the mirror must have the counts and the digests that the saved one had. */
static kvb_status settle_mirror(struct restore *restore, const uint8_t *state)
{
    const struct kvb_stream *stream = restore->stream;
    const struct kvb_mirror *mirror = stream->mirror;
    const uint8_t *from = state + state_tiers;
    const struct kvb_digest_key key = { .worker_id = stream->options.worker_id,
                                        .dp_rank = stream->options.dp_rank,
                                        .seed = kvb_le_get_u64(state + state_digest_seed) };

    KVB_TRY(classify_restore_status(
        restore, kvb_mirror_settle(stream->mirror, state + state_ends, &key, &restore->is_same)));
    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++, from += state_tier_bytes) {
        const struct kvb_hash128 digest = kvb_mirror_digest(mirror, (enum kvb_tier)tier)->total;
        if (kvb_le_get_u64(from) != kvb_mirror_count(mirror)->held[tier] ||
            kvb_le_get_u64(from + 8) != digest.low || kvb_le_get_u64(from + 16) != digest.high) {
            return refuse_checkpoint(restore, KVB_CHECKPOINT_INCONSISTENT);
        }
    }
    return KVB_OK;
}

/* Fingerprints must be in the order of their ring slots, so that a later save writes the same
 * bytes.  That of the newest batch must be present, because the replay is requested from it. */
static kvb_status read_fingerprints(
    const struct section *section, uint64_t last_seq, struct kvb_fingerprint_ring *ring)
{
    const uint8_t *from = section->payload.data + state_fingerprints;
    size_t next_slot = 0;

    for (size_t i = 0; i < section->count; i++, from += fingerprint_bytes) {
        const uint64_t seq = kvb_le_get_u64(from);
        const struct kvb_hash128 hash = { .low = kvb_le_get_u64(from + 8),
                                          .high = kvb_le_get_u64(from + 16) };
        if (seq % kvb_fingerprints < next_slot) {
            return KVB_BAD_INPUT;
        }
        next_slot = seq % kvb_fingerprints + 1;
        kvb_fingerprints_put(ring, seq, hash, false);
    }
    return kvb_fingerprints_has(ring, last_seq) ? KVB_OK : KVB_BAD_INPUT;
}

static bool is_state_possible(const struct section *section)
{
    const uint8_t *state = section->payload.data;

    return section->payload.len >= state_fingerprints && section->count <= kvb_fingerprints &&
           section->payload.len == state_fingerprints + section->count * fingerprint_bytes &&
           kvb_le_get_u32(state + state_cause) < KVB_REASON_COUNT &&
           !(kvb_le_get_u32(state + state_flags) & ~(uint32_t)state_all_flags) &&
           kvb_le_get_u64(state + state_first_id) > 0 &&
           kvb_le_get_u64(state + state_last_id) >= kvb_le_get_u64(state + state_first_id) - 1 &&
           kvb_le_get_u64(state + state_last_id) < UINT64_MAX / 2;
}

/* Sets the stream's state.  Cannot fail. */
static void set_state(struct kvb_stream *stream, const uint8_t *state)
{
    const uint32_t flags = kvb_le_get_u32(state + state_flags);

    stream->has_last = true;
    stream->last_seq = kvb_le_get_u64(state + state_last_seq);
    stream->last_connection = UINT64_MAX; /* none: this process had no connection yet */
    stream->history = flags & state_is_complete ? history_whole : history_part;
    stream->list.has_skipped = flags & state_has_skipped;
    stream->list.has_unknown_event = flags & state_has_unknown_event;
    stream->is_withdrawn = flags & state_is_withdrawn;
    stream->has_objects = flags & state_has_objects;
    stream->has_hidden_pools = flags & state_has_hidden_pools;
    stream->life.has_misfit = flags & state_has_misfit;
    stream->life.lacks_salts = flags & state_lacks_salts;
    stream->life.is_ambiguous = flags & state_is_ambiguous;
    stream->life.has_hashes_of_pages = flags & state_has_hashes_of_pages;
    stream->life.has_reset = flags & state_has_reset;
    stream->life.cache = flags & state_is_cache_discarded ? cache_discarded : cache_published;
    if (flags & state_speculates) {
        stream->speculation[KVB_SPECULATION_OF_PAGE] = KVB_SPECULATION_UNDECIDED;
    }
    stream->first_number = flags & state_counts_from_zero  ? first_is_zero
                           : flags & state_counts_from_one ? first_is_one
                                                           : first_unknown;
    stream->life.removal_tiers = flags >> state_removals_shift & kvb_offload_tiers;
    stream->origin = flags & state_is_origin_found ? origin_found : origin_unknown;
    stream->cause = (enum kvb_stream_reason)kvb_le_get_u32(state + state_cause);
    memcpy(stream->epoch.bytes, state + state_epoch, sizeof stream->epoch.bytes);
    stream->digest_seed = kvb_le_get_u64(state + state_digest_seed);
    stream->epoch_first_id = kvb_le_get_u64(state + state_first_id);
    stream->last_id = kvb_le_get_u64(state + state_last_id);
    stream->ids_unknown = max_unknown_ids;
    if (stream->log) {
        kvb_event_log_clear(stream->log);
    }
    (void)kvb_stream_describe(stream);
}

/* Without them the engine's replay has the tokens, of as many blocks as it goes back. */
static kvb_status read_tokens(struct restore *restore, bool has_tokens)
{
    struct kvb_shown *shown = kvb_mirror_shown(restore->stream->mirror);
    struct section section = { .kind = section_tokens };
    uint8_t behind = 0;

    if (shown && !has_tokens) {
        kvb_detail_set(&restore->refusal.keys, "workers.republish");
        return refuse_checkpoint(restore, KVB_CHECKPOINT_FOREIGN);
    }
    /* They are found by the entries that were read before. */
    if (shown) {
        kvb_shown_note_restored(shown);
    }
    while (has_tokens && section.kind == section_tokens) {
        KVB_TRY(next_section(restore, &section));
        if (section.kind == section_tokens && shown) {
            KVB_TRY(classify_restore_status(restore, kvb_shown_load(shown, section.payload)));
        }
    }
    if (has_tokens && section.kind != section_end) {
        return refuse_checkpoint(restore, KVB_CHECKPOINT_INCONSISTENT);
    }
    /* Nothing may follow. */
    return restore->source->read(restore->source->context, &behind, sizeof behind) == KVB_OK
               ? refuse_checkpoint(restore, KVB_CHECKPOINT_TORN)
               : KVB_OK;
}

static kvb_status read_state(struct restore *restore, const struct section *section)
{
    struct kvb_stream *stream = restore->stream;
    uint8_t state[state_fingerprints];

    if (!is_state_possible(section)) {
        return refuse_checkpoint(restore, KVB_CHECKPOINT_INCONSISTENT);
    }
    /* A copy, because the sections of tokens take its place in memory. */
    memcpy(state, section->payload.data, sizeof state);
    KVB_TRY(classify_restore_status(
        restore,
        read_fingerprints(section, kvb_le_get_u64(state + state_last_seq), &stream->fingerprints)));
    KVB_TRY(settle_mirror(restore, state));
    KVB_TRY(read_tokens(restore, kvb_le_get_u32(state + state_flags) & state_has_tokens));
    /* Nothing can fail any more. */
    set_state(stream, state);
    /* Several children may wait for one parent.  The checkpoint does not contain their order. */
    restore->needs_epoch =
        stream->is_withdrawn || !restore->is_same || kvb_mirror_count(stream->mirror)->unrooted > 0;
    return KVB_OK;
}

/* ---- Restoring ---- */

/* The head, sections of entries, the state and what follows it. */
static kvb_status read_sections(struct restore *restore)
{
    struct section section = { .kind = section_entries };

    KVB_TRY(read_head(restore));
    KVB_TRY(next_section(restore, &section));
    while (section.kind == section_entries) {
        KVB_TRY(read_entries(restore, &section));
        KVB_TRY(next_section(restore, &section));
    }
    return section.kind == section_state ? read_state(restore, &section)
                                         : refuse_checkpoint(restore, KVB_CHECKPOINT_INCONSISTENT);
}

kvb_status kvb_stream_restore(
    struct kvb_stream *stream, const struct kvb_checkpoint_source *source, bool *out_needs_epoch,
    struct kvb_checkpoint_refusal *out_refusal)
{
    struct restore restore = { .stream = stream, .source = source };

    kvb_buf_init(
        &restore.bytes,
        kvb_max_checkpoint_section_bytes + section_header_bytes + section_hash_bytes);
    const kvb_status status = read_sections(&restore);
    kvb_buf_done(&restore.bytes);
    if (status != KVB_OK) { /* the stream as kvb_stream_new() left it */
        const struct kvb_digest_key key = { .worker_id = stream->options.worker_id,
                                            .dp_rank = stream->options.dp_rank,
                                            .seed = stream->digest_seed };
        kvb_mirror_restart(stream->mirror);
        kvb_mirror_begin_digest(stream->mirror, &key);
        kvb_fingerprints_clear(&stream->fingerprints);
        *out_refusal = restore.refusal;
        return status;
    }
    *out_needs_epoch = restore.needs_epoch;
    return KVB_OK;
}
