#include "replica/turn.h"

#include "core/clock.h"

static const uint64_t tick_ns = 100 * KVB_NS_PER_MS;
static const uint64_t echo_every_ns = 500 * KVB_NS_PER_MS;
static const uint64_t echo_wait_ns = 1500 * KVB_NS_PER_MS;
static const uint64_t lag_begins_ns = KVB_NS_PER_S;
static const uint64_t lag_ends_ns = KVB_NS_PER_S / 4;
static const uint64_t queries_wait_ns = KVB_NS_PER_S / 2;
static const uint64_t messages_ns = kvb_replica_messages_a_turn_us * KVB_NS_PER_MS / 1000;

/* ---- Pauses of this process ---- */

/* Messages may have waited for as long as the thread did not run.  What the clock said before is
 * compared in each turn and within it, because the process may be stopped anywhere. */
static void watch_pause(struct kvb_replica_turn *turn, uint64_t now_ns)
{
    const bool was_paused = turn->looked_ns > 0 && now_ns - turn->looked_ns >= lag_begins_ns;

    turn->looked_ns = now_ns;
    if (was_paused) { /* the next echo is sent after the pause; those before prove nothing */
        /* One pause after another must not hold queries for ever. */
        turn->behind_ns = turn->behind_echo > 0 ? turn->behind_ns : now_ns;
        turn->behind_echo = turn->echo_number + 1;
        turn->next_echo_ns = 0;
    }
}

/* Without NATS there is nothing to wait for. */
static bool are_queries_held(const struct kvb_replica_turn *turn, uint64_t now_ns)
{
    return turn->behind_echo > 0 && turn->was_connected &&
           now_ns - turn->behind_ns < queries_wait_ns;
}

/* ---- NATS ---- */

/* True: the oldest echo that is awaited should have returned by now. */
static bool is_echo_late(const struct kvb_replica_turn *turn, const struct kvb_replica_facts *facts)
{
    return facts->echo_returned < turn->echo_awaited &&
           facts->now_ns - turn->echo_sent_ns >= echo_wait_ns;
}

static void watch_nats(struct kvb_replica_turn *turn, const struct kvb_replica_facts *facts)
{
    const bool was_replaced = facts->connects != turn->connects_seen;

    if (was_replaced && facts->is_connected) { /* echoes of the old connection will not arrive */
        turn->echo_awaited = facts->echo_returned;
        turn->next_echo_ns = 0;
    }
    const bool is_silent = facts->is_connected && is_echo_late(turn, facts);
    const bool works = facts->is_connected && !is_silent;
    turn->echo_silences += is_silent && turn->was_connected;
    /* A connection that was lost and made again between two turns is reported as both. */
    if (turn->was_connected && (!works || was_replaced)) {
        kvb_followers_nats_away(turn->followers, facts->now_ns);
    }
    if (works && (!turn->was_connected || was_replaced)) {
        kvb_followers_nats_back(turn->followers, facts->now_ns);
    }
    turn->was_connected = works;
    turn->connects_seen = facts->connects;
}

void kvb_replica_echo_sent(
    struct kvb_replica_turn *turn, uint64_t number, const struct kvb_replica_facts *facts)
{
    /* While one is missing, that one stays the one to wait for. */
    if (facts->echo_returned >= turn->echo_awaited) {
        turn->echo_awaited = number;
        turn->echo_sent_ns = facts->now_ns;
    }
    turn->echo_number = number;
}

bool kvb_replica_turn_is_current(
    const struct kvb_replica_turn *turn, const struct kvb_replica_facts *facts)
{
    return turn->was_connected && facts->is_connected && facts->connects == turn->connects_seen &&
           !is_echo_late(turn, facts) && !turn->is_lagging && turn->behind_echo == 0 &&
           facts->now_ns < turn->next_tick_ns + tick_ns;
}

/* ---- Lag ---- */

/* Sets or ends STALE(lagging) of all lists. */
static void watch_lag(struct kvb_replica_turn *turn, const struct kvb_replica_facts *facts)
{
    turn->is_lagging = facts->lag_ns >= (turn->is_lagging ? lag_ends_ns : lag_begins_ns);
    kvb_followers_set_lagging(turn->followers, turn->is_lagging, facts->now_ns);
    /* After a pause: until all that has waited during it is applied. */
    const bool was_unread = turn->behind_echo > 0;
    if (facts->echo_applied >= turn->behind_echo) {
        turn->behind_echo = 0;
    }
    const bool is_unread = turn->behind_echo > 0;
    kvb_followers_set_unread(turn->followers, is_unread, facts->now_ns);
    if (was_unread && !is_unread) {
        kvb_followers_tick(turn->followers, facts->now_ns); /* who was silent is DOWN before any
                                                               answer */
    }
}

/* ---- The turn ---- */

bool kvb_replica_next(
    struct kvb_replica_turn *turn, const struct kvb_replica_facts *facts,
    struct kvb_replica_action *out_action)
{
    const uint64_t now_ns = facts->now_ns;

    switch (turn->step) {
    case KVB_REPLICA_BEGIN:
        /* First of all, so that no list is called EXACT, nor a stream DOWN, by what was known
         * before a pause or a loss of NATS. */
        watch_pause(turn, now_ns);
        watch_nats(turn, facts);
        turn->step = KVB_REPLICA_MESSAGES;
        /* While an echo is missing further ones are sent, because a single one may be lost. */
        if (facts->is_connected && now_ns >= turn->next_echo_ns) {
            turn->next_echo_ns = now_ns + echo_every_ns;
            out_action->kind = KVB_REPLICA_SEND_ECHO;
            out_action->number = turn->echo_number + 1;
            return true;
        }
        [[fallthrough]];
    case KVB_REPLICA_MESSAGES:
        /* Only for a while: queries must not wait for a flood of events. */
        turn->step = KVB_REPLICA_QUERIES;
        out_action->kind = KVB_REPLICA_APPLY_MESSAGES;
        out_action->until_ns = now_ns + messages_ns;
        return true;
    case KVB_REPLICA_QUERIES:
        /* One message may have taken seconds, and the process may have been stopped in it.  The
         * states are brought up to date before anybody is answered by them. */
        watch_pause(turn, now_ns);
        watch_lag(turn, facts);
        turn->step = KVB_REPLICA_REQUESTS;
        if (!are_queries_held(turn, now_ns)) {
            out_action->kind = KVB_REPLICA_ANSWER_QUERIES;
            return true;
        }
        [[fallthrough]];
    case KVB_REPLICA_REQUESTS:
        if (facts->is_connected &&
            kvb_followers_next_request(turn->followers, now_ns, &out_action->request)) {
            out_action->kind = KVB_REPLICA_SEND_REQUEST; /* and come here again for the next */
            return true;
        }
        turn->step = KVB_REPLICA_TIME;
        [[fallthrough]];
    case KVB_REPLICA_TIME:
        turn->step = KVB_REPLICA_END;
        if (now_ns >= turn->next_tick_ns) {
            turn->next_tick_ns = now_ns + tick_ns;
            /* Dropped messages cannot be assigned to streams, so all have to be proven again. */
            if (facts->dropped != turn->dropped_seen) {
                turn->dropped_seen = facts->dropped;
                kvb_followers_messages_dropped(turn->followers, now_ns);
            }
            kvb_followers_tick(turn->followers, now_ns);
            out_action->kind = KVB_REPLICA_TICK;
            return true;
        }
        [[fallthrough]];
    case KVB_REPLICA_END:
        break;
    }
    turn->step = KVB_REPLICA_BEGIN;
    return false;
}
