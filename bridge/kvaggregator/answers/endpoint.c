#include "kvaggregator/answers/endpoint.h"

#include "core/decimal.h"
#include "core/hash.h"
#include "model/query.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_port(const char *text, uint16_t *out_port)
{
    uint64_t port = 0;

    if (!kvb_decimal_read(text, &port) || port == 0 || port > UINT16_MAX) {
        return false;
    }
    *out_port = (uint16_t)port;
    return true;
}

static bool read_ip(const char *text, uint8_t out_ip[16])
{
    struct in_addr four;

    if (inet_pton(AF_INET6, text, out_ip) == 1) {
        return true;
    }
    if (inet_pton(AF_INET, text, &four) != 1) {
        return false;
    }
    /* An IPv4 address becomes ::ffff:a.b.c.d, so that all are compared alike. */
    memset(out_ip, 0, 10);
    memset(out_ip + 10, 0xff, 2);
    memcpy(out_ip + 12, &four, sizeof four);
    return true;
}

kvb_status kvb_endpoint_read(kvb_span text, struct kvb_endpoint *out_endpoint)
{
    char copy[kvb_endpoint_bytes];
    struct kvb_endpoint endpoint = { .port = 0 };
    char *ip = copy;
    char *port = NULL;

    /* A NUL within it would hide what follows. */
    if (text.len == 0 || text.len >= sizeof copy || memchr(text.data, 0, text.len)) {
        return KVB_BAD_INPUT;
    }
    memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    if (copy[0] == '[') {
        char *end = strchr(copy, ']');
        if (!end || (end[1] != ':' && end[1] != '\0')) {
            return KVB_BAD_INPUT;
        }
        port = end[1] == ':' ? end + 2 : NULL;
        *end = '\0';
        ip = copy + 1;
    } else {
        char *colon = strchr(copy, ':');
        if (colon && !strchr(colon + 1, ':')) { /* more of them: IPv6 without a port */
            *colon = '\0';
            port = colon + 1;
        }
    }
    if (!read_ip(ip, endpoint.ip) || (port && !read_port(port, &endpoint.port))) {
        return KVB_BAD_INPUT;
    }
    *out_endpoint = endpoint;
    return KVB_OK;
}

kvb_status kvb_endpoint_of_address(const char *address, struct kvb_endpoint *out_endpoint)
{
    const char *scheme_end = strstr(address, "://");
    const char *host = scheme_end ? scheme_end + 3 : address;
    const bool is_https = strncmp(address, "https://", 8) == 0;
    const size_t len = strcspn(host, "/?#");

    KVB_TRY(kvb_endpoint_read((kvb_span){ (const uint8_t *)host, len }, out_endpoint));
    if (out_endpoint->port == 0) {
        out_endpoint->port = is_https ? 443 : 80;
    }
    return KVB_OK;
}

void kvb_endpoint_write(
    const struct kvb_endpoint *endpoint, unsigned more_ports, char out[kvb_endpoint_bytes])
{
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
    const bool is_four = memcmp(endpoint->ip, mapped, sizeof mapped) == 0;
    char ip[INET6_ADDRSTRLEN] = "";

    (void)inet_ntop(
        is_four ? AF_INET : AF_INET6, endpoint->ip + (is_four ? sizeof mapped : 0), ip, sizeof ip);
    (void)snprintf(/* fits: 46 bytes, brackets and a port */
                   out, kvb_endpoint_bytes, is_four ? "%s:%u" : "[%s]:%u", ip,
                   endpoint->port + more_ports);
}

uint64_t kvb_endpoint_hash(const struct kvb_endpoint *endpoint)
{
    uint8_t bytes[sizeof endpoint->ip + sizeof endpoint->port];

    memcpy(bytes, endpoint->ip, sizeof endpoint->ip);
    memcpy(bytes + sizeof endpoint->ip, &endpoint->port, sizeof endpoint->port);
    return kvb_hash64((kvb_span){ bytes, sizeof bytes }, 0);
}

bool kvb_endpoint_is_among(
    const struct kvb_endpoint *endpoint, const uint64_t hashes[], size_t count)
{
    struct kvb_endpoint any_port = *endpoint;

    /* A hint may name the address alone. */
    any_port.port = 0;
    const uint64_t keys[] = { kvb_endpoint_hash(endpoint), kvb_endpoint_hash(&any_port) };
    for (size_t i = 0; i < 2; i++) {
        if (count > 0 && bsearch(&keys[i], hashes, count, sizeof *hashes, kvb_selection_compare)) {
            return true;
        }
    }
    return false;
}
