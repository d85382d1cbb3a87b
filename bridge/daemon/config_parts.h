#pragma once

#include "bus/bus.h"
#include "core/conf.h"
#include "core/log.h"

#include <stdbool.h>

/* The configuration sections that both daemons have, and checks that involve more than one key.
 * Threads: as core/conf.h. */

enum { kvb_config_path_bytes = 256, kvb_config_url_bytes = 512, kvb_config_listen_bytes = 80 };

struct kvb_nats_config {
    char url[kvb_config_url_bytes];
    struct kvb_bus_login login;
};

/* Where clients connect. */
enum kvb_listener { KVB_LISTENER_HTTP, KVB_LISTENER_GRPC, KVB_LISTENER_GATEWAY };

/* Who may send requests: see daemon/http_access.h.  A path that is "": no file.  gRPC has no token,
 * and no metrics. */
struct kvb_http_security {
    char cert_file[kvb_config_path_bytes];
    char key_file[kvb_config_path_bytes];
    char token_file[kvb_config_path_bytes];
    /* Only of a gateway. */
    char client_ca_file[kvb_config_path_bytes];
    bool is_self_signed; /* instead of the first two */
    bool open_metrics;
    bool insecure;
};

enum kvb_log_format { KVB_LOG_TEXT, KVB_LOG_JSON, KVB_LOG_FORMAT_COUNT };

struct kvb_log_config {
    enum kvb_log_level level;
    enum kvb_log_format format;
};

const char *kvb_log_format_name(enum kvb_log_format format);

/* Rows for a struct with the fields nats, log, http and http_security. */
/* clang-format off */
#define KVB_CONFIG_NATS_ROWS(type)                                                                 \
    { "nats.url", KVB_CONF_STRING, "nats://127.0.0.1:4222", 1, KVB_CONF_FIELD(type, nats.url),     \
      .help = "URL of nats-server; several are separated by commas." },                   \
    KVB_CONFIG_LOGIN_ROWS(type)

/* One row for each field of the login. */
#define KVB_CONFIG_LOGIN_ROW(type, name, text)                                                     \
    { "nats." #name, KVB_CONF_STRING, "", 0, KVB_CONF_FIELD(type, nats.login.name), .help = (text) }

#define KVB_CONFIG_LOGIN_ROWS(type)                                                                \
    KVB_CONFIG_LOGIN_ROW(type, user,                                                               \
        "Name of the NATS user; the password is in nats.password_file."),                               \
    KVB_CONFIG_LOGIN_ROW(type, password_file,                                                      \
        "File whose first line is the password. Like all files with secrets,\n"                    \
        "only its owner and its group may have access."),                                 \
    KVB_CONFIG_LOGIN_ROW(type, token_file,                                                         \
        "File whose first line is the token."),                                                    \
    KVB_CONFIG_LOGIN_ROW(type, credentials,                                                        \
        "Path of a .creds file: the JWT of a user and the seed of its NKey."),                     \
    KVB_CONFIG_LOGIN_ROW(type, nkey_seed_file,                                                     \
        "File whose first line is the seed of a user's NKey: SU..."),                              \
    KVB_CONFIG_LOGIN_ROW(type, ca_file,                                                            \
        "PEM file of the authorities that sign server certificates; it requires\n"                   \
        "TLS. Empty: TLS only with tls:// URLs."),                                 \
    KVB_CONFIG_LOGIN_ROW(type, server_name,                                                        \
        "Name in the server's certificate; empty: the host of the URL."),                          \
    KVB_CONFIG_LOGIN_ROW(type, cert_file,                                                          \
        "PEM file with the client certificate and its intermediate certificates."),                \
    KVB_CONFIG_LOGIN_ROW(type, key_file,                                                           \
        "PEM file with the private key of that certificate."),                                                     \
    KVB_CONFIG_LOGIN_ROW(type, inbox_prefix,                                                       \
        "Prefix of the subjects on which answers are received, for\n"                       \
        "permissions; empty: _INBOX.")

#define KVB_CONFIG_HTTP_ROWS(type, listen)                                                          \
    { "http", KVB_CONF_STRING, listen, 0, KVB_CONF_FIELD(type, http),                              \
      .help = "Numeric address and port of the HTTP server; empty: off.\n"                    \
              "Port 0 chooses a free port, which is logged. An address that is not\n"         \
              "loopback requires http_security." },                                               \
    { "http_security.cert_file", KVB_CONF_STRING, "", 0,                                           \
      KVB_CONF_FIELD(type, http_security.cert_file),                                               \
      .help = "PEM file with the server certificate and its chain: HTTPS; empty:\n"           \
              "HTTP. This and the next two files are read again on SIGHUP." },                       \
    { "http_security.key_file", KVB_CONF_STRING, "", 0,                                            \
      KVB_CONF_FIELD(type, http_security.key_file),                                                \
      .help = "PEM file with the private key of that certificate (chmod 0640)." },                                    \
    { "http_security.token_file", KVB_CONF_STRING, "", 0,                                          \
      KVB_CONF_FIELD(type, http_security.token_file),                                              \
      .help = "File with the bearer token that requests must carry, except probes, the\n"          \
              "status page and paths with a token of their own (chmod 0640)." },                  \
    { "http_security.open_metrics", KVB_CONF_BOOL, "false", 0, 0,                                  \
      KVB_CONF_FIELD(type, http_security.open_metrics),                                            \
      .help = "true: /metrics requires no token." },                                               \
    { "http_security.insecure", KVB_CONF_BOOL, "false", 0, 0,                                      \
      KVB_CONF_FIELD(type, http_security.insecure),                                                \
      .help = "true: requests need no token, even on an address that is not loopback." }

#define KVB_CONFIG_LOG_ROWS(type)                                                                  \
    { "log.level", KVB_CONF_ENUM, "info", 0, KVB_LOG_LEVEL_COUNT - 1,                              \
      KVB_CONF_FIELD(type, log.level), .name_of = kvb_log_level_name,                              \
      .help = "The least important level that is logged." },                                    \
    { "log.format", KVB_CONF_ENUM, "text", 0, KVB_LOG_FORMAT_COUNT - 1,                            \
      KVB_CONF_FIELD(type, log.format), .name_of = kvb_log_format_name,                            \
      .help = "text for people, json for programs; one line for each record, on stderr." }
/* clang-format on */

/* What serves in place of a key that is gone. */
#define KVB_CONFIG_NO_CLIENT_CA                                                                    \
    "require a token (http_security.token_file), or listen on loopback behind a proxy that "       \
    "verifies the certificates of clients"

/* The next functions add a configuration error when a value cannot be used.  An empty value is
 * skipped: it means "none", or the check of its own row has reported it. */

/* Checks a name that becomes a token of NATS subjects.  allows_any: "*" is valid, too. */
void kvb_config_check_name(
    struct kvb_conf *conf, const char *key, const char *name, bool allows_any);

/* Checks the address of the listener, that requests from other hosts need a token, and the files.
 */
void kvb_config_check_listener(
    struct kvb_conf *conf, enum kvb_listener listener, const char *listen,
    const struct kvb_http_security *security);

/* True for the keys of a login, which a reload applies: all keys of nats except url and
 * inbox_prefix. */
bool kvb_config_is_login_key(const char *key);

void kvb_config_check_nats(struct kvb_conf *conf, const struct kvb_nats_config *nats);
