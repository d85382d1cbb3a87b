#include "kvbridge/config_file.h"

/* Checks settings that the readers of P.kv_events must support. */

enum { key_bytes = 64, refresh_fallback_s = 60 };

static bool publishes_json(const struct kvb_bridge_config *config)
{
    return kvb_formats_have(config->publish.formats, KVB_FORMAT_JSON);
}

bool kvb_bridge_config_refreshes(const struct kvb_bridge_config *config)
{
    return publishes_json(config) && config->publish.reannounce != KVB_REANNOUNCE_NEVER;
}

static void settle_refresh(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    const bool is_given = config->publish.refresh_s != UINT32_MAX;

    if (kvb_bridge_config_refreshes(config)) {
        config->publish.refresh_s = is_given ? config->publish.refresh_s : refresh_fallback_s;
        return;
    }
    if (is_given && config->publish.refresh_s > 0) {
        kvb_conf_warning(
            conf, "publish.refresh_s", "has no effect %s: readers request what they lack",
            publishes_json(config) ? "with publish.reannounce = \"never\""
                                   : "without \"json\" in publish.formats");
    }
    config->publish.refresh_s = 0;
}

static const char *reader_key_path(char text[key_bytes], size_t worker, const char *key)
{
    (void)snprintf(text, key_bytes, "workers[%zu].%s", worker, key);
    return text;
}

static void
check_shared_id(struct kvb_conf *conf, const struct kvb_worker_spec *worker, size_t number)
{
    char key[key_bytes];

    if (worker->ranks > 1 && worker->ranks <= kvb_max_ranks && worker->id_count == 0) {
        kvb_conf_warning(
            conf, reader_key_path(key, number, "id"),
            "%u ranks share it: routers that do not know ranks apply a removal from one rank to "
            "all; `ids` gives each rank an id of its own",
            worker->ranks);
    }
}

/* A store has no device tier, so readers of that tier alone receive none of its blocks. */
static void check_store(struct kvb_conf *conf, const struct kvb_worker_spec *worker, size_t number)
{
    char key[key_bytes];

    if (kvb_worker_is_store(worker)) {
        kvb_conf_warning(
            conf, reader_key_path(key, number, worker->store ? "store" : "replay_request"),
            "nothing of this store is published: json publishes only the device tier; set "
            "publish.tiers = \"all\" if all readers know tiers, or publish.formats = "
            "[\"protobuf\"]");
    }
}

void kvb_bridge_config_settle_readers(struct kvb_conf *conf, struct kvb_bridge_file *file)
{
    struct kvb_bridge_config *config = &file->config;
    const bool is_device_only = (kvb_published_lists(config) & 1U << KVB_TIER_HOST) == 0;

    settle_refresh(conf, config);
    for (size_t i = 0; i < file->worker_count && publishes_json(config); i++) {
        check_shared_id(conf, &file->workers[i].spec, i);
        if (is_device_only) {
            check_store(conf, &file->workers[i].spec, i);
        }
    }
}

/* ---- What is published ---- */

enum kvb_hashes
kvb_worker_hashes(const struct kvb_bridge_config *config, const struct kvb_worker_spec *worker)
{
    return worker->hashes == KVB_WORKER_HASHES_AS_PUBLISHED ? config->publish.hashes
                                                            : (enum kvb_hashes)(worker->hashes - 1);
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
