#include "wire/router/sync.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvbridge.pb-c.h"
#include "model/stream.h"
#include "wire/protobuf/message.h"
#include "wire/router/proto.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_fields = 64, /* a reply has 13; the rest is for newer versions */
    max_request_bytes = 1024,
    bucket_words = kvb_sync_buckets / 64,
    sum_words = 2 * kvb_sync_buckets, /* of a tier: low, high */
};

static const uint32_t kinds[KVB_SYNC_KIND_COUNT] = {
    [KVB_SYNC_RANGE] = KVB__SYNC_REQUEST__KIND__RANGE,
    [KVB_SYNC_SNAPSHOT] = KVB__SYNC_REQUEST__KIND__SNAPSHOT,
    [KVB_SYNC_DIGEST] = KVB__SYNC_REQUEST__KIND__DIGEST,
};

static const uint32_t answers[KVB_SYNC_ANSWER_COUNT] = {
    [KVB_SYNC_EVENTS] = KVB__SYNC_REPLY__ANSWER__EVENTS,
    [KVB_SYNC_BLOCKS] = KVB__SYNC_REPLY__ANSWER__BLOCKS,
    [KVB_SYNC_SUMS] = KVB__SYNC_REPLY__ANSWER__SUMS,
    [KVB_SYNC_GONE] = KVB__SYNC_REPLY__ANSWER__GONE,
    [KVB_SYNC_TOO_NEW] = KVB__SYNC_REPLY__ANSWER__TOO_NEW,
    [KVB_SYNC_BUSY] = KVB__SYNC_REPLY__ANSWER__BUSY,
};

kvb_status kvb_sync_request_encode(const struct kvb_sync_request *request, struct kvb_buf *out)
{
    struct kvb_sync_request copy = *request; /* protobuf-c's types need writable memory */
    Kvb__SyncRequest message;

    assert((unsigned)copy.kind < KVB_SYNC_KIND_COUNT);
    kvb__sync_request__init(&message);
    message.kind = (Kvb__SyncRequest__Kind)kinds[copy.kind];
    message.epoch.data = copy.epoch.bytes;
    message.epoch.len = sizeof copy.epoch.bytes;
    message.from_id = copy.from_id;
    message.to_id = copy.to_id;
    message.buckets = copy.buckets.words;
    /* None asks for all blocks; 256 zero bits would ask for no block. */
    message.n_buckets = copy.has_buckets ? bucket_words : 0;
    return kvb_proto_pack(&message.base, out);
}

static kvb_status read_request(const Kvb__SyncRequest *message, struct kvb_sync_request *out)
{
    struct kvb_sync_request request = { .from_id = message->from_id, .to_id = message->to_id };
    unsigned kind = 0;

    KVB_TRY(kvb_proto_number_find(kinds, KVB_COUNT_OF(kinds), message->kind, &kind));
    request.kind = (enum kvb_sync_kind)kind;
    /* All of a snapshot needs no epoch, but has a place for one. */
    if (message->epoch.len != sizeof request.epoch.bytes ||
        (message->n_buckets != 0 && message->n_buckets != bucket_words) ||
        (request.kind == KVB_SYNC_RANGE && request.to_id < request.from_id)) {
        return KVB_BAD_INPUT;
    }
    memcpy(request.epoch.bytes, message->epoch.data, sizeof request.epoch.bytes);
    request.has_buckets = message->n_buckets > 0;
    if (request.has_buckets) {
        memcpy(request.buckets.words, message->buckets, sizeof request.buckets.words);
    }
    *out = request;
    return KVB_OK;
}

kvb_status kvb_sync_request_decode(kvb_span bytes, struct kvb_sync_request *out_request)
{
    KVB_OWN(kvb_proto_arena_done) struct kvb_proto_arena arena;
    const ProtobufCMessage *message = NULL;

    kvb_proto_arena_init(&arena);
    if (bytes.len > max_request_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_proto_unpack(&kvb__sync_request__descriptor, bytes, max_fields, &arena, &message));
    return read_request((const Kvb__SyncRequest *)message, out_request);
}

