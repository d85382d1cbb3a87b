#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A DNS cache entry of one host name: TTL, negative answers, and stale answers that are served
 * while the name servers do not answer (RFC 8767).
 *
 *               look: due                 answered
 *     no answer ----------> under query -----------> known until its TTL ends
 *         ^                    |   ^                        |
 *         +--- failed: pause --+   +----- look: due --------+
 *
 * A query is only sent when a caller looks the name up: an unused name costs none.
 *
 * Pure: times are arguments, monotonic ns.  Threads: the caller locks. */

enum { kvb_max_addresses = 8, kvb_address_bytes = 46, kvb_host_bytes = 256 };

/* Numeric addresses, "10.0.0.5" or "fd00::5".  IPv4 comes first, because engines listen on it by
 * default. */
struct kvb_addresses {
    size_t count;
    char text[kvb_max_addresses][kvb_address_bytes];
};

/* Adds the address as the last one of its family.  Beyond kvb_max_addresses the last one is
 * dropped, so that IPv4 addresses stay. */
void kvb_addresses_add(struct kvb_addresses *addresses, const char *text);
bool kvb_address_is_ipv6(const char *text);

enum kvb_dns_result {
    KVB_DNS_OK,
    KVB_DNS_NO_NAME, /* the name does not exist, or has no address */
    KVB_DNS_TIMEOUT, /* they did not answer */
    KVB_DNS_FAILURE, /* they refused, failed, or no query could be sent */
    KVB_DNS_RESULT_COUNT
};

/* A text for logs, such as "no name server answers".  Never NULL. */
const char *kvb_dns_result_text(enum kvb_dns_result result);

struct kvb_dns_entry {
    struct kvb_addresses addresses; /* count 0: not known */
    enum kvb_dns_result result;     /* result of the newest answer; KVB_DNS_OK before the first */
    bool is_queried;                /* a query is under way */
    uint64_t next_ns;  /* earliest time of the next query: end of the TTL or of a pause */
    uint64_t pause_ns; /* pause after the newest failure; 0: the newest query succeeded */
};

/* True when a query is due: the caller sends it and then calls one of the next two. */
bool kvb_dns_entry_query(struct kvb_dns_entry *entry, uint64_t now_ns);

/* A TTL counts as 1 s .. 300 s. */
void kvb_dns_entry_answered(
    struct kvb_dns_entry *entry, const struct kvb_addresses *addresses, uint32_t ttl_s,
    uint64_t now_ns);

/* The next query is sent after a pause of 1 s .. 30 s, doubled after each failure.  A name that
 * does not exist loses its addresses; after any other failure the old ones stay. */
void kvb_dns_entry_failed(struct kvb_dns_entry *entry, enum kvb_dns_result result, uint64_t now_ns);

/* ---- Which of a name's addresses is connected to ---- */

struct kvb_address_choice {
    char text[kvb_address_bytes]; /* "": none yet */
    size_t moves;                 /* changes of address since the last successful connection */
    uint64_t moved_ns;
};

/* Picks the first address at the start, and when the current one no longer belongs to the name.
 * Picks the next one in turn when an attempt at the current one has failed: at once in the first
 * round over all addresses, then once a second.  True: text has changed. */
bool kvb_address_choice_pick(
    struct kvb_address_choice *choice, const struct kvb_addresses *addresses, bool has_failed,
    uint64_t now_ns);

/* Reports a successful connection: after a loss this address is tried first. */
void kvb_address_choice_connected(struct kvb_address_choice *choice);
