#include "wire/engine/batch.h"

#include "core/limits.h"
#include "wire/engine/fields.h"

#include <string.h>

/* A text to compare with, and its length, which is compared first. */
struct word {
    const char *text;
    size_t len;
};
/* clang-format off */
#define WORD(text) { (text), sizeof(text) - 1 }

/* The key of each field in a map.  A new field is a row here, and an entry in the arrays below. */
static const struct word keys[field_count] = {
    [field_block_hashes]      = WORD("block_hashes"),
    [field_seq_hashes]        = WORD("seq_hashes"), /* another name of the same field */
    [field_block_hash]        = WORD("block_hash"),
    [field_parent_block_hash] = WORD("parent_block_hash"),
    [field_parent_hash]       = WORD("parent_hash"), /* another name of parent_block_hash */
    [field_token_ids]         = WORD("token_ids"),
    [field_block_size]        = WORD("block_size"),
    [field_lora_id]           = WORD("lora_id"),
    [field_medium]            = WORD("medium"),
    [field_lora_name]         = WORD("lora_name"),
    [field_extra_keys]        = WORD("extra_keys"),
    [field_group_idx]         = WORD("group_idx"),
    [field_spec_kind]         = WORD("kv_cache_spec_kind"),
    [field_locality]          = WORD("locality"),
    [field_object_key]        = WORD("mooncake_key"),
    [field_shared_key]        = WORD("object_key"),
    [field_tenant]            = WORD("tenant_id"),
    [field_replicas]          = WORD("replica_list"),
    [field_cache_salt]        = WORD("cache_salt"),
    [field_lookahead]         = WORD("lookahead_token_ids"),
    [field_mm_keys]           = WORD("mm_keys"),
    [field_spec_window]       = WORD("kv_cache_spec_sliding_window"),
    [field_model_name]        = WORD("model_name"),
    [field_model]             = WORD("model"), /* another name of model_name */
};

/* For each kind of event in array form: the fields after the tag, in order; field_count: a field
 * that is not used. */
static const uint8_t in_stored[] = {
    field_block_hashes, field_parent_block_hash, field_token_ids, field_block_size, field_lora_id,
    field_medium, field_lora_name, field_extra_keys, field_group_idx, field_spec_kind,
    field_spec_window, field_locality
};
enum {
    places_with_salts = 9,  /* elements of a Stored from its tag to extra_keys */
    places_with_group = 10, /* to group_idx */
    places_without_medium = 6
};
static const uint8_t in_removed[] = { field_block_hashes, field_medium, field_group_idx };
static const uint8_t in_cleared[] = { field_medium };
/* BlockStoreEvent; BlockUpdateEvent is a prefix of it */
static const uint8_t in_pool[] = {
    field_object_key, field_replicas, field_model_name, field_block_size, field_block_hash,
    field_parent_block_hash, field_token_ids
};
/* clang-format on */