struct sum_columns {
    uint32_t tiers[KVB_LIST_COUNT];
    uint64_t *sums; /* owned */
    size_t tier_count;
};

static void drop_sum_columns(struct sum_columns *columns)
{
    free(columns->sums);
}

static kvb_status fill_columns(const struct kvb_sync_reply *reply, struct sum_columns *columns)
{
    if (reply->answer != KVB_SYNC_SUMS) {
        return KVB_OK;
    }
    /* 20 KiB, for all lists: n_sums says how much of it is sent. */
    columns->sums = malloc((size_t)KVB_LIST_COUNT * sum_words * sizeof *columns->sums);
    if (!columns->sums) {
        return KVB_NO_MEMORY;
    }
    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++) {
        /* An empty list is left out, and reads as empty. */
        if (!reply->sums[tier]) {
            continue;
        }
        uint64_t *sums = columns->sums + columns->tier_count * sum_words;
        columns->tiers[columns->tier_count++] = kvb_proto_tiers[tier];
        for (size_t i = 0; i < kvb_sync_buckets; i++) {
            sums[2 * i] = reply->sums[tier][i].low;
            sums[2 * i + 1] = reply->sums[tier][i].high;
        }
    }
    return KVB_OK;
}

static kvb_status encode_events(const struct kvb_sync_reply *reply, struct kvb_buf *out)
{
    const struct kvb_router_batch *events = reply->events;

    /* KvEventBatch has no form for no events: the field stays empty. */
    return events && events->event_count > 0
               ? kvb_router_proto_encode(events, 0, events->event_count, out)
               : KVB_OK;
}

/* Sizes in bytes: the heads of the reply and of its events, with one entry of a mirror; one block;
 * one event. */
enum { max_head_bytes = 512, block_bytes = 16, event_bytes = 12 };

size_t kvb_sync_reply_room(size_t max_bytes)
{
    return (max_bytes - max_head_bytes) / (block_bytes + event_bytes);
}

kvb_status kvb_sync_reply_encode(const struct kvb_sync_reply *reply, struct kvb_buf *out)
{
    KVB_OWN(drop_sum_columns) struct sum_columns columns = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf events = { 0 };
    kvb_epoch epoch = reply->epoch;
    Kvb__SyncReply message;

    assert((unsigned)reply->answer < KVB_SYNC_ANSWER_COUNT);
    kvb_buf_init(&events, kvb_max_nats_payload_bytes);
    KVB_TRY(fill_columns(reply, &columns));
    /* Apart from the reply, in which they are one field of bytes. */
    KVB_TRY(encode_events(reply, &events));
    kvb__sync_reply__init(&message);
    message.epoch.data = epoch.bytes;
    message.epoch.len = sizeof epoch.bytes;
    message.worker_id = reply->worker_id;
    message.dp_rank = reply->dp_rank;
    message.answer = (Kvb__SyncReply__Answer)answers[reply->answer];
    message.chunk = reply->chunk;
    message.last = reply->is_last;
    message.barrier_id = reply->barrier_id;
    message.last_id = reply->last_id;
    message.retry_ms = reply->retry_ms;
    message.digest_seed = reply->digest_seed;
    message.events.data = events.data;
    message.events.len = events.len;
    message.tiers = columns.tiers;
    message.n_tiers = columns.tier_count;
    message.sums = columns.sums;
    message.n_sums = columns.tier_count * sum_words;
    return kvb_proto_pack(&message.base, out);
}

void kvb_sync_reply_parts_done(struct kvb_sync_reply_parts *parts)
{
    kvb_router_batch_done(&parts->events);
}

