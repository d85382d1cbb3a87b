#pragma once

#include <stdbool.h>

/* Where NATS is: "nats://127.0.0.1:4222", or several with commas.
 * Threads: any thread. */

/* Each is [nats:// | tls://] [user[:password]@] host [:port]. */
bool kvb_server_url_is_valid(const char *url);

/* True when one of them begins with tls://. */
bool kvb_server_url_wants_tls(const char *url);
