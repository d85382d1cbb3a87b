#include "wire/router/heartbeat.h"

#include "core/limits.h"
#include "core/own.h"
#include "core/utf8.h"
#include "kvbridge.pb-c.h"
#include "wire/json/writer.h"
#include "wire/protobuf/message.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    max_message_bytes = 4096, /* ours have at most 3400 */
    max_fields = 128,         /* 47 kinds, and up to 16 labels; the rest is for newer versions */
    digest_words = 2,         /* per tier: low, high */
    rule_words = 4            /* per window: tokens, chunked, size, drop */
};

static const uint32_t states[KVB_STREAM_STATE_COUNT] = {
    [KVB_STREAM_SYNCING] = KVB__STREAM_HEARTBEAT__STATE__SYNCING,
    [KVB_STREAM_EXACT] = KVB__STREAM_HEARTBEAT__STATE__EXACT,
    [KVB_STREAM_PARTIAL] = KVB__STREAM_HEARTBEAT__STATE__PARTIAL,
    [KVB_STREAM_UNVERIFIED] = KVB__STREAM_HEARTBEAT__STATE__UNVERIFIED,
    [KVB_STREAM_STALE] = KVB__STREAM_HEARTBEAT__STATE__STALE,
    [KVB_STREAM_DOWN] = KVB__STREAM_HEARTBEAT__STATE__DOWN,
};

static const uint32_t reasons[KVB_REASON_COUNT] = {
    [KVB_REASON_NONE] = KVB__STREAM_HEARTBEAT__REASON__NONE,
    [KVB_REASON_CONNECTING] = KVB__STREAM_HEARTBEAT__REASON__CONNECTING,
    [KVB_REASON_REPLAYING] = KVB__STREAM_HEARTBEAT__REASON__REPLAYING,
    [KVB_REASON_GONE] = KVB__STREAM_HEARTBEAT__REASON__GONE,
    [KVB_REASON_HOLE] = KVB__STREAM_HEARTBEAT__REASON__HOLE,
    [KVB_REASON_POISON] = KVB__STREAM_HEARTBEAT__REASON__POISON,
    [KVB_REASON_SKIPPED] = KVB__STREAM_HEARTBEAT__REASON__SKIPPED,
    [KVB_REASON_UNROOTED] = KVB__STREAM_HEARTBEAT__REASON__UNROOTED,
    [KVB_REASON_NO_REPLAY] = KVB__STREAM_HEARTBEAT__REASON__NO_REPLAY,
    [KVB_REASON_REPLAY_FAILED] = KVB__STREAM_HEARTBEAT__REASON__REPLAY_FAILED,
    [KVB_REASON_UNKNOWN_EVENT] = KVB__STREAM_HEARTBEAT__REASON__UNKNOWN_EVENT,
    [KVB_REASON_NO_HEARTBEAT] = KVB__STREAM_HEARTBEAT__REASON__NO_HEARTBEAT,
    [KVB_REASON_MISSED_EVENTS] = KVB__STREAM_HEARTBEAT__REASON__MISSED_EVENTS,
    [KVB_REASON_JOINED_LATE] = KVB__STREAM_HEARTBEAT__REASON__JOINED_LATE,
    [KVB_REASON_DIFFERS] = KVB__STREAM_HEARTBEAT__REASON__DIFFERS,
    [KVB_REASON_SILENT] = KVB__STREAM_HEARTBEAT__REASON__SILENT,
    [KVB_REASON_ENGINE_AWAY] = KVB__STREAM_HEARTBEAT__REASON__ENGINE_AWAY,
    [KVB_REASON_BRIDGE_STOPPED] = KVB__STREAM_HEARTBEAT__REASON__BRIDGE_STOPPED,
    [KVB_REASON_NATS_AWAY] = KVB__STREAM_HEARTBEAT__REASON__NATS_AWAY,
    [KVB_REASON_MEMORY] = KVB__STREAM_HEARTBEAT__REASON__MEMORY,
    [KVB_REASON_TWO_BRIDGES] = KVB__STREAM_HEARTBEAT__REASON__TWO_BRIDGES,
    [KVB_REASON_GROUPS] = KVB__STREAM_HEARTBEAT__REASON__GROUPS,
    [KVB_REASON_NO_BASE] = KVB__STREAM_HEARTBEAT__REASON__NO_BASE,
    [KVB_REASON_LAGGING] = KVB__STREAM_HEARTBEAT__REASON__LAGGING,
    [KVB_REASON_AUDIT] = KVB__STREAM_HEARTBEAT__REASON__AUDIT,
    [KVB_REASON_ASLEEP] = KVB__STREAM_HEARTBEAT__REASON__ASLEEP,
    [KVB_REASON_OCCUPANCY] = KVB__STREAM_HEARTBEAT__REASON__OCCUPANCY,
    [KVB_REASON_NO_REMOVALS] = KVB__STREAM_HEARTBEAT__REASON__NO_REMOVALS,
    [KVB_REASON_SALTS] = KVB__STREAM_HEARTBEAT__REASON__SALTS,
    [KVB_REASON_AMBIGUOUS] = KVB__STREAM_HEARTBEAT__REASON__AMBIGUOUS,
    [KVB_REASON_RESET] = KVB__STREAM_HEARTBEAT__REASON__RESET,
    [KVB_REASON_UNANNOUNCED] = KVB__STREAM_HEARTBEAT__REASON__UNANNOUNCED,
    [KVB_REASON_NO_NUMBER] = KVB__STREAM_HEARTBEAT__REASON__NO_NUMBER,
    [KVB_REASON_OTHER_TOPIC] = KVB__STREAM_HEARTBEAT__REASON__OTHER_TOPIC,
    [KVB_REASON_CACHING_OFF] = KVB__STREAM_HEARTBEAT__REASON__CACHING_OFF,
    [KVB_REASON_NOT_FED] = KVB__STREAM_HEARTBEAT__REASON__NOT_FED,
    [KVB_REASON_SPECULATION] = KVB__STREAM_HEARTBEAT__REASON__SPECULATION,
};

