#include "kvb_test.h"

#include "kvbridge/inside.h"
#include "wire/router/proto.h"

#include <stdlib.h>

/* One rank of a bridge. Its socket and monitor report what a test says, exactly when it says so,
 * which libzmq's threads cannot do. The linker puts the functions below in the place of those of
 * the source (--wrap). */

enum { stranger = 99 };

static struct {
    struct kvb_source_batch batches[3];
    size_t batch_count;
    struct kvb_source_link link;
    kvb_status replies[2]; /* KVB_OK: an END marker */
    size_t reply_count, replies_taken;
    size_t stops;    /* number of replies */
    size_t renewals; /* how often the daemon checked whether a renewal is due */
} script;

/* The messages given to NATS. */
static struct {
    struct kvb_router_batch message; /* the newest message */
    size_t count;
    bool is_away;
} nats;

/* The linker prescribes these names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
size_t __wrap_kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch *out_batches, uint64_t *out_refused);
size_t __wrap_kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch *out_batches, uint64_t *out_refused)
{
    const size_t count = script.batch_count;

    (void)source;
    for (size_t i = 0; i < count; i++) {
        out_batches[i] = script.batches[i];
    }
    script.batch_count = 0;
    *out_refused = 0;
    return count;
}

struct kvb_source_link __wrap_kvb_source_read_monitor(struct kvb_source *source);
struct kvb_source_link __wrap_kvb_source_read_monitor(struct kvb_source *source)
{
    const struct kvb_source_link link = script.link;

    (void)source;
    script.link.was_lost = false;
    return link;
}

bool __wrap_kvb_source_is_of_engine(
    struct kvb_source *source, const struct kvb_source_batch *batch);
bool __wrap_kvb_source_is_of_engine(struct kvb_source *source, const struct kvb_source_batch *batch)
{
    (void)source;
    return batch->sender != stranger;
}

void __wrap_kvb_source_replay_stop(struct kvb_source *source);
void __wrap_kvb_source_replay_stop(struct kvb_source *source)
{
    (void)source;
    script.stops++;
}

void __wrap_kvb_source_replay_drain(struct kvb_source *source);
void __wrap_kvb_source_replay_drain(struct kvb_source *source)
{
    (void)source;
}

kvb_status __wrap_kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch);
kvb_status __wrap_kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch)
{
    (void)source;
    (void)out_batch;
    *out_kind = KVB_REPLY_END;
    return script.replies_taken < script.reply_count ? script.replies[script.replies_taken++]
                                                     : KVB_AGAIN;
}

kvb_status
__wrap_kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason);
kvb_status
__wrap_kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason)
{
    (void)source;
    (void)now_ns;
    (void)out_reason;
    script.renewals++;
    return KVB_AGAIN;
}

size_t __wrap_kvb_bus_max_payload(const struct kvb_bus *bus);
size_t __wrap_kvb_bus_max_payload(const struct kvb_bus *bus)
{
    (void)bus;
    return 1 << 20;
}

kvb_status __wrap_kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload);
kvb_status __wrap_kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload)
{
    (void)bus;
    (void)subject;
    if (nats.is_away) {
        return KVB_AGAIN;
    }
    nats.count++;
    assert_ok(kvb_router_payload_decode(payload, &nats.message));
    return KVB_OK;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

/* ---- The bridge ---- */

static struct kvb_bridge *begin(void)
{
    const struct kvb_stream_options options = {
        .worker_id = 7,
        .has_replay = true,
        .max_held_bytes = 1 << 20,
        .max_log_blocks = kvb_publisher_log_blocks,
        .mirror = { .max_blocks = 64, .tiers = 1U << KVB_TIER_DEVICE },
    };
    struct kvb_bridge *bridge = calloc(1, sizeof *bridge);

