#include "daemon/config_parts.h"

#include "bus/server_url.h"
#include "bus/subject.h"
#include "daemon/http.h"
#include "daemon/http_access.h"

#include <stdio.h>
#include <string.h>

const char *kvb_log_format_name(enum kvb_log_format format)
{
    return format == KVB_LOG_JSON ? "json" : "text";
}

void kvb_config_check_name(
    struct kvb_conf *conf, const char *key, const char *name, bool allows_any)
{
    if (name[0] == '\0' || kvb_name_is_valid(name) || (allows_any && strcmp(name, "*") == 0)) {
        return;
    }
    kvb_conf_error(
        conf, key, "\"%.80s\" cannot stand in a subject: use 1 to %d of A-Z a-z 0-9 _ -%s", name,
        kvb_name_bytes, allows_any ? ", or \"*\"" : "");
}

/* The keys of a listener, as errors name them. */
static const struct listener_keys {
    const char *listen;
    const char *example;
    const char *guards; /* what closes it to who is not permitted, or opens it to all */
    const char *cert_file, *key_file;
} listener_keys[] = {
    [KVB_LISTENER_HTTP] = { .listen = "http",
                            .example = "127.0.0.1:9401 or [::1]:9401",
                            .guards = "http_security.token_file, or http_security.insecure = true",
                            .cert_file = "http_security.cert_file",
                            .key_file = "http_security.key_file" },
    [KVB_LISTENER_GRPC] = { .listen = "grpc.listen",
                            .example = "127.0.0.1:50051 or [::1]:50051",
                            .guards = "grpc.insecure = true where the network is trusted",
                            .cert_file = "grpc.tls.cert_file",
                            .key_file = "grpc.tls.key_file" },
    [KVB_LISTENER_GATEWAY] = { .listen = "gateway.listen",
                               .example = "127.0.0.1:9002 or [::1]:9002",
                               .guards = "gateway.tls.client_ca_file, or gateway.insecure = true "
                                         "where the network is trusted",
                               .cert_file = "gateway.tls.cert_file",
                               .key_file = "gateway.tls.key_file" },
};

/* Rejects a configuration without a token whose address other hosts can reach:
 * everyone there could send requests. */
static void check_exposure(
    struct kvb_conf *conf, enum kvb_listener listener, const char *listen,
    const struct kvb_http_security *security)
{
    if (kvb_http_listen_is_loopback(listen)) {
        return;
    }
    if (!security->token_file[0] && !security->client_ca_file[0] && !security->insecure) {
        kvb_conf_error(
            conf, listener_keys[listener].listen,
            "%.48s is not loopback: set %s; or listen on 127.0.0.1", listen,
            listener_keys[listener].guards);
    }
    /* No error, because a mesh may encrypt it outside of this program. */
    if (security->token_file[0] && !security->cert_file[0]) {
        kvb_conf_warning(
            conf, "http_security.token_file",
            "the token crosses the network in clear: set http_security.cert_file and key_file");
    }
}

static void check_listener_files(
    struct kvb_conf *conf, enum kvb_listener listener, const struct kvb_http_security *security)
{
    const struct kvb_http_access_options options = { .listener = listener, .security = security };
    const struct listener_keys *keys = &listener_keys[listener];
    struct kvb_http_access *access = NULL;
    struct kvb_detail detail = { .text = "" };
    const char *key = "";

    if (!security->cert_file[0] != !security->key_file[0]) {
        kvb_conf_error(
            conf, security->cert_file[0] ? keys->key_file : keys->cert_file,
            "cert_file and key_file belong together: give both or neither");
        return;
    }
    if (security->is_self_signed && security->cert_file[0]) {
        kvb_conf_error(conf, keys->cert_file, "there is self_signed, too: give one of them");
        return;
    }
    if (security->client_ca_file[0] && !kvb_http_security_is_tls(security)) {
        kvb_conf_error(
            conf, keys->cert_file, "client_ca_file needs a certificate: set this, or self_signed");
        return;
    }
    /* The start reports a lack of memory. */
    if (kvb_http_access_new(&options, &access, &key, &detail) == KVB_BAD_CONFIG) {
        kvb_conf_error(conf, key, "%s", detail.text);
    }
    kvb_http_access_free(access);
}

void kvb_config_check_listener(
    struct kvb_conf *conf, enum kvb_listener listener, const char *listen,
    const struct kvb_http_security *security)
{
    if (listen[0] == '\0') {
        return;
    }
    /* First: an address that cannot be read would count as one that other hosts can reach. */
    if (!kvb_http_listen_is_valid(listen)) {
        kvb_conf_error(
            conf, listener_keys[listener].listen, "expected address:port in numbers, such as %s",
            listener_keys[listener].example);
        return;
    }
    check_exposure(conf, listener, listen, security);
    check_listener_files(conf, listener, security);
}

bool kvb_config_is_login_key(const char *key)
{
    return strncmp(key, "nats.", sizeof "nats." - 1) == 0 && strcmp(key, "nats.url") != 0 &&
           strcmp(key, "nats.inbox_prefix") != 0;
}

void kvb_config_check_nats(struct kvb_conf *conf, const struct kvb_nats_config *nats)
{
    const char *key = NULL;
    struct kvb_detail why = { 0 };
    char path[kvb_conf_key_bytes];

    if (nats->url[0] != '\0' && !kvb_server_url_is_valid(nats->url)) {
        kvb_conf_error(
            conf, "nats.url", "expected nats://host:port, several with commas between them");
    }
    const char *fault = kvb_server_url_login_fault(nats->url);
    if (fault) {
        kvb_conf_error(conf, "nats.url", "%s", fault);
    }
    if (kvb_conf_checks_logins(conf) &&
        kvb_bus_login_check(&nats->login, nats->url, &key, &why) == KVB_BAD_CONFIG) {
        (void)snprintf(path, sizeof path, "nats.%s", key);
        kvb_conf_error(conf, path, "%s", why.text);
    }
}
