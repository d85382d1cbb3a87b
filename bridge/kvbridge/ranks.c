#include "core/clock.h"
#include "core/own.h"
#include "kvbridge/bridge.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/ingest.h"
#include "kvbridge/loads.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/republish.h"
#include "kvbridge/shown.h"
#include "stream/advertiser.h"
#include "stream/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { announce_chunk_blocks = 4096 };

static void open_advertiser(const struct kvb_bridge_config *config, struct bridge_rank *rank)
{
    const struct kvb_advertiser_options options = {
        .publishes_json = kvb_formats_have(config->publish.formats, KVB_FORMAT_JSON),
        .reannounce = config->publish.reannounce,
        .down_clear_ns = config->publish.down_clear_ms * KVB_NS_PER_MS,
        .heartbeat_ns = config->publish.heartbeat_ms * KVB_NS_PER_MS,
        .max_chunk_blocks = announce_chunk_blocks,
    };

    kvb_advertiser_init(&rank->served.advertiser, &options, rank->served.stream);
}

/* Identifies the component, because bridges of several components may use one directory in turn. */
static uint64_t checkpoint_home(const struct kvb_bridge_config *config)
{
    const kvb_span parts[] = {
        { (const uint8_t *)config->publish.name_space, strlen(config->publish.name_space) },
        { (const uint8_t *)".", 1 },
        { (const uint8_t *)config->publish.component, strlen(config->publish.component) },
    };

    return kvb_hash64_parts(parts, KVB_COUNT_OF(parts), 0);
}

static void put_places(
    const struct kvb_bridge_config *config, const struct kvb_part *part,
    uint64_t out_places[KVB_PLACE_COUNT])
{
    /* Refreshes use event ids that no batch causes.  A bridge that does not begin a new epoch at
     * the start must not continue from such ids. */
    const bool goes_on = kvb_formats_have(config->publish.formats, KVB_FORMAT_JSON) &&
                         !kvb_bridge_config_refreshes(config);
    const char *const texts[KVB_PLACE_COUNT] = {
        [KVB_PLACE_NAMESPACE] = config->publish.name_space,
        [KVB_PLACE_COMPONENT] = config->publish.component,
        [KVB_PLACE_EVENTS] = part->events,
        [KVB_PLACE_REPLAY] = part->replay,
        [KVB_PLACE_TOPIC] = part->topic,
        [KVB_PLACE_UNKNOWN_MEDIUM] = kvb_tier_name(part->worker->unknown_medium),
        [KVB_PLACE_REANNOUNCE] = goes_on ? "goes on" : "",
    };

    for (size_t at = 0; at < KVB_PLACE_COUNT; at++) {
        out_places[at] = kvb_hash64((kvb_span){ (const uint8_t *)texts[at], strlen(texts[at]) }, 0);
    }
}

void kvb_bridge_note_speculation(struct bridge_rank *rank)
{
    const struct kvb_worker_facts *facts = &rank->facts;

    kvb_stream_note_speculation(
        rank->served.stream, KVB_SPECULATION_OF_ARGUMENTS, facts->speculation_of_arguments);
    kvb_stream_note_speculation(
        rank->served.stream, KVB_SPECULATION_OF_SERVER_INFO, facts->speculation_of_server);
}

