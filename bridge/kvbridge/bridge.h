#pragma once

#include "core/log.h"
#include "core/status.h"
#include "kvbridge/config.h"
#include "kvbridge/reconcile.h"
#include "model/liveness.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A running kvbridge: reads the sockets of engines and publishes on NATS.
 *
 *     ingest thread   owns sockets, decoder, streams, publisher; woken by zmq_poll
 *     nats.c          connection callbacks, requests, streams of other bridges
 *     HTTP threads    read atomics, and a text made by the ingest thread
 *
 * It starts without engines and without nats-server, which may start later. */
struct kvb_bridge;

/* config and log are borrowed until kvb_bridge_stop().
 * KVB_BAD_CONFIG  an endpoint, a port or the number of open files cannot be used; detail says which
 * KVB_AGAIN       another process has the directory of checkpoints; nothing else was tried
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_bridge_start(
    const struct kvb_bridge_config *config, struct kvb_log *log, struct kvb_bridge **out_bridge,
    struct kvb_detail *detail);

/* Checks that this process can open all sockets of the configuration, and raises its limits as far
 * as allowed.  KVB_BAD_CONFIG: it cannot; detail has the remedy. */
kvb_status
kvb_bridge_raise_limits(const struct kvb_bridge_config *config, struct kvb_detail *detail);

/* Has the HTTP server read its certificates and token again. */
void kvb_bridge_reload_http(struct kvb_bridge *bridge);

/* The port of the HTTP server; 0 when there is none. */
uint16_t kvb_bridge_http_port(const struct kvb_bridge *bridge);

/* Replaces the login of NATS, with the errors of kvb_bus_renew(). */
kvb_status kvb_bridge_renew_login(
    struct kvb_bridge *bridge, const struct kvb_bus_login *login, struct kvb_detail *detail);

/* Any thread. */
void kvb_bridge_liveness(const struct kvb_bridge *bridge, struct kvb_liveness *out_liveness);

/* ---- Adding and removing workers while it runs ---- */

/* Numbers of ranks. */
struct kvb_membership_result {
    size_t added;
    size_t gone;
    size_t changed; /* closed and opened again with new keys */
    size_t same;
    size_t updated;  /* unchanged ones of which a published fact has changed */
    size_t marked;   /* marked as draining, or unmarked */
    size_t left_out; /* not added or changed: see the verdicts */
    size_t failed;   /* of the added and changed ones: could not be opened */
    struct kvb_detail why;
};

/* A source gives its whole list (kvbridge/worker_list.h), and waits until the difference to what
 * runs is carried out: kvbridge/reconcile.h.  Unchanged ranks stay open, and so do those of other
 * sources.  A pair of id and rank, and an address, must be unique in the list.  What engines with
 * `discover` answer belongs to the list that has them.
 *
 * out_verdicts: the outcome for each worker; workers that collide with other sources, or find no
 * room, are left out, and the rest is taken.  NULL: a list with a collision is refused.  A worker
 * that was left out or failed is tried again only when the list is given again.
 *
 * Threads: any except the ingest thread, one for each source; not while the bridge stops.
 * KVB_BAD_CONFIG  it collides with existing workers.  After this and every other error except
 *                 KVB_IO nothing has changed
 * KVB_TOO_LARGE   the bridge is full, or may open no more files
 * KVB_AGAIN       too many requests at once
 * KVB_IO          some ranks could not be opened; why has the reason of the last one
 * KVB_NO_MEMORY */
kvb_status kvb_bridge_take_list(
    struct kvb_bridge *bridge, enum kvb_source_number source, const struct kvb_worker_list *list,
    enum kvb_verdict *out_verdicts, struct kvb_membership_result *out_answer);

/* The same for a source that does not know the bridge. */
typedef kvb_status kvb_take_list(
    void *context, const struct kvb_worker_list *list, enum kvb_verdict *out_verdicts,
    struct kvb_membership_result *out_answer);

/* Which ranks are meant: of one worker. */
struct kvb_rank_choice {
    uint64_t worker_id;
    bool has_rank; /* else all ranks of the worker */
    uint32_t dp_rank;
    const char *model; /* ""; else only if it serves this model */
};

/* Marks ranks of any source: they take no new requests, or do again.  out_answer->marked has how
 * many, those that were marked already too.  KVB_NOT_FOUND: no such worker or rank. */
kvb_status kvb_bridge_drain(
    struct kvb_bridge *bridge, const struct kvb_rank_choice *choice, bool is_draining,
    struct kvb_membership_result *out_answer);

/* Says in out_answer->why whose the ranks are.
 * KVB_BAD_CONFIG  there is one
 * KVB_NOT_FOUND   there is none */
kvb_status kvb_bridge_find_source(
    struct kvb_bridge *bridge, const struct kvb_rank_choice *choice,
    struct kvb_membership_result *out_answer);

/* Publishes a goodbye for every stream, flushes, and frees the bridge.  NULL is fine. */
void kvb_bridge_stop(struct kvb_bridge *bridge);
