#include "ingest/http_fetch.h"

#include "core/clock.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Kept open between fetches: one for each engine of a large host. */
enum { most_idle_connections = 1024 };

struct kvb_fetcher {
    CURLM *multi;            /* owned */
    struct kvb_fetch *first; /* owned, a list */
};

struct kvb_fetch {
    struct kvb_fetcher *fetcher;
    struct kvb_fetch *next;
    struct kvb_fetch *previous;
    CURL *easy; /* owned */
    struct kvb_fetch_options options;
    uint64_t started_ns;
    size_t bytes;
    bool is_too_large;
    bool is_stopped;
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

/* ---- libcurl, once a process ---- */

static CURLcode global_state = CURLE_FAILED_INIT;

static void init_global(void)
{
    global_state = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static bool is_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    return pthread_once(&once, init_global) == 0 && global_state == CURLE_OK;
}

kvb_status kvb_fetcher_new(struct kvb_fetcher **out_fetcher)
{
    if (!is_ready()) {
        return KVB_IO;
    }
    struct kvb_fetcher *fetcher = calloc(1, sizeof *fetcher);
    if (!fetcher) {
        return KVB_NO_MEMORY;
    }
    fetcher->multi = curl_multi_init();
    if (!fetcher->multi ||
        curl_multi_setopt(fetcher->multi, CURLMOPT_MAXCONNECTS, (long)most_idle_connections) !=
            CURLM_OK) {
        kvb_fetcher_free(fetcher);
        return KVB_NO_MEMORY;
    }
    *out_fetcher = fetcher;
    return KVB_OK;
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
    if (fetch->easy) {
        (void)curl_multi_remove_handle(fetch->fetcher->multi, fetch->easy); /* also if not in */
        curl_easy_cleanup(fetch->easy);
    }
    free(fetch);
}

void kvb_fetcher_free(struct kvb_fetcher *fetcher)
{
    if (!fetcher) {
        return;
    }
    while (fetcher->first) {
        kvb_fetch_cancel(fetcher->first);
    }
    if (fetcher->multi) {
        (void)curl_multi_cleanup(fetcher->multi);
    }
    free(fetcher);
}

static long code_of(const struct kvb_fetch *fetch)
{
    long code = 0;

    (void)curl_easy_getinfo(fetch->easy, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

/* libcurl's: anything but `count` ends the transfer. */
static size_t take_bytes(const char *bytes, size_t size, size_t count, void *context)
{
    struct kvb_fetch *fetch = context;
    const kvb_span span = { .data = (const uint8_t *)bytes, .len = size * count };

    if (span.len > fetch->options.max_bytes - fetch->bytes) {
        fetch->is_too_large = true;
        return 0;
    }
    fetch->bytes += span.len;
    if (code_of(fetch) != 200) {
        return span.len; /* the words around an error: nobody reads them */
    }
    if (fetch->options.on_bytes(fetch->options.context, span) != KVB_OK) {
        fetch->is_stopped = true;
        return 0;
    }
    return span.len;
}

/* Each in a statement of its own: libcurl checks the type of the value. */
static CURLcode set_up(struct kvb_fetch *fetch)
{
    CURL *easy = fetch->easy;
    CURLcode bad = CURLE_OK;

    bad |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(easy, CURLOPT_URL, fetch->options.url);
    bad |= curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)fetch->options.timeout_ms);
    bad |= curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    bad |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    bad |= curl_easy_setopt(easy, CURLOPT_USERAGENT, "kvbridge/" KVB_VERSION);
    bad |= curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, fetch->error);
    bad |= curl_easy_setopt(easy, CURLOPT_PRIVATE, fetch);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEDATA, fetch);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
    return bad;
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
    fetch->easy = curl_easy_init();
    if (!fetch->easy || set_up(fetch) != CURLE_OK ||
        curl_multi_add_handle(fetcher->multi, fetch->easy) != CURLM_OK) {
        kvb_fetch_cancel(fetch);
        return KVB_NO_MEMORY;
    }
    fetch->options.url = NULL; /* was only borrowed for the call */
    fetch->next = fetcher->first;
    if (fetch->next) {
        fetch->next->previous = fetch;
    }
    fetcher->first = fetch;
    *out_fetch = fetch;
    return KVB_OK;
}

/* ---- Its end ---- */

static enum kvb_fetch_outcome outcome_of(const struct kvb_fetch *fetch, CURLcode result)
{
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
        kvb_detail_set(&end->why, "gave no whole answer in %u ms", fetch->options.timeout_ms);
        return;
    case KVB_FETCH_CODE:
        kvb_detail_set(&end->why, "answered HTTP %u", end->code);
        return;
    case KVB_FETCH_UNREACHABLE:
        kvb_detail_set(
            &end->why, "%s", fetch->error[0] ? fetch->error : curl_easy_strerror(result));
        return;
    default:
        return; /* whoever stopped it knows */
    }
}

/* The fetch is gone before it is told, so that on_end may start the next. */
static void end_fetch(struct kvb_fetch *fetch, CURLcode result)
{
    const struct kvb_fetch_options options = fetch->options;
    struct kvb_fetch_end end = { .outcome = outcome_of(fetch, result),
                                 .code = (unsigned)code_of(fetch),
                                 .took_ns = kvb_clock_monotonic_ns() - fetch->started_ns };

    say_why(fetch, result, &end);
    kvb_fetch_cancel(fetch);
    options.on_end(options.context, &end);
}

/* How many have ended. */
static size_t end_all_done(struct kvb_fetcher *fetcher)
{
    size_t ended = 0;
    int left = 0;

    for (const CURLMsg *message = NULL; (message = curl_multi_info_read(fetcher->multi, &left));) {
        char *fetch = NULL;
        if (message->msg == CURLMSG_DONE &&
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &fetch) == CURLE_OK) {
            end_fetch((struct kvb_fetch *)(void *)fetch, message->data.result);
            ended++;
        }
    }
    return ended;
}

kvb_status kvb_fetcher_work(struct kvb_fetcher *fetcher, int wait_ms)
{
    int running = 0;

    if (curl_multi_perform(fetcher->multi, &running) != CURLM_OK) {
        return KVB_IO;
    }
    if (end_all_done(fetcher) > 0) {
        return KVB_OK; /* whoever heard of it may have something to do */
    }
    if (curl_multi_poll(fetcher->multi, NULL, 0, wait_ms, NULL) != CURLM_OK ||
        curl_multi_perform(fetcher->multi, &running) != CURLM_OK) {
        return KVB_IO;
    }
    (void)end_all_done(fetcher);
    return KVB_OK;
}

void kvb_fetcher_wake(struct kvb_fetcher *fetcher)
{
    (void)curl_multi_wakeup(fetcher->multi); /* else: at the end of the wait */
}
