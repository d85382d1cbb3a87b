#include "ingest/dns/resolver.h"

#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/thread.h"
#include "ingest/dns/inside.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    bucket_count = 1024,
    /* Timeouts of one name server: 1 s, then 2 s.  After a failure the pauses of ingest/dns/entry.h
     * apply. */
    first_timeout_ms = 1000,
    tries = 2,
    events_a_wait = 16,
    idle_ms = 60000,
    channel_count = 2,
    wake_mark = channel_count, /* in epoll data: wake_fd, instead of a channel number */
};

static const uint64_t forget_ns = 600 * KVB_NS_PER_S;
static const char settings_file[] = "/etc/resolv.conf";

/* A host name in the table; it is never freed while a query for it is under way. */
struct name {
    struct name *next;   /* next of its bucket */
    struct name *wanted; /* next in the list of names to query */
    struct kvb_dns_entry entry;
    uint64_t looked_ns;
    char host[kvb_host_bytes];
};

/* c-ares reads its settings when a channel is created.  When the file has changed, new queries go
 * to a new channel, while those of the old one finish. */
struct channel {
    struct kvb_resolver *resolver;
    ares_channel ares; /* owned; NULL: none */
    size_t under_way;
};

struct kvb_resolver {
    /* Only the resolver thread uses these; the descriptors are fixed. */
    struct channel channels[channel_count];
    size_t current;
    struct stat settings; /* of /etc/resolv.conf when it was read last */

    int epoll_fd;
    int wake_fd;
    atomic_bool is_stopping;

    pthread_mutex_t lock; /* protects all fields below */
    struct kvb_thread thread;
    struct name *buckets[bucket_count]; /* owned */
    size_t name_count;
    uint64_t full_until_ns; /* no search for room in the full table before this time */
    struct name *first_wanted;
    struct kvb_resolver_counters counters;
};

struct question {
    struct channel *channel;
    struct name *name;
};

/* ---- Hosts that need no query ---- */

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

/* ---- Answers ---- */

