#include "wire/engine/server_info.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"

#include <string.h>

/* A method's longest name. */
enum { method_bytes = 64 };

struct server_info {
    bool is_vllm;
    bool has_config; /* a speculative_config stands there, null too */
    bool is_speculating;
    char method[method_bytes]; /* "": not given, or none that can be one */
    bool disables_drop;
    bool has_lookahead_option;
};

static void put_method(struct server_info *info, kvb_span method)
{
    if (method.len < sizeof info->method && !memchr(method.data, '\0', method.len)) {
        memcpy(info->method, method.data, method.len);
        info->method[method.len] = '\0';
    }
}

/* ---- As JSON ---- */

/* The answer has some thousand other values. */
static kvb_status skip(struct kvb_json_scan *scan)
{
    struct kvb_json_budget budget = { .depth = 16, .containers = SIZE_MAX, .values = SIZE_MAX };

    return kvb_json_skip(scan, &budget);
}

/* Whether a string comes next.  White space before it is skipped. */
static bool is_text_next(struct kvb_json_scan *scan)
{
    const bool is_text = kvb_json_take(scan, '"');

    scan->at -= is_text;
    return is_text;
}

static kvb_status read_method(struct kvb_json_scan *scan, void *context)
{
    kvb_span method;

    if (!is_text_next(scan)) {
        return skip(scan);
    }
    KVB_TRY(kvb_json_string(scan, &method));
    put_method(context, method);
    return KVB_OK;
}

static kvb_status read_disables_drop(struct kvb_json_scan *scan, void *context)
{
    struct server_info *info = context;

    info->disables_drop = kvb_json_take_word(scan, "true");
    return info->disables_drop ? KVB_OK : skip(scan);
}

static kvb_status read_lookahead_option(struct kvb_json_scan *scan, void *context)
{
    struct server_info *info = context;

    info->has_lookahead_option = true;
    return skip(scan);
}

static kvb_status read_speculative_config(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { "method", false, read_method },
        { "disable_eagle_block_drop", false, read_disables_drop },
        { "disable_lookahead_block_hashes", false, read_lookahead_option },
    };
    struct server_info *info = context;

    info->has_config = true;
    if (kvb_json_take_word(scan, "null")) {
        return KVB_OK;
    }
    info->is_speculating = true;
    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), info);
}

/* ---- As text ---- */

/* What stands behind the words; empty: they do not stand there. */
static kvb_span after(kvb_span text, const char *words)
{
    const size_t len = strlen(words);
    const uint8_t *at = memmem(text.data, text.len, words, len);

    return at ? (kvb_span){ at + len, text.len - (size_t)(at + len - text.data) }
              : (kvb_span){ .data = text.data, .len = 0 };
}

static bool begins_with(kvb_span text, const char *words)
{
    return text.len >= strlen(words) && memcmp(text.data, words, strlen(words)) == 0;
}

static void read_config_text(struct server_info *info, kvb_span text)
{
    static const char method[] = "SpeculativeConfig(method='";
    const kvb_span config = after(text, "speculative_config=");

    info->has_config = config.len > 0;
    info->is_speculating = info->has_config && !begins_with(config, "None");
    if (!begins_with(config, method)) {
        return;
    }
    const kvb_span name = { config.data + sizeof method - 1, config.len - (sizeof method - 1) };
    const uint8_t *end = memchr(name.data, '\'', name.len);
    if (end) {
        put_method(info, (kvb_span){ name.data, (size_t)(end - name.data) });
    }
}

/* ---- Both ---- */

static kvb_status read_vllm_config(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { "speculative_config", false, read_speculative_config },
    };
    struct server_info *info = context;
    kvb_span text;

    info->is_vllm = true;
    if (!is_text_next(scan)) {
        return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), info);
    }
    KVB_TRY(kvb_json_string(scan, &text));
    read_config_text(info, text);
    return KVB_OK;
}

kvb_status kvb_server_info_decode(kvb_span json, enum kvb_speculation *out_speculation)
{
    static const struct kvb_json_field fields[] = { { "vllm_config", false, read_vllm_config } };
    struct kvb_json_scan scan = kvb_json_scan_of(json);
    struct server_info info = { 0 };

    if (json.len > kvb_max_event_sources_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), &info));
    KVB_TRY(kvb_json_finish(&scan));
    if (!info.is_vllm) {
        return KVB_NOT_FOUND;
    }
    const struct kvb_speculative_config config = { .method = info.method,
                                                   .model = "",
                                                   .disables_drop = info.disables_drop,
                                                   .is_resolved = true,
                                                   .has_lookahead_option =
                                                       info.has_lookahead_option };
    *out_speculation = info.is_speculating ? kvb_speculation_of(&config)
                       : info.has_config   ? KVB_SPECULATION_KEEPS
                                           : KVB_SPECULATION_UNKNOWN;
    return KVB_OK;
}
