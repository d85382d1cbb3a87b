#include "replica/turn.h"

#include "core/clock.h"

static const uint64_t tick_ns = 100 * KVB_NS_PER_MS;
static const uint64_t echo_every_ns = 500 * KVB_NS_PER_MS;
static const uint64_t echo_wait_ns = 1500 * KVB_NS_PER_MS;
static const uint64_t lag_begins_ns = KVB_NS_PER_S;
static const uint64_t lag_ends_ns = KVB_NS_PER_S / 4;
static const uint64_t queries_wait_ns = KVB_NS_PER_S / 2;

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

/* True until all that waited during the pause is applied. */
static bool is_behind(struct kvb_replica_turn *turn)
{
    if (turn->world->applied_echo(turn->context) >= turn->behind_echo) {
        turn->behind_echo = 0;
    }
    return turn->behind_echo > 0;
}

/* Without NATS there is nothing to wait for. */
static bool are_queries_held(const struct kvb_replica_turn *turn, uint64_t now_ns)
{
    return turn->behind_echo > 0 && turn->was_connected &&
           now_ns - turn->behind_ns < queries_wait_ns;
}

/* ---- NATS ---- */

/* While an echo is missing further ones are sent, because a single one may be lost. */
static void send_echo(struct kvb_replica_turn *turn, uint64_t received, uint64_t now_ns)
{
    turn->next_echo_ns = now_ns + echo_every_ns;
    if (!turn->world->send_echo(turn->context, turn->echo_number + 1)) {
        return;
    }
    turn->echo_number++;
    if (received >= turn->echo_awaited) {
        turn->echo_awaited = turn->echo_number;
        turn->echo_sent_ns = now_ns;
    }
}

static bool is_echoed(struct kvb_replica_turn *turn, uint64_t connects, uint64_t now_ns)
{
    const uint64_t received = turn->world->echoes(turn->context);

    if (connects != turn->connects_seen) { /* echoes of the old connection will not arrive */
        turn->echo_awaited = received;
        turn->next_echo_ns = 0;
    }
    const bool is_missing = received < turn->echo_awaited;
    if (now_ns >= turn->next_echo_ns) {
        send_echo(turn, received, now_ns);
    }
    const bool is_late = is_missing && now_ns - turn->echo_sent_ns >= echo_wait_ns;
    turn->echo_silences += is_late && turn->was_connected;
    return !is_late;
}

/* A connection that was lost and made again between two turns is reported as both. */
static void watch_nats(struct kvb_replica_turn *turn, uint64_t now_ns)
{
    const uint64_t connects = turn->world->connects(turn->context);
    const bool is_connected =
        turn->world->is_connected(turn->context) && is_echoed(turn, connects, now_ns);
    const bool was_replaced = connects != turn->connects_seen;

    if (turn->was_connected && (!is_connected || was_replaced)) {
        kvb_followers_nats_away(turn->followers, now_ns);
    }
    if (is_connected && (!turn->was_connected || was_replaced)) {
        kvb_followers_nats_back(turn->followers, now_ns);
    }
    turn->was_connected = is_connected;
    turn->connects_seen = connects;
}

/* ---- The rest of a turn ---- */

static bool take_due_messages(struct kvb_replica_turn *turn, uint64_t now_ns)
{
    const uint64_t until_ns = now_ns + (kvb_replica_messages_a_turn_us * KVB_NS_PER_MS / 1000);

    if (!turn->world->take_message(turn->context, now_ns)) {
        return false;
    }
    while (turn->world->clock_ns(turn->context) < until_ns &&
           turn->world->take_message(turn->context, now_ns)) {
    }
    return true;
}

void kvb_replica_watch_lag(struct kvb_replica_turn *turn, uint64_t now_ns)
{
    const uint64_t lag_ns = turn->world->lag_ns(turn->context, now_ns);

    turn->is_lagging = lag_ns >= (turn->is_lagging ? lag_ends_ns : lag_begins_ns);
    kvb_followers_set_lagging(turn->followers, turn->is_lagging, now_ns);
    const bool was_unread = turn->behind_echo > 0;
    const bool is_unread = is_behind(turn);
    kvb_followers_set_unread(turn->followers, is_unread, now_ns);
    if (was_unread && !is_unread) {
        kvb_followers_tick(turn->followers, now_ns); /* who was silent is DOWN before any answer */
    }
}

static void send_requests(struct kvb_replica_turn *turn, uint64_t now_ns)
{
    struct kvb_follower_request due;

    while (turn->world->is_connected(turn->context) &&
           kvb_followers_next_request(turn->followers, now_ns, &due)) {
        turn->world->send_request(turn->context, &due);
    }
}

/* Dropped messages cannot be assigned to streams, so all followers are notified. */
static void watch_drops(struct kvb_replica_turn *turn, uint64_t now_ns)
{
    const uint64_t dropped = turn->world->dropped(turn->context);

    if (dropped != turn->dropped_seen) {
        turn->dropped_seen = dropped;
        kvb_followers_messages_dropped(turn->followers, now_ns);
    }
}

static void tick(struct kvb_replica_turn *turn, uint64_t now_ns)
{
    if (now_ns >= turn->next_tick_ns) {
        turn->next_tick_ns = now_ns + tick_ns;
        watch_drops(turn, now_ns);
        kvb_followers_tick(turn->followers, now_ns);
        turn->world->tick(turn->context, now_ns);
    }
}

bool kvb_replica_turn_is_current(const struct kvb_replica_turn *turn, uint64_t now_ns)
{
    const struct kvb_replica_world *world = turn->world;
    const bool is_silent = world->echoes(turn->context) < turn->echo_awaited &&
                           now_ns - turn->echo_sent_ns >= echo_wait_ns;

    return turn->was_connected && world->is_connected(turn->context) &&
           world->connects(turn->context) == turn->connects_seen && !is_silent &&
           !turn->is_lagging && turn->behind_echo == 0 && now_ns < turn->next_tick_ns + tick_ns;
}

bool kvb_replica_take_turn(struct kvb_replica_turn *turn, uint64_t *out_now_ns)
{
    uint64_t now_ns = turn->world->clock_ns(turn->context);

    watch_pause(turn, now_ns);
    watch_nats(turn, now_ns);
    const bool had_messages = take_due_messages(turn, now_ns);
    now_ns = turn->world->clock_ns(turn->context); /* one message may take seconds */
    watch_pause(turn, now_ns);
    kvb_replica_watch_lag(turn, now_ns);
    const bool had_queries =
        !are_queries_held(turn, now_ns) && turn->world->answer_queries(turn->context);
    send_requests(turn, now_ns);
    tick(turn, now_ns);
    *out_now_ns = now_ns;
    return had_messages || had_queries;
}
