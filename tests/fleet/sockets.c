#include "core/clock.h"
#include "core/random.h"
#include "fleet/dialects/forward_pass.h"
#include "fleet/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum {
    first_drawn_port = 20000, /* below the kernel's ephemeral ports */
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

/* The ports of one worker's ranks are consecutive, so they are chosen together. */
static kvb_status
draw_ports(struct kvb_fleet *fleet, uint32_t worker, uint64_t *rng, struct kvb_detail *detail)
{
    kvb_status status = KVB_AGAIN;

    for (int draw = 0; draw < max_draws && status == KVB_AGAIN; draw++) {
        const uint64_t more = kvb_random_below(rng, last_drawn_port - first_drawn_port);
        status = start_publishers(fleet, worker, (uint16_t)(first_drawn_port + more), detail);
    }
    return status;
}

/* "tcp://127.0.0.1:5557" -> 5557 */
static kvb_status read_bound_port(void *socket, uint16_t *out_port)
{
    char endpoint[256] = { 0 };
    size_t len = sizeof endpoint;

    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &len) != 0) {
        return KVB_IO;
    }
    const char *colon = strrchr(endpoint, ':');
    *out_port = colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
    return *out_port > 0 ? KVB_OK : KVB_IO;
}

/* port 0: any free one. */
static kvb_status
open_feed(struct kvb_fleet *fleet, uint32_t worker, uint16_t port, struct kvb_detail *detail)
{
    struct kvb_fleet_worker *at = &fleet->workers[worker];
    char endpoint[128];
    const int linger_ms = 0;

    at->feed = zmq_socket(fleet->zmq_context, ZMQ_PUB);
    if (!at->feed || zmq_setsockopt(at->feed, ZMQ_LINGER, &linger_ms, sizeof linger_ms) != 0) {
        return KVB_IO;
    }
    (void)snprintf(
        endpoint, sizeof endpoint, port ? "tcp://%s:%u" : "tcp://%s:*", fleet->options.address,
        port);
    if (zmq_bind(at->feed, endpoint) != 0) {
        kvb_detail_set(detail, "%s: %s", endpoint, zmq_strerror(zmq_errno()));
        return KVB_BAD_CONFIG;
    }
    return read_bound_port(at->feed, &at->ports.load);
}

static kvb_status
open_worker(struct kvb_fleet *fleet, uint32_t worker, uint64_t *rng, struct kvb_detail *detail)
{
    const struct kvb_fleet_options *options = &fleet->options;
    struct kvb_fleet_worker *at = &fleet->workers[worker];

    at->ports.worker_id = options->first_worker + worker;
    if (options->base_port == 0) {
        KVB_TRY(draw_ports(fleet, worker, rng, detail));
        return open_feed(fleet, worker, 0, detail);
    }
    const uint16_t first = (uint16_t)(options->base_port + worker * (2 * options->ranks + 1));
    KVB_TRY(start_publishers(fleet, worker, first, detail));
    return open_feed(fleet, worker, (uint16_t)(first + 2 * options->ranks), detail);
}

kvb_status kvb_fleet_open(struct kvb_fleet *fleet, struct kvb_detail *detail)
{
    /* Not the fleet's seed: two fleets with the same seed must not choose the same ports. */
    uint64_t rng = kvb_clock_monotonic_ns();

    fleet->zmq_context = zmq_ctx_new();
    if (!fleet->zmq_context) {
        return KVB_NO_MEMORY;
    }
    /* Two for each rank, doubled: all ranks may restart at once, and libzmq closes old
     * sockets later. */
    const size_t sockets = (4 * fleet->rank_count) + fleet->options.workers;
    (void)zmq_ctx_set(fleet->zmq_context, ZMQ_MAX_SOCKETS, (int)sockets + 64);
    for (uint32_t worker = 0; worker < fleet->options.workers; worker++) {
        const kvb_status status = open_worker(fleet, worker, &rng, detail);
        if (status != KVB_OK) {
            /* A port that stays in use is an error of the configuration. */
            return status == KVB_AGAIN ? KVB_BAD_CONFIG : status;
        }
    }
    return KVB_OK;
}

void kvb_fleet_close(struct kvb_fleet *fleet)
{
    for (uint32_t worker = 0; fleet->ranks && worker < fleet->options.workers; worker++) {
        stop_publishers(fleet, worker);
        if (fleet->workers[worker].feed) {
            (void)zmq_close(fleet->workers[worker].feed);
        }
    }
    if (fleet->zmq_context) {
        (void)zmq_ctx_term(fleet->zmq_context); /* all its sockets are closed: no wait */
    }
}

void kvb_fleet_send_rank_load(
    struct kvb_fleet *fleet, uint32_t worker, uint32_t rank, const struct kvb_load *load)
{
    const struct kvb_load_sample sample = { .load = *load, .has_rank = true, .dp_rank = rank };
    struct kvb_buf *message = &fleet->load;

    kvb_buf_reset(message);
    if (kvb_forward_pass_encode(&sample, message) == KVB_OK) {
        (void)zmq_send(fleet->workers[worker].feed, message->data, message->len, 0);
    }
}
