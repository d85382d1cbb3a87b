#pragma once

#include "core/status.h"
#include "ingest/dns/entry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An endpoint of libzmq whose host may be a name, which is replaced by a numeric address before
 * libzmq gets it.
 *
 *     tcp://engine-2.fleet:5557   -->  tcp://10.0.0.5:5557, tcp://[fd00::5]:5557
 *     tcp://10.0.0.5:5557, tcp: with host *, ipc://, inproc://, a bound interface name: unchanged
 *
 * Threads: the caller locks. */
struct kvb_resolver;

enum { kvb_named_endpoint_bytes = 256, kvb_zmq_address_bytes = kvb_named_endpoint_bytes + 64 };

struct kvb_named_endpoint {
    char text[kvb_named_endpoint_bytes]; /* as configured */
    char host[kvb_named_endpoint_bytes]; /* "": no look-up is needed */
    size_t host_at;                      /* offset of host in text */
    bool refuses_metadata;               /* kvb_named_endpoint_restrict() */
    struct kvb_address_choice choice;
    struct kvb_detail why; /* why host was not resolved or its address not allowed; "": no error */
};

/* is_bound: libzmq binds the endpoint instead of connecting to it.  KVB_TOO_LARGE */
kvb_status
kvb_named_endpoint_set(struct kvb_named_endpoint *endpoint, const char *text, bool is_bound);

/* From now on metadata addresses (core/networks.h) are not chosen.  They are checked after each
 * look-up, so a name cannot later resolve to one.  Not for bound endpoints. */
void kvb_named_endpoint_restrict(struct kvb_named_endpoint *endpoint);

/* Looks the host up and chooses an address.  has_failed: a connection to the current address has
 * failed.  *out_has_moved: the address has changed.
 * KVB_OK         there is an address
 * KVB_AGAIN      the answer has not arrived yet
 * KVB_NOT_FOUND  not resolved, see endpoint->why; the look-up is retried
 * KVB_BAD_INPUT  none of its addresses is allowed; see endpoint->why */
kvb_status kvb_named_endpoint_look(
    struct kvb_named_endpoint *endpoint, struct kvb_resolver *resolver, bool has_failed,
    uint64_t now_ns, bool *out_has_moved);

/* Writes the numeric endpoint for libzmq.  Call it after kvb_named_endpoint_look() returned
 * KVB_OK. */
void kvb_named_endpoint_write(
    const struct kvb_named_endpoint *endpoint, char out_text[kvb_zmq_address_bytes]);

/* True when the chosen address is IPv6: libzmq supports that only where ZMQ_IPV6 is set. */
bool kvb_named_endpoint_is_ipv6(const struct kvb_named_endpoint *endpoint);
