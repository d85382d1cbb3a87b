#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "stream/republish/republisher.h"

#include <stdlib.h>
#include <string.h>

enum { block_size = 2, max_names = 1 << 12, kept_batches = 16 };

static const uint64_t first_number = 1000000;

/* ---- The batch format of this test: a byte for the kind of event, 8 bytes for each number ---- */

static kvb_status put_number(struct kvb_buf *out, uint64_t number)
{
    return kvb_buf_append(out, &number, sizeof number);
}

static bool encoding_fails;

static kvb_status encode(void *context, const struct kvb_event_batch *batch, struct kvb_buf *out)
{
    (void)context;
    if (encoding_fails) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(put_number(out, batch->rank));
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_engine_event *event = &batch->events[i];
        KVB_TRY(put_number(out, event->kind));
        KVB_TRY(put_number(out, event->hash_count));
        KVB_TRY(put_number(out, event->has_parent ? event->parent.value : 0));
        for (uint32_t k = 0; k < event->hash_count; k++) {
            KVB_TRY(put_number(out, batch->hashes[event->hash_at + k].value));
        }
    }
    return KVB_OK;
}

static uint64_t take_number(kvb_span *bytes)
{
    uint64_t number = 0;

    assert_true(bytes->len >= sizeof number);
    memcpy(&number, bytes->data, sizeof number);
    bytes->data += sizeof number;
    bytes->len -= sizeof number;
    return number;
}

/* ---- Readers ---- */

/* How a reader handles sequence numbers; all readers apply events in the same strict way. */
enum reader_kind {
    asks_from_zero, /* requests at its first live batch and at gaps; accepts any answer */
    /* the same, but accepts only the numbers that it requested; otherwise starts empty */
    asks_at_connection,
    never_asks_history, /* requests only at gaps, which must be filled to the last number */
    reader_kinds
};

struct reader {
    enum reader_kind kind;
    bool held[max_names];
    bool has_last;
    uint64_t last;
    bool is_asking;
    uint64_t asked;
    bool has_failed; /* it rejected an answer, so it ignores events until a Cleared */
    bool is_late;    /* ignores events before the next Cleared */
};

static void apply(struct reader *reader, kvb_span payload)
{
    (void)take_number(&payload); /* contains the rank */
    while (payload.len > 0) {
        const uint64_t kind = take_number(&payload);
        const uint64_t count = take_number(&payload);
        uint64_t parent = take_number(&payload);
        if (kind == KVB_EVENT_CLEARED) {
            memset(reader->held, 0, sizeof reader->held);
            reader->is_late = false;
        }
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t hash = take_number(&payload);
            if (!reader->is_late && kind == KVB_EVENT_STORED) {
                assert_false(reader->held[hash]);
                assert_true(parent == 0 || reader->held[parent]);
            } else if (!reader->is_late) {
                assert_true(reader->held[hash]);
            }
            reader->held[hash] = kind == KVB_EVENT_STORED;
            parent = hash;
        }
    }
}

/* ---- A world: an engine, a republisher, one reader, and messages that may be lost ---- */

struct message {
    uint64_t number;
    uint8_t *bytes; /* owned */
    size_t len;
};

struct world {
    uint64_t rng;
    struct kvb_mirror *mirror;
    struct kvb_router_batch out;
    struct kvb_republisher *republisher;
    struct kvb_republisher_options options;
    struct kvb_republish_time time;
    bool held[max_names];
    uint64_t parent[max_names];
    uint64_t names;
    uint64_t percent_lost;
    struct reader reader;
    uint64_t number_seen;    /* the largest number ever published live */
    struct message *waiting; /* owned: live batches while the reader waits for an answer */
    size_t waiting_count;
};

static uint8_t identity[] = { 1, 2, 3 }; /* the first byte counts the reader's connections */
static const kvb_span reader_identity = { identity, sizeof identity };

