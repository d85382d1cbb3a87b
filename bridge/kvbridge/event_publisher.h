#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/buf.h"
#include "model/router_batch.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* Puts router events on P.kv_events in the configured profile.
 *
 *     json       one message an event; those of the window list on P.kv_window_events, which
 *                readers of the other subject do not receive
 *     protobuf   as many events a message as follow each other in one stream
 *
 * Events of all batches that one read of an engine's socket returns are gathered, then flushed:
 *
 *     add [e17]  add [e18 e19]  add [e20]  flush  -->  one message: e17 e18 e19 e20
 *
 * so a burst costs a message for all of it, and a lone event waits for nothing.
 *
 * Threads: only the thread that made it.
 * Memory:  what waits is bounded by the two ceilings below. */
enum {
    kvb_publisher_message_blocks = 4096, /* of what comes at once; an event counts as one too */
    kvb_publisher_waiting_blocks = 448,  /* of what waits: some 8 KiB */
    kvb_publisher_waiting_messages = 64, /* of JSON */
    kvb_publisher_waiting_bytes = 32 << 10
};

struct kvb_event_publisher {
    struct kvb_bus *bus; /* borrowed */
    enum kvb_profile profile;
    char subject[kvb_subject_bytes];
    char window_subject[kvb_subject_bytes];
    struct kvb_router_batch waiting; /* owned: protobuf's, added and not sent */
    struct kvb_buf buf;              /* owned: the message being made, or JSON's that wait */
    size_t ends[kvb_publisher_waiting_messages]; /* of each of those, in buf */
    size_t end_count;
    bool is_window_waiting; /* those are of the window list: they share a subject */
    uint64_t events;        /* published so far */
    uint64_t messages;
    uint64_t bytes; /* of their payloads */
    uint64_t failures;
};

/* KVB_BAD_INPUT  a name that is no name */
kvb_status kvb_event_publisher_init(
    struct kvb_event_publisher *publisher, struct kvb_bus *bus, enum kvb_profile profile,
    const char *name_space, const char *component);
void kvb_event_publisher_done(struct kvb_event_publisher *publisher);

/* The batch's events have consecutive ids and belong to one epoch.  Waiting events are sent first
 * if these cannot join their message, or if there is no room.
 * On KVB_AGAIN, KVB_IO, KVB_TOO_LARGE some of these or of the waiting events may be lost, and
 * none waits any more. */
kvb_status kvb_event_publisher_add(
    struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch);

/* Sends the waiting events.  Stops at the first message that NATS does not take: KVB_AGAIN, KVB_IO,
 * KVB_TOO_LARGE; the rest is dropped. */
kvb_status kvb_event_publisher_flush(struct kvb_event_publisher *publisher);