/* What readers before these reasons are sent instead, because they refuse a heartbeat with a reason
 * that they do not know.  NONE: they know it. */
static const enum kvb_stream_reason older_reasons[KVB_REASON_COUNT] = {
    [KVB_REASON_ASLEEP] = KVB_REASON_ENGINE_AWAY,  [KVB_REASON_OCCUPANCY] = KVB_REASON_NO_BASE,
    [KVB_REASON_NO_REMOVALS] = KVB_REASON_NO_BASE, [KVB_REASON_NO_NUMBER] = KVB_REASON_NO_BASE,
    [KVB_REASON_OTHER_TOPIC] = KVB_REASON_NO_BASE, [KVB_REASON_CACHING_OFF] = KVB_REASON_NO_BASE,
    [KVB_REASON_NOT_FED] = KVB_REASON_NO_BASE,     [KVB_REASON_SALTS] = KVB_REASON_NO_BASE,
    [KVB_REASON_AMBIGUOUS] = KVB_REASON_NO_BASE,   [KVB_REASON_RESET] = KVB_REASON_NO_BASE,
    [KVB_REASON_UNANNOUNCED] = KVB_REASON_SKIPPED, [KVB_REASON_SPECULATION] = KVB_REASON_NO_BASE,
};

static const uint32_t format_numbers[KVB_FORMAT_COUNT] = {
    [KVB_FORMAT_JSON] = KVB__STREAM_HEARTBEAT__FORMAT__JSON,
    [KVB_FORMAT_PROTOBUF] = KVB__STREAM_HEARTBEAT__FORMAT__PROTOBUF,
};

static const uint32_t hash_kinds[KVB_HASHES_COUNT] = {
    [KVB_HASHES_CANONICAL] = KVB__STREAM_HEARTBEAT__HASHES__CANONICAL,
    [KVB_HASHES_ENGINE] = KVB__STREAM_HEARTBEAT__HASHES__ENGINE,
};

static const uint32_t roles[KVB_ROLE_COUNT] = {
    [KVB_ROLE_NONE] = KVB__STREAM_HEARTBEAT__ROLE__ROLE_UNSPECIFIED,
    [KVB_ROLE_PREFILL] = KVB__STREAM_HEARTBEAT__ROLE__ROLE_PREFILL,
    [KVB_ROLE_DECODE] = KVB__STREAM_HEARTBEAT__ROLE__ROLE_DECODE,
    [KVB_ROLE_BOTH] = KVB__STREAM_HEARTBEAT__ROLE__ROLE_BOTH,
};

static const uint32_t readiness[KVB_READY_COUNT] = {
    [KVB_READY_UNKNOWN] = KVB__STREAM_HEARTBEAT__READY__READY_UNKNOWN,
    [KVB_READY_NO] = KVB__STREAM_HEARTBEAT__READY__READY_NO,
    [KVB_READY_YES] = KVB__STREAM_HEARTBEAT__READY__READY_YES,
};

/* ---- encode ------------------------------------------------------------------ */

/* The columns of the tiers with blocks. */
struct tier_columns {
    uint32_t tiers[KVB_LIST_COUNT];
    uint64_t blocks[KVB_LIST_COUNT];
    uint64_t digests[KVB_LIST_COUNT * digest_words];
    size_t count;
};

static void fill_tiers(const struct kvb_heartbeat *heartbeat, struct tier_columns *columns)
{
    for (unsigned i = 0; i < KVB_LIST_COUNT; i++) {
        const struct kvb_tier_count *tier = &heartbeat->tiers[i];
        /* A list that is left out reads as this: no blocks, and the digest of none. */
        if (tier->blocks == 0 && tier->digest.low == 0 && tier->digest.high == 0) {
            continue;
        }
        const size_t at = columns->count++;
        columns->tiers[at] = kvb_proto_tiers[i];
        columns->blocks[at] = tier->blocks;
        columns->digests[at * digest_words] = tier->digest.low;
        columns->digests[at * digest_words + 1] = tier->digest.high;
    }
}

struct unverified_columns {
    uint32_t tiers[KVB_TIER_COUNT];
    uint32_t reasons[KVB_TIER_COUNT];
};

static void fill_unverified(
    const struct kvb_heartbeat *heartbeat, struct unverified_columns *columns,
    Kvb__StreamHeartbeat *message)
{
    size_t count = 0;

    for (unsigned tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (heartbeat->tier_reasons[tier] != KVB_REASON_NONE) {
            columns->tiers[count] = kvb_proto_tiers[tier];
            columns->reasons[count++] = reasons[heartbeat->tier_reasons[tier]];
        }
    }
    /* Also where there are none: the reader refuses columns of different lengths. */
    message->unverified_tiers = columns->tiers;
    message->n_unverified_tiers = count;
    message->unverified_reasons = columns->reasons;
    message->n_unverified_reasons = count;
}

