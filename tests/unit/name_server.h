#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A name server that answers as the test says. It runs in a network namespace and a mount namespace
 * of its own, so the test can write /etc/resolv.conf and /etc/hosts, port 53 of the loopback
 * addresses is free, and no query leaves the machine. Threads: one of its own; all calls only from
 * the thread that started it. */

enum name_manner {
    name_has,        /* the address, as A or AAAA; no record of the other type */
    name_fails,      /* SERVFAIL */
    name_half_fails, /* SERVFAIL for A; the address as AAAA, if it has one */
    name_silent      /* does not answer */
};

struct name_row {
    const char *name;    /* "engine-1.fleet"; "*.fleet": each name that ends so */
    const char *address; /* "127.0.0.1", "::1" */
    enum name_manner manner;
};

struct name_server;

/* Moves this thread, and those that it starts, into new namespaces. False when the machine does not
 * permit that. */
bool name_server_isolate(void);

/* Replace /etc/resolv.conf and /etc/hosts. Call after the function above. */
void name_server_settings(const char *resolv_conf, const char *hosts);

/* Listens on address:53. rows is borrowed until the stop; a row without a name ends it. A name
 * without a row does not exist (NXDOMAIN). */
struct name_server *name_server_start(const char *address, const struct name_row *rows);
void name_server_stop(struct name_server *server);

/* Queries received so far; each of A and AAAA counts. name: only queries of this name; NULL for
 * all. */
size_t name_server_asked(struct name_server *server, const char *name);
