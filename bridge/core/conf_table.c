#include "core/conf.h"

#include <inttypes.h>
#include <string.h>

/* Functions that need a table of keys and no file. */

/* ---- Help ---- */

enum { value_bytes = 128, range_bytes = 256, path_bytes = 128 };

static void write_value(const struct kvb_conf_key *key, char out_text[value_bytes])
{
    const bool is_text =
        key->type == KVB_CONF_STRING || key->type == KVB_CONF_TEXT || key->type == KVB_CONF_ENUM;
    const char *quote = is_text ? "\"" : "";

    if (key->type == KVB_CONF_LIST) {
        (void)snprintf(out_text, value_bytes, " = ( { ... }, ... )");
    } else if (key->type == KVB_CONF_U64S) {
        (void)snprintf(out_text, value_bytes, " = ( ... )");
    } else if (key->type == KVB_CONF_DEFAULTS) {
        (void)snprintf(out_text, value_bytes, " = { ... }");
    } else if (key->type == KVB_CONF_PAIRS) {
        (void)snprintf(out_text, value_bytes, " = { name = \"value\"; ... }");
    } else if (key->type == KVB_CONF_TEXTS) {
        (void)snprintf(out_text, value_bytes, " = ( \"...\", ... )");
    } else if (key->otherwise) {
        (void)snprintf(out_text, value_bytes, " = ...   (else: %s)", key->otherwise);
    } else if (key->instead) {
        (void)snprintf(out_text, value_bytes, " = ...   (this or %s is required)", key->instead);
    } else if (!key->fallback) {
        (void)snprintf(out_text, value_bytes, " = ...   (required)");
    } else {
        (void)snprintf(out_text, value_bytes, " = %s%s%s", quote, key->fallback, quote);
    }
}

static void write_choice_names(const struct kvb_conf_key *key, char out_text[range_bytes])
{
    size_t len = 0;

    for (unsigned i = 0; i <= key->max && len < range_bytes; i++) {
        len += (size_t)snprintf(
            out_text + len, range_bytes - len, "%s\"%s\"", i ? " | " : "", key->name_of(i));
    }
}

static void write_range(const struct kvb_conf_key *key, char out_text[range_bytes])
{
    out_text[0] = '\0';
    switch (key->type) {
    case KVB_CONF_U64:
    case KVB_CONF_U64S:
    case KVB_CONF_U32:
    case KVB_CONF_DOUBLE:
        (void)snprintf(out_text, range_bytes, "%" PRIu64 " .. %" PRIu64, key->min, key->max);
        break;
    case KVB_CONF_ENUM:
        write_choice_names(key, out_text);
        break;
    default:
        break;
    }
}

/* Prints each line of the help text below its key. */
static void print_lines(const char *text, FILE *out)
{
    while (*text != '\0') {
        const size_t len = strcspn(text, "\n");
        (void)fprintf(out, "      %.*s\n", (int)len, text);
        text += len + (text[len] == '\n');
    }
}

static void print_key(const struct kvb_conf_key *key, const char *prefix, FILE *out)
{
    char value[value_bytes];
    char range[range_bytes];

    write_value(key, value);
    write_range(key, range);
    (void)fprintf(out, "  %s%s%s\n", prefix, key->path, value);
    print_lines(key->help, out);
    print_lines(range, out);
}

/* Names the keys of a list's groups that may stand in the defaults too, then explains those that
 * stand there alone. */
static void print_defaults(const struct kvb_conf_key *defaults, FILE *out)
{
    enum { line_bytes = 72 };
    char prefix[path_bytes];
    size_t len = 0; /* of the line so far */

    for (size_t i = 0; i < defaults->items->count; i++) {
        const struct kvb_conf_key *key = &defaults->items->keys[i];
        if (key->scope != KVB_CONF_ANYWHERE) {
            continue;
        }
        /* The names wrap as words do. */
        const bool is_full = len + 1 + strlen(key->path) > line_bytes;
        (void)fprintf(
            out, "%s%s%s", is_full ? "\n" : "", is_full || len == 0 ? "      " : " ", key->path);
        len = (is_full ? 0 : len + 1) + strlen(key->path);
    }
    (void)fprintf(out, "\n");
    (void)snprintf(prefix, sizeof prefix, "%s.", defaults->path);
    for (size_t i = 0; i < defaults->items->count; i++) {
        if (defaults->items->keys[i].scope == KVB_CONF_OF_DEFAULTS) {
            print_key(&defaults->items->keys[i], prefix, out);
        }
    }
}

static void print_table(const struct kvb_conf_table *table, const char *prefix, FILE *out)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct kvb_conf_key *key = &table->keys[i];
        char path[path_bytes];
        if (prefix[0] != '\0' && key->scope == KVB_CONF_OF_DEFAULTS) {
            continue;
        }
        print_key(key, prefix, out);
        if (key->type == KVB_CONF_LIST) {
            (void)snprintf(path, sizeof path, "%s[].", key->path);
            print_table(key->items, path, out);
        } else if (key->type == KVB_CONF_DEFAULTS) {
            print_defaults(key, out);
        }
    }
}

void kvb_conf_help(const struct kvb_conf_table *table, FILE *out)
{
    print_table(table, "", out);
}

/* ---- Differences ---- */

static const uint8_t *conf_field(const void *of, size_t offset)
{
    return (const uint8_t *)of + offset;
}

/* Compares up to the NUL, because bytes of a longer default may follow it. */
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
    case KVB_CONF_DEFAULTS:
    case KVB_CONF_TEXT: /* it may be gone with its file */
        return true;    /* the caller compares its groups */
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
