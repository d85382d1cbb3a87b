#pragma once

#include "core/conf.h"
#include "core/log.h"

#include <stdbool.h>

/* What the configurations of both daemons have in common: sections, and checks that need
 * more than one row of a table.  Threads: as core/conf.h. */

enum { kvb_config_path_bytes = 256, kvb_config_url_bytes = 512, kvb_config_listen_bytes = 80 };

struct kvb_nats_config {
    char url[kvb_config_url_bytes];
    char credentials[kvb_config_path_bytes]; /* "" for none */
    char ca_file[kvb_config_path_bytes];     /* "" for none */
};

enum kvb_log_format { KVB_LOG_TEXT, KVB_LOG_JSON, KVB_LOG_FORMAT_COUNT };

struct kvb_log_config {
    enum kvb_log_level level;
    enum kvb_log_format format;
};

/* Adapters for the tables of keys, which treat enums as unsigned numbers. */
const char *kvb_config_level_name(unsigned value);
const char *kvb_config_format_name(unsigned value);

/* Rows for a struct with the fields nats, log and http. */
/* clang-format off */
#define KVB_CONFIG_NATS_ROWS(type)                                                                 \
    { "nats.url", KVB_CONF_STRING, "nats://127.0.0.1:4222", 1, KVB_CONF_FIELD(type, nats.url),     \
      .help = "Where nats-server listens; several with commas between them." },                   \
    { "nats.credentials", KVB_CONF_STRING, "", 0, KVB_CONF_FIELD(type, nats.credentials),          \
      .help = "Path of a .creds file; empty for none." },                                         \
    { "nats.ca_file", KVB_CONF_STRING, "", 0, KVB_CONF_FIELD(type, nats.ca_file),                  \
      .help = "PEM file of the authority that signed the server's certificate;\n"                 \
              "empty for no TLS of our own." }

#define KVB_CONFIG_HTTP_ROW(type, listen)                                                          \
    { "http", KVB_CONF_STRING, listen, 0, KVB_CONF_FIELD(type, http),                              \
      .help = "Address and port of the HTTP side, numbers only; empty: off.\n"                    \
              "Port 0 draws a free one, which the log names." }

#define KVB_CONFIG_LOG_ROWS(type)                                                                  \
    { "log.level", KVB_CONF_ENUM, "info", 0, KVB_LOG_LEVEL_COUNT - 1,                              \
      KVB_CONF_FIELD(type, log.level), .name_of = kvb_config_level_name,                           \
      .help = "The least important lines that are written." },                                    \
    { "log.format", KVB_CONF_ENUM, "text", 0, KVB_LOG_FORMAT_COUNT - 1,                            \
      KVB_CONF_FIELD(type, log.format), .name_of = kvb_config_format_name,                         \
      .help = "text for people, json for machines; one line a record, on stderr." }
/* clang-format on */

/* Each adds a configuration error when the value of the key cannot be used.  An empty value
 * is skipped: either it means "none", or its own row has reported it. */

/* Names that become tokens of subjects; allows_any: also "*". */
void kvb_config_check_name(
    struct kvb_conf *conf, const char *key, const char *name, bool allows_any);

/* 127.0.0.1:9401, [::1]:9401 */
void kvb_config_check_listen(struct kvb_conf *conf, const char *key, const char *listen);

void kvb_config_check_nats(struct kvb_conf *conf, const struct kvb_nats_config *nats);
