#include "kvbridge/endpoint.h"

#include "core/hash.h"
#include "core/own.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { max_port = 65535, max_port_digits = 5 };

static kvb_status refuse_endpoint(struct kvb_detail *detail, const char *text)
{
    kvb_detail_set(detail, "%s", text);
    return KVB_BAD_CONFIG;
}

static const struct {
    const char *prefix;
    enum kvb_endpoint_scheme scheme;
} schemes[] = {
    { "tcp://", KVB_ENDPOINT_TCP },
    { "ipc://", KVB_ENDPOINT_IPC },
    { "inproc://", KVB_ENDPOINT_INPROC },
};

/* Digits only: strtoul() alone would take blanks and signs too. */
static bool read_endpoint_port(const char *text, uint32_t *out_port)
{
    const size_t len = strspn(text, "0123456789");
    const unsigned long port = strtoul(text, NULL, 10);

    if (len == 0 || len > max_port_digits || text[len] != '\0' || port == 0 || port > max_port) {
        return false;
    }
    *out_port = (uint32_t)port;
    return true;
}

static kvb_status split_port(struct kvb_endpoint *endpoint, struct kvb_detail *detail)
{
    const char *place = (const char *)endpoint->place.data;
    const char *colon = strrchr(place, ':');

    if (!colon || colon == place || !read_endpoint_port(colon + 1, &endpoint->port)) {
        return refuse_endpoint(detail, "expected tcp://host:port with a port in 1 .. 65535");
    }
    endpoint->place.len = (size_t)(colon - place);
    return KVB_OK;
}

kvb_status
kvb_endpoint_parse(const char *text, struct kvb_endpoint *out_endpoint, struct kvb_detail *detail)
{
    for (size_t i = 0; i < KVB_COUNT_OF(schemes); i++) {
        const size_t len = strlen(schemes[i].prefix);
        if (strncmp(text, schemes[i].prefix, len) == 0 && text[len] != '\0') {
            struct kvb_endpoint endpoint = {
                .scheme = schemes[i].scheme,
                .place = { (const uint8_t *)text + len, strlen(text + len) },
            };
            if (endpoint.scheme == KVB_ENDPOINT_TCP) {
                KVB_TRY(split_port(&endpoint, detail));
            }
            *out_endpoint = endpoint;
            return KVB_OK;
        }
    }
    return refuse_endpoint(detail, "expected tcp://host:port, ipc://path or inproc://name");
}

kvb_status kvb_endpoint_for_rank(const char *base, uint32_t rank, char out_text[kvb_endpoint_bytes])
{
    struct kvb_endpoint_range range;
    char text[kvb_endpoint_bytes];
    int len = 0;

    /* Refuses an ipc:// address of any rank but 0, so what is left for the last case is
     * inproc://. */
    KVB_TRY(kvb_endpoint_range_of(base, rank, 1, &range, NULL));
    if (rank == 0) {
        len = snprintf(text, sizeof text, "%s", base);
    } else if (range.base.scheme == KVB_ENDPOINT_TCP) {
        len = snprintf(
            text, sizeof text, "tcp://%.*s:%u", (int)range.base.place.len,
            (const char *)range.base.place.data, range.first);
    } else {
        len = snprintf(text, sizeof text, "%s_dp%u", base, rank);
    }
    if (len < 0 || (size_t)len >= sizeof text) {
        return KVB_BAD_CONFIG;
    }
    memcpy(out_text, text, (size_t)len + 1);
    return KVB_OK;
}

kvb_status kvb_endpoint_range_of(
    const char *base, uint32_t first_rank, uint32_t ranks, struct kvb_endpoint_range *out_range,
    struct kvb_detail *detail)
{
    struct kvb_endpoint_range range;

    KVB_TRY(kvb_endpoint_parse(base, &range.base, detail));
    const uint64_t last_rank = (uint64_t)first_rank + (ranks ? ranks - 1 : 0);
    const uint32_t port = range.base.scheme == KVB_ENDPOINT_TCP ? range.base.port : 0;
    if (port + last_rank > max_port) {
        return refuse_endpoint(
            detail, "port + rank goes beyond 65535: lower the port or the ranks");
    }
    if (range.base.scheme == KVB_ENDPOINT_IPC && last_rank > 0) {
        return refuse_endpoint(
            detail, "ipc:// works for rank 0 only: use tcp:// for several ranks");
    }
    range.first = port + first_rank;
    range.last = port + (uint32_t)last_rank;
    *out_range = range;
    return KVB_OK;
}

kvb_status kvb_endpoint_write_url(
    const char *scheme, const char *host, uint32_t port, const char *path, size_t room,
    char *out_text)
{
    const bool is_ipv6 = strchr(host, ':') != NULL;
    const int len = snprintf(
        out_text, room, "%s://%s%s%s:%u%s", scheme, is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "",
        port, path);

    return len >= 0 && (size_t)len < room ? KVB_OK : KVB_TOO_LARGE;
}

static bool is_span_text(kvb_span span, const char *text)
{
    return span.len == strlen(text) && strncasecmp((const char *)span.data, text, span.len) == 0;
}

