#include "ingest/http/fetch.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/networks.h"
#include "ingest/dns/resolver.h"

#include <curl/curl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Connections kept open between fetches: one for each engine of a large host. */
enum { max_idle_connections = 1024 };

/* An older connection with a client certificate is not reused. */
static const long max_connection_age_s = 10;

/* How often a waiting fetch checks whether its host is resolved. */
static const uint64_t look_ns = 20 * KVB_NS_PER_MS;

struct kvb_fetcher {
    struct kvb_control *own_loop;  /* owned; NULL: the job is another's */
    struct kvb_job *job;           /* borrowed, unless there is an own loop */
    struct kvb_resolver *resolver; /* borrowed; NULL: all hosts are numeric */
    CURLM *multi;                  /* owned */
    uint64_t timer_ns;             /* when libcurl wants to be called; UINT64_MAX: never */
    struct kvb_fetch *first;       /* owned, a list */
    size_t waiting;                /* number of fetches that wait for the resolver */
};

struct kvb_fetch {
    struct kvb_fetcher *fetcher;
    struct kvb_fetch *next;
    struct kvb_fetch *previous;
    CURL *easy;                   /* owned, like the next */
    struct curl_slist *addresses; /* of the host; NULL: unknown, or numeric host */
    struct curl_slist *headers;   /* ours; NULL: none */
    bool is_waiting;              /* for addresses; libcurl has not begun */
    char host[kvb_host_bytes];
    unsigned port;
    struct kvb_fetch_options options;
    uint64_t started_ns;
    size_t bytes;
    bool is_too_large;
    bool is_stopped;
    char refusal[160]; /* why an address was not dialed; "": all were permitted */
    char error[CURL_ERROR_SIZE];
};

const char *kvb_fetch_outcome_name(enum kvb_fetch_outcome outcome)
{
    static const char *const names[KVB_FETCH_OUTCOME_COUNT] = {
        [KVB_FETCH_OK] = "ok",
        [KVB_FETCH_UNREACHABLE] = "unreachable",
        [KVB_FETCH_LATE] = "late",
        [KVB_FETCH_CODE] = "code",
        [KVB_FETCH_TOO_LARGE] = "too_large",
        [KVB_FETCH_STOPPED] = "stopped",
    };

    return outcome < KVB_FETCH_OUTCOME_COUNT ? names[outcome] : "unknown";
}

/* ---- Global state of libcurl, set up once in a process ---- */

static CURLcode global_state = CURLE_FAILED_INIT;

static void init_global(void)
{
    global_state = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static bool is_curl_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    return pthread_once(&once, init_global) == 0 && global_state == CURLE_OK;
}

/* ---- What libcurl waits for ---- */

static void on_ready(void *context, int fd, bool is_readable, bool is_writable)
{
    struct kvb_fetcher *fetcher = context;
    const int ready = (is_readable ? CURL_CSELECT_IN : 0) | (is_writable ? CURL_CSELECT_OUT : 0);
    int running = 0;

    /* it fails without memory, and then each transfer that it concerns ends with an error */
    (void)curl_multi_socket_action(fetcher->multi, fd, ready, &running);
}

/* Callback of libcurl: what it waits for at this socket has changed.  -1 ends its transfers. */
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *watched)
{
    struct kvb_fetcher *fetcher = context;
    struct kvb_fd_watch *watch = watched;

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        kvb_fd_watch_free(watch);
        return 0;
    }
    if (!watch) {
        const struct kvb_fd_watch_options options = { .fd = fd,
                                                      .on_ready = on_ready,
                                                      .context = fetcher };
        if (kvb_fd_watch_new(fetcher->job, &options, &watch) != KVB_OK) {
            return -1;
        }
        (void)curl_multi_assign(fetcher->multi, fd, watch); /* cannot fail: libcurl knows fd */
    }
    kvb_fd_watch_set(watch, what & CURL_POLL_IN, what & CURL_POLL_OUT);
    return 0;
}

/* Callback of libcurl: it wants to be called in so many ms; -1: not at all. */
static int note_timer(CURLM *multi, long wait_ms, void *context)
{
    struct kvb_fetcher *fetcher = context;

    (void)multi;
    fetcher->timer_ns =
        wait_ms < 0 ? UINT64_MAX : kvb_clock_monotonic_ns() + (uint64_t)wait_ms * KVB_NS_PER_MS;
    return 0;
}

