#include "stream/agenda.h"

#include "core/clock.h"

static const uint64_t tick_ns = 50 * KVB_NS_PER_MS;
static const uint64_t round_ns = 5 * KVB_NS_PER_MS;

/* Aggregators reconnect at most a second after NATS is back; they do not receive what is
 * published before. */
static const uint64_t after_connect_ns = 1200 * KVB_NS_PER_MS;

/* A replay that has ended lets another one start. */
void kvb_agenda_note_step(
    struct kvb_agenda *agenda, enum kvb_stream_input_kind kind,
    const struct kvb_stream_output *output)
{
    agenda->is_round_wanted |=
        output->is_changed || output->drops_replay || kind == KVB_INPUT_REPLAY_END;
}

bool kvb_agenda_takes_tick(struct kvb_agenda *agenda, uint64_t now_ns)
{
    if (now_ns < agenda->next_tick_ns) {
        return false;
    }
    agenda->next_tick_ns = now_ns + tick_ns;
    return true;
}

bool kvb_agenda_takes_round(struct kvb_agenda *agenda, uint64_t now_ns)
{
    if (!agenda->is_round_wanted && now_ns < agenda->next_round_ns) {
        return false;
    }
    agenda->is_round_wanted = false;
    agenda->next_round_ns = now_ns + round_ns;
    return true;
}

bool kvb_agenda_takes_connection(
    struct kvb_agenda *agenda, uint64_t connects, uint64_t now_ns, uint64_t *out_announce_ns)
{
    if (connects == agenda->connects_seen) {
        return false;
    }
    agenda->connects_seen = connects;
    *out_announce_ns = now_ns + after_connect_ns;
    return true;
}
