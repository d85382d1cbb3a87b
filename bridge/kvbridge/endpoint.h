#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* ZMQ endpoints of engines, and which sockets data-parallel ranks use.
 *
 *     tcp://host:port     rank r: port + r
 *     inproc://name       rank r: name_dpr, rank 0: name
 *     ipc://path          rank 0 only: engines refuse the others
 *
 * Source: vLLM's ZmqEventPublisher.offset_endpoint_port(), for PUB and for the
 * replay ROUTER alike.
 * Threads: any thread. */

enum { kvb_endpoint_bytes = 256, kvb_endpoint_host_bytes = 64 };

enum kvb_endpoint_scheme { KVB_ENDPOINT_TCP, KVB_ENDPOINT_IPC, KVB_ENDPOINT_INPROC };

struct kvb_endpoint {
    enum kvb_endpoint_scheme scheme;
    kvb_span place; /* host, path or name; borrowed from the text */
    uint32_t port;  /* tcp only: 1 .. 65535 */
};

/* KVB_BAD_CONFIG: text has none of the three forms; detail says what is expected. */
kvb_status
kvb_endpoint_parse(const char *text, struct kvb_endpoint *out_endpoint, struct kvb_detail *detail);

/* True for an endpoint that means another socket on each host: 127.0.0.1, *, ipc://, inproc://.
 * False for an invalid endpoint. */
bool kvb_endpoint_is_of_this_host(const char *text);

/* True for a host that libzmq cannot listen at, because it looks no name up, not even localhost: it
 * is neither an address, nor *, nor a network interface that this host has now. */
bool kvb_endpoint_is_host_name(const struct kvb_endpoint *endpoint);

/* The host of "http://host:8000/path"; borrowed; empty for an invalid URL. */
kvb_span kvb_endpoint_host_of_url(const char *url);
bool kvb_endpoint_is_this_host(kvb_span host);
/* The host of a socket that listens at all interfaces: *, 0.0.0.0, [::]. */
bool kvb_endpoint_is_everywhere(kvb_span host);

/* Writes the endpoint; a host that means all interfaces (*, 0.0.0.0, [::]) is replaced by `host`.
 * KVB_BAD_CONFIG  text is not an endpoint, or the result is too long */
kvb_status kvb_endpoint_at_host(const char *text, kvb_span host, char out_text[kvb_endpoint_bytes]);

/* Writes the endpoint of one rank.
 * KVB_BAD_CONFIG  base is not an endpoint, the port is not in 1 .. 65535, ipc with a rank above
 *                 0, or the name is too long */
kvb_status
kvb_endpoint_for_rank(const char *base, uint32_t rank, char out_text[kvb_endpoint_bytes]);

/* Writes "tcp://10.0.0.7:5557" or "http://[fd00::7]:8000/metrics", of an address of IPv4 or IPv6 or
 * a name.  KVB_TOO_LARGE: room is too small. */
kvb_status kvb_endpoint_write_url(
    const char *scheme, const char *host, uint32_t port, const char *path, size_t room,
    char *out_text);

/* The sockets that ranks first_rank .. first_rank + ranks - 1 of one endpoint use. */
struct kvb_endpoint_range {
    struct kvb_endpoint base;
    uint32_t first; /* tcp: ports; else ranks */
    uint32_t last;  /* inclusive */
};

/* KVB_BAD_CONFIG  as kvb_endpoint_for_rank(), for any of the ranks; detail has the remedy */
kvb_status kvb_endpoint_range_of(
    const char *base, uint32_t first_rank, uint32_t ranks, struct kvb_endpoint_range *out_range,
    struct kvb_detail *detail);

/* True: some socket is in both ranges.  All names of this host count as one host. */
bool kvb_endpoint_range_clashes(
    const struct kvb_endpoint_range *one, const struct kvb_endpoint_range *other);

/* A hash by which ranges are looked up: equal for ranges that begin with the same socket. */
uint64_t kvb_endpoint_range_hash(const struct kvb_endpoint_range *range);