static uint64_t own_turn(void *context, uint64_t now_ns)
{
    return kvb_fetcher_work(context, now_ns);
}

static kvb_status make_own_loop(struct kvb_fetcher *fetcher)
{
    const struct kvb_job_options options = { .turn = own_turn, .context = fetcher };

    KVB_TRY(kvb_control_new(&fetcher->own_loop));
    return kvb_job_add(fetcher->own_loop, &options, &fetcher->job);
}

static CURLMcode set_up_multi(struct kvb_fetcher *fetcher)
{
    CURLMcode bad = CURLM_OK;

    bad |= curl_multi_setopt(fetcher->multi, CURLMOPT_MAXCONNECTS, (long)max_idle_connections);
    bad |= curl_multi_setopt(fetcher->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    bad |= curl_multi_setopt(fetcher->multi, CURLMOPT_SOCKETDATA, fetcher);
    bad |= curl_multi_setopt(fetcher->multi, CURLMOPT_TIMERFUNCTION, note_timer);
    bad |= curl_multi_setopt(fetcher->multi, CURLMOPT_TIMERDATA, fetcher);
    return bad;
}

kvb_status kvb_fetcher_new(
    struct kvb_job *job, struct kvb_resolver *resolver, struct kvb_fetcher **out_fetcher)
{
    if (!is_curl_ready()) {
        return KVB_IO;
    }
    struct kvb_fetcher *fetcher = calloc(1, sizeof *fetcher);
    if (!fetcher) {
        return KVB_NO_MEMORY;
    }
    fetcher->job = job;
    fetcher->resolver = resolver;
    fetcher->timer_ns = UINT64_MAX;
    fetcher->multi = curl_multi_init();
    kvb_status status =
        fetcher->multi && set_up_multi(fetcher) == CURLM_OK ? KVB_OK : KVB_NO_MEMORY;
    if (status == KVB_OK && !job) {
        status = make_own_loop(fetcher);
    }
    if (status != KVB_OK) {
        kvb_fetcher_free(fetcher);
        return status;
    }
    *out_fetcher = fetcher;
    return KVB_OK;
}

kvb_status kvb_fetcher_limit(struct kvb_fetcher *fetcher, unsigned max_connections)
{
    const long max = (long)max_connections;
    const long host_max = max > 4 ? max / 4 : 1; /* one silent host leaves room for the others */

    return curl_multi_setopt(fetcher->multi, CURLMOPT_MAXCONNECTS, max) == CURLM_OK &&
                   curl_multi_setopt(fetcher->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, max) ==
                       CURLM_OK &&
                   curl_multi_setopt(fetcher->multi, CURLMOPT_MAX_HOST_CONNECTIONS, host_max) ==
                       CURLM_OK
               ? KVB_OK
               : KVB_IO;
}

/* ---- One fetch ---- */

static void unlink_fetch(struct kvb_fetch *fetch)
{
    if (fetch->previous) {
        fetch->previous->next = fetch->next;
    } else if (fetch->fetcher->first == fetch) {
        fetch->fetcher->first = fetch->next;
    }
    if (fetch->next) {
        fetch->next->previous = fetch->previous;
    }
}

void kvb_fetch_cancel(struct kvb_fetch *fetch)
{
    if (!fetch) {
        return;
    }
    unlink_fetch(fetch);
    fetch->fetcher->waiting -= fetch->is_waiting;
    /* The lists of addresses and headers are borrowed by the handle, so they go after it. */
    if (fetch->easy) {
        (void)curl_multi_remove_handle(fetch->fetcher->multi, fetch->easy); /* fine if not added */
        curl_easy_cleanup(fetch->easy);
    }
    curl_slist_free_all(fetch->addresses);
    curl_slist_free_all(fetch->headers);
    free(fetch);
}

void kvb_fetcher_free(struct kvb_fetcher *fetcher)
{
    if (!fetcher) {
        return;
    }
    while (fetcher->first) {
        struct kvb_fetch *fetch = fetcher->first;
        fetcher->first = fetch->next;
        kvb_fetch_cancel(fetch);
    }
    /* Before the loop, which the last callbacks of libcurl still use. */
    if (fetcher->multi) {
        (void)curl_multi_cleanup(fetcher->multi);
    }
    if (fetcher->own_loop) {
        kvb_job_remove(fetcher->job);
        kvb_control_free(fetcher->own_loop);
    }
    free(fetcher);
}

static long code_of(const struct kvb_fetch *fetch)
{
    long code = 0;

    (void)curl_easy_getinfo(fetch->easy, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

static uint32_t retry_after_of(const struct kvb_fetch *fetch)
{
    curl_off_t seconds = 0;

    (void)curl_easy_getinfo(fetch->easy, CURLINFO_RETRY_AFTER, &seconds);
    return seconds < 0 ? 0 : seconds < UINT32_MAX ? (uint32_t)seconds : UINT32_MAX;
}

/* Callback of libcurl: any return value but `count` ends the transfer. */
static size_t take_curl_bytes(const char *bytes, size_t size, size_t count, void *context)
{
    struct kvb_fetch *fetch = context;
    const kvb_span span = { .data = (const uint8_t *)bytes, .len = size * count };

    /* The body of an error answer counts, too: it must not come without end. */
    if (span.len > fetch->options.max_bytes - fetch->bytes) {
        fetch->is_too_large = true;
        return 0;
    }
    fetch->bytes += span.len;
    if (code_of(fetch) != 200 && !fetch->options.takes_errors) {
        return span.len; /* the body of an error answer is ignored */
    }
    if (fetch->options.on_bytes(fetch->options.context, span) != KVB_OK) {
        fetch->is_stopped = true;
        return 0;
    }
    return span.len;
}

/* Callback of libcurl for each line of the header.  An empty line ends the header. */
static size_t take_curl_header(const char *line, size_t size, size_t count, void *context)
{
    struct kvb_fetch *fetch = context;
    const bool is_end = size * count == 2 && line[0] == '\r';

    /* Interim answers, such as 100, end with an empty line as well. */
    if (is_end && fetch->options.on_open && code_of(fetch) == 200) {
        fetch->options.on_open(fetch->options.context);
    }
    return size * count;
}

static CURLcode add_fetch_header(struct kvb_fetch *fetch, const char *line)
{
    struct curl_slist *longer = curl_slist_append(fetch->headers, line);

    fetch->headers = longer ? longer : fetch->headers;
    return longer ? CURLE_OK : CURLE_OUT_OF_MEMORY;
}

/* Adds the Authorization header.  fetch->headers keeps the token until the fetch ends.  The token
 * appears in no log and no error. */
static CURLcode add_token(struct kvb_fetch *fetch, const char *token)
{
    static const char bearer[] = "Authorization: Bearer ";
    const size_t len = sizeof bearer + strlen(token);
    char *text = malloc(len);
    if (!text) {
        return CURLE_OUT_OF_MEMORY;
    }
    (void)snprintf(text, len, "%s%s", bearer, token);
    const CURLcode bad = add_fetch_header(fetch, text);
    explicit_bzero(text, len);
    free(text);
    return bad;
}

static CURLcode set_up_request(struct kvb_fetch *fetch)
{
    const struct kvb_fetch_options *options = &fetch->options;
    CURLcode bad = CURLE_OK;

    if (options->json.len > 0) {
        bad |= curl_easy_setopt(
            fetch->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)options->json.len);
        /* libcurl copies the body, of which it must have been told the length before. */
        bad |= curl_easy_setopt(fetch->easy, CURLOPT_COPYPOSTFIELDS, options->json.data);
        bad |= add_fetch_header(fetch, "Content-Type: application/json");
        /* Else libcurl would wait up to a second for "100 Continue" before a large body. */
        bad |= add_fetch_header(fetch, "Expect:");
    }
    if (options->method) {
        bad |= curl_easy_setopt(fetch->easy, CURLOPT_CUSTOMREQUEST, options->method);
    }
    return bad;
}

static CURLcode set_up_headers(struct kvb_fetch *fetch)
{
    const char *token = fetch->options.token;
    CURLcode bad = set_up_request(fetch);

    if (token && token[0] != '\0') {
        bad |= add_token(fetch, token);
    }
    return fetch->headers ? bad | curl_easy_setopt(fetch->easy, CURLOPT_HTTPHEADER, fetch->headers)
                          : bad;
}

/* Callback of libcurl before it dials an address.  CURL_SOCKET_BAD: do not dial it. */
static curl_socket_t
open_fetch_socket(void *context, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct kvb_fetch *fetch = context;
    const struct kvb_networks *networks = fetch->options.networks;
    char text[NI_MAXHOST] = "";

    (void)purpose;
    if (getnameinfo(&address->addr, address->addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST) !=
            0 ||
        !(networks ? kvb_networks_allow(networks, text) : kvb_address_is_allowed(text))) {
        (void)snprintf(
            fetch->refusal, sizeof fetch->refusal, "the address %.60s is not allowed: it is %s",
            text,
            networks ? "not in the list of networks, or a metadata service"
                     : "link-local or a metadata service");
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* TCP keepalive detects the silent death of a peer, because a stream has no timeout. */
static CURLcode set_up_stream(struct kvb_fetch *fetch)
{
    CURLcode bad = CURLE_OK;

    bad |= curl_easy_setopt(fetch->easy, CURLOPT_TCP_KEEPALIVE, 1L);
    bad |= curl_easy_setopt(fetch->easy, CURLOPT_TCP_KEEPIDLE, 30L);
    bad |= curl_easy_setopt(fetch->easy, CURLOPT_TCP_KEEPINTVL, 10L);
    return bad;
}

static CURLcode
set_up_pem(CURL *easy, CURLoption of_file, CURLoption of_text, const struct kvb_fetch_pem *pem)
{
    if (pem->text) {
        /* A text wins over a file. */
        struct curl_blob blob = { .data = pem->text,
                                  .len = strlen(pem->text),
                                  .flags = CURL_BLOB_COPY };
        return curl_easy_setopt(easy, of_text, &blob);
    }
    return pem->file && pem->file[0] != '\0' ? curl_easy_setopt(easy, of_file, pem->file)
                                             : CURLE_OK;
}

static CURLcode set_up_authority(CURL *easy, const struct kvb_fetch_pem *authority)
{
    CURLcode bad = set_up_pem(easy, CURLOPT_CAINFO, CURLOPT_CAINFO_BLOB, authority);

    /* The system's directory would add its authorities, and the cache would keep a file that has
     * changed. */
    if (authority->text || (authority->file && authority->file[0] != '\0')) {
        bad |= curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
        bad |= curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, 0L);
    }
    return bad;
}

/* One statement for each option, so that libcurl's macros check the type of its value. */
static CURLcode set_up_transfer(struct kvb_fetch *fetch)
{
    CURL *easy = fetch->easy;
    CURLcode bad = CURLE_OK;

    bad |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(easy, CURLOPT_URL, fetch->options.url);
    /* libcurl must set no signal handlers in a process with threads. */
    bad |= curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    bad |= curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    /* An empty text also switches off what the environment says. */
    bad |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    bad |= curl_easy_setopt(easy, CURLOPT_USERAGENT, "kvbridge/" KVB_VERSION);
    bad |= curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, fetch->error);
    bad |= curl_easy_setopt(easy, CURLOPT_PRIVATE, fetch);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEDATA, fetch);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_curl_bytes);
    bad |= curl_easy_setopt(easy, CURLOPT_HEADERDATA, fetch);
    bad |= curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_curl_header);
    bad |= set_up_authority(easy, &fetch->options.authority);
    bad |= set_up_pem(easy, CURLOPT_SSLCERT, CURLOPT_SSLCERT_BLOB, &fetch->options.certificate);
    bad |= set_up_pem(easy, CURLOPT_SSLKEY, CURLOPT_SSLKEY_BLOB, &fetch->options.key);
    if (fetch->options.certificate.file) {
        /* libcurl reuses a connection by the certificate's path, even when the file has changed */
        bad |= curl_easy_setopt(easy, CURLOPT_MAXLIFETIME_CONN, max_connection_age_s);
    }
    if (fetch->options.refuses_metadata || fetch->options.networks) {
        bad |= curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, fetch);
        bad |= curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_fetch_socket);
    }
    if (fetch->options.is_stream) {
        bad |= set_up_stream(fetch);
    }
    return bad | set_up_headers(fetch);
}