    assert_non_null(bridge);
    bridge->shown.metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                  .values = bridge->shown.values,
                                                  .count = kvb_bridge_metric_count };
    bridge->ingest.server = (struct kvb_server){ .world = &kvb_bridge_world, .context = bridge };
    bridge->membership.ranks = calloc(1, sizeof(struct bridge_rank *));
    assert_non_null(bridge->membership.ranks);
    bridge->membership.ranks[0] = calloc(1, sizeof *bridge->membership.ranks[0]);
    assert_non_null(bridge->membership.ranks[0]);
    bridge->membership.rank_count = 1;
    bridge->membership.ranks[0]->metrics =
        (struct kvb_metrics){ .rows = kvb_rank_metric_rows,
                              .values = bridge->membership.ranks[0]->values,
                              .count = kvb_rank_metric_count };
    assert_ok(kvb_stream_new(&options, &bridge->membership.ranks[0]->served.stream));
    assert_ok(kvb_event_publisher_init(
        &bridge->publisher.events, NULL, 1U << KVB_FORMAT_PROTOBUF, UINT32_MAX, "a", "b"));
    return bridge;
}

static void end(struct kvb_bridge *bridge)
{
    kvb_stream_free(bridge->membership.ranks[0]->served.stream);
    kvb_stream_output_done(&bridge->membership.ranks[0]->served.output);
    kvb_event_batch_done(&bridge->ingest.batches[0]);
    kvb_event_batch_done(&bridge->ingest.batches[1]);
    kvb_event_publisher_done(&bridge->publisher.events);
    kvb_router_batch_done(&nats.message);
    nats.message = (struct kvb_router_batch){ 0 };
    free(bridge->membership.ranks[0]);
    free((void *)bridge->membership.ranks);
    free(bridge);
}

/* In the next turn the monitor reports whether the connection was lost and restored, and the source
 * delivers the batches of the script. */
static void turn(struct kvb_bridge *bridge, bool was_lost)
{
    script.link = (struct kvb_source_link){ .was_lost = was_lost, .is_up = true };
    kvb_bridge_take_live(bridge, bridge->membership.ranks[0], 1000);
}

static void turn_with(struct kvb_bridge *bridge, char time, uint64_t seq, bool was_lost)
{
    /* [time, [["AllBlocksCleared"]]] in MessagePack */
    static char payload[] = "\x92?\x91\x91\xb0"
                            "AllBlocksCleared";

    payload[1] = time;
    script.batches[0] =
        (struct kvb_source_batch){ .seq = seq,
                                   .payload = { (const uint8_t *)payload, sizeof payload - 1 } };
    script.batch_count = 1;
    turn(bridge, was_lost);
}

static uint64_t applied(const struct kvb_bridge *bridge)
{
    return kvb_stream_count(bridge->membership.ranks[0]->served.stream)->batches_applied;
}

/* An engine that is connected, with complete history up to sequence number 0. */
static struct kvb_bridge *begin_followed(void)
{
    struct kvb_bridge *bridge = begin();
    struct kvb_stream *stream = bridge->membership.ranks[0]->served.stream;
    const struct kvb_stream_input nothing_yet = { .kind = KVB_INPUT_REPLAY_END };
    uint64_t from = 0;

    turn(bridge, false);
    assert_true(kvb_stream_wants_replay(stream, 1000, &from));
    kvb_stream_replay_started(stream, 1000);
    assert_ok(kvb_stream_step(stream, &nothing_yet, &bridge->membership.ranks[0]->served.output));
    turn_with(bridge, 1, 0, false);
    assert_int_equal(applied(bridge), 1);
    return bridge;
}

static void batches_of_one_connection_are_applied(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_followed();

    turn_with(bridge, 2, 1, false);
    assert_int_equal(applied(bridge), 2);
    end(bridge);
}

/* The monitor is read after the batches but counts before them: the batches may come from another
 * process whose sequence numbers continue where the old ones ended. */
