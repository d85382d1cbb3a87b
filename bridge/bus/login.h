#pragma once

#include "core/status.h"

#include <nats/nats.h>
#include <stdbool.h>
#include <stdint.h>

/* Private to bus/: translates a login to the options of nats.c.  Threads: any thread. */

struct kvb_bus_login;

/* Reads the files of the login, and sets login and TLS in the options.  TLS is used when the login
 * names a certificate or a server, or when the url begins with tls://.  nats.c reads the files of
 * credentials and of the NKey's seed later, while it connects.  Buffers with secrets are zeroed.
 *
 * KVB_BAD_CONFIG  a file or its content is wrong; detail begins with the key, "nats.token_file: "
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_login_apply(
    const struct kvb_bus_login *login, const char *url, natsOptions *options,
    struct kvb_detail *detail);

/* Escapes quotes and backslashes, because nats.c does not do so when it writes user, password and
 * token as JSON strings.  out has room for twice the text and its NUL. */
void kvb_login_escape(const char *text, char *out);

/* True when connections with this login must use TLS. */
bool kvb_login_wants_tls(const struct kvb_bus_login *login, const char *url);

/* A hash of the login and of the device, inode, size and mtime of its files.  It changes when a
 * file is replaced. */
uint64_t kvb_login_print(const struct kvb_bus_login *login);