static kvb_status read_sums(
    const Kvb__SyncReply *message, struct kvb_sync_reply_parts *parts, struct kvb_sync_reply *reply)
{
    if (message->n_sums != message->n_tiers * sum_words) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < message->n_tiers; i++) {
        const uint64_t *sums = message->sums + i * sum_words;
        unsigned tier = 0;
        KVB_TRY(kvb_proto_number_find(kvb_proto_tiers, KVB_LIST_COUNT, message->tiers[i], &tier));
        if (reply->sums[tier]) {
            return KVB_BAD_INPUT; /* a duplicate tier */
        }
        for (size_t bucket = 0; bucket < kvb_sync_buckets; bucket++) {
            parts->sums[tier][bucket] =
                (struct kvb_hash128){ .low = sums[2 * bucket], .high = sums[2 * bucket + 1] };
        }
        /* Lists that are not named stay NULL, and so read as empty. */
        reply->sums[tier] = parts->sums[tier];
    }
    return KVB_OK;
}

static bool
is_reply_of_stream(const struct kvb_router_batch *events, const struct kvb_sync_reply *reply)
{
    return events->worker_id == reply->worker_id && events->dp_rank == reply->dp_rank &&
           events->has_epoch && kvb_epoch_is_same(&events->epoch, &reply->epoch);
}

/* Reads the events.  Sets the batch's stream even if there are no events, because the reused batch
 * still names the stream of an earlier reply. */
static kvb_status read_events(
    const Kvb__SyncReply *message, struct kvb_sync_reply_parts *parts, struct kvb_sync_reply *reply)
{
    kvb_router_batch_reset(&parts->events);
    parts->events.worker_id = reply->worker_id;
    parts->events.dp_rank = reply->dp_rank;
    parts->events.has_epoch = true;
    parts->events.epoch = reply->epoch;
    if (message->events.len > 0) {
        const kvb_span bytes = { .data = message->events.data, .len = message->events.len };
        KVB_TRY(kvb_router_proto_decode(bytes, &parts->events));
        if (!is_reply_of_stream(&parts->events, reply)) {
            return KVB_BAD_INPUT;
        }
    }
    reply->events = &parts->events;
    return KVB_OK;
}

static kvb_status read_sync_reply(
    const Kvb__SyncReply *message, struct kvb_sync_reply_parts *parts, struct kvb_sync_reply *out)
{
    struct kvb_sync_reply reply = { .worker_id = message->worker_id,
                                    .dp_rank = message->dp_rank,
                                    .chunk = message->chunk,
                                    .is_last = message->last,
                                    .barrier_id = message->barrier_id,
                                    .last_id = message->last_id,
                                    .retry_ms = message->retry_ms,
                                    .digest_seed = message->digest_seed };
    unsigned answer = 0;

    if (message->worker_id > INT64_MAX || message->epoch.len != sizeof reply.epoch.bytes) {
        return KVB_BAD_INPUT;
    }
    memcpy(reply.epoch.bytes, message->epoch.data, sizeof reply.epoch.bytes);
    KVB_TRY(kvb_proto_number_find(answers, KVB_COUNT_OF(answers), message->answer, &answer));
    reply.answer = (enum kvb_sync_answer)answer;
    /* The stream first: the events must be of it. */
    KVB_TRY(read_events(message, parts, &reply));
    KVB_TRY(read_sums(message, parts, &reply));
    *out = reply;
    return KVB_OK;
}

kvb_status kvb_sync_reply_decode(
    kvb_span bytes, struct kvb_sync_reply_parts *parts, struct kvb_sync_reply *out_reply)
{
    KVB_OWN(kvb_proto_arena_done) struct kvb_proto_arena arena;
    const ProtobufCMessage *message = NULL;

    kvb_proto_arena_init(&arena);
    if (bytes.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_proto_unpack(&kvb__sync_reply__descriptor, bytes, max_fields, &arena, &message));
    return read_sync_reply((const Kvb__SyncReply *)message, parts, out_reply);
}
