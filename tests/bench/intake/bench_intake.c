#include "core/clock.h"
#include "core/own.h"
#include "index/index.h"
#include "intake/fleet.h"
#include "parts/bench.h"
#include "replica/follower.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <stdbool.h>
#include <stdlib.h>

/* The work of an aggregator's index thread for a message, without threads and sockets. */

enum {
    round_blocks = 500000,
    snapshot_blocks = 10000000,
};

static const struct fleet_options conversation = {
    .workers = 128, .held = 300, .pool = 8192, .groups = 64, .decoded = 16
};

/* Followers and an index, as in an aggregator. */
struct ours {
    struct kvb_prefix_index *index;
    struct kvb_followers *followers;
    struct kvb_router_batch batch;
    struct kvb_stream_id id;
};

static struct kvb_prefix_index *make_index(void)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 1U << 25U,
                                                      .max_slots = 1U << 18U };
    struct kvb_prefix_index *index = NULL;

    BENCH_MUST(kvb_prefix_index_new(&options, &index));
    return index;
}

static void begin_ours(struct ours *ours, bool sends_requests)
{
    *ours = (struct ours){ .id = { .name_space = FLEET_NAMESPACE, .component = FLEET_COMPONENT },
                           .index = make_index() };
    const struct kvb_followers_options followers = { .max_streams = 1U << 16U,
                                                     .heartbeat_ms = 1000,
                                                     .forget_ms = 60000,
                                                     .sends_requests = sends_requests,
                                                     .max_window_blocks = SIZE_MAX,
                                                     .index = ours->index };
    BENCH_MUST(kvb_followers_new(&followers, &ours->followers));
}

static void end_ours(struct ours *ours)
{
    kvb_followers_free(ours->followers);
    kvb_prefix_index_free(ours->index);
    kvb_router_batch_done(&ours->batch);
}

static void receive_heartbeats(struct ours *ours, const struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->options.workers; i++) {
        struct kvb_heartbeat heartbeat;
        fleet_heartbeat(fleet, i, &heartbeat);
        ours->id.worker_id = i;
        BENCH_MUST(kvb_followers_heartbeat(ours->followers, &ours->id, &heartbeat, 1));
    }
}

static void take_message(struct ours *ours, kvb_span bytes)
{
    BENCH_MUST(kvb_router_payload_decode(bytes, &ours->batch));
    ours->id.worker_id = ours->batch.worker_id;
    ours->id.dp_rank = ours->batch.dp_rank;
    BENCH_MUST(kvb_followers_apply(ours->followers, &ours->id, &ours->batch, 1));
}

