#include "kvbridge/announce_to.h"

#include "core/buf.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/own.h"
#include "core/thread.h"
#include "ingest/http/fetch.h"
#include "kvbridge/announcer.h"
#include "kvbridge/metrics.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t stop_within_ns = 2 * KVB_NS_PER_S;

enum {
    timeout_ms = 5000,
    look_ms = 200,
    idle_ms = 60000,
    url_bytes = kvb_config_url_bytes + 64,
    max_body_bytes = 4096,
    max_answer_bytes = 16 << 20,
    ok_code = 200,
    max_places = 2 * kvb_max_announce_services /* those that leave, too */
};

struct service {
    struct kvb_announce_to *announce; /* borrowed */
    struct kvb_announce_config config;
    bool is_leaving;
    uint64_t leave_until_ns;
    struct kvb_announcer announcer;
    enum kvb_announce_step step; /* under way */
    struct kvb_fetch *fetch;     /* NULL: none */
    struct kvb_buf answer;       /* owned */
    char url[kvb_url_shown_bytes];
    struct kvb_log_backoff backoff;
    size_t said_present; /* what the log has reported; SIZE_MAX: a failure */
};

/* What other threads have left for the thread. */
struct announce_mail {
    bool has_services;
    struct kvb_announce_config services[kvb_max_announce_services];
    size_t service_count;
    bool has_ranks;
    struct kvb_dynamo_worker *ranks; /* owned */
    size_t rank_count;
};

struct kvb_announce_to {
    struct kvb_announce_to_options options;
    struct kvb_fetcher *fetcher; /* owned */
    struct kvb_thread thread;
    atomic_bool is_stopping;

    /* Only the thread uses these. */
    struct service *services[max_places]; /* owned */
    struct kvb_dynamo_worker *ranks;      /* owned; newest */
    size_t rank_count;

    pthread_mutex_t lock; /* protects the next three */
    struct announce_mail mail;
    struct kvb_announce_status shown[kvb_max_announce_services];
    size_t shown_count;
};

uint64_t kvb_announce_rank_id(uint64_t worker_id, uint32_t dp_rank)
{
    const kvb_span parts[] = { { (const uint8_t *)&worker_id, sizeof worker_id },
                               { (const uint8_t *)&dp_rank, sizeof dp_rank } };

    return dp_rank == 0 ? worker_id : kvb_hash64_parts(parts, KVB_COUNT_OF(parts), 0) >> (64 - 53);
}

/* ---- Log and status ---- */

static void say_failing(struct service *service, uint64_t now_ns)
{
    if (kvb_log_backoff_due(&service->backoff, now_ns) || service->said_present != SIZE_MAX) {
        kvb_log_write(
            service->announce->options.log, KVB_LOG_WARNING, "announce",
            "a Dynamo service cannot be asked: trying again", "dynamo", service->url, "why",
            kvb_announcer_why(&service->announcer), NULL);
    }
    service->said_present = SIZE_MAX;
}

static void say_registered(struct service *service)
{
    const size_t present = kvb_announcer_count_present(&service->announcer);
    const char *why = kvb_announcer_why(&service->announcer);

    if (present == service->said_present) {
        return;
    }
    service->said_present = present;
    kvb_log_backoff_end(&service->backoff);
    kvb_log_write(
        service->announce->options.log, why[0] ? KVB_LOG_WARNING : KVB_LOG_INFO, "announce",
        "ranks registered at a Dynamo service", "dynamo", service->url, "api",
        kvb_dynamo_api_name(service->announcer.api), "ranks", KVB_LOG_U64(present), "wanted",
        KVB_LOG_U64(kvb_announcer_count_wanted(&service->announcer)), "why", why, NULL);
}

static void say_service(struct service *service, uint64_t now_ns)
{
    if (service->announcer.is_failing) {
        say_failing(service, now_ns);
    } else if (kvb_announcer_is_settled(&service->announcer)) {
        say_registered(service);
    }
}

