#pragma once

#include "core/status.h"
#include "ingest/dns/entry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The members of a DNS name: the addresses in its answers, for example those of a headless
 * Service of Kubernetes.
 *
 *                 listed                    not listed, 3 answers in a row
 *     (not known) -------> member, 0 misses ------------------------------> (removed)
 *                             ^        | not listed: one miss more
 *                             +--------+ listed: 0 again
 *
 * A single answer may lack a member: a secondary server may lag, and a Service omits a pod that is
 * not ready.  A failed query is no answer and changes nothing.
 *
 * Pure.  Threads: plain data. */

enum { kvb_max_dns_members = 4096, kvb_dns_misses = 3 };

struct kvb_dns_member {
    char host[kvb_address_bytes]; /* numeric */
    uint8_t misses;
};

struct kvb_dns_members {
    struct kvb_dns_member *items; /* owned; sorted by host; NULL: none */
    size_t count;
};

/* {0} is fine. */
void kvb_dns_members_done(struct kvb_dns_members *members);

/* Appends a member; host is numeric.
 * KVB_TOO_LARGE  there are kvb_max_dns_members already   KVB_NO_MEMORY */
kvb_status kvb_dns_members_add(struct kvb_dns_members *members, const char *host);

/* Merges an answer.  `found` may be in any order and may have duplicates; it is sorted, without
 * duplicates, on return.  *out_has_changed: members were added or removed.  KVB_NO_MEMORY: members
 * is unchanged. */
kvb_status kvb_dns_members_answered(
    struct kvb_dns_members *members, struct kvb_dns_members *found, bool *out_has_changed);
