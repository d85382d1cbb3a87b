#pragma once

#include "core/detail.h"
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

/* The port of the HTTP server; 0 when there is none. */
uint16_t kvb_bridge_http_port(const struct kvb_bridge *bridge);

/* Any thread. */
void kvb_bridge_liveness(const struct kvb_bridge *bridge, struct kvb_liveness *out_liveness);

/* ---- While it runs: workers come and go ---- */

/* Each rank belongs to one list.  The discovered ranks have one list for each engine. */
enum { KVB_BRIDGE_OF_FILE, KVB_BRIDGE_OF_REGISTERED, KVB_BRIDGE_OF_DISCOVERED };

enum kvb_bridge_wish {
    KVB_BRIDGE_REPLACE,  /* replace the whole list */
    KVB_BRIDGE_REGISTER, /* add one rank to the registered ones */
    KVB_BRIDGE_FORGET,   /* remove this worker, or this rank of it */
    KVB_BRIDGE_DRAIN,    /* this worker, or this rank of it, takes no new requests */
    KVB_BRIDGE_UNDRAIN,  /* takes them again */
    KVB_BRIDGE_WISH_COUNT
};

struct kvb_membership_request {
    enum kvb_bridge_wish kind;
    uint32_t origin; /* whose list; not of KVB_BRIDGE_FORGET and the two behind it */
    /* With the list of the file: the lists of engines that are discovered no more, by
     * origin from KVB_BRIDGE_OF_DISCOVERED on, are empty now; kvb_max_workers; or NULL. */
    const bool *gone_origins;
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
    size_t marked; /* draining, or no more */
    size_t failed; /* of added and changed: could not be opened, and are not there */
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

/* After the file was read again: calls kvb_bridge_request_membership() with its list, then
 * discovers the workers that the file gives as `discover`. */
kvb_status kvb_bridge_take_file(
    struct kvb_bridge *bridge, const struct kvb_bridge_config *config,
    struct kvb_membership_result *out_answer);

/* Says goodbye for every stream, flushes, and frees it.  NULL is fine. */
void kvb_bridge_stop(struct kvb_bridge *bridge);