static void show_service(const struct service *service, struct kvb_announce_status *out)
{
    *out = (struct kvb_announce_status){
        .api = service->announcer.api,
        .is_failing = service->announcer.is_failing,
        .wanted = kvb_announcer_count_wanted(&service->announcer),
        .present = kvb_announcer_count_present(&service->announcer),
    };
    memcpy(out->url, service->url, sizeof out->url);
    kvb_detail_set(&out->why, "%s", kvb_announcer_why(&service->announcer));
}

static void show_services(struct kvb_announce_to *announce)
{
    struct kvb_metrics *metrics = announce->options.metrics;
    size_t wanted = 0;
    size_t present = 0;

    (void)pthread_mutex_lock(&announce->lock);
    announce->shown_count = 0;
    for (size_t i = 0; i < max_places; i++) {
        const struct service *service = announce->services[i];
        if (service && !service->is_leaving) {
            struct kvb_announce_status *shown = &announce->shown[announce->shown_count++];
            show_service(service, shown);
            wanted += shown->wanted;
            present += shown->present;
        }
    }
    (void)pthread_mutex_unlock(&announce->lock);
    kvb_metric_set(metrics, kvb_bridge_announce_wanted, wanted);
    kvb_metric_set(metrics, kvb_bridge_announce_present, present);
}

/* ---- Requests ---- */

static kvb_status keep_answer(void *context, kvb_span bytes)
{
    struct service *service = context;

    return kvb_buf_append(&service->answer, bytes.data, bytes.len);
}

static void count_answer(struct service *service, unsigned code)
{
    const enum kvb_bridge_metric metric = code == 0 || code >= 500 ? kvb_bridge_announce_failed
                                          : code >= 400            ? kvb_bridge_announce_refused
                                                                   : kvb_bridge_announce_done;

    kvb_metric_add(service->announce->options.metrics, metric, 1);
}

static void end_service_fetch(void *context, const struct kvb_fetch_end *end)
{
    struct service *service = context;
    const kvb_span text = kvb_buf_span(&service->answer);
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const bool is_whole = end->outcome == KVB_FETCH_OK || end->outcome == KVB_FETCH_CODE;
    struct kvb_announce_answer answer = { .code = is_whole ? end->code : 0 };
    struct kvb_detail why = { .text = "" };

    service->fetch = NULL; /* the fetcher has freed it */
    if (service->step == KVB_ANNOUNCE_LIST && answer.code == ok_code) {
        answer.is_unreadable =
            kvb_dynamo_list_decode(text, kvb_announcer_listed, &service->announcer) != KVB_OK;
        kvb_detail_set(&why, "%s", answer.is_unreadable ? "GET /workers gave no list" : "");
    } else if (is_whole) {
        kvb_dynamo_reason_decode(text, &why);
    }
    if (why.text[0] == '\0' && (answer.code == 0 || answer.code >= 400)) {
        why = end->why;
    }
    answer.why = why.text;
    count_answer(service, answer.code);
    kvb_announcer_answered(&service->announcer, &answer, now_ns);
    service->step = KVB_ANNOUNCE_NOTHING;
    say_service(service, now_ns);
}

/* Where a request goes, with which method and body. */
static kvb_status make_service_request(
    const struct service *service, enum kvb_announce_step step,
    const struct kvb_dynamo_worker *worker, char out_path[48], const char **out_method,
    struct kvb_buf *body)
{
    const bool is_indexer = service->announcer.api == KVB_DYNAMO_INDEXER;
    const char *fixed = step == KVB_ANNOUNCE_LIST || !is_indexer ? "/workers"
                        : step == KVB_ANNOUNCE_ADD               ? "/register"
                                                                 : "/unregister";

    (void)snprintf(out_path, 48, "%s", fixed);
    *out_method = step == KVB_ANNOUNCE_LIST ? NULL : "POST";
    if (step == KVB_ANNOUNCE_LIST) {
        return KVB_OK;
    }
    if (step == KVB_ANNOUNCE_ADD) {
        return kvb_dynamo_add_encode(service->announcer.api, worker, body);
    }
    if (is_indexer) {
        return kvb_dynamo_remove_encode(worker, body);
    }
    *out_method = "DELETE";
    (void)snprintf(out_path, 48, "/workers/%" PRIu64, worker->rank_id);
    return KVB_OK;
}

