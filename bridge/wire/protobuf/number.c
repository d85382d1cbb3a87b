#include "wire/protobuf/number.h"

const uint32_t kvb_proto_tiers[KVB_LIST_COUNT] = {
    [KVB_TIER_DEVICE] = 0,   [KVB_TIER_HOST] = 1,   [KVB_TIER_DISK] = 2,
    [KVB_TIER_EXTERNAL] = 3, [KVB_LIST_WINDOW] = 4,
};

kvb_status
kvb_proto_number_find(const uint32_t *numbers, size_t count, uint32_t value, unsigned *out_place)
{
    for (unsigned i = 0; i < count; i++) {
        if (numbers[i] == value) {
            *out_place = i;
            return KVB_OK;
        }
    }
    return KVB_BAD_INPUT;
}
