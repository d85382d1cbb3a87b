#include "kvaggregator/permissions.h"

void kvb_aggregator_subject_names(
    const struct kvb_aggregator_config *config, struct kvb_subject_names *out)
{
    *out = (struct kvb_subject_names){
        .workers_namespace = config->subscribe.name_space,
        .workers_component = config->subscribe.component,
        .router_namespace = config->router.name_space,
        .router_component = config->router.component,
        .inbox_prefix = kvb_bus_login_inbox(&config->nats.login),
        .inbox = "*",
        .id = "*",
        .service = "kvaggregator",
    };
}

unsigned kvb_aggregator_permission_settings(const struct kvb_aggregator_config *config)
{
    return config->router.hit_rate_alias ? KVB_SETTING_HIT_RATE_ALIAS : 0U;
}