static kvb_status start_service_fetch(
    struct service *service, enum kvb_announce_step step, const struct kvb_dynamo_worker *worker)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf body = { 0 };
    const size_t len = strlen(service->config.dynamo);
    const bool has_slash = len > 0 && service->config.dynamo[len - 1] == '/';
    char path[48];
    char url[url_bytes];
    struct kvb_fetch_options options = { .url = url,
                                         .timeout_ms = timeout_ms,
                                         .max_bytes = max_answer_bytes,
                                         .takes_errors = true,
                                         .on_bytes = keep_answer,
                                         .on_end = end_service_fetch,
                                         .context = service };

    kvb_buf_init(&body, max_body_bytes);
    kvb_buf_reset(&service->answer);
    KVB_TRY(make_service_request(service, step, worker, path, &options.method, &body));
    options.json = kvb_buf_span(&body);
    (void)snprintf(url, sizeof url, "%.*s%s", (int)(len - has_slash), service->config.dynamo, path);
    service->step = step;
    return kvb_fetch_start(service->announce->fetcher, &options, &service->fetch);
}

/* True: a request is under way. */
static bool step_service(struct service *service, uint64_t now_ns)
{
    const struct kvb_dynamo_worker *worker = NULL;

    if (service->fetch) {
        return true;
    }
    const enum kvb_announce_step step = kvb_announcer_next(&service->announcer, now_ns, &worker);
    if (step != KVB_ANNOUNCE_NOTHING && start_service_fetch(service, step, worker) != KVB_OK) {
        const struct kvb_announce_answer none = { .why = "out of memory" };
        kvb_announcer_answered(&service->announcer, &none, now_ns);
    }
    return service->fetch;
}

/* ---- Services and ranks ---- */

/* The same ranks as this service reaches them. */
static kvb_status want_ranks(struct service *service)
{
    const struct kvb_announce_to *announce = service->announce;
    const size_t count = service->is_leaving ? 0 : announce->rank_count;
    struct kvb_dynamo_worker *ranks = calloc(count + 1, sizeof *ranks);
    char host[kvb_endpoint_host_bytes] = "";

    if (!ranks) {
        return KVB_NO_MEMORY;
    }
    (void)gethostname(host, sizeof host - 1); /* else: no host in the addresses */
    const kvb_span ours = kvb_span_of(service->config.host[0] ? service->config.host : host);
    for (size_t i = 0; i < count; i++) {
        const struct kvb_dynamo_worker *rank = &announce->ranks[i];
        ranks[i] = *rank;
        ranks[i].max_batched_tokens = service->config.max_batched_tokens;
        if (kvb_endpoint_at_host(rank->events, ours, ranks[i].events) != KVB_OK ||
            (rank->replay[0] != '\0' &&
             kvb_endpoint_at_host(rank->replay, ours, ranks[i].replay) != KVB_OK)) {
            ranks[i] = *rank; /* too long a host: as it listens */
        }
    }
    const kvb_status status = kvb_announcer_want(&service->announcer, ranks, count);
    free(ranks);
    return status;
}

static void free_service(struct service *service)
{
    if (service) {
        kvb_fetch_cancel(service->fetch);
        kvb_announcer_done(&service->announcer);
        kvb_buf_done(&service->answer);
        free(service);
    }
}

static void leave_service(struct service *service, uint64_t now_ns)
{
    service->is_leaving = true;
    service->leave_until_ns = now_ns + stop_within_ns;
    (void)want_ranks(service); /* without memory the registrations stay */
}

static bool
is_same_service(const struct kvb_announce_config *a, const struct kvb_announce_config *b)
{
    return strcmp(a->dynamo, b->dynamo) == 0 && strcmp(a->host, b->host) == 0 &&
           a->max_batched_tokens == b->max_batched_tokens;
}

/* A service of which only host or tokens have changed keeps its announcer, and so does one that was
 * left and is put back: its removals under way are then known. */
