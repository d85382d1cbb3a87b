#pragma once

#include "bus/bus.h"
#include "bus/contract.h"
#include "core/status.h"
#include "wire/router/bridge_status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rivals: other bridges that publish a stream of this one, which is a mistake.
 *
 *     P.bridge_streams --> names one of our own streams? --> rival: heard first, heard newest
 *                               | no: nothing                   |
 *                                                               v
 *     kvb_rival_table_next()  <--  FOUND: heard for 5 s   GONE: not heard for 10 s after that
 *
 * A predecessor that still ends while its successor begins is not heard for 5 s, so it is none.
 *
 * Threads: receive() on nats.c's; hear() any thread; the rest on the owner's.
 * Memory:  16 bytes for each own stream, and some 20 KiB. */

struct kvb_bridge;

enum { kvb_rivals_most = 16 }; /* at a time; further ones wait until one is forgotten */

struct kvb_rival {
    char bridge_id[kvb_bridge_id_bytes + 1];
    struct kvb_bridge_stream stream; /* the first that both publish in its newest message ... */
    size_t streams;                  /* ... and how many there are in it */
    uint64_t first_ns;
    uint64_t newest_ns;
    bool is_found;
};

struct kvb_rival_table {
    char bridge_id[kvb_bridge_id_bytes + 1]; /* ours */
    pthread_mutex_t lock;                    /* protects all below */
    struct kvb_bridge_stream *own;           /* owned, sorted */
    size_t own_count;
    size_t own_capacity;
    struct kvb_rival rivals[kvb_rivals_most];
    size_t count;
    struct kvb_bridge_streams heard; /* scratch space for decoding */
    _Atomic uint64_t refused;        /* messages that are none, and rivals without a place */
};

enum kvb_rival_change { KVB_RIVAL_FOUND, KVB_RIVAL_GONE };

void kvb_rival_table_init(struct kvb_rival_table *table, const char *bridge_id);
void kvb_rival_table_done(struct kvb_rival_table *table);

/* Replaces the own streams.  fill() returns stream number `at` of `count`.  On KVB_NO_MEMORY,
 * KVB_TOO_LARGE they stay. */
typedef struct kvb_bridge_stream (*kvb_rival_own_fill)(const void *context, size_t at);
kvb_status kvb_rival_table_set_own(
    struct kvb_rival_table *table, kvb_rival_own_fill fill, const void *context, size_t count);

/* The own streams; borrowed until they are replaced. */
const struct kvb_bridge_stream *
kvb_rival_table_own(const struct kvb_rival_table *table, size_t *out_count);

/* A kvb_bus_handler; context is the table. */
void kvb_rival_table_receive(void *context, const struct kvb_bus_message *message);

/* The same with the time. */
void kvb_rival_table_hear(struct kvb_rival_table *table, kvb_span json, uint64_t now_ns);

/* The next change that is to be reported.  False: there is none. */
bool kvb_rival_table_next(
    struct kvb_rival_table *table, uint64_t now_ns, enum kvb_rival_change *out_change,
    struct kvb_rival *out_rival);

/* How many there are; out_found: of these, how many are found and not gone. */
size_t kvb_rival_table_count(struct kvb_rival_table *table, size_t *out_found);

/* ---- Of a running bridge ---- */

struct bridge_rivals {
    struct kvb_rival_table table;
    struct kvb_bus_subscription *incoming; /* owned */
    char subject[kvb_subject_bytes];
    uint64_t next_look_ns;
    uint64_t listed_ns;      /* when the own streams were published; 0: at the next look */
    uint64_t listed_changes; /* of membership, at that time */
};

/* After the ranks.  Its subscription and its table are closed with the bridge. */
kvb_status kvb_bridge_open_rivals(struct kvb_bridge *bridge);
/* Called in every turn: logs rivals, and publishes which streams this bridge has. */
void kvb_bridge_watch_rivals(struct kvb_bridge *bridge, uint64_t now_ns);
/* NATS is connected: what was published before may be lost. */
void kvb_bridge_list_streams_soon(struct kvb_bridge *bridge);
