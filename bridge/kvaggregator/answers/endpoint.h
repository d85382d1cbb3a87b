#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a gateway sends a request: "10.0.0.1:8000", "[2001:db8::1]:8000".  Names are no endpoints:
 * a gateway does not resolve what a picker says.  Threads: any thread; no state. */

enum { kvb_endpoint_bytes = 56 }; /* as text, with the NUL */

struct kvb_endpoint {
    uint8_t ip[16]; /* an IPv4 address is mapped into IPv6 */
    uint16_t port;  /* 0: each port of it */
};

/* Reads "ip:port" or "ip".  KVB_BAD_INPUT */
kvb_status kvb_endpoint_read(kvb_span text, struct kvb_endpoint *out_endpoint);

/* The endpoint of a worker's URL; the port is that of its scheme where it says none.
 * KVB_BAD_INPUT: no literal IP address */
kvb_status kvb_endpoint_of_address(const char *address, struct kvb_endpoint *out_endpoint);

/* Writes it, with a port added to it. */
void kvb_endpoint_write(
    const struct kvb_endpoint *endpoint, unsigned more_ports, char out[kvb_endpoint_bytes]);

/* A 64-bit hash, for kvb_endpoint_is_among(). */
uint64_t kvb_endpoint_hash(const struct kvb_endpoint *endpoint);

/* True: the endpoint, or its address with each port, is one of these hashes, which are sorted by
 * kvb_selection_compare(). */
bool kvb_endpoint_is_among(
    const struct kvb_endpoint *endpoint, const uint64_t hashes[], size_t count);
