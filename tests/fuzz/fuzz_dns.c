#include "ingest/dns/lookup.h"

#include <ares.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Answers of name servers, as c-ares hands them to ingest/dns/lookup.c: with the linker's --wrap,
 * each query is answered from the input.
 *
 *     status, length (2 bytes), message | status, length, message ...                            */

enum { kinds_of_status = 8 };

static struct {
    const uint8_t *data;
    size_t size, at;
} input;

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

static uint8_t next_byte(void)
{
    return input.at < input.size ? input.data[input.at++] : 0;
}

/* The name is the linker's.  NOLINTBEGIN(bugprone-*,cert-*,readability-identifier-naming) */
void __wrap_ares_query(
    ares_channel channel, const char *name, int dns_class, int type, ares_callback take,
    void *context);
void __wrap_ares_query(
    ares_channel channel, const char *name, int dns_class, int type, ares_callback take,
    void *context)
{
    const int status = next_byte() % kinds_of_status; /* ARES_SUCCESS .. ARES_EBADQUERY */
    const size_t wanted = (size_t)next_byte() << 8 | next_byte();
    const size_t left = input.size - input.at;
    const size_t len = wanted < left ? wanted : left;
    uint8_t *copy = malloc(len ? len : 1); /* of exactly this size, for the address sanitizer */

    (void)channel;
    (void)name;
    (void)dns_class;
    (void)type;
    check(copy != NULL);
    if (len > 0) {
        memcpy(copy, input.data + input.at, len);
    }
    input.at += len;
    take(context, status, 0, status == ARES_SUCCESS ? copy : NULL, (int)len);
    free(copy);
}
/* NOLINTEND(bugprone-*,cert-*,readability-identifier-naming) */

static void check_members(const struct kvb_dns_members *members)
{
    check(members->count <= kvb_max_dns_members);
    for (size_t i = 0; i < members->count; i++) {
        const struct kvb_dns_member *member = &members->items[i];
        check(member->host[0] != '\0' && memchr(member->host, '\0', sizeof member->host));
        for (const char *at = member->host; *at; at++) {
            check(*at > ' ' && *at < 0x7f); /* it becomes a part of an endpoint */
        }
    }
}

static void check_sorted(const struct kvb_dns_members *members)
{
    for (size_t i = 1; i < members->count; i++) {
        check(strcmp(members->items[i - 1].host, members->items[i].host) < 0);
    }
}

/* What is found are hosts; the same answer a second time changes nothing. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_dns_members found = { 0 };
    struct kvb_dns_members known = { 0 };
    bool has_changed = false;

    input.data = data;
    input.size = size;
    input.at = 0;
    const enum kvb_dns_result result = kvb_dns_look_up_addresses("b.", -1, &found);
    check((result == KVB_DNS_OK) == (found.count > 0) || result != KVB_DNS_OK);
    check_members(&found);
    check(kvb_dns_members_answered(&known, &found, &has_changed) == KVB_OK);
    check(has_changed == (found.count > 0));
    check_sorted(&known);
    check(kvb_dns_members_answered(&known, &found, &has_changed) == KVB_OK && !has_changed);
    kvb_dns_members_done(&found);
    kvb_dns_members_done(&known);
    return 0;
}
