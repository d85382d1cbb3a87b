#pragma once

#include "core/log.h"
#include "core/thread.h"
#include "kvbridge/config.h"
#include "wire/router/bridge_status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A running bridge is made of parts, each with a header of its own.  A file includes those that it
 * uses.
 *
 *     ingest.h       sockets of engines -> steps of their streams        the ingest thread
 *     publisher.h    streams -> NATS
 *     membership.h   ranks and load sources, and where they come from
 *     checkpoints.h  streams on the disk
 *     refresh.h      all held blocks stored again, on request
 *     rivals.h       other bridges with the same streams
 *     shown.h        what HTTP and $SRV show                             any thread
 */

struct kvb_control;
struct bridge_ingest;
struct bridge_publisher;
struct bridge_membership;
struct bridge_shown;
struct bridge_checkpoints;
struct bridge_refresh;
struct bridge_rivals;

struct kvb_bridge {
    const struct kvb_bridge_config *config; /* borrowed, like log */
    struct kvb_log *log;
    char bridge_id[kvb_bridge_id_bytes + 1];
    uint64_t started_ns;
    struct kvb_control *control; /* owned; timers, HTTP, files: control/control.h */

    /* Freed with the bridge: kvbridge/bridge.c. */
    struct bridge_ingest *ingest;
    struct bridge_publisher *publisher;
    struct bridge_membership *membership;
    struct bridge_shown *shown;
    struct bridge_checkpoints *checkpoints;
    struct bridge_refresh *refresh;
    struct bridge_rivals *rivals;

    struct kvb_thread thread; /* ingest */
    int wake_fd;              /* eventfd: stop, and commands */
    atomic_bool is_running;   /* commands are answered */
    atomic_bool is_stopping;
};
