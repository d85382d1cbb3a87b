#pragma once

#include "core/status.h"
#include "parts/script.h"

#include <stdbool.h>
#include <stdint.h>

/* A reader of a bridge's republished events that counts, as cheaply as possible: a SUB socket, and
 * the payloads searched for the names of events and of their hashes.
 *
 * What a bridge republishes of a script does not have the script's batches, so their number is
 * taken from what was stored since the last Cleared, with which each lap of a script begins:
 *
 *     Cleared  blocks ...  Cleared  blocks ...
 *     lap 1                lap 2
 *
 * Threads: only the thread that uses it. */
struct republished {
    void *zmq_context; /* owned, like the socket: engines' threads have enough to do */
    void *socket;
    uint64_t next_number; /* 0: whatever comes */
    uint64_t jumps;       /* numbers that were not the next */
    uint64_t laps;        /* Cleared so far */
    uint64_t blocks;      /* stored since the last one */
    uint64_t bytes;       /* of payloads */
};

/* Undone by republished_close(), which also takes {0}.  KVB_IO, KVB_NO_MEMORY */
kvb_status republished_open(const char *events, struct republished *out_reader);
void republished_close(struct republished *reader);

/* Waits for a batch, at most for some 20 ms, and counts all that are there.
 * KVB_AGAIN  nothing came
 * KVB_IO     a message that is none of the contract */
kvb_status republished_read(struct republished *reader);

/* Batches of the script that have arrived, in all laps. */
uint64_t republished_position(const struct republished *reader, const struct script *script);

/* Requests everything, as a new reader does, and returns at the end mark, when all is announced.
 * KVB_AGAIN: no end mark came; KVB_IO */
kvb_status republished_ask_for_all(const struct republished *reader, const char *replay);
