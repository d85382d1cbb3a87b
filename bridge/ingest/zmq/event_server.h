#pragma once

#include "core/span.h"
#include "core/status.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/poller.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The sockets on which an engine's events are republished, as vLLM has them:
 *
 *     XPUB    topic | seq, 8 bytes | payload                         to all that subscribe
 *     ROUTER  identity | "" | seq, 8 bytes                           a request, from a DEALER
 *             identity | "" | [topic |] seq, 8 bytes | payload       a reply
 *             identity | "" | ["" |] ff*8 | ""                       its end
 *
 * Both listen; nothing here waits.  A reader that subscribes is reported, also when another one has
 * the same subscription.  Readers that do not read lose batches of the XPUB beyond its high-water
 * mark, as from an engine; a reply that finds no room is the caller's to send again.
 *
 * No heartbeats of ZMQ: some readers' libraries do not know them.  TCP finds dead readers.
 *
 * Threads: only the thread that made it. */
struct kvb_event_server;

enum { kvb_event_topic_bytes = 512 };

enum kvb_event_server_layout {
    KVB_EVENT_REPLY_TOPIC, /* vLLM from 0.26 on */
    KVB_EVENT_REPLY_PLAIN  /* before; SGLang */
};

struct kvb_event_server_options {
    const char *events; /* address to listen at */
    const char *replay; /* "": none */
    const char *topic;
    enum kvb_event_server_layout layout;
    struct kvb_poller *poller; /* borrowed */
    size_t owner;              /* of the poller: subscriptions and requests are ready_live */
};

/* KVB_AGAIN      an address is in use, or not of this host: detail says which; try again later
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_event_server_open(
    struct kvb_zmq *zmq, const struct kvb_event_server_options *options,
    struct kvb_event_server **out_server, struct kvb_detail *detail);

/* What was published last may still be on its way for linger_ms.  NULL is fine. */
void kvb_event_server_close(struct kvb_event_server *server, int linger_ms);

/* Takes what readers have sent.  False: there is no more; call it again when the poller reports
 * the owner. */
enum kvb_event_server_input { KVB_EVENT_SUBSCRIBED, KVB_EVENT_REQUEST, KVB_EVENT_IGNORED };

struct kvb_event_server_received {
    enum kvb_event_server_input kind;
    kvb_span identity; /* KVB_EVENT_REQUEST; borrowed until the next call */
    uint64_t seq;      /* the same */
};

bool kvb_event_server_receive(
    struct kvb_event_server *server, struct kvb_event_server_received *out_received);

/* To all that subscribe.  KVB_IO */
kvb_status
kvb_event_server_publish(struct kvb_event_server *server, uint64_t seq, kvb_span payload);

/* A reply to one reader, and the end of its replies.
 * KVB_AGAIN       it takes no more for now
 * KVB_NOT_FOUND   it is gone
 * KVB_IO */
kvb_status kvb_event_server_reply(
    struct kvb_event_server *server, kvb_span identity, uint64_t seq, kvb_span payload);
kvb_status kvb_event_server_end(struct kvb_event_server *server, kvb_span identity);