/* Checks that every list equals its bridge's counts and digest, so that nothing was lost. */
static void check_lists(struct ours *ours, const struct fleet *fleet)
{
    receive_heartbeats(ours, fleet);
    for (size_t i = 0; i < kvb_followers_limit(ours->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(ours->followers, i);
        if (!follower || follower->state != KVB_STREAM_EXACT) {
            bench_progress("stream %zu is not what its bridge counts", i);
            BENCH_MUST(KVB_BAD_INPUT);
        }
    }
}

/* ---- intake.whole ---- */

/* Applies the same events directly to an index: the cost without everything before it. */
struct alone {
    struct kvb_prefix_index *index;
    kvb_slot_ref *slots; /* owned; by worker */
    struct kvb_router_batch batch;
};

static void begin_alone(struct alone *alone, uint32_t workers)
{
    *alone = (struct alone){ .slots = bench_memory(workers, sizeof(kvb_slot_ref)),
                             .index = make_index() };
    for (uint32_t i = 0; i < workers; i++) {
        BENCH_MUST(kvb_prefix_index_slot_new(alone->index, &alone->slots[i]));
    }
}

static void end_alone(struct alone *alone)
{
    kvb_prefix_index_free(alone->index);
    kvb_router_batch_done(&alone->batch);
    free(alone->slots);
}

static void apply_alone(struct alone *alone, const struct kvb_router_event *event)
{
    const kvb_slot_ref slot = alone->slots[alone->batch.worker_id];
    const struct kvb_index_run run = { .has_parent = event->has_parent,
                                       .parent = event->parent,
                                       .blocks = alone->batch.blocks + event->block_at,
                                       .tokens = alone->batch.tokens + event->block_at,
                                       .count = event->block_count };

    if (event->kind == KVB_ROUTER_STORED) {
        BENCH_MUST(kvb_prefix_index_store(alone->index, slot, &run, NULL));
    } else if (event->kind == KVB_ROUTER_REMOVED) {
        BENCH_MUST(kvb_prefix_index_remove(alone->index, slot, run.blocks, run.count, NULL));
    }
}

/* Returns ns, without decoding. */
static uint64_t apply_round_alone(struct alone *alone, const struct fleet_round *round)
{
    uint64_t spent_ns = 0;

    for (size_t i = 0; i < round->count; i++) {
        BENCH_MUST(kvb_router_proto_decode(fleet_message(round, i), &alone->batch));
        const uint64_t begin_ns = kvb_clock_monotonic_ns();
        for (size_t n = 0; n < alone->batch.event_count; n++) {
            apply_alone(alone, &alone->batch.events[n]);
        }
        spent_ns += kvb_clock_monotonic_ns() - begin_ns;
    }
    return spent_ns;
}

static uint64_t take_round(struct ours *ours, const struct fleet_round *round)
{
    const uint64_t begin_ns = kvb_clock_monotonic_ns();

    for (size_t i = 0; i < round->count; i++) {
        take_message(ours, fleet_message(round, i));
    }
    return kvb_clock_monotonic_ns() - begin_ns;
}

static uint64_t blocks_when_full(const struct fleet_options *options)
{
    return (uint64_t)options->workers * options->held * (fleet_body_blocks + options->decoded / 2);
}

struct whole {
    struct fleet fleet;
    struct fleet_round round;
    struct ours ours;
    struct alone alone;
};

/* M block operations/s of both; the index alone gets what ours has got before it. */
static void take_turns(struct whole *whole, double *out_ours, double *out_alone)
{
    fleet_make(&whole->fleet, round_blocks, &whole->round);
    const double blocks = (double)whole->round.blocks;
    *out_ours = blocks * 1e3 / (double)take_round(&whole->ours, &whole->round);
    *out_alone = blocks * 1e3 / (double)apply_round_alone(&whole->alone, &whole->round);
}

static void measure_whole(const struct bench *bench)
{
    enum { max_rounds = 99 };
    const uint64_t full = blocks_when_full(&conversation);
    struct whole whole = { 0 };
    double ours[max_rounds];
    double alone[max_rounds];
    size_t rounds = 0;

    fleet_init(&whole.fleet, &conversation);
    fleet_round_init(&whole.round);
    begin_ours(&whole.ours, false);
    begin_alone(&whole.alone, conversation.workers);
    receive_heartbeats(&whole.ours, &whole.fleet);
    /* until all workers hold what they can */
    for (uint64_t blocks = 0; blocks < full; blocks += whole.round.blocks) {
        take_turns(&whole, &ours[0], &alone[0]);
    }
    bench_measure();
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    for (; rounds < max_rounds && bench_seconds_since(began_ns) < bench->seconds; rounds++) {
        take_turns(&whole, &ours[rounds], &alone[rounds]);
    }
    check_lists(&whole.ours, &whole.fleet);
    bench_figure_versus("intake.whole", ours, "index alone", alone, rounds, "M block operations/s");
    end_alone(&whole.alone);
    end_ours(&whole.ours);
    fleet_round_done(&whole.round);
    fleet_done(&whole.fleet);
}

/* ---- start.snapshot ---- */

/* All answers of the bridges, made before the measurement begins. */
struct lists {
    struct fleet fleet;
    struct kvb_buf bytes;
    struct list {
        size_t at; /* of its first chunk: a place in ends */
        uint32_t chunks;
    } * lists;    /* owned; by worker */
    size_t *ends; /* owned; of chunks, in bytes */
    size_t end_count, end_capacity;
    uint64_t blocks;
};

static void make_list(struct lists *lists, uint32_t worker)
{
    struct list *list = &lists->lists[worker];

    list->at = lists->end_count;
    for (uint32_t prompt = 0; prompt < lists->fleet.options.held; list->chunks++) {
        if (lists->end_count + 1 >= lists->end_capacity) {
            lists->end_capacity = (2 * lists->end_capacity) + 1024;
            lists->ends = realloc(lists->ends, lists->end_capacity * sizeof *lists->ends);
            BENCH_MUST(lists->ends ? KVB_OK : KVB_NO_MEMORY);
        }
        fleet_list_chunk(&lists->fleet, worker, list->chunks, &prompt, &lists->bytes);
        lists->ends[lists->end_count++] = lists->bytes.len;
    }
}

static void make_lists(struct lists *lists, uint64_t blocks)
{
    const struct fleet_options options = { .workers = (uint32_t)(blocks / 16384) + 1,
                                           .held = 293,
                                           .pool = 8192,
                                           .groups = 64,
                                           .decoded = 16 };

    *lists = (struct lists){ 0 };
    fleet_init(&lists->fleet, &options);
    kvb_buf_init(&lists->bytes, (size_t)1 << 30U);
    lists->lists = bench_memory(options.workers, sizeof *lists->lists);
    for (uint32_t i = 0; i < options.workers; i++) {
        make_list(lists, i);
        lists->blocks += lists->fleet.workers[i].blocks;
    }
}

static void drop_lists(struct lists *lists)
{
    fleet_done(&lists->fleet);
    kvb_buf_done(&lists->bytes);
    free(lists->lists);
    free(lists->ends);
}

struct loading {
    struct ours ours;
    struct kvb_sync_reply_parts parts;
};

static void take_chunk(struct loading *loading, uint64_t token, kvb_span bytes)
{
    struct kvb_sync_reply reply;

    BENCH_MUST(kvb_sync_reply_decode(bytes, &loading->parts, &reply));
    kvb_followers_reply(loading->ours.followers, token, &reply, 2);
}

static void
answer(struct loading *loading, const struct lists *lists, const struct kvb_follower_request *ask)
{
    const struct list *list = &lists->lists[ask->id.worker_id];

    for (size_t i = list->at; i < list->at + list->chunks; i++) {
        const size_t begin = i > 0 ? lists->ends[i - 1] : 0;
        take_chunk(
            loading, ask->token,
            (kvb_span){ .data = lists->bytes.data + begin, .len = lists->ends[i] - begin });
    }
}

static void measure_snapshot(const struct bench *bench)
{
    struct lists lists;
    struct loading loading = { 0 };
    struct kvb_follower_request ask;

    make_lists(&lists, bench->is_small ? snapshot_blocks / 100 : snapshot_blocks);
    const double scale = (double)snapshot_blocks / (double)lists.blocks;
    const uint64_t begin_ns = kvb_clock_monotonic_ns();
    begin_ours(&loading.ours, true);
    receive_heartbeats(&loading.ours, &lists.fleet); /* of bridges that have run for long */
    while (kvb_followers_next_request(loading.ours.followers, 1, &ask)) {
        answer(&loading, &lists, &ask);
    }
    const double whole_s = (double)(kvb_clock_monotonic_ns() - begin_ns) * scale / 1e9;
    check_lists(&loading.ours, &lists.fleet);
    bench_figure("start.snapshot", whole_s, "s/10M blocks");
    kvb_sync_reply_parts_done(&loading.parts);
    end_ours(&loading.ours);
    drop_lists(&lists);
}

int main(int argc, char **argv)
{
    const struct bench bench =
        bench_begin(argc, argv, "What an aggregator does with received messages.");

    if (bench_wants(&bench, "intake.whole")) {
        bench_progress("intake.whole");
        measure_whole(&bench);
    }
    if (bench_wants(&bench, "start.snapshot")) {
        bench_progress("start.snapshot");
        bench_measure();
        measure_snapshot(&bench);
    }
    return 0;
}
