#include "core/hash.h"
#include "kvbridge/announce_to.h"
#include "kvbridge/inside.h"

#include <stdlib.h>
#include <string.h>

/* Which ranks are registered at the services of announce_to: those that are republished, that this
 * bridge publishes, and whose sockets listen. */

static bool is_announced_rank(const struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    return rank->republish && kvb_bridge_republish_trouble(rank)[0] == '\0' &&
           kvb_bridge_publishes(bridge, rank);
}

static void fill_announced(const struct bridge_rank *rank, struct kvb_dynamo_worker *out)
{
    const struct kvb_worker_config *settings = &rank->settings;

    *out = (struct kvb_dynamo_worker){
        .worker_id = rank->worker_id,
        .rank_id = settings->is_id_of_rank ? rank->worker_id
                                           : kvb_announce_rank_id(rank->worker_id, rank->dp_rank),
        .dp_rank = rank->dp_rank,
        .block_size = settings->block_size
    };
    memcpy(out->events, settings->republish.events, sizeof out->events);
    memcpy(out->replay, settings->republish.replay, sizeof out->replay);
    memcpy(out->model, settings->model, sizeof out->model);
    memcpy(out->address, settings->facts.address, sizeof out->address);
}

void kvb_bridge_announce_ranks(struct kvb_bridge *bridge)
{
    struct kvb_announce_to *announce = atomic_load(&bridge->membership.announce_to);
    const size_t room = bridge->membership.republished_count;
    struct kvb_dynamo_worker *ranks = announce ? calloc(room + 1, sizeof *ranks) : NULL;
    size_t count = 0;

    if (!ranks) {
        return; /* out of memory: with the next status */
    }
    for (size_t i = 0; i < bridge->membership.rank_count && count < room; i++) {
        if (is_announced_rank(bridge, bridge->membership.ranks[i])) {
            fill_announced(bridge->membership.ranks[i], &ranks[count++]);
        }
    }
    const uint64_t hash =
        1 | kvb_hash64(
                (kvb_span){ .data = (const uint8_t *)ranks, .len = count * sizeof *ranks }, count);
    if (hash != bridge->membership.announced_hash &&
        kvb_announce_to_set_ranks(announce, ranks, count) == KVB_OK) {
        bridge->membership.announced_hash = hash;
    }
    free(ranks);
}

static bool has_service(const struct kvb_announce_config *services, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (services[i].dynamo[0] != '\0') {
            return true;
        }
    }
    return false;
}

kvb_status kvb_bridge_announce_to(
    struct kvb_bridge *bridge, const struct kvb_announce_config *services, size_t count)
{
    struct kvb_announce_to *announce = atomic_load(&bridge->membership.announce_to);
    const struct kvb_announce_to_options options = { .log = bridge->log,
                                                     .resolver = bridge->ingest.resolver,
                                                     .metrics = &bridge->shown.metrics };

    if (!announce && !has_service(services, count)) {
        return KVB_OK;
    }
    if (!announce) {
        KVB_TRY(kvb_announce_to_start(&options, &announce));
        atomic_store(&bridge->membership.announce_to, announce); /* now it is given the ranks */
    }
    kvb_announce_to_set_services(announce, services, count);
    return KVB_OK;
}

size_t kvb_bridge_report_announce(
    const struct kvb_bridge *bridge, struct kvb_announce_status statuses[kvb_max_announce_services],
    struct kvb_announce_report reports[kvb_max_announce_services])
{
    struct kvb_announce_to *announce = atomic_load(&bridge->membership.announce_to);
    const size_t count = announce ? kvb_announce_to_read(announce, statuses) : 0;

    for (size_t i = 0; i < count; i++) {
        reports[i] = (struct kvb_announce_report){ .dynamo = statuses[i].url,
                                                   .api = kvb_dynamo_api_name(statuses[i].api),
                                                   .is_failing = statuses[i].is_failing,
                                                   .wanted = statuses[i].wanted,
                                                   .registered = statuses[i].present,
                                                   .why = statuses[i].why.text };
    }
    return count;
}
