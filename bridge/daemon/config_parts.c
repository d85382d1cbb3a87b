#include "daemon/config_parts.h"

#include "bus/server_url.h"
#include "bus/subject.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *kvb_config_level_name(unsigned value)
{
    return kvb_log_level_name((enum kvb_log_level)value);
}

const char *kvb_config_format_name(unsigned value)
{
    return value == KVB_LOG_JSON ? "json" : "text";
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

static bool is_address_port(const char *text)
{
    const size_t len = strspn(text, "0123456789");

    return len >= 1 && text[len] == '\0' && strtoul(text, NULL, 10) <= UINT16_MAX;
}

/* host has room for the whole of listen.  Accepts numeric addresses only, because a name look-up
 * could block. */
static bool is_address(char *host)
{
    struct in6_addr address;
    const size_t len = strlen(host);

    if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = '\0';
        return inet_pton(AF_INET6, host + 1, &address) == 1;
    }
    return inet_pton(AF_INET, host, &address) == 1;
}

void kvb_config_check_listen(struct kvb_conf *conf, const char *key, const char *listen)
{
    char host[kvb_config_listen_bytes];
    const char *colon = strrchr(listen, ':');

    if (listen[0] == '\0') {
        return;
    }
    const size_t len = colon ? (size_t)(colon - listen) : 0;
    memcpy(host, listen, len);
    host[len] = '\0';
    if (!colon || !is_address_port(colon + 1) || !is_address(host)) {
        kvb_conf_error(
            conf, key, "expected address:port in numbers, such as 127.0.0.1:9401 or [::1]:9401");
    }
}

static void check_readable(struct kvb_conf *conf, const char *key, const char *path)
{
    if (path[0] != '\0' && access(path, R_OK) != 0) {
        kvb_conf_error(conf, key, "cannot read %.128s: %s", path, strerrordesc_np(errno));
    }
}

void kvb_config_check_nats(struct kvb_conf *conf, const struct kvb_nats_config *nats)
{
    if (nats->url[0] != '\0' && !kvb_server_url_is_valid(nats->url)) {
        kvb_conf_error(
            conf, "nats.url", "expected nats://host:port, several with commas between them");
    }
    if (!kvb_server_url_has_one_login(nats->url)) {
        kvb_conf_error(
            conf, "nats.url",
            "users and passwords spelt with %%XX must be the same for all servers");
    }
    check_readable(conf, "nats.credentials", nats->credentials);
    check_readable(conf, "nats.ca_file", nats->ca_file);
}
