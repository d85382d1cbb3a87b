#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* URLs of NATS servers: "nats://127.0.0.1:4222", or several with commas.
 * Threads: any thread. */

/* Each is [nats:// | tls://] [user[:password]@] host [:port]. */
bool kvb_server_url_is_valid(const char *url);

enum { kvb_server_login_bytes = 256 };

struct kvb_server_login {
    bool is_token; /* user is the token */
    char user[kvb_server_login_bytes];
    char password[kvb_server_login_bytes];
};

/* When nats.c cannot take user and password from one server's url, because there are
 * percent-encoded bytes, quotes or backslashes: removes them from the url, in place, decodes them
 * into *out and returns true.  False: nothing changed, also when one of them is longer than the
 * struct holds or contains a control character. */
bool kvb_server_url_take_login(char *url, struct kvb_server_login *out);

/* What is wrong with the logins in a valid url, for people; NULL: nothing.  nats.c has room for one
 * login beside the url, so all that kvb_server_url_take_login() takes must be the same. */
const char *kvb_server_url_login_fault(const char *url);

/* True when both name one host, spelt alike, and one port.  Scheme and login are not compared; a
 * port that is left out is 4222. */
bool kvb_server_url_is_same(const char *a, const char *b);

/* True when one of them begins with tls://. */
bool kvb_server_url_wants_tls(const char *url);

/* The order in which the servers of a list are dialed.
 *
 *     configured   nats.url              shuffled: the clients of a server that
 *     announced    connect_urls of INFO  stops spread over the others
 *     left         the server that announced lame duck mode: last
 *
 * A server in lame duck mode accepts nobody, but a load balancer in front of it may, and after
 * its restart it may be asked to stop once more.
 *
 * Orders servers[0 .. count) in place.  left: the URL of a server to be dialed last, "" for none;
 * the host and port decide.  seed: any number; the same one gives the same order. */
void kvb_server_list_order(const char **servers, size_t count, const char *left, uint64_t seed);
