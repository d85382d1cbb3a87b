#pragma once

#include <stdbool.h>

/* Where NATS is: "nats://127.0.0.1:4222", or several with commas.
 * Threads: any thread. */

/* Each is [nats:// | tls://] [user[:password]@] host [:port]. */
bool kvb_server_url_is_valid(const char *url);

enum { kvb_server_login_bytes = 256 };

struct kvb_server_login {
    bool is_token; /* user is the token */
    char user[kvb_server_login_bytes];
    char password[kvb_server_login_bytes];
};

/* When user and password of one server's url have bytes spelt %XX: takes them out of the
 * url, in place, decodes them into *out and returns true.  False: nothing changed; so too
 * when one is longer than the struct holds or has a %00. */
bool kvb_server_url_take_login(char *url, struct kvb_server_login *out);

/* May the servers of the list be dialed together?  nats.c has one place for decoded logins:
 * all those that are spelt with %XX must be the same. */
bool kvb_server_url_has_one_login(const char *url);

/* True when one of them begins with tls://. */
bool kvb_server_url_wants_tls(const char *url);
