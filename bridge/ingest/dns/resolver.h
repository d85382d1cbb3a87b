#pragma once

#include "core/status.h"
#include "ingest/dns/entry.h"

#include <stdbool.h>
#include <stdint.h>

/* Looks host names up, so that neither libzmq's I/O threads nor libcurl do: getaddrinfo() blocks
 * its thread, and everything that the thread serves, while a name server does not answer.
 *
 *     any thread                       resolver thread (c-ares)
 *       look(host) --- query due --->    UDP, TCP  <--->  name servers
 *          |                                |
 *          +---- answer <--- entries <------+        one for each name, see ingest/dns/entry.h
 *
 * c-ares uses /etc/hosts and the servers, search domains and ndots of /etc/resolv.conf, which is
 * read again when it has changed.  Names that only a module of the C library knows (mdns,
 * myhostname) are not found.  "localhost" and numeric addresses need no query.
 *
 * Threads: its own, from the first query on; the functions: any thread.
 * Memory:  about 0.8 KiB a name, kvb_max_names at most; a name that was not looked up for
 *          10 minutes makes room for another. */
struct kvb_resolver;

struct kvb_dns_answer {
    struct kvb_addresses addresses; /* none: not known, or not yet */
    enum kvb_dns_result result;     /* of the newest query; addresses may be of an older one */
    bool is_queried;                /* a query is under way */
};

struct kvb_resolver_counters {
    uint64_t questions; /* queries sent */
    uint64_t results[KVB_DNS_RESULT_COUNT];
};

/* KVB_NO_MEMORY, KVB_IO  c-ares cannot be set up, or no descriptor */
kvb_status kvb_resolver_new(struct kvb_resolver **out_resolver);
/* Drops the queries under way; never waits for a name server.  NULL is fine. */
void kvb_resolver_free(struct kvb_resolver *resolver);

/* Returns what is known of the host, and sends a query when one is due.  Does not block.  With
 * resolver NULL only localhost is known. */
void kvb_resolver_look(
    struct kvb_resolver *resolver, const char *host, uint64_t now_ns,
    struct kvb_dns_answer *out_answer);

/* All zero for NULL. */
struct kvb_resolver_counters kvb_resolver_count(struct kvb_resolver *resolver);

/* True for "10.0.0.5", "fd00::5" and "[fd00::5]", which need no look-up. */
bool kvb_host_is_numeric(const char *host);
