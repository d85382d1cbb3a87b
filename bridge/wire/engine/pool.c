#include "core/hash.h"
#include "core/limits.h"
#include "wire/engine/fields.h"

#include <ctype.h>

/* Objects of Mooncake's store, as described in its subscriber guide:
 *
 *     ["BlockStoreEvent", key, replicas, model_name, block_size, block_hash,
 *                         parent_block_hash, token_ids]
 *     ["BlockUpdateEvent", key, replicas]        replicas: [[medium, place]...]
 *
 * Unset texts are "", unset lists [].  As in the guide, a store event with fewer elements or
 * without a block_size is refused.  An object is one block: all token_ids are its tokens, and
 * block_size is in bytes.  An update lists all replicas that the object has from now on.  An update
 * without replicas means that the object was removed. */

const unsigned kvb_engine_pool_tiers =
    1U << KVB_TIER_HOST | 1U << KVB_TIER_DISK | 1U << KVB_TIER_EXTERNAL;

static bool is_unset(const struct kvb_mp_cursor *at)
{
    struct kvb_mp_cursor ahead = *at;
    kvb_span text = { 0 };
    uint64_t bits = 0;

    return (kvb_mp_take_text(&ahead, &text) == KVB_OK && text.len == 0) ||
           (kvb_mp_take_bits(&ahead, &bits) == KVB_OK && bits == 0);
}

/* Takes a hash as kvb_engine_take_hash() does; any other text is hashed.  *out_is_set: whether the
 * field is set. */
static kvb_status take_set_hash(
    const struct engine_fields *fields, enum engine_field field, uint64_t *out_hash,
    bool *out_is_set)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field);
    kvb_span text = { 0 };

    *out_is_set = fields->has[field] && !is_unset(&cursor);
    if (!*out_is_set || kvb_engine_take_hash(&cursor, out_hash) == KVB_OK) {
        return KVB_OK;
    }
    /* Neither a number nor digits: the text itself is the name, so its hash is the block's. */
    cursor = kvb_engine_cursor_at(fields, field);
    KVB_TRY(kvb_mp_take_text(&cursor, &text));
    *out_hash = kvb_hash64(text, 0);
    return KVB_OK;
}

/* Derives from the key the number of the object, and the block hash to use if the pool sends
 * none. */
static kvb_status read_pool_key(
    const struct engine_fields *fields, struct kvb_engine_event *event, uint64_t *out_hash)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_object_key);
    kvb_span text = { 0 };

    if (!fields->has[field_object_key]) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_mp_take_text(&cursor, &text));
    const uint64_t key = kvb_hash64(text, 0);
    event->key = key ? key : 1; /* 0 means none */
    if (kvb_engine_hash_of_digits(text, out_hash) != KVB_OK) {
        *out_hash = event->key;
    }
    return text.len > 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status
add_hash(struct kvb_event_batch *batch, struct kvb_engine_event *event, uint64_t hash)
{
    KVB_TRY(kvb_event_batch_reserve_hashes(batch, 1));
    event->hash_at = (uint32_t)batch->hash_count;
    event->hash_count = 1;
    batch->hashes[batch->hash_count++].value = hash;
    return KVB_OK;
}

static kvb_status check_store_form(const struct engine_fields *fields)
{
    enum { elements_of_store = 8 };
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_block_size);
    uint32_t bytes = 0;

    if (fields->elements > 0 && fields->elements < elements_of_store) {
        return KVB_BAD_INPUT;
    }
    return fields->has[field_block_size] && kvb_mp_take_u32(&cursor, &bytes) == KVB_OK && bytes > 0
               ? KVB_OK
               : KVB_BAD_INPUT;
}

static kvb_status read_one_block(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_token_ids);
    uint32_t count = 0;

    if (fields->has[field_token_ids]) {
        KVB_TRY(kvb_mp_take_array(&cursor, &count));
    }
    if (count > kvb_max_block_tokens) {
        return KVB_BAD_INPUT;
    }
    event->block_size = count;
    return kvb_engine_read_token_list(batch, fields, event);
}

kvb_status kvb_engine_read_pool_store(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    uint64_t hash = 0;
    uint64_t given = 0;
    bool is_given = false;

    KVB_TRY(check_store_form(fields));
    KVB_TRY(read_pool_key(fields, event, &hash));
    /* A pool may know the engine's hash; without it the key has to do. */
    KVB_TRY(take_set_hash(fields, field_block_hash, &given, &is_given));
    KVB_TRY(add_hash(batch, event, is_given ? given : hash));
    KVB_TRY(
        take_set_hash(fields, field_parent_block_hash, &event->parent.value, &event->has_parent));
    KVB_TRY(kvb_engine_read_model(batch, fields, event));
    return read_one_block(batch, fields, event);
}

kvb_status kvb_engine_read_pool_update(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    uint64_t hash = 0;

    KVB_TRY(read_pool_key(fields, event, &hash));
    (void)kvb_engine_read_model(batch, fields, event); /* keep the event if the name is invalid */
    return add_hash(batch, event, hash);
}

