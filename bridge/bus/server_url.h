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

/* Moves the login out of one server's url into *out when nats.c could not read it there, because it
 * contains percent-encoded bytes, quotes or backslashes.  The url is changed in place; *out is
 * decoded.  False: nothing was changed, because nats.c can read the login, there is none, a part is
 * longer than the struct holds, or it contains a control character. */
bool kvb_server_url_take_login(char *url, struct kvb_server_login *out);

/* What is wrong with the logins in a valid url, for people; NULL: nothing.  nats.c accepts only one
 * login outside the url, so all logins that kvb_server_url_take_login() moves must be equal. */
const char *kvb_server_url_login_fault(const char *url);

/* True when host (as text, without case) and port are equal.  Scheme and login are not compared.
 * The default port is 4222. */
bool kvb_server_url_is_same(const char *a, const char *b);

/* True when the URL of at least one server begins with tls://. */
bool kvb_server_url_wants_tls(const char *url);

/* The order in which the servers of a list are dialed.
 *
 *     configured   nats.url              shuffled, so that the clients of a server
 *     announced    connect_urls of INFO  that stops spread over the others
 *     left         the server that announced lame duck mode: last
 *
 * A server in lame duck mode accepts no connection, but a load balancer in front of it may.
 *
 * Orders servers[0 .. count) in place.  left: the URL of the server to be dialed last, "" for none;
 * it is compared by kvb_server_url_is_same().  seed: equal seeds give equal orders. */
void kvb_server_list_order(const char **servers, size_t count, const char *left, uint64_t seed);
