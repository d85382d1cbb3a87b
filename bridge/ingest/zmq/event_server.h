#pragma once

#include "core/span.h"
#include "core/status.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/poller.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The sockets on which an engine's events are republished, in vLLM's format:
 *
 *     XPUB    topic | seq, 8 bytes | payload                         to all subscribers
 *     ROUTER  identity | "" | seq, 8 bytes                           a request, from a DEALER
 *             identity | "" | topic | seq, 8 bytes | payload         a reply
 *             identity | "" | "" | ff*8 | ""                         the end of the replies
 *
 * Both sockets listen; no call waits.  Each new subscription is reported, even when another reader
 * has the same one.  A reader that is too slow loses batches of the XPUB above its high-water mark,
 * as with an engine.  When a reply cannot be queued, the caller sends it again.
 *
 * Anybody can connect who reaches the address.
 *
 * ZMQ heartbeats are off, because some readers' libraries do not support them.  Instead the kernel
 * ends the TCP connection of a reader that has acknowledged or taken nothing for stalled_ms
 * although something waits for it (TCP_USER_TIMEOUT): its process hangs, or its host is gone.  A
 * reader that reads on connects again, and asks for what it missed.
 *
 * Threads: only the thread that made it.
 * Memory:  of batches that wait for subscribers, at most 100,000, and over TCP at most those of
 *          about stalled_ms, while none of them takes a little now and then.  A batch is kept once,
 *          however many it waits for, and some 200 bytes for each of these.  Of replies that wait
 *          for a reader, 256.  A reader may bring 32 KiB of subscriptions, and 1 KiB a second from
 *          then on. */
struct kvb_event_server;

enum { kvb_event_topic_bytes = 512 };

struct kvb_event_server_options {
    const char *events; /* address to listen at */
    const char *replay; /* "": none */
    const char *topic;
    int stalled_ms;            /* 0: the kernel's own limit, which is some 15 minutes */
    struct kvb_poller *poller; /* borrowed */
    size_t owner;              /* number in the poller; input is kvb_ready_live */
};

/* KVB_AGAIN      the socket cannot listen at an address: detail says why; try again later
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_event_server_open(
    struct kvb_zmq *zmq, const struct kvb_event_server_options *options,
    struct kvb_event_server **out_server, struct kvb_detail *detail);

/* Batches and replies that are not sent yet are sent for up to linger_ms, in the background.  NULL
 * is fine. */
void kvb_event_server_close(struct kvb_event_server *server, int linger_ms);

/* How many readers were disconnected since the last call, because they sent more
 * than readers do (ingest/zmq/reader_watch.h). */
uint64_t kvb_event_server_take_ended(struct kvb_event_server *server);

enum kvb_event_server_input { KVB_EVENT_SUBSCRIBED, KVB_EVENT_REQUEST, KVB_EVENT_IGNORED };

struct kvb_event_server_received {
    enum kvb_event_server_input kind;
    kvb_span identity; /* of KVB_EVENT_REQUEST; borrowed until the next call */
    uint64_t seq;      /* of KVB_EVENT_REQUEST */
};

/* Receives one message of a reader.  False: there is none; call it again when the poller reports
 * the owner. */
bool kvb_event_server_receive(
    struct kvb_event_server *server, struct kvb_event_server_received *out_received);

/* Sends a batch to all subscribers.  KVB_IO */
kvb_status
kvb_event_server_publish(struct kvb_event_server *server, uint64_t seq, kvb_span payload);

/* Sends a reply to one reader, or the end of its replies.
 * KVB_AGAIN       the reader's queue is full: send it again later
 * KVB_NOT_FOUND   the reader has disconnected
 * KVB_IO */
kvb_status kvb_event_server_reply(
    struct kvb_event_server *server, kvb_span identity, uint64_t seq, kvb_span payload);
kvb_status kvb_event_server_end(struct kvb_event_server *server, kvb_span identity);
