#include "pods/kubeconfig.h"

#include "core/own.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* ---- The tree that libyaml makes ---- */

static void drop_document(yaml_document_t **document)
{
    if (!*document) {
        return;
    }
    /* libyaml does not erase what it frees. */
    for (yaml_node_t *node = (*document)->nodes.start; node < (*document)->nodes.top; node++) {
        if (node->type == YAML_SCALAR_NODE) { /* a token or a key, maybe */
            explicit_bzero(node->data.scalar.value, node->data.scalar.length);
        }
    }
    yaml_document_delete(*document);
}

static kvb_status load_document(kvb_span bytes, yaml_document_t *out, struct kvb_detail *detail)
{
    yaml_parser_t parser;

    if (!yaml_parser_initialize(&parser)) {
        return KVB_NO_MEMORY;
    }
    yaml_parser_set_input_string(&parser, bytes.data, bytes.len);
    const bool is_loaded = yaml_parser_load(&parser, out);
    if (!is_loaded) {
        kvb_detail_set(
            detail, "line %zu: %s", parser.problem_mark.line + 1,
            parser.problem ? parser.problem : "no YAML");
    }
    yaml_parser_delete(&parser);
    return is_loaded ? KVB_OK : KVB_BAD_CONFIG;
}

static bool is_scalar(const yaml_node_t *node, const char *text)
{
    return node && node->type == YAML_SCALAR_NODE && strlen(text) == node->data.scalar.length &&
           memcmp(node->data.scalar.value, text, node->data.scalar.length) == 0;
}

/* The value of a key of a mapping; NULL: there is none, or map is NULL or another node. */
static yaml_node_t *value_of(yaml_document_t *document, const yaml_node_t *map, const char *key)
{
    if (!map || map->type != YAML_MAPPING_NODE) {
        return NULL;
    }
    for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start;
         pair < map->data.mapping.pairs.top; pair++) {
        if (is_scalar(yaml_document_get_node(document, pair->key), key)) {
            return yaml_document_get_node(document, pair->value);
        }
    }
    return NULL;
}

/* [{ name: NAME, KIND: { ... } }]: the inner mapping of that name. */
static yaml_node_t *
entry_of(yaml_document_t *document, const yaml_node_t *list, const char *name, const char *kind)
{
    if (!list || list->type != YAML_SEQUENCE_NODE) {
        return NULL;
    }
    for (const yaml_node_item_t *item = list->data.sequence.items.start;
         item < list->data.sequence.items.top; item++) {
        const yaml_node_t *entry = yaml_document_get_node(document, *item);
        if (is_scalar(value_of(document, entry, "name"), name)) {
            return value_of(document, entry, kind);
        }
    }
    return NULL;
}

/* ---- Values ---- */

/* What is being read, and where errors go. */
struct kubeconfig_reading {
    yaml_document_t *document;
    struct kvb_detail *detail;
};

/* An unquoted null, as JSON and YAML 1.2 write it; a quoted one is a text. */
static bool is_null(const yaml_node_t *node)
{
    static const char *const words[] = { "null", "Null", "NULL", "~" };
    bool is_found = false;

    for (size_t i = 0; i < KVB_COUNT_OF(words); i++) {
        is_found = is_found || strcmp((const char *)node->data.scalar.value, words[i]) == 0;
    }
    return is_found && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_filled(const yaml_node_t *node)
{
    return node &&
           !(node->type == YAML_SCALAR_NODE && (node->data.scalar.length == 0 || is_null(node)));
}

/* Leaves `out` unchanged when the key is absent. */
static kvb_status read_text(
    const struct kubeconfig_reading *reading, const yaml_node_t *map, const char *key, char *out,
    size_t size)
{
    const yaml_node_t *node = value_of(reading->document, map, key);

    if (!is_filled(node)) {
        return KVB_OK;
    }
    /* A NUL byte would cut a text short without a word. */
    if (node->type != YAML_SCALAR_NODE || node->data.scalar.length >= size ||
        memchr(node->data.scalar.value, '\0', node->data.scalar.length)) {
        kvb_detail_set(reading->detail, "%s: expected a text of at most %zu bytes", key, size - 1);
        return KVB_BAD_CONFIG;
    }
    memcpy(out, node->data.scalar.value, node->data.scalar.length);
    out[node->data.scalar.length] = '\0';
    return KVB_OK;
}

static kvb_status decode_base64(const char *text, char **out)
{
    const size_t len = strlen(text);
    unsigned char *bytes = calloc(1, len + 1);

    if (!bytes) {
        return KVB_NO_MEMORY;
    }
    /* EVP_DecodeBlock() accepts neither line ends within the text nor text without its padding. */
    const int got =
        len % 4 == 0 ? EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)len) : -1;
    /* The padding, at most two bytes, is zero and ends the text.  A zero before it would hide what
     * follows, also from whoever erases it: a certificate or a key in DER, maybe. */
    if (got <= 0 || strlen((const char *)bytes) + 2 < (size_t)got) {
        /* It may have decoded a part before it failed. */
        explicit_bzero(bytes, len);
        free(bytes);
        return KVB_BAD_CONFIG;
    }
    *out = (char *)bytes;
    return KVB_OK;
}

