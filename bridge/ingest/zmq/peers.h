#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tracks who is connected to an event socket that listens, from the events of its monitor.
 * Anybody may connect: port scanners, half-open connections, a second engine by mistake.
 *
 *     accepted fd  --- handshake ---->  engine fd  --- left fd --->
 *          |
 *          +--- failed, left fd --->  (was no engine)
 *
 * libzmq reports the descriptor when a connection is accepted and when it is lost, but not when
 * its handshake succeeds.  While several connections are in the handshake, only the number of
 * engines among them is known.  Which ones they are becomes known when a message arrives or the
 * others end.  The end of a connection that may have been an engine counts as a loss, which costs
 * one request to the engine.
 *
 * Pure.  Threads: the caller locks.  Memory: one byte for each descriptor number. */
struct kvb_peers {
    uint8_t *of_fd; /* owned; kind of peer by descriptor */
    size_t capacity;
    size_t shaking;  /* accepted, not known to be engines */
    size_t unnamed;  /* the number of engines among those */
    size_t named;    /* connections known to be engines */
    bool has_failed; /* the next that leaves has failed its handshake */
    int only;        /* the only known engine; kvb_no_peer: none or several */
};

enum { kvb_any_peer = -1, kvb_no_peer = -2, kvb_unknown_peer = -3 };

void kvb_peers_init(struct kvb_peers *peers);
void kvb_peers_done(struct kvb_peers *peers);

void kvb_peers_accepted(struct kvb_peers *peers, int fd);
void kvb_peers_shook_hands(struct kvb_peers *peers);
/* A handshake failed.  The next connection that leaves is the failed one. */
void kvb_peers_failed(struct kvb_peers *peers);
/* True when it was an engine, or may have been. */
bool kvb_peers_left(struct kvb_peers *peers, int fd);
/* A message arrived on this connection, so its peer is an engine. */
void kvb_peers_received(struct kvb_peers *peers, int fd);

/* The number of engines that are connected now. */
size_t kvb_peers_count(const struct kvb_peers *peers);
