#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A NATS subscriber that counts, as cheaply as possible: a socket, and the protocol's text
 * read in place.  A client library here would cost more than some relays do.
 *
 * It counts events, of which each batch of a script makes one:
 *
 *     0x0a  protobuf    as many as its column `forms` has entries
 *     {     JSON        one
 *     else  msgpack     one: a batch passed through
 *
 * and compares the event ids of the first two with what must come next.
 *
 * Threads: only the thread that made it. */
struct reader {
    int fd;
    struct kvb_buf buf; /* owned; [ begin .. len ) is not yet read */
    size_t begin;
    uint64_t events;
    uint64_t bytes;        /* of payloads */
    uint64_t next_id;      /* 0: whatever comes */
    uint64_t jumps;        /* ids that were not the next */
    bool has_many_streams; /* ids are of several: not compared */
};

/* Connects, subscribes, and returns when the server has taken note.
 * KVB_IO, KVB_NO_MEMORY */
kvb_status reader_open(struct reader *out_reader, uint16_t port, const char *subject);

/* {.fd = -1} is fine. */
void reader_close(struct reader *reader);

/* Waits for bytes, at most for some 20 ms, and counts what is whole of them.
 * KVB_AGAIN  nothing came
 * KVB_IO     the server hung up or complained */
kvb_status reader_read(struct reader *reader, uint64_t *out_events);