static kvb_status read_pem(
    const struct kubeconfig_reading *reading, const yaml_node_t *map, const char *key,
    struct kvb_kubeconfig_pem *out)
{
    char data_key[64];
    char *text = calloc(1, kvb_kubeconfig_pem_bytes);

    if (!text) {
        return KVB_NO_MEMORY;
    }
    (void)snprintf(data_key, sizeof data_key, "%s-data", key);
    kvb_status status = read_text(reading, map, data_key, text, kvb_kubeconfig_pem_bytes);
    /* What is in the file comes before the path of another one, as with kubectl. */
    if (status == KVB_OK && text[0] != '\0') {
        status = decode_base64(text, &out->text);
        if (status == KVB_BAD_CONFIG) {
            kvb_detail_set(reading->detail, "%s: expected base64 of a PEM text", data_key);
        }
    } else if (status == KVB_OK) {
        status = read_text(reading, map, key, out->path, sizeof out->path);
    }
    /* It may be a private key. */
    explicit_bzero(text, kvb_kubeconfig_pem_bytes);
    free(text);
    return status;
}

/* ---- Keys that are not supported ---- */

static kvb_status refuse_keys(
    const struct kubeconfig_reading *reading, const yaml_node_t *cluster, const yaml_node_t *user)
{
    static const struct {
        const char *key;
        bool is_of_user;
        const char *remedy;
    } rows[] = {
        { "exec", true, "no program is run: give a token or a client certificate" },
        { "auth-provider", true, "is not supported: give a token or a client certificate" },
        { "username", true, "passwords are not supported: give a token" },
        { "as", true, "is not supported: give the user's own token" },
        { "proxy-url", false, "proxies are not used: give a server that can be reached" },
        { "tls-server-name", false, "is not supported: the certificate must name the server" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const yaml_node_t *map = rows[i].is_of_user ? user : cluster;
        if (is_filled(value_of(reading->document, map, rows[i].key))) {
            kvb_detail_set(reading->detail, "%s: %s", rows[i].key, rows[i].remedy);
            return KVB_BAD_CONFIG;
        }
    }
    const yaml_node_t *insecure = value_of(reading->document, cluster, "insecure-skip-tls-verify");
    /* Only `false` asks for nothing less than the default. */
    if (is_filled(insecure) && !is_scalar(insecure, "false")) {
        kvb_detail_set(
            reading->detail, "insecure-skip-tls-verify: the server's certificate is always "
                             "verified: give certificate-authority");
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

/* ---- The whole ---- */

static kvb_status
refuse_name(const struct kubeconfig_reading *reading, const char *what, const char *name)
{
    kvb_detail_set(reading->detail, "it has no %s named \"%.100s\"", what, name);
    return KVB_BAD_CONFIG;
}

/* What the current context names. */
struct kubeconfig_parts {
    const yaml_node_t *cluster;
    const yaml_node_t *user;
};

static kvb_status find_context_parts(
    const struct kubeconfig_reading *reading, struct kubeconfig_parts *out,
    struct kvb_kubeconfig *config)
{
    yaml_document_t *document = reading->document;
    const yaml_node_t *root = yaml_document_get_root_node(document);
    char context_name[kvb_kubeconfig_text_bytes] = "";
    char cluster_name[kvb_kubeconfig_text_bytes] = "";
    char user_name[kvb_kubeconfig_text_bytes] = "";

    KVB_TRY(read_text(reading, root, "current-context", context_name, sizeof context_name));
    const yaml_node_t *context =
        entry_of(document, value_of(document, root, "contexts"), context_name, "context");
    if (!context) {
        return refuse_name(reading, "context, as current-context says,", context_name);
    }
    KVB_TRY(read_text(reading, context, "cluster", cluster_name, sizeof cluster_name));
    KVB_TRY(read_text(reading, context, "user", user_name, sizeof user_name));
    KVB_TRY(
        read_text(reading, context, "namespace", config->name_space, sizeof config->name_space));
    out->cluster =
        entry_of(document, value_of(document, root, "clusters"), cluster_name, "cluster");
    out->user = entry_of(document, value_of(document, root, "users"), user_name, "user");
    if (!out->cluster) {
        return refuse_name(reading, "cluster", cluster_name);
    }
    return out->user ? KVB_OK : refuse_name(reading, "user", user_name);
}

static kvb_status read_token_of(
    const struct kubeconfig_reading *reading, const yaml_node_t *user, struct kvb_kubeconfig *out)
{
    out->token = calloc(1, kvb_kubeconfig_token_bytes);
    if (!out->token) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(read_text(reading, user, "token", out->token, kvb_kubeconfig_token_bytes));
    return read_text(reading, user, "tokenFile", out->token_path, sizeof out->token_path);
}

static kvb_status
read_kubeconfig(const struct kubeconfig_reading *reading, struct kvb_kubeconfig *out)
{
    struct kubeconfig_parts parts = { NULL, NULL };

    KVB_TRY(find_context_parts(reading, &parts, out));
    /* Before the rest, so that the message names what is not supported. */
    KVB_TRY(refuse_keys(reading, parts.cluster, parts.user));
    KVB_TRY(read_text(reading, parts.cluster, "server", out->server, sizeof out->server));
    KVB_TRY(read_token_of(reading, parts.user, out));
    KVB_TRY(read_pem(reading, parts.cluster, "certificate-authority", &out->authority));
    KVB_TRY(read_pem(reading, parts.user, "client-certificate", &out->certificate));
    KVB_TRY(read_pem(reading, parts.user, "client-key", &out->key));
    if (out->server[0] == '\0') {
        kvb_detail_set(reading->detail, "server: the cluster has none");
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

kvb_status
kvb_kubeconfig_decode(kvb_span bytes, struct kvb_kubeconfig *out, struct kvb_detail *detail)
{
    yaml_document_t document;
    struct kvb_kubeconfig config = { .server = "" };
    KVB_OWN(drop_document) yaml_document_t *loaded = NULL;

    if (bytes.len > kvb_kubeconfig_bytes) {
        kvb_detail_set(detail, "it is larger than 1 MiB");
        return KVB_BAD_CONFIG;
    }
    KVB_TRY(load_document(bytes, &document, detail));
    /* From here on the texts are erased whatever comes. */
    loaded = &document;
    const struct kubeconfig_reading reading = { loaded, detail };
    const kvb_status status = read_kubeconfig(&reading, &config);
    if (status != KVB_OK) {
        kvb_kubeconfig_done(&config);
        return status;
    }
    *out = config;
    return KVB_OK;
}

static void drop_secret(char **text)
{
    if (*text) {
        explicit_bzero(*text, strlen(*text));
        free(*text);
        *text = NULL;
    }
}

void kvb_kubeconfig_done(struct kvb_kubeconfig *config)
{
    drop_secret(&config->token);
    drop_secret(&config->authority.text);
    drop_secret(&config->certificate.text);
    drop_secret(&config->key.text);
}
