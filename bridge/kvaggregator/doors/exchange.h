#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "wire/gateway/body_scan.h"
#include "wire/gateway/messages.h"
#include "wire/gateway/usage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One HTTP request that a gateway asks about: Envoy's messages in, answers out.  No socket, no
 * clock, no index.
 *
 *     messages --> take() --> events: a pick is due, a report is due, it has ended
 *                  picked() or refused() <-- whoever picks
 *                  next() --> answers, until there are no more
 *
 * What a request goes through, by request_body_mode.  "headers", "body" are what was answered:
 *
 *                    duplex              BUFFERED            STREAMED, NONE, GRPC; no body
 *     NEW            |                   | headers: empty    |
 *     GATHER         | chunks            | the body          |
 *       |            v                   v                   v
 *     PICK           the pick is due: at the end of the body, of this one message, at once
 *       |            |                   |                   |
 *       |            headers: the pick   body: the pick      headers: the pick
 *       |            body: the bytes
 *       |            too large: at once, and then
 *     PASS           each chunk as it comes
 *       v
 *     DONE           the request is answered as far as it came; what follows is answered at once
 *
 *     WATCH          observability_mode: nothing is answered
 *     OVER           an error was answered, or the stream is ended: nothing follows
 *
 * Envoy waits without a limit for what a picker owes it, so nothing is left unanswered, nothing
 * comes twice, and a stream is never ended before its request is answered.
 *
 * Threads: the caller locks.
 * Memory:  the messages with the body's chunks until they are sent back; max_body_bytes of bodies
 *          and kvb_max_gateway_chunks messages. */

enum kvb_exchange_state {
    KVB_EXCHANGE_NEW,
    KVB_EXCHANGE_GATHER,
    KVB_EXCHANGE_PICK,
    KVB_EXCHANGE_PASS,
    KVB_EXCHANGE_DONE,
    KVB_EXCHANGE_WATCH,
    KVB_EXCHANGE_OVER
};

/* What a message was the reason of; the caller takes and clears them. */
enum kvb_exchange_event {
    KVB_EXCHANGE_WANTS_PICK = 1,
    KVB_EXCHANGE_LOST_PICK = 2, /* it is not wanted any more */
    KVB_EXCHANGE_FIRST_TOKEN = 4,
    KVB_EXCHANGE_FINISHED = 8, /* the books are closed; cached tokens: has_cached */
    KVB_EXCHANGE_MOVED = 16,   /* `served` is not the pick */
    KVB_EXCHANGE_ENDS = 32,    /* the stream may be ended, with status 0, when all is sent */
    KVB_EXCHANGE_AFTER_END = 64,
    KVB_EXCHANGE_BROKEN = 128 /* not such messages: the stream cannot go on */
};

/* By the end of the path. */
enum kvb_exchange_path { KVB_PATH_OTHER, KVB_PATH_CHAT, KVB_PATH_COMPLETIONS, KVB_PATH_RESPONSES };

struct kvb_exchange_options {
    enum kvb_body_mode assume; /* the body's mode where Envoy says none */
    bool skips_response;
    const char *affinity_header; /* borrowed; "": none */
    size_t max_body_bytes;
};

struct kvb_exchange_chunk {
    struct kvb_buf message; /* owned; the body lies in it */
    kvb_span body;
};

enum { kvb_exchange_endpoints_bytes = 512, kvb_exchange_id_bytes = 64 };

/* Starts as {.options = ...}.  Read-only for the caller, except `events`. */
struct kvb_exchange {
    const struct kvb_exchange_options *options; /* borrowed */
    enum kvb_exchange_state state;
    unsigned events;
    enum kvb_body_mode request_mode, response_mode;

    /* of the request */
    char request_id[kvb_exchange_id_bytes + 1]; /* "": none that can be used */
    enum kvb_exchange_path path;
    uint64_t affinity; /* a hash of the session's header; 0: none */
    bool has_hint;
    uint64_t *hint; /* owned; sorted hashes of endpoints */
    size_t hint_count;
    const char *by_load; /* why the pick is by load; static; NULL: the body decides */
    bool is_passed_on;   /* the pick did not wait for the whole body */
    struct kvb_body_scan scan;
    size_t body_bytes;
    bool has_body_end;
    bool has_trailers;

    /* chunks to be sent back, of the request or the response */
    struct kvb_exchange_chunk *chunks; /* owned */
    size_t chunk_count, chunk_capacity;
    size_t chunk_at, byte_at; /* what is sent next */
    enum kvb_ext_proc_part echoes;
    bool is_end_due; /* the last of them ends the body */

    /* answers that are due, in this order before and after the chunks */
    struct kvb_buf answer; /* of the pick, or the error */
    bool has_answer;
    size_t owed[KVB_PART_COUNT]; /* empty answers */

    /* of the response */
    char picked[kvb_exchange_endpoints_bytes]; /* the first endpoint of the pick */
    char served[kvb_exchange_endpoints_bytes]; /* "": not said */
    bool is_booked, had_first_token, is_finished, has_encoding, has_response_end;
    bool has_response_headers;
    struct kvb_usage_finder usage;
    bool has_cached;
    uint64_t cached_tokens;
};

void kvb_exchange_done(struct kvb_exchange *exchange);

/* Takes one message; *message is taken, and {0} afterwards, if it has bytes that go back.
 * is_crowded: nothing more should be kept. */
void kvb_exchange_take(struct kvb_exchange *exchange, struct kvb_buf *message, bool is_crowded);

/* The pick, which becomes the answer; pick->answers is set here.  Nothing changes where it is not
 * wanted any more.  KVB_NO_MEMORY, KVB_TOO_LARGE: the stream cannot go on. */
kvb_status kvb_exchange_picked(struct kvb_exchange *exchange, struct kvb_gateway_pick *pick);

/* An error is the answer: an HTTP status and why. */
kvb_status kvb_exchange_refused(
    struct kvb_exchange *exchange, unsigned http_status, const char *reason, const char *message);

/* The client is gone, or the stream ended: closes the books where nothing else will. */
void kvb_exchange_left(struct kvb_exchange *exchange);

/* The answers to a response in the middle can be left out from here on: ends the stream if it can.
 */
void kvb_exchange_drain(struct kvb_exchange *exchange);

/* An answer: a head, and bytes that follow it. */
struct kvb_exchange_answer {
    uint8_t head[kvb_ext_proc_echo_head_bytes];
    size_t head_len;
    kvb_span bytes;         /* static, in `memory`, or in that of a later answer */
    struct kvb_buf *memory; /* to be taken by who sends the bytes; NULL: nothing */
    bool is_copied;         /* the bytes are to be copied, and `memory` is to be freed */
};

/* False: there is none. */
bool kvb_exchange_next(struct kvb_exchange *exchange, struct kvb_exchange_answer *out_answer);

/* Copies a part of the body, which must have come.  KVB_NO_MEMORY, KVB_TOO_LARGE */
kvb_status
kvb_exchange_read(const struct kvb_exchange *exchange, size_t at, size_t len, struct kvb_buf *out);