static kvb_status open_stream(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    const struct kvb_worker_spec *worker = rank->part->worker;
    const struct kvb_bridge_config *config = bridge->config;
    struct kvb_stream_options options = {
        .worker_id = rank->worker_id,
        .dp_rank = rank->dp_rank,
        .block_size = worker->block_size,
        .total_blocks = worker->total_blocks,
        .speculative_drop = worker->speculative_drop,
        .speculative_drop_groups = worker->speculative_drop_groups,
        .has_replay = rank->part->replay[0] != '\0',
        .is_store = worker->store,
        .is_without_salts = !worker->has_salts,
        .has_hidden_pools = worker->is_sglang_hybrid,
        .offload_removals = worker->offload_removals,
        .formats = config->publish.formats,
        .max_buffered_bytes = kvb_max_reorder_bytes,
        .max_log_blocks = config->limits.sync_blocks,
        .mirror = { .hashes = worker->hashes,
                    .copies = config->publish.copies,
                    .max_blocks = config->limits.max_stream_blocks,
                    .tiers = kvb_published_lists(config),
                    .pool_block_size = worker->block_size,
                    .chunk_blocks = worker->offload_chunk_blocks,
                    .chunk_tokens = worker->attention_chunk,
                    .lora_name = worker->lora },
    };

    (void)snprintf(options.model, sizeof options.model, "%s", worker->model);
    put_places(config, rank->part, options.places);
    if (getrandom(options.seed, sizeof options.seed, 0) != sizeof options.seed) {
        return KVB_IO;
    }
    if (getrandom(&options.mirror.hash_key, sizeof options.mirror.hash_key, 0) !=
        sizeof options.mirror.hash_key) {
        return KVB_IO;
    }
    KVB_TRY(kvb_stream_new(&options, &rank->served.stream));
    if (kvb_part_is_republished(rank->part)) { /* before a checkpoint brings tokens */
        KVB_TRY(kvb_stream_show(rank->served.stream, rank->part->worker->block_size));
    }
    /* Its facts came with the part, before there was a stream to tell. */
    kvb_bridge_note_speculation(rank);
    open_advertiser(config, rank);
    return KVB_OK;
}

static kvb_status
open_source(struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_detail *detail)
{
    const struct kvb_part *part = rank->part;
    const struct kvb_source_options options = {
        .events = part->events,
        .replay = part->replay,
        .topic = part->topic,
        .bind = part->worker->bind,
        .replay_request = part->worker->store ? KVB_REQUEST_MOONCAKE : KVB_REQUEST_PLAIN,
        .max_replay_bytes = kvb_max_replay_bytes,
        .poller = bridge->ingest->poller,
        .owner = rank->owner,
        .resolver = bridge->ingest->resolver,
        .refuses_metadata = part->is_advertised || part->worker->has_foreign_addresses,
    };

    return kvb_source_open(bridge->ingest->zmq, &options, &rank->source, detail);
}

/* ---- Places ---- */

static const struct {
    size_t first;
    size_t count;
} owner_ranges[bridge_owner_kinds] = {
    [bridge_owner_rank] = { 0, kvb_max_streams },
    [bridge_owner_load] = { kvb_first_load_owner, kvb_max_workers },
    [bridge_owner_readers] = { kvb_first_republish_owner, kvb_max_republished_ranks },
};

kvb_status kvb_bridge_take_owner(
    struct bridge_ingest *ingest, enum bridge_owner_kind kind, void *whose, size_t *out_owner)
{
    const size_t first = owner_ranges[kind].first;
    size_t *at = &ingest->maybe_free[kind];

    /* Each number is passed over once until it is given back: a fleet of 65,536 ranks that comes at
     * once costs as many steps. */
    while (*at < owner_ranges[kind].count && ingest->owners[first + *at]) {
        ++*at;
    }
    if (*at == owner_ranges[kind].count) {
        return KVB_TOO_LARGE;
    }
    *out_owner = first + (*at)++;
    ingest->owners[*out_owner] = whose;
    return KVB_OK;
}

void kvb_bridge_give_back_owner(
    struct bridge_ingest *ingest, enum bridge_owner_kind kind, size_t owner)
{
    const size_t at = owner - owner_ranges[kind].first;

    ingest->owners[owner] = NULL;
    /* The search begins at the lowest number that may be free. */
    if (at < ingest->maybe_free[kind]) {
        ingest->maybe_free[kind] = at;
    }
}

size_t kvb_bridge_other_files(const struct kvb_bridge_config *config)
{
    return config->http[0] ? kvb_http_files(max_http_connections, http_threads) : 0;
}

kvb_status kvb_bridge_make_room(
    const struct kvb_bridge *bridge, const struct kvb_zmq_size *more, struct kvb_detail *detail)
{
    const struct bridge_membership *membership = bridge->membership;
    const struct kvb_zmq_size size = { .publishers = membership->rank_count + more->publishers,
                                       .loads = membership->running.load_sources + more->loads,
                                       .readers = membership->republished_count + more->readers,
                                       .others = kvb_bridge_other_files(bridge->config) };

    return kvb_zmq_raise_limits(&size, detail);
}

