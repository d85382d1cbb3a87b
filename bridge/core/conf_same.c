#include "core/conf.h"

#include <string.h>

static const uint8_t *field_of(const void *of, size_t offset)
{
    return (const uint8_t *)of + offset;
}

/* Beyond its end a text may hold what a default left there. */
static bool is_same_text(const uint8_t *one, const uint8_t *other)
{
    return strcmp((const char *)one, (const char *)other) == 0;
}

static bool is_same_array(const struct kvb_conf_key *key, const void *one, const void *other)
{
    size_t count = 0;
    size_t other_count = 0;

    memcpy(&count, field_of(one, key->count_offset), sizeof count);
    memcpy(&other_count, field_of(other, key->count_offset), sizeof other_count);
    return count == other_count && memcmp(
                                       field_of(one, key->offset), field_of(other, key->offset),
                                       count * sizeof(uint64_t)) == 0;
}

static bool is_same(const struct kvb_conf_key *key, const void *one, const void *other)
{
    switch (key->type) {
    case KVB_CONF_LIST:
        return true; /* its groups are the caller's to compare */
    case KVB_CONF_U64S:
        return is_same_array(key, one, other);
    case KVB_CONF_STRING:
        return is_same_text(field_of(one, key->offset), field_of(other, key->offset));
    default:
        return memcmp(field_of(one, key->offset), field_of(other, key->offset), key->bytes) == 0;
    }
}

void kvb_conf_differences(
    const struct kvb_conf_table *table, const void *one, const void *other,
    kvb_conf_tell_path *tell, void *context)
{
    for (size_t i = 0; i < table->count; i++) {
        if (!is_same(&table->keys[i], one, other)) {
            tell(context, table->keys[i].path);
        }
    }
}
