#pragma once

/* Where a copy of a block lies, nearest first. */
enum kvb_tier { KVB_TIER_DEVICE, KVB_TIER_HOST, KVB_TIER_DISK, KVB_TIER_EXTERNAL, KVB_TIER_COUNT };

/* "device", "host", "disk", "external".  Never NULL. */
const char *kvb_tier_name(enum kvb_tier tier);
