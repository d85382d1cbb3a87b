#pragma once

#include <pthread.h>
#include <stdbool.h>

/* A server that speaks just enough NATS for a test to decide when it answers.
 *
 * It has one subject and one client at a time, whose connections are numbered from 0.  It answers
 * each PING with PONG unless a test limits that, and forwards no messages.
 *
 * Threads: the functions from the test's thread; one thread of its own. */

enum { nats_stub_connections = 8, nats_stub_bytes = 8192, nats_stub_unlimited = 1 << 30 };

struct nats_stub_connection {
    int fd;
    unsigned pongs_left;
    unsigned pongs_owed;            /* PINGs without an answer yet */
    char received[nats_stub_bytes]; /* everything received, NUL-terminated */
    size_t len;
    size_t parsed;
};

struct nats_stub {
    char url[64];
    int fd;
    pthread_t thread;
    pthread_mutex_t lock; /* for all fields below */
    struct nats_stub_connection connections[nats_stub_connections];
    unsigned count;
    const char *nonces[nats_stub_connections]; /* to be signed by the client; NULL: none */
};

void nats_stub_start(struct nats_stub *stub);
void nats_stub_stop(struct nats_stub *stub);

/* Lets connection i answer this many more PINGs; those that wait for an answer come first. The
 * connection need not exist yet. */
void nats_stub_answer(struct nats_stub *stub, unsigned i, unsigned pongs);

/* Refuses connection i, which must not exist yet, unless it signs this nonce. */
void nats_stub_demand_signature(struct nats_stub *stub, unsigned i, const char *nonce);

/* How often connection i has received this text; 0 before it exists. */
unsigned nats_stub_received(struct nats_stub *stub, unsigned i, const char *text);

void nats_stub_send(struct nats_stub *stub, unsigned i, const char *text);