static void batches_that_came_with_a_reconnection_wait_for_the_proof(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_followed();
    uint64_t from = 99;

    turn_with(bridge, 2, 1, true);
    assert_int_equal(applied(bridge), 1);
    assert_true(kvb_stream_wants_replay(bridge->membership.ranks[0]->served.stream, 1000, &from));
    assert_int_equal(from, 0);
    end(bridge);
}

/* One reply cannot be decoded, so everything after it is in doubt, including the END. */
static void the_end_after_an_undecodable_reply_proves_nothing(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_followed();
    struct kvb_stream *stream = bridge->membership.ranks[0]->served.stream;
    const uint64_t completed = kvb_stream_count(stream)->replays_completed;

    turn_with(bridge, 2, 1, true);
    kvb_stream_replay_started(stream, 1000);
    script.replies[0] = KVB_BAD_INPUT;
    script.replies[1] = KVB_OK;
    script.reply_count = 2;
    script.replies_taken = 0;
    script.stops = 0;
    kvb_bridge_take_replies(bridge, bridge->membership.ranks[0], 1000);
    assert_int_equal(kvb_metric_get(&bridge->shown.metrics, kvb_bridge_replies_refused), 1);
    assert_int_equal(script.stops, 1);
    assert_int_equal(kvb_stream_count(stream)->replays_completed, completed);
    end(bridge);
}

/* They are not even decoded, because decoding is what takes the time. */
static void batches_of_a_quarantined_rank_are_skipped_and_counted(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_followed();

    bridge->membership.ranks[0]->served.turn.until_ns = 5000;
    turn_with(bridge, '\xc1', 1, false); /* decoding this would be an error */
    assert_int_equal(kvb_metric_get(&bridge->shown.metrics, kvb_bridge_batches_received), 2);
    assert_int_equal(kvb_metric_get(&bridge->shown.metrics, kvb_bridge_batches_unread), 1);
    assert_int_equal(kvb_metric_get(&bridge->shown.metrics, kvb_bridge_payloads_refused), 0);
    assert_int_equal(applied(bridge), 1);
    end(bridge);
}

static void an_undecodable_payload_is_counted_and_not_applied(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_followed();

    turn_with(bridge, '\xc1', 1, false);
    assert_int_equal(kvb_metric_get(&bridge->shown.metrics, kvb_bridge_payloads_refused), 1);
    assert_int_equal(applied(bridge), 1);
    end(bridge);
}

/* [2.0, [["BlockStored", [1], nil, [5], 1]]] and [3.0, [["BlockStored", [2], nil, [6], 1]]] */
static const char first_stored[] = "\x92\x02\x91\x95\xab"
                                   "BlockStored\x91\x01\xc0\x91\x05\x01";
static const char second_stored[] = "\x92\x03\x91\x95\xab"
                                    "BlockStored\x91\x02\xc0\x91\x06\x01";

/* The content of the rank is published; its engine sends two batches, seq 1 and 2. */
static struct kvb_bridge *begin_names(void)
{
    struct kvb_bridge *bridge = begin_followed();

    nats.count = 0;
    nats.is_away = false;
    bridge->membership.ranks[0]->served.advertiser.state = KVB_ADVERTISED;
    script.batches[0] = (struct kvb_source_batch){
        .seq = 1, .payload = { (const uint8_t *)first_stored, sizeof first_stored - 1 }
    };
    script.batches[1] = (struct kvb_source_batch){
        .seq = 2, .payload = { (const uint8_t *)second_stored, sizeof second_stored - 1 }
    };
    script.batch_count = 2;
    return bridge;
}

static void the_events_of_a_turn_are_one_message_at_its_end(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_names();

    turn(bridge, false);
    assert_int_equal(nats.count, 1);
    assert_int_equal(nats.message.event_count, 2);
    assert_int_equal(nats.message.block_count, 2);
    assert_int_equal(bridge->membership.ranks[0]->served.advertiser.state, KVB_ADVERTISED);
    turn(bridge, false);
    assert_int_equal(nats.count, 1);
    end(bridge);
}

