#include "model/bridge_report.h"

const char *kvb_load_source_kind_name(enum kvb_load_source_kind kind)
{
    static const char *const names[KVB_LOAD_SOURCE_KIND_COUNT] = {
        [KVB_LOAD_OF_ZMQ] = "zmq",
        [KVB_LOAD_OF_PROMETHEUS] = "prometheus",
        [KVB_LOAD_OF_COORDINATOR] = "coordinator",
    };

    return kind < KVB_LOAD_SOURCE_KIND_COUNT ? names[kind] : "unknown";
}

const char *kvb_load_source_state_name(enum kvb_load_source_state state)
{
    static const char *const names[KVB_LOAD_SOURCE_STATE_COUNT] = {
        [KVB_LOAD_SOURCE_WAITING] = "waiting",
        [KVB_LOAD_SOURCE_FRESH] = "fresh",
        [KVB_LOAD_SOURCE_STALE] = "stale",
    };

    return state < KVB_LOAD_SOURCE_STATE_COUNT ? names[state] : "unknown";
}