static void open_mirror(struct world *world)
{
    const struct kvb_mirror_options options = {
        .hashes = KVB_HASHES_ENGINE, .max_blocks = max_names, .tiers = 1, .hash_key = 5
    };

    assert_ok(kvb_mirror_new(&options, &world->mirror));
    assert_ok(kvb_mirror_show(world->mirror, block_size));
}

static void do_event(struct world *world, const struct kvb_engine_event *event, uint64_t hash)
{
    kvb_engine_hash hashes[] = { { hash } };
    uint32_t tokens[block_size] = { (uint32_t)hash, 1 };
    struct kvb_engine_event events[] = { *event };
    const struct kvb_event_batch batch = { .events = events,
                                           .event_count = 1,
                                           .hashes = hashes,
                                           .hash_count = 1,
                                           .tokens = tokens,
                                           .token_count = block_size };

    kvb_router_batch_reset(&world->out);
    assert_ok(apply_event(world->mirror, &batch, 0, UINT64_MAX, &world->out));
}

static void store_name(struct world *world, uint64_t hash)
{
    const struct kvb_engine_event event = { .kind = KVB_EVENT_STORED,
                                            .has_parent = world->parent[hash] != 0,
                                            .parent = { world->parent[hash] },
                                            .block_size = block_size,
                                            .hash_count = 1,
                                            .token_count = block_size };

    do_event(world, &event, hash);
}

/* A new process, which knows what is held, as after a replay of the engine. */
static void open_republisher(struct world *world)
{
    open_mirror(world);
    for (uint64_t hash = 1; hash <= world->names; hash++) {
        if (world->held[hash]) {
            store_name(world, hash);
        }
    }
    world->options.shown = kvb_mirror_shown(world->mirror);
    assert_ok(kvb_republisher_new(&world->options, &world->republisher));
}

static void close_republisher(struct world *world)
{
    kvb_republisher_free(world->republisher);
    kvb_mirror_free(world->mirror);
    world->republisher = NULL;
    world->mirror = NULL;
}

static void begin_world(struct world *world, enum reader_kind kind, uint64_t seed)
{
    *world = (struct world){
        .rng = seed,
        .options = { .encode = encode,
                     .dp_rank = 3,
                     .block_size = block_size,
                     .first_number = first_number,
                     .reserved_end = UINT64_MAX,
                     .max_kept_batches = kept_batches,
                     .max_kept_bytes = 1 << 20,
                     .max_snapshot_bytes = 1 << 20 },
        .time = { .now_ns = KVB_NS_PER_S, .wall_s = 1 },
        .reader = { .kind = kind, .is_late = true },
    };
    open_republisher(world);
}

static void drop_waiting(struct world *world)
{
    for (size_t i = 0; i < world->waiting_count; i++) {
        free(world->waiting[i].bytes);
    }
    free(world->waiting);
    world->waiting = NULL;
    world->waiting_count = 0;
}

static void end_world(struct world *world)
{
    kvb_router_batch_done(&world->out);
    drop_waiting(world);
    close_republisher(world);
}

static void ask(struct world *world, uint64_t from)
{
    world->reader.is_asking = true;
    world->reader.asked = from;
    world->reader.has_failed = false;
    assert_ok(
        kvb_republisher_request(world->republisher, reader_identity, from, world->time.now_ns));
}

static void forget_all(struct reader *reader)
{
    memset(reader->held, 0, sizeof reader->held);
    reader->has_last = false;
    reader->is_late = true;
}

static void take_live(struct world *world, uint64_t number, kvb_span payload)
{
    struct reader *reader = &world->reader;
    const bool is_first = !reader->has_last;

    if (!is_first && number <= reader->last) {
        return;
    }
    apply(reader, payload);
    reader->has_last = true;
    reader->last = number;
}

static void keep_live(struct world *world, uint64_t number, kvb_span payload)
{
    world->waiting = realloc(world->waiting, (world->waiting_count + 1) * sizeof *world->waiting);
    assert_non_null(world->waiting);
    struct message *message = &world->waiting[world->waiting_count++];
    *message =
        (struct message){ .number = number, .bytes = malloc(payload.len + 1), .len = payload.len };
    assert_non_null(message->bytes);
    memcpy(message->bytes, payload.data, payload.len);
}

