#include "ingest/dns/resolver.h"

#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "ingest/dns/lookup.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    bucket_count = 1024,
    /* Names whose last look-up failed have half of the places: if each of them waits for a silent
     * name server, the other half serves the names that are answered. */
    failed_places = kvb_max_lookups / 2,
};

static const uint64_t forget_ns = 600 * KVB_NS_PER_S;

/* A host name in the table; it is never freed between kvb_dns_entry_query() and its answer. */
struct name {
    struct name *next;   /* next of its bucket */
    struct name *wanted; /* next in its queue */
    struct kvb_dns_entry entry;
    uint64_t looked_ns;
    char host[kvb_host_bytes];
};

/* Names that wait for a place, the oldest first. */
struct queue {
    struct name *first;
    struct name *last;
};

struct place {
    struct kvb_lookup *lookup; /* owned; NULL: the place is free */
    struct name *name;         /* borrowed from the table */
};

struct kvb_resolver {
    pthread_mutex_t lock;               /* protects all fields below */
    struct name *buckets[bucket_count]; /* owned */
    size_t name_count;
    uint64_t full_until_ns; /* no search for room in the full table before this time */
    struct queue wanted;
    struct queue failed; /* wanted again after a failure */
    struct place places[kvb_max_lookups];
    struct kvb_resolver_counters counters;
};

/* ---- Hosts that need no look-up ---- */

bool kvb_host_is_numeric(const char *host)
{
    uint8_t bytes[sizeof(struct in6_addr)];

    return host[0] == '[' || inet_pton(AF_INET, host, bytes) == 1 ||
           inet_pton(AF_INET6, host, bytes) == 1;
}

/* RFC 6761: always the loopback addresses. */
static bool answer_localhost(const char *host, struct kvb_dns_answer *out_answer)
{
    if (strcasecmp(host, "localhost") != 0) {
        return false;
    }
    kvb_addresses_add(&out_answer->addresses, "127.0.0.1");
    kvb_addresses_add(&out_answer->addresses, "::1");
    return true;
}

/* ---- Look-ups ---- */

static void append(struct queue *queue, struct name *name)
{
    name->wanted = NULL;
    if (queue->first) {
        queue->last->wanted = name;
    } else {
        queue->first = name;
    }
    queue->last = name;
}

static struct name *take_first(struct queue *queue)
{
    struct name *name = queue->first;

    if (name) {
        queue->first = name->wanted;
    }
    return name;
}

static void fail_name(
    struct kvb_resolver *resolver, struct name *name, enum kvb_dns_result result, uint64_t now_ns)
{
    kvb_dns_entry_failed(&name->entry, result, now_ns);
    resolver->counters.results[result]++;
}

static void take_answer(struct kvb_resolver *resolver, struct place *place, uint64_t now_ns)
{
    struct kvb_addresses addresses = { .count = 0 };
    struct kvb_dns_members found = { 0 };
    enum kvb_dns_result result = KVB_DNS_FAILURE;

    if (kvb_lookup_take(place->lookup, &result, &found) != KVB_OK) {
        return; /* not yet */
    }
    /* It was freed when it was taken. */
    place->lookup = NULL;
    for (size_t i = 0; i < found.count; i++) {
        kvb_addresses_add(&addresses, found.items[i].host);
    }
    kvb_dns_members_done(&found);
    if (result == KVB_DNS_OK) {
        kvb_dns_entry_answered(&place->name->entry, &addresses, now_ns);
        resolver->counters.results[KVB_DNS_OK]++;
    } else {
        fail_name(resolver, place->name, result, now_ns);
    }
}

/* Takes the answers that have arrived, and gives free places to the names that wait. */
static void work_places(struct kvb_resolver *resolver, uint64_t now_ns)
{
    for (size_t i = 0; i < kvb_max_lookups; i++) {
        struct place *place = &resolver->places[i];
        if (place->lookup) {
            take_answer(resolver, place, now_ns);
        }
        if (place->lookup) {
            continue;
        }
        /* New names and those that were answered come first, in all of the places. */
        place->name = take_first(&resolver->wanted);
        if (!place->name && i < failed_places) {
            place->name = take_first(&resolver->failed);
        }
        if (!place->name) {
            continue;
        }
        resolver->counters.questions++;
        /* Without a thread or memory the name counts as failed, and pauses like others. */
        if (kvb_lookup_start(place->name->host, KVB_LOOKUP_HOST, &place->lookup) != KVB_OK) {
            fail_name(resolver, place->name, KVB_DNS_FAILURE, now_ns);
        }
    }
}

/* ---- Names ---- */

