#pragma once

#include "core/backoff.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is known about one host name: its addresses for 5 s, failures, and old addresses that are
 * used while the name servers do not answer (RFC 8767).
 *
 *               look: due                 answered
 *     no answer ----------> under query -----------> known for 5 s
 *         ^                    |   ^                   |
 *         +--- failed: pause --+   +-- look: due ------+
 *
 * A query is only sent when a caller looks the name up: an unused name costs none.
 *
 * Pure: times are arguments, monotonic ns.  Threads: the caller locks. */

enum { kvb_max_addresses = 8, kvb_address_bytes = 46, kvb_host_bytes = 256 };

/* Numeric addresses, "10.0.0.5" or "fd00::5". */
struct kvb_addresses {
    size_t count;
    char text[kvb_max_addresses][kvb_address_bytes];
};

/* Appends the address; beyond kvb_max_addresses it is left out. */
void kvb_addresses_add(struct kvb_addresses *addresses, const char *text);
bool kvb_address_is_ipv6(const char *text);

enum kvb_dns_result {
    KVB_DNS_OK,
    KVB_DNS_NO_NAME, /* the name does not exist, or has no address */
    KVB_DNS_FAILURE, /* the name servers did not answer, refused or failed, or no query was sent */
    KVB_DNS_RESULT_COUNT
};

/* A text for logs, such as "no such name, or no address of it".  Never NULL. */
const char *kvb_dns_result_text(enum kvb_dns_result result);

struct kvb_dns_entry {
    struct kvb_addresses addresses; /* count 0: not known */
    enum kvb_dns_result result;     /* result of the newest answer; KVB_DNS_OK before the first */
    bool is_queried;                /* a query is under way */
    struct kvb_backoff queries;     /* next_ns: also the end of an answer's 5 s */
};

/* True when a query is due: the caller sends it and then calls one of the next two. */
bool kvb_dns_entry_query(struct kvb_dns_entry *entry, uint64_t now_ns);

/* The next query is due after 5 s. */
void kvb_dns_entry_answered(
    struct kvb_dns_entry *entry, const struct kvb_addresses *addresses, uint64_t now_ns);

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
