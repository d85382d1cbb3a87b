#include "stream/connection.h"

static void set_away(struct kvb_connection *connection, uint64_t now_ns)
{
    connection->state = KVB_CONNECTION_AWAY;
    connection->away_ns = now_ns;
}

bool kvb_connection_next(
    struct kvb_connection *connection, struct kvb_connection_update *update, uint64_t now_ns,
    enum kvb_stream_input_kind *out_input)
{
    const bool is_lost = update->was_lost || !update->is_up;

    update->was_lost = false;
    if (connection->state == KVB_CONNECTION_UP) {
        if (is_lost) {
            set_away(connection, now_ns);
            *out_input = KVB_INPUT_DOWN;
        }
        return is_lost;
    }
    if (update->is_up) {
        connection->state = KVB_CONNECTION_UP;
        *out_input = KVB_INPUT_UP;
    }
    return update->is_up;
}

void kvb_connection_restored(struct kvb_connection *connection, uint64_t now_ns)
{
    set_away(connection, now_ns);
}
