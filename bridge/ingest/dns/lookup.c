#include "ingest/dns/lookup.h"

#include "core/clock.h"
#include "ingest/dns/inside.h"

#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* Timeouts of one name server: 1 s, then 2 s. */
    first_timeout_ms = 1000,
    tries = 2,
};

/* The time limit of one look-up with all its search domains. */
static const uint64_t patience_ns = 6 * KVB_NS_PER_S;

/* One look-up: its queries run one after another. */
struct lookup {
    ares_channel ares; /* owned */
    int stop_fd;
    uint64_t end_ns;                 /* deadline */
    struct kvb_dns_members *members; /* borrowed */
    bool is_over;                    /* the current query has ended */
    bool is_stopped;                 /* the whole look-up ends: stop_fd, or the deadline */
    enum kvb_dns_result result;
};

/* ---- Answers ---- */

/* Without memory the member is left out, like a member beyond kvb_max_dns_members. */
static void add_member(struct lookup *lookup, int family, const void *address)
{
    char text[kvb_address_bytes] = "";

    (void)inet_ntop(family, address, text, sizeof text); /* text is large enough for both */
    (void)kvb_dns_members_add(lookup->members, text);
}

static void add_host(struct lookup *lookup, const struct hostent *host)
{
    for (char **address = host->h_addr_list; *address; address++) {
        add_member(lookup, host->h_addrtype, *address);
    }
}

static int read_a(struct lookup *lookup, const unsigned char *bytes, int len)
{
    struct hostent *host = NULL;
    const int status = ares_parse_a_reply(bytes, len, &host, NULL, NULL);

    if (status == ARES_SUCCESS) {
        add_host(lookup, host);
        ares_free_hostent(host);
    }
    return status;
}

static int read_aaaa(struct lookup *lookup, const unsigned char *bytes, int len)
{
    struct hostent *host = NULL;
    const int status = ares_parse_aaaa_reply(bytes, len, &host, NULL, NULL);

    if (status == ARES_SUCCESS) {
        add_host(lookup, host);
        ares_free_hostent(host);
    }
    return status;
}

static void end_lookup(struct lookup *lookup, int status)
{
    lookup->is_over = true;
    lookup->result = status == ARES_SUCCESS && lookup->members->count > 0
                         ? KVB_DNS_OK
                         : kvb_dns_result_of(status);
}

typedef int read_answer(struct lookup *lookup, const unsigned char *bytes, int len);

static void
take_answer(struct lookup *lookup, int status, unsigned char *bytes, int len, read_answer *read)
{
    end_lookup(lookup, status == ARES_SUCCESS ? read(lookup, bytes, len) : status);
}

/* A record type, and what takes its answer. */
struct kind {
    int type;
    ares_callback take;
};

static void take_a(void *context, int status, int timeouts, unsigned char *bytes, int len)
{
    (void)timeouts;
    take_answer(context, status, bytes, len, read_a);
}

static void take_aaaa(void *context, int status, int timeouts, unsigned char *bytes, int len)
{
    (void)timeouts;
    take_answer(context, status, bytes, len, read_aaaa);
}

static const struct kind kind_a = { ns_t_a, take_a };
static const struct kind kind_aaaa = { ns_t_aaaa, take_aaaa };

/* ---- Waiting ---- */

/* One less than c-ares offers: for the last socket ARES_GETSOCK_WRITABLE would shift 1 into the
 * sign bit of an int. */
enum { lookup_max_sockets = ARES_GETSOCK_MAXNUM - 1 };

static int lookup_wait_ms(const struct lookup *lookup, uint64_t now_ns)
{
    struct timeval most = { .tv_sec = (time_t)((lookup->end_ns - now_ns) / KVB_NS_PER_S),
                            .tv_usec = 999999 };
    struct timeval left;
    const struct timeval *wait = ares_timeout(lookup->ares, &most, &left);

    return (int)(wait->tv_sec * 1000 + wait->tv_usec / 1000 + 1);
}

static void
work_sockets(const struct lookup *lookup, const ares_socket_t *sockets, const struct pollfd *polled)
{
    ares_process_fd(lookup->ares, ARES_SOCKET_BAD, ARES_SOCKET_BAD); /* only timeouts */
    for (size_t i = 0; i < lookup_max_sockets && !lookup->is_over; i++) {
        const bool is_in = polled[i].revents & (POLLIN | POLLERR | POLLHUP);
        const bool is_out = polled[i].revents & POLLOUT;
        if (is_in || is_out) {
            ares_process_fd(
                lookup->ares, is_in ? sockets[i] : ARES_SOCKET_BAD,
                is_out ? sockets[i] : ARES_SOCKET_BAD);
        }
    }
}

