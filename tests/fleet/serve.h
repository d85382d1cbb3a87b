#pragma once

#include "core/status.h"
#include "fleet/fleet.h"
#include "fleet/metrics_page.h"

#include <stdint.h>

/* The HTTP side of the simulated engines: each worker has a port of its own, as a vLLM server has.
 *
 *     POST /v1/completions, /v1/chat/completions   computed by a rank of the worker; streamed when
 *                                                  the request says so
 *     POST /tokenize                               the token ids of a prompt
 *     GET /metrics                                 as kvb_metrics_page_write()
 *
 *     HTTP thread of the worker        the fleet's thread, once a step
 *     read the body, suspend the
 *     connection                -----> kvb_serve_admit()      to a rank
 *                                      kvb_fleet_tick()       the engine's step
 *     send what is there       <-----  kvb_serve_pass_on()    new tokens, resume the connection
 *
 * A request goes to the rank in the header X-data-parallel-rank, otherwise to the one with the
 * fewest requests, by vLLM's formula: 4 * waiting + running.  A request whose client has left ends
 * with the next step.
 *
 * Threads: one of libmicrohttpd for each worker; the calls only from the fleet's thread.
 * Memory:  at most 4,096 requests, each with a body of 4 MiB at most. */
struct kvb_serve;

struct kvb_serve_options {
    const char *address; /* "127.0.0.1", borrowed for the call */
    uint16_t base_port;  /* of worker 0, the others follow; 0: free ones */
    const char *model;   /* borrowed until _free(), like the next */
    struct kvb_metrics_page *page;
    uint32_t workers;
    uint32_t ranks;
};

/* KVB_BAD_CONFIG  an address that cannot be listened on: detail says which
 * KVB_NO_MEMORY */
kvb_status kvb_serve_start(
    const struct kvb_serve_options *options, struct kvb_detail *detail,
    struct kvb_serve **out_serve);

/* Ends all connections and threads.  The engines may still hold requests, so _free() comes after
 * the end of the fleet.  NULL is fine, for both. */
void kvb_serve_stop(struct kvb_serve *serve);
void kvb_serve_free(struct kvb_serve *serve);

/* The port of worker number `worker`, from 0. */
uint16_t kvb_serve_port(const struct kvb_serve *serve, uint32_t worker);

/* Gives the engines the requests that have arrived. */
void kvb_serve_admit(struct kvb_serve *serve, struct kvb_fleet *fleet);

/* Passes what the engines made of them to the connections. */
void kvb_serve_pass_on(struct kvb_serve *serve);
