#pragma once

#include "core/status.h"
#include "parts/script.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The engines' side: PUB sockets as vLLM has them (topic, number, batch), and a thread
 * that sends as fast as its batches arrive.
 *
 *     blaster's thread --> PUB --> the relay --> nats-server --> reader
 *            ^                                                     |
 *            +----------- arrived, at most `window` behind --------+
 *
 * Why a window: PUB drops silently above its high-water mark, so an engine without a limit
 * measures how fast a relay loses.  With a bounded number of batches under way nothing is
 * dropped (the socket has no high-water mark of its own), every program stays busy, and the
 * rate is the highest at which all batches arrive, found in a single run. */

/* XPUB is PUB on the wire; it also reports subscriptions, so that number 0 is sent when
 * somebody has subscribed and is not lost.  Undone by engine_close(). */
struct engine {
    void *socket; /* owned */
    uint64_t next_seq;
    size_t next_batch; /* of the script */
    char endpoint[64]; /* tcp://127.0.0.1:PORT */
};

/* On any port of 127.0.0.1, or on the one after that of `before` (NULL: any).  KVB_IO: the port is
 * taken, for one */
kvb_status engine_open(void *zmq_context, const struct engine *before, struct engine *out_engine);
void engine_close(struct engine *engine);

/* Returns when a relay has subscribed; KVB_AGAIN after timeout_ms. */
kvb_status engine_wait(struct engine *engine, int timeout_ms);

enum { blast_ring = 1 << 16 }; /* more than any window */

struct blast {
    struct engine *engines; /* borrowed; they send in turn */
    size_t engine_count;
    const struct script *script; /* borrowed */
    uint64_t window;             /* batches under way, at most */
    uint64_t batches_a_second;   /* 0: as fast as the window allows */
    uint64_t max_kept_batches;   /* 0: until the time is over */
    uint64_t duration_ns;

    uint64_t *sent_ns; /* owned; of batch i at i % blast_ring; read before i + window is sent */
    uint64_t began_ns; /* the thread's; to be read after blast_end() */
    size_t turn;
    pthread_t thread;
    sem_t has_room;
    _Atomic uint64_t sent;
    _Atomic uint64_t arrived;
    _Atomic uint64_t wanted; /* the blaster waits for so many to arrive; 0: it does not */
    _Atomic bool is_over;
};

/* Starts the thread; the fields above sent_ns must be set. Call blast_end() afterwards.
 * KVB_NO_MEMORY, KVB_IO */
kvb_status blast_begin(struct blast *blast);

/* Only from the reader's thread. */
void blast_note_arrived(struct blast *blast, uint64_t batches);

/* Lets the thread end, however much has arrived. */
void blast_end(struct blast *blast);
