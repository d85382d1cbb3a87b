#include "wire/engine_batch.h"

#include "core/limits.h"
#include "wire/engine_fields.h"
#include "wire/mp_guard.h"

#include <string.h>

/* Where each field stands: its key in a map, its place in the array of each kind
 * of event (0 = it has none there; place 0 is the tag).  A new field is a row. */
/* clang-format off */
static const struct field_place {
    const char *key;
    uint8_t in_stored;
    uint8_t in_removed;
    uint8_t in_cleared;
    uint8_t in_pool; /* BlockStoreEvent, and as far as it goes BlockUpdateEvent */
} places[field_count] = {
    [field_block_hashes]      = { "block_hashes",        1, 1, 0, 0 },
    [field_seq_hashes]        = { "seq_hashes",          0, 0, 0, 0 }, /* the same by another name */
    [field_block_hash]        = { "block_hash",          0, 0, 0, 5 },
    [field_parent_block_hash] = { "parent_block_hash",   2, 0, 0, 6 },
    [field_parent_hash]       = { "parent_hash",         0, 0, 0, 0 }, /* likewise */
    [field_token_ids]         = { "token_ids",           3, 0, 0, 7 },
    [field_block_size]        = { "block_size",          4, 0, 0, 0 },
    [field_lora_id]           = { "lora_id",             5, 0, 0, 0 },
    [field_medium]            = { "medium",              6, 2, 1, 0 },
    [field_lora_name]         = { "lora_name",           7, 0, 0, 0 },
    [field_extra_keys]        = { "extra_keys",          8, 0, 0, 0 },
    [field_group_idx]         = { "group_idx",           9, 3, 0, 0 },
    [field_spec_kind]         = { "kv_cache_spec_kind", 10, 0, 0, 0 },
    [field_locality]          = { "locality",           12, 0, 0, 0 },
    [field_object_key]        = { "mooncake_key",        0, 0, 0, 1 },
    [field_replicas]          = { "replica_list",        0, 0, 0, 2 },
};
/* clang-format on */

typedef kvb_status (*event_reader)(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

static kvb_status read_stored(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    event->skip = kvb_engine_scope(fields);
    KVB_TRY(kvb_engine_read_group(fields, event));
    if (event->skip != KVB_SKIP_NONE) {
        return KVB_OK;
    }
    KVB_TRY(kvb_engine_read_medium(fields, event));
    KVB_TRY(kvb_engine_read_hashes(batch, fields, event));
    KVB_TRY(kvb_engine_read_tokens(batch, fields, event));
    KVB_TRY(kvb_engine_read_parent(fields, event));
    KVB_TRY(kvb_engine_read_lora(batch, fields, event));
    return kvb_engine_read_extra_keys(batch, fields, event);
}

static kvb_status read_removed(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    event->skip = kvb_engine_scope(fields); /* only maps say: arrays have no such place */
    KVB_TRY(kvb_engine_read_group(fields, event));
    if (event->skip != KVB_SKIP_NONE) {
        return KVB_OK;
    }
    KVB_TRY(kvb_engine_read_medium(fields, event));
    return kvb_engine_read_hashes(batch, fields, event);
}

static kvb_status read_cleared(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    (void)batch;
    event->all_tiers = !fields->has[field_medium];
    return kvb_engine_read_medium(fields, event);
}

/* ---- What one message says may be several events: all or, when it fails, none ---- */

typedef kvb_status (*event_adder)(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

static kvb_status add_event(
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
            KVB_TRY(add_event(batch, fields, event));
        }
    }
    return KVB_OK;
}

/* Stored where the replicas are; one that has none is no block. */
static kvb_status add_replicas(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    unsigned tiers = 0;

    KVB_TRY(kvb_engine_read_replicas(fields, &tiers));
    return tiers ? add_in_tiers(batch, fields, event, tiers) : KVB_BAD_INPUT;
}

/* Stored where the replicas are, first, so that the block is never nowhere on its way
 * from one tier to another; then removed from the other tiers. */
static kvb_status add_move(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    unsigned tiers = 0;

    KVB_TRY(kvb_engine_read_replicas(fields, &tiers));
    KVB_TRY(add_in_tiers(batch, fields, event, tiers));
    event->kind = KVB_EVENT_REMOVED;
    return add_in_tiers(batch, fields, event, kvb_engine_pool_tiers & ~tiers);
}

/* The events that are understood, by the tag of most engines and by Mooncake's
 * event_type, and what it costs when one cannot be read.  A new event is a row. */