/* True when the batch must wait for an answer. */
static bool must_ask(struct world *world, uint64_t number)
{
    struct reader *reader = &world->reader;

    if (reader->is_asking) {
        return true;
    }
    if (!reader->has_last && reader->kind == asks_from_zero) {
        ask(world, 0);
        return true;
    }
    if (reader->has_last && number > reader->last + 1) {
        ask(world, reader->last + 1);
        return true;
    }
    return false;
}

static void hear_live(struct world *world, uint64_t number, kvb_span payload)
{
    if (must_ask(world, number)) {
        keep_live(world, number, payload);
    } else {
        take_live(world, number, payload);
    }
}

static void hear_end(struct world *world)
{
    struct reader *reader = &world->reader;
    struct message *waiting = world->waiting;
    const size_t count = world->waiting_count;

    reader->is_asking = false;
    if (reader->kind == asks_from_zero && !reader->has_last && count > 0) {
        /* it continues with the live batches that it has queued */
        reader->last = waiting[0].number - 1;
        reader->has_last = true;
    }
    if (reader->asked > 0 && reader->has_last && reader->last < reader->asked) {
        forget_all(reader); /* the answer was empty: it restarts at the next Cleared */
    }
    world->waiting = NULL;
    world->waiting_count = 0;
    for (size_t i = 0; i < count; i++) {
        hear_live(
            world, waiting[i].number,
            (kvb_span){ .data = waiting[i].bytes, .len = waiting[i].len });
        free(waiting[i].bytes);
    }
    free(waiting);
}

static void hear_reply(struct world *world, uint64_t number, kvb_span payload)
{
    struct reader *reader = &world->reader;
    const uint64_t wanted = reader->has_last ? reader->last + 1 : reader->asked;

    if (reader->kind != asks_from_zero || reader->asked > 0) {
        assert_int_equal(number, wanted); /* the answer begins where requested and has no gap */
    }
    apply(reader, payload);
    reader->last = number;
    reader->has_last = true;
}

static void send_live(struct world *world, const struct kvb_republish_action *action)
{
    assert_true(action->number > world->number_seen);
    world->number_seen = action->number;
    if (kvb_random_below(&world->rng, 100) >= world->percent_lost) {
        hear_live(world, action->number, action->payload);
    }
}

static void send_reply(struct world *world, const struct kvb_republish_action *action)
{
    const bool is_full = kvb_random_below(&world->rng, 500) == 0;
    const bool is_gone = action->identity.data[0] != identity[0];
    const struct kvb_republish_action sent = *action;

    assert_int_equal(action->identity.len, sizeof identity);
    kvb_republisher_sent(
        world->republisher, action->client,
        is_gone   ? KVB_REPUBLISH_GONE
        : is_full ? KVB_REPUBLISH_FULL
                  : KVB_REPUBLISH_SENT,
        world->time.now_ns);
    if (is_full || is_gone) {
        return;
    }
    action = &sent;
    if (action->kind == KVB_REPUBLISH_END) {
        hear_end(world);
    } else {
        hear_reply(world, action->number, action->payload);
    }
}

/* Sends everything that is due now, as the ingest thread does. */
static void serve(struct world *world)
{
    for (int i = 0; i < 200; i++) {
        struct kvb_republish_action action;
        kvb_republisher_live(world->republisher, &world->time, &action);
        if (action.kind == KVB_REPUBLISH_LIVE) {
            send_live(world, &action);
        }
        for (int k = 0; k < 100; k++) {
            kvb_republisher_reply(world->republisher, world->time.now_ns, &action);
            if (action.kind == KVB_REPUBLISH_NOTHING) {
                break;
            }
            send_reply(world, &action);
        }
        world->time.now_ns += KVB_NS_PER_MS;
    }
}

