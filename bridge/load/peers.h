#pragma once

#include "core/status.h"
#include "model/books.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The other aggregators of a router component: elects the one that publishes load_stats, and
 * detects messages of the others that are missing.
 *
 *     statuses of the others, once a second --> table of peers --> leader
 *
 * The leader is the first in this order, among this aggregator and the peers that sent a status
 * within 3 s:
 *
 *     ready before not ready;  the lower id;  with equal ids the lower start time
 *
 * A goodbye removes a peer at once.  After the start, and after each loss of NATS, this aggregator
 * listens for 1.5 s before it may lead, because the statuses of the others have not arrived yet.
 * During a take-over there is no leader for up to 3 s.  Two aggregators lead only while neither
 * receives the statuses of the other.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns.
 * Memory:  kvb_max_aggregators rows. */

enum { kvb_max_aggregators = 64 };

struct kvb_peer {
    struct kvb_books_sender sender;
    bool is_ready;
    bool has_sequence;
    uint64_t sequence; /* sequence number of its newest decision received */
    uint64_t seen_ns;  /* when its newest message came */
};

struct kvb_peers {
    struct kvb_books_sender self; /* set by the caller at the start */
    struct kvb_peer rows[kvb_max_aggregators];
    size_t count;
    uint64_t listens_until_ns;
    uint64_t same_id_ns; /* when another process with our id sent something; 0: never */
    uint64_t missing;    /* decisions of others that never arrived, so far */
    uint64_t refused;    /* messages of aggregators beyond the ceiling */
};

enum kvb_peer_message {
    KVB_PEER_OTHER,   /* from another aggregator */
    KVB_PEER_SELF,    /* our own message, delivered back to us */
    KVB_PEER_SAME_ID, /* from another aggregator with our id: used like any other's */
    KVB_PEER_REFUSED
};

/* Tells who sent a message, and notes a sender that has our id. */
enum kvb_peer_message
kvb_peers_classify(struct kvb_peers *peers, const struct kvb_books_sender *sender, uint64_t now_ns);

/* Applies a heartbeat or a goodbye. */
enum kvb_peer_message kvb_peers_take_status(
    struct kvb_peers *peers, const struct kvb_aggregator_status *status, uint64_t now_ns);

/* Checks the sequence number of a decision, and counts those missing before it.  False: the
 * decision was received before or is older than the newest, so the caller drops it. */
bool kvb_peers_take_sequence(
    struct kvb_peers *peers, const struct kvb_books_sender *sender, uint64_t sequence,
    uint64_t now_ns);

/* There is a new connection to NATS: this aggregator does not lead for 1.5 s. */
void kvb_peers_listen(struct kvb_peers *peers, uint64_t now_ns);

/* True: this aggregator leads. */
bool kvb_peers_leads(const struct kvb_peers *peers, bool is_ready, uint64_t now_ns);

/* Removes peers that were silent for 3 s. */
void kvb_peers_expire(struct kvb_peers *peers, uint64_t now_ns);

/* True: another aggregator with our id sent something within 3 s. */
bool kvb_peers_has_same_id(const struct kvb_peers *peers, uint64_t now_ns);
