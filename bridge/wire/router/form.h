#pragma once

/* The form of an event in a KvEventBatch: kind + 4 * tier + 32 * has_parent, as stated in
 * kvbridge.proto, and the kinds. */
enum {
    kvb_form_kind_mask = 3,
    kvb_form_tier_shift = 2,
    kvb_form_tier_mask = 7,
    kvb_form_parent_bit = 1 << 5,
    kvb_form_last = 2 * kvb_form_parent_bit - 1,

    kvb_form_stored = 1,
    kvb_form_removed = 2,
    kvb_form_cleared = 3
};
