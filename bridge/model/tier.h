#pragma once

/* Where a copy of a block is stored, nearest first.
 *
 * A stream publishes one list of blocks for each tier, and a window list: the blocks that the
 * sliding-window groups of a hybrid model hold on the device.  The window list is not a tier.  It
 * only limits how much of the device's list a request can use (proto/README.md, "Hybrid
 * models"). */
enum kvb_tier {
    KVB_TIER_DEVICE,
    KVB_TIER_HOST,
    KVB_TIER_DISK,
    KVB_TIER_EXTERNAL,
    KVB_TIER_COUNT,
    KVB_LIST_WINDOW = KVB_TIER_COUNT,
    KVB_LIST_COUNT
};

/* "device", "host", "disk", "external", "window".  Never NULL. */
const char *kvb_tier_name(enum kvb_tier tier);
