#include "ingest/dns/named_endpoint.h"

#include "core/networks.h"
#include "ingest/dns/resolver.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>

static const char tcp[] = "tcp://";

/* Where the host begins.  libzmq also accepts "tcp://source;host:port". */
static const char *find_host(const char *text)
{
    const char *semicolon = strrchr(text, ';');

    return semicolon ? semicolon + 1 : text + strlen(tcp);
}

static bool needs_lookup(const char *host, bool is_bound)
{
    if (host[0] == '\0' || strcmp(host, "*") == 0 || kvb_host_is_numeric(host)) {
        return false;
    }
    /* libzmq binds to the address of a network interface by its name. */
    return !is_bound || if_nametoindex(host) == 0;
}

kvb_status
kvb_named_endpoint_set(struct kvb_named_endpoint *endpoint, const char *text, bool is_bound)
{
    const size_t len = strlen(text);

    *endpoint = (struct kvb_named_endpoint){ .host_at = 0 };
    if (len >= sizeof endpoint->text) {
        return KVB_TOO_LARGE;
    }
    memcpy(endpoint->text, text, len + 1);
    /* ipc:// and inproc:// have no host. */
    if (strncmp(text, tcp, strlen(tcp)) != 0) {
        return KVB_OK;
    }
    const char *host = find_host(text);
    /* The last colon: an IPv6 address has others. */
    const char *colon = strrchr(host, ':');
    if (colon) {
        endpoint->host_at = (size_t)(host - text);
        memcpy(endpoint->host, host, (size_t)(colon - host));
    }
    /* Without a host here the text goes to libzmq as it is. */
    if (!needs_lookup(endpoint->host, is_bound)) {
        endpoint->host[0] = '\0';
    }
    return KVB_OK;
}

void kvb_named_endpoint_restrict(struct kvb_named_endpoint *endpoint)
{
    endpoint->refuses_metadata = true;
}

static kvb_status refuse_address(struct kvb_named_endpoint *endpoint, const char *address)
{
    endpoint->choice.text[0] = '\0';
    kvb_detail_set(
        &endpoint->why, "the address %.60s is not allowed: it is link-local or a metadata service",
        address);
    return KVB_BAD_INPUT;
}

/* Checks an endpoint without a host name. */
static kvb_status check_numeric(struct kvb_named_endpoint *endpoint)
{
    char host[kvb_named_endpoint_bytes] = "";

    if (!endpoint->refuses_metadata || strncmp(endpoint->text, tcp, strlen(tcp)) != 0) {
        return KVB_OK;
    }
    const char *from = find_host(endpoint->text);
    const char *colon = strrchr(from, ':');
    if (colon) {
        memcpy(host, from, (size_t)(colon - from));
    }
    if (strcmp(host, "*") == 0) {
        return KVB_OK; /* libzmq refuses to connect to "*", so it is harmless */
    }
    return kvb_address_is_allowed(host) ? KVB_OK : refuse_address(endpoint, host);
}

/* Removes addresses that are not allowed.  KVB_BAD_INPUT: none is left. */
static kvb_status
filter_addresses(struct kvb_named_endpoint *endpoint, struct kvb_addresses *addresses)
{
    struct kvb_addresses allowed = { .count = 0 };

    if (!endpoint->refuses_metadata) {
        return KVB_OK;
    }
    for (size_t i = 0; i < addresses->count; i++) {
        if (kvb_address_is_allowed(addresses->text[i])) {
            kvb_addresses_add(&allowed, addresses->text[i]);
        }
    }
    /* The caller has found at least one, so that there is one to name. */
    if (allowed.count == 0) {
        return refuse_address(endpoint, addresses->text[0]);
    }
    *addresses = allowed;
    return KVB_OK;
}

kvb_status kvb_named_endpoint_look(
    struct kvb_named_endpoint *endpoint, struct kvb_resolver *resolver, bool has_failed,
    uint64_t now_ns, bool *out_has_moved)
{
    struct kvb_dns_answer answer;

    *out_has_moved = false;
    if (endpoint->host[0] == '\0') {
        return check_numeric(endpoint);
    }
    kvb_resolver_look(resolver, endpoint->host, now_ns, &answer);
    if (answer.addresses.count > 0) {
        /* At each look: a name that had a permitted address may resolve to another one later. */
        KVB_TRY(filter_addresses(endpoint, &answer.addresses));
        endpoint->why.text[0] = '\0';
        *out_has_moved =
            kvb_address_choice_pick(&endpoint->choice, &answer.addresses, has_failed, now_ns);
        return KVB_OK;
    }
    /* Old addresses would still be in the answer if the name servers were only silent. */
    endpoint->choice.text[0] = '\0';
    /* Before the first answer. */
    if (answer.result == KVB_DNS_OK) {
        return KVB_AGAIN;
    }
    kvb_detail_set(
        &endpoint->why, "the name %.150s cannot be resolved: %s", endpoint->host,
        kvb_dns_result_text(answer.result));
    return KVB_NOT_FOUND;
}

bool kvb_named_endpoint_is_ipv6(const struct kvb_named_endpoint *endpoint)
{
    return kvb_address_is_ipv6(endpoint->choice.text) ||
           (endpoint->host[0] == '\0' && strncmp(endpoint->text, "tcp://[", 7) == 0);
}

void kvb_named_endpoint_write(
    const struct kvb_named_endpoint *endpoint, char out_text[kvb_zmq_address_bytes])
{
    const char *host = endpoint->choice.text;
    const char *rest = endpoint->text + endpoint->host_at + strlen(endpoint->host);

    if (endpoint->host[0] == '\0') {
        (void)snprintf(out_text, kvb_zmq_address_bytes, "%s", endpoint->text);
        return;
    }
    (void)snprintf(
        out_text, kvb_zmq_address_bytes, kvb_address_is_ipv6(host) ? "%.*s[%s]%s" : "%.*s%s%s",
        (int)endpoint->host_at, endpoint->text, host, rest);
}
