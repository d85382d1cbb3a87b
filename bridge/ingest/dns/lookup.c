#include "ingest/dns/lookup.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <resolv.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For one answer.  DNS ends at 64 KiB, some 4,000 addresses, and a hostent has a pointer for
 * each. */
enum { answer_bytes = 256 << 10 };

struct kvb_lookup {
    atomic_uint owners;  /* the caller and the thread */
    atomic_bool is_done; /* the thread no longer writes result and found */
    enum kvb_dns_result result;
    struct kvb_dns_members found; /* owned */
    enum kvb_lookup_kind kind;
    char name[kvb_host_bytes];
};

static void release(struct kvb_lookup *lookup)
{
    if (atomic_fetch_sub(&lookup->owners, 1) == 1) {
        kvb_dns_members_done(&lookup->found);
        free(lookup);
    }
}

/* ---- On the thread ---- */

/* NULL: none, and *out_why says why.  A function of its own, which tests/tsan.supp names.
 *
 * getaddrinfo() does not serve: with glibc 2.36 it says "no such name" when the name servers fail
 * at a question for IPv4 alone, or at one of its two questions for both families.  A failure must
 * not look like an answer: an engine would lose its address, or its place in the list. */
static struct hostent *ask_c_library(
    const char *name, int family, struct hostent *host, char answer[answer_bytes], int *out_why)
{
    struct hostent *found = NULL;

    *out_why = NETDB_INTERNAL;
    (void)gethostbyname2_r(name, family, host, answer, answer_bytes, &found, out_why);
    return found;
}

/* Asks for the addresses of one family and appends them. */
static enum kvb_dns_result look_up(struct kvb_lookup *lookup, const char *name, int family)
{
    struct hostent host;
    int why = NETDB_INTERNAL;
    /* Not on the stack, of which each of the threads would then need so much. */
    char *answer = malloc(answer_bytes);

    if (!answer) {
        return KVB_DNS_FAILURE;
    }
    const struct hostent *found = ask_c_library(name, family, &host, answer, &why);
    for (char **address = found ? found->h_addr_list : NULL; address && *address; address++) {
        char text[kvb_address_bytes] = "";
        (void)inet_ntop(family, *address, text, sizeof text); /* text is large enough for both */
        /* without memory, and beyond kvb_max_dns_members, an address is left out */
        (void)kvb_dns_members_add(&lookup->found, text);
    }
    free(answer);
    if (found) {
        return lookup->found.count > 0 ? KVB_DNS_OK : KVB_DNS_FAILURE;
    }
    /* TRY_AGAIN, NO_RECOVERY and a lack of memory say nothing about the name. */
    return why == HOST_NOT_FOUND || why == NO_DATA ? KVB_DNS_NO_NAME : KVB_DNS_FAILURE;
}

/* A domain of resolv.conf(5); "" stands for the name alone. */
struct domain {
    char text[kvb_host_bytes];
};

/* Writes the domains in which the name is searched, in their order.  Returns how many; 0: the
 * settings could not be read. */
static size_t read_domains(const char *name, bool is_full, struct domain out_domains[MAXDNSRCH + 1])
{
    struct __res_state settings = { .options = 0 };
    unsigned dots = 0;
    size_t count = 0;

    if (res_ninit(&settings) != 0) {
        return 0;
    }
    for (const char *at = name; *at; at++) {
        dots += *at == '.';
    }
    /* As resolv.conf(5): with ndots dots or more, the name is tried alone first. */
    const bool is_first = is_full || dots >= settings.ndots;
    if (is_first) {
        out_domains[count++].text[0] = '\0';
    }
    for (size_t i = 0; !is_full && i < MAXDNSRCH && settings.dnsrch[i]; i++) {
        /* "search ." stands in containers' files: it is the name alone */
        const char *text = strcmp(settings.dnsrch[i], ".") == 0 ? "" : settings.dnsrch[i];
        (void)snprintf(out_domains[count++].text, kvb_host_bytes, "%s", text);
    }
    if (!is_first) {
        out_domains[count++].text[0] = '\0';
    }
    res_nclose(&settings);
    return count;
}