static void engine_step(struct world *world)
{
    const uint64_t kind = kvb_random_below(&world->rng, 100);

    if (kind < 60 && world->names + 1 < max_names) {
        const uint64_t hash = ++world->names;
        const uint64_t parent = kvb_random_below(&world->rng, hash);
        world->parent[hash] = world->held[parent] ? parent : 0;
        world->held[hash] = true;
        store_name(world, hash);
    } else if (kind < 99) { /* leaves are removed first, as in an engine */
        uint64_t leaf = 1 + kvb_random_below(&world->rng, world->names + 1);
        for (uint64_t hash = 1; hash <= world->names; hash++) {
            if (world->held[hash] && world->parent[hash] == leaf) {
                leaf = hash;
            }
        }
        world->held[leaf] = false;
        do_event(
            world, &(struct kvb_engine_event){ .kind = KVB_EVENT_REMOVED, .hash_count = 1 }, leaf);
    } else {
        memset(world->held, 0, sizeof world->held);
        do_event(
            world, &(struct kvb_engine_event){ .kind = KVB_EVENT_CLEARED, .all_tiers = true }, 0);
    }
}

static void restart_reader(struct world *world)
{
    const enum reader_kind kind = world->reader.kind;

    identity[0]++;
    drop_waiting(world);
    world->reader = (struct reader){ .kind = kind, .is_late = true };
    kvb_republisher_subscribed(world->republisher, world->time.now_ns);
    if (kind == asks_at_connection) {
        ask(world, 0);
    }
}

/* After a crash numbers continue behind the reserved ones; after a stop, with the next one. */
static void restart_republisher(struct world *world)
{
    const bool is_crash = kvb_random_below(&world->rng, 2) == 0;

    world->options.first_number =
        kvb_republisher_next_number(world->republisher) + (is_crash ? kvb_republish_reserve : 0);
    close_republisher(world);
    open_republisher(world);
    if (world->reader.is_asking) { /* its connection was lost, so it requests again */
        ask(world, world->reader.has_last ? world->reader.last + 1 : 0);
    }
}

static void assert_reader_has_the_truth(const struct world *world)
{
    for (uint64_t hash = 1; hash <= world->names; hash++) {
        assert_int_equal(world->reader.held[hash], world->held[hash]);
    }
}

static void run_world(enum reader_kind kind, uint64_t seed)
{
    struct world world;

    begin_world(&world, kind, seed);
    restart_reader(&world);
    world.percent_lost = seed % 4;
    for (int round = 0; round < 40; round++) {
        const uint64_t steps = kvb_random_below(&world.rng, 30);
        for (uint64_t i = 0; i < steps; i++) {
            engine_step(&world);
        }
        serve(&world);
        if (kvb_random_below(&world.rng, 100) < 4) {
            restart_reader(&world);
        } else if (kvb_random_below(&world.rng, 100) < 4) {
            restart_republisher(&world);
        }
        world.time.now_ns += kvb_random_below(&world.rng, 3 * KVB_NS_PER_S);
    }
    world.percent_lost = 0;
    for (int i = 0; i < 15; i++) { /* quiet: an empty batch each second */
        serve(&world);
        world.time.now_ns += KVB_NS_PER_S;
    }
    assert_reader_has_the_truth(&world);
    end_world(&world);
}

static void each_kind_of_reader_has_the_correct_blocks_in_random_worlds(void **state)
{
    (void)state;
    for (int kind = 0; kind < reader_kinds; kind++) {
        for (uint64_t seed = 1; seed <= 40; seed++) {
            run_world((enum reader_kind)kind, seed);
        }
    }
}

/* ---- Single behaviours ---- */

struct line {
    enum kvb_republish_kind kind;
    uint64_t number;
    size_t events_bytes; /* the payload, without the rank */
};

