#pragma once

#include "core/status.h"
#include "ingest/dns/entry.h"

#include <stdbool.h>
#include <stdint.h>

/* Looks host names up in a thread of its own, for libzmq and libcurl.  Their own look-ups use
 * getaddrinfo(), which blocks a thread and everything that it serves while a name server is silent.
 *
 *     any thread                       resolver thread (c-ares)
 *       look(host) --- query due --->    UDP, TCP  <--->  name servers
 *          |                                |
 *          +---- answer <--- entries <------+        one entry a name, see ingest/dns/entry.h
 *
 * c-ares uses /etc/hosts and the servers, search domains and ndots of /etc/resolv.conf, which is
 * read again when it has changed.  Names that only a module of the C library resolves (mdns,
 * myhostname) are not found.  "localhost" and numeric addresses need no query.
 *
 * Threads: one of its own, started by the first query; the functions: any thread.
 * Memory:  about 0.8 KiB a name, kvb_max_names at most.  A full table drops names that were not
 *          looked up for 10 minutes. */
struct kvb_resolver;

struct kvb_dns_answer {
    struct kvb_addresses addresses; /* count 0: none known, or not yet */
    enum kvb_dns_result result; /* result of the newest query; addresses may be from an older one */
    bool is_queried;            /* a query is under way */
};

struct kvb_resolver_counters {
    uint64_t questions; /* queries sent */
    uint64_t results[KVB_DNS_RESULT_COUNT];
};

/* KVB_NO_MEMORY, KVB_IO: c-ares cannot be initialised, or no descriptor is left */
kvb_status kvb_resolver_new(struct kvb_resolver **out_resolver);
/* Drops the queries under way; never waits for a name server.  NULL is fine. */
void kvb_resolver_free(struct kvb_resolver *resolver);

/* Returns what is known about the host, and has a query sent when one is due.  Never blocks.  With
 * resolver NULL only localhost is known. */
void kvb_resolver_look(
    struct kvb_resolver *resolver, const char *host, uint64_t now_ns,
    struct kvb_dns_answer *out_answer);

/* All zero for NULL. */
struct kvb_resolver_counters kvb_resolver_count(struct kvb_resolver *resolver);

/* True for "10.0.0.5", "fd00::5" and "[fd00::5]", which need no look-up. */
bool kvb_host_is_numeric(const char *host);
