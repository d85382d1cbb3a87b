#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/buf.h"
#include "model/router_batch.h"
#include "model/stream.h"

#include <stdint.h>

/* Puts router events on P.kv_events in the configured profile.
 *
 *     json       one message an event
 *     protobuf   as many events a message as fit kvb_publisher_message_blocks
 *
 * Threads: only the thread that made it. */
enum { kvb_publisher_message_blocks = 4096 };

struct kvb_event_publisher {
    struct kvb_bus *bus; /* borrowed */
    enum kvb_profile profile;
    char subject[kvb_subject_bytes];
    struct kvb_buf buf; /* owned: the message being made */
    uint64_t events;    /* published so far */
    uint64_t messages;
    uint64_t failures;
};

/* KVB_BAD_INPUT  a name that is no name */
kvb_status kvb_event_publisher_init(
    struct kvb_event_publisher *publisher, struct kvb_bus *bus, enum kvb_profile profile,
    const char *name_space, const char *component);
void kvb_event_publisher_done(struct kvb_event_publisher *publisher);

/* The batch's events follow each other by id and belong to one epoch.  Stops at
 * the first message that NATS does not take: KVB_AGAIN, KVB_IO, KVB_TOO_LARGE. */
kvb_status kvb_event_publisher_publish(
    struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch);
