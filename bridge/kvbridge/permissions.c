#include "kvbridge/permissions.h"

#include "daemon/service.h"

void kvb_bridge_subject_names(const struct kvb_bridge_config *config, struct kvb_subject_names *out)
{
    *out = (struct kvb_subject_names){
        .workers_namespace = config->publish.name_space,
        .workers_component = config->publish.component,
        .inbox_prefix = kvb_bus_login_inbox(&config->nats.login),
        .inbox = "*",
        .id = "*",
    };
    kvb_service_name_of(config->publish.name_space, config->publish.component, out->service);
}

unsigned kvb_bridge_permission_settings(const struct kvb_bridge_config *config)
{
    const unsigned formats = config->publish.formats;

    return (kvb_formats_have(formats, KVB_FORMAT_JSON) ? KVB_SETTING_JSON : 0U) |
           (kvb_formats_have(formats, KVB_FORMAT_PROTOBUF) ? KVB_SETTING_PROTOBUF : 0U);
}
