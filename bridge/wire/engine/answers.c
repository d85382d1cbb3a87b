#include "wire/engine/answers.h"

#include "core/own.h"
#include "core/utf8.h"
#include "wire/json/scan.h"
#include "wire/json/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The sockets of events ---- */

enum {
    max_sources_depth = 8,
    max_source_containers = 4 * kvb_max_ranks,
    max_source_values = 32 * kvb_max_ranks,
    max_port = 65535
};

/* Labels for errors: "source 12", or "rank 12" where the ranks are keys. */
enum { label_bytes = 32, publisher_bytes = 32, host_bytes = 128 };

static kvb_status refuse_source(struct kvb_detail *detail, const char *label, const char *why)
{
    kvb_detail_set(detail, "%s: %s", label, why);
    return KVB_BAD_INPUT;
}

/* A missing field or null reads as "". */
static bool read_source_text(struct json_object *source, const char *name, char *out, size_t size)
{
    struct json_object *value = kvb_json_member(source, name);

    return !value || (kvb_json_text(value, out, size) == KVB_OK && kvb_utf8_is_plain(out));
}

/* A missing field or null leaves the number unchanged. */
static bool
read_source_number(struct json_object *source, const char *name, uint64_t max, uint64_t *out_number)
{
    struct json_object *value = kvb_json_member(source, name);

    return !value || kvb_json_number(value, max, out_number) == KVB_OK;
}

/* vLLM */

/* Each rank states whether it publishes events. */
static kvb_status read_publisher(
    struct json_object *source, const char *label, bool *out_publishes, struct kvb_detail *detail)
{
    struct json_object *is_enabled = kvb_json_member(source, "enable_kv_cache_events");
    char publisher[publisher_bytes] = "";

    if (!read_source_text(source, "publisher", publisher, sizeof publisher)) {
        return refuse_source(detail, label, "publisher is not a name");
    }
    *out_publishes =
        strcmp(publisher, "null") != 0 && (!json_object_is_type(is_enabled, json_type_boolean) ||
                                           json_object_get_boolean(is_enabled));
    if (*out_publishes && publisher[0] != '\0' && strcmp(publisher, "zmq") != 0) {
        return refuse_source(detail, label, "its publisher is not zmq");
    }
    return KVB_OK;
}

static kvb_status read_source(
    struct json_object *source, const char *label, struct kvb_event_source *out,
    struct kvb_detail *detail)
{
    if (!read_source_number(source, "buffer_steps", UINT64_MAX, &out->buffer_steps)) {
        return refuse_source(detail, label, "buffer_steps is not a number");
    }
    if (!read_source_text(source, "endpoint", out->endpoint, sizeof out->endpoint) ||
        !read_source_text(
            source, "replay_endpoint", out->replay_endpoint, sizeof out->replay_endpoint) ||
        !read_source_text(source, "topic", out->topic, sizeof out->topic) ||
        out->endpoint[0] == '\0') {
        return refuse_source(
            detail, label, "endpoint, replay_endpoint or topic is missing, too long or no text");
    }
    return KVB_OK;
}

/* key: the rank, if ranks are keys; else NULL. */
static kvb_status add_source(
    struct json_object *source, const char *label, const uint64_t *key,
    struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    uint64_t dp_rank = key ? *key : 0;
    bool publishes = false;

    /* Checked one by one, so that the error names the first that is wrong. */
    if (!json_object_is_type(source, json_type_object)) {
        return refuse_source(detail, label, "expected an object");
    }
    if (!read_source_number(source, "data_parallel_rank", kvb_max_ranks - 1, &dp_rank)) {
        return refuse_source(detail, label, "data_parallel_rank is not a rank");
    }
    if (key && dp_rank != *key) {
        return refuse_source(detail, label, "data_parallel_rank is not its key");
    }
    KVB_TRY(read_publisher(source, label, &publishes, detail));
    if (!publishes) {
        return KVB_OK;
    }
    struct kvb_event_source *out = &sources->sources[sources->count];
    out->dp_rank = (uint32_t)dp_rank;
    KVB_TRY(read_source(source, label, out, detail));
    sources->count++;
    return KVB_OK;
}

static kvb_status check_count(size_t count, struct kvb_detail *detail)
{
    if (count > kvb_max_ranks) {
        kvb_detail_set(detail, "%zu sources: at most %d", count, kvb_max_ranks);
        return KVB_TOO_LARGE;
    }
    return KVB_OK;
}