void kvb_bridge_beat_at_once(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    kvb_advertiser_want_beat(&rank->served.advertiser, KVB_BEAT_NOW);
    rank->beat_json.sent_ns = 0; /* the JSON heartbeat too */
    kvb_serve_wake(&rank->served);
    bridge->ingest->server.is_round_wanted = true;
}

struct bridge_rank *
kvb_bridge_find_rank(const struct kvb_bridge *bridge, uint64_t worker_id, uint32_t dp_rank)
{
    const struct kvb_part_table *running = &bridge->membership->running;
    const uint32_t number =
        kvb_part_table_find(running, KVB_PART_RANK, worker_id, dp_rank, KVB_ANY_SOURCE);

    return number != KVB_NO_ID ? running->slots[number].owner : NULL;
}

/* ---- Ranks ---- */

static void drop_rank(struct bridge_ingest *ingest, struct bridge_rank *rank)
{
    /* First, because it needs the stream, and from here on no turn may find the rank. */
    kvb_serve_drop(&rank->served);
    kvb_source_close(rank->source);
    kvb_stream_free(rank->served.stream);
    kvb_stream_output_done(&rank->served.output);
    if (ingest->owners[rank->owner] == rank) { /* else it has got no number */
        kvb_bridge_give_back_owner(ingest, bridge_owner_rank, rank->owner);
    }
    if (rank->readers > 0) { /* engines' sockets have the lower numbers */
        kvb_bridge_give_back_owner(ingest, bridge_owner_readers, rank->readers);
    }
    kvb_part_unref(rank->part);
    free(rank);
}

/* Those of republished events. */
static kvb_status
open_readers(struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_detail *detail)
{
    if (!kvb_part_is_republished(rank->part)) {
        return KVB_OK;
    }
    const kvb_status status =
        kvb_bridge_take_owner(bridge->ingest, bridge_owner_readers, rank, &rank->readers);
    if (status != KVB_OK) {
        kvb_detail_set(
            detail, "republish: at most %d ranks in one bridge", kvb_max_republished_ranks);
        return status;
    }
    return kvb_bridge_open_republish(bridge, rank);
}

void kvb_bridge_set_part(struct bridge_rank *rank, struct kvb_part *part)
{
    struct kvb_part *former = rank->part;

    rank->part = kvb_part_ref(part);
    kvb_part_facts(part, &rank->facts);
    kvb_part_unref(former);
}

static kvb_status fill_rank(
    struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_part *part,
    struct kvb_detail *detail)
{
    const struct kvb_zmq_size size = { .publishers = 1, .readers = kvb_part_is_republished(part) };

    kvb_bridge_set_part(rank, part);
    rank->worker_id = part->id;
    rank->dp_rank = part->dp_rank;
    rank->known = (struct kvb_load_fallback){ .total_slots = part->worker->load.total_slots,
                                              .total_blocks = part->worker->total_blocks };
    rank->unknown_medium = part->worker->unknown_medium;
    kvb_bridge_begin_stats(rank);
    KVB_TRY(kvb_bridge_take_owner(bridge->ingest, bridge_owner_rank, rank, &rank->owner));
    KVB_TRY(kvb_bridge_make_room(bridge, &size, detail));
    KVB_TRY(open_stream(bridge, rank));
    /* Before its readers, whose numbers lie beside the checkpoint, and before its source, whose
     * first batch continues the restored list. */
    kvb_bridge_restore_rank(bridge, rank, checkpoint_home(bridge->config));
    KVB_TRY(open_readers(bridge, rank, detail));
    return open_source(bridge, rank, detail);
}

kvb_status kvb_bridge_open_rank(
    struct kvb_bridge *bridge, struct kvb_part *part, uint32_t source,
    struct bridge_rank **out_rank, struct kvb_detail *detail)
{
    struct bridge_membership *membership = bridge->membership;
    struct bridge_rank *rank = calloc(1, sizeof *rank);

