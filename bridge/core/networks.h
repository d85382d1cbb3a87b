#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which addresses that others give may be connected to.
 *
 * Never metadata services of clouds, which answer with credentials of the machine.  These are
 * link-local addresses, the other rows in core/networks.c, and IPv6 addresses that lead to such an
 * IPv4 address (NAT64, 6to4).  A list of networks (CIDR) allows the others that are in it.  An IPv4
 * address that is mapped into IPv6 is handled as that IPv4 address.
 *
 * An address is numeric: "10.0.0.5", "fd00::5" or "[fe80::1%eth0]".  Any other text is not allowed.
 *
 * Threads: plain data. */

enum { kvb_max_networks = 64, kvb_network_bytes = 16 };

struct kvb_network {
    uint8_t bytes[kvb_network_bytes]; /* IPv4: ::ffff:a.b.c.d */
    uint8_t bits;                     /* of bytes: 0 .. 128 */
};

struct kvb_networks {
    size_t count;
    struct kvb_network items[kvb_max_networks];
};

/* Adds "10.0.0.0/8", "fd00::/8", or one address.
 * KVB_BAD_CONFIG  text is not a network, or has bits after its prefix
 * KVB_TOO_LARGE   the list is full
 * detail says what is wrong */
kvb_status
kvb_networks_add(struct kvb_networks *networks, const char *text, struct kvb_detail *detail);

/* False: a metadata service. */
bool kvb_address_is_allowed(const char *address);

/* True: it is in the list, and no metadata service. */
bool kvb_networks_allow(const struct kvb_networks *networks, const char *address);
