#include "fleet/listen.h"

#include <arpa/inet.h>

enum { max_connections = 256, idle_s = 30 };

kvb_status kvb_listen(
    const struct kvb_listen_options *options, struct kvb_detail *detail,
    struct MHD_Daemon **out_daemon, uint16_t *out_port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(options->port) };

    if (inet_pton(AF_INET, options->address, &address.sin_addr) != 1) {
        kvb_detail_set(detail, "%s: expected an IPv4 address", options->address);
        return KVB_BAD_CONFIG;
    }
    /* epoll where there is one: the sockets of a large fleet have numbers beyond those of select */
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, options->port, NULL, NULL,
        options->on_request, options->context, MHD_OPTION_SOCK_ADDR, &address,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)idle_s, MHD_OPTION_NOTIFY_COMPLETED, options->on_completed, options->context,
        MHD_OPTION_END);
    if (!daemon) {
        kvb_detail_set(
            detail, "%s:%u: cannot be listened on (in use?)", options->address, options->port);
        return KVB_BAD_CONFIG;
    }
    *out_port = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    *out_daemon = daemon;
    return KVB_OK;
}
