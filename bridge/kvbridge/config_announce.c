#include "ingest/http/fetch.h"
#include "kvbridge/config.h"

#include <stdio.h>
#include <string.h>

/* The list `announce_to`. */

enum { key_bytes = 64 };

static size_t count_services(const struct kvb_bridge_config *config)
{
    size_t count = 0;

    for (size_t i = 0; i < config->announce_count; i++) {
        count += config->announce_to[i].dynamo[0] != '\0';
    }
    return count;
}

static bool is_given_before(const struct kvb_announce_config *services, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (strcmp(services[i].dynamo, services[at].dynamo) == 0) {
            return true;
        }
    }
    return false;
}

static void
check_service(struct kvb_conf *conf, const struct kvb_announce_config *services, size_t at)
{
    char key[key_bytes];
    struct kvb_detail detail = { .text = "" };

    (void)snprintf(key, sizeof key, "announce_to[%zu].dynamo", at);
    if (services[at].dynamo[0] == '\0') {
        return; /* it is ignored */
    }
    if (kvb_fetch_check_url(services[at].dynamo, &detail) != KVB_OK) {
        kvb_conf_error(conf, key, "expected http://host:port or https://host:port");
    } else if (is_given_before(services, at)) {
        kvb_conf_error(conf, key, "is there twice: leave one out");
    }
}

/* A select_service gives requests only to workers of which it knows where they are. */
static void check_addresses(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    for (size_t i = 0; i < config->worker_count; i++) {
        const struct kvb_worker_config *worker = &config->workers[i];
        char key[key_bytes];
        if (kvb_worker_is_republished(worker) && worker->facts.address[0] == '\0') {
            (void)snprintf(key, sizeof key, "workers[%zu].address", i);
            kvb_conf_warning(
                conf, key,
                "is missing: a select_service of announce_to does not choose this worker; give the "
                "URL of the engine, such as http://10.0.0.5:8000");
            return;
        }
    }
}

void kvb_bridge_config_check_announce(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    for (size_t i = 0; i < config->announce_count; i++) {
        check_service(conf, config->announce_to, i);
    }
    if (count_services(config) == 0) {
        return;
    }
    if (kvb_republished_ranks(config) == 0) {
        kvb_conf_warning(
            conf, "announce_to",
            "announces nothing: no worker has a group republish, whose sockets would be "
            "registered");
    }
    check_addresses(conf, config);
}
