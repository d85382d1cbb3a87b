#include "kvb_test.h"

#include "core/clock.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "load/predictions.h"

#include <string.h>

#define S KVB_NS_PER_S

enum { prompt_blocks = 20, max_blocks = 256, workers = 4, prompts = 3 };

static const uint64_t ttl_ns = 3 * S;

static struct kvb_predictions *new_predictions(uint64_t ttl)
{
    const struct kvb_predictions_options options = { .max_blocks = max_blocks,
                                                     .max_streams = 8,
                                                     .ttl_ns = ttl };
    struct kvb_predictions *predictions = NULL;

    assert_ok(kvb_predictions_new(&options, &predictions));
    return predictions;
}

static struct kvb_stream_id worker(uint64_t worker_id)
{
    return (struct kvb_stream_id){ .name_space = "dynamo",
                                   .component = "VllmWorker",
                                   .worker_id = worker_id };
}

/* Block i of a prompt; all prompts share their first two blocks. */
static kvb_block_hash block(unsigned prompt, unsigned i)
{
    return (kvb_block_hash){ i < 2 ? 1000 + i : (prompt * 100) + i + 1 };
}

static const kvb_block_hash *prompt(unsigned number)
{
    static kvb_block_hash blocks[prompt_blocks];

    for (unsigned i = 0; i < prompt_blocks; i++) {
        blocks[i] = block(number, i);
    }
    return blocks;
}

static void predict(
    struct kvb_predictions *predictions, uint64_t worker_id, unsigned number, size_t from,
    uint64_t now_ns)
{
    const struct kvb_stream_id id = worker(worker_id);

    assert_ok(
        kvb_predictions_add(predictions, &id, prompt(number) + from, prompt_blocks - from, now_ns));
}

static size_t beyond(
    const struct kvb_predictions *predictions, uint64_t worker_id, unsigned number, size_t held,
    uint64_t now_ns)
{
    const struct kvb_stream_id id = worker(worker_id);
    const struct kvb_stream_key key = kvb_stream_key_of(&id, 0);

    return kvb_predictions_beyond(predictions, &key, prompt(number), prompt_blocks, held, now_ns);
}

static bool has_stream(const struct kvb_predictions *predictions, const struct kvb_stream_id *id)
{
    const struct kvb_stream_key key = kvb_stream_key_of(id, 0);

    return kvb_predictions_has_stream(predictions, &key);
}

static struct kvb_prediction_counters counters_of(const struct kvb_predictions *predictions)
{
    struct kvb_prediction_counters counters;

    kvb_predictions_count(predictions, &counters);
    return counters;
}

static void zero_ttl_predicts_nothing(void **state)
{
    (void)state;
    struct kvb_predictions *predictions = new_predictions(0);

    predict(predictions, 1, 0, 0, S);
    assert_false(kvb_predictions_any(predictions));
    kvb_predictions_free(predictions);
}

static void without_room_the_oldest_are_evicted(void **state)
{
    (void)state;
    struct kvb_predictions *predictions = new_predictions(ttl_ns);
    const struct kvb_stream_id two = worker(2);
    kvb_block_hash many[max_blocks];

    predict(predictions, 1, 0, 0, S);
    for (size_t i = 0; i < max_blocks; i++) {
        many[i] = (kvb_block_hash){ 5000 + i };
    }
    assert_ok(kvb_predictions_add(predictions, &two, many, max_blocks, S));
    assert_int_equal(counters_of(predictions).blocks, max_blocks);
    assert_int_equal(counters_of(predictions).evicted, prompt_blocks);
    assert_false(has_stream(predictions, &(struct kvb_stream_id){ 0 }));
    assert_int_equal(beyond(predictions, 1, 0, 0, S), 0);
    const struct kvb_stream_key key = kvb_stream_key_of(&two, 0);
    assert_int_equal(kvb_predictions_beyond(predictions, &key, many, max_blocks, 0, S), max_blocks);
    kvb_predictions_free(predictions);
}

static void without_memory_only_the_first_blocks_are_predicted(void **state)
{
    (void)state;
    for (long i = 0; i < 14; i++) {
        struct kvb_predictions *predictions = new_predictions(ttl_ns);
        const struct kvb_stream_id one = worker(1);
        fail_alloc_after(i);
        const kvb_status status =
            kvb_predictions_add(predictions, &one, prompt(0), prompt_blocks, S);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_int_equal(beyond(predictions, 1, 0, 0, S), counters_of(predictions).blocks);
        (void)kvb_predictions_expire(predictions, 9 * S, 1000);
        assert_false(has_stream(predictions, &one));
        kvb_predictions_free(predictions);
    }
}

/* ---- Against a reference table, under faults ---- */

struct plain {
    uint64_t until_ns[workers + 1][prompts][prompt_blocks]; /* 0: not predicted */
    bool has_epoch[workers + 1];
    uint8_t epoch[workers + 1];
};

/* Blocks 0 and 1 are those of prompt 0, because all prompts share them. */
static uint64_t *at(struct plain *plain, uint64_t worker_id, unsigned number, unsigned i)
{
    return &plain->until_ns[worker_id][i < 2 ? 0 : number][i];
}

static bool has_any(const struct plain *plain, uint64_t worker_id, uint64_t now_ns)
{
    const uint64_t *all = &plain->until_ns[worker_id][0][0];

    for (size_t i = 0; i < (size_t)prompts * prompt_blocks; i++) {
        if (all[i] > now_ns) {
            return true;
        }
    }
    return false;
}

static void forget(struct plain *plain, uint64_t worker_id)
{
    memset(plain->until_ns[worker_id], 0, sizeof plain->until_ns[worker_id]);
    plain->has_epoch[worker_id] = false;
}

