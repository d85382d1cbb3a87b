#pragma once

#include "ingest/dns/entry.h"
#include "ingest/dns/members.h"

#include <stdint.h>

/* All members of a DNS name at once, by c-ares: more addresses than a resolver's entry keeps
 * (resolver.h), and SRV records.  Each look-up has a channel of its own, so that it takes the
 * servers, search domains and ndots of /etc/resolv.conf as they are now; a long answer comes over
 * TCP.
 *
 * Threads: any; it waits, 6 s at most and only until stop_fd is readable (KVB_DNS_FAILURE). */

/* The name's A records, or, if it has none, its AAAA records, each with this port.
 * KVB_DNS_NO_NAME  there is no such name, or no address of it: *out_members, which must be {0},
 *                  stays empty.  The caller frees what was found. */
enum kvb_dns_result kvb_dns_look_up_addresses(
    const char *name, uint16_t port, int stop_fd, struct kvb_dns_members *out_members);

/* The targets and ports of the name's SRV records, such as _kv-events._tcp.vllm-headless; the
 * targets are names.  Results as above. */
enum kvb_dns_result
kvb_dns_look_up_services(const char *name, int stop_fd, struct kvb_dns_members *out_members);