/* Each batch is decoded while the previous one waits to be applied. */
static void only_batches_of_unknown_peers_are_left_out_of_a_run(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_names();

    script.batches[2] = script.batches[1];
    script.batches[1].sender = stranger;
    script.batch_count = 3;
    turn(bridge, false);
    assert_int_equal(kvb_metric_get(&bridge->shown.metrics, kvb_bridge_strangers_refused), 1);
    assert_int_equal(applied(bridge), 3);
    assert_int_equal(nats.message.event_count, 2);
    assert_true(nats.message.blocks[0].value != nats.message.blocks[1].value);
    end(bridge);
}

static void an_undecodable_batch_of_a_run_hides_no_other(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_names();
    uint64_t from = 99;

    script.batches[2] = script.batches[1];
    script.batches[2].seq = 3;
    script.batches[1].payload.len = 3;
    script.batch_count = 3;
    turn(bridge, false);
    assert_int_equal(kvb_metric_get(&bridge->shown.metrics, kvb_bridge_payloads_refused), 1);
    assert_int_equal(applied(bridge), 2);
    assert_int_equal(nats.message.event_count, 1);
    assert_true(kvb_stream_wants_replay(bridge->membership.ranks[0]->served.stream, 1000, &from));
    assert_int_equal(from, 1); /* the engine may have an intact copy of seq 2 */
    end(bridge);
}

static void a_turn_that_nats_refuses_is_to_be_announced_again(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_names();

    nats.is_away = true;
    turn(bridge, false);
    assert_int_equal(bridge->membership.ranks[0]->served.advertiser.state, KVB_ADVERTISED_GAP);
    nats.is_away = false;
    turn(bridge, false);
    assert_int_equal(nats.count, 0); /* and no part of it is published */
    end(bridge);
}

/* Batches that waited for a replay, which never arrives. */
static void events_of_a_tick_are_published_with_it(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_names();
    struct bridge_rank *rank = bridge->membership.ranks[0];

    turn(bridge, true);
    assert_int_equal(nats.count, 0);
    kvb_stream_replay_started(rank->served.stream, 1000);
    for (uint64_t s = 1; s < 60 && nats.count == 0; s++) {
        uint64_t from = 0;
        if (kvb_stream_wants_replay(rank->served.stream, s * KVB_NS_PER_S, &from)) {
            kvb_stream_replay_started(rank->served.stream, s * KVB_NS_PER_S);
        }
        kvb_bridge_tick_rank(bridge, rank, s * KVB_NS_PER_S);
    }
    assert_int_equal(nats.count, 1);
    end(bridge);
}

static void each_tick_checks_whether_the_connection_must_be_renewed(void **state)
{
    (void)state;
    struct kvb_bridge *bridge = begin_followed();

    script.renewals = 0;
    kvb_bridge_tick_rank(bridge, bridge->membership.ranks[0], KVB_NS_PER_S);
    assert_int_equal(script.renewals, 1);
    end(bridge);
}

/* ---- What events show of the engine ---- */

static void turn_of(struct kvb_bridge *bridge, uint64_t seq, const char *payload, size_t len)
{
    script.batches[0] =
        (struct kvb_source_batch){ .seq = seq, .payload = { (const uint8_t *)payload, len } };
    script.batch_count = 1;
    turn(bridge, false);
}

static struct kvb_heartbeat beat_of(const struct bridge_rank *rank)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->served.stream, &beat);
    return beat;
}

