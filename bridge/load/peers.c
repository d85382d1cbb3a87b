#include "load/peers.h"

#include "core/clock.h"

#include <string.h>

static const uint64_t silence_ns = 3 * KVB_NS_PER_S;
static const uint64_t listen_ns = 3 * KVB_NS_PER_S / 2;

static bool is_same_sender(const struct kvb_books_sender *one, const struct kvb_books_sender *other)
{
    return one->start == other->start && strcmp(one->id, other->id) == 0;
}

static bool is_peer_alive(uint64_t seen_ns, uint64_t now_ns)
{
    return now_ns < seen_ns + silence_ns;
}

enum kvb_peer_message
kvb_peers_classify(struct kvb_peers *peers, const struct kvb_books_sender *sender, uint64_t now_ns)
{
    if (strcmp(sender->id, peers->self.id) != 0) {
        return KVB_PEER_OTHER;
    }
    if (sender->start == peers->self.start) {
        return KVB_PEER_SELF;
    }
    /* Another process was given the same id. */
    peers->same_id_ns = now_ns;
    return KVB_PEER_SAME_ID;
}

static struct kvb_peer *find_peer(struct kvb_peers *peers, const struct kvb_books_sender *sender)
{
    for (size_t i = 0; i < peers->count; i++) {
        if (is_same_sender(&peers->rows[i].sender, sender)) {
            return &peers->rows[i];
        }
    }
    return NULL;
}

/* NULL: there are too many. */
static struct kvb_peer *
get_peer(struct kvb_peers *peers, const struct kvb_books_sender *sender, uint64_t now_ns)
{
    struct kvb_peer *peer = find_peer(peers, sender);

    /* Where the table is full, those that have fallen silent make room. */
    if (!peer && peers->count == kvb_max_aggregators) {
        kvb_peers_expire(peers, now_ns);
    }
    if (!peer && peers->count == kvb_max_aggregators) {
        peers->refused++;
        return NULL;
    }
    if (!peer) {
        peer = &peers->rows[peers->count++];
        *peer = (struct kvb_peer){ .sender = *sender };
    }
    peer->seen_ns = now_ns;
    return peer;
}

static void remove_peer(struct kvb_peers *peers, struct kvb_peer *peer)
{
    *peer = peers->rows[--peers->count];
}

enum kvb_peer_message kvb_peers_take_status(
    struct kvb_peers *peers, const struct kvb_aggregator_status *status, uint64_t now_ns)
{
    const enum kvb_peer_message whose = kvb_peers_classify(peers, &status->sender, now_ns);

    if (whose == KVB_PEER_SELF) {
        return whose;
    }
    struct kvb_peer *peer = get_peer(peers, &status->sender, now_ns);
    if (!peer) {
        return KVB_PEER_REFUSED;
    }
    if (status->is_bye) {
        remove_peer(peers, peer);
        return whose;
    }
    peer->is_ready = status->is_ready;
    return whose;
}

bool kvb_peers_take_sequence(
    struct kvb_peers *peers, const struct kvb_books_sender *sender, uint64_t sequence,
    uint64_t now_ns)
{
    struct kvb_peer *peer = get_peer(peers, sender, now_ns);

    if (!peer) {
        return true; /* the message is used; only gaps cannot be detected */
    }
    if (peer->has_sequence && sequence <= peer->sequence) {
        return false;
    }
    /* The first one that is heard of it counts none as missing: those were before our time. */
    if (peer->has_sequence) {
        peers->missing += sequence - peer->sequence - 1;
    }
    peer->has_sequence = true;
    peer->sequence = sequence;
    return true;
}

void kvb_peers_listen(struct kvb_peers *peers, uint64_t now_ns)
{
    peers->listens_until_ns = now_ns + listen_ns;
}

/* A peer comes before this aggregator. */
static bool
is_before_self(const struct kvb_peers *peers, const struct kvb_peer *peer, bool is_ready)
{
    const int names = strcmp(peer->sender.id, peers->self.id);

    if (peer->is_ready != is_ready) {
        return peer->is_ready;
    }
    return names != 0 ? names < 0 : peer->sender.start < peers->self.start;
}

bool kvb_peers_leads(const struct kvb_peers *peers, bool is_ready, uint64_t now_ns)
{
    for (size_t i = 0; i < peers->count; i++) {
        const struct kvb_peer *peer = &peers->rows[i];
        if (is_peer_alive(peer->seen_ns, now_ns) && is_before_self(peers, peer, is_ready)) {
            return false;
        }
    }
    /* By now whoever was there before has said so. */
    return now_ns >= peers->listens_until_ns;
}

void kvb_peers_expire(struct kvb_peers *peers, uint64_t now_ns)
{
    for (size_t i = 0; i < peers->count;) {
        if (is_peer_alive(peers->rows[i].seen_ns, now_ns)) {
            i++;
        } else { /* the last row takes its place, and is looked at next */
            remove_peer(peers, &peers->rows[i]);
        }
    }
}

bool kvb_peers_has_same_id(const struct kvb_peers *peers, uint64_t now_ns)
{
    return peers->same_id_ns > 0 && is_peer_alive(peers->same_id_ns, now_ns);
}
