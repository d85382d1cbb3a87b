#pragma once

#include "core/log.h"
#include "core/status.h"
#include "kvbridge/config.h"
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

/* Each rank belongs to one list.  The discovered ranks have one list for each engine.
 *
 *     file, at start and SIGHUP ---+
 *     pods of Kubernetes ----------+-- kvb_bridge_take_list(): replaces the whole list
 *     addresses of a DNS name -----+
 *     POST /register, /unregister ---- kvb_bridge_request_membership(): one rank
 *     answers of engines with `discover` in any of these lists */
enum {
    KVB_BRIDGE_OF_FILE,
    KVB_BRIDGE_OF_REGISTERED,
    KVB_BRIDGE_OF_KUBERNETES,
    KVB_BRIDGE_OF_DNS,
    KVB_BRIDGE_OF_DISCOVERED
};

enum kvb_bridge_wish {
    KVB_BRIDGE_REPLACE,  /* replace the whole list */
    KVB_BRIDGE_REGISTER, /* add one rank to the registered ones */
    KVB_BRIDGE_UPDATE,   /* replace the facts of the ranks of a list */
    KVB_BRIDGE_FORGET,   /* remove this worker, or this rank of it */
    KVB_BRIDGE_DRAIN,    /* this worker, or this rank of it, takes no new requests */
    KVB_BRIDGE_UNDRAIN,  /* it takes new requests again */
    KVB_BRIDGE_LOOK_UP   /* count its ranks, as marked, and all, as same */
};

/* The outcome for one worker of a list. */
enum kvb_bridge_taken {
    KVB_BRIDGE_TAKEN,
    KVB_BRIDGE_ID_TAKEN,      /* another list has a rank of this id and number */
    KVB_BRIDGE_ADDRESS_TAKEN, /* another list has a rank that reads this address */
    KVB_BRIDGE_FULL           /* no room for more ranks or open files */
};

struct kvb_membership_request {
    enum kvb_bridge_wish kind;
    uint32_t origin; /* which list; not for KVB_BRIDGE_FORGET and the next two kinds */
    /* With KVB_BRIDGE_REPLACE: marks the lists of engines that are no longer discovered, indexed by
     * origin - KVB_BRIDGE_OF_DISCOVERED, with kvb_max_workers elements; or NULL. */
    const bool *gone_origins;
    /* With KVB_BRIDGE_REPLACE: the outcome for each worker.  Workers that collide with other lists
     * are left out, and the rest is taken.  NULL: a list with a collision is refused. */
    enum kvb_bridge_taken *out_taken;
    const struct kvb_worker_facts *facts; /* borrowed; for KVB_BRIDGE_UPDATE */
    uint64_t worker_id; /* for KVB_BRIDGE_FORGET and the next two kinds; the fields below too */
    bool has_rank;
    uint32_t dp_rank;
    char model[kvb_model_bytes + 1]; /* "": any */
};

/* Numbers of ranks. */
struct kvb_membership_result {
    size_t added;
    size_t gone;
    size_t changed; /* closed and opened again with new keys */
    size_t same;
    size_t updated;  /* unchanged ones of which a published fact has changed */
    size_t marked;   /* marked as draining, or unmarked */
    size_t left_out; /* not added or changed: see out_taken */
    size_t failed;   /* of the added and changed ones: could not be opened */
    struct kvb_detail why;
};

/* Waits until the request is done; workers are borrowed until then.  Threads: any except the ingest
 * thread; not while the bridge stops.
 * KVB_BAD_CONFIG  it collides with existing workers.  After this and every other error except
 *                 KVB_IO nothing has changed
 * KVB_NOT_FOUND   no such worker or rank
 * KVB_TOO_LARGE   the bridge is full, or may open no more files
 * KVB_AGAIN       too many requests at once
 * KVB_IO          some ranks could not be opened; why has the reason of the last one
 * KVB_NO_MEMORY */
kvb_status kvb_bridge_request_membership(
    struct kvb_bridge *bridge, const struct kvb_membership_request *wish,
    const struct kvb_worker_config *workers, size_t worker_count,
    struct kvb_membership_result *out_answer);

/* Replaces the whole list of one source: the file, the pods of Kubernetes or the addresses of a DNS
 * name.  Unchanged ranks stay open.  A pair of id and rank, and an address, must be unique in the
 * list.  Calls kvb_bridge_request_membership(), then discovers the workers that have a `discover`
 * URL.  out_taken: the outcome for each worker, as in the request; or NULL.  A worker that was left
 * out or failed is tried again only when the list is given again.  Threads: any except the ingest
 * thread, and one thread for each origin. */
kvb_status kvb_bridge_take_list(
    struct kvb_bridge *bridge, uint32_t origin, const struct kvb_worker_config *workers,
    size_t count, enum kvb_bridge_taken *out_taken, struct kvb_membership_result *out_answer);

/* Publishes a goodbye for every stream, flushes, and frees the bridge.  NULL is fine. */
void kvb_bridge_stop(struct kvb_bridge *bridge);
