#pragma once

#include "core/limits.h"
#include "core/ring.h"
#include "core/status.h"
#include "kvbridge/bridge.h"
#include "kvbridge/part_table.h"
#include "kvbridge/reconcile.h"
#include "kvbridge/worker_list.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The ranks and load sources of a bridge, and the sources that name them.
 *
 *     file   registrations   DNS   pods          each on its own thread: its whole list
 *       \         |          |     /
 *        +--------+----------+----+--- answers of engines with `discover`
 *                     |
 *                  commands, one after another              the ingest thread
 *                     |
 *                  reconcile: the difference to `running`   kvbridge/reconcile.h
 *                     |
 *                  actions: close, open, one rank a step
 *
 * A source is started and stopped, and gives its whole list by kvb_bridge_take_list(). */

struct kvb_bridge;
struct bridge_rank;
struct bridge_load;
struct bridge_command;
struct kvb_discovery;
struct kvb_dns_list;
struct kvb_kubernetes;

/* The command that is under way, and the lists so far.  Only the ingest thread uses it, except for
 * the ring. */
struct bridge_reconciler {
    struct kvb_ring *commands;      /* owned */
    struct bridge_command *command; /* borrowed from the waiting thread; NULL: none */
    struct kvb_worker_list lists[KVB_SOURCE_COUNT];
    struct kvb_plan plan; /* owned: that of the command */
    size_t next_action;
    uint64_t give_up_ns; /* when to give up the rank that fails to open; 0: none fails */
    uint64_t waits_ns;   /* since when the thread waits for readers of metrics; 0: it does not */
};

/* Ranks that have registered, and will until they unregister or the bridge ends. */
struct bridge_registered {
    pthread_mutex_t lock; /* held while a request is answered: one after another */
    struct kvb_worker_list list;
};

struct bridge_membership {
    struct bridge_rank **ranks; /* owned: room for kvb_max_streams, rank_count in use */
    size_t rank_count;
    uint64_t changes;                                           /* ranks added or removed so far */
    struct bridge_rank *republished[kvb_max_republished_ranks]; /* borrowed */
    size_t republished_count;
    size_t next_republished;    /* the index of the one whose turn is first */
    struct bridge_load **loads; /* owned: room for kvb_max_workers */
    size_t load_count;
    struct kvb_part_table running; /* the parts of all ranks and loads; each is an owner in it */
    struct bridge_reconciler reconciler;
    struct bridge_registered registered;
    struct kvb_discovery *discovery;   /* owned */
    struct kvb_dns_list *dns_list;     /* owned; NULL: none is configured */
    struct kvb_kubernetes *kubernetes; /* owned; NULL: no pods are watched */
};

/* ---- Adding and removing ranks ---- */

/* Opens the ranks of the file, before the ingest thread runs. */
kvb_status kvb_bridge_open_membership(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_membership(struct bridge_membership *membership);

/* For kvb_discovery_options.take; the context is the bridge. */
kvb_status kvb_bridge_take_answer(
    void *context, uint32_t source, struct kvb_worker_spec *spec, struct kvb_parts *parts,
    struct kvb_detail *why);

/* Works on commands, a part in each turn.  True: there is more to do. */
bool kvb_bridge_work_membership(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- Sources with a thread or a job of their own ---- */

/* Before the ingest thread: what /state and /metrics show of them is there. */
kvb_status kvb_bridge_make_sources(struct kvb_bridge *bridge);
/* After it.  They end before that thread. */
kvb_status kvb_bridge_start_sources(struct kvb_bridge *bridge);
void kvb_bridge_stop_sources(struct bridge_membership *membership);
void kvb_bridge_free_sources(struct bridge_membership *membership);
