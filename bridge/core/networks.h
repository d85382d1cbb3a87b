#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A list of IP networks (CIDR) that may be connected to.
 *
 * An empty list allows all addresses except metadata services of clouds, which answer with
 * credentials of the machine.  These are link-local addresses, the other rows in core/networks.c,
 * and IPv6 addresses that lead to such an IPv4 address (NAT64, 6to4).  A list that is not empty
 * allows only what it lists.  An IPv4 address that is mapped into IPv6 is handled as that IPv4
 * address.
 *
 * Threads: plain data. */

enum { kvb_max_networks = 64, kvb_network_bytes = 16 };

struct kvb_network {
    uint8_t bytes[kvb_network_bytes]; /* IPv4: ::ffff:a.b.c.d */
    uint8_t bits;                     /* of bytes: 0 .. 128 */
};

struct kvb_networks {
    const char *key;      /* key in the configuration, for errors; static */
    bool denies_metadata; /* refuse metadata services even where the list contains them */
    size_t count;
    struct kvb_network items[kvb_max_networks];
};

/* Adds "10.0.0.0/8", "fd00::/8", or one address.
 * KVB_BAD_CONFIG  text is not a network, or has bits after its prefix
 * KVB_TOO_LARGE   the list is full
 * detail says what is wrong */
kvb_status
kvb_networks_add(struct kvb_networks *networks, const char *text, struct kvb_detail *detail);

/* Whether a connection to the address is allowed.  address is numeric: "10.0.0.5", "fd00::5" or
 * "[fe80::1%eth0]".  Returns false for any other text. */
bool kvb_networks_allow(const struct kvb_networks *networks, const char *address);
