#include "core/hash.h"
#include "kvbridge/config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Values that are derived from the keys of one worker. */

enum kvb_hashes
kvb_worker_hashes(const struct kvb_bridge_config *config, const struct kvb_worker_config *worker)
{
    return worker->hashes == KVB_WORKER_HASHES_AS_PUBLISHED ? config->publish.hashes
                                                            : (enum kvb_hashes)(worker->hashes - 1);
}

bool kvb_worker_is_store(const struct kvb_worker_config *worker)
{
    return worker->store || worker->replay_request == KVB_REQUEST_MOONCAKE;
}

static const unsigned all_lists = (1U << KVB_LIST_COUNT) - 1;

/* A reader of json may not know tiers, and would apply a removal from the host to the device.  The
 * window list has a subject to which such readers do not subscribe. */
unsigned kvb_json_lists(const struct kvb_bridge_config *config)
{
    return config->publish.tiers == KVB_PUBLISH_ALL ? all_lists
                                                    : 1U << KVB_LIST_WINDOW | 1U << KVB_TIER_DEVICE;
}

unsigned kvb_published_lists(const struct kvb_bridge_config *config)
{
    return kvb_formats_have(config->publish.formats, KVB_FORMAT_PROTOBUF) ? all_lists
                                                                          : kvb_json_lists(config);
}

uint64_t kvb_worker_id_of_address(const struct kvb_worker_config *worker)
{
    static const uint64_t below_2_53 = (UINT64_C(1) << 53) - 1;
    char text[kvb_config_url_bytes + kvb_endpoint_host_bytes + 1];
    char base[kvb_endpoint_bytes] = "";
    char host[kvb_endpoint_host_bytes] = "";
    const char *address = worker->discover;

    if (address[0] == '\0') {
        const bool is_base =
            !worker->has_own_addresses &&
            kvb_endpoint_for_rank(worker->events, worker->first_rank, base) == KVB_OK;
        address = is_base ? base : worker->events;
    }
    if (kvb_endpoint_is_of_this_host(address) ||
        kvb_endpoint_is_this_host(kvb_endpoint_host_of_url(worker->discover))) {
        (void)gethostname(host, sizeof host - 1); /* on failure only the address is used */
    }
    const int len = snprintf(text, sizeof text, "%s %s", host, address);
    return kvb_hash64((kvb_span){ (const uint8_t *)text, (size_t)len }, 0) & below_2_53;
}

uint64_t kvb_worker_id_of_rank(const struct kvb_worker_config *worker, uint32_t at)
{
    return worker->id_count > 0 ? worker->ids[at] : worker->id;
}

size_t kvb_worker_load_sources(const struct kvb_worker_config *worker)
{
    const bool has_page = worker->load.prometheus[0] != '\0' || worker->discover[0] != '\0';

    return (worker->load.zmq[0] != '\0') + has_page + (worker->load.coordinator[0] != '\0');
}

void kvb_worker_models_url(const struct kvb_worker_config *worker, char *out)
{
    static const char page[] = "/metrics";
    const bool is_discovered = worker->discover[0] != '\0';
    const char *url = is_discovered ? worker->discover : worker->load.prometheus;
    size_t len = strlen(url);

    if (is_discovered) {
        len -= len > 0 && url[len - 1] == '/';
    } else {
        const bool is_beside =
            len >= sizeof page - 1 && strcmp(url + len - (sizeof page - 1), page) == 0;
        len = is_beside ? len - (sizeof page - 1) : 0;
    }
    const int written = snprintf(out, kvb_max_page_url_bytes, "%.*s/v1/models", (int)len, url);
    if (len == 0 || written >= kvb_max_page_url_bytes) {
        out[0] = '\0';
    }
}