/* Frees names that have not been looked up for forget_ns. */
static void forget_old_names(struct kvb_resolver *resolver, uint64_t now_ns)
{
    for (size_t i = 0; i < bucket_count; i++) {
        for (struct name **at = &resolver->buckets[i]; *at;) {
            struct name *name = *at;
            /* One under query is in a queue or at a place, which borrow it. */
            if (name->entry.is_queried || now_ns - name->looked_ns < forget_ns) {
                at = &name->next;
                continue;
            }
            *at = name->next;
            resolver->name_count--;
            free(name);
        }
    }
}

static bool resolver_has_room(struct kvb_resolver *resolver, uint64_t now_ns)
{
    /* A full table is searched once a second only, however many new names are asked for. */
    if (resolver->name_count >= kvb_max_names && now_ns >= resolver->full_until_ns) {
        forget_old_names(resolver, now_ns);
        resolver->full_until_ns = now_ns + KVB_NS_PER_S;
    }
    return resolver->name_count < kvb_max_names;
}

/* Finds or adds the name.  NULL: there is no room, or it is too long for a host name. */
static struct name *find_name(struct kvb_resolver *resolver, const char *host, uint64_t now_ns)
{
    const kvb_span bytes = { .data = (const uint8_t *)host, .len = strlen(host) };
    struct name **bucket = &resolver->buckets[kvb_hash64(bytes, 0) % bucket_count];

    for (struct name *name = *bucket; name; name = name->next) {
        if (strcmp(name->host, host) == 0) {
            return name;
        }
    }
    if (bytes.len >= kvb_host_bytes || !resolver_has_room(resolver, now_ns)) {
        return NULL;
    }
    struct name *name = calloc(1, sizeof *name);
    if (name) {
        memcpy(name->host, host, bytes.len);
        name->next = *bucket;
        *bucket = name;
        resolver->name_count++;
    }
    return name;
}

/* The caller locks. */
static void look_name(
    struct kvb_resolver *resolver, const char *host, uint64_t now_ns,
    struct kvb_dns_answer *out_answer)
{
    struct name *name = find_name(resolver, host, now_ns);

    if (name) {
        name->looked_ns = now_ns;
        if (kvb_dns_entry_query(&name->entry, now_ns)) {
            /* It goes by its newest answer: a name that was answered once, and then failed, waits
             * with the failed. */
            append(
                name->entry.result == KVB_DNS_FAILURE ? &resolver->failed : &resolver->wanted,
                name);
        }
    }
    work_places(resolver, now_ns); /* for other names too: whoever calls drives all */
    if (name) {
        *out_answer = (struct kvb_dns_answer){ .addresses = name->entry.addresses,
                                               .result = name->entry.result,
                                               .is_queried = name->entry.is_queried };
    }
}

void kvb_resolver_look(
    struct kvb_resolver *resolver, const char *host, uint64_t now_ns,
    struct kvb_dns_answer *out_answer)
{
    *out_answer = (struct kvb_dns_answer){ .result = KVB_DNS_OK };
    if (answer_localhost(host, out_answer)) {
        return;
    }
    out_answer->result = KVB_DNS_FAILURE; /* when no look-up can begin */
    if (!resolver) {
        return;
    }
    (void)pthread_mutex_lock(&resolver->lock);
    look_name(resolver, host, now_ns, out_answer);
    (void)pthread_mutex_unlock(&resolver->lock);
}

struct kvb_resolver_counters kvb_resolver_count(struct kvb_resolver *resolver)
{
    if (!resolver) {
        return (struct kvb_resolver_counters){ .questions = 0 };
    }
    (void)pthread_mutex_lock(&resolver->lock);
    const struct kvb_resolver_counters counters = resolver->counters;
    (void)pthread_mutex_unlock(&resolver->lock);
    return counters;
}

kvb_status kvb_resolver_new(struct kvb_resolver **out_resolver)
{
    struct kvb_resolver *resolver = calloc(1, sizeof *resolver);

    if (!resolver) {
        return KVB_NO_MEMORY;
    }
    (void)pthread_mutex_init(&resolver->lock, NULL); /* cannot fail without attributes */
    *out_resolver = resolver;
    return KVB_OK;
}

void kvb_resolver_free(struct kvb_resolver *resolver)
{
    if (!resolver) {
        return;
    }
    for (size_t i = 0; i < kvb_max_lookups; i++) {
        /* Threads that still wait for name servers free their look-ups themselves. */
        kvb_lookup_drop(resolver->places[i].lookup);
    }
    for (size_t i = 0; i < bucket_count; i++) {
        while (resolver->buckets[i]) {
            struct name *name = resolver->buckets[i];
            resolver->buckets[i] = name->next;
            free(name);
        }
    }
    (void)pthread_mutex_destroy(&resolver->lock);
    free(resolver);
}