static struct service *
find_service(struct kvb_announce_to *announce, const struct kvb_announce_config *config)
{
    for (size_t i = 0; i < max_places; i++) {
        struct service *service = announce->services[i];
        if (service && strcmp(service->config.dynamo, config->dynamo) == 0) {
            return service;
        }
    }
    return NULL;
}

static void add_service(struct kvb_announce_to *announce, const struct kvb_announce_config *config)
{
    for (size_t i = 0; i < max_places; i++) {
        if (announce->services[i]) {
            continue;
        }
        struct service *service = calloc(1, sizeof *service);
        if (service) {
            service->announce = announce;
            service->config = *config;
            (void)kvb_url_show(config->dynamo, service->url, sizeof service->url);
            kvb_buf_init(&service->answer, max_answer_bytes);
            (void)want_ranks(service); /* without memory: with the next change */
            announce->services[i] = service;
        }
        return;
    }
}

static void
leave_unlisted(struct kvb_announce_to *announce, const struct announce_mail *mail, uint64_t now_ns)
{
    for (size_t i = 0; i < max_places; i++) {
        struct service *service = announce->services[i];
        bool is_listed = false;
        for (size_t at = 0; service && at < mail->service_count; at++) {
            is_listed |= strcmp(service->config.dynamo, mail->services[at].dynamo) == 0;
        }
        if (service && !is_listed && !service->is_leaving) {
            leave_service(service, now_ns);
        }
    }
}

static void
take_services(struct kvb_announce_to *announce, const struct announce_mail *mail, uint64_t now_ns)
{
    leave_unlisted(announce, mail, now_ns);
    for (size_t i = 0; i < mail->service_count; i++) {
        struct service *service = find_service(announce, &mail->services[i]);
        if (!service) {
            add_service(announce, &mail->services[i]);
        } else if (service->is_leaving || !is_same_service(&service->config, &mail->services[i])) {
            service->config = mail->services[i];
            service->is_leaving = false;
            (void)want_ranks(service); /* without memory: with the next change */
        }
    }
}

static void take_ranks(struct kvb_announce_to *announce, struct announce_mail *mail)
{
    free(announce->ranks);
    announce->ranks = mail->ranks;
    announce->rank_count = mail->rank_count;
    for (size_t i = 0; i < max_places; i++) {
        if (announce->services[i] && !announce->services[i]->is_leaving) {
            (void)want_ranks(announce->services[i]); /* without memory: with the next change */
        }
    }
}

static void take_mail(struct kvb_announce_to *announce, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&announce->lock);
    struct announce_mail mail = announce->mail;
    announce->mail = (struct announce_mail){ .has_services = false };
    (void)pthread_mutex_unlock(&announce->lock);
    if (mail.has_ranks) {
        take_ranks(announce, &mail);
    }
    if (mail.has_services) {
        take_services(announce, &mail, now_ns);
    }
}

/* ---- The thread ---- */

static bool has_service_left(const struct service *service, uint64_t now_ns)
{
    return service->is_leaving && !service->fetch &&
           (kvb_announcer_is_gone(&service->announcer) || now_ns >= service->leave_until_ns);
}

/* After how many ms the next turn is due. */
static int announce_turn(struct kvb_announce_to *announce, uint64_t now_ns)
{
    int wait_ms = idle_ms;

    take_mail(announce, now_ns);
    for (size_t i = 0; i < max_places; i++) {
        struct service *service = announce->services[i];
        if (!service) {
            continue;
        }
        wait_ms = look_ms;
        if (has_service_left(service, now_ns)) {
            free_service(service);
            announce->services[i] = NULL;
        } else {
            (void)step_service(service, now_ns);
        }
    }
    show_services(announce);
    return wait_ms;
}

static bool has_services(const struct kvb_announce_to *announce)
{
    for (size_t i = 0; i < max_places; i++) {
        if (announce->services[i]) {
            return true;
        }
    }
    return false;
}

