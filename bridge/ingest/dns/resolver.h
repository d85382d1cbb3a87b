#pragma once

#include "core/status.h"
#include "ingest/dns/entry.h"

#include <stdbool.h>
#include <stdint.h>

/* Looks host names up for libzmq and libcurl.  While a name server is silent, libzmq's own look-up
 * would block its thread with all connections.  libcurl's own would start a thread for each
 * transfer, without limit, and wait for it when the transfer is given up.
 *
 *     any thread
 *       look(host) ---- query due ----> queue ----> at most kvb_max_lookups at once,
 *          |                                        each on a thread: ingest/dns/lookup.h
 *          +---- answer <--- entries <----------------+
 *                            one a name: ingest/dns/entry.h
 *
 * Each call also takes the answers that have arrived for other names, and starts what waits.
 * "localhost" and numeric addresses need no look-up.
 *
 * Threads: any thread.
 * Memory:  about 0.8 KiB a name, kvb_max_names at most.  A full table drops names that were not
 *          looked up for 10 minutes. */
struct kvb_resolver;

struct kvb_dns_answer {
    struct kvb_addresses addresses; /* count 0: none known, or not yet */
    enum kvb_dns_result result; /* result of the newest query; addresses may be from an older one */
    bool is_queried;            /* a query is under way */
};

struct kvb_resolver_counters {
    uint64_t questions; /* look-ups begun */
    uint64_t results[KVB_DNS_RESULT_COUNT];
};

/* KVB_NO_MEMORY */
kvb_status kvb_resolver_new(struct kvb_resolver **out_resolver);
/* Drops the look-ups under way; never waits for a name server.  NULL is fine. */
void kvb_resolver_free(struct kvb_resolver *resolver);

/* Returns what is known about the host, and has it looked up when that is due.  Never blocks.  With
 * resolver NULL only localhost is known. */
void kvb_resolver_look(
    struct kvb_resolver *resolver, const char *host, uint64_t now_ns,
    struct kvb_dns_answer *out_answer);

/* All zero for NULL. */
struct kvb_resolver_counters kvb_resolver_count(struct kvb_resolver *resolver);

/* True for "10.0.0.5", "fd00::5" and "[fd00::5]", which need no look-up. */
bool kvb_host_is_numeric(const char *host);