typedef kvb_status (*event_reader)(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* Reads what identifies a Stored's blocks besides their tokens.  A sparse event contributes only
 * its hashes, because they cannot be assigned to tokens. */
static kvb_status read_identity(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    const bool has_lora = fields->has[field_lora_name] || fields->has[field_lora_id];
    const bool has_salt = fields->has[field_lora_name] || fields->has[field_cache_salt];

    /* vLLM's cache always writes the list, its offload connectors never do */
    event->has_extra_keys = fields->has[field_extra_keys];
    event->is_of_connector =
        fields->elements == 0 && fields->has[field_group_idx] && !event->has_extra_keys;
    /* most events have none of these fields, and a test is cheaper than a call */
    if (fields->has[field_lookahead]) {
        KVB_TRY(kvb_engine_read_lookahead(batch, fields, event));
    }
    if (fields->has[field_model_name] || fields->has[field_model]) {
        KVB_TRY(kvb_engine_read_model(batch, fields, event));
    }
    if (has_lora) {
        KVB_TRY(kvb_engine_read_lora(batch, fields, event));
    }
    if (has_salt) {
        KVB_TRY(kvb_engine_read_salt(batch, fields, event));
    }
    if (!event->is_sparse && fields->has[field_extra_keys]) {
        KVB_TRY(kvb_engine_read_extra_keys(batch, fields, event));
    }
    if (!event->is_sparse && fields->has[field_mm_keys]) {
        KVB_TRY(kvb_engine_read_mm_keys(batch, fields, event));
    }
    return KVB_OK;
}

/* Notes what the event leaves open about the device's blocks. */
static void note_what_is_unstated(
    const struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    if (event->tier != KVB_TIER_DEVICE || event->token_count == 0) {
        return; /* it names blocks that other events have described */
    }
    event->is_kind_unstated = event->group > 0 && !fields->has[field_spec_kind];
    event->lacks_salts = fields->elements > 0 && fields->elements < places_with_salts;
    event->is_hash_of_page =
        fields->elements == places_without_medium && kvb_engine_is_hash_of_page(batch, event);
}

[[gnu::hot]] static kvb_status read_stored_form(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    if (fields->has[field_shared_key]) {
        return kvb_engine_read_object(batch, fields, event);
    }
    /* The group comes first: a kind that no rule covers ends the event, whatever the rest is. */
    KVB_TRY(kvb_engine_read_group(fields, event));
    KVB_TRY(kvb_engine_read_window(fields, event));
    event->skip = kvb_engine_scope(fields, event);
    if (event->skip != KVB_SKIP_NONE) {
        return KVB_OK;
    }
    KVB_TRY(kvb_engine_read_medium(fields, event));
    KVB_TRY(kvb_engine_read_hashes(batch, fields, event));
    /* The tokens follow the hashes, because they are counted against them, and precede the parent,
     * because only a block with tokens may have the parent 0. */
    KVB_TRY(kvb_engine_read_tokens(batch, fields, event));
    KVB_TRY(kvb_engine_read_parent(batch, fields, event));
    note_what_is_unstated(batch, fields, event);
    return read_identity(batch, fields, event);
}

static kvb_status read_removed_form(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    if (fields->has[field_shared_key]) {
        return kvb_engine_read_object(batch, fields, event);
    }
    /* The window's length is not read: a removal names blocks, and needs no rule for them. */
    KVB_TRY(kvb_engine_read_group(fields, event));
    event->skip = kvb_engine_scope(fields, event); /* only in maps: arrays have no such field */
    if (event->skip != KVB_SKIP_NONE) {
        return KVB_OK;
    }
    KVB_TRY(kvb_engine_read_medium(fields, event));
    (void)kvb_engine_read_model(batch, fields, event); /* keep the event if the name is invalid */
    return kvb_engine_read_hashes(batch, fields, event);
}

static kvb_status read_cleared(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    event->all_tiers = !fields->has[field_medium];
    event->leaves_tiers = event->all_tiers && !fields->has_event_type;
    (void)kvb_engine_read_model(batch, fields, event);
    return kvb_engine_read_medium(fields, event);
}

/* A pool's clear is of all that it has. */
static kvb_status read_pool_cleared(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    KVB_TRY(read_cleared(batch, fields, event));
    event->leaves_tiers = false;
    return KVB_OK;
}

/* vLLM with tier_scoped_clear_events: a reset that leaves the offload tiers alone.  The device is
 * the default of its medium, which an encoder may leave out. */
static kvb_status read_tier_cleared(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    KVB_TRY(read_cleared(batch, fields, event));
    event->all_tiers = false;
    event->leaves_tiers = false;
    return KVB_OK;
}

/* ---- One engine event may become several: all of them or, on failure, none ---- */

typedef kvb_status (*event_adder)(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

[[gnu::hot]] static kvb_status add_engine_event(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    (void)fields;
    KVB_TRY(kvb_event_batch_reserve_events(batch, 1));
    batch->events[batch->event_count++] = *event;
    batch->unknown_media += event->is_medium_unknown;
    return KVB_OK;
}

static kvb_status add_in_tiers(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event, unsigned tiers)
{
    for (unsigned tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (tiers >> tier & 1) {
            event->tier = (enum kvb_tier)tier;
            KVB_TRY(add_engine_event(batch, fields, event));
        }
    }
    return KVB_OK;
}

/* Counts an event of which a replica was left out. */
static kvb_status add_bad_replica(struct kvb_event_batch *batch, const struct engine_fields *fields)
{
    struct kvb_engine_event skip = { .kind = KVB_EVENT_SKIPPED, .skip = KVB_SKIP_BAD_REPLICA };

    return add_engine_event(batch, fields, &skip);
}

/* Adds a Stored for each tier with a replica.  Without replicas the event is skipped. */
static kvb_status add_replicas(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    unsigned tiers = 0;
    bool has_bad = false;

    KVB_TRY(kvb_engine_read_replicas(fields, &tiers, &has_bad));
    if (tiers == 0) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(add_in_tiers(batch, fields, event, tiers));
    return has_bad ? add_bad_replica(batch, fields) : KVB_OK;
}

/* Adds a Stored for each tier with a replica, and then a Removed for each other tier.  In this
 * order a block that moves between tiers is always listed in at least one.  A replica that cannot
 * be read may be in any tier, and is listed in none. */
static kvb_status add_move(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    unsigned tiers = 0;
    bool has_bad = false;

    KVB_TRY(kvb_engine_read_replicas(fields, &tiers, &has_bad));
    KVB_TRY(add_in_tiers(batch, fields, event, tiers));
    event->kind = KVB_EVENT_REMOVED;
    KVB_TRY(add_in_tiers(batch, fields, event, kvb_engine_pool_tiers & ~tiers));
    return has_bad ? add_bad_replica(batch, fields) : KVB_OK;
}

/* The known events, by the tag of most engines and by Mooncake's event_type, and the skip reason
 * when one cannot be read.  A new event is a row. */
/* clang-format off */
#define PLACES(places) (places), sizeof(places)
static const struct event_form {
    struct word tag;
    struct word event_type;
    enum kvb_event_kind kind;
    enum kvb_skip when_bad;
    event_reader read;
    event_adder add;
    const uint8_t *places;
    size_t place_count;
} forms[] = {
    { WORD("BlockStored"),      WORD("stored"),  KVB_EVENT_STORED,  KVB_SKIP_BAD_STORED,
      read_stored_form,                 add_engine_event,    PLACES(in_stored) },
    { WORD("BlockRemoved"),     WORD("removed"), KVB_EVENT_REMOVED, KVB_SKIP_BAD_REMOVED,
      read_removed_form,                add_engine_event,    PLACES(in_removed) },
    { WORD("AllBlocksCleared"), WORD("cleared"), KVB_EVENT_CLEARED, KVB_SKIP_BAD_REMOVED,
      read_cleared,                add_engine_event,    PLACES(in_cleared) },
    { WORD("TierBlocksCleared"), WORD(""),       KVB_EVENT_CLEARED, KVB_SKIP_BAD_REMOVED,
      read_tier_cleared,           add_engine_event,    PLACES(in_cleared) },
    { WORD("BlockStoreEvent"),  WORD(""),        KVB_EVENT_STORED,  KVB_SKIP_BAD_STORED,
      kvb_engine_read_pool_store,  add_replicas, PLACES(in_pool) },
    { WORD("BlockUpdateEvent"), WORD(""),        KVB_EVENT_STORED,  KVB_SKIP_BAD_REMOVED,
      kvb_engine_read_pool_update, add_move,     PLACES(in_pool) },
    { WORD("RemoveAllEvent"),   WORD(""),        KVB_EVENT_CLEARED, KVB_SKIP_BAD_REMOVED,
      read_pool_cleared,           add_engine_event,    PLACES(in_cleared) },
};
#undef PLACES
/* clang-format on */

static bool is_form_word(kvb_span text, const struct word *word)
{
    return text.len > 0 && text.len == word->len && memcmp(text.data, word->text, text.len) == 0;
}

/* Finds an event by its tag, or without a known tag by its event_type; NULL: it is unknown. */
[[gnu::hot]] static const struct event_form *find_event_form(kvb_span tag, kvb_span event_type)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (is_form_word(tag, &forms[i].tag)) {
            return &forms[i];
        }
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (is_form_word(event_type, &forms[i].event_type)) {
            return &forms[i];
        }
    }
    return NULL;
}

