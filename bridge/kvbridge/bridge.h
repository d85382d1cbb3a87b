#pragma once

#include "core/log.h"
#include "core/status.h"
#include "kvbridge/config.h"
#include "model/liveness.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The worker side, running: engines' sockets in, NATS out.
 *
 *     ingest thread   owns sockets, decoder, streams, publisher; woken by zmq_poll
 *     nats.c          connection callbacks, bridge_status of other bridges
 *     HTTP threads    read atomics, and a text made by the ingest thread
 *
 * Starting needs no engine and no nats-server: both may come later. */
struct kvb_bridge;

/* config and log are borrowed until kvb_bridge_stop().
 * KVB_BAD_CONFIG  something in the configuration cannot be had: an endpoint, a
 *                 port, descriptors; detail says which
 * KVB_AGAIN       another process has the directory of checkpoints; nothing else was tried
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_bridge_start(
    const struct kvb_bridge_config *config, struct kvb_log *log, struct kvb_bridge **out_bridge,
    struct kvb_detail *detail);

/* Can this process open as many sockets as the configuration has?  Raises its limits as
 * far as it may.  KVB_BAD_CONFIG: no; detail says what to do. */
kvb_status
kvb_bridge_raise_limits(const struct kvb_bridge_config *config, struct kvb_detail *detail);

/* Has the HTTP server read its certificates and token again. */
void kvb_bridge_reload_http(struct kvb_bridge *bridge);

/* The port of the HTTP server; 0 when there is none. */
uint16_t kvb_bridge_http_port(const struct kvb_bridge *bridge);

/* Has NATS use this login, as kvb_bus_renew(); errors are its. */
kvb_status kvb_bridge_renew_login(
    struct kvb_bridge *bridge, const struct kvb_bus_login *login, struct kvb_detail *detail);

/* Any thread. */
void kvb_bridge_liveness(const struct kvb_bridge *bridge, struct kvb_liveness *out_liveness);

/* ---- While it runs: workers come and go ---- */

/* Each rank belongs to one list.  The discovered ranks have one list for each engine.
 *
 *     file, at start and SIGHUP ---+
 *     pods of Kubernetes ----------+-- kvb_bridge_take_list(): the whole list, in place of the
 *     addresses of a DNS name -----+                           one before
 *     POST /register, /unregister ---- kvb_bridge_request_membership(): one rank
 *     answers of engines that any of the lists gives as `discover` */
enum {
    KVB_BRIDGE_OF_FILE,
    KVB_BRIDGE_OF_REGISTERED,
    KVB_BRIDGE_OF_KUBERNETES,
    KVB_BRIDGE_OF_DNS,
    KVB_BRIDGE_OF_DISCOVERED
};

/* "file", "registered", "kubernetes", "dns", "discovered". */
const char *kvb_bridge_origin_name(uint32_t origin);

enum kvb_bridge_wish {
    KVB_BRIDGE_REPLACE,  /* replace the whole list */
    KVB_BRIDGE_REGISTER, /* add one rank to the registered ones */
    KVB_BRIDGE_UPDATE,   /* the ranks of a list have these facts now */
    KVB_BRIDGE_FORGET,   /* remove this worker, or this rank of it */
    KVB_BRIDGE_DRAIN,    /* this worker, or this rank of it, takes no new requests */
    KVB_BRIDGE_UNDRAIN,  /* takes them again */
    KVB_BRIDGE_WISH_COUNT
};

/* What became of one worker of a list. */
enum kvb_bridge_taken {
    KVB_BRIDGE_TAKEN,
    KVB_BRIDGE_ID_TAKEN,      /* another list has a rank of this id and number */
    KVB_BRIDGE_ADDRESS_TAKEN, /* another list has a rank that reads this address */
    KVB_BRIDGE_FULL           /* ranks, or files that this process may open */
};

struct kvb_membership_request {
    enum kvb_bridge_wish kind;
    uint32_t origin; /* whose list; not of KVB_BRIDGE_FORGET and the two behind it */
    /* With KVB_BRIDGE_REPLACE: the lists of engines that are discovered no more, by
     * origin from KVB_BRIDGE_OF_DISCOVERED on, are empty now; kvb_max_workers; or NULL. */
    const bool *gone_origins;
    /* With KVB_BRIDGE_REPLACE, of each worker.  Those that cannot be taken beside other lists
     * are left out, and the rest of the list is taken.  NULL: such a list is refused. */
    enum kvb_bridge_taken *out_taken;
    const struct kvb_worker_facts *facts; /* borrowed; of KVB_BRIDGE_UPDATE */
    uint64_t worker_id; /* of KVB_BRIDGE_FORGET and the two behind it, like all below */
    bool has_rank;
    uint32_t dp_rank;
    char model[kvb_model_bytes + 1]; /* "": any */
};

/* In ranks. */
struct kvb_membership_result {
    size_t added;
    size_t gone;
    size_t changed; /* closed, and opened again as they are now */
    size_t same;
    size_t updated;  /* of those the same: something published about them has changed */
    size_t marked;   /* draining, or no more */
    size_t left_out; /* not of added or changed: see out_taken */
    size_t failed;   /* of added and changed: could not be opened, and are not there */
    struct kvb_detail why;
};

/* Waits until it is done; workers are borrowed meanwhile.  Any thread but the ingest
 * thread's; not while the bridge stops.
 * KVB_BAD_CONFIG  collides with existing workers; nothing has changed, as with every
 *                 other error but KVB_IO
 * KVB_NOT_FOUND   no such worker or rank
 * KVB_TOO_LARGE   the bridge is full, or may open no more files
 * KVB_AGAIN       too many requests at once
 * KVB_IO          some ranks could not be opened; why has the reason of the last one
 * KVB_NO_MEMORY */
kvb_status kvb_bridge_request_membership(
    struct kvb_bridge *bridge, const struct kvb_membership_request *wish,
    const struct kvb_worker_config *workers, size_t worker_count,
    struct kvb_membership_result *out_answer);

/* The workers that one source knows now, all of them: the file that was read again, the pods of
 * Kubernetes, the addresses of a name.  What is the same stays open.  No id and rank, and no
 * address, may stand twice in the list.  Calls kvb_bridge_request_membership(), then discovers
 * the workers that have a `discover` URL.  out_taken: of each worker, as in the request; or NULL.
 * A worker that was left out, or that failed, is tried again only when the list is given again.
 * Any thread but the ingest thread's, and one thread for each origin. */
kvb_status kvb_bridge_take_list(
    struct kvb_bridge *bridge, uint32_t origin, const struct kvb_worker_config *workers,
    size_t count, enum kvb_bridge_taken *out_taken, struct kvb_membership_result *out_answer);

/* Says goodbye for every stream, flushes, and frees it.  NULL is fine. */
void kvb_bridge_stop(struct kvb_bridge *bridge);
