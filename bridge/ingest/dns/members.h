#pragma once

#include "core/status.h"
#include "ingest/dns/entry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The members of a DNS name: the hosts and ports that its answers list, such as those of a headless
 * Service of Kubernetes.
 *
 *                 listed                    not listed, 3 answers in a row
 *     (not known) -------> member, 0 misses ------------------------------> (removed)
 *                             ^        | not listed: one miss more
 *                             +--------+ listed: 0 again
 *
 * One answer may lack a member for a moment: a server behind another one may be late, and a pod
 * that is not ready yet is left out.  A query that failed is no answer, and changes nothing.
 *
 * Pure.  Threads: plain data. */

enum { kvb_max_dns_members = 4096, kvb_dns_misses = 3 };

struct kvb_dns_member {
    char host[kvb_host_bytes]; /* numeric, or the target of an SRV record */
    uint16_t port;
    uint8_t misses;
};

struct kvb_dns_members {
    struct kvb_dns_member *items; /* owned; in the order of host and port; NULL: none */
    size_t count;
};

/* {0} is fine. */
void kvb_dns_members_done(struct kvb_dns_members *members);

/* Appends.  KVB_TOO_LARGE  there are kvb_max_dns_members
 * KVB_BAD_INPUT  no host or port, too long a host, or letters that no host has: it becomes a part
 *                of an endpoint   KVB_NO_MEMORY */
kvb_status kvb_dns_members_add(struct kvb_dns_members *members, const char *host, uint16_t port);

/* An answer with these hosts and ports, in any order, some perhaps twice; found is sorted,
 * and has each once then.
 * *out_has_changed: some are new, or removed.  KVB_NO_MEMORY: as before. */
kvb_status kvb_dns_members_answered(
    struct kvb_dns_members *members, struct kvb_dns_members *found, bool *out_has_changed);
