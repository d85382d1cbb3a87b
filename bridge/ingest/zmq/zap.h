#pragma once

#include "core/status.h"
#include "ingest/zmq/curve.h"

#include <stddef.h>

/* Decides which engines and readers may connect to a listening socket with CURVE.  For each
 * handshake libzmq sends a request to inproc://zeromq.zap.01 in the socket's context (ZAP, RFC 27
 * of ZeroMQ), and waits for the reply.
 *
 *     domain of the socket = its owner's number  ->  rule  ->  client_keys
 *
 * Without a reply the handshake fails after 2 s.
 *
 * Threads: only the thread that uses the sockets. */
struct kvb_zmq;

/* The rule of the listening sockets of one owner.  A linked list, because there are few. */
struct kvb_zap_rule {
    size_t owner;
    const struct kvb_curve *curve; /* borrowed until the rule is removed */
    struct kvb_zap_rule *next;
};

enum { kvb_zap_domain_bytes = 24 };

void kvb_zap_write_domain(char out_domain[kvb_zap_domain_bytes], size_t owner);

/* Adds a rule, and opens the responder of the owner's context if there is none.  rule is borrowed
 * until it is removed.  KVB_IO: errno says why. */
kvb_status kvb_zap_add(struct kvb_zmq *zmq, struct kvb_zap_rule *rule);
/* A rule that was not added is fine. */
void kvb_zap_remove(struct kvb_zmq *zmq, const struct kvb_zap_rule *rule);
