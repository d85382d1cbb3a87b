#pragma once

#include "core/ref.h"
#include "core/span.h"
#include "fleet/dialects/dialect.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A plain engine, whose cache is a set of the 31 blocks of one small tree:
 *
 *                 0            block n has the parent (n - 1) / 2 and 4 tokens of its own
 *             1       2
 *           3   4   5   6
 *
 * It keeps all messages of its incarnation, so each replay of it is complete. */
enum { fake_blocks = 31, fake_block_tokens = 4, fake_max_messages = 512 };

struct fake_message {
    uint64_t seq;
    uint8_t *bytes; /* owned */
    size_t len;
};

struct fake_engine {
    enum kvb_dialect dialect;
    uint64_t incarnation;
    bool held[fake_blocks];
    struct fake_message messages[fake_max_messages];
    size_t count;
};

/* Another process, with an empty cache and its first sequence number again. */
void fake_engine_restart(struct fake_engine *engine);
void fake_engine_done(struct fake_engine *engine);

/* Stores the block if its parent is held and it is not; evicts it if it is held and no child is;
 * otherwise does nothing.  Returns the message, or NULL. */
const struct fake_message *fake_engine_touch(struct fake_engine *engine, unsigned block);

/* Empties the cache.  NULL: too many messages. */
const struct fake_message *fake_engine_clear(struct fake_engine *engine);

/* The tokens of one block, and the name that every reader computes of it. */
void fake_block_fill(unsigned block, uint32_t out_tokens[fake_block_tokens]);
kvb_tokens_hash fake_block_tokens_hash(unsigned block);
kvb_block_hash fake_block_name(unsigned block);

/* ---- The sockets of a bridge: the functions of ingest/zmq's headers, in memory ----
 *
 * The linker takes these in place of the real ones only while all functions that kvbridge calls
 * are here: a new one there is added here, too.
 *
 * A source reads the engine whose number is the port's last digit: tcp://127.0.0.1:500N. */
enum { fake_sockets = 4 };

enum fake_replay {
    FAKE_REPLAY_HONEST,
    FAKE_REPLAY_MUTE,
    FAKE_REPLAY_EMPTY, /* END at once */
    FAKE_REPLAY_CUT,   /* half of it, then more than the bridge takes */
    FAKE_REPLAY_HOLES, /* each third message is missing */
    FAKE_REPLAY_OTHER, /* of another engine */
    FAKE_REPLAY_RAW,   /* what fake_socket_add_reply() was given */
    FAKE_REPLAY_COUNT
};

void fake_sockets_reset(void (*turn)(void));
void fake_sockets_done(void);
void fake_socket_set_engine(size_t number, const struct fake_engine *engine);
void fake_socket_set_replay(size_t number, enum fake_replay replay);
void fake_socket_send(size_t number, const struct fake_message *message);
/* Frames, [length, bytes...] each, to the SUB, or for the next replay.  Copies them. */
void fake_socket_send_raw(size_t number, const uint8_t *data, size_t size);
void fake_socket_add_reply(size_t number, const uint8_t *data, size_t size);
/* A well-formed message with this number and these bytes. */
void fake_socket_send_payload(size_t number, uint64_t seq, const uint8_t *data, size_t size);
void fake_socket_set_up(size_t number, bool is_up);
bool fake_socket_is_idle(size_t number); /* all that was sent has been received */