struct shape_columns {
    uint32_t tiers[kvb_max_tier_shapes];
    uint32_t block_sizes[kvb_max_tier_shapes];
    uint32_t lookaheads[kvb_max_tier_shapes];
};

static void fill_shapes(
    const struct kvb_heartbeat *heartbeat, struct shape_columns *columns,
    Kvb__StreamHeartbeat *message)
{
    for (size_t i = 0; i < heartbeat->shape_count; i++) {
        const struct kvb_tier_shape *row = &heartbeat->shapes[i];
        columns->tiers[i] = kvb_proto_tiers[row->tier];
        columns->block_sizes[i] = row->shape.block_size;
        columns->lookaheads[i] = row->shape.lookahead;
    }
    message->shape_tiers = columns->tiers;
    message->n_shape_tiers = heartbeat->shape_count;
    message->shape_block_sizes = columns->block_sizes;
    message->n_shape_block_sizes = heartbeat->shape_count;
    message->shape_lookaheads = columns->lookaheads;
    message->n_shape_lookaheads = heartbeat->shape_count;
}

static void fill_windows(
    const struct kvb_heartbeat *heartbeat, uint32_t columns[kvb_max_windows * rule_words],
    Kvb__StreamHeartbeat *message)
{
    for (size_t i = 0; i < heartbeat->window_count; i++) {
        const struct kvb_window_rule *rule = &heartbeat->windows[i];
        columns[i * rule_words] = rule->tokens;
        columns[i * rule_words + 1] = rule->is_chunked;
        columns[i * rule_words + 2] = rule->size;
        columns[i * rule_words + 3] = rule->drop;
    }
    message->window_rules = columns;
    message->n_window_rules = heartbeat->window_count * rule_words;
    /* Only with rules, as the stream has set it: without any a reader refuses it. */
    message->without_full = heartbeat->is_without_full;
}

/* The columns of protobuf-c are not const. */
static void
fill_labels(struct kvb_labels *labels, char *pairs[kvb_max_labels], Kvb__StreamHeartbeat *message)
{
    struct kvb_label label;

    for (size_t at = 0, next = 0; kvb_labels_next(labels, &next, &label); at = next) {
        pairs[message->n_labels++] = labels->text + at;
    }
    message->labels = pairs;
}

static void fill_facts(
    struct kvb_worker_facts *facts, char *pairs[kvb_max_labels], Kvb__StreamHeartbeat *message)
{
    assert((unsigned)facts->role < KVB_ROLE_COUNT);
    assert((unsigned)facts->ready < KVB_READY_COUNT);
    message->draining = facts->is_draining;
    fill_labels(&facts->labels, pairs, message);
    message->address = facts->address;
    message->role = (Kvb__StreamHeartbeat__Role)roles[facts->role];
    message->pod = facts->pod;
    message->namespace_k8s = facts->pod_namespace;
    message->node = facts->node;
    message->ready = (Kvb__StreamHeartbeat__Ready)readiness[facts->ready];
    message->tokenize = facts->tokenize;
}

/* The columns of the names that the engine serves; its texts are those of the heartbeat. */
struct name_columns {
    Kvb__ServedNames message;
    char *names[kvb_max_served_names];
    char *adapters[kvb_max_served_names];
};

static void fill_names(
    struct kvb_served_names *names, struct name_columns *columns, Kvb__StreamHeartbeat *message)
{
    struct kvb_served_name one;

    /* Nothing known is told by leaving the field out, as bridges before it do. */
    if (!names->is_listed && names->count == 0 && names->left_out == 0) {
        return;
    }
    kvb__served_names__init(&columns->message);
    columns->message.names = columns->names;
    columns->message.adapters = columns->adapters;
    columns->message.listed = names->is_listed;
    columns->message.left_out = names->left_out;
    for (size_t at = 0; kvb_served_names_next(names, &at, &one);) {
        char *text = names->text + (one.name - names->text); /* writable */
        if (one.kind == KVB_SERVED_ADAPTER) {
            columns->adapters[columns->message.n_adapters++] = text;
        } else {
            columns->names[columns->message.n_names++] = text;
        }
    }
    message->served_names = &columns->message;
}

/* Readers of older versions would promise what the engine does not give. */
static bool is_beyond_older(const struct kvb_heartbeat *heartbeat)
{
    const bool claims =
        heartbeat->state == KVB_STREAM_EXACT || heartbeat->state == KVB_STREAM_PARTIAL;

    return claims && (heartbeat->speculative_drop > 0 || heartbeat->window_count > 0);
}

