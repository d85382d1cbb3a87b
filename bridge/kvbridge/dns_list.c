#include "kvbridge/dns_list.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/thread.h"
#include "ingest/dns/lookup.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    usual_events_port = 5557,
    retry_ms = 1000, /* the next attempt after workers that could not be opened */
    look_ms = 20     /* how often a look-up under way is asked whether it is over */
};

/* ---- The configuration ---- */

bool kvb_dns_list_is_configured(const struct kvb_dns_config *config)
{
    return config->name[0] != '\0';
}

/* Without the key, only the PUB socket is expected. */
static uint32_t port_of(uint32_t configured, uint32_t otherwise)
{
    return configured == KVB_PORT_OF_SOURCE ? otherwise : configured;
}

void kvb_dns_list_check(
    struct kvb_conf *conf, const struct kvb_dns_config *config,
    const struct kvb_worker_defaults *defaults)
{
    const struct kvb_worker_spec *spec = defaults->spec;
    const uint32_t events_port = port_of(defaults->events_port, usual_events_port);
    const uint32_t replay_port = port_of(defaults->replay_port, 0);
    const char *const addresses[][2] = { { "defaults.tokenize", spec->facts.tokenize },
                                         { "defaults.discover", spec->discover } };

    if (!kvb_dns_list_is_configured(config)) {
        return;
    }
    if (spec->model[0] == '\0') {
        kvb_conf_error(
            conf, "defaults.model",
            "is missing: name the model that the engines behind dns.name serve");
    }
    if (spec->block_size == UINT32_MAX) {
        kvb_conf_error(
            conf, "defaults.block_size",
            "is missing: give the tokens in a block of the engines behind dns.name, such as 16");
    }
    if (events_port == 0) {
        kvb_conf_error(conf, "defaults.events_port", "is 0: the engines behind dns.name need one");
    }
    for (size_t i = 0; i < KVB_COUNT_OF(addresses); i++) {
        if (strcmp(addresses[i][1], KVB_AT_ADDRESS) == 0 &&
            port_of(defaults->metrics_port, 0) == 0) {
            kvb_conf_error(
                conf, addresses[i][0],
                "the engines behind dns.name have an address only with defaults.metrics_port, "
                "their HTTP port");
        }
    }
    if (events_port + spec->ranks - 1 > UINT16_MAX || replay_port + spec->ranks - 1 > UINT16_MAX) {
        kvb_conf_error(
            conf, "defaults.ranks",
            "the port of the last rank is beyond 65535: lower defaults.events_port, "
            "defaults.replay_port or defaults.ranks");
    }
}

kvb_status kvb_dns_list_add(
    const struct kvb_worker_defaults *defaults, const struct kvb_dns_member *member,
    struct kvb_worker_list *list)
{
    const uint32_t events_port = port_of(defaults->events_port, usual_events_port);
    const uint32_t replay_port = port_of(defaults->replay_port, 0);
    const uint32_t metrics_port = port_of(defaults->metrics_port, 0);
    struct kvb_worker_spec worker = *defaults->spec;
    char events[kvb_endpoint_bytes];
    char replay[kvb_endpoint_bytes];
    char page[kvb_max_page_url_bytes];
    char address[kvb_worker_address_bytes + 1] = "";

    KVB_TRY(kvb_endpoint_of_address("tcp", member->host, events_port, "", sizeof events, events));
    worker.events = events;
    if (replay_port > 0) {
        KVB_TRY(
            kvb_endpoint_of_address("tcp", member->host, replay_port, "", sizeof replay, replay));
        worker.replay = replay;
    }
    if (metrics_port > 0) {
        KVB_TRY(kvb_endpoint_of_address(
            "http", member->host, metrics_port, "/metrics", sizeof page, page));
        KVB_TRY(kvb_endpoint_of_address(
            "http", member->host, metrics_port, "", sizeof address, address));
        worker.load.prometheus = page;
        worker.facts.address = address;
    }
    if (strcmp(worker.facts.tokenize, KVB_AT_ADDRESS) == 0) {
        worker.facts.tokenize = address;
    }
    if (strcmp(worker.discover, KVB_AT_ADDRESS) == 0) {
        worker.discover = address;
    }
    worker.is_id_made = true;
    worker.id = kvb_worker_id_of_address(&worker);
    return kvb_worker_list_add(list, &worker);
}

/* ---- The thread ---- */

struct kvb_dns_list {
    struct kvb_dns_list_options options;
    struct kvb_dns_members members; /* only the thread uses these three */
    enum kvb_dns_result said;       /* the result that was logged last */
    struct kvb_log_backoff backoff;
    int stop_fd; /* eventfd */
    struct kvb_thread thread;
    _Atomic uint64_t results[KVB_DNS_RESULT_COUNT];
    _Atomic uint64_t member_count;
};

/* Logs a new result.  A name that does not exist counts as an answer without members. */
static void say_result(struct kvb_dns_list *list, enum kvb_dns_result result)
{
    const struct kvb_dns_config *config = list->options.config;
    const bool is_answer = result == KVB_DNS_OK || result == KVB_DNS_NO_NAME;

    if (result == list->said &&
        (is_answer || !kvb_log_backoff_due(&list->backoff, kvb_clock_monotonic_ns()))) {
        return;
    }
    list->said = result;
    kvb_log_write(
        list->options.log, result == KVB_DNS_OK ? KVB_LOG_INFO : KVB_LOG_WARNING, "dns",
        is_answer ? "the DNS name of the workers was looked up"
                  : "the DNS name of the workers cannot be looked up: all workers stay",
        "name", config->name, "result",
        result == KVB_DNS_OK ? "it has members" : kvb_dns_result_text(result), NULL);
}