static kvb_status
read_array(struct json_object *list, struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    const size_t count = json_object_array_length(list);
    char label[label_bytes];

    KVB_TRY(check_count(count, detail));
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(label, sizeof label, "source %zu", i);
        KVB_TRY(add_source(json_object_array_get_idx(list, i), label, NULL, sources, detail));
    }
    return KVB_OK;
}

/* Canonical decimal: no sign, blanks or leading zero, so each rank has exactly one key. */
static bool read_rank_key(const char *key, uint64_t *out_rank)
{
    const size_t len = strspn(key, "0123456789");

    if (len == 0 || len > 3 || key[len] != '\0' || (key[0] == '0' && len > 1)) {
        return false;
    }
    *out_rank = strtoul(key, NULL, 10);
    return *out_rank < kvb_max_ranks;
}

static kvb_status
read_keyed(struct json_object *root, struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    char label[label_bytes];
    uint64_t rank = 0;

    KVB_TRY(check_count((size_t)json_object_object_length(root), detail));
    json_object_object_foreach(root, key, source)
    {
        if (!read_rank_key(key, &rank)) {
            kvb_detail_set(
                detail, "expected an array of sources, or an object whose keys are ranks");
            return KVB_BAD_INPUT;
        }
        (void)snprintf(label, sizeof label, "rank %s", key);
        KVB_TRY(add_source(source, label, &rank, sources, detail));
    }
    return KVB_OK;
}

static kvb_status
read_vllm(struct json_object *root, struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    struct json_object *inside = kvb_json_member(root, "sources");
    struct json_object *list = inside ? inside : root;

    if (json_object_is_type(list, json_type_array)) {
        return read_array(list, sources, detail);
    }
    if (!inside && json_object_is_type(list, json_type_object)) {
        return read_keyed(list, sources, detail);
    }
    kvb_detail_set(detail, "expected an array of sources, or an object whose keys are ranks");
    return KVB_BAD_INPUT;
}

/* SGLang */

/* The addresses of all ranks: the ports of rank r are events + r and replay + r. */
struct rank_bases {
    uint64_t ranks;
    uint64_t events;
    uint64_t replay; /* 0: none */
    char host[host_bytes];
    char topic[kvb_event_source_topic_bytes];
};

static kvb_status refuse_kv_events(struct kvb_detail *detail, const char *key)
{
    kvb_detail_set(detail, "kv_events.%s is missing or invalid", key);
    return KVB_BAD_INPUT;
}

static kvb_status
read_bases(struct json_object *source, struct rank_bases *bases, struct kvb_detail *detail)
{
    char publisher[publisher_bytes] = "";

    if (!read_source_text(source, "publisher", publisher, sizeof publisher) ||
        strcmp(publisher, "zmq") != 0) {
        return refuse_kv_events(detail, "publisher");
    }
    if (!read_source_text(source, "endpoint_host", bases->host, sizeof bases->host) ||
        bases->host[0] == '\0') {
        return refuse_kv_events(detail, "endpoint_host");
    }
    if (!read_source_text(source, "topic", bases->topic, sizeof bases->topic)) {
        return refuse_kv_events(detail, "topic");
    }
    bases->ranks = 1;
    if (!read_source_number(source, "dp_size", kvb_max_ranks, &bases->ranks) || bases->ranks == 0) {
        return refuse_kv_events(detail, "dp_size");
    }
    const uint64_t max_base = max_port + 1 - bases->ranks;
    if (!read_source_number(source, "endpoint_port_base", max_base, &bases->events) ||
        bases->events == 0) {
        return refuse_kv_events(detail, "endpoint_port_base");
    }
    return read_source_number(source, "replay_endpoint_port_base", max_base, &bases->replay)
               ? KVB_OK
               : refuse_kv_events(detail, "replay_endpoint_port_base");
}

/* An IPv6 address before a port needs brackets. */
static void put_source_address(char *out, size_t size, const char *host, uint64_t port)
{
    const bool is_bare_v6 = strchr(host, ':') && host[0] != '[';

    (void)snprintf(
        out, size, is_bare_v6 ? "tcp://[%s]:%llu" : "tcp://%s:%llu", host,
        (unsigned long long)port);
}