/* clang-format off */
#define IN(column) offsetof(struct field_place, column)
static const struct event_form {
    const char *tag;
    const char *event_type;
    enum kvb_event_kind kind;
    enum kvb_skip when_bad;
    event_reader read;
    event_adder add;
    size_t place_at; /* offset of its column in struct field_place */
} forms[] = {
    { "BlockStored",      "stored",  KVB_EVENT_STORED,  KVB_SKIP_BAD_STORED,
      read_stored,                 add_event,    IN(in_stored) },
    { "BlockRemoved",     "removed", KVB_EVENT_REMOVED, KVB_SKIP_BAD_REMOVED,
      read_removed,                add_event,    IN(in_removed) },
    { "AllBlocksCleared", "cleared", KVB_EVENT_CLEARED, KVB_SKIP_BAD_REMOVED,
      read_cleared,                add_event,    IN(in_cleared) },
    { "BlockStoreEvent",  "",        KVB_EVENT_STORED,  KVB_SKIP_BAD_STORED,
      kvb_engine_read_pool_store,  add_replicas, IN(in_pool) },
    { "BlockUpdateEvent", "",        KVB_EVENT_STORED,  KVB_SKIP_BAD_REMOVED,
      kvb_engine_read_pool_update, add_move,     IN(in_pool) },
    { "RemoveAllEvent",   "",        KVB_EVENT_CLEARED, KVB_SKIP_BAD_REMOVED,
      read_cleared,                add_event,    IN(in_cleared) },
};
#undef IN
/* clang-format on */

static bool is_text(kvb_span text, const char *word)
{
    return text.len > 0 && text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

/* By its tag, or where that says nothing by its event_type; NULL: it is on no list. */
static const struct event_form *find_form(kvb_span tag, kvb_span event_type)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (is_text(tag, forms[i].tag)) {
            return &forms[i];
        }
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (is_text(event_type, forms[i].event_type)) {
            return &forms[i];
        }
    }
    return NULL;
}

/* ---- Finding the fields ---- */

static void
note_field(struct engine_fields *fields, enum engine_field field, const struct kvb_mp_cursor *at)
{
    fields->at[field] = *at;
    fields->has[field] = kvb_mp_next(at) != KVB_MP_NIL;
}

static uint8_t place_of(const struct event_form *form, enum engine_field field)
{
    return *((const uint8_t *)&places[field] + form->place_at);
}

/* Both leave the cursor behind the event when they find its form, so that long token
 * lists are walked once.
 *
 * [tag, fields...] */
static kvb_status find_in_array(
    struct kvb_mp_cursor *cursor, const struct event_form **out_form, struct engine_fields *fields)
{
    uint32_t count = 0;
    kvb_span tag = { 0 };

    KVB_TRY(kvb_mp_take_array(cursor, &count));
    if (count == 0 || kvb_mp_take_text(cursor, &tag) != KVB_OK) {
        return KVB_OK;
    }
    *out_form = find_form(tag, (kvb_span){ 0 });
    for (uint32_t place = 1; *out_form && place < count; place++) {
        for (int field = 0; field < field_count; field++) {
            if (place_of(*out_form, (enum engine_field)field) == place) {
                note_field(fields, (enum engine_field)field, cursor);
            }
        }
        KVB_TRY(kvb_mp_skip(cursor));
    }
    return KVB_OK;
}

/* The value when it is a text, else nothing: such a tag is an unknown one. */
static kvb_span text_at(const struct kvb_mp_cursor *cursor)
{
    struct kvb_mp_cursor ahead = *cursor;
    kvb_span text = { 0 };

    (void)kvb_mp_take_text(&ahead, &text);
    return text;
}

/* {"type": tag, key: field, ...} in any order; unknown keys are passed over. */
static kvb_status find_in_map(
    struct kvb_mp_cursor *cursor, const struct event_form **out_form, struct engine_fields *fields)
{
    uint32_t pairs = 0;
    kvb_span tag = { 0 };
    kvb_span event_type = { 0 };

    KVB_TRY(kvb_mp_take_map(cursor, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        kvb_span key = { 0 };
        if (kvb_mp_take_text(cursor, &key) != KVB_OK) {
            KVB_TRY(kvb_mp_skip(cursor));
        } else if (is_text(key, "type")) {
            tag = text_at(cursor);
        } else if (is_text(key, "event_type")) {
            event_type = text_at(cursor);
        }
        for (int field = 0; field < field_count; field++) {
            if (is_text(key, places[field].key)) {
                note_field(fields, (enum engine_field)field, cursor);
            }
        }
        KVB_TRY(kvb_mp_skip(cursor));
    }
    fields->has_event_type = event_type.len > 0;
    *out_form = find_form(tag, event_type);
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
                                      .group = event->group };
}

static kvb_status read_and_add(
    struct kvb_event_batch *batch, const struct event_form *form,
    const struct engine_fields *fields, struct kvb_engine_event *event)
{
    event->kind = form->kind;
    KVB_TRY(form->read(batch, fields, event));
    return event->skip == KVB_SKIP_NONE ? form->add(batch, fields, event) : KVB_OK;
}

/* An event that cannot be read leaves nothing but its skip. */
static kvb_status read_event(
    struct kvb_event_batch *batch, const struct event_form *form,
    const struct engine_fields *fields)
{
    const struct marks marks = mark(batch);
    struct kvb_engine_event event = { 0 };
    const kvb_status status = read_and_add(batch, form, fields, &event);

    if (status == KVB_OK && event.skip == KVB_SKIP_NONE) {
        return KVB_OK;
    }
    if (status != KVB_OK && status != KVB_BAD_INPUT) {
        return status;
    }
    roll_back(batch, &marks);
    event = skipped(status == KVB_OK ? event.skip : form->when_bad, &event);
    return add_event(batch, fields, &event);
}

