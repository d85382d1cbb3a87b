#include "core/buf.h"
#include "core/own.h"
#include "core/secret_file.h"
#include "kvctl/kvctl.h"
#include "wire/json/tree.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the URL of nats-server and the login from three sources:
 *
 *     1. options           --nats, --user, --token-file ...
 *     2. --context NAME    a file of the nats command, JSON
 *     3. the environment   KVB_NATS_URL, KVB_NATS_USER ...; not with --context
 *
 * A value of an earlier source has precedence.  A context's password or token goes into the URL,
 * where a password is masked in all messages. */

/* clang-format off */
static const struct {
    const char *environment;
    const char *member; /* key in a context; NULL: none, or read by other code */
    size_t offset;
    size_t bytes;
} login_fields[kvctl_login_fields] = { /* in the order of enum kvctl_login_field */
    { "KVB_NATS_USER",           NULL,           offsetof(struct kvb_bus_login, user),           kvb_login_text_bytes },
    { "KVB_NATS_PASSWORD_FILE",  NULL,           offsetof(struct kvb_bus_login, password_file),  kvb_login_text_bytes },
    { "KVB_NATS_TOKEN_FILE",     NULL,           offsetof(struct kvb_bus_login, token_file),     kvb_login_text_bytes },
    { "KVB_NATS_CREDENTIALS",    "creds",        offsetof(struct kvb_bus_login, credentials),    kvb_login_text_bytes },
    { "KVB_NATS_NKEY_SEED_FILE", "nkey",         offsetof(struct kvb_bus_login, nkey_seed_file), kvb_login_text_bytes },
    { "KVB_NATS_CA_FILE",        "ca",           offsetof(struct kvb_bus_login, ca_file),        kvb_login_text_bytes },
    { "KVB_NATS_SERVER_NAME",    NULL,           offsetof(struct kvb_bus_login, server_name),    kvb_login_text_bytes },
    { "KVB_NATS_CERT_FILE",      "cert",         offsetof(struct kvb_bus_login, cert_file),      kvb_login_text_bytes },
    { "KVB_NATS_KEY_FILE",       "key",          offsetof(struct kvb_bus_login, key_file),       kvb_login_text_bytes },
    { "KVB_NATS_INBOX_PREFIX",   "inbox_prefix", offsetof(struct kvb_bus_login, inbox_prefix),   kvb_inbox_prefix_bytes },
};
/* clang-format on */

enum { max_context_bytes = 64 << 10, context_depth = 8, max_context_values = 1024 };

static char *field_of(struct kvctl_login *login, size_t i)
{
    return (char *)&login->login + login_fields[i].offset;
}

/* Sets a field that is not set yet. */
static kvb_status
set_text(char *out, size_t size, const char *text, const char *origin, struct kvb_detail *detail)
{
    if (!text || text[0] == '\0' || out[0] != '\0') {
        return KVB_OK;
    }
    if (strlen(text) >= size) {
        kvb_detail_set(detail, "%s: at most %zu bytes", origin, size - 1);
        return KVB_BAD_INPUT;
    }
    memcpy(out, text, strlen(text) + 1);
    return KVB_OK;
}

static kvb_status take_login_options(
    const struct kvctl_options *options, struct kvctl_login *login, struct kvb_detail *detail)
{
    for (size_t i = 0; i < kvctl_login_fields; i++) {
        KVB_TRY(set_text(
            field_of(login, i), login_fields[i].bytes, options->login[i], "option of the login",
            detail));
    }
    return set_text(login->url, sizeof login->url, options->url, "--nats", detail);
}

/* No other thread runs yet, so none changes the environment. */
static kvb_status take_login_environment(struct kvctl_login *login, struct kvb_detail *detail)
{
    for (size_t i = 0; i < kvctl_login_fields; i++) {
        const char *name = login_fields[i].environment;
        KVB_TRY(
            set_text(field_of(login, i), login_fields[i].bytes, secure_getenv(name), name, detail));
    }
    return set_text(
        login->url, sizeof login->url, secure_getenv("KVB_NATS_URL"), "KVB_NATS_URL", detail);
}

/* ---- Contexts ---- */