/* Searches as the C library does, whose own search forgets a failure in one domain when the name
 * does not exist in the next one. */
static enum kvb_dns_result search(struct kvb_lookup *lookup, int family)
{
    struct domain domains[MAXDNSRCH + 1];
    const size_t len = strlen(lookup->name);
    const bool is_full = len > 0 && lookup->name[len - 1] == '.';
    const size_t count = read_domains(lookup->name, is_full, domains);
    /* Without the settings no question is asked, which is no answer either. */
    enum kvb_dns_result worst = count > 0 ? KVB_DNS_NO_NAME : KVB_DNS_FAILURE;

    for (size_t i = 0; i < count && worst != KVB_DNS_OK; i++) {
        char full[2 * kvb_host_bytes + 2];
        const char *domain = domains[i].text;
        /* with the dot at the end the C library does not search */
        (void)snprintf(
            full, sizeof full, "%.*s%s%.*s.", (int)(len - is_full), lookup->name,
            domain[0] ? "." : "", kvb_host_bytes - 1, domain);
        const enum kvb_dns_result result = look_up(lookup, full, family);
        /* A failure stays unless a later domain has the name. */
        if (result != KVB_DNS_NO_NAME) {
            worst = result;
        }
    }
    return worst;
}

static void *run_lookup(void *context)
{
    struct kvb_lookup *lookup = context;
    const bool is_host = lookup->kind == KVB_LOOKUP_HOST;

    (void)pthread_setname_np(pthread_self(), "kvb-lookup"); /* for top -H; may fail */
    /* IPv4 first, and IPv6 only where there is none: engines listen on IPv4 by default, and of a
     * host that /etc/hosts knows by an IPv4 address, no name server need be asked. */
    lookup->result = is_host ? look_up(lookup, lookup->name, AF_INET) : search(lookup, AF_INET);
    /* Not after a failure: the host may have an IPv4 address all the same. */
    if (lookup->result == KVB_DNS_NO_NAME) {
        lookup->result =
            is_host ? look_up(lookup, lookup->name, AF_INET6) : search(lookup, AF_INET6);
    }
    /* The last write that the caller reads. */
    atomic_store(&lookup->is_done, true);
    release(lookup);
    return NULL;
}

/* ---- The caller's side ---- */

static bool start_detached(struct kvb_lookup *lookup)
{
    pthread_attr_t detached;
    pthread_t id;

    (void)pthread_attr_init(&detached); /* cannot fail with glibc, like the next */
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    const bool is_started = pthread_create(&id, &detached, run_lookup, lookup) == 0;
    (void)pthread_attr_destroy(&detached);
    return is_started;
}

kvb_status
kvb_lookup_start(const char *name, enum kvb_lookup_kind kind, struct kvb_lookup **out_lookup)
{
    const size_t len = strlen(name);

    if (len >= kvb_host_bytes) {
        return KVB_TOO_LARGE;
    }
    struct kvb_lookup *lookup = calloc(1, sizeof *lookup);
    if (!lookup) {
        return KVB_NO_MEMORY;
    }
    lookup->kind = kind;
    memcpy(lookup->name, name, len + 1);
    atomic_store(&lookup->owners, 2);
    /* Both uses are the caller's again. */
    if (!start_detached(lookup)) {
        free(lookup);
        return KVB_IO;
    }
    *out_lookup = lookup;
    return KVB_OK;
}

kvb_status kvb_lookup_take(
    struct kvb_lookup *lookup, enum kvb_dns_result *out_result, struct kvb_dns_members *out_found)
{
    if (!atomic_load(&lookup->is_done)) {
        return KVB_AGAIN;
    }
    *out_result = lookup->result;
    *out_found = lookup->found;
    /* The members are the caller's now; the release must not free them. */
    lookup->found = (struct kvb_dns_members){ 0 };
    release(lookup);
    return KVB_OK;
}

void kvb_lookup_drop(struct kvb_lookup *lookup)
{
    if (lookup) {
        release(lookup);
    }
}
