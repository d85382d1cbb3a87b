#pragma once

#include <pthread.h>
#include <stdbool.h>

/* A server that speaks just enough NATS for a test to decide when it answers.
 *
 * It has one subject and one client at a time, whose connections are numbered from 0.  It answers
 * each PING by PONG, unless told otherwise, and forwards nothing.
 *
 * Threads: the functions from the test's thread; one thread of its own. */

enum { nats_stub_connections = 8, nats_stub_bytes = 8192, nats_stub_unlimited = 1 << 30 };

struct nats_stub_connection {
    int fd;
    unsigned pongs_left;
    unsigned pongs_owed;            /* PINGs that were not answered */
    char received[nats_stub_bytes]; /* all of it, and a NUL */
    size_t len;
    size_t parsed;
};

struct nats_stub {
    char url[64];
    int fd;
    pthread_t thread;
    pthread_mutex_t lock; /* for all below */
    struct nats_stub_connection connections[nats_stub_connections];
    unsigned count;
    const char *nonces[nats_stub_connections]; /* to be signed; NULL: none */
    const char *at_unsub;
};

void nats_stub_start(struct nats_stub *stub);
void nats_stub_stop(struct nats_stub *stub);

/* Connection i, which may not exist yet, answers so many PINGs more, unanswered ones first. */
void nats_stub_answer(struct nats_stub *stub, unsigned i, unsigned pongs);

/* Connection i, which does not exist yet, is refused when it does not sign this. */
void nats_stub_demand_signature(struct nats_stub *stub, unsigned i, const char *nonce);

/* What a connection that ends a subscription is sent before the next PONG. */
void nats_stub_send_at_unsub(struct nats_stub *stub, const char *text);

/* How often connection i has received this text; 0 while it does not exist. */
unsigned nats_stub_received(struct nats_stub *stub, unsigned i, const char *text);

void nats_stub_send(struct nats_stub *stub, unsigned i, const char *text);
