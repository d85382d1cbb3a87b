#include "kvbridge/dns_list.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/own.h"
#include "ingest/dns/lookup.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { usual_events_port = 5557 };

/* The next attempt after workers that could not be opened. */
static const uint64_t retry_ns = KVB_NS_PER_S;

/* How often a look-up under way is asked whether it is over. */
static const uint64_t look_ns = 20 * KVB_NS_PER_MS;

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

/* ---- The job ----
 *
 *     RESTING -- due --> LOOKING -- an answer, and the list has changed --> GIVING
 *        ^                  |                                                  |
 *        +---- no change ---+            the bridge has taken it, or not ------+ */

enum dns_list_state { dns_list_resting, dns_list_looking, dns_list_giving };

struct kvb_dns_list {
    struct kvb_dns_list_options options;
    struct kvb_job *job; /* owned; only the job uses the rest, but for the counters */
    enum dns_list_state state;
    uint64_t next_ns;          /* of the next look-up */
    struct kvb_lookup *lookup; /* owned while LOOKING */
    struct kvb_dns_members members;
    struct kvb_worker_list workers; /* owned while GIVING; the work reads it */
    enum kvb_verdict *verdicts;     /* owned while GIVING; the work writes these three */
    struct kvb_membership_result result;
    kvb_status status;
    bool is_settled;          /* false: the bridge must be given the same list again */
    enum kvb_dns_result said; /* the result that was logged last */
    struct kvb_log_backoff backoff;
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

/* KVB_NO_MEMORY: the next answer tries again. */
static kvb_status list_members(struct kvb_dns_list *list)
{
    const struct kvb_worker_defaults *defaults = list->options.defaults;
    const uint32_t http_port = port_of(defaults->metrics_port, 0); /* the page is there too */
    const struct kvb_host_ports ports = {
        .events = port_of(defaults->events_port, usual_events_port),
        .replay = port_of(defaults->replay_port, 0),
        .metrics = http_port,
        .http = http_port,
    };
    struct kvb_worker_spec member = *defaults->spec;

    /* The id follows from the address, because `defaults` can name none. */
    member.is_id_made = true;
    for (size_t i = 0; i < list->members.count; i++) {
        const kvb_status added =
            kvb_worker_list_add_at(&list->workers, &member, list->members.items[i].host, &ports);
        if (added != KVB_OK &&
            added != KVB_TOO_LARGE) { /* a host that fits no address is left out */
            return added;
        }
    }
    list->verdicts = calloc(list->workers.count + 1, sizeof *list->verdicts);
    return list->verdicts ? KVB_OK : KVB_NO_MEMORY;
}

static void drop_list(struct kvb_dns_list *list)
{
    kvb_worker_list_done(&list->workers);
    free(list->verdicts);
    list->verdicts = NULL;
}

/* The work of the job: it waits for the bridge. */
static void give_list(void *context)
{
    struct kvb_dns_list *list = context;

    list->status =
        list->options.take(list->options.context, &list->workers, list->verdicts, &list->result);
}

static void rest(struct kvb_dns_list *list, uint64_t now_ns)
{
    list->state = dns_list_resting;
    list->next_ns =
        now_ns + (list->is_settled ? list->options.config->period_s * KVB_NS_PER_S : retry_ns);
}

static void begin_to_give(struct kvb_dns_list *list, uint64_t now_ns)
{
    /* Until the bridge has taken all of it, the same members are given again. */
    list->is_settled = false;
    list->state = dns_list_giving;
    list->result = (struct kvb_membership_result){ 0 };
    if (list_members(list) != KVB_OK || kvb_job_work(list->job, give_list) != KVB_OK) {
        drop_list(list);
        rest(list, now_ns);
    }
}

static void end_giving(struct kvb_dns_list *list, uint64_t now_ns)
{
    drop_list(list);
    list->is_settled = list->status == KVB_OK && list->result.left_out == 0;
    if (list->status != KVB_OK) {
        kvb_log_write(
            list->options.log, KVB_LOG_ERROR, "dns",
            "some workers could not be opened: they are tried again", "name",
            list->options.config->name, "why",
            list->result.why.text[0] ? list->result.why.text : kvb_status_name(list->status), NULL);
    }
    rest(list, now_ns);
}

/* The look-up is over. */
static void take_result(
    struct kvb_dns_list *list, enum kvb_dns_result result, struct kvb_dns_members *found,
    uint64_t now_ns)
{
    bool has_changed = false;

    atomic_fetch_add(&list->results[result], 1);
    say_result(list, result);
    /* without memory the next answer is merged instead */
    if ((result == KVB_DNS_OK || result == KVB_DNS_NO_NAME) &&
        kvb_dns_members_answered(&list->members, found, &has_changed) == KVB_OK) {
        atomic_store(&list->member_count, list->members.count);
        /* An unchanged answer does not disturb the ingest thread. */
        if (has_changed || !list->is_settled) {
            begin_to_give(list, now_ns);
            return;
        }
    }
    rest(list, now_ns);
}

static void look(struct kvb_dns_list *list, uint64_t now_ns)
{
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members found = { 0 };
    enum kvb_dns_result result = KVB_DNS_FAILURE;

    /* No memory or no thread counts as a failed look-up, which changes no member. */
    if (!list->lookup &&
        kvb_lookup_start(list->options.config->name, KVB_LOOKUP_MEMBERS, &list->lookup) != KVB_OK) {
        take_result(list, KVB_DNS_FAILURE, &found, now_ns);
        return;
    }
    list->state = dns_list_looking;
    if (kvb_lookup_take(list->lookup, &result, &found) == KVB_OK) {
        list->lookup = NULL;
        take_result(list, result, &found, now_ns);
    }
}

static uint64_t dns_list_turn(void *context, uint64_t now_ns)
{
    struct kvb_dns_list *list = context;

    if (list->state == dns_list_giving && !kvb_job_is_working(list->job)) {
        end_giving(list, now_ns);
    }
    if (list->state == dns_list_looking ||
        (list->state == dns_list_resting && now_ns >= list->next_ns)) {
        look(list, now_ns);
    }
    /* While it gives, the end of the work brings the next turn. */
    return list->state == dns_list_giving    ? UINT64_MAX
           : list->state == dns_list_looking ? now_ns + look_ns
                                             : list->next_ns;
}

/* ---- Any thread ---- */

kvb_status
kvb_dns_list_new(const struct kvb_dns_list_options *options, struct kvb_dns_list **out_list)
{
    struct kvb_dns_list *list = calloc(1, sizeof *list);
    const struct kvb_job_options job = { .turn = dns_list_turn, .context = list };

    if (!list) {
        return KVB_NO_MEMORY;
    }
    list->options = *options;
    /* No list was given yet, and none is missing while there are no members. */
    list->is_settled = true;
    list->said = KVB_DNS_RESULT_COUNT; /* nothing yet */
    const kvb_status status = kvb_job_add(options->control, &job, &list->job);
    if (status != KVB_OK) {
        kvb_dns_list_free(list);
        return status;
    }
    *out_list = list;
    return KVB_OK;
}

void kvb_dns_list_start(struct kvb_dns_list *list)
{
    if (list) {
        kvb_job_wake(list->job);
    }
}

void kvb_dns_list_stop(struct kvb_dns_list *list)
{
    if (list) {
        kvb_job_remove(list->job);
        list->job = NULL;
    }
}

void kvb_dns_list_free(struct kvb_dns_list *list)
{
    if (!list) {
        return;
    }
    kvb_dns_list_stop(list);
    kvb_lookup_drop(list->lookup); /* a stop does not wait for the name servers */
    drop_list(list);
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
