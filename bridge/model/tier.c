#include "model/tier.h"

const char *kvb_tier_name(enum kvb_tier tier)
{
    static const char *const names[KVB_LIST_COUNT] = {
        [KVB_TIER_DEVICE] = "device",     [KVB_TIER_HOST] = "host",     [KVB_TIER_DISK] = "disk",
        [KVB_TIER_EXTERNAL] = "external", [KVB_LIST_WINDOW] = "window",
    };
    return (unsigned)tier < KVB_LIST_COUNT ? names[tier] : "unknown";
}
