#pragma once

#include "core/status.h"

#include <nats/nats.h>
#include <stdbool.h>
#include <stdint.h>

/* Inside the room: from a login to the options of nats.c.  Threads: any thread. */

struct kvb_bus_login;

/* Reads the files of the login, and puts it and TLS into the options.  url decides about TLS when
 * the login has no certificates.  nats.c reads credentials and the NKey's seed while it connects,
 * so what login points to must outlive the connection.  Secrets that were read are zeroed.
 *
 * KVB_BAD_CONFIG  a file or its content; detail begins with the key, "nats.token_file: "
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_login_apply(
    const struct kvb_bus_login *login, const char *url, natsOptions *options,
    struct kvb_detail *detail);

/* nats.c does not escape user, password and token when it writes them as JSON strings.
 * out has room for twice the text and its NUL. */
void kvb_login_escape(const char *text, char *out);

/* Whether connections with it are encrypted in any case. */
bool kvb_login_wants_tls(const struct kvb_bus_login *login, const char *url);

/* A hash of the login and of which files it names: another one when a file was replaced. */
uint64_t kvb_login_print(const struct kvb_bus_login *login);
