#include "daemon/bridge_config.h"

#include <stdio.h>

/* What the configuration says of routers that read json and know nothing else. */

enum { key_bytes = 64, refresh_fallback_s = 60 };

bool kvb_bridge_config_refreshes(const struct kvb_bridge_config *config)
{
    return config->publish.profile == KVB_PROFILE_JSON &&
           config->publish.reannounce != KVB_REANNOUNCE_NEVER;
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
            conf, "publish.refresh_s", "has no effect %s: those who read it ask for what they lack",
            config->publish.profile != KVB_PROFILE_JSON ? "with publish.profile = \"protobuf\""
                                                        : "with publish.reannounce = \"never\"");
    }
    config->publish.refresh_s = 0;
}

static void check_clear(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    if (config->publish.profile != KVB_PROFILE_JSON && config->publish.clear == KVB_CLEAR_REMOVED) {
        kvb_conf_error(
            conf, "publish.clear",
            "\"removed\" is for readers of json: leave it out, or set "
            "publish.profile = \"json\"");
    }
}

static void check_ranks(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    const bool is_json = config->publish.profile == KVB_PROFILE_JSON;
    char key[key_bytes];

    for (size_t i = 0; i < config->worker_count && is_json; i++) {
        const struct kvb_worker_config *worker = &config->workers[i];
        if (worker->ranks > 1 && worker->ranks <= kvb_max_ranks && worker->id_count == 0) {
            (void)snprintf(key, sizeof key, "workers[%zu].id", i);
            kvb_conf_warning(
                conf, key,
                "%u ranks share it: routers that know no ranks take a removal from one for a "
                "removal from all; `ids` gives each its own",
                worker->ranks);
        }
    }
}

void kvb_bridge_config_settle_readers(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    check_clear(conf, config);
    settle_refresh(conf, config);
    check_ranks(conf, config);
}