    if (!rank) {
        return KVB_NO_MEMORY;
    }
    kvb_status status = fill_rank(bridge, rank, part, detail);
    /* Last, so that nobody finds a rank that is half open. */
    if (status == KVB_OK) {
        status = kvb_part_table_put(&membership->running, part, source, rank, &rank->number);
    }
    if (status != KVB_OK) {
        /* Its republisher borrows from the stream, which is freed next. */
        kvb_bridge_close_republish(bridge, rank, BRIDGE_REPUBLISH_STOP);
        drop_rank(bridge->ingest, rank);
        return status;
    }
    rank->source_number = source;
    rank->at = membership->rank_count++; /* there is room: the rank has a number */
    membership->ranks[rank->at] = rank;
    membership->changes++;
    kvb_serve_add(&bridge->ingest->server, &rank->served);
    *out_rank = rank;
    return KVB_OK;
}

void kvb_bridge_remove_rank(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct bridge_membership *membership = bridge->membership;
    struct bridge_rank *last = membership->ranks[--membership->rank_count];

    /* The last rank may be this one: then it is written where nobody looks any more. */
    membership->ranks[rank->at] = last;
    last->at = rank->at;
    membership->changes++;
    kvb_part_table_remove(&membership->running, rank->number);
    /* Its republisher borrows from the stream, which is freed next. */
    kvb_bridge_close_republish(bridge, rank, BRIDGE_REPUBLISH_WORKER_GONE);
    drop_rank(bridge->ingest, rank);
}

/* ---- All ranks ---- */

static struct kvb_zmq_size size_of(const struct kvb_bridge_config *config)
{
    struct kvb_zmq_size size = { .readers = kvb_republished_ranks(config),
                                 .others = kvb_bridge_other_files(config) };

    for (size_t i = 0; i < config->workers.count; i++) {
        size.publishers += config->workers.items[i].spec->ranks;
        size.loads += kvb_worker_load_sources(config->workers.items[i].spec);
    }
    return size;
}

kvb_status
kvb_bridge_raise_limits(const struct kvb_bridge_config *config, struct kvb_detail *detail)
{
    const struct kvb_zmq_size size = size_of(config);

    return kvb_zmq_raise_limits(&size, detail);
}

/* Reserves room for the most ranks that a bridge may have.  Unused room is never touched, so it
 * needs no memory. */
kvb_status kvb_bridge_open_rooms(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    KVB_TRY(kvb_bridge_raise_limits(bridge->config, detail));
    bridge->membership->ranks = calloc(kvb_max_streams, sizeof(struct bridge_rank *));
    bridge->membership->loads = calloc(kvb_max_workers, sizeof(struct bridge_load *));
    bridge->ingest->owners = calloc(kvb_bridge_owners, sizeof(void *));
    if (!bridge->membership->ranks || !bridge->membership->loads || !bridge->ingest->owners) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_resolver_new(&bridge->ingest->resolver));
    KVB_TRY(kvb_zmq_new(bridge->control, &bridge->ingest->zmq));
    /* Before the first socket opens: a socket keeps the period in which it pings. */
    kvb_zmq_expect(bridge->ingest->zmq, size_of(bridge->config).publishers);
    return kvb_poller_new(kvb_bridge_owners, &bridge->ingest->poller);
}

/* Publishes nothing, because the bridge has already published its goodbyes or was never started. */
void kvb_bridge_close_ranks(struct kvb_bridge *bridge)
{
    kvb_bridge_close_loads(bridge);
    /* Ranks have references of their own to their parts. */
    kvb_part_table_done(&bridge->membership->running);
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        kvb_bridge_close_republish(bridge, bridge->membership->ranks[i], BRIDGE_REPUBLISH_STOP);
        drop_rank(bridge->ingest, bridge->membership->ranks[i]);
    }
    free(bridge->ingest->owners);
    free((void *)bridge->membership->ranks);
    kvb_poller_free(bridge->ingest->poller);
    /* Its contexts would wait for a socket that is open: all are closed by now. */
    kvb_zmq_free(bridge->ingest->zmq);
    kvb_resolver_free(bridge->ingest->resolver); /* no socket or metrics page uses it any more */
}