/* Collects everything that is sent at one point in time. */
static size_t collect(struct world *world, struct line *lines, size_t max)
{
    size_t count = 0;
    bool is_quiet = false;

    while (!is_quiet && count < max) {
        struct kvb_republish_action action;
        kvb_republisher_live(world->republisher, &world->time, &action);
        const bool is_live = action.kind == KVB_REPUBLISH_LIVE;
        if (is_live) {
            lines[count++] = (struct line){ action.kind, action.number, action.payload.len - 8 };
        }
        kvb_republisher_reply(world->republisher, world->time.now_ns, &action);
        if (action.kind != KVB_REPUBLISH_NOTHING) {
            lines[count++] = (struct line){ action.kind, action.number,
                                            action.payload.len > 8 ? action.payload.len - 8 : 0 };
            kvb_republisher_sent(
                world->republisher, action.client, KVB_REPUBLISH_SENT, world->time.now_ns);
        }
        is_quiet = !is_live && action.kind == KVB_REPUBLISH_NOTHING &&
                   !kvb_republisher_is_busy(world->republisher, world->time.now_ns);
    }
    return count;
}

static struct world scene;
static struct line lines[100000];

static int begin_scene(void **state)
{
    (void)state;
    begin_world(&scene, asks_from_zero, 1);
    scene.reader.is_asking = true; /* nobody reads */
    return 0;
}

static int end_scene(void **state)
{
    (void)state;
    end_world(&scene);
    return 0;
}

static void store_one(void)
{
    scene.parent[++scene.names] = 0;
    scene.held[scene.names] = true;
    store_name(&scene, scene.names);
}

/* Batches first_number .. first_number + count - 1. */
static void publish(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        store_one();
        assert_int_equal(collect(&scene, lines, 100), 1);
    }
}

static void request(uint64_t from)
{
    assert_ok(kvb_republisher_request(scene.republisher, reader_identity, from, scene.time.now_ns));
}

static void numbers_increase_by_one_and_a_quiet_second_is_an_empty_batch(void **state)
{
    (void)state;
    assert_int_equal(collect(&scene, lines, 100), 1); /* the first is sent at once */
    assert_int_equal(lines[0].number, first_number);
    assert_int_equal(lines[0].events_bytes, 24); /* a Cleared */
    store_one();
    assert_int_equal(collect(&scene, lines, 100), 1);
    assert_int_equal(lines[0].number, first_number + 1);
    assert_true(lines[0].events_bytes > 0);
    scene.time.now_ns += KVB_NS_PER_S - 1;
    assert_int_equal(collect(&scene, lines, 100), 0);
    scene.time.now_ns += 1;
    assert_int_equal(collect(&scene, lines, 100), 1);
    assert_int_equal(lines[0].events_bytes, 0);
}

static void requests_from_zero_share_the_announcement_that_follows(void **state)
{
    (void)state;
    publish(1);
    request(0);
    (void)collect(&scene, lines, 100);
    scene.time.now_ns += 50 * KVB_NS_PER_MS;
    (void)collect(&scene, lines, 100);
    for (int i = 0; i < 5; i++) {
        request(0);
        kvb_republisher_subscribed(scene.republisher, scene.time.now_ns);
        (void)collect(&scene, lines, 100);
        scene.time.now_ns += 100 * KVB_NS_PER_MS;
    }
    assert_int_equal(kvb_republisher_count(scene.republisher)->announcements, 1);
    scene.time.now_ns += 10 * KVB_NS_PER_S;
    (void)collect(&scene, lines, 100);
    assert_int_equal(kvb_republisher_count(scene.republisher)->announcements, 2);
    scene.time.now_ns += 20 * KVB_NS_PER_S;
    (void)collect(&scene, lines, 100);
    assert_int_equal(kvb_republisher_count(scene.republisher)->announcements, 2);
}

static void a_request_too_far_back_causes_an_announcement(void **state)
{
    (void)state;
    publish(kept_batches + 2);
    request(first_number + kept_batches + 1 - kvb_max_republish_fill); /* one number too many */
    assert_int_equal(collect(&scene, lines, 100), 1);
    assert_int_equal(lines[0].kind, KVB_REPUBLISH_END);
    request(first_number + kept_batches + 2 - kvb_max_republish_fill);
    assert_int_equal(collect(&scene, lines, 100000), kvb_max_republish_fill + 1);
    assert_int_equal(kvb_republisher_count(scene.republisher)->snapshots, 1);
}