static void fill_trust(const struct kvb_heartbeat *heartbeat, Kvb__StreamHeartbeat *message)
{
    assert((unsigned)heartbeat->state < KVB_STREAM_STATE_COUNT);
    assert((unsigned)heartbeat->reason < KVB_REASON_COUNT);
    assert((unsigned)heartbeat->hashes < KVB_HASHES_COUNT);
    message->state = (Kvb__StreamHeartbeat__State)states[heartbeat->state];
    /* A number that older readers would refuse travels beside one that they know. */
    const enum kvb_stream_reason older = older_reasons[heartbeat->reason];
    message->reason =
        (Kvb__StreamHeartbeat__Reason)reasons[older != KVB_REASON_NONE ? older : heartbeat->reason];
    message->newer_reason = older != KVB_REASON_NONE ? reasons[heartbeat->reason] : 0;
    /* Older readers know neither the drop nor the rules; newer ones prefer the newer fields. */
    if (is_beyond_older(heartbeat)) {
        message->newer_state = states[heartbeat->state];
        message->newer_reason = reasons[heartbeat->reason];
        message->state = KVB__STREAM_HEARTBEAT__STATE__UNVERIFIED;
        message->reason = KVB__STREAM_HEARTBEAT__REASON__GROUPS;
    }
    message->hashes = (Kvb__StreamHeartbeat__Hashes)hash_kinds[heartbeat->hashes];
    message->doubtful = heartbeat->doubtful;
    if (heartbeat->has_missing_at_most) {
        message->missing_case = KVB__STREAM_HEARTBEAT__MISSING_MISSING_AT_MOST;
        message->missing_at_most = heartbeat->missing_at_most;
    }
}

/* numbers: a place for each format; borrowed by the message. */
static void fill_formats(
    const struct kvb_heartbeat *heartbeat, Kvb__StreamHeartbeat__Format *numbers,
    Kvb__StreamHeartbeat *message)
{
    message->formats = numbers;
    for (unsigned format = 0; format < KVB_FORMAT_COUNT; format++) {
        if (kvb_formats_have(heartbeat->formats, format)) {
            numbers[message->n_formats++] = (Kvb__StreamHeartbeat__Format)format_numbers[format];
        }
    }
    /* A heartbeat that names no format is refused. */
    assert(message->n_formats > 0);
    message->profile = numbers[0]; /* JSON if there is JSON: what P.kv_events has */
}

kvb_status kvb_heartbeat_encode(const struct kvb_heartbeat *heartbeat, struct kvb_buf *out)
{
    struct kvb_heartbeat copy = *heartbeat; /* protobuf-c's types need writable memory */
    struct tier_columns columns = { 0 };
    struct shape_columns shapes = { 0 };
    struct unverified_columns unverified = { 0 };
    uint32_t windows[kvb_max_windows * rule_words];
    Kvb__StreamHeartbeat__Format formats[KVB_FORMAT_COUNT] = { 0 };
    char *labels[kvb_max_labels];
    struct name_columns names;
    Kvb__StreamHeartbeat message;

    kvb__stream_heartbeat__init(&message);
    message.epoch.data = copy.epoch.bytes;
    message.epoch.len = sizeof copy.epoch.bytes;
    message.worker_id = copy.worker_id;
    message.dp_rank = copy.dp_rank;
    message.epoch_first_id = copy.epoch_first_id;
    message.last_id = copy.last_id;
    message.model = copy.model;
    message.block_size = copy.block_size;
    /* Readers before `lookahead` know one token behind a block, or none. */
    message.eagle = copy.lookahead > 0;
    message.lookahead = copy.lookahead;
    message.window_tokens = copy.window_tokens;
    message.period_ms = copy.period_ms;
    message.paired = copy.is_paired;
    message.speculative_drop = copy.speculative_drop;
    message.chunk_blocks = copy.chunk_blocks;
    message.store = copy.is_store;
    message.bye = copy.is_bye;
    message.publisher = copy.publisher;
    message.digest_seed = copy.digest_seed;
    /* The message borrows all these columns until it is packed. */
    fill_trust(&copy, &message);
    fill_formats(&copy, formats, &message);
    fill_tiers(&copy, &columns);
    fill_shapes(&copy, &shapes, &message);
    fill_windows(&copy, windows, &message);
    fill_unverified(&copy, &unverified, &message);
    fill_facts(&copy.facts, labels, &message);
    /* May leave `names` unset: the message does not point to it then. */
    fill_names(&copy.names, &names, &message);
    message.tiers = columns.tiers;
    message.n_tiers = columns.count;
    message.tier_blocks = columns.blocks;
    message.n_tier_blocks = columns.count;
    message.tier_digests = columns.digests;
    message.n_tier_digests = columns.count * digest_words;
    return kvb_proto_pack(&message.base, out);
}

/* ---- JSON -------------------------------------------------------------------- */

static void write_epoch(const kvb_epoch *epoch, struct kvb_json_writer *json)
{
    char text[2 * kvb_hex_digits + 1] = "";
    uint64_t halves[2];

    static_assert(sizeof halves == sizeof epoch->bytes, "an epoch is written as two numbers");
    memcpy(halves, epoch->bytes, sizeof halves);
    /* Swapped, so that the digits stand in the order of the bytes. */
    kvb_hex_write(text, __builtin_bswap64(halves[0]));
    kvb_hex_write(text + kvb_hex_digits, __builtin_bswap64(halves[1]));
    kvb_json_write_pair_text(json, "epoch", text);
}

static void write_tier_blocks(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    kvb_json_write_pair_begin(json, "blocks", '{');
    for (unsigned i = 0; i < KVB_LIST_COUNT; i++) {
        kvb_json_write_pair_u64(json, kvb_tier_name((enum kvb_tier)i), heartbeat->tiers[i].blocks);
    }
    kvb_json_write_end(json, '}');
}

void kvb_formats_json_write(unsigned formats, struct kvb_json_writer *json)
{
    kvb_json_write_pair_begin(json, "formats", '[');
    for (unsigned format = 0; format < KVB_FORMAT_COUNT; format++) {
        if (kvb_formats_have(formats, format)) {
            kvb_json_write_text(json, kvb_format_name(format));
        }
    }
    kvb_json_write_end(json, ']');
}

