#pragma once

#include "core/id_table.h"
#include "core/status.h"
#include "kvbridge/worker_spec.h"

#include <stdbool.h>
#include <stddef.h>

/* Who names workers.  Each source gives its whole list, again whenever it changes. */
enum kvb_source_number {
    KVB_SOURCE_FILE,       /* at start and SIGHUP */
    KVB_SOURCE_REGISTERED, /* POST /register, /unregister */
    KVB_SOURCE_KUBERNETES, /* pods */
    KVB_SOURCE_DNS,        /* addresses of a DNS name */
    KVB_SOURCE_COUNT
};

/* The whole list of one source: its workers, each with the parts that are to run.
 *
 *     worker 7   spec   parts 7/0 7/1 7 load
 *     worker 8   spec   parts: none yet, because the engine is asked for them
 *
 * Threads: plain data.  Memory: that of the specs and parts, and 40 bytes a worker. */
struct kvb_listed_worker {
    struct kvb_worker_spec *spec; /* a reference */
    struct kvb_parts parts;       /* owned */
    bool is_known; /* the parts are known: not discovered, or the engine has answered */
};

struct kvb_worker_list {
    struct kvb_listed_worker *items; /* owned */
    size_t count;
    size_t capacity;
    struct kvb_id_table by_id; /* by the id and number of the first rank */
};

/* {0} is an empty list. */
void kvb_worker_list_done(struct kvb_worker_list *list);

/* Adds a copy of the spec.  KVB_NO_MEMORY, KVB_TOO_LARGE: nothing has changed. */
kvb_status kvb_worker_list_add(struct kvb_worker_list *list, const struct kvb_worker_spec *spec);

/* Where an engine listens at its host; 0: it has no such port. */
struct kvb_host_ports {
    uint32_t events; /* never 0 */
    uint32_t replay;
    uint32_t metrics;
    uint32_t http;
};

/* Adds a worker at this host, an IP address: its addresses follow from the ports, and
 * KVB_AT_ADDRESS in the spec becomes its HTTP address, if it has one, else "". KVB_NO_MEMORY,
 * KVB_TOO_LARGE: nothing has changed. */
kvb_status kvb_worker_list_add_at(
    struct kvb_worker_list *list, const struct kvb_worker_spec *spec, const char *host,
    const struct kvb_host_ports *ports);

/* Adds what another list has, by references. */
kvb_status
kvb_worker_list_add_listed(struct kvb_worker_list *list, const struct kvb_listed_worker *worker);
/* All that it has.  *out_list must be {0}. */
kvb_status
kvb_worker_list_share(const struct kvb_worker_list *list, struct kvb_worker_list *out_list);

/* NULL: the list has no worker whose first rank has this id and number. */
struct kvb_listed_worker *
kvb_worker_list_find(const struct kvb_worker_list *list, const struct kvb_worker_spec *spec);

/* What is the same in an earlier list of the source is taken from it: specs and parts, and what
 * engines have answered.  KVB_NO_MEMORY: some of it */
kvb_status
kvb_worker_list_inherit(struct kvb_worker_list *list, const struct kvb_worker_list *earlier);