/* [medium, place] */
static kvb_status read_replica(struct kvb_mp_cursor replica, enum kvb_tier *out_tier)
{
    kvb_span medium = { 0 };
    kvb_span place = { 0 };
    uint32_t parts = 0;

    KVB_TRY(kvb_mp_take_array(&replica, &parts));
    if (parts != 2) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_mp_take_text(&replica, &medium));
    KVB_TRY(kvb_mp_take_text(&replica, &place));
    (void)kvb_engine_find_tier(medium, out_tier); /* an unknown medium is external */
    return KVB_OK;
}

kvb_status
kvb_engine_read_replicas(const struct engine_fields *fields, unsigned *out_tiers, bool *out_has_bad)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_replicas);
    uint32_t replicas = 0;
    unsigned tiers = 0;

    if (!fields->has[field_replicas]) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_mp_take_array(&cursor, &replicas));
    for (uint32_t i = 0; i < replicas; i++) {
        enum kvb_tier tier = KVB_TIER_EXTERNAL;
        /* One bad replica hides no other: the caller counts it. */
        if (read_replica(cursor, &tier) == KVB_OK) {
            tiers |= 1U << tier;
        } else {
            *out_has_bad = true;
        }
        KVB_TRY(kvb_mp_skip(&cursor));
    }
    *out_tiers = tiers & kvb_engine_pool_tiers;
    return KVB_OK;
}

/* ---- Keys of objects, see kvb_object_key_read() ---- */

enum { digits_of_hash = 16, digits_of_sha256 = 64 };

/* The part of the text from `from` to `to`. */
static kvb_span part_of(kvb_span text, size_t from, size_t to)
{
    return (kvb_span){ .data = text.data + from, .len = to - from };
}

/* Where the last part of the text begins, after the separator; 0: there is no separator. */
static size_t last_part(kvb_span text, char separator)
{
    size_t at = text.len;

    while (at > 0 && text.data[at - 1] != (uint8_t)separator) {
        at--;
    }
    return at;
}

static size_t digits_from(kvb_span text, size_t from, int (*is_digit)(int))
{
    size_t at = from;

    while (at < text.len && is_digit(text.data[at])) {
        at++;
    }
    return at - from;
}

/* Of a text that has hexadecimal digits only. */
static uint64_t number_of_hex(kvb_span digits)
{
    uint64_t hash = 0;

    (void)kvb_engine_hash_of_hex(digits, &hash);
    return hash;
}

static uint32_t family_of(kvb_span text, uint64_t form)
{
    const uint32_t family = (uint32_t)(kvb_hash64(text, form) & 0xffffff);

    return family ? family : 1;
}

/* Seeds, so that equal texts of different forms are different families. */
enum key_form { form_ranks = 1, form_pages = 2, form_bare = 3 };

/* MODEL@tp_rank:T@...@HASH */

/* True: the part is one of the ranks between model and hash, as in tp_rank:0 or pcp0. */
static bool is_rank(kvb_span part, bool *out_is_tensor_rank)
{
    static const char *const labels[] = {
        "tp_rank:", "head_or_tp_rank:", "pp_rank:", "group:", "pcp", "dcp"
    };
    enum { tensor_labels = 2 }; /* the first of the labels */

    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
        const size_t len = strlen(labels[i]);
        if (part.len > len && memcmp(part.data, labels[i], len) == 0 &&
            digits_from(part, len, isdigit) == part.len - len) {
            *out_is_tensor_rank |= i < tensor_labels;
            return true;
        }
    }
    return false;
}

static kvb_status read_ranks_form(kvb_span key, struct kvb_object_key *out_key)
{
    const size_t hash_at = last_part(key, '@');
    const kvb_span digits = part_of(key, hash_at, key.len);
    bool has_tensor_rank = false;

    if (hash_at == 0 || digits.len < digits_of_hash ||
        digits_from(digits, 0, isxdigit) != digits.len) {
        return KVB_BAD_INPUT;
    }
    /* The ranks stand right before the hash.  What precedes them ends with the model's name; a
     * model or a prefix may contain '@' itself. */
    const kvb_span labels = part_of(key, 0, hash_at - 1);
    kvb_span rest = labels;
    size_t at = last_part(rest, '@');
    while (at > 0 && is_rank(part_of(rest, at, rest.len), &has_tensor_rank)) {
        rest.len = at - 1;
        at = last_part(rest, '@');
    }
    if (!has_tensor_rank || at == rest.len) {
        return KVB_BAD_INPUT;
    }
    *out_key = (struct kvb_object_key){
        .hash = number_of_hex(part_of(digits, digits.len - digits_of_hash, digits.len)),
        .family = family_of(rest, form_ranks),
        .shard = (uint32_t)kvb_hash64(labels, form_ranks),
        .model = part_of(rest, at, rest.len),
    };
    return KVB_OK;
}

/* SHA256_RANK_k */