/* Names by which a socket of this host is bound or reached. */
bool kvb_endpoint_is_this_host(kvb_span host)
{
    static const char *const names[] = {
        "*", "0.0.0.0", "127.0.0.1", "localhost", "[::]", "[::1]"
    };

    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        if (is_span_text(host, names[i])) {
            return true;
        }
    }
    return false;
}

bool kvb_endpoint_is_of_this_host(const char *text)
{
    struct kvb_endpoint endpoint;

    return kvb_endpoint_parse(text, &endpoint, NULL) == KVB_OK &&
           (endpoint.scheme != KVB_ENDPOINT_TCP || kvb_endpoint_is_this_host(endpoint.place));
}

static bool is_same_place(const struct kvb_endpoint *one, const struct kvb_endpoint *other)
{
    if (one->scheme == KVB_ENDPOINT_TCP && kvb_endpoint_is_this_host(one->place) &&
        kvb_endpoint_is_this_host(other->place)) {
        return true;
    }
    if (one->place.len != other->place.len) {
        return false;
    }
    /* Names of hosts are the same in capitals; paths are not. */
    return one->scheme == KVB_ENDPOINT_TCP
               ? strncasecmp(
                     (const char *)one->place.data, (const char *)other->place.data,
                     one->place.len) == 0
               : memcmp(one->place.data, other->place.data, one->place.len) == 0;
}

bool kvb_endpoint_range_clashes(
    const struct kvb_endpoint_range *one, const struct kvb_endpoint_range *other)
{
    return one->first <= other->last && other->first <= one->last &&
           one->base.scheme == other->base.scheme && is_same_place(&one->base, &other->base);
}

uint64_t kvb_endpoint_range_hash(const struct kvb_endpoint_range *range)
{
    const struct kvb_endpoint *base = &range->base;
    const uint64_t seed = (uint64_t)base->scheme << 32 | range->first;
    uint8_t host[kvb_endpoint_bytes];

    if (base->scheme != KVB_ENDPOINT_TCP) {
        return kvb_hash64(base->place, seed);
    }
    /* What is_same_place() takes for one host hashes alike. */
    if (kvb_endpoint_is_this_host(base->place)) {
        return kvb_hash64(kvb_span_of("*"), seed);
    }
    const size_t len = base->place.len < sizeof host ? base->place.len : sizeof host;
    for (size_t i = 0; i < len; i++) {
        host[i] = (uint8_t)tolower(base->place.data[i]);
    }
    return kvb_hash64((kvb_span){ host, len }, seed);
}

/* ---- Hosts ---- */

bool kvb_endpoint_is_everywhere(kvb_span host)
{
    static const char *const names[] = { "*", "0.0.0.0", "[::]", "::" };

    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        if (is_span_text(host, names[i])) {
            return true;
        }
    }
    return false;
}

bool kvb_endpoint_is_host_name(const struct kvb_endpoint *endpoint)
{
    const kvb_span host = endpoint->place;
    char text[kvb_endpoint_bytes];
    struct in_addr address;

    (void)snprintf(text, sizeof text, "%.*s", (int)host.len, (const char *)host.data);
    /* libzmq takes the name of a network interface, too. */
    return endpoint->scheme == KVB_ENDPOINT_TCP && text[0] != '[' &&
           !kvb_endpoint_is_everywhere(host) && inet_pton(AF_INET, text, &address) != 1 &&
           if_nametoindex(text) == 0;
}

kvb_span kvb_endpoint_host_of_url(const char *url)
{
    const char *begin = strstr(url, "://");

    if (!begin) {
        return (kvb_span){ (const uint8_t *)url, 0 };
    }
    begin += strlen("://");
    const size_t authority = strcspn(begin, "/?#");
    const char *at = memrchr(begin, '@', authority); /* a name and a password before it */
    const char *host = at ? at + 1 : begin;
    const size_t max = authority - (size_t)(host - begin);
    /* The colons of an IPv6 address do not begin a port. */
    const char *bracket = host[0] == '[' ? memchr(host, ']', max) : NULL;
    const size_t len = bracket ? (size_t)(bracket - host) + 1 : strcspn(host, ":/?#");
    return (kvb_span){ (const uint8_t *)host, len < max ? len : max };
}

kvb_status kvb_endpoint_at_host(const char *text, kvb_span host, char out_text[kvb_endpoint_bytes])
{
    struct kvb_endpoint endpoint;
    char copy[kvb_endpoint_bytes];
    int len = 0;

    KVB_TRY(kvb_endpoint_parse(text, &endpoint, NULL));
    if (endpoint.scheme == KVB_ENDPOINT_TCP && kvb_endpoint_is_everywhere(endpoint.place)) {
        len = snprintf(
            copy, sizeof copy, "tcp://%.*s:%u", (int)host.len, (const char *)host.data,
            endpoint.port);
    } else {
        len = snprintf(copy, sizeof copy, "%s", text);
    }
    if (len < 0 || (size_t)len >= sizeof copy) {
        return KVB_BAD_CONFIG;
    }
    memcpy(out_text, copy, (size_t)len + 1);
    return KVB_OK;
}