/* ---- Finding the fields ---- */

/* The nesting depth left for values inside a batch, and inside its events. */
enum {
    depth_in_batch = kvb_max_depth - 1,
    depth_in_events = kvb_max_depth - 2,
    depth_in_event = kvb_max_depth - 3
};

/* find_in_array() and find_in_map() leave the cursor after the event when they find its form, so
 * that long token lists are walked only once.
 *
 * [tag, fields...] */
static kvb_status find_in_array(
    struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor, const struct event_form **out_form,
    struct engine_fields *fields)
{
    uint32_t count = 0;
    kvb_span tag = { 0 };

    KVB_TRY(kvb_mp_take_array(cursor, &count));
    if (count == 0 || kvb_mp_take_text(cursor, &tag) != KVB_OK) {
        return KVB_OK;
    }
    const struct event_form *form = find_event_form(tag, (kvb_span){ 0 });
    fields->elements = count;
    fields->has_bare_ids = count < places_with_group;
    /* Elements behind the known ones belong to a newer engine, and are stepped over. */
    for (uint32_t place = 0; form && place < count - 1; place++) {
        const unsigned field = place < form->place_count ? form->places[place] : field_count;
        KVB_TRY(
            field < field_count
                ? kvb_engine_find_field(
                      batch, fields, (enum engine_field)field, cursor, depth_in_event)
                : kvb_mp_skip_within(cursor, depth_in_event));
    }
    *out_form = form;
    return KVB_OK;
}

