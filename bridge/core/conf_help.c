#include "core/conf.h"

#include <inttypes.h>
#include <string.h>

static void print_default(const struct kvb_conf_key *key, FILE *out)
{
    const bool is_text = key->type == KVB_CONF_STRING || key->type == KVB_CONF_ENUM;
    const char *quote = is_text ? "\"" : "";

    if (key->type == KVB_CONF_LIST) {
        (void)fprintf(out, " = ( { ... }, ... )\n");
    } else if (!key->fallback) {
        (void)fprintf(out, " = ...   (required)\n");
    } else {
        (void)fprintf(out, " = %s%s%s\n", quote, key->fallback, quote);
    }
}

static void print_names(const struct kvb_conf_key *key, FILE *out)
{
    for (unsigned i = 0; i <= key->max; i++) {
        (void)fprintf(out, "%s\"%s\"", i ? " | " : "      ", key->name_of(i));
    }
    (void)fprintf(out, "\n");
}

static void print_range(const struct kvb_conf_key *key, FILE *out)
{
    switch (key->type) {
    case KVB_CONF_U64:
    case KVB_CONF_U32:
    case KVB_CONF_DOUBLE:
        (void)fprintf(out, "      %" PRIu64 " .. %" PRIu64 "\n", key->min, key->max);
        break;
    case KVB_CONF_ENUM:
        print_names(key, out);
        break;
    default:
        break;
    }
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

static void print_table(const struct kvb_conf_table *table, const char *prefix, FILE *out)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct kvb_conf_key *key = &table->keys[i];
        char list[96];
        (void)fprintf(out, "  %s%s", prefix, key->path);
        print_default(key, out);
        print_lines(key->help, out);
        print_range(key, out);
        if (key->type == KVB_CONF_LIST) {
            (void)snprintf(list, sizeof list, "%s[].", key->path);
            print_table(key->items, list, out);
        }
    }
}

void kvb_conf_help(const struct kvb_conf_table *table, FILE *out)
{
    print_table(table, "", out);
}
