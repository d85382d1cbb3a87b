#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The ranks and load sources of a bridge, and where they come from. */

struct kvb_bridge;
struct bridge_rank;
struct bridge_load;
struct membership_work;
struct kvb_discovery;
struct kvb_dns_list;
struct kvb_kubernetes;

/* All ranks and load sources, and the sources of their changes. */
struct bridge_membership {
    struct bridge_rank **ranks; /* owned: room for kvb_max_streams, rank_count in use */
    size_t rank_count;
    uint64_t changes;           /* ranks added or removed so far */
    size_t republished_count;   /* ranks whose events are republished */
    size_t next_republished;    /* whose turn is first */
    struct bridge_load **loads; /* owned: room for kvb_max_workers */
    size_t load_count;
    struct membership_work *work;      /* owned: kvbridge/membership.c */
    struct kvb_discovery *discovery;   /* owned */
    struct kvb_dns_list *dns_list;     /* owned; NULL: none is configured */
    struct kvb_kubernetes *kubernetes; /* owned; NULL: no pods are watched */
};

/* ---- kvbridge/membership.c: adding and removing ranks ---- */

/* Opens the ranks of the file, before the ingest thread runs. */
kvb_status kvb_bridge_open_membership(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_membership(struct bridge_membership *membership);

/* Starts discovery after the ingest thread; it ends before that thread. */
kvb_status kvb_bridge_open_discovery(struct kvb_bridge *bridge);

/* Works on requests, a part in each turn.  True: there is more to do. */
bool kvb_bridge_work_membership(struct kvb_bridge *bridge, uint64_t now_ns);
