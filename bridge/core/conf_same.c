#include "core/conf.h"

#include <string.h>

static const uint8_t *conf_field(const void *of, size_t offset)
{
    return (const uint8_t *)of + offset;
}

/* Compares up to the NUL: behind it a field may still contain bytes of a longer default. */
static bool is_same_text(const uint8_t *one, const uint8_t *other)
{
    return strcmp((const char *)one, (const char *)other) == 0;
}

static bool is_same_array(const struct kvb_conf_key *key, const void *one, const void *other)
{
    size_t count = 0;
    size_t other_count = 0;

    memcpy(&count, conf_field(one, key->count_offset), sizeof count);
    memcpy(&other_count, conf_field(other, key->count_offset), sizeof other_count);
    return count == other_count && memcmp(
                                       conf_field(one, key->offset), conf_field(other, key->offset),
                                       count * sizeof(uint64_t)) == 0;
}

static bool is_same_value(const struct kvb_conf_key *key, const void *one, const void *other)
{
    switch (key->type) {
    case KVB_CONF_LIST:
        return true; /* the caller compares its groups */
    case KVB_CONF_U64S:
        return is_same_array(key, one, other);
    case KVB_CONF_STRING:
        return is_same_text(conf_field(one, key->offset), conf_field(other, key->offset));
    default:
        return memcmp(conf_field(one, key->offset), conf_field(other, key->offset), key->bytes) ==
               0;
    }
}

void kvb_conf_differences(
    const struct kvb_conf_table *table, const void *one, const void *other,
    kvb_conf_report_path *tell, void *context)
{
    for (size_t i = 0; i < table->count; i++) {
        if (!is_same_value(&table->keys[i], one, other)) {
            tell(context, table->keys[i].path);
        }
    }
}
