#pragma once

#include "stream/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* The connection to one engine, as its stream knows it.
 *
 *     state    up                 lost, or not up
 *     -----    ----------------   -----------------
 *     NEW      UP: KVB_INPUT_UP   -
 *     UP       -                  AWAY: KVB_INPUT_DOWN
 *     AWAY     UP: KVB_INPUT_UP   -
 *
 * A connection that was lost and is up again by the time that the monitor is read is first AWAY,
 * then UP: another process may listen there by now.
 *
 * The monitor is read after a run of batches was received and before they are applied, as it
 * may say that they came from another process.
 *
 * Pure: time is an argument.  Threads: the caller locks. */
enum kvb_connection_state {
    KVB_CONNECTION_NEW,
    KVB_CONNECTION_UP,
    KVB_CONNECTION_AWAY /* was connected, or its list was restored: readers may hold it */
};

struct kvb_connection {
    enum kvb_connection_state state;
    uint64_t away_ns; /* AWAY: since when */
};

/* What the monitor has reported since it was read last. */
struct kvb_connection_update {
    bool was_lost;
    bool is_up;
};

/* The next input for the stream; false: there is none left.  Call it until it returns false,
 * with the same *news: each call takes out of *news what it has returned. */
bool kvb_connection_next(
    struct kvb_connection *connection, struct kvb_connection_update *update, uint64_t now_ns,
    enum kvb_stream_input_kind *out_input);

/* The stream goes on from a checkpoint. */
void kvb_connection_restored(struct kvb_connection *connection, uint64_t now_ns);

static inline bool kvb_connection_is_up(const struct kvb_connection *connection)
{
    return connection->state == KVB_CONNECTION_UP;
}

/* Since when the engine has been unreachable; 0: it is connected, or never was. */
static inline uint64_t kvb_connection_away_ns(const struct kvb_connection *connection)
{
    return connection->state == KVB_CONNECTION_AWAY ? connection->away_ns : 0;
}
