#pragma once

#include "core/status.h"
#include "model/load.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why no events of an engine arrive, from what its sockets, its replay and its metrics page show.
 *
 *     seen                                          then                       reason
 *     -------------------------------------------   ------------------------   --------------
 *     a batch came live                             nothing is wrong
 *     no connection in 5 s, and never one           nobody listens there;      (connecting)
 *                                                   bound: nobody connects
 *     messages that are no numbered batches         frames without a number    no_number
 *     messages of other topics alone                another topic              other_topic
 *     the page: enable_prefix_caching="False"       no cache, no events        caching_off
 *     live batches, and a replay without them       another engine's replay    (no_base)
 *     the page counts looked-up tokens, for 5 s     the publisher is not fed   not_fed
 *     blocks that came by replay alone              they wait for a live one   (no_base)
 *     nothing                                       the engine is idle         (no_base)
 *
 * The first row that holds is the cause.  A reason in brackets is that of the stream without it.
 *
 * Pure: no clock, no I/O.
 * Threads: the caller locks. */

enum kvb_silence {
    KVB_SILENCE_NONE,
    KVB_SILENCE_NOBODY_LISTENS,
    KVB_SILENCE_NOBODY_CONNECTS,
    KVB_SILENCE_NO_NUMBER,
    KVB_SILENCE_OTHER_TOPIC,
    KVB_SILENCE_CACHING_OFF,
    KVB_SILENCE_FOREIGN_REPLAY,
    KVB_SILENCE_NOT_FED,
    KVB_SILENCE_UNPROVEN,
    KVB_SILENCE_IDLE,
    KVB_SILENCE_COUNT
};

/* What the engine's metrics page has shown while no batch came. */
struct kvb_silence_page {
    bool is_read;
    bool is_caching_off;
    uint64_t batches;  /* applied so far, at the reading from which is counted */
    uint64_t tokens;   /* at that reading: looked up and not found, or cached */
    uint64_t grown;    /* since then */
    uint64_t grown_ns; /* the reading that first showed so many that some fill a block; 0: none */
};

/* Takes a reading.  batches: those that the stream has applied, which begin the count anew.
 * block_size in tokens. */
void kvb_silence_read_page(
    struct kvb_silence_page *page, const struct kvb_cache_signs *signs, uint64_t batches,
    uint32_t block_size, uint64_t now_ns);

struct kvb_silence_facts {
    bool is_bound; /* our socket listens, and the engine connects */
    bool is_connected;
    bool was_connected;     /* since the socket was opened */
    uint64_t waited_ns;     /* for a connection, or since the connection */
    bool has_live;          /* a batch of this list came live */
    bool has_list;          /* it has batches */
    bool is_unproven;       /* UNVERIFIED(no_base): only a live batch is missing */
    bool is_replay_foreign; /* kvb_stream_is_replay_foreign() */
    uint64_t unnumbered;    /* messages that are no numbered batches */
    uint64_t other_topics;  /* messages of other topics */
    struct kvb_silence_page page;
};

enum kvb_silence kvb_silence_find(const struct kvb_silence_facts *facts, uint64_t now_ns);

/* The reason of the stream; NONE: it keeps its own. */
enum kvb_stream_reason kvb_silence_reason(enum kvb_silence silence);

/* True: an operator must act, so the log says it. */
bool kvb_silence_is_fault(enum kvb_silence silence);

/* What is named to people; borrowed. */
struct kvb_silence_names {
    const char *events;
    const char *replay;
    const char *topic;       /* the configured one */
    const char *other_topic; /* of the newest message of another topic, printable */
    size_t frames;           /* of the newest message that is no batch */
    uint64_t tokens;         /* kvb_silence_page.grown */
};

/* A sentence with the address at fault and a remedy; "" for NONE. */
void kvb_silence_explain(
    enum kvb_silence silence, const struct kvb_silence_names *names, struct kvb_detail *out);