/* False: stop_fd is readable, or the deadline has passed. */
static bool wait_for_lookup(const struct lookup *lookup)
{
    ares_socket_t sockets[lookup_max_sockets];
    struct pollfd polled[lookup_max_sockets + 1];
    const int wants = ares_getsock(lookup->ares, sockets, lookup_max_sockets);
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (now_ns >= lookup->end_ns) {
        return false;
    }
    for (int i = 0; i < lookup_max_sockets; i++) {
        const bool is_in = ARES_GETSOCK_READABLE(wants, i);
        const bool is_out = ARES_GETSOCK_WRITABLE(wants, i);
        polled[i] =
            (struct pollfd){ .fd = is_in || is_out ? sockets[i] : -1,
                             .events = (short)((is_in ? POLLIN : 0) | (is_out ? POLLOUT : 0)) };
    }
    polled[lookup_max_sockets] = (struct pollfd){ .fd = lookup->stop_fd, .events = POLLIN };
    (void)poll(
        polled, lookup_max_sockets + 1, lookup_wait_ms(lookup, now_ns)); /* EINTR: called again */
    if (polled[lookup_max_sockets].revents) {
        return false;
    }
    work_sockets(lookup, sockets, polled);
    return true;
}

/* ---- Looking up ---- */

static void query_name(struct lookup *lookup, const struct kind *kind, const char *name)
{
    lookup->is_over = false;
    lookup->result = KVB_DNS_FAILURE;
    ares_query(lookup->ares, name, ns_c_in, kind->type, kind->take, lookup);
    while (!lookup->is_over && wait_for_lookup(lookup)) {
    }
    if (!lookup->is_over) {
        ares_cancel(lookup->ares);
        lookup->is_stopped = true;
        lookup->result = KVB_DNS_FAILURE;
    }
}

/* Looks up name.domain, or name alone when domain is NULL.  True: it was found, or the look-up must
 * end.  Otherwise *worst keeps a failure that is no proof of absence. */
static bool try_name(
    struct lookup *lookup, const struct kind *kind, const char *name, const char *domain,
    enum kvb_dns_result *worst)
{
    char full[2 * kvb_host_bytes];

    (void)snprintf(full, sizeof full, "%s%s%s", name, domain ? "." : "", domain ? domain : "");
    query_name(lookup, kind, full);
    if (lookup->result != KVB_DNS_OK && lookup->result != KVB_DNS_NO_NAME) {
        *worst = lookup->result;
    }
    return lookup->result == KVB_DNS_OK || lookup->is_stopped;
}

static int count_dots(const char *name)
{
    int dots = 0;

    for (; *name; name++) {
        dots += *name == '.';
    }
    return dots;
}

/* Tries the search domains of resolv.conf(5) in order.  ares_search() is not used: it forgets a
 * failure of a server in one domain when the name does not exist in the next domain, and a failure
 * must not look like an answer. */
static enum kvb_dns_result
search(struct lookup *lookup, const struct kind *kind, const char *name, struct ares_options *given)
{
    const size_t len = strlen(name);
    const bool is_full = len > 0 && name[len - 1] == '.';
    const bool is_first = is_full || count_dots(name) >= given->ndots;
    enum kvb_dns_result worst = KVB_DNS_NO_NAME;

    if (is_first && try_name(lookup, kind, name, NULL, &worst)) {
        return lookup->result;
    }
    for (int i = 0; i < given->ndomains && !is_full; i++) {
        if (try_name(lookup, kind, name, given->domains[i], &worst)) {
            return lookup->result;
        }
    }
    if (!is_first && try_name(lookup, kind, name, NULL, &worst)) {
        return lookup->result;
    }
    return worst;
}

static enum kvb_dns_result
look_up_kind(struct lookup *lookup, const struct kind *kind, const char *name)
{
    struct ares_options options = { .timeout = first_timeout_ms, .tries = tries };
    struct ares_options given = { .ndots = 1 };
    enum kvb_dns_result result = KVB_DNS_FAILURE;
    int mask = 0;

    if (!kvb_dns_is_library_ready() ||
        ares_init_options(&lookup->ares, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES) !=
            ARES_SUCCESS) {
        return KVB_DNS_FAILURE;
    }
    if (ares_save_options(lookup->ares, &given, &mask) == ARES_SUCCESS) {
        result = search(lookup, kind, name, &given);
        ares_destroy_options(&given);
    }
    ares_destroy(lookup->ares);
    return result;
}

enum kvb_dns_result
kvb_dns_look_up_addresses(const char *name, int stop_fd, struct kvb_dns_members *out_members)
{
    struct lookup lookup = { .stop_fd = stop_fd,
                             .members = out_members,
                             .end_ns = kvb_clock_monotonic_ns() + patience_ns };
    const enum kvb_dns_result result = look_up_kind(&lookup, &kind_a, name);

    return result == KVB_DNS_NO_NAME ? look_up_kind(&lookup, &kind_aaaa, name) : result;
}