struct world {
    struct kvb_predictions *predictions;
    struct plain plain;
    uint64_t random;
    uint64_t now_ns;
};

static void decide(struct world *world, uint64_t worker_id, unsigned number)
{
    const struct kvb_stream_id id = worker(worker_id);

    /* With the last prediction of a worker its epoch is forgotten too. */
    if (!has_stream(world->predictions, &id)) {
        world->plain.has_epoch[worker_id] = false;
    }
    predict(world->predictions, worker_id, number, 0, world->now_ns);
    for (unsigned i = 0; i < prompt_blocks; i++) {
        uint64_t *until_ns = at(&world->plain, worker_id, number, i);
        if (*until_ns <= world->now_ns) {
            *until_ns = world->now_ns + ttl_ns;
        }
    }
}

static void store(struct world *world, uint64_t worker_id, unsigned number)
{
    const struct kvb_stream_id id = worker(worker_id);
    const size_t from = (size_t)kvb_random_below(&world->random, prompt_blocks);
    const size_t count = (size_t)kvb_random_below(&world->random, prompt_blocks + 1 - from);

    kvb_predictions_stored(world->predictions, &id, prompt(number) + from, count);
    for (size_t i = from; i < from + count; i++) {
        *at(&world->plain, worker_id, number, (unsigned)i) = 0;
    }
}

static void end_worker(struct world *world, uint64_t worker_id)
{
    const struct kvb_stream_id id = worker(worker_id);

    kvb_predictions_retire(world->predictions, &id);
    forget(&world->plain, worker_id);
}

/* An epoch is remembered only while something is predicted. */
static void begin_epoch(struct world *world, uint64_t worker_id)
{
    const struct kvb_stream_id id = worker(worker_id);
    const kvb_epoch epoch = { { (uint8_t)kvb_random_below(&world->random, 2) } };
    struct plain *plain = &world->plain;

    if (!has_any(plain, worker_id, world->now_ns)) {
        end_worker(world, worker_id);
        return;
    }
    kvb_predictions_note_epoch(world->predictions, &id, &epoch);
    if (plain->has_epoch[worker_id] && plain->epoch[worker_id] != epoch.bytes[0]) {
        forget(plain, worker_id);
    }
    plain->has_epoch[worker_id] = true;
    plain->epoch[worker_id] = epoch.bytes[0];
}

static void restart_aggregator(struct world *world)
{
    kvb_predictions_free(world->predictions);
    world->predictions = new_predictions(ttl_ns);
    world->plain = (struct plain){ 0 };
}

/* One random operation, possibly with a fault. A lost message is an operation left out; repeated
 * and reordered messages are two operations in a row. */
static void one_step(struct world *world)
{
    const uint64_t worker_id = 1 + kvb_random_below(&world->random, workers);
    const unsigned number = (unsigned)kvb_random_below(&world->random, prompts);

    switch (kvb_random_below(&world->random, 12)) {
    case 0:
        end_worker(world, worker_id);
        break;
    case 1:
        begin_epoch(world, worker_id);
        break;
    case 2:
        if (kvb_random_below(&world->random, 8) == 0) {
            restart_aggregator(world);
        }
        break;
    case 3:
        world->now_ns += kvb_random_below(&world->random, 10) * S; /* the clock jumps */
        break;
    case 4: /* a message that is received twice */
        decide(world, worker_id, number);
        decide(world, worker_id, number);
        break;
    case 5: /* stored first, then decided: the messages were reordered */
        store(world, worker_id, number);
        decide(world, worker_id, number);
        break;
    case 6:
    case 7:
        store(world, worker_id, number);
        break;
    default:
        decide(world, worker_id, number);
    }
    world->now_ns += kvb_random_below(&world->random, S / 2);
    if (kvb_random_below(&world->random, 3) == 0) {
        (void)kvb_predictions_expire(
            world->predictions, world->now_ns, kvb_random_below(&world->random, 20));
    }
}

/* Compares each block by itself with the reference table. */
static void compare(struct world *world)
{
    for (uint64_t w = 1; w <= workers; w++) {
        const struct kvb_stream_id id = worker(w);
        const struct kvb_stream_key key = kvb_stream_key_of(&id, 0);
        for (unsigned p = 0; p < prompts; p++) {
            for (unsigned i = 0; i < prompt_blocks; i++) {
                const bool is_predicted = *at(&world->plain, w, p, i) > world->now_ns;
                assert_int_equal(
                    kvb_predictions_beyond(
                        world->predictions, &key, prompt(p) + i, 1, 0, world->now_ns),
                    is_predicted);
            }
        }
    }
}

static void agrees_with_a_reference_table_under_faults(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct world world = { .predictions = new_predictions(ttl_ns),
                               .random = seed,
                               .now_ns = S };
        for (unsigned step = 0; step < 300; step++) {
            one_step(&world);
            compare(&world);
        }
        world.now_ns += ttl_ns;
        compare(&world); /* it changes nothing, because its TTL is over */
        (void)kvb_predictions_expire(world.predictions, world.now_ns, max_blocks);
        assert_int_equal(counters_of(world.predictions).blocks, 0);
        const struct kvb_prediction_counters counters = counters_of(world.predictions);
        assert_int_equal(
            counters.predicted,
            counters.confirmed + counters.expired + counters.retired + counters.evicted);
        kvb_predictions_free(world.predictions);
    }
}

SUITE(predictions)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_ttl_predicts_nothing),
        cmocka_unit_test(without_room_the_oldest_are_evicted),
        cmocka_unit_test(without_memory_only_the_first_blocks_are_predicted),
        cmocka_unit_test(agrees_with_a_reference_table_under_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
