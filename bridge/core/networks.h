#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A list of IP networks (CIDR) that may be connected to.
 *
 * An empty list allows all addresses but those where clouds answer with credentials of the machine:
 * link-local ones and the rows in networks.c, also where IPv6 leads to the IPv4 ones (NAT64, 6to4).
 * A list allows what it lists, and nothing else.  An IPv4 address that is mapped into IPv6 is the
 * IPv4 address.
 *
 * Threads: plain data. */

enum { kvb_max_networks = 64, kvb_network_bytes = 16 };

struct kvb_network {
    uint8_t bytes[kvb_network_bytes]; /* IPv4: ::ffff:a.b.c.d */
    uint8_t bits;                     /* of bytes: 0 .. 128 */
};

struct kvb_networks {
    const char *key; /* of the configuration, for errors; static */
    size_t count;
    struct kvb_network items[kvb_max_networks];
};

/* Adds "10.0.0.0/8", "fd00::/8", or one address.
 * KVB_BAD_CONFIG  it is none, or has bits beyond its prefix   KVB_TOO_LARGE
 * detail says what is wrong */
kvb_status
kvb_networks_add(struct kvb_networks *networks, const char *text, struct kvb_detail *detail);

/* address: numeric, "10.0.0.5", "fd00::5" or "[fe80::1%eth0]"; false when it is not. */
bool kvb_networks_allow(const struct kvb_networks *networks, const char *address);
