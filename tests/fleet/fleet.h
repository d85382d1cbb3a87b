#pragma once

#include "core/status.h"
#include "fleet/dialects/encode.h"
#include "fleet/engine/engine.h"
#include "fleet/publisher.h"
#include "fleet/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All simulated engines of one process, their sockets, and the requests they get.
 *
 *     trace -> requests -> worker 1 [ rank 0: engine -> publisher ]
 *                                   [ rank 1: engine -> publisher ]   one load feed
 *              most turns of a conversation go to the rank of the turn before,
 *              the others to any rank; in dialects that name salts on each event,
 *              half of the conversations have one of three salts
 *
 * A rank is addressed by its number in the fleet: 0 .. kvb_fleet_rank_count()-1.
 * Threads: only the thread that made it (publishers have their own).
 * Memory:  the engines', the publishers'. */
struct kvb_fleet;

enum { kvb_fleet_dialects = 64 };

struct kvb_fleet_options {
    uint64_t first_worker; /* the smallest worker id; the others follow */
    uint32_t workers;
    uint32_t ranks;                                /* of each worker */
    enum kvb_dialect dialects[kvb_fleet_dialects]; /* assigned to the workers in turn */
    size_t dialect_count;                          /* 1 .. */
    const char *address;                           /* address to bind; borrowed until _free() */
    uint16_t base_port;               /* 0: drawn.  Else worker w has its ranks' event ports at
                                         base + w * (2 * ranks + 1), then their replay ports, then
                                         the port of its load figures */
    struct kvb_engine_options engine; /* of every rank; rank and seed are set here */
    uint32_t replay_batches;
    const struct kvb_trace *trace; /* borrowed until _free(); NULL: requests_per_s is 0 */
    double requests_per_s;         /* of the whole fleet */
    uint64_t max_requests;         /* 0: for ever */
    uint32_t malformed_every; /* a malformed payload after so many batches of a rank; 0: never */
    size_t malformed_first;   /* the first kind, see malformed.h */
    size_t malformed_count;   /* number of kinds, used in turn */
    uint64_t seed;
};

/* Binds and starts everything; the first request comes with the first tick.
 * KVB_BAD_CONFIG  the engines' options are out of range, or a port cannot be had: detail says
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_fleet_new(
    const struct kvb_fleet_options *options, struct kvb_detail *detail,
    struct kvb_fleet **out_fleet);

/* Ends the threads.  NULL is fine. */
void kvb_fleet_free(struct kvb_fleet *fleet);

/* New requests for the time that went by, one step of every engine, its batch to
 * its publisher.  While paused: nothing.  KVB_NO_MEMORY: try again, nothing is lost. */
kvb_status kvb_fleet_tick(struct kvb_fleet *fleet, uint64_t now_ns);

/* Load figures to the feeds. */
void kvb_fleet_send_load(struct kvb_fleet *fleet);

void kvb_fleet_pause(struct kvb_fleet *fleet, bool is_paused);

/* Pauses, and waits until every batch is on its socket.  KVB_AGAIN: not in time. */
kvb_status kvb_fleet_drain(struct kvb_fleet *fleet, uint64_t timeout_ms);

size_t kvb_fleet_rank_count(const struct kvb_fleet *fleet);

/* KVB_NOT_FOUND */
kvb_status
kvb_fleet_find(const struct kvb_fleet *fleet, uint64_t worker_id, uint32_t rank, size_t *out_at);

/* A request from outside the trace, without a salt, for one rank.  As kvb_engine_admit_watched().
 */
kvb_status kvb_fleet_admit(
    struct kvb_fleet *fleet, size_t at, const uint32_t *tokens, uint32_t count,
    uint32_t output_length, struct kvb_request_progress *progress);

/* As kvb_engine_truth(), with the worker's id. */
kvb_status kvb_fleet_truth(const struct kvb_fleet *fleet, size_t at, struct kvb_truth *out_truth);

/* As kvb_engine_log(). */
const struct kvb_content_log *kvb_fleet_log(const struct kvb_fleet *fleet, size_t at);

/* Empties the prefix cache; the event is published with the engine's next step. */
kvb_status kvb_fleet_reset(struct kvb_fleet *fleet, size_t at);

/* As kvb_engine_set_sleep() and kvb_engine_lose_events(). */
kvb_status kvb_fleet_set_sleep(struct kvb_fleet *fleet, size_t at, enum kvb_engine_sleep sleep);
void kvb_fleet_lose_events(struct kvb_fleet *fleet, size_t at, uint64_t batches);

/* The process ends and starts again; keeps_seed: its hashes stay the same. */
kvb_status kvb_fleet_restart(struct kvb_fleet *fleet, size_t at, bool keeps_seed);

/* The next batches go into the replay buffer, but are not published. */
void kvb_fleet_withhold(struct kvb_fleet *fleet, size_t at, uint64_t batches);

/* One malformed payload of each kind first .. first + count - 1 (see malformed.h), each
 * with a number of its own, after one of the next batches. */
void kvb_fleet_malform(struct kvb_fleet *fleet, size_t at, size_t first, size_t count);

struct kvb_fleet_rank_state {
    uint64_t worker_id;
    uint32_t worker; /* from 0 */
    uint32_t rank;
    uint64_t malformed; /* payloads sent */
    struct kvb_engine_stats stats;
    struct kvb_publisher_counts counts;
};

void kvb_fleet_rank_state(
    const struct kvb_fleet *fleet, size_t at, struct kvb_fleet_rank_state *out_state);

struct kvb_fleet_totals {
    uint64_t requests;  /* admitted */
    uint64_t refused;   /* the engine's queue was full */
    uint64_t too_large; /* for the engine's cache */
    uint64_t finished;
    uint64_t batches;
    uint64_t failures; /* batches that could not be encoded: a bug */
    uint64_t held_blocks;
    uint64_t running;
    uint64_t waiting;
    bool is_paused;
};

void kvb_fleet_totals(const struct kvb_fleet *fleet, struct kvb_fleet_totals *out_totals);

/* Where worker number `worker` (from 0) can be reached. */
struct kvb_fleet_ports {
    uint64_t worker_id;
    uint16_t events; /* rank 0; rank r is at events + r, likewise replay */
    uint16_t replay;
    uint16_t load;
};

struct kvb_fleet_ports kvb_fleet_ports(const struct kvb_fleet *fleet, uint32_t worker);

/* How worker number `worker` speaks. */
const struct kvb_dialect_row *kvb_fleet_dialect(const struct kvb_fleet *fleet, uint32_t worker);
