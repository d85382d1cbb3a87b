#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/buf.h"
#include "core/limits.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stdint.h>

struct kvb_event_log;

/* Publishes router events in the configured formats.
 *
 *     json       P.kv_events: one message an event; those of the window list on
 *                P.kv_window_events, which readers of the other subject do not receive
 *     protobuf   P.kv_events_pb: as many events a message as follow each other in one stream
 *
 * Events of all batches that one read of an engine's socket returns are gathered, then sent:
 *
 *     add [e17]  add [e18 e19]  add [e20]  send  -->  one message: e17 e18 e19 e20
 *
 * so a burst costs a message for all of it, and a lone event waits for nothing.  JSON's wait as
 * bytes; protobuf's wait in the log of their stream, which holds them anyway.
 *
 * Threads: only the thread that made it.
 * Memory:  JSON's that wait are bounded by the ceilings below. */
enum {
    kvb_publisher_message_blocks = 4096, /* of what comes at once; an event counts as one too */
    kvb_publisher_waiting_blocks = 448,  /* of what waits: some 8 KiB */
    kvb_publisher_waiting_messages = 64, /* of JSON */
    kvb_publisher_waiting_bytes = 32 << 10,
    /* A log of so many blocks still holds what waits when a step has added a slice to it. */
    kvb_publisher_log_blocks =
        kvb_publisher_waiting_blocks + kvb_stream_slice_work + kvb_max_event_blocks
};

/* Events with consecutive ids of one stream and epoch, as one batch after the other added them to
 * the stream's log. */
struct kvb_waiting_events {
    const struct kvb_event_log *log; /* borrowed */
    uint64_t number;                 /* of the first of them in the log */
    size_t count;
    size_t weight; /* events and blocks */
    uint64_t next_id;
    uint64_t worker_id;
    uint32_t dp_rank;
    kvb_epoch epoch;
};

struct kvb_event_publisher {
    struct kvb_bus *bus; /* borrowed */
    unsigned formats;
    unsigned json_lists; /* what JSON has; protobuf has all */
    char json_subject[kvb_subject_bytes];
    char window_subject[kvb_subject_bytes];
    char protobuf_subject[kvb_subject_bytes];
    struct kvb_waiting_events waiting;           /* protobuf's, added and not sent */
    struct kvb_buf message;                      /* owned: of protobuf, being made */
    struct kvb_buf texts;                        /* owned: JSON's that wait */
    size_t ends[kvb_publisher_waiting_messages]; /* of each of those, in texts */
    size_t end_count;
    bool is_window_waiting; /* those are of the window list: they share a subject */
    uint64_t events;        /* published so far, in one format or both */
    uint64_t messages;
    uint64_t bytes; /* of their payloads */
    uint64_t failures;
};

/* formats  as of publish.formats; json_lists  the lists of JSON, as kvb_json_lists().
 * KVB_BAD_INPUT  a name that is no name */
kvb_status kvb_event_publisher_init(
    struct kvb_event_publisher *publisher, struct kvb_bus *bus, unsigned formats,
    unsigned json_lists, const char *name_space, const char *component);
void kvb_event_publisher_done(struct kvb_event_publisher *publisher);

/* The batch's events have consecutive ids and belong to one epoch.  Waiting events are sent first
 * if these cannot join their message, or if there is no room.
 * log  their stream's, whose newest events they are.  It must live until they are sent.  NULL, or a
 *      log of fewer than kvb_publisher_log_blocks, which may drop them before: they do not wait
 * On KVB_AGAIN, KVB_IO, KVB_TOO_LARGE some of these or of the waiting events may be lost, and
 * none waits any more. */
kvb_status kvb_event_publisher_add(
    struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch,
    const struct kvb_event_log *log);

/* Sends the waiting events.  Stops at the first message that NATS does not take: KVB_AGAIN, KVB_IO,
 * KVB_TOO_LARGE; the rest is dropped. */
kvb_status kvb_event_publisher_send(struct kvb_event_publisher *publisher);