/* The value if it is a text, else an empty span, which matches no tag. */
static kvb_span text_at(const struct kvb_mp_cursor *cursor)
{
    struct kvb_mp_cursor ahead = *cursor;
    kvb_span text = { 0 };

    (void)kvb_mp_take_text(&ahead, &text);
    return text;
}

/* Returns field_count for an unknown key. */
static unsigned event_field(kvb_span key)
{
    unsigned field = 0;

    while (field < field_count && !is_form_word(key, &keys[field])) {
        field++;
    }
    return field;
}

/* {"type": tag, key: field, ...} in any order; unknown keys are skipped. */
static kvb_status find_in_map(
    struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor, const struct event_form **out_form,
    struct engine_fields *fields)
{
    uint32_t pairs = 0;
    kvb_span tag = { 0 };
    kvb_span event_type = { 0 };

    KVB_TRY(kvb_mp_take_map(cursor, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        /* The two tags may stand anywhere, so all fields are located before the form is known. */
        unsigned field = field_count;
        kvb_span key = { 0 };
        if (kvb_mp_take_text(cursor, &key) != KVB_OK) {
            KVB_TRY(kvb_mp_skip_within(cursor, depth_in_event));
        } else if (kvb_span_is(key, "type")) {
            tag = text_at(cursor);
        } else if (kvb_span_is(key, "event_type")) {
            event_type = text_at(cursor);
        } else {
            field = event_field(key);
        }
        KVB_TRY(
            field < field_count
                ? kvb_engine_find_field(
                      batch, fields, (enum engine_field)field, cursor, depth_in_event)
                : kvb_mp_skip_within(cursor, depth_in_event));
    }
    fields->has_event_type = event_type.len > 0;
    *out_form = find_event_form(tag, event_type);
    return KVB_OK;
}

/* ---- One event ---- */

struct marks {
    size_t hashes, tokens, extras, keys, text;
};

static struct marks mark(const struct kvb_event_batch *batch)
{
    return (struct marks){ batch->hash_count, batch->token_count, batch->extra_count,
                           batch->key_count, batch->text_len };
}

static void roll_back(struct kvb_event_batch *batch, const struct marks *marks)
{
    batch->hash_count = marks->hashes;
    batch->token_count = marks->tokens;
    batch->extra_count = marks->extras;
    batch->key_count = marks->keys;
    batch->text_len = marks->text;
}

static struct kvb_engine_event skipped(enum kvb_skip skip, const struct kvb_engine_event *event)
{
    return (struct kvb_engine_event){ .kind = KVB_EVENT_SKIPPED,
                                      .skip = skip,
                                      .has_group = event->has_group,
                                      .group = event->group,
                                      .group_kind = event->group_kind,
                                      .window_tokens = event->window_tokens };
}

static kvb_status read_and_add(
    struct kvb_event_batch *batch, const struct event_form *form,
    const struct engine_fields *fields, struct kvb_engine_event *event)
{
    event->kind = form->kind;
    KVB_TRY(form->read(batch, fields, event));
    return event->skip == KVB_SKIP_NONE ? form->add(batch, fields, event) : KVB_OK;
}

/* An event that cannot be read leaves only a skipped event in the batch. */
static kvb_status read_event_form(
    struct kvb_event_batch *batch, const struct event_form *form,
    const struct engine_fields *fields)
{
    const struct marks marks = mark(batch);
    struct kvb_engine_event event = { .is_array = fields->elements > 0 };
    const kvb_status status = read_and_add(batch, form, fields, &event);

    if (status == KVB_OK && event.skip == KVB_SKIP_NONE) {
        return KVB_OK;
    }
    /* Without memory, or above a ceiling, the whole batch ends; its sender repeats it. */
    if (status != KVB_OK && status != KVB_BAD_INPUT) {
        return status;
    }
    /* What it has added to the arrays goes; of its own members those of its group stay. */
    roll_back(batch, &marks);
    event = skipped(status == KVB_OK ? event.skip : form->when_bad, &event);
    return add_engine_event(batch, fields, &event);
}

static kvb_status add_unknown(struct kvb_event_batch *batch, const struct engine_fields *fields)
{
    struct kvb_engine_event unknown = { .kind = KVB_EVENT_SKIPPED, .skip = KVB_SKIP_UNKNOWN_EVENT };

    return add_engine_event(batch, fields, &unknown);
}

static kvb_status take_engine_event(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    const uint8_t *start = cursor->at;
    const struct event_form *form = NULL;
    struct engine_fields fields;

    kvb_engine_fields_begin(&fields, cursor->end);
    if (kvb_mp_next(cursor) == KVB_MP_ARRAY) {
        KVB_TRY(find_in_array(batch, cursor, &form, &fields));
    } else if (kvb_mp_next(cursor) == KVB_MP_MAP) {
        KVB_TRY(find_in_map(batch, cursor, &form, &fields));
    }
    batch->counts_from_one |= fields.has_event_type;
    /* The cursor stands behind an event of a known form. Of any other it may stand anywhere. */
    if (form) {
        return read_event_form(batch, form, &fields);
    }
    cursor->at = start;
    KVB_TRY(kvb_mp_skip_within(cursor, depth_in_events));
    return add_unknown(batch, &fields);
}

/* ---- The batch ---- */

[[gnu::hot]] static kvb_status
take_engine_events(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    uint32_t count = 0;

    KVB_TRY(kvb_mp_take_array(cursor, &count));
    if (count > kvb_max_batch_events) {
        return KVB_TOO_LARGE;
    }
    for (uint32_t i = 0; i < count; i++) {
        KVB_TRY(take_engine_event(batch, cursor));
    }
    return KVB_OK;
}

/* An invalid rank (nil, negative, too large) is ignored. */
static void take_rank(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    batch->has_rank = kvb_mp_next(cursor) == KVB_MP_INTEGER && /* often nil */
                      kvb_mp_take_u32(cursor, &batch->rank) == KVB_OK;
}

/* Reads a time in seconds.  Mooncake sends milliseconds as an integer.  An integer of seconds stays
 * below min_ms for 3,000 years. */
[[gnu::hot]] static kvb_status
take_timestamp(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    static const double min_ms = 1e11;
    const bool is_integer = kvb_mp_next(cursor) == KVB_MP_INTEGER;

    KVB_TRY(kvb_mp_take_number(cursor, &batch->timestamp_s));
    if (is_integer && batch->timestamp_s >= min_ms) {
        batch->timestamp_s /= 1e3;
    }
    return KVB_OK;
}

/* [ts, events, rank?, ...], decoded in one pass. */
static kvb_status take_array(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    uint32_t count = 0;
    uint32_t taken = 2;

    KVB_TRY(kvb_mp_take_array(cursor, &count));
    if (count < taken) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(take_timestamp(batch, cursor));
    KVB_TRY(take_engine_events(batch, cursor));
    /* A third element that is no rank is left for the loop, as are all behind it. */
    if (count > taken) {
        take_rank(batch, cursor);
        taken += batch->has_rank;
    }
    for (; taken < count; taken++) {
        KVB_TRY(kvb_mp_skip_within(cursor, depth_in_batch));
    }
    return KVB_OK;
}

/* ts, events and rank of a map, in any order. */
struct batch_parts {
    struct kvb_mp_cursor ts;
    struct kvb_mp_cursor events;
    struct kvb_mp_cursor rank;
    bool has_rank;
};

static kvb_status find_parts(struct kvb_mp_cursor *cursor, struct batch_parts *parts)
{
    uint32_t pairs = 0;
    bool has_ts = false;
    bool has_events = false;

    KVB_TRY(kvb_mp_take_map(cursor, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        kvb_span key = { 0 };
        KVB_TRY(kvb_mp_take_text(cursor, &key));
        if (kvb_span_is(key, "ts")) {
            parts->ts = *cursor;
            has_ts = true;
        } else if (kvb_span_is(key, "events")) {
            parts->events = *cursor;
            has_events = true;
        } else if (kvb_span_is(key, "data_parallel_rank")) {
            parts->rank = *cursor;
            parts->has_rank = true;
        }
        KVB_TRY(kvb_mp_skip_within(cursor, depth_in_batch));
    }
    return has_ts && has_events ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status take_map(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    struct batch_parts parts = { .has_rank = false };

    KVB_TRY(find_parts(cursor, &parts));
    /* Time and rank are read before the events, as in an array, wherever they stand. */
    KVB_TRY(take_timestamp(batch, &parts.ts));
    if (parts.has_rank) {
        take_rank(batch, &parts.rank);
    }
    return take_engine_events(batch, &parts.events);
}

static kvb_status decode_batch(kvb_span payload, struct kvb_event_batch *batch)
{
    struct kvb_mp_cursor cursor = kvb_mp_cursor_of(payload);

    if (payload.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(
        kvb_mp_next(&cursor) == KVB_MP_MAP ? take_map(batch, &cursor) : take_array(batch, &cursor));
    return cursor.at == cursor.end ? KVB_OK : KVB_BAD_INPUT; /* a second value, or garbage */
}

kvb_status kvb_engine_batch_decode(kvb_span payload, struct kvb_event_batch *batch)
{
    return kvb_engine_batch_decode_further(payload, (struct kvb_engine_habits){ 0 }, batch);
}

[[gnu::hot]] kvb_status kvb_engine_batch_decode_further(
    kvb_span payload, struct kvb_engine_habits habits, struct kvb_event_batch *batch)
{
    kvb_event_batch_reset(batch);
    batch->habits = habits;
    const kvb_status status = decode_batch(payload, batch);
    if (status != KVB_OK) {
        kvb_event_batch_reset(batch);
    }
    return status;
}