/* SGLang does not state the host of the replay socket: it is the host that answered the request. */
static void put_ranks(const struct rank_bases *bases, struct kvb_event_sources *sources)
{
    for (size_t rank = 0; rank < bases->ranks; rank++) {
        struct kvb_event_source *out = &sources->sources[rank];
        out->dp_rank = (uint32_t)rank;
        put_source_address(out->endpoint, sizeof out->endpoint, bases->host, bases->events + rank);
        if (bases->replay > 0) {
            put_source_address(
                out->replay_endpoint, sizeof out->replay_endpoint, "*", bases->replay + rank);
        }
        memcpy(out->topic, bases->topic, sizeof out->topic);
    }
    sources->count = bases->ranks;
}

/* One publisher: its rank's own address.  Its replay socket is on the same host. */
static kvb_status read_publisher_of_rank(
    struct json_object *publisher, const struct rank_bases *bases,
    struct kvb_event_sources *sources)
{
    static const char scheme[] = "tcp://";
    char endpoint[kvb_event_source_address_bytes] = "";
    uint64_t rank = UINT64_MAX;

    if (!json_object_is_type(publisher, json_type_object) ||
        !read_source_number(publisher, "dp_rank", bases->ranks - 1, &rank) || rank == UINT64_MAX ||
        !read_source_text(publisher, "endpoint", endpoint, sizeof endpoint)) {
        return KVB_BAD_INPUT;
    }
    const char *port = strrchr(endpoint, ':');
    if (strncmp(endpoint, scheme, sizeof scheme - 1) != 0 || port < endpoint + sizeof scheme) {
        return KVB_BAD_INPUT;
    }
    struct kvb_event_source *out = &sources->sources[rank];
    memcpy(out->endpoint, endpoint, sizeof out->endpoint);
    if (bases->replay > 0) {
        (void)snprintf(
            out->replay_endpoint, sizeof out->replay_endpoint, "%.*s:%llu", (int)(port - endpoint),
            endpoint, (unsigned long long)(bases->replay + rank));
    }
    return KVB_OK;
}

/* With several nodes each rank may be on another host than the one that answers. */
static kvb_status read_publishers(
    struct json_object *list, const struct rank_bases *bases, struct kvb_event_sources *sources,
    struct kvb_detail *detail)
{
    const size_t count = kvb_json_list_len(list);
    bool was_given[kvb_max_ranks] = { false };

    if (list && !json_object_is_type(list, json_type_array)) {
        return refuse_kv_events(detail, "publishers");
    }
    for (size_t i = 0; i < count; i++) {
        struct json_object *publisher = json_object_array_get_idx(list, i);
        if (read_publisher_of_rank(publisher, bases, sources) != KVB_OK) {
            kvb_detail_set(
                detail,
                "kv_events.publishers[%zu]: expected dp_rank below dp_size and an "
                "endpoint tcp://host:port",
                i);
            return KVB_BAD_INPUT;
        }
        const uint64_t rank = kvb_json_member_u64(publisher, "dp_rank");
        if (was_given[rank]) {
            kvb_detail_set(
                detail, "kv_events.publishers: rank %llu is listed twice",
                (unsigned long long)rank);
            return KVB_BAD_INPUT;
        }
        was_given[rank] = true;
    }
    return KVB_OK;
}

static kvb_status read_sglang(
    struct json_object *source, struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    struct rank_bases bases = { .ranks = 0 };

    if (!source) {
        return KVB_OK; /* null: the engine publishes no events */
    }
    if (!json_object_is_type(source, json_type_object)) {
        kvb_detail_set(detail, "kv_events: expected an object");
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_bases(source, &bases, detail));
    put_ranks(&bases, sources);
    return read_publishers(kvb_json_member(source, "publishers"), &bases, sources, detail);
}

static kvb_status note_value(struct kvb_json_scan *scan, void *context)
{
    struct kvb_json_budget budget = { .depth = max_sources_depth,
                                      .containers = max_source_containers,
                                      .values = max_source_values };
    kvb_span *value = context;
    const uint8_t *begin = scan->at;

    KVB_TRY(kvb_json_skip(scan, &budget));
    *value = (kvb_span){ .data = begin, .len = (size_t)(scan->at - begin) };
    return KVB_OK;
}

/* Finds the bytes of the kv_events value.  The answer has hundreds of other settings, and as many
 * again for each scheduler of the engine.  They are skipped without allocating. */