static kvb_status
find_nats_context(const char *name, char *path, size_t size, struct kvb_detail *detail)
{
    const char *config = secure_getenv("XDG_CONFIG_HOME");
    const char *home = secure_getenv("HOME");
    const bool has_config = config && config[0] != '\0';
    const int len = snprintf(
        path, size, "%s%s/nats/context/%s.json",
        has_config ? config
        : home     ? home
                   : "",
        has_config ? "" : "/.config", name);

    if (len < 0 || (size_t)len >= size || strchr(name, '/')) {
        kvb_detail_set(detail, "--context: expected the name of a context of the nats command");
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

static kvb_status append_percent_encoded(struct kvb_buf *out, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";

    for (; *text; text++) {
        const unsigned char byte = (unsigned char)*text;
        const char coded[] = { '%', hex[byte >> 4], hex[byte & 15] };
        KVB_TRY(
            isalnum(byte) ? kvb_buf_append(out, text, 1)
                          : kvb_buf_append(out, coded, sizeof coded));
    }
    return KVB_OK;
}

/* Writes the server with the login before its host. */
static kvb_status
append_server(struct kvb_buf *out, const char *server, const char *user, const char *password)
{
    const char *scheme_end = strstr(server, "://");
    const char *host = scheme_end ? scheme_end + 3 : server;

    /* scheme://user:password@host */
    KVB_TRY(kvb_buf_append(out, server, (size_t)(host - server)));
    KVB_TRY(append_percent_encoded(out, user));
    if (password[0] != '\0') {
        KVB_TRY(kvb_buf_append(out, ":", 1));
        KVB_TRY(append_percent_encoded(out, password));
    }
    KVB_TRY(kvb_buf_append(out, "@", 1));
    return kvb_buf_append(out, host, strlen(host));
}

/* With a password or a token, the login is written into each server of the URL. */
static kvb_status put_login_into_url(
    struct kvctl_login *login, const char *user, const char *password, struct kvb_detail *detail)
{
    char list[kvctl_url_bytes];
    struct kvb_buf out;
    kvb_status status = KVB_OK;
    char *rest = list;

    memcpy(list, login->url, sizeof list);
    kvb_buf_init(&out, kvctl_url_bytes - 1);
    while (rest && status == KVB_OK) {
        const char *server = strsep(&rest, ",");
        status = append_server(&out, server, user, password);
        if (rest && status == KVB_OK) {
            status = kvb_buf_append(&out, ",", 1);
        }
    }
    if (status == KVB_OK) {
        memcpy(login->url, out.data, out.len);
        login->url[out.len] = '\0';
        explicit_bzero(out.data, out.len);
    } else {
        kvb_detail_set(
            detail, "--context: url with user and password: %s", kvb_status_name(status));
    }
    kvb_buf_done(&out);
    return status;
}

static kvb_status take_context_members(
    struct kvctl_login *login, struct json_object *context, const char *path,
    struct kvb_detail *detail)
{
    const char *password = kvb_json_member_text(context, "password");
    const char *token = kvb_json_member_text(context, "token");
    const char *user = kvb_json_member_text(context, "user");
    const bool has_user = login->login.user[0] == '\0' && user[0] != '\0';

    for (size_t i = 0; i < kvctl_login_fields; i++) {
        if (login_fields[i].member) {
            KVB_TRY(set_text(
                field_of(login, i), login_fields[i].bytes,
                kvb_json_member_text(context, login_fields[i].member), path, detail));
        }
    }
    KVB_TRY(set_text(
        login->url, sizeof login->url, kvb_json_member_text(context, "url"), path, detail));
    if (login->url[0] == '\0') {
        memcpy(login->url, KVCTL_DEFAULT_URL, sizeof KVCTL_DEFAULT_URL);
    }
    /* A file with a secret must not be readable by everyone. */
    if (password[0] != '\0' || token[0] != '\0') {
        KVB_TRY(kvb_secret_file_check(path, KVB_FILE_PRIVATE, detail));
    }
    if (has_user || token[0] != '\0') {
        return put_login_into_url(login, has_user ? user : token, has_user ? password : "", detail);
    }
    return KVB_OK;
}

static kvb_status
take_nats_context(const char *name, struct kvctl_login *login, struct kvb_detail *detail)
{
    char path[1024];
    char text[max_context_bytes];
    size_t len = 0;
    struct kvb_json_budget budget = { .depth = context_depth,
                                      .containers = max_context_values,
                                      .values = max_context_values };
    KVB_OWN(kvb_json_drop) struct json_object *context = NULL;

    KVB_TRY(find_nats_context(name, path, sizeof path, detail));
    KVB_TRY(kvb_secret_file_read(path, KVB_FILE_OF_ANYONE, text, sizeof text, &len, detail));
    const kvb_status status =
        kvb_json_parse((kvb_span){ (const uint8_t *)text, len }, &budget, &context);
    explicit_bzero(text, sizeof text);
    if (status != KVB_OK || !json_object_is_type(context, json_type_object)) {
        kvb_detail_set(detail, "%s is not a JSON object", path);
        return KVB_BAD_INPUT;
    }
    return take_context_members(login, context, path, detail);
}

kvb_status kvctl_login_make(
    const struct kvctl_options *options, struct kvctl_login *out, struct kvb_detail *detail)
{
    *out = (struct kvctl_login){ .url = "" };
    KVB_TRY(take_login_options(options, out, detail));
    KVB_TRY(
        options->context ? take_nats_context(options->context, out, detail)
                         : take_login_environment(out, detail));
    /* Whatever set no URL leaves the default. */
    return set_text(out->url, sizeof out->url, KVCTL_DEFAULT_URL, "--nats", detail);
}