static kvb_status take_event(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    const struct kvb_mp_cursor start = *cursor;
    const struct event_form *form = NULL;
    struct engine_fields fields = { 0 };
    struct kvb_engine_event unknown = { .kind = KVB_EVENT_SKIPPED, .skip = KVB_SKIP_UNKNOWN_EVENT };

    if (kvb_mp_next(cursor) == KVB_MP_ARRAY) {
        KVB_TRY(find_in_array(cursor, &form, &fields));
    } else if (kvb_mp_next(cursor) == KVB_MP_MAP) {
        KVB_TRY(find_in_map(cursor, &form, &fields));
    }
    batch->counts_from_one |= fields.has_event_type;
    if (form) {
        return read_event(batch, form, &fields);
    }
    *cursor = start;
    KVB_TRY(kvb_mp_skip(cursor));
    return add_event(batch, &fields, &unknown);
}

/* ---- The batch ---- */

static kvb_status take_events(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    uint32_t count = 0;

    KVB_TRY(kvb_mp_take_array(cursor, &count));
    if (count > kvb_max_batch_events) {
        return KVB_TOO_LARGE;
    }
    for (uint32_t i = 0; i < count; i++) {
        KVB_TRY(take_event(batch, cursor));
    }
    return KVB_OK;
}

/* A rank that is none (nil, negative, too large) is left out. */
static void take_rank(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    batch->has_rank = kvb_mp_take_u32(cursor, &batch->rank) == KVB_OK;
}

/* Seconds; Mooncake counts milliseconds, as an integer, and an integer of seconds is
 * below this for 3,000 years. */
static kvb_status take_timestamp(struct kvb_event_batch *batch, struct kvb_mp_cursor *cursor)
{
    static const double least_ms = 1e11;
    const bool is_integer = kvb_mp_next(cursor) == KVB_MP_INTEGER;

    KVB_TRY(kvb_mp_take_number(cursor, &batch->timestamp_s));
    if (is_integer && batch->timestamp_s >= least_ms) {
        batch->timestamp_s /= 1e3;
    }
    return KVB_OK;
}

/* [ts, events, rank?, ...] */
static kvb_status take_array(struct kvb_event_batch *batch, struct kvb_mp_cursor cursor)
{
    uint32_t count = 0;

    KVB_TRY(kvb_mp_take_array(&cursor, &count));
    if (count < 2) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(take_timestamp(batch, &cursor));
    KVB_TRY(take_events(batch, &cursor));
    if (count > 2) {
        take_rank(batch, &cursor);
    }
    return KVB_OK;
}

/* ts, events and rank of a map, in whatever order. */
struct batch_parts {
    struct kvb_mp_cursor ts;
    struct kvb_mp_cursor events;
    struct kvb_mp_cursor rank;
    bool has_rank;
};

static kvb_status find_parts(struct kvb_mp_cursor cursor, struct batch_parts *parts)
{
    uint32_t pairs = 0;
    bool has_ts = false;
    bool has_events = false;

    KVB_TRY(kvb_mp_take_map(&cursor, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        kvb_span key = { 0 };
        KVB_TRY(kvb_mp_take_text(&cursor, &key));
        if (is_text(key, "ts")) {
            parts->ts = cursor;
            has_ts = true;
        } else if (is_text(key, "events")) {
            parts->events = cursor;
            has_events = true;
        } else if (is_text(key, "data_parallel_rank")) {
            parts->rank = cursor;
            parts->has_rank = true;
        }
        KVB_TRY(kvb_mp_skip(&cursor));
    }
    return has_ts && has_events ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status take_map(struct kvb_event_batch *batch, struct kvb_mp_cursor cursor)
{
    struct batch_parts parts = { .has_rank = false };

    KVB_TRY(find_parts(cursor, &parts));
    KVB_TRY(take_timestamp(batch, &parts.ts));
    if (parts.has_rank) {
        take_rank(batch, &parts.rank);
    }
    return take_events(batch, &parts.events);
}

static kvb_status decode(kvb_span payload, struct kvb_event_batch *batch)
{
    const struct kvb_mp_cursor cursor = kvb_mp_cursor_of(payload);
    size_t used = 0;

    if (payload.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_mp_guard(payload, kvb_max_depth, &used));
    if (used != payload.len) {
        return KVB_BAD_INPUT; /* a second value, or garbage */
    }
    return kvb_mp_next(&cursor) == KVB_MP_MAP ? take_map(batch, cursor) : take_array(batch, cursor);
}

kvb_status kvb_engine_batch_decode(kvb_span payload, struct kvb_event_batch *batch)
{
    kvb_event_batch_reset(batch);
    const kvb_status status = decode(payload, batch);
    if (status != KVB_OK) {
        kvb_event_batch_reset(batch);
    }
    return status;
}