kvb_status kvb_fetch_check_url(const char *url, struct kvb_detail *detail)
{
    static const char *const schemes[] = { "http://", "https://" };
    CURLU *parsed = curl_url();
    kvb_status status = KVB_BAD_CONFIG;

    if (!parsed) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        /* libcurl alone would accept other schemes, too. */
        if (strncmp(url, schemes[i], strlen(schemes[i])) == 0 &&
            curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK) {
            status = KVB_OK;
        }
    }
    curl_url_cleanup(parsed);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "expected http://host:port/path or https://host:port/path");
    }
    return status;
}

/* ---- Its host ---- */

static void copy_host(struct kvb_fetch *fetch, const char *host)
{
    const size_t len = strlen(host);

    if (len < sizeof fetch->host) {
        memcpy(fetch->host, host, len + 1);
    }
}

/* The host in ASCII (punycode), as libcurl would look it up.  KVB_BAD_CONFIG: it has no such
 * form. */
static kvb_status read_host(struct kvb_fetch *fetch)
{
    CURLU *parsed = curl_url();
    char *host = NULL;
    char *port = NULL;

    if (!parsed) {
        return KVB_NO_MEMORY;
    }
    if (curl_url_set(parsed, CURLUPART_URL, fetch->options.url, 0) == CURLUE_OK &&
        curl_url_get(parsed, CURLUPART_HOST, &host, CURLU_PUNYCODE) == CURLUE_OK &&
        curl_url_get(parsed, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK) {
        copy_host(fetch, host);
        fetch->port = (unsigned)strtoul(port, NULL, 10);
    }
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(parsed);
    return fetch->host[0] != '\0' ? KVB_OK : KVB_BAD_CONFIG;
}

/* Sets CURLOPT_RESOLVE to "+host:port:address,address".  libcurl tries the addresses in turn.  The
 * Host header and the name expected in a certificate do not change. */
static kvb_status
set_fetch_addresses(struct kvb_fetch *fetch, const struct kvb_addresses *addresses)
{
    char text[kvb_host_bytes + 16 + kvb_max_addresses * (kvb_address_bytes + 3)];
    /* The + makes the addresses expire in libcurl's cache. */
    int len = snprintf(text, sizeof text, "+%s:%u:", fetch->host, fetch->port);

    for (size_t i = 0; i < addresses->count; i++) {
        const char *address = addresses->text[i];
        len += snprintf(
            text + len, sizeof text - (size_t)len, kvb_address_is_ipv6(address) ? "%s[%s]" : "%s%s",
            i > 0 ? "," : "", address);
    }
    fetch->addresses = curl_slist_append(NULL, text);
    return fetch->addresses &&
                   curl_easy_setopt(fetch->easy, CURLOPT_RESOLVE, fetch->addresses) == CURLE_OK
               ? KVB_OK
               : KVB_NO_MEMORY;
}

static bool is_fetch_late(const struct kvb_fetch *fetch, uint64_t now_ns)
{
    return now_ns - fetch->started_ns >= fetch->options.timeout_ms * KVB_NS_PER_MS;
}

/* Starts the transfer in libcurl.  The timeout includes the time of the look-up. */
static kvb_status begin_transfer(struct kvb_fetch *fetch, uint64_t now_ns)
{
    const uint64_t took_ms = (now_ns - fetch->started_ns) / KVB_NS_PER_MS;
    const long left_ms = (long)fetch->options.timeout_ms - (long)took_ms;

    /* A stream has no end, so only its beginning is limited. */
    const CURLoption of = fetch->options.is_stream ? CURLOPT_CONNECTTIMEOUT_MS : CURLOPT_TIMEOUT_MS;

    /* 0 would stand for libcurl's default, which is minutes or no limit. */
    if (curl_easy_setopt(fetch->easy, of, left_ms > 0 ? left_ms : 1L) != CURLE_OK ||
        curl_multi_add_handle(fetch->fetcher->multi, fetch->easy) != CURLM_OK) {
        return KVB_NO_MEMORY;
    }
    /* Only now: a failure leaves it waiting, as kvb_fetch_cancel() counts on. */
    fetch->fetcher->waiting -= fetch->is_waiting;
    fetch->is_waiting = false;
    return KVB_OK;
}

/* Starts the transfer when the addresses of the host are known.
 * KVB_OK         libcurl has begun
 * KVB_AGAIN      the host is being looked up
 * KVB_NOT_FOUND  the host cannot be resolved; fetch->error says why */
static kvb_status begin_when_resolved(struct kvb_fetch *fetch, uint64_t now_ns)
{
    struct kvb_dns_answer answer = { .is_queried = false };

    if (!kvb_host_is_numeric(fetch->host)) {
        kvb_resolver_look(fetch->fetcher->resolver, fetch->host, now_ns, &answer);
        /* Old addresses serve while the host is looked up again. */
        if (answer.addresses.count == 0 && answer.is_queried) {
            return KVB_AGAIN;
        }
        if (answer.addresses.count == 0) {
            (void)snprintf(
                fetch->error, sizeof fetch->error, "the name %.150s cannot be resolved: %s",
                fetch->host, kvb_dns_result_text(answer.result));
            return KVB_NOT_FOUND;
        }
        KVB_TRY(set_fetch_addresses(fetch, &answer.addresses));
    }
    return begin_transfer(fetch, now_ns);
}

/* Succeeds when the host cannot be resolved: a later turn calls on_end. */
static kvb_status set_up_fetch(struct kvb_fetch *fetch)
{
    KVB_TRY(read_host(fetch));
    fetch->easy = curl_easy_init();
    if (!fetch->easy || set_up_transfer(fetch) != CURLE_OK) {
        return KVB_NO_MEMORY;
    }
    fetch->options.url = NULL; /* borrowed only for the call, like the others */
    fetch->options.token = NULL;
    fetch->options.method = NULL;
    fetch->options.json = (kvb_span){ 0 };
    fetch->options.authority = fetch->options.certificate = fetch->options.key =
        (struct kvb_fetch_pem){ NULL, NULL };
    /* The start must call nothing back, so that a host without an address ends in a turn. */
    const kvb_status status = begin_when_resolved(fetch, fetch->started_ns);
    return status == KVB_AGAIN || status == KVB_NOT_FOUND ? KVB_OK : status;
}

kvb_status kvb_fetch_start(
    struct kvb_fetcher *fetcher, const struct kvb_fetch_options *options,
    struct kvb_fetch **out_fetch)
{
    KVB_TRY(kvb_fetch_check_url(options->url, NULL));

    struct kvb_fetch *fetch = calloc(1, sizeof *fetch);
    if (!fetch) {
        return KVB_NO_MEMORY;
    }
    fetch->fetcher = fetcher;
    fetch->options = *options;
    fetch->started_ns = kvb_clock_monotonic_ns();
    fetch->is_waiting = true;
    fetcher->waiting++;
    const kvb_status status = set_up_fetch(fetch);
    if (status != KVB_OK) {
        kvb_fetch_cancel(fetch);
        return status;
    }
    /* In the list after all that can fail: kvb_fetch_cancel() works for one that is not in it. */
    fetch->next = fetcher->first;
    if (fetch->next) {
        fetch->next->previous = fetch;
    }
    fetcher->first = fetch;
    *out_fetch = fetch;
    kvb_job_wake(fetcher->job); /* libcurl has set its timer */
    return KVB_OK;
}

/* ---- Its end ---- */

static enum kvb_fetch_outcome outcome_of(const struct kvb_fetch *fetch, CURLcode result)
{
    /* Ours first: for libcurl both are failed writes. */
    if (fetch->is_too_large) {
        return KVB_FETCH_TOO_LARGE;
    }
    if (fetch->is_stopped) {
        return KVB_FETCH_STOPPED;
    }
    if (result == CURLE_OPERATION_TIMEDOUT) {
        return KVB_FETCH_LATE;
    }
    if (result != CURLE_OK) {
        return KVB_FETCH_UNREACHABLE;
    }
    return code_of(fetch) == 200 ? KVB_FETCH_OK : KVB_FETCH_CODE;
}

static void say_why(const struct kvb_fetch *fetch, CURLcode result, struct kvb_fetch_end *end)
{
    switch (end->outcome) {
    case KVB_FETCH_TOO_LARGE:
        kvb_detail_set(&end->why, "sent more than %zu bytes", fetch->options.max_bytes);
        return;
    case KVB_FETCH_LATE:
        kvb_detail_set(
            &end->why,
            fetch->is_waiting ? "its name was not resolved in %u ms"
                              : "gave no whole answer in %u ms",
            fetch->options.timeout_ms);
        return;
    case KVB_FETCH_CODE:
        kvb_detail_set(&end->why, "answered HTTP %u", end->code);
        return;
    /* Of an address that was refused libcurl knows only that there is no connection. */
    case KVB_FETCH_UNREACHABLE:
        kvb_detail_set(
            &end->why, "%s",
            fetch->refusal[0] ? fetch->refusal
            : fetch->error[0] ? fetch->error
                              : curl_easy_strerror(result));
        return;
    default:
        return; /* on_bytes has stopped it, and knows the reason */
    }
}

/* Frees the fetch before it calls on_end, which may start the next one. */
static void end_transfer(struct kvb_fetch *fetch, CURLcode result)
{
    /* Copied, because the fetch is gone when on_end runs. */
    const struct kvb_fetch_options options = fetch->options;
    struct kvb_fetch_end end = { .outcome = outcome_of(fetch, result),
                                 .code = (unsigned)code_of(fetch),
                                 .retry_after_s = retry_after_of(fetch),
                                 .took_ns = kvb_clock_monotonic_ns() - fetch->started_ns };

    say_why(fetch, result, &end);
    kvb_fetch_cancel(fetch);
    options.on_end(options.context, &end);
}

/* The next fetch after this one that waits for its host. */
static struct kvb_fetch *next_waiting(struct kvb_fetch *fetch)
{
    while (fetch && !fetch->is_waiting) {
        fetch = fetch->next;
    }
    return fetch;
}

static bool step_waiting(struct kvb_fetch *fetch, uint64_t now_ns)
{
    const kvb_status status = begin_when_resolved(fetch, now_ns);

    if (status == KVB_OK || (status == KVB_AGAIN && !is_fetch_late(fetch, now_ns))) {
        return false;
    }
    end_transfer(
        fetch, status == KVB_AGAIN       ? CURLE_OPERATION_TIMEDOUT
               : status == KVB_NOT_FOUND ? CURLE_COULDNT_RESOLVE_HOST
                                         : CURLE_OUT_OF_MEMORY);
    return true;
}

/* Continues the fetches that wait for the resolver.  True: one has ended.  on_end may start or
 * cancel others, so the walk stops there.  The next call continues. */
static bool step_all_waiting(struct kvb_fetcher *fetcher)
{
    /* not the turn's time: a fetch may have been started since */
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    struct kvb_fetch *fetch = fetcher->waiting > 0 ? next_waiting(fetcher->first) : NULL;

    while (fetch) {
        struct kvb_fetch *next = next_waiting(fetch->next);
        if (step_waiting(fetch, now_ns)) {
            return true;
        }
        fetch = next;
    }
    return false;
}

/* Ends the finished transfers. */
static void end_all_done(struct kvb_fetcher *fetcher)
{
    int left = 0;

    for (const CURLMsg *message = NULL; (message = curl_multi_info_read(fetcher->multi, &left));) {
        char *fetch = NULL;
        /* The message is libcurl's, and gone with the handle: its result is taken here. */
        if (message->msg == CURLMSG_DONE &&
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &fetch) == CURLE_OK) {
            end_transfer((struct kvb_fetch *)(void *)fetch, message->data.result);
        }
    }
}

uint64_t kvb_fetcher_work(struct kvb_fetcher *fetcher, uint64_t now_ns)
{
    int running = 0;

    /* First: what begins here sets libcurl's timer, which is looked at below. */
    const bool has_more = step_all_waiting(fetcher);
    if (now_ns >= fetcher->timer_ns) {
        fetcher->timer_ns = UINT64_MAX; /* before the call, which sets the next one */
        (void)curl_multi_socket_action(fetcher->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    end_all_done(fetcher);
    const uint64_t look_at_ns = has_more               ? now_ns
                                : fetcher->waiting > 0 ? now_ns + look_ns
                                                       : UINT64_MAX;
    return fetcher->timer_ns < look_at_ns ? fetcher->timer_ns : look_at_ns;
}

void kvb_fetcher_run(struct kvb_fetcher *fetcher, int wait_ms)
{
    kvb_control_run_once(fetcher->own_loop, wait_ms);
}

void kvb_fetcher_wake(struct kvb_fetcher *fetcher)
{
    kvb_job_wake(fetcher->job);
}