static void tokens_in_pairs_are_noted_in_the_stream(void **state)
{
    (void)state;
    /* [2.0, [["BlockStored", [1], nil, [[5, 6]], 1]]] */
    static const char paired[] = "\x92\x02\x91\x95\xab"
                                 "BlockStored\x91\x01\xc0\x91\x92\x05\x06\x01";
    struct kvb_bridge *bridge = begin_followed();
    struct bridge_rank *rank = bridge->membership.ranks[0];

    rank->served.advertiser.is_beat_due = false;
    turn_of(bridge, 1, paired, sizeof paired - 1);
    assert_true(
        beat_of(rank).is_paired && rank->served.advertiser.is_beat_due && !beat_of(rank).is_store);
    rank->served.advertiser.is_beat_due = false;
    turn_with(bridge, 1, 2, false); /* a batch without tokens proves nothing */
    assert_true(beat_of(rank).is_paired);
    turn_of(bridge, 3, second_stored, sizeof second_stored - 1);
    assert_true(!beat_of(rank).is_paired && rank->served.advertiser.is_beat_due);
    end(bridge);
}

static void objects_of_a_store_are_noted_in_the_stream(void **state)
{
    (void)state;
    /* [2.0, [["BlockStoreEvent", "7", [["cpu", "x"]], "", 64, "", "", []]]] */
    static const char object[] = "\x92\x02\x91\x98\xaf"
                                 "BlockStoreEvent\xa1"
                                 "7\x91\x92\xa3"
                                 "cpu\xa1x\xa0\x40\xa0\xa0\x90";
    struct kvb_bridge *bridge = begin_followed();
    struct bridge_rank *rank = bridge->membership.ranks[0];

    turn_of(bridge, 1, first_stored, sizeof first_stored - 1);
    assert_false(beat_of(rank).is_store);
    rank->served.advertiser.is_beat_due = false;
    turn_of(bridge, 2, object, sizeof object - 1);
    assert_true(beat_of(rank).is_store && rank->served.advertiser.is_beat_due);
    end(bridge);
}

static void maps_with_an_event_type_show_a_store_unless_on_the_device(void **state)
{
    (void)state;
    /* [2, [{"event_type": "stored", "seq_hashes": [7], "medium": ...}]] */
    static const char on_device[] = "\x92\x02\x91\x83\xaa"
                                    "event_type\xa6"
                                    "stored\xaa"
                                    "seq_hashes\x91\x07\xa6"
                                    "medium\xa3"
                                    "gpu";
    static const char in_memory[] = "\x92\x02\x91\x83\xaa"
                                    "event_type\xa6"
                                    "stored\xaa"
                                    "seq_hashes\x91\x07\xa6"
                                    "medium\xa3"
                                    "cpu";
    struct kvb_bridge *bridge = begin_followed();
    struct bridge_rank *rank = bridge->membership.ranks[0];

    turn_of(bridge, 1, on_device, sizeof on_device - 1);
    assert_false(beat_of(rank).is_store);
    rank->served.advertiser.is_beat_due = false;
    turn_of(bridge, 2, in_memory, sizeof in_memory - 1);
    assert_true(beat_of(rank).is_store && rank->served.advertiser.is_beat_due);
    end(bridge);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_of_one_connection_are_applied),
        cmocka_unit_test(batches_that_came_with_a_reconnection_wait_for_the_proof),
        cmocka_unit_test(the_end_after_an_undecodable_reply_proves_nothing),
        cmocka_unit_test(batches_of_a_quarantined_rank_are_skipped_and_counted),
        cmocka_unit_test(an_undecodable_payload_is_counted_and_not_applied),
        cmocka_unit_test(the_events_of_a_turn_are_one_message_at_its_end),
        cmocka_unit_test(only_batches_of_unknown_peers_are_left_out_of_a_run),
        cmocka_unit_test(an_undecodable_batch_of_a_run_hides_no_other),
        cmocka_unit_test(a_turn_that_nats_refuses_is_to_be_announced_again),
        cmocka_unit_test(events_of_a_tick_are_published_with_it),
        cmocka_unit_test(each_tick_checks_whether_the_connection_must_be_renewed),
        cmocka_unit_test(tokens_in_pairs_are_noted_in_the_stream),
        cmocka_unit_test(objects_of_a_store_are_noted_in_the_stream),
        cmocka_unit_test(maps_with_an_event_type_show_a_store_unless_on_the_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