/* One reader whose answer is being sent, one whose snapshot is being made, and one that waits for
 * its own. */
static void at_the_stop_each_waiting_reader_is_sent_its_end_mark(void **state)
{
    (void)state;
    static const uint8_t names[] = "abc";
    const uint64_t from[] = { first_number + 3 * (uint64_t)kept_batches - 2, first_number,
                              first_number };
    struct kvb_republish_action action;

    publish((size_t)3 * kept_batches);
    for (size_t i = 0; i < 3; i++) {
        assert_ok(kvb_republisher_request(
            scene.republisher, (kvb_span){ names + i, 1 }, from[i], scene.time.now_ns));
    }
    kvb_republisher_live(scene.republisher, &scene.time, &action); /* begins a snapshot */
    kvb_republisher_end_answers(scene.republisher);
    assert_int_equal(collect(&scene, lines, 100), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(lines[i].kind, KVB_REPUBLISH_END);
    }
    assert_int_equal(kvb_republisher_count(scene.republisher)->clients, 0);
}

static void a_reader_that_reads_nothing_or_has_left_is_dropped(void **state)
{
    (void)state;
    struct kvb_republish_action action;

    publish(3);
    request(first_number);
    kvb_republisher_reply(scene.republisher, scene.time.now_ns, &action);
    kvb_republisher_sent(scene.republisher, action.client, KVB_REPUBLISH_FULL, scene.time.now_ns);
    kvb_republisher_reply(scene.republisher, scene.time.now_ns, &action);
    assert_int_equal(action.kind, KVB_REPUBLISH_NOTHING); /* it is tried again some ms later */
    scene.time.now_ns += 31 * KVB_NS_PER_S;
    kvb_republisher_reply(scene.republisher, scene.time.now_ns, &action);
    kvb_republisher_sent(scene.republisher, action.client, KVB_REPUBLISH_FULL, scene.time.now_ns);
    assert_int_equal(kvb_republisher_count(scene.republisher)->clients, 0);
    request(first_number);
    kvb_republisher_reply(scene.republisher, scene.time.now_ns, &action);
    kvb_republisher_sent(scene.republisher, action.client, KVB_REPUBLISH_GONE, scene.time.now_ns);
    assert_int_equal(kvb_republisher_count(scene.republisher)->clients, 0);
    assert_int_equal(kvb_republisher_count(scene.republisher)->dropped, 2);
}

static void readers_and_snapshots_are_bounded(void **state)
{
    (void)state;
    publish((size_t)3 * kept_batches);
    for (size_t i = 0; i < kvb_max_republish_clients + 1; i++) {
        const uint8_t letter = (uint8_t)i;
        const kvb_span name = { &letter, 1 };
        assert_int_equal(
            kvb_republisher_request(scene.republisher, name, first_number, scene.time.now_ns),
            i < kvb_max_republish_clients ? KVB_OK : KVB_TOO_LARGE);
    }
    const uint8_t long_name[kvb_max_republish_identity + 1] = { 0 };
    assert_int_equal(
        kvb_republisher_request(scene.republisher, (kvb_span){ long_name, sizeof long_name }, 1, 0),
        KVB_BAD_INPUT);
    for (int i = 0; i < 100; i++) {
        struct kvb_republish_action action;
        kvb_republisher_live(scene.republisher, &scene.time, &action);
    }
    assert_int_equal(
        kvb_republisher_count(scene.republisher)->snapshots, kvb_max_republish_snapshots);
    assert_int_equal(
        collect(&scene, lines, 100000), kvb_max_republish_clients * ((size_t)3 * kept_batches + 1));
    assert_int_equal(kvb_republisher_count(scene.republisher)->snapshot_bytes, 0);
}