static kvb_status read_pages_form(kvb_span key, struct kvb_object_key *out_key)
{
    const size_t last = last_part(key, '_');
    size_t at = digits_of_sha256;

    if (digits_from(key, 0, isxdigit) != digits_of_sha256 || last + 1 != key.len ||
        (key.data[last] != 'k' && key.data[last] != 'v')) {
        return KVB_BAD_INPUT;
    }
    /* Each rank is a number between two underscores; there may be none, one or two. */
    while (at + 1 < last) {
        const size_t digits = digits_from(key, at + 1, isdigit);
        if (digits == 0 || key.data[at] != '_') {
            return KVB_BAD_INPUT;
        }
        at += 1 + digits;
    }
    if (at + 1 != last) {
        return KVB_BAD_INPUT;
    }
    *out_key = (struct kvb_object_key){
        .hash = number_of_hex(part_of(key, 0, digits_of_hash)),
        .family = family_of((kvb_span){ 0 }, form_pages),
        .shard = (uint32_t)kvb_hash64(part_of(key, digits_of_sha256, key.len), form_pages),
    };
    return KVB_OK;
}

/* The hash alone */

void kvb_object_key_of_hash(uint64_t hash, struct kvb_object_key *out_key)
{
    *out_key =
        (struct kvb_object_key){ .hash = hash, .family = family_of((kvb_span){ 0 }, form_bare) };
}

static kvb_status read_bare_form(kvb_span key, struct kvb_object_key *out_key)
{
    const bool is_negative = key.len > 1 && key.data[0] == '-' && isdigit(key.data[1]);
    uint64_t hash = 0;

    KVB_TRY(kvb_engine_hash_of_digits(
        is_negative ? part_of(key, 1, key.len) : key, &hash)); /* fails on an empty key, too */
    kvb_object_key_of_hash(is_negative ? 0 - hash : hash, out_key);
    return KVB_OK;
}

kvb_status kvb_object_key_read(kvb_span key, struct kvb_object_key *out_key)
{
    return read_ranks_form(key, out_key) == KVB_OK || read_pages_form(key, out_key) == KVB_OK
               ? KVB_OK
               : read_bare_form(key, out_key);
}

/* ---- Objects of Mooncake's main branch ----
 *
 *     {"event_type": "stored" or "removed", "tenant_id", "object_key", "medium",
 *      "seq_hashes", "block_hashes", ...}
 *
 * An object is known by tenant, key and medium.  Mooncake 0.3.14 leaves both lists of hashes empty:
 * then only the key names the block. */

/* Hashes of the same key of two tenants differ. */
static kvb_status read_object_number(
    const struct engine_fields *fields, struct kvb_engine_event *event, kvb_span *out_key)
{
    struct kvb_mp_cursor key_at = kvb_engine_cursor_at(fields, field_shared_key);
    struct kvb_mp_cursor tenant_at = kvb_engine_cursor_at(fields, field_tenant);
    kvb_span tenant = { 0 };

    KVB_TRY(kvb_mp_take_text(&key_at, out_key));
    if (fields->has[field_tenant]) {
        KVB_TRY(kvb_mp_take_text(&tenant_at, &tenant));
    }
    const uint64_t number =
        kvb_hash64(*out_key, kvb_hash64(tenant.len > 0 ? tenant : kvb_span_of("default"), 0));
    event->key = number ? number : 1; /* 0 means none */
    return KVB_OK;
}

/* The model's name in the key, unless the event states a model itself. */
static kvb_status read_object_model(
    struct kvb_event_batch *batch, const struct engine_fields *fields, kvb_span in_key,
    struct kvb_engine_event *event)
{
    (void)kvb_engine_read_model(batch, fields, event); /* keep the event if the name is invalid */
    return event->model_name.len > 0
               ? KVB_OK
               : kvb_engine_add_text(batch, in_key, event->model_name, &event->model_name);
}

kvb_status kvb_engine_read_object(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    const bool has_lists = fields->has[field_block_hashes] || fields->has[field_seq_hashes];
    struct kvb_object_key parts = { 0 };
    kvb_span key = { 0 };

    KVB_TRY(kvb_engine_read_medium(fields, event));
    if (!fields->has[field_medium]) { /* a store has no device */
        event->tier = KVB_TIER_EXTERNAL;
        event->is_medium_unknown = true;
    }
    KVB_TRY(read_object_number(fields, event, &key));
    if (has_lists) {
        KVB_TRY(kvb_engine_read_hashes(batch, fields, event));
    }
    const bool has_parts = kvb_object_key_read(key, &parts) == KVB_OK;
    if (event->hash_count > 1) { /* no object of one block: its blocks are known by their hashes */
        event->key = 0;
        return read_object_model(batch, fields, parts.model, event);
    }
    /* Nothing names its block: whether it is held stays unknown. */
    if (event->hash_count == 0 && !has_parts) {
        event->skip = KVB_SKIP_UNKNOWN_KEY;
        return KVB_OK;
    }
    if (event->hash_count == 0) {
        KVB_TRY(add_hash(batch, event, parts.hash));
        /* A key of an unknown form is one family and one shard: the object is the whole block. */
    } else if (!has_parts) {
        kvb_object_key_of_hash(batch->hashes[event->hash_at].value, &parts);
    }
    event->family = parts.family;
    event->group = parts.shard;
    return read_object_model(batch, fields, parts.model, event);
}
