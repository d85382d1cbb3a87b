#include "stream/replay_turns.h"

/* Insertion sort into a short list: of a thousand streams that want a replay, it keeps the six
 * that have waited longest. */
static void insert_turn(struct kvb_replay_line *line, const struct kvb_replay_turn *turn)
{
    size_t at = line->count;

    /* Behind those whose need is more urgent, or as urgent and older; the last one falls out where
     * the line is full. */
    for (; at > 0; at--) {
        const struct kvb_replay_turn *before = &line->turns[at - 1];
        if (turn->need != before->need ? turn->need < before->need
                                       : turn->wanted_ns >= before->wanted_ns) {
            break;
        }
    }
    if (at == kvb_max_replays_of_a_line) {
        return;
    }
    line->count += line->count < kvb_max_replays_of_a_line;
    for (size_t i = line->count - 1; i > at; i--) {
        line->turns[i] = line->turns[i - 1];
    }
    line->turns[at] = *turn;
}

void kvb_replay_turns_offer(
    struct kvb_replay_turns *turns, struct kvb_served *rank, const struct kvb_stream *stream,
    uint64_t now_ns)
{
    struct kvb_replay_turn turn = { .rank = rank,
                                    .need = kvb_stream_replay_need(stream),
                                    .wanted_ns = kvb_stream_replay_wanted_ns(stream) };
    struct kvb_replay_line *line = turn.need == KVB_REPLAY_PROOF ? &turns->proofs : &turns->others;

    if (kvb_stream_is_replaying(stream)) {
        line->running++;
    } else if (kvb_stream_wants_replay(stream, now_ns, &turn.from)) {
        insert_turn(line, &turn);
    }
}

size_t kvb_replay_turns_running(const struct kvb_replay_turns *turns)
{
    return turns->proofs.running + turns->others.running;
}

static bool take_of(struct kvb_replay_line *line, struct kvb_replay_turn *out_turn)
{
    if (line->taken == line->count || line->running >= kvb_max_replays_of_a_line) {
        return false;
    }
    *out_turn = line->turns[line->taken++];
    line->running++;
    return true;
}

bool kvb_replay_turns_take(struct kvb_replay_turns *turns, struct kvb_replay_turn *out_turn)
{
    return kvb_replay_turns_running(turns) < kvb_max_replays_at_once &&
           (take_of(&turns->proofs, out_turn) || take_of(&turns->others, out_turn));
}