static void without_reserved_numbers_nothing_is_published(void **state)
{
    (void)state;
    uint64_t end = 0;

    scene.options.reserved_end = first_number + 2;
    close_republisher(&scene);
    open_republisher(&scene);
    publish(2);
    store_one();
    assert_int_equal(collect(&scene, lines, 100), 0);
    assert_true(kvb_republisher_wants_numbers(scene.republisher, &end));
    assert_int_equal(end, first_number + 2 + kvb_republish_reserve);
    kvb_republisher_reserved(scene.republisher, end);
    assert_false(kvb_republisher_wants_numbers(scene.republisher, &end));
    assert_int_equal(collect(&scene, lines, 100), 1);
    assert_int_equal(lines[0].number, first_number + 2);
}

static void a_batch_that_cannot_be_encoded_is_a_gap_that_a_snapshot_fills(void **state)
{
    (void)state;
    publish(3);
    encoding_fails = true;
    store_one();
    assert_int_equal(collect(&scene, lines, 100), 0);
    encoding_fails = false;
    assert_int_equal(kvb_republisher_count(scene.republisher)->lost, 1);
    store_one();
    assert_int_equal(collect(&scene, lines, 100), 1);
    assert_int_equal(lines[0].number, first_number + 4);
    request(first_number + 3);
    assert_int_equal(collect(&scene, lines, 100), 3);
    assert_int_equal(lines[0].number, first_number + 3);
    assert_int_equal(lines[0].events_bytes, 24 + 5 * 32);
    assert_int_equal(lines[1].number, first_number + 4);
    scene.time.now_ns += KVB_NS_PER_S;
    assert_int_equal(collect(&scene, lines, 100), 1);
    assert_int_equal(lines[0].events_bytes, 24 + 5 * 32); /* for readers that never send requests */
}

/* A batch lost to a failed allocation leaves a gap, and everything is announced again. */
static void run_with_failures(long allocations)
{
    struct world world;
    size_t live = 0;

    begin_world(&world, asks_from_zero, 1);
    for (int i = 0; i < 50; i++) {
        world.parent[++world.names] = 0;
        world.held[world.names] = true;
        store_name(&world, world.names);
    }
    fail_alloc_after(allocations);
    live = collect(&world, lines, 10);
    (void)kvb_republisher_request(
        world.republisher, reader_identity, first_number, world.time.now_ns);
    (void)collect(&world, lines, 10);
    fail_alloc_after(-1);
    (void)live;
    world.percent_lost = 0;
    restart_reader(&world);
    for (int i = 0; i < 30; i++) {
        serve(&world);
        world.time.now_ns += KVB_NS_PER_S;
    }
    assert_reader_has_the_truth(&world);
    end_world(&world);
}

static void survives_each_failing_allocation(void **state)
{
    (void)state;
    struct kvb_republisher *republisher = NULL;

    for (long i = 0; i < 25; i++) {
        run_with_failures(i);
    }
    for (long i = 0; i < 2; i++) {
        fail_alloc_after(i);
        assert_int_equal(kvb_republisher_new(&scene.options, &republisher), KVB_NO_MEMORY);
    }
    fail_alloc_after(-1);
    kvb_republisher_free(NULL);
}

SUITE(republisher)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_reader_has_the_correct_blocks_in_random_worlds),
#define SCENE(test) cmocka_unit_test_setup_teardown(test, begin_scene, end_scene)
        SCENE(numbers_increase_by_one_and_a_quiet_second_is_an_empty_batch),
        SCENE(requests_from_zero_share_the_announcement_that_follows),
        SCENE(a_request_too_far_back_causes_an_announcement),
        SCENE(at_the_stop_each_waiting_reader_is_sent_its_end_mark),
        SCENE(a_reader_that_reads_nothing_or_has_left_is_dropped),
        SCENE(readers_and_snapshots_are_bounded),
        SCENE(without_reserved_numbers_nothing_is_published),
        SCENE(a_batch_that_cannot_be_encoded_is_a_gap_that_a_snapshot_fills),
        SCENE(survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