static void take_registrations_back(struct kvb_announce_to *announce)
{
    const struct announce_mail nothing = { .service_count = 0 };
    const uint64_t until_ns = kvb_clock_monotonic_ns() + stop_within_ns;
    uint64_t now_ns = 0;

    leave_unlisted(announce, &nothing, kvb_clock_monotonic_ns());
    while (has_services(announce) && (now_ns = kvb_clock_monotonic_ns()) < until_ns) {
        const int wait_ms = announce_turn(announce, now_ns);
        if (has_services(announce)) {
            (void)kvb_fetcher_work(announce->fetcher, wait_ms); /* else: it ends with the time */
        }
    }
}

static void *run_announce(void *context)
{
    struct kvb_announce_to *announce = context;

    (void)pthread_setname_np(pthread_self(), "kvb-announce"); /* for top -H; else unnamed */
    while (!atomic_load(&announce->is_stopping)) {
        const int wait_ms = announce_turn(announce, kvb_clock_monotonic_ns());
        (void)kvb_fetcher_work(
            announce->fetcher, wait_ms); /* on failure the next turn tries again */
    }
    take_registrations_back(announce);
    return NULL;
}

/* ---- Other threads ---- */

kvb_status
kvb_announce_to_start(const struct kvb_announce_to_options *options, struct kvb_announce_to **out)
{
    struct kvb_announce_to *announce = calloc(1, sizeof *announce);

    if (!announce) {
        return KVB_NO_MEMORY;
    }
    announce->options = *options;
    (void)pthread_mutex_init(&announce->lock, NULL); /* cannot fail without attributes */
    kvb_status status = kvb_fetcher_new(options->resolver, &announce->fetcher);
    if (status == KVB_OK) {
        status = kvb_thread_start(&announce->thread, run_announce, announce);
    }
    if (status != KVB_OK) {
        kvb_announce_to_free(announce);
        return status;
    }
    *out = announce;
    return KVB_OK;
}

void kvb_announce_to_stop(struct kvb_announce_to *announce)
{
    if (!announce || !announce->thread.is_running) {
        return;
    }
    atomic_store(&announce->is_stopping, true);
    kvb_fetcher_wake(announce->fetcher);
    kvb_thread_join(&announce->thread);
}

void kvb_announce_to_free(struct kvb_announce_to *announce)
{
    if (!announce) {
        return;
    }
    kvb_announce_to_stop(announce);
    for (size_t i = 0; i < max_places; i++) {
        free_service(announce->services[i]);
    }
    kvb_fetcher_free(announce->fetcher);
    free(announce->mail.ranks);
    free(announce->ranks);
    (void)pthread_mutex_destroy(&announce->lock);
    free(announce);
}

void kvb_announce_to_set_services(
    struct kvb_announce_to *announce, const struct kvb_announce_config *services, size_t count)
{
    (void)pthread_mutex_lock(&announce->lock);
    announce->mail.service_count = 0;
    for (size_t i = 0; i < count && i < kvb_max_announce_services; i++) {
        if (services[i].dynamo[0] != '\0') {
            announce->mail.services[announce->mail.service_count++] = services[i];
        }
    }
    announce->mail.has_services = true;
    (void)pthread_mutex_unlock(&announce->lock);
    kvb_fetcher_wake(announce->fetcher);
}

kvb_status kvb_announce_to_set_ranks(
    struct kvb_announce_to *announce, const struct kvb_dynamo_worker *ranks, size_t count)
{
    struct kvb_dynamo_worker *copy = calloc(count + 1, sizeof *copy);

    if (!copy) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        copy[i] = ranks[i];
    }
    (void)pthread_mutex_lock(&announce->lock);
    free(announce->mail.ranks);
    announce->mail.ranks = copy;
    announce->mail.rank_count = count;
    announce->mail.has_ranks = true;
    (void)pthread_mutex_unlock(&announce->lock);
    kvb_fetcher_wake(announce->fetcher);
    return KVB_OK;
}

size_t kvb_announce_to_read(struct kvb_announce_to *announce, struct kvb_announce_status *out)
{
    (void)pthread_mutex_lock(&announce->lock);
    const size_t count = announce->shown_count;
    memcpy(out, announce->shown, count * sizeof *out);
    (void)pthread_mutex_unlock(&announce->lock);
    return count;
}