static kvb_status find_kv_events(kvb_span json, kvb_span *out_value, struct kvb_detail *detail)
{
    static const struct kvb_json_field fields[] = { { "kv_events", false, note_value } };
    struct kvb_json_scan scan = kvb_json_scan_of(json);
    kvb_span value = { .data = NULL };

    if (json.len > kvb_max_event_sources_bytes) {
        kvb_detail_set(detail, "too large for a list of event sources");
        return KVB_TOO_LARGE;
    }
    const kvb_status status = kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), &value);
    if (status != KVB_OK || kvb_json_finish(&scan) != KVB_OK) {
        kvb_detail_set(detail, "no JSON object, or one that is nested too deep");
        return status != KVB_OK ? status : KVB_BAD_INPUT;
    }
    if (!value.data) {
        kvb_detail_set(detail, "kv_events is missing: SGLang reports it from 0.5.23 on");
        return KVB_BAD_INPUT;
    }
    *out_value = value;
    return KVB_OK;
}

/* Both */

static int compare_source_ranks(const void *one, const void *other)
{
    const struct kvb_event_source *a = one;
    const struct kvb_event_source *b = other;

    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

static kvb_status sort_sources(struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    qsort(sources->sources, sources->count, sizeof sources->sources[0], compare_source_ranks);
    for (size_t i = 1; i < sources->count; i++) {
        if (sources->sources[i].dp_rank == sources->sources[i - 1].dp_rank) {
            kvb_detail_set(detail, "rank %u is listed twice", sources->sources[i].dp_rank);
            return KVB_BAD_INPUT;
        }
    }
    return KVB_OK;
}

typedef kvb_status (*source_reader)(
    struct json_object *root, struct kvb_event_sources *sources, struct kvb_detail *detail);

static kvb_status parse_sources(
    kvb_span json, source_reader read, struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = { .depth = max_sources_depth,
                                      .containers = max_source_containers,
                                      .values = max_source_values };
    kvb_status status = KVB_TOO_LARGE;

    if (json.len <= kvb_max_event_sources_bytes) {
        status = kvb_json_parse(json, &budget, &root);
    }
    if (status != KVB_OK) {
        kvb_detail_set(
            detail, status == KVB_TOO_LARGE ? "too large for a list of event sources" : "no JSON");
        return status;
    }
    KVB_TRY(read(root, sources, detail));
    return sort_sources(sources, detail);
}

static kvb_status decode_sources(
    kvb_span json, source_reader read, struct kvb_event_sources *out_sources,
    struct kvb_detail *detail)
{
    struct kvb_event_sources *sources = calloc(1, sizeof *sources);

    if (!sources) {
        kvb_detail_set(detail, "no memory");
        return KVB_NO_MEMORY;
    }
    const kvb_status status = parse_sources(json, read, sources, detail);
    if (status == KVB_OK) {
        *out_sources = *sources;
    }
    free(sources);
    return status;
}

kvb_status kvb_event_sources_decode(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail)
{
    return decode_sources(json, read_vllm, out_sources, detail);
}

kvb_status kvb_event_sources_decode_server_info(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail)
{
    kvb_span value = { .data = NULL };

    KVB_TRY(find_kv_events(json, &value, detail));
    return decode_sources(value, read_sglang, out_sources, detail);
}

/* ---- The names of models ---- */

/* An entry of vLLM has a list of permissions with 12 values. */
enum { max_models_depth = 8, max_model_containers = 4096, max_model_values = 65536 };

/* One entry; borrowed from the list. */
struct entry {
    const char *id;     /* "": none, like the next */
    const char *root;   /* the id where it is missing */
    const char *parent; /* "": a base model */
};

/* "" for a text that a NUL would cut. */
static const char *text_of(struct json_object *object, const char *name)
{
    const char *text = kvb_json_member_text(object, name);
    const int len = json_object_get_string_len(kvb_json_member(object, name));

    return strlen(text) == (size_t)len ? text : "";
}

static struct entry entry_at(struct json_object *data, size_t at)
{
    struct json_object *object = json_object_array_get_idx(data, at);
    struct entry entry = { .id = "", .root = "", .parent = "" };

    if (json_object_is_type(object, json_type_object)) {
        entry.id = text_of(object, "id");
        entry.root = text_of(object, "root");
        entry.parent = text_of(object, "parent");
    }
    if (entry.root[0] == '\0') {
        entry.root = entry.id;
    }
    return entry;
}

static bool is_base(const struct entry *entry)
{
    return entry->id[0] != '\0' && entry->parent[0] == '\0';
}

/* The root of the entry whose id or root is the model; else of all base models.  NULL: there is
 * none, or several. */
static const char *
find_root(struct json_object *data, size_t count, const char *model, bool *out_has_several)
{
    const char *only = NULL;
    bool has_several = false;

    for (size_t i = 0; i < count; i++) {
        const struct entry entry = entry_at(data, i);
        if (!is_base(&entry)) {
            continue;
        }
        if (strcmp(entry.id, model) == 0 || strcmp(entry.root, model) == 0) {
            return entry.root;
        }
        /* A name that is not the worker's is accepted only if it is the only model. */
        has_several = has_several || (only && strcmp(only, entry.root) != 0);
        only = entry.root;
    }
    *out_has_several = has_several;
    return has_several ? NULL : only;
}

/* True: its parent is a name of the base model, which are in `names` already. */
static bool is_adapter(
    const struct entry *entry, const char *root, const char *model,
    const struct kvb_served_names *names)
{
    enum kvb_served_kind kind = KVB_SERVED_ADAPTER;

    return entry->id[0] != '\0' && entry->parent[0] != '\0' &&
           (strcmp(entry->parent, model) == 0 || strcmp(entry->parent, root) == 0 ||
            (kvb_served_names_find(names, kvb_span_of(entry->parent), &kind) &&
             kind == KVB_SERVED_NAME));
}

static void
add(struct kvb_served_names *names, enum kvb_served_kind kind, const char *id, const char *model)
{
    if (strcmp(id, model) != 0 &&
        kvb_served_names_add(names, kind, kvb_span_of(id)) == KVB_BAD_INPUT) {
        names->left_out++; /* no request can name it, so it takes no place */
    }
}

static kvb_status read_list(
    struct json_object *root, const char *model, struct kvb_served_names *out_names,
    struct kvb_detail *detail)
{
    struct json_object *data = kvb_json_member(root, "data");
    const size_t count = kvb_json_list_len(data);
    struct kvb_served_names names = { .is_listed = true };
    bool has_several = false;

    if (!json_object_is_type(data, json_type_array)) {
        kvb_detail_set(detail, "its list of models has no array `data`");
        return KVB_BAD_INPUT;
    }
    const char *base = find_root(data, count, model, &has_several);
    if (!base) {
        kvb_detail_set(
            detail, "its list of models has %s, and none of them is %.100s",
            has_several ? "several base models" : "no base model", model);
        return KVB_BAD_INPUT;
    }
    /* Names before adapters: an adapter's parent may be any of them. */
    for (size_t i = 0; i < count; i++) {
        const struct entry entry = entry_at(data, i);
        if (is_base(&entry) && strcmp(entry.root, base) == 0) {
            add(&names, KVB_SERVED_NAME, entry.id, model);
        }
    }
    for (size_t i = 0; i < count; i++) {
        const struct entry entry = entry_at(data, i);
        if (is_adapter(&entry, base, model, &names)) {
            add(&names, KVB_SERVED_ADAPTER, entry.id, model);
        }
    }
    *out_names = names;
    return KVB_OK;
}

kvb_status kvb_model_list_decode(
    kvb_span json, const char *model, struct kvb_served_names *out_names, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = { .depth = max_models_depth,
                                      .containers = max_model_containers,
                                      .values = max_model_values };
    kvb_status status = KVB_TOO_LARGE;

    if (json.len <= kvb_max_model_list_bytes) {
        status = kvb_json_parse(json, &budget, &root);
    }
    if (status != KVB_OK) {
        kvb_detail_set(
            detail, status == KVB_TOO_LARGE ? "its list of models is too large"
                                            : "its list of models is no JSON");
        return status;
    }
    return read_list(root, model, out_names, detail);
}

/* ---- How it speculates ---- */

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

/* As JSON */

/* The answer has some thousand other values. */
static kvb_status skip(struct kvb_json_scan *scan)
{
    struct kvb_json_budget budget = kvb_json_depth(16);

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

/* As text */

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

    /* Python's repr of the configuration: only its beginning has a fixed form. */
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

/* Both */

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
    /* SGLang answers the same path with another object. */
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
