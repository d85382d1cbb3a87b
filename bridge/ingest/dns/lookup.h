#pragma once

#include "core/status.h"
#include "ingest/dns/entry.h"
#include "ingest/dns/members.h"

#include <stdbool.h>

/* One look-up by the C library: /etc/hosts, the name servers of /etc/resolv.conf, and what else
 * /etc/nsswitch.conf names.
 *
 * Such a call cannot be interrupted, and lasts 10 s or more while the name servers are silent
 * (resolv.conf(5): timeout, attempts).  So it runs on a detached thread, and neither a caller that
 * gives up nor the end of the process waits for it:
 *
 *     caller                               thread kvb-lookup
 *       start  ----------------------------> gethostbyname2_r(): IPv4, or else IPv6
 *       take: KVB_AGAIN                         |
 *       take: KVB_OK  <---- is_done ------------+
 *         or drop                            frees the look-up if the caller has dropped it
 *
 * Threads: the caller locks.
 * Memory:  the caller and the thread own a look-up together; the one that lets go last frees it. */
struct kvb_lookup;

enum kvb_lookup_kind {
    KVB_LOOKUP_HOST,   /* a host, wherever the C library finds it */
    KVB_LOOKUP_MEMBERS /* a name in DNS: a failure in one search domain is no answer */
};

/* Copies name.  On KVB_OK the caller calls kvb_lookup_take() or kvb_lookup_drop().
 * KVB_NO_MEMORY, KVB_IO: no thread   KVB_TOO_LARGE: too long for a host name */
kvb_status
kvb_lookup_start(const char *name, enum kvb_lookup_kind kind, struct kvb_lookup **out_lookup);

/* Never blocks.  On KVB_OK the look-up is freed, and the caller frees *out_found, which has no
 * items unless *out_result is KVB_DNS_OK.  KVB_AGAIN: it is not over. */
kvb_status kvb_lookup_take(
    struct kvb_lookup *lookup, enum kvb_dns_result *out_result, struct kvb_dns_members *out_found);

/* Never blocks; nobody takes the answer.  NULL is fine. */
void kvb_lookup_drop(struct kvb_lookup *lookup);
