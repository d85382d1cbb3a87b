#include "ingest/dns/entry.h"

#include "core/clock.h"

#include <stdio.h>
#include <string.h>

/* The C library does not say how long an answer is valid.  Kubernetes says 5 s of its own names. */
static const uint64_t fresh_ns = 5 * KVB_NS_PER_S;
static const struct kvb_backoff_range between_queries = { .first_ns = KVB_NS_PER_S,
                                                          .longest_ns = 30 * KVB_NS_PER_S };

/* libzmq itself retries an address once a second. */
static const uint64_t move_pause_ns = KVB_NS_PER_S;

/* ---- Addresses ---- */

bool kvb_address_is_ipv6(const char *text)
{
    return strchr(text, ':') != NULL;
}

void kvb_addresses_add(struct kvb_addresses *addresses, const char *text)
{
    if (addresses->count < kvb_max_addresses) {
        (void)snprintf(addresses->text[addresses->count++], kvb_address_bytes, "%s", text);
    }
}

/* The position of the address; addresses->count: it is not in the list. */
static size_t find_address(const struct kvb_addresses *addresses, const char *text)
{
    size_t at = 0;

    while (at < addresses->count && strcmp(addresses->text[at], text) != 0) {
        at++;
    }
    return at;
}

/* ---- One name ---- */

const char *kvb_dns_result_text(enum kvb_dns_result result)
{
    static const char *const texts[KVB_DNS_RESULT_COUNT] = {
        [KVB_DNS_OK] = "not answered yet",
        [KVB_DNS_NO_NAME] = "no such name, or no address of it",
        [KVB_DNS_FAILURE] = "the name servers do not answer, or fail",
    };

    return result < KVB_DNS_RESULT_COUNT ? texts[result] : "unknown";
}

bool kvb_dns_entry_query(struct kvb_dns_entry *entry, uint64_t now_ns)
{
    if (entry->is_queried || !kvb_backoff_is_due(&entry->queries, now_ns)) {
        return false;
    }
    entry->is_queried = true;
    return true;
}

void kvb_dns_entry_answered(
    struct kvb_dns_entry *entry, const struct kvb_addresses *addresses, uint64_t now_ns)
{
    entry->addresses = *addresses;
    entry->result = KVB_DNS_OK;
    entry->is_queried = false;
    entry->queries = (struct kvb_backoff){ .next_ns = now_ns + fresh_ns };
}

void kvb_dns_entry_failed(struct kvb_dns_entry *entry, enum kvb_dns_result result, uint64_t now_ns)
{
    /* An answer, too: the name has lost its addresses. A failure says nothing about them. */
    if (result == KVB_DNS_NO_NAME) {
        entry->addresses.count = 0;
    }
    entry->result = result;
    entry->is_queried = false;
    (void)kvb_backoff_fail(&entry->queries, &between_queries, now_ns);
}

/* ---- Which address ---- */

static void move_to(
    struct kvb_address_choice *choice, const struct kvb_addresses *addresses, size_t at,
    uint64_t now_ns)
{
    memcpy(choice->text, addresses->text[at], sizeof choice->text);
    choice->moved_ns = now_ns;
    choice->moves++;
}

bool kvb_address_choice_pick(
    struct kvb_address_choice *choice, const struct kvb_addresses *addresses, bool has_failed,
    uint64_t now_ns)
{
    const size_t at = find_address(addresses, choice->text);

    if (addresses->count == 0) {
        return false;
    }
    /* Nothing was chosen yet, or the name has lost the address. */
    if (at == addresses->count) {
        move_to(choice, addresses, 0, now_ns);
        return true;
    }
    /* The first round goes through all addresses at once; from then on at libzmq's own pace. */
    const bool is_round_over = choice->moves >= addresses->count;
    const bool must_wait = is_round_over && now_ns - choice->moved_ns < move_pause_ns;
    if (!has_failed || addresses->count == 1 || must_wait) {
        return false;
    }
    move_to(choice, addresses, (at + 1) % addresses->count, now_ns);
    return true;
}

void kvb_address_choice_connected(struct kvb_address_choice *choice)
{
    choice->moves = 0;
}