void kvb_unverified_tiers_json_write(
    const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    bool is_open = false;

    for (unsigned tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (heartbeat->tier_reasons[tier] == KVB_REASON_NONE) {
            continue;
        }
        /* Opened by the first such tier: without one there is no member. */
        if (!is_open) {
            kvb_json_write_pair_begin(json, "unverified_tiers", '{');
        }
        is_open = true;
        kvb_json_write_pair_text(
            json, kvb_tier_name((enum kvb_tier)tier),
            kvb_stream_reason_name(heartbeat->tier_reasons[tier]));
    }
    if (is_open) {
        kvb_json_write_end(json, '}');
    }
}

static void write_shapes(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    kvb_json_write_pair_begin(json, "shapes", '[');
    for (size_t i = 0; i < heartbeat->shape_count; i++) {
        const struct kvb_tier_shape *row = &heartbeat->shapes[i];
        kvb_json_write_begin(json, '{');
        kvb_json_write_pair_text(json, "tier", kvb_tier_name(row->tier));
        kvb_json_write_pair_u64(json, "block_size", row->shape.block_size);
        kvb_json_write_pair_u64(json, "lookahead", row->shape.lookahead);
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, ']');
}

/* Writes nothing where window_tokens says all. */
static void write_windows(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    if (heartbeat->window_count == 0) {
        return;
    }
    kvb_json_write_pair_begin(json, "windows", '[');
    for (size_t i = 0; i < heartbeat->window_count; i++) {
        const struct kvb_window_rule *rule = &heartbeat->windows[i];
        kvb_json_write_begin(json, '{');
        kvb_json_write_pair_u64(json, "tokens", rule->tokens);
        kvb_json_write_pair_bool(json, "chunked", rule->is_chunked);
        kvb_json_write_pair_u64(json, "size", rule->size);
        kvb_json_write_pair_u64(json, "drop", rule->drop);
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, ']');
    kvb_json_write_pair_bool(json, "without_full", heartbeat->is_without_full);
}

/* Writes digests as 32 hexadecimal digits, the high half first: a JSON number cannot have 128
 * bits. */
static void write_tier_digests(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    kvb_json_write_pair_begin(json, "digests", '{');
    for (unsigned i = 0; i < KVB_LIST_COUNT; i++) {
        const struct kvb_hash128 *digest = &heartbeat->tiers[i].digest;
        char text[2 * kvb_hex_digits + 1] = "";
        kvb_hex_write(text, digest->high);
        kvb_hex_write(text + kvb_hex_digits, digest->low);
        kvb_json_write_pair_text(json, kvb_tier_name((enum kvb_tier)i), text);
    }
    kvb_json_write_end(json, '}');
}

static void
write_heartbeat_missing(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    kvb_json_write_key(json, "missing_at_most");
    if (heartbeat->has_missing_at_most) {
        kvb_json_write_u64(json, heartbeat->missing_at_most);
    } else {
        kvb_json_write_null(json);
    }
}

/* Writes text, because readers that store numbers as doubles would round it. */
static void write_publisher(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    char text[kvb_hex_digits + 1] = "";

    kvb_hex_write(text, heartbeat->publisher);
    kvb_json_write_pair_text(json, "publisher", text);
}

static void write_set(struct kvb_json_writer *json, const char *key, const char *text)
{
    if (text[0] != '\0') {
        kvb_json_write_pair_text(json, key, text);
    }
}

/* Writes the known facts about the worker's address, role and pod. */
static void write_place(const struct kvb_worker_facts *facts, struct kvb_json_writer *json)
{
    write_set(json, "address", facts->address);
    write_set(json, "role", kvb_worker_role_name(facts->role));
    write_set(json, "pod", facts->pod);
    write_set(json, "namespace_k8s", facts->pod_namespace);
    write_set(json, "node", facts->node);
    if (facts->ready != KVB_READY_UNKNOWN) {
        kvb_json_write_pair_bool(json, "ready", facts->ready == KVB_READY_YES);
    }
    write_set(json, "tokenize", facts->tokenize);
}

void kvb_worker_facts_json_write(const struct kvb_worker_facts *facts, struct kvb_json_writer *json)
{
    if (facts->is_draining) {
        kvb_json_write_pair_bool(json, "draining", true);
    }
    if (facts->labels.count > 0) {
        kvb_json_write_key(json, "labels");
        kvb_labels_json_write(&facts->labels, json);
    }
    write_place(facts, json);
}

static void write_names_of_kind(
    const struct kvb_served_names *names, enum kvb_served_kind kind, const char *key,
    struct kvb_json_writer *json)
{
    struct kvb_served_name one;

    kvb_json_write_pair_begin(json, key, '[');
    for (size_t at = 0; kvb_served_names_next(names, &at, &one);) {
        if (one.kind == kind) {
            kvb_json_write_text(json, one.name);
        }
    }
    kvb_json_write_end(json, ']');
}

void kvb_served_names_json_write(const struct kvb_served_names *names, struct kvb_json_writer *json)
{
    /* Absent says that nothing is known; empty lists would say that there are no such names. */
    if (!names->is_listed && names->count == 0 && names->left_out == 0) {
        return;
    }
    kvb_json_write_pair_begin(json, "served_names", '{');
    write_names_of_kind(names, KVB_SERVED_NAME, "names", json);
    write_names_of_kind(names, KVB_SERVED_ADAPTER, "adapters", json);
    kvb_json_write_pair_bool(json, "listed", names->is_listed);
    kvb_json_write_pair_u64(json, "left_out", names->left_out);
    kvb_json_write_end(json, '}');
}

