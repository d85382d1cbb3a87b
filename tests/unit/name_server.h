#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A name server that answers as the test says, in a network and a mount namespace of its own:
 * /etc/resolv.conf and /etc/hosts are the test's, port 53 of its loopback addresses is free, and
 * no question leaves the machine.
 *
 * Threads: one of its own, all calls only from the thread that started it. */

enum name_manner {
    name_has,   /* the address, as A or AAAA; of the other kind there is none */
    name_fails, /* SERVFAIL */
    name_silent /* never a byte */
};

struct name_row {
    const char *name;    /* "engine-1.fleet" */
    const char *address; /* "127.0.0.1", "::1" */
    enum name_manner manner;
    uint32_t ttl_s;
};

struct name_server;

/* Moves this thread, and those that it starts, into namespaces of their own.  False: that is
 * not allowed here. */
bool name_server_isolate(void);

/* For /etc/resolv.conf, /etc/hosts; after the above. */
void name_server_settings(const char *resolv_conf, const char *hosts);

/* At address:53.  rows are borrowed until the stop, and closed by one without a name; what is
 * not there does not exist. */
struct name_server *name_server_start(const char *address, const struct name_row *rows);
void name_server_stop(struct name_server *server);

/* Questions so far, of each kind one; of this name alone, or NULL. */
size_t name_server_asked(struct name_server *server, const char *name);
