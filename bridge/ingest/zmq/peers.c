#include "ingest/zmq/peers.h"

#include "core/array.h"

#include <stdlib.h>
#include <string.h>

enum { max_fds = 1 << 20 };

enum peer { peer_none, peer_shaking, peer_engine };

void kvb_peers_init(struct kvb_peers *peers)
{
    *peers = (struct kvb_peers){ .only = kvb_no_peer };
}

void kvb_peers_done(struct kvb_peers *peers)
{
    free(peers->of_fd);
    kvb_peers_init(peers);
}

static enum peer peer_at(const struct kvb_peers *peers, int fd)
{
    return fd >= 0 && (size_t)fd < peers->capacity ? peers->of_fd[fd] : peer_none;
}

static kvb_status reserve_peers(struct kvb_peers *peers, size_t need)
{
    const size_t before = peers->capacity;

    KVB_TRY(kvb_array_reserve(&peers->of_fd, &peers->capacity, need, 1, max_fds));
    memset(peers->of_fd + before, peer_none, peers->capacity - before);
    return KVB_OK;
}

static void name_engine(struct kvb_peers *peers, size_t fd)
{
    peers->of_fd[fd] = peer_engine;
    peers->shaking--;
    peers->named++;
}

static void find_only(struct kvb_peers *peers)
{
    peers->only = kvb_no_peer;
    /* One engine without a descriptor leaves kvb_no_peer: no batch is taken for its own. */
    for (size_t fd = 0; kvb_peers_count(peers) == 1 && fd < peers->capacity; fd++) {
        if (peers->of_fd[fd] == peer_engine) {
            peers->only = (int)fd;
            return;
        }
    }
}

/* Marks all connections in the handshake as engines when as many engines are known to be among
 * them. */
static void settle(struct kvb_peers *peers)
{
    /* One of them may have left, or was never tracked for lack of memory. */
    if (peers->unnamed > peers->shaking) {
        peers->unnamed = peers->shaking;
    }
    if (peers->unnamed > 0 && peers->unnamed == peers->shaking) {
        for (size_t fd = 0; fd < peers->capacity; fd++) {
            if (peers->of_fd[fd] == peer_shaking) {
                name_engine(peers, fd);
            }
        }
        peers->unnamed = 0;
    }
    find_only(peers);
}

void kvb_peers_accepted(struct kvb_peers *peers, int fd)
{
    if (fd < 0 || reserve_peers(peers, (size_t)fd + 1) != KVB_OK) {
        return; /* out of memory: this connection is not tracked */
    }
    (void)kvb_peers_left(peers, fd); /* the end of an earlier connection was not reported */
    peers->of_fd[fd] = peer_shaking;
    peers->shaking++;
}

void kvb_peers_shook_hands(struct kvb_peers *peers)
{
    peers->unnamed++;
    settle(peers);
}

void kvb_peers_failed(struct kvb_peers *peers)
{
    peers->has_failed = true;
}

bool kvb_peers_left(struct kvb_peers *peers, int fd)
{
    const enum peer peer = peer_at(peers, fd);
    const bool has_failed = peers->has_failed;

    /* A failed handshake is reported just before its end, and explains this end alone. */
    peers->has_failed = false;
    if (peer != peer_none) {
        peers->of_fd[fd] = peer_none;
        peers->named -= peer == peer_engine;
        peers->shaking -= peer == peer_shaking;
    }
    /* It may have been one of the engines whose descriptors are not known. */
    const bool is_doubtful = peer != peer_engine && !has_failed && peers->unnamed > 0;
    settle(peers);
    return peer == peer_engine || is_doubtful;
}

void kvb_peers_received(struct kvb_peers *peers, int fd)
{
    /* A message is proof: none comes before the handshake is over. */
    if (peer_at(peers, fd) == peer_shaking && peers->unnamed > 0) {
        name_engine(peers, (size_t)fd);
        peers->unnamed--;
        settle(peers);
    }
}

size_t kvb_peers_count(const struct kvb_peers *peers)
{
    return peers->named + peers->unnamed;
}