void kvb_labels_json_write(const struct kvb_labels *labels, struct kvb_json_writer *json)
{
    char name[kvb_label_name_bytes + 1];
    struct kvb_label label;

    kvb_json_write_begin(json, '{');
    for (size_t at = 0; kvb_labels_next(labels, &at, &label);) {
        /* The name ends at '=', not at a NUL. */
        (void)snprintf(name, sizeof name, "%.*s", (int)label.name_len, label.pair);
        kvb_json_write_pair_text(json, name, label.value);
    }
    kvb_json_write_end(json, '}');
}

void kvb_heartbeat_json_write(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", heartbeat->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", heartbeat->dp_rank);
    kvb_json_write_pair_text(json, "model", heartbeat->model);
    kvb_json_write_pair_u64(json, "block_size", heartbeat->block_size);
    kvb_json_write_pair_u64(json, "lookahead", heartbeat->lookahead);
    write_shapes(heartbeat, json);
    kvb_json_write_pair_u64(json, "window_tokens", heartbeat->window_tokens);
    write_windows(heartbeat, json);
    kvb_json_write_pair_u64(json, "period_ms", heartbeat->period_ms);
    kvb_json_write_pair_bool(json, "paired", heartbeat->is_paired);
    if (heartbeat->chunk_blocks > 0) {
        kvb_json_write_pair_u64(json, "chunk_blocks", heartbeat->chunk_blocks);
    }
    if (heartbeat->speculative_drop > 0) {
        kvb_json_write_pair_u64(json, "speculative_drop", heartbeat->speculative_drop);
    }
    kvb_json_write_pair_bool(json, "store", heartbeat->is_store);
    kvb_json_write_pair_text(json, "hashes", kvb_hashes_name(heartbeat->hashes));
    kvb_formats_json_write(heartbeat->formats, json);
    kvb_json_write_pair_text(json, "state", kvb_stream_state_name(heartbeat->state));
    kvb_json_write_pair_text(json, "reason", kvb_stream_reason_name(heartbeat->reason));
    kvb_json_write_pair_bool(json, "bye", heartbeat->is_bye);
    write_publisher(heartbeat, json);
    /* Both always, unlike in kvb_worker_facts_json_write(), where what is not set is left out. */
    kvb_json_write_pair_bool(json, "draining", heartbeat->facts.is_draining);
    kvb_json_write_key(json, "labels");
    kvb_labels_json_write(&heartbeat->facts.labels, json);
    write_place(&heartbeat->facts, json);
    kvb_served_names_json_write(&heartbeat->names, json);
    write_tier_blocks(heartbeat, json);
    kvb_unverified_tiers_json_write(heartbeat, json);
    kvb_json_write_pair_u64(json, "doubtful", heartbeat->doubtful);
    write_heartbeat_missing(heartbeat, json);
    kvb_json_write_pair_u64(json, "last_event_id", heartbeat->last_id);
    kvb_json_write_pair_u64(json, "epoch_first_id", heartbeat->epoch_first_id);
    write_epoch(&heartbeat->epoch, json);
    kvb_json_write_pair_u64(json, "digest_seed", heartbeat->digest_seed);
    write_tier_digests(heartbeat, json);
    kvb_json_write_end(json, '}');
}

/* ---- decode ------------------------------------------------------------------ */

/* Newer ones of an even newer version: the older ones in their place still hold. */
static void read_newer(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    unsigned reason = 0;
    unsigned state = 0;

    if (message->newer_state != 0) {
        if (kvb_proto_number_find(states, KVB_COUNT_OF(states), message->newer_state, &state) ==
                KVB_OK &&
            kvb_proto_number_find(reasons, KVB_COUNT_OF(reasons), message->newer_reason, &reason) ==
                KVB_OK) {
            heartbeat->state = (enum kvb_stream_state)state;
            heartbeat->reason = (enum kvb_stream_reason)reason;
        }
        /* A newer state without a newer reason would pair what does not belong together. */
        return;
    }
    if (message->newer_reason != 0 &&
        kvb_proto_number_find(reasons, KVB_COUNT_OF(reasons), message->newer_reason, &reason) ==
            KVB_OK) {
        heartbeat->reason = (enum kvb_stream_reason)reason;
    }
}

static void read_format(uint32_t number, struct kvb_heartbeat *heartbeat)
{
    unsigned format = 0;

    if (kvb_proto_number_find(format_numbers, KVB_FORMAT_COUNT, number, &format) == KVB_OK) {
        heartbeat->formats |= 1U << format;
    }
}