static kvb_status list_members(const struct kvb_dns_list *list, struct kvb_worker_list *out_workers)
{
    for (size_t i = 0; i < list->members.count; i++) {
        const kvb_status status =
            kvb_dns_list_add(list->options.defaults, &list->members.items[i], out_workers);
        if (status != KVB_OK && status != KVB_TOO_LARGE) { /* such a host is left out */
            return status;
        }
    }
    return KVB_OK;
}

/* Gives the bridge the whole list.  False: it must be given again. */
static bool give_members(struct kvb_dns_list *list)
{
    const struct kvb_dns_list_options *options = &list->options;
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list workers = { 0 };
    struct kvb_membership_result answer = { 0 };
    kvb_status status = list_members(list, &workers);
    enum kvb_verdict *verdicts = calloc(workers.count + 1, sizeof *verdicts);

    if (status == KVB_OK) {
        status =
            verdicts ? options->take(options->context, &workers, verdicts, &answer) : KVB_NO_MEMORY;
    }
    free(verdicts);
    if (status != KVB_OK) {
        kvb_log_write(
            options->log, KVB_LOG_ERROR, "dns",
            "some workers could not be opened: they are tried again", "name", options->config->name,
            "why", answer.why.text[0] ? answer.why.text : kvb_status_name(status), NULL);
    }
    return status == KVB_OK && answer.left_out == 0;
}

static bool is_stopping_within(const struct kvb_dns_list *list, int wait_ms)
{
    struct pollfd stop = { .fd = list->stop_fd, .events = POLLIN };

    return poll(&stop, 1, wait_ms) > 0;
}

/* A stop does not wait for the name servers. */
static enum kvb_dns_result
look_up_name(const struct kvb_dns_list *list, struct kvb_dns_members *out_found)
{
    struct kvb_lookup *lookup = NULL;
    enum kvb_dns_result result = KVB_DNS_FAILURE;

    if (kvb_lookup_start(list->options.config->name, KVB_LOOKUP_MEMBERS, &lookup) != KVB_OK) {
        return KVB_DNS_FAILURE;
    }
    while (kvb_lookup_take(lookup, &result, out_found) == KVB_AGAIN) {
        if (is_stopping_within(list, look_ms)) {
            kvb_lookup_drop(lookup);
            return KVB_DNS_FAILURE;
        }
    }
    return result;
}

/* Does one look-up.  *is_settled: false while the bridge must be given the same list again. */
static void look_up_members(struct kvb_dns_list *list, bool *is_settled)
{
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members found = { 0 };
    bool has_changed = false;
    const enum kvb_dns_result result = look_up_name(list, &found);

    atomic_fetch_add(&list->results[result], 1);
    say_result(list, result);
    if (result != KVB_DNS_OK && result != KVB_DNS_NO_NAME) {
        return;
    }
    if (kvb_dns_members_answered(&list->members, &found, &has_changed) != KVB_OK) {
        return; /* out of memory: the next answer is merged instead */
    }
    atomic_store(&list->member_count, list->members.count);
    if (has_changed || !*is_settled) {
        *is_settled = give_members(list);
    }
}

static void *run_dns_list(void *context)
{
    struct kvb_dns_list *list = context;
    bool is_settled = true;

    (void)pthread_setname_np(pthread_self(), "kvb-dns-list"); /* for top -H; may fail */
    do {
        look_up_members(list, &is_settled);
    } while (!is_stopping_within(
        list, is_settled ? (int)list->options.config->period_s * 1000 : retry_ms));
    return NULL;
}

/* ---- Any thread ---- */

kvb_status
kvb_dns_list_start(const struct kvb_dns_list_options *options, struct kvb_dns_list **out_list)
{
    struct kvb_dns_list *list = calloc(1, sizeof *list);

    if (!list) {
        return KVB_NO_MEMORY;
    }
    list->options = *options;
    list->said = KVB_DNS_RESULT_COUNT; /* nothing yet */
    list->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (list->stop_fd < 0 || kvb_thread_start(&list->thread, run_dns_list, list) != KVB_OK) {
        kvb_dns_list_free(list);
        return KVB_IO;
    }
    *out_list = list;
    return KVB_OK;
}

void kvb_dns_list_stop(struct kvb_dns_list *list)
{
    const uint64_t once = 1;

    if (list && list->thread.is_running) {
        (void)!write(
            list->stop_fd, &once, sizeof once); /* cannot fail: the counter is far from full */
        kvb_thread_join(&list->thread);
    }
}

void kvb_dns_list_free(struct kvb_dns_list *list)
{
    if (!list) {
        return;
    }
    kvb_dns_list_stop(list);
    if (list->stop_fd >= 0) {
        (void)close(list->stop_fd);
    }
    kvb_dns_members_done(&list->members);
    free(list);
}

struct kvb_dns_list_counters kvb_dns_list_count(const struct kvb_dns_list *list)
{
    struct kvb_dns_list_counters counters = { .members = 0 };

    if (list) {
        counters.members = atomic_load(&list->member_count);
        for (size_t i = 0; i < KVB_DNS_RESULT_COUNT; i++) {
            counters.results[i] = atomic_load(&list->results[i]);
        }
    }
    return counters;
}
