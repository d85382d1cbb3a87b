#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tracks who is connected to an event socket that listens, from the events of its monitor.
 * Anybody may connect: port scanners, half-open connections, a second engine by mistake.
 *
 *     accepted fd  --- shook hands --->  engine fd  --- left fd --->
 *          |
 *          +--- failed, left fd --->  (was never one)
 *
 * libzmq reports the descriptor when a connection is accepted and when it is lost, but not when
 * the handshake succeeds.  While several are half-way, it is known how many are engines but not
 * which, until a message comes or the others end.  When a connection ends that may have been an
 * engine, it counts as a loss, which costs one request to the engine.
 *
 * Pure.  Threads: the caller locks.  Memory: a byte a descriptor number. */
struct kvb_peers {
    uint8_t *of_fd; /* owned: what each connection is */
    size_t capacity;
    size_t shaking;  /* accepted, and not known to be engines */
    size_t unnamed;  /* how many of those are engines */
    size_t named;    /* connections known to be engines */
    bool has_failed; /* the next to leave has failed its handshake */
    int only;        /* the one named engine; kvb_no_peer when there are none or several */
};

enum { kvb_any_peer = -1, kvb_no_peer = -2, kvb_unknown_peer = -3 };

void kvb_peers_init(struct kvb_peers *peers);
void kvb_peers_done(struct kvb_peers *peers);

void kvb_peers_accepted(struct kvb_peers *peers, int fd);
void kvb_peers_shook_hands(struct kvb_peers *peers);
/* A handshake failed; the connection that leaves next is that one. */
void kvb_peers_failed(struct kvb_peers *peers);
/* True when it was an engine, or may have been. */
bool kvb_peers_left(struct kvb_peers *peers, int fd);
/* A message came on it: only engines send any. */
void kvb_peers_received(struct kvb_peers *peers, int fd);

/* Engines that are connected now. */
size_t kvb_peers_count(const struct kvb_peers *peers);