static void add_node(struct kvb_addresses *addresses, const struct ares_addrinfo_node *node)
{
    char text[kvb_address_bytes] = "";

    if (node->ai_family == AF_INET || node->ai_family == AF_INET6) {
        /* NI_NUMERICHOST: formats the address, looks nothing up */
        (void)getnameinfo(
            node->ai_addr, node->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    }
    if (text[0] != '\0') {
        kvb_addresses_add(addresses, text);
    }
}

static uint32_t
read_dns_answer(const struct ares_addrinfo *info, struct kvb_addresses *out_addresses)
{
    int ttl = INT32_MAX;

    out_addresses->count = 0;
    for (const struct ares_addrinfo_node *node = info->nodes; node; node = node->ai_next) {
        add_node(out_addresses, node);
        ttl = node->ai_ttl < ttl ? node->ai_ttl : ttl;
    }
    return ttl > 0 ? (uint32_t)ttl : 0;
}

enum kvb_dns_result kvb_dns_result_of(int status)
{
    switch (status) {
    case ARES_SUCCESS:
    case ARES_ENODATA:
    case ARES_ENOTFOUND:
    case ARES_ENONAME:
        return KVB_DNS_NO_NAME; /* success with addresses was handled before */
    case ARES_ETIMEOUT:
        return KVB_DNS_TIMEOUT;
    default:
        return KVB_DNS_FAILURE;
    }
}

static void take_dns_answer(void *context, int status, int timeouts, struct ares_addrinfo *info)
{
    struct question *question = context;
    struct kvb_resolver *resolver = question->channel->resolver;
    struct kvb_dns_entry *entry = &question->name->entry;
    struct kvb_addresses addresses = { .count = 0 };
    const uint32_t ttl_s = info ? read_dns_answer(info, &addresses) : 0;
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    (void)timeouts;
    (void)pthread_mutex_lock(&resolver->lock);
    if (status == ARES_SUCCESS && addresses.count > 0) {
        kvb_dns_entry_answered(entry, &addresses, ttl_s, now_ns);
    } else {
        kvb_dns_entry_failed(entry, kvb_dns_result_of(status), now_ns);
    }
    resolver->counters.results[entry->result]++;
    (void)pthread_mutex_unlock(&resolver->lock);
    question->channel->under_way--;
    if (info) {
        ares_freeaddrinfo(info);
    }
    free(question);
}

/* ---- Channels ---- */

/* c-ares calls this for each descriptor that it waits for.  Both flags 0: c-ares closes it. */
static void watch_socket(void *context, ares_socket_t fd, int readable, int writable)
{
    struct channel *channel = context;
    const struct kvb_resolver *resolver = channel->resolver;
    const uint64_t number = (uint64_t)(channel - resolver->channels);
    struct epoll_event event = { .events = (readable ? EPOLLIN : 0U) | (writable ? EPOLLOUT : 0U),
                                 .data = { .u64 = number << 32 | (uint32_t)fd } };

    if (!readable && !writable) {
        (void)epoll_ctl(resolver->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* it is being closed */
    } else if (epoll_ctl(resolver->epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0) {
        (void)epoll_ctl(resolver->epoll_fd, EPOLL_CTL_ADD, fd, &event); /* else: times out */
    }
}

static bool open_channel(struct channel *channel)
{
    struct ares_options options = { .timeout = first_timeout_ms,
                                    .tries = tries,
                                    .sock_state_cb = watch_socket,
                                    .sock_state_cb_data = channel };

    if (ares_init_options(
            &channel->ares, &options,
            ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB) != ARES_SUCCESS) {
        channel->ares = NULL;
    }
    return channel->ares != NULL;
}

static void close_channel(struct channel *channel)
{
    if (channel->ares) {
        ares_destroy(channel->ares); /* calls take_dns_answer() for what is under way */
        channel->ares = NULL;
    }
}

/* True when the file of settings has changed since the last call. */
static bool have_settings_changed(struct kvb_resolver *resolver)
{
    const struct stat before = resolver->settings;
    struct stat *now = &resolver->settings;

    if (stat(settings_file, now) != 0) {
        *now = (struct stat){ .st_ino = 0 }; /* a missing file is a change too */
    }
    return now->st_ino != before.st_ino || now->st_size != before.st_size ||
           now->st_mtim.tv_sec != before.st_mtim.tv_sec ||
           now->st_mtim.tv_nsec != before.st_mtim.tv_nsec;
}

/* The channel for new queries; NULL: out of memory. */
static struct channel *channel_of_now(struct kvb_resolver *resolver)
{
    struct channel *current = &resolver->channels[resolver->current];
    struct channel *other = &resolver->channels[!resolver->current];

    if (current->ares && other->under_way == 0 && have_settings_changed(resolver)) {
        close_channel(other);
        resolver->current = !resolver->current;
        current = other;
    }
    return current->ares || open_channel(current) ? current : NULL;
}

/* ---- The thread ---- */

static struct name *take_wanted(struct kvb_resolver *resolver)
{
    (void)pthread_mutex_lock(&resolver->lock);
    struct name *name = resolver->first_wanted;
    if (name) {
        resolver->first_wanted = name->wanted;
        resolver->counters.questions++;
    }
    (void)pthread_mutex_unlock(&resolver->lock);
    return name;
}

static void fail_name(struct kvb_resolver *resolver, struct name *name)
{
    (void)pthread_mutex_lock(&resolver->lock);
    kvb_dns_entry_failed(&name->entry, KVB_DNS_FAILURE, kvb_clock_monotonic_ns());
    resolver->counters.results[KVB_DNS_FAILURE]++;
    (void)pthread_mutex_unlock(&resolver->lock);
}

static void send_questions(struct kvb_resolver *resolver)
{
    const struct ares_addrinfo_hints hints = { .ai_family = AF_UNSPEC,
                                               .ai_socktype = SOCK_STREAM,
                                               .ai_flags = ARES_AI_NOSORT };

    for (struct name *name = NULL; (name = take_wanted(resolver));) {
        struct channel *channel = channel_of_now(resolver);
        struct question *question = channel ? calloc(1, sizeof *question) : NULL;
        if (!question) {
            fail_name(resolver, name);
            continue;
        }
        *question = (struct question){ .channel = channel, .name = name };
        channel->under_way++;
        ares_getaddrinfo(channel->ares, name->host, NULL, &hints, take_dns_answer, question);
    }
}

/* The time until the next query of c-ares times out. */
static int wait_ms_of(const struct kvb_resolver *resolver)
{
    int wait_ms = idle_ms;

    for (size_t i = 0; i < channel_count; i++) {
        struct timeval left;
        if (resolver->channels[i].ares && ares_timeout(resolver->channels[i].ares, NULL, &left)) {
            const long ms = left.tv_sec * 1000 + left.tv_usec / 1000 + 1;
            wait_ms = ms < wait_ms ? (int)ms : wait_ms;
        }
    }
    return wait_ms;
}

static void take_socket_event(struct kvb_resolver *resolver, const struct epoll_event *event)
{
    const uint64_t number = event->data.u64 >> 32;
    const ares_socket_t fd = (ares_socket_t)(uint32_t)event->data.u64;
    const bool has_failed = event->events & (EPOLLERR | EPOLLHUP);
    uint64_t times = 0;

    if (number == wake_mark) {
        (void)!read(resolver->wake_fd, &times, sizeof times); /* the loop then checks everything */
    } else if (resolver->channels[number].ares) {
        ares_process_fd(
            resolver->channels[number].ares,
            has_failed || event->events & EPOLLIN ? fd : ARES_SOCKET_BAD,
            event->events & EPOLLOUT ? fd : ARES_SOCKET_BAD);
    }
}

static void end_late_questions(struct kvb_resolver *resolver)
{
    for (size_t i = 0; i < channel_count; i++) {
        if (resolver->channels[i].ares) {
            ares_process_fd(resolver->channels[i].ares, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
        }
    }
}

static void *run_resolver(void *context)
{
    struct kvb_resolver *resolver = context;
    struct epoll_event events[events_a_wait];

    (void)pthread_setname_np(pthread_self(), "kvb-resolver"); /* for top -H; may fail */
    (void)have_settings_changed(resolver);                    /* remembers the current state */
    while (!atomic_load(&resolver->is_stopping)) {
        send_questions(resolver);
        const int count =
            epoll_wait(resolver->epoll_fd, events, events_a_wait, wait_ms_of(resolver));
        for (int i = 0; i < count; i++) {
            take_socket_event(resolver, &events[i]);
        }
        end_late_questions(resolver);
    }
    close_channel(&resolver->channels[0]);
    close_channel(&resolver->channels[1]);
    return NULL;
}

/* ---- Any thread ---- */

static void wake_resolver(struct kvb_resolver *resolver)
{
    const uint64_t once = 1;

    (void)!write(resolver->wake_fd, &once, sizeof once); /* fails when it is awake already */
}

/* Frees names that have not been looked up for forget_ns. */
static void forget_old_names(struct kvb_resolver *resolver, uint64_t now_ns)
{
    for (size_t i = 0; i < bucket_count; i++) {
        for (struct name **at = &resolver->buckets[i]; *at;) {
            struct name *name = *at;
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

static bool has_thread(struct kvb_resolver *resolver)
{
    return resolver->thread.is_running ||
           kvb_thread_start(&resolver->thread, run_resolver, resolver) == KVB_OK;
}

/* The caller locks.  True when the resolver thread must be woken. */
static bool look_name(
    struct kvb_resolver *resolver, const char *host, uint64_t now_ns,
    struct kvb_dns_answer *out_answer)
{
    struct name *name = has_thread(resolver) ? find_name(resolver, host, now_ns) : NULL;

    if (!name) {
        return false;
    }
    const bool is_new = kvb_dns_entry_query(&name->entry, now_ns);
    if (is_new) {
        name->wanted = resolver->first_wanted;
        resolver->first_wanted = name;
    }
    name->looked_ns = now_ns;
    *out_answer = (struct kvb_dns_answer){ .addresses = name->entry.addresses,
                                           .result = name->entry.result,
                                           .is_queried = name->entry.is_queried };
    return is_new;
}

void kvb_resolver_look(
    struct kvb_resolver *resolver, const char *host, uint64_t now_ns,
    struct kvb_dns_answer *out_answer)
{
    *out_answer = (struct kvb_dns_answer){ .result = KVB_DNS_OK };
    if (answer_localhost(host, out_answer)) {
        return;
    }
    out_answer->result = KVB_DNS_FAILURE; /* when no query can be sent */
    if (!resolver) {
        return;
    }
    (void)pthread_mutex_lock(&resolver->lock);
    const bool is_new = look_name(resolver, host, now_ns, out_answer);
    (void)pthread_mutex_unlock(&resolver->lock);
    if (is_new) {
        wake_resolver(resolver);
    }
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

/* ---- Start, stop ---- */

static int library_status = ARES_ENOTINITIALIZED;

static void init_library(void)
{
    library_status = ares_library_init(ARES_LIB_INIT_ALL);
}

bool kvb_dns_is_library_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    return pthread_once(&once, init_library) == 0 && library_status == ARES_SUCCESS;
}

static kvb_status open_descriptors(struct kvb_resolver *resolver)
{
    struct epoll_event event = { .events = EPOLLIN, .data = { .u64 = (uint64_t)wake_mark << 32 } };

    resolver->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    resolver->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (resolver->epoll_fd < 0 || resolver->wake_fd < 0 ||
        epoll_ctl(resolver->epoll_fd, EPOLL_CTL_ADD, resolver->wake_fd, &event) != 0) {
        return KVB_IO;
    }
    return KVB_OK;
}

kvb_status kvb_resolver_new(struct kvb_resolver **out_resolver)
{
    if (!kvb_dns_is_library_ready()) {
        return KVB_IO;
    }
    struct kvb_resolver *resolver = calloc(1, sizeof *resolver);
    if (!resolver) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < channel_count; i++) {
        resolver->channels[i].resolver = resolver;
    }
    (void)pthread_mutex_init(&resolver->lock, NULL); /* cannot fail without attributes */
    const kvb_status status = open_descriptors(resolver);
    if (status != KVB_OK) {
        kvb_resolver_free(resolver);
        return status;
    }
    *out_resolver = resolver;
    return KVB_OK;
}

static void free_names(struct kvb_resolver *resolver)
{
    for (size_t i = 0; i < bucket_count; i++) {
        while (resolver->buckets[i]) {
            struct name *name = resolver->buckets[i];
            resolver->buckets[i] = name->next;
            free(name);
        }
    }
}

static void close_descriptor(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

void kvb_resolver_free(struct kvb_resolver *resolver)
{
    if (!resolver) {
        return;
    }
    if (resolver->thread.is_running) {
        atomic_store(&resolver->is_stopping, true);
        wake_resolver(resolver);
        kvb_thread_join(&resolver->thread);
    }
    free_names(resolver);
    close_descriptor(resolver->wake_fd);
    close_descriptor(resolver->epoll_fd);
    (void)pthread_mutex_destroy(&resolver->lock);
    free(resolver);
}