/* An older bridge names one format, in `profile`.  Formats of a newer version are left out. */
static kvb_status read_formats(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    for (size_t i = 0; i < message->n_formats; i++) {
        read_format(message->formats[i], heartbeat);
    }
    if (message->n_formats == 0) {
        read_format(message->profile, heartbeat);
    }
    return heartbeat->formats != 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_trust(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    unsigned state = 0;
    unsigned reason = 0;
    unsigned hashes = 0;

    KVB_TRY(kvb_proto_number_find(states, KVB_COUNT_OF(states), message->state, &state));
    KVB_TRY(kvb_proto_number_find(reasons, KVB_COUNT_OF(reasons), message->reason, &reason));
    KVB_TRY(kvb_proto_number_find(hash_kinds, KVB_COUNT_OF(hash_kinds), message->hashes, &hashes));
    heartbeat->state = (enum kvb_stream_state)state;
    heartbeat->reason = (enum kvb_stream_reason)reason;
    heartbeat->hashes = (enum kvb_hashes)hashes;
    /* Last: it replaces what older readers would see by what this one knows. */
    read_newer(message, heartbeat);
    return KVB_OK;
}

/* Tiers and reasons of a newer version are left out and shown as no_removals, respectively. */
static kvb_status
read_unverified(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    if (message->n_unverified_reasons != message->n_unverified_tiers) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < message->n_unverified_tiers; i++) {
        const uint32_t number = message->unverified_reasons[i];
        unsigned reason = KVB_REASON_NONE;
        unsigned tier = 0;
        if (kvb_proto_number_find(
                kvb_proto_tiers, KVB_TIER_COUNT, message->unverified_tiers[i], &tier) != KVB_OK) {
            /* A tier of a newer version is no list of this reader. */
            continue;
        }
        /* A reason of a newer version still says that the list is not proven. */
        if (kvb_proto_number_find(reasons, KVB_COUNT_OF(reasons), number, &reason) != KVB_OK ||
            reason == KVB_REASON_NONE) {
            reason = KVB_REASON_NO_REMOVALS;
        }
        heartbeat->tier_reasons[tier] = (enum kvb_stream_reason)reason;
    }
    return KVB_OK;
}

static kvb_status read_tiers(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    bool seen[KVB_LIST_COUNT] = { 0 };

    if (message->n_tier_blocks != message->n_tiers ||
        message->n_tier_digests != message->n_tiers * digest_words) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < message->n_tiers; i++) {
        unsigned tier = 0;
        /* An unknown list with blocks refuses the heartbeat, unlike in read_unverified(). */
        KVB_TRY(kvb_proto_number_find(kvb_proto_tiers, KVB_LIST_COUNT, message->tiers[i], &tier));
        if (seen[tier]) {
            return KVB_BAD_INPUT;
        }
        seen[tier] = true;
        heartbeat->tiers[tier] = (struct kvb_tier_count){
            .blocks = message->tier_blocks[i],
            .digest = { .low = message->tier_digests[i * digest_words],
                        .high = message->tier_digests[i * digest_words + 1] },
        };
    }
    return KVB_OK;
}

/* Refuses more shapes than a stream may have, and blocks of 0 tokens: a query is hashed once for
 * each shape. */
static kvb_status read_shapes(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    if (message->n_shape_tiers > kvb_max_tier_shapes ||
        message->n_shape_block_sizes != message->n_shape_tiers ||
        message->n_shape_lookaheads != message->n_shape_tiers ||
        heartbeat->lookahead > kvb_max_lookahead_tokens) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < message->n_shape_tiers; i++) {
        unsigned tier = 0;
        const struct kvb_block_shape shape = { .block_size = message->shape_block_sizes[i],
                                               .lookahead = message->shape_lookaheads[i] };
        KVB_TRY(
            kvb_proto_number_find(kvb_proto_tiers, KVB_TIER_COUNT, message->shape_tiers[i], &tier));
        if (shape.block_size == 0 || shape.lookahead > kvb_max_lookahead_tokens) {
            return KVB_BAD_INPUT;
        }
        heartbeat->shapes[i] = (struct kvb_tier_shape){ (enum kvb_tier)tier, shape };
    }
    heartbeat->shape_count = message->n_shape_tiers;
    return KVB_OK;
}

/* Refuses rules that no lookup can follow. */
static kvb_status read_windows(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    if (message->n_window_rules % rule_words != 0 ||
        message->n_window_rules > (size_t)kvb_max_windows * rule_words ||
        (message->without_full && message->n_window_rules == 0)) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < message->n_window_rules; i += rule_words) {
        const uint32_t *words = &message->window_rules[i];
        /* A lookup goes in steps of `size` blocks: none, or more tokens than 32 bits, is no step.
         */
        if (words[0] == 0 || words[1] > 1 || words[2] == 0 || words[2] > kvb_max_block_tokens ||
            words[3] > kvb_max_speculative_drop ||
            (uint64_t)words[2] * heartbeat->block_size > UINT32_MAX) {
            return KVB_BAD_INPUT;
        }
        heartbeat->windows[heartbeat->window_count++] = (struct kvb_window_rule){
            .tokens = words[0], .is_chunked = words[1] == 1, .size = words[2], .drop = words[3]
        };
    }
    heartbeat->is_without_full = message->without_full;
    /* Sizes of rules are in blocks of block_size, so that rules need one. */
    return message->n_window_rules == 0 || heartbeat->block_size > 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_labels(const Kvb__StreamHeartbeat *message, struct kvb_labels *labels)
{
    for (size_t i = 0; i < message->n_labels; i++) {
        if (kvb_labels_add_pair(labels, message->labels[i], NULL) != KVB_OK) {
            return KVB_BAD_INPUT;
        }
    }
    return KVB_OK;
}

/* Plain text of fewer than `size` bytes. */
static kvb_status read_plain(const char *text, char *out, size_t size)
{
    const size_t len = strlen(text);

    if (len >= size || !kvb_utf8_is_plain(text)) {
        return KVB_BAD_INPUT;
    }
    memcpy(out, text, len + 1);
    return KVB_OK;
}

