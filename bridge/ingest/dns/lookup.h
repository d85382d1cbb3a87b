#pragma once

#include "ingest/dns/entry.h"
#include "ingest/dns/members.h"

/* Looks up all members of a DNS name with c-ares: more addresses than an entry of the resolver
 * (resolver.h) keeps.  Each look-up opens a new c-ares channel, so it uses the current
 * servers, search domains and ndots of /etc/resolv.conf.  A long answer is read over TCP.
 *
 * Threads: any.  A look-up blocks for at most 6 s; it ends at once with KVB_DNS_FAILURE when
 * stop_fd becomes readable. */

/* Finds the A records of the name, or else its AAAA records.
 * KVB_DNS_NO_NAME  the name does not exist, or has no address: *out_members, which must be {0},
 *                  stays empty.  The caller frees *out_members. */
enum kvb_dns_result
kvb_dns_look_up_addresses(const char *name, int stop_fd, struct kvb_dns_members *out_members);
