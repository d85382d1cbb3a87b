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

static kvb_status open_stream(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, uint32_t dp_rank,
    struct bridge_rank *rank)
{
    const struct kvb_bridge_config *config = bridge->config;
    struct kvb_stream_options options = {
        .worker_id = worker->id,
        .dp_rank = dp_rank,
        .block_size = worker->block_size,
        .total_blocks = worker->total_blocks,
        .has_replay = worker->replay[0] != '\0',
        .profile = config->publish.profile,
        .max_held_bytes = config->limits.max_held_bytes,
        .mirror = { .hashes = config->publish.hashes,
                    .max_blocks = config->limits.max_stream_blocks,
                    .tiers = tiers_of(config->publish.profile),
                    .lora_name = worker->lora },
    };

    (void)snprintf(options.model, sizeof options.model, "%s", worker->model);
    if (getrandom(options.seed, sizeof options.seed, 0) != sizeof options.seed) {
        return KVB_IO;
    }
    return kvb_stream_new(&options, &rank->stream);
}

static kvb_status open_source(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, uint32_t dp_rank,
    struct bridge_rank *rank, struct kvb_detail *detail)
{
    char replay[kvb_endpoint_bytes] = "";
    const struct kvb_source_options options = {
        .events = rank->endpoint, .replay = replay, .topic = worker->topic, .bind = worker->bind
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

    rank->worker_id = worker->id;
    rank->dp_rank = dp_rank;
    rank->total_slots = worker->load.total_slots;
    KVB_TRY(open_stream(bridge, worker, dp_rank, rank));
    return open_source(bridge, worker, dp_rank, rank, detail);
}

static kvb_status open_worker(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, struct kvb_detail *detail)
{
    const size_t first = bridge->rank_count;

    for (uint32_t i = 0; i < worker->ranks; i++) {
        KVB_TRY(open_rank(bridge, worker, worker->first_rank + i, detail));
    }
    if (worker->load.zmq[0] == '\0') {
        return KVB_OK;
    }
    struct bridge_load *load = &bridge->loads[bridge->load_count];
    KVB_TRY(kvb_load_source_open(bridge->zmq, worker->load.zmq, &load->source, detail));
    load->first_rank = first;
    load->rank_count = worker->ranks;
    bridge->load_count++;
    return KVB_OK;
}

static size_t ranks_of(const struct kvb_bridge_config *config)
{
    size_t ranks = 0;

    for (size_t i = 0; i < config->worker_count; i++) {
        ranks += config->workers[i].ranks;
    }
    return ranks;
}

kvb_status kvb_bridge_open_ranks(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    const struct kvb_bridge_config *config = bridge->config;
    const size_t ranks = ranks_of(config);
    const size_t loads = config->worker_count;
    /* SUB, both ends of its monitor, DEALER; and a load SUB a worker */
    const size_t sockets = ranks * (kvb_source_sockets + 1) + loads;

    bridge->ranks = calloc(ranks ? ranks : 1, sizeof *bridge->ranks);
    bridge->loads = calloc(loads ? loads : 1, sizeof *bridge->loads);
    if (!bridge->ranks || !bridge->loads) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_waiter_new(ranks * kvb_source_sockets + loads + 1, &bridge->waiter));
    KVB_TRY(kvb_zmq_new(sockets, &bridge->zmq, detail));
    for (size_t i = 0; i < config->worker_count; i++) {
        KVB_TRY(open_worker(bridge, &config->workers[i], detail));
    }
    return KVB_OK;
}

void kvb_bridge_close_ranks(struct kvb_bridge *bridge)
{
    for (size_t i = 0; i < bridge->load_count; i++) {
        kvb_load_source_close(bridge->loads[i].source);
    }
    for (size_t i = 0; i < bridge->rank_count; i++) {
        kvb_source_close(bridge->ranks[i].source);
        kvb_stream_free(bridge->ranks[i].stream);
        kvb_stream_output_done(&bridge->ranks[i].output);
    }
    free(bridge->loads);
    free(bridge->ranks);
    kvb_waiter_free(bridge->waiter);
    kvb_zmq_free(bridge->zmq);
}