/* Returns 0 for a number of a newer version, so that the rest of the heartbeat is still read. */
static unsigned read_known(const uint32_t *numbers, size_t count, uint32_t value)
{
    unsigned place = 0;

    return kvb_proto_number_find(numbers, count, value, &place) == KVB_OK ? place : 0;
}

static kvb_status read_facts(const Kvb__StreamHeartbeat *message, struct kvb_worker_facts *facts)
{
    KVB_TRY(read_plain(message->address, facts->address, sizeof facts->address));
    KVB_TRY(read_plain(message->pod, facts->pod, sizeof facts->pod));
    KVB_TRY(read_plain(message->namespace_k8s, facts->pod_namespace, sizeof facts->pod_namespace));
    KVB_TRY(read_plain(message->node, facts->node, sizeof facts->node));
    if (kvb_worker_tokenize_is_valid(message->tokenize)) { /* another one is of no use */
        memcpy(facts->tokenize, message->tokenize, strlen(message->tokenize) + 1);
    }
    /* Labels before settling: role and address of an old bridge are among them. */
    KVB_TRY(read_labels(message, &facts->labels));
    facts->role = (enum kvb_worker_role)read_known(roles, KVB_ROLE_COUNT, message->role);
    facts->ready = (enum kvb_worker_ready)read_known(readiness, KVB_READY_COUNT, message->ready);
    facts->is_draining = message->draining;
    /* An old bridge sends role and address as labels.  If a field is set too, it is used. */
    (void)kvb_worker_facts_settle(facts, NULL);
    return KVB_OK;
}

static kvb_status read_served(
    char *const *texts, size_t count, enum kvb_served_kind kind, struct kvb_served_names *names)
{
    for (size_t i = 0; i < count; i++) {
        if (kvb_served_names_add(names, kind, kvb_span_of(texts[i])) != KVB_OK) {
            /* Also too many names: a bridge counts in left_out what has no room. */
            return KVB_BAD_INPUT;
        }
    }
    return KVB_OK;
}

static kvb_status
read_served_names(const Kvb__StreamHeartbeat *message, struct kvb_served_names *names)
{
    const Kvb__ServedNames *served = message->served_names;

    if (!served) {
        return KVB_OK;
    }
    KVB_TRY(read_served(served->names, served->n_names, KVB_SERVED_NAME, names));
    KVB_TRY(read_served(served->adapters, served->n_adapters, KVB_SERVED_ADAPTER, names));
    names->is_listed = served->listed;
    names->left_out = served->left_out;
    return KVB_OK;
}

static kvb_status read_names(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *heartbeat)
{
    if (message->worker_id > INT64_MAX || message->epoch.len != sizeof heartbeat->epoch.bytes) {
        return KVB_BAD_INPUT;
    }
    memcpy(heartbeat->epoch.bytes, message->epoch.data, sizeof heartbeat->epoch.bytes);
    return read_plain(message->model, heartbeat->model, sizeof heartbeat->model);
}

static kvb_status
read_heartbeat_message(const Kvb__StreamHeartbeat *message, struct kvb_heartbeat *out)
{
    struct kvb_heartbeat heartbeat = {
        .worker_id = message->worker_id,
        .dp_rank = message->dp_rank,
        .epoch_first_id = message->epoch_first_id,
        .last_id = message->last_id,
        .block_size = message->block_size,
        /* An older bridge says only that there is a lookahead: one token. */
        .lookahead = message->lookahead > 0 ? message->lookahead : (uint32_t)message->eagle,
        .window_tokens = message->window_tokens,
        .period_ms = message->period_ms,
        .is_paired = message->paired,
        .speculative_drop = message->speculative_drop,
        .chunk_blocks = message->chunk_blocks,
        .is_store = message->store,
        .is_bye = message->bye,
        .publisher = message->publisher,
        .digest_seed = message->digest_seed,
        .doubtful = message->doubtful,
    };

    KVB_TRY(read_names(message, &heartbeat));
    KVB_TRY(read_trust(message, &heartbeat));
    KVB_TRY(read_formats(message, &heartbeat));
    KVB_TRY(read_tiers(message, &heartbeat));
    /* Shapes and windows refer to the fields above, and are checked against them. */
    KVB_TRY(read_shapes(message, &heartbeat));
    KVB_TRY(read_windows(message, &heartbeat));
    KVB_TRY(read_unverified(message, &heartbeat));
    KVB_TRY(read_facts(message, &heartbeat.facts));
    KVB_TRY(read_served_names(message, &heartbeat.names));
    if (message->missing_case == KVB__STREAM_HEARTBEAT__MISSING_MISSING_AT_MOST) {
        heartbeat.has_missing_at_most = true;
        heartbeat.missing_at_most = message->missing_at_most;
    }
    *out = heartbeat;
    return KVB_OK;
}

kvb_status kvb_heartbeat_decode(kvb_span bytes, struct kvb_heartbeat *out_heartbeat)
{
    KVB_OWN(kvb_proto_arena_done) struct kvb_proto_arena arena;
    const ProtobufCMessage *message = NULL;

    kvb_proto_arena_init(&arena);
    if (bytes.len > max_message_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(
        kvb_proto_unpack(&kvb__stream_heartbeat__descriptor, bytes, max_fields, &arena, &message));
    return read_heartbeat_message((const Kvb__StreamHeartbeat *)message, out_heartbeat);
}
