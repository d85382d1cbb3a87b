#include "core/conf.h"

#include <inttypes.h>
#include <string.h>

enum { value_bytes = 128, range_bytes = 256, path_bytes = 128 };

static void write_value(const struct kvb_conf_key *key, char out_text[value_bytes])
{
    const bool is_text = key->type == KVB_CONF_STRING || key->type == KVB_CONF_ENUM;
    const char *quote = is_text ? "\"" : "";

    if (key->type == KVB_CONF_LIST) {
        (void)snprintf(out_text, value_bytes, " = ( { ... }, ... )");
    } else if (key->type == KVB_CONF_U64S) {
        (void)snprintf(out_text, value_bytes, " = ( ... )");
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

static void write_names(const struct kvb_conf_key *key, char out_text[range_bytes])
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
        write_names(key, out_text);
        break;
    default:
        break;
    }
}

static void describe_table(
    const struct kvb_conf_table *table, const char *prefix, kvb_conf_tell *tell, void *context)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct kvb_conf_key *key = &table->keys[i];
        char path[path_bytes];
        char value[value_bytes];
        char range[range_bytes];
        (void)snprintf(path, sizeof path, "%s%s", prefix, key->path);
        write_value(key, value);
        write_range(key, range);
        tell(context, &(struct kvb_conf_words){ path, value, key->help, range });
        if (key->type == KVB_CONF_LIST) {
            (void)snprintf(path, sizeof path, "%s[].", key->path);
            describe_table(key->items, path, tell, context);
        }
    }
}

void kvb_conf_describe(const struct kvb_conf_table *table, kvb_conf_tell *tell, void *context)
{
    describe_table(table, "", tell, context);
}

/* Each line of the help text below its key. */
static void print_lines(const char *text, FILE *out)
{
    while (*text != '\0') {
        const size_t len = strcspn(text, "\n");
        (void)fprintf(out, "      %.*s\n", (int)len, text);
        text += len + (text[len] == '\n');
    }
}

static void print_words(void *context, const struct kvb_conf_words *words)
{
    FILE *out = context;

    (void)fprintf(out, "  %s%s\n", words->path, words->value);
    print_lines(words->help, out);
    print_lines(words->range, out);
}

void kvb_conf_help(const struct kvb_conf_table *table, FILE *out)
{
    kvb_conf_describe(table, print_words, out);
}
