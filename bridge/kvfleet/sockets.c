#include "core/clock.h"
#include "core/random.h"
#include "kvfleet/inside.h"

#include <stdlib.h>
#include <zmq.h>

enum {
    first_drawn_port = 20000, /* below those that the kernel gives out by itself */
    last_drawn_port = 32000,
    max_draws = 200,
    queue_batches = 4096,
    replay_bytes = 64 << 20,
};

static struct kvb_fleet_rank *socket_rank(struct kvb_fleet *fleet, uint32_t worker, uint32_t rank)
{
    return &fleet->ranks[(size_t)worker * fleet->options.ranks + rank];
}

static void stop_publishers(struct kvb_fleet *fleet, uint32_t worker)
{
    for (uint32_t rank = 0; rank < fleet->options.ranks; rank++) {
        struct kvb_fleet_rank *at = socket_rank(fleet, worker, rank);
        kvb_publisher_stop(at->publisher);
        at->publisher = NULL;
    }
}

static kvb_status start_publishers(
    struct kvb_fleet *fleet, uint32_t worker, uint16_t first_port, struct kvb_detail *detail)
{
    const struct kvb_dialect_row *dialect = kvb_fleet_dialect(fleet, worker);

    for (uint32_t rank = 0; rank < fleet->options.ranks; rank++) {
        const struct kvb_publisher_options options = {
            .zmq_context = fleet->zmq_context,
            .address = fleet->options.address,
            .topic = dialect->topic,
            .events_port = (uint16_t)(first_port + rank),
            .replay_port = (uint16_t)(first_port + fleet->options.ranks + rank),
            .layout = dialect->replay,
            .queue_batches = queue_batches,
            .replay_batches = fleet->options.replay_batches,
            .replay_bytes = replay_bytes,
        };
        struct kvb_fleet_rank *at = socket_rank(fleet, worker, rank);
        const kvb_status status = kvb_publisher_start(&options, detail, &at->publisher);
        if (status != KVB_OK) {
            stop_publishers(fleet, worker);
            return status;
        }
    }
    fleet->workers[worker].ports.events = first_port;
    fleet->workers[worker].ports.replay = (uint16_t)(first_port + fleet->options.ranks);
    return KVB_OK;
}

/* The ports of one worker's ranks stand in a row, so they are drawn as a row. */
static kvb_status
draw_ports(struct kvb_fleet *fleet, uint32_t worker, uint64_t *dice, struct kvb_detail *detail)
{
    kvb_status status = KVB_AGAIN;

    for (int draw = 0; draw < max_draws && status == KVB_AGAIN; draw++) {
        const uint64_t more = kvb_random_below(dice, last_drawn_port - first_drawn_port);
        status = start_publishers(fleet, worker, (uint16_t)(first_drawn_port + more), detail);
    }
    return status;
}

static kvb_status
open_feed(struct kvb_fleet *fleet, uint32_t worker, uint16_t port, struct kvb_detail *detail)
{
    struct kvb_fleet_worker *at = &fleet->workers[worker];

    KVB_TRY(kvb_load_feed_new(fleet->zmq_context, fleet->options.address, port, detail, &at->feed));
    at->ports.load = kvb_load_feed_port(at->feed);
    return KVB_OK;
}

static kvb_status
open_worker(struct kvb_fleet *fleet, uint32_t worker, uint64_t *dice, struct kvb_detail *detail)
{
    const struct kvb_fleet_options *options = &fleet->options;
    struct kvb_fleet_worker *at = &fleet->workers[worker];

    at->ports.worker_id = options->first_worker + worker;
    if (options->base_port == 0) {
        KVB_TRY(draw_ports(fleet, worker, dice, detail));
        return open_feed(fleet, worker, 0, detail);
    }
    const uint16_t first = (uint16_t)(options->base_port + worker * (2 * options->ranks + 1));
    KVB_TRY(start_publishers(fleet, worker, first, detail));
    return open_feed(fleet, worker, (uint16_t)(first + 2 * options->ranks), detail);
}

kvb_status kvb_fleet_open(struct kvb_fleet *fleet, struct kvb_detail *detail)
{
    /* Not the fleet's seed: two fleets of one seed must not fight for one port. */
    uint64_t dice = kvb_clock_monotonic_ns();

    fleet->zmq_context = zmq_ctx_new();
    if (!fleet->zmq_context) {
        return KVB_NO_MEMORY;
    }
    /* Two of each rank, and as many again: all may restart at once, and libzmq closes the
     * old ones in its own time. */
    const size_t sockets = (4 * fleet->rank_count) + fleet->options.workers;
    (void)zmq_ctx_set(fleet->zmq_context, ZMQ_MAX_SOCKETS, (int)sockets + 64);
    for (uint32_t worker = 0; worker < fleet->options.workers; worker++) {
        const kvb_status status = open_worker(fleet, worker, &dice, detail);
        if (status != KVB_OK) {
            /* A port that stays taken is for the operator to mend. */
            return status == KVB_AGAIN ? KVB_BAD_CONFIG : status;
        }
    }
    return KVB_OK;
}

void kvb_fleet_close(struct kvb_fleet *fleet)
{
    for (uint32_t worker = 0; fleet->ranks && worker < fleet->options.workers; worker++) {
        stop_publishers(fleet, worker);
        kvb_load_feed_free(fleet->workers[worker].feed);
    }
    if (fleet->zmq_context) {
        (void)zmq_ctx_term(fleet->zmq_context); /* all its sockets are closed: no wait */
    }
}
