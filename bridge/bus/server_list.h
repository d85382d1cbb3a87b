#pragma once

#include <stddef.h>
#include <stdint.h>

/* The order in which the servers of a list are dialed.
 *
 *     configured   nats.url              shuffled: the clients of a server that
 *     announced    connect_urls of INFO  stops spread over the others
 *     left         the server that announced lame duck mode: last
 *
 * A server in lame duck mode accepts nobody, but a load balancer in front of it may, and after
 * its restart it may be asked to stop once more.  Pure.  Threads: any thread. */

/* Orders servers[0 .. count) in place.  left: the URL of a server to be dialed last, "" for none;
 * the host and port decide.  seed: any number; the same one gives the same order. */
void kvb_server_list_order(const char **servers, size_t count, const char *left, uint64_t seed);
