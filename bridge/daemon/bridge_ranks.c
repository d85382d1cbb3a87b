#include "core/clock.h"
#include "daemon/bridge_inside.h"
#include "daemon/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A reader of JSON may know no tiers: it would take a host removal for a device
 * removal. */
static unsigned tiers_of(enum kvb_profile profile)
{
    const unsigned all = (1U << KVB_TIER_COUNT) - 1;

    return profile == KVB_PROFILE_JSON ? 1U << KVB_TIER_DEVICE : all;
}

/* Removals stay for a while beside all that is held. */
static kvb_status open_told(const struct kvb_bridge_config *config, struct bridge_rank *rank)
{
    return config->publish.clear == KVB_CLEAR_REMOVED
               ? kvb_told_new(2 * config->limits.max_stream_blocks, &rank->told)
               : KVB_OK;
}

/* Bridges of several components may have taken turns in one directory. */
static uint64_t home_of(const struct kvb_bridge_config *config)
{
    const kvb_span parts[] = {
        { (const uint8_t *)config->publish.name_space, strlen(config->publish.name_space) },
        { (const uint8_t *)".", 1 },
        { (const uint8_t *)config->publish.component, strlen(config->publish.component) },
    };

    return kvb_hash64_parts(parts, KVB_COUNT_OF(parts), 0);
}

/* Where a stream comes from and where it goes: checkpoints of others are foreign. */
static struct kvb_hash128
place_of(const struct kvb_bridge_config *config, const struct kvb_worker_config *worker)
{
    char text[4 * kvb_endpoint_bytes]; /* room for all of them */
    const int len = snprintf(
        text, sizeof text, "%s %s %s %s %s %s", config->publish.name_space,
        config->publish.component, worker->events, worker->replay, worker->topic,
        kvb_tier_name(worker->unknown_medium));

    return kvb_hash128((kvb_span){ .data = (const uint8_t *)text, .len = (size_t)len }, 0);
}

static kvb_status open_stream(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, struct bridge_rank *rank)
{
    const struct kvb_bridge_config *config = bridge->config;
    struct kvb_stream_options options = {
        .worker_id = rank->worker_id,
        .dp_rank = rank->dp_rank,
        .block_size = worker->block_size,
        .total_blocks = worker->total_blocks,
        .has_replay = worker->replay[0] != '\0',
        .profile = config->publish.profile,
        .max_held_bytes = config->limits.max_held_bytes,
        .max_log_blocks = config->limits.sync_blocks,
        .place = place_of(config, worker),
        .mirror = { .hashes = kvb_worker_hashes(config, worker),
                    .max_blocks = config->limits.max_stream_blocks,
                    .tiers = tiers_of(config->publish.profile),
                    .pool_block_size = worker->block_size,
                    .lora_name = worker->lora },
    };

    (void)snprintf(options.model, sizeof options.model, "%s", worker->model);
    if (getrandom(options.seed, sizeof options.seed, 0) != sizeof options.seed) {
        return KVB_IO;
    }
    KVB_TRY(open_told(config, rank));
    return kvb_stream_new(&options, &rank->stream);
}

static kvb_status open_source(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, uint32_t dp_rank,
    struct bridge_rank *rank, struct kvb_detail *detail)
{
    char replay[kvb_endpoint_bytes] = "";
    const struct kvb_source_options options = {
        .events = rank->endpoint,
        .replay = replay,
        .topic = worker->topic,
        .bind = worker->bind,
        .replay_request = worker->replay_request,
        .max_replay_bytes = bridge->config->limits.max_replay_bytes,
        .waiter = bridge->waiter,
        .owner = (size_t)(rank - bridge->ranks),
    };

    KVB_TRY(kvb_endpoint_for_rank(worker->events, dp_rank, rank->endpoint));
    if (worker->replay[0] != '\0') {
        KVB_TRY(kvb_endpoint_for_rank(worker->replay, dp_rank, replay));
    }
    return kvb_source_open(bridge->zmq, &options, &rank->source, detail);
}

static kvb_status open_rank(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, uint32_t dp_rank,
    struct kvb_detail *detail)
{
    struct bridge_rank *rank = &bridge->ranks[bridge->rank_count++]; /* closed in any case */

    rank->worker_id = kvb_worker_id_of_rank(worker, dp_rank - worker->first_rank);
    rank->dp_rank = dp_rank;
    rank->needs_epoch = true;
    rank->known = (struct kvb_load_fallback){ .total_slots = worker->load.total_slots,
                                              .total_blocks = worker->total_blocks };
    rank->unknown_medium = worker->unknown_medium;
    KVB_TRY(open_stream(bridge, worker, rank));
    kvb_bridge_restore_rank(bridge, rank, home_of(bridge->config));
    return open_source(bridge, worker, dp_rank, rank, detail);
}

static kvb_status open_worker(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, struct kvb_detail *detail)
{
    const size_t first = bridge->rank_count;

    for (uint32_t i = 0; i < worker->ranks; i++) {
        KVB_TRY(open_rank(bridge, worker, worker->first_rank + i, detail));
    }
    return kvb_bridge_open_load(bridge, worker, first, detail);
}

static size_t ranks_of(const struct kvb_bridge_config *config)
{
    size_t ranks = 0;

    for (size_t i = 0; i < config->worker_count; i++) {
        ranks += config->workers[i].ranks;
    }
    return ranks;
}

static struct kvb_zmq_size size_of(const struct kvb_bridge_config *config)
{
    struct kvb_zmq_size size = { .publishers = ranks_of(config) };

    for (size_t i = 0; i < config->worker_count; i++) {
        size.loads += kvb_load_sockets_of(&config->workers[i]);
    }
    return size;
}

kvb_status
kvb_bridge_raise_limits(const struct kvb_bridge_config *config, struct kvb_detail *detail)
{
    const struct kvb_zmq_size size = size_of(config);

    return kvb_zmq_raise_limits(&size, detail);
}

kvb_status kvb_bridge_open_ranks(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    const struct kvb_bridge_config *config = bridge->config;
    const struct kvb_zmq_size size = size_of(config);
    const size_t ranks = size.publishers;
    const size_t loads = config->worker_count;

    bridge->ranks = calloc(ranks ? ranks : 1, sizeof *bridge->ranks);
    bridge->loads = calloc(loads ? loads : 1, sizeof *bridge->loads);
    if (!bridge->ranks || !bridge->loads) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_zmq_new(&size, &bridge->zmq, detail));
    bridge->first_load_owner = ranks;
    bridge->first_fd_owner = ranks + loads;
    KVB_TRY(kvb_waiter_new(ranks + loads + kvb_bridge_fds, &bridge->waiter));
    for (size_t i = 0; i < config->worker_count; i++) {
        KVB_TRY(open_worker(bridge, &config->workers[i], detail));
    }
    return KVB_OK;
}

void kvb_bridge_close_ranks(struct kvb_bridge *bridge)
{
    kvb_bridge_close_loads(bridge);
    for (size_t i = 0; i < bridge->rank_count; i++) {
        kvb_source_close(bridge->ranks[i].source);
        kvb_stream_free(bridge->ranks[i].stream);
        kvb_told_free(bridge->ranks[i].told);
        kvb_stream_output_done(&bridge->ranks[i].output);
    }
    free(bridge->ranks);
    kvb_waiter_free(bridge->waiter);
    kvb_zmq_free(bridge->zmq);
}
