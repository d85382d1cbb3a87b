#include "core/limits.h"
#include "kvbridge/config_file.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <string.h>
#include <unistd.h>

/* The groups `republish` of workers. */

enum { key_bytes = 64 };

size_t kvb_republished_ranks(const struct kvb_bridge_config *config)
{
    size_t ranks = 0;

    for (size_t i = 0; i < config->workers.count; i++) {
        const struct kvb_worker_spec *worker = config->workers.items[i].spec;
        ranks += kvb_worker_is_republished(worker) ? worker->ranks : 0;
    }
    return ranks;
}

static bool is_listen_host(kvb_span host, const char *text)
{
    return host.len == strlen(text) && memcmp(host.data, text, host.len) == 0;
}

static bool is_everywhere(kvb_span host)
{
    return is_listen_host(host, "*") || is_listen_host(host, "0.0.0.0") ||
           is_listen_host(host, "[::]");
}

/* Nobody outside this host can connect. */
static bool is_private(const struct kvb_endpoint *endpoint)
{
    static const char loopback[] = "127.";
    const kvb_span host = endpoint->place;

    return endpoint->scheme != KVB_ENDPOINT_TCP || is_listen_host(host, "[::1]") ||
           (host.len > strlen(loopback) && memcmp(host.data, loopback, strlen(loopback)) == 0);
}

void kvb_part_republish_topic(const struct kvb_part *part, char out_topic[kvb_event_topic_bytes])
{
    const char *topic = part->worker->republish.topic;
    struct kvb_endpoint endpoint;
    char host[kvb_endpoint_host_bytes] = "";

    if (topic[0] != '\0' || kvb_endpoint_parse(part->republish_events, &endpoint, NULL) != KVB_OK) {
        (void)snprintf(out_topic, kvb_event_topic_bytes, "%s", topic);
        return;
    }
    if (endpoint.scheme != KVB_ENDPOINT_TCP || is_everywhere(endpoint.place)) {
        (void)gethostname(host, sizeof host - 1); /* else: no host in it */
    } else {
        (void)snprintf(
            host, sizeof host, "%.*s", (int)endpoint.place.len, (const char *)endpoint.place.data);
    }
    (void)snprintf(
        out_topic, kvb_event_topic_bytes, "kv@%s:%u@%s", host, endpoint.port, part->worker->model);
}

/* An interface that this host lacks may come later, or be one of the host where the bridge runs. */
static void report_host_name(struct kvb_conf *conf, const char *key, const struct kvb_endpoint *at)
{
    const int len =
        (int)(at->place.len < kvb_endpoint_host_bytes ? at->place.len : kvb_endpoint_host_bytes);
    const char *host = (const char *)at->place.data;

    if (at->place.len >= IF_NAMESIZE || is_listen_host(at->place, "localhost")) {
        kvb_conf_error(
            conf, key, "%.*s is a name: a socket listens at an address, such as 127.0.0.1, or *",
            len, host);
    } else {
        kvb_conf_warning(
            conf, key,
            "%.*s is neither an address nor a network interface of this host: nobody can connect "
            "before it is one",
            len, host);
    }
}

/* An address that is none is reported with the other endpoints. */
static void check_listener(struct kvb_conf *conf, const char *key, const char *text)
{
    struct kvb_endpoint endpoint;

    if (text[0] == '\0' || kvb_endpoint_parse(text, &endpoint, NULL) != KVB_OK) {
        return;
    }
    if (endpoint.scheme == KVB_ENDPOINT_INPROC) {
        kvb_conf_error(conf, key, "inproc:// reaches no other process: use tcp:// or ipc://");
    } else if (kvb_endpoint_is_host_name(&endpoint)) {
        report_host_name(conf, key, &endpoint);
    } else if (!is_private(&endpoint)) {
        kvb_conf_warning(
            conf, key,
            "%.64s is not loopback: token ids of prompts leave this host, unencrypted; "
            "listen at 127.0.0.1, or let only routers reach the port",
            text);
    }
}

static void check_worker(struct kvb_conf *conf, const struct kvb_worker_spec *worker, size_t number)
{
    char events[key_bytes];
    char replay[key_bytes];
    char topic[key_bytes];

    (void)snprintf(events, sizeof events, "workers[%zu].republish.events", number);
    (void)snprintf(replay, sizeof replay, "workers[%zu].republish.replay", number);
    (void)snprintf(topic, sizeof topic, "workers[%zu].republish.topic", number);
    if (!kvb_worker_is_republished(worker)) {
        if (worker->republish.replay[0] != '\0') {
            kvb_conf_error(conf, events, "is missing: replay alone republishes nothing");
        }
        return;
    }
    if (kvb_worker_is_store(worker)) {
        kvb_conf_error(
            conf, events, "leave it out: a store's events have no tokens, which readers need");
    }
    check_listener(conf, events, worker->republish.events);
    check_listener(conf, replay, worker->republish.replay);
    if (worker->republish.topic[0] == '\0' && strchr(worker->model, '@')) {
        kvb_conf_warning(
            conf, topic,
            "is kv@HOST:PORT@MODEL, and the model's name has an @: llm-d does not find the model");
    }
}

void kvb_bridge_config_check_republish(struct kvb_conf *conf, const struct kvb_bridge_file *file)
{
    size_t ranks = 0;

    for (size_t i = 0; i < file->worker_count; i++) {
        const struct kvb_worker_spec *worker = &file->workers[i].spec;
        check_worker(conf, worker, i);
        ranks += kvb_worker_is_republished(worker) ? worker->ranks : 0;
    }
    if (ranks > kvb_max_republished_ranks) {
        kvb_conf_error(
            conf, "workers", "republishes %zu ranks: at most %d in one bridge", ranks,
            kvb_max_republished_ranks);
    }
}
