#include "kvb_test.h"

#include "batch_maker.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "stream/mirror/shown.h"

#include <string.h>

/* Tested with a strict reader.  It applies each event as the contract says.  It fails if an event
 * stores a block that it has, or one whose parent it does not have. */

enum { max_names = 64 };

struct reader {
    bool has[max_names]; /* indexed by engine hash */
    bool has_cleared;
};

static void read_stored(
    struct reader *reader, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    assert_int_equal(event->block_size, 1);
    assert_int_equal(event->token_count, event->hash_count);
    for (uint32_t i = 0; i < event->hash_count; i++) {
        const uint64_t hash = batch->hashes[event->hash_at + i].value;
        const uint64_t parent =
            i > 0 ? batch->hashes[event->hash_at + i - 1].value : event->parent.value;
        assert_true(hash < max_names);
        assert_false(reader->has[hash]);
        if (i > 0 || event->has_parent) {
            assert_true(reader->has[parent]);
        }
        assert_int_equal(batch->tokens[event->token_at + i] % 100, hash);
        reader->has[hash] = true;
    }
}

static void read_removed(
    struct reader *reader, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    for (uint32_t i = 0; i < event->hash_count; i++) {
        const uint64_t hash = batch->hashes[event->hash_at + i].value;
        assert_true(reader->has[hash]);
        reader->has[hash] = false;
    }
}

static void read_events(struct reader *reader, const struct kvb_event_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_engine_event *event = &batch->events[i];
        assert_int_equal(event->tier, KVB_TIER_DEVICE);
        if (event->kind == KVB_EVENT_STORED) {
            read_stored(reader, batch, event);
        } else if (event->kind == KVB_EVENT_REMOVED) {
            read_removed(reader, batch, event);
        } else {
            assert_int_equal(event->kind, KVB_EVENT_CLEARED);
            assert_true(event->all_tiers);
            memset(reader->has, 0, sizeof reader->has);
            reader->has_cleared = true;
        }
    }
}

/* ---- An engine, its mirror, and the reader ---- */

struct world {
    struct kvb_mirror *mirror;
    struct kvb_shown *shown; /* of the mirror */
    struct kvb_event_batch batch;
    struct kvb_router_batch out;
    struct reader reader;
};

static void begin_world(struct world *world, enum kvb_hashes hashes, size_t max_blocks)
{
    const struct kvb_mirror_options options = { .hashes = hashes,
                                                .max_blocks = max_blocks,
                                                .tiers = (1U << KVB_TIER_COUNT) - 1,
                                                .hash_key = 7 };

    *world = (struct world){ .mirror = NULL };
    assert_ok(kvb_mirror_new(&options, &world->mirror));
    assert_ok(kvb_mirror_show(world->mirror, 1));
    world->shown = kvb_mirror_shown(world->mirror);
}

static void end_world(struct world *world)
{
    kvb_mirror_free(world->mirror);
    kvb_event_batch_done(&world->batch);
    kvb_router_batch_done(&world->out);
}

/* Adds a Stored of one block whose token is this one, and by which the reader knows its hash;
 * parent 0: none. */
static struct kvb_engine_event *
add_block(struct world *world, uint64_t hash, uint64_t parent, uint32_t token)
{
    add_stored(&world->batch, parent ? &parent : NULL, &hash, &token, 1);
    return last_event(&world->batch);
}

static void apply(struct world *world)
{
    apply_batch(world->mirror, &world->batch, &world->out);
}

static void store(struct world *world, uint64_t hash, uint64_t parent)
{
    (void)add_block(world, hash, parent, (uint32_t)hash);
    apply(world);
}

static void drop_from(struct world *world, uint64_t hash, enum kvb_tier tier)
{
    add_removed(&world->batch, &hash, 1);
    last_event(&world->batch)->tier = tier;
    apply(world);
}

static void drop(struct world *world, uint64_t hash)
{
    drop_from(world, hash, KVB_TIER_DEVICE);
}

static void read_changes(struct world *world)
{
    struct kvb_event_batch batch = { 0 };

    while (kvb_shown_has_changes(world->shown)) {
        kvb_event_batch_reset(&batch);
        assert_ok(kvb_shown_take_changes(world->shown, 3, 5, &batch));
        read_events(&world->reader, &batch);
    }
    kvb_event_batch_done(&batch);
    assert_int_equal(kvb_shown_count(world->shown)->gone, 0);
}

static void read_snapshot(struct world *world, struct reader *reader)
{
    struct kvb_event_batch batch = { 0 };
    bool is_done = false;

    assert_ok(kvb_shown_begin(world->shown));
    while (!is_done) {
        kvb_event_batch_reset(&batch);
        assert_ok(kvb_shown_step(world->shown, 2, 3, &batch, &is_done));
        assert_true(batch.hash_count <= 2);
        read_events(reader, &batch);
    }
    kvb_shown_end(world->shown);
    kvb_event_batch_done(&batch);
}

static void add_left_out(struct world *world, int kind)
{
    struct kvb_engine_event *event = add_block(world, 1, 0, 1);
    const kvb_span salt = { (const uint8_t *)"salt", 4 };

    if (kind == 0) {
        assert_ok(kvb_event_batch_add_text(&world->batch, salt, &event->salt));
    } else if (kind == 1) {
        event->key = 77;
    } else if (kind == 2) {
        event->block_size = 2; /* its tokens are those of two blocks */
        event->token_count = 2;
        assert_ok(kvb_event_batch_reserve_tokens(&world->batch, 1));
        world->batch.tokens[world->batch.token_count++] = 2;
    } else {
        event->token_count = 0;
    }
}

static void blocks_that_readers_would_misread_are_left_out_with_their_descendants(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct world world;
        begin_world(&world, KVB_HASHES_ENGINE, 100);
        add_left_out(&world, kind);
        apply(&world);
        store(&world, 2, 1);
        store(&world, 9, 0);
        read_changes(&world);
        assert_false(world.reader.has[1]);
        assert_false(world.reader.has[2]);
        assert_true(world.reader.has[9]);
        assert_int_equal(kvb_shown_count(world.shown)->held, 3);
        assert_int_equal(kvb_shown_count(world.shown)->shown, 1);
        end_world(&world);
    }
}

/* 1 <- 2 <- 3 <- 1: the last block to arrive has no parent that can be shown. */
static void blocks_in_a_circle_are_left_out(void **state)
{
    (void)state;
    static const uint64_t orders[][3] = { { 1, 2, 3 }, { 3, 2, 1 }, { 2, 1, 3 } };

    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        struct world world;
        begin_world(&world, KVB_HASHES_ENGINE, 100);
        for (size_t k = 0; k < 3; k++) {
            store(&world, orders[i][k], orders[i][k] % 3 + 1);
        }
        store(&world, 4, 0);
        read_changes(&world);
        assert_int_equal(kvb_shown_left_out(world.shown), 3);
        assert_true(world.reader.has[4]);
        for (uint64_t hash = 1; hash <= 4; hash++) {
            drop(&world, hash);
        }
        read_changes(&world);
        assert_int_equal(kvb_shown_count(world.shown)->held, 0);
        store(&world, 1, 0);
        read_changes(&world);
        assert_true(world.reader.has[1]);
        end_world(&world);
    }
}

/* The parent of a shown block is replaced by another entry of the same name: readers must not be
 * told of the child before its new parent. */
static void children_follow_the_entry_that_has_their_parents_name(void **state)
{
    (void)state;
    struct world world;

    begin_world(&world, KVB_HASHES_CANONICAL, 100);
    store(&world, 1, 0);
    store(&world, 2, 1);
    store(&world, 3, 2);
    (void)add_block(&world, 11, 0, 1); /* the content of 1 under another hash */
    apply(&world);
    drop(&world, 11);
    read_changes(&world);
    drop(&world, 1);
    read_changes(&world);
    assert_int_equal(kvb_shown_count(world.shown)->shown, 0);
    store(&world, 1, 0);
    read_changes(&world);
    assert_true(world.reader.has[1] && world.reader.has[2] && world.reader.has[3]);
    end_world(&world);
}

/* With the engine's own names one hash may come with two contents. */
static void a_hash_with_two_contents_is_removed_and_then_shown_with_the_newest(void **state)
{
    (void)state;
    struct world world;

    begin_world(&world, KVB_HASHES_CANONICAL, 100);
    store(&world, 1, 0);
    store(&world, 2, 1);
    read_changes(&world);
    (void)add_block(&world, 1, 0, 101);
    apply(&world);
    read_changes(&world);
    assert_true(world.reader.has[1]);
    assert_false(world.reader.has[2]);
    end_world(&world);
}

static void blocks_left_out_are_never_below_none(void **state)
{
    (void)state;
    struct world world;

    begin_world(&world, KVB_HASHES_ENGINE, 100);
    store(&world, 1, 0);
    store(&world, 2, 1);
    read_changes(&world);
    drop(&world, 2); /* and the change has not been taken yet */
    assert_int_equal(kvb_shown_left_out(world.shown), 0);
    end_world(&world);
}

static void adapters_are_named_and_split_events(void **state)
{
    (void)state;
    const kvb_span text = { (const uint8_t *)"adapter", 7 };
    struct kvb_event_batch batch = { 0 };
    struct world world;

    begin_world(&world, KVB_HASHES_ENGINE, 100);
    struct kvb_engine_event *event = add_block(&world, 1, 0, 1);
    assert_ok(kvb_event_batch_add_text(&world.batch, text, &event->lora_name));
    apply(&world);
    store(&world, 2, 1);
    assert_ok(kvb_shown_take_changes(world.shown, 100, 100, &batch));
    assert_int_equal(batch.event_count, 3); /* the first is a Cleared */
    const kvb_span name = kvb_event_batch_text(&batch, batch.events[1].lora_name);
    assert_int_equal(name.len, 7);
    assert_memory_equal(name.data, "adapter", 7);
    assert_int_equal(batch.events[2].lora_name.len, 0);
    kvb_event_batch_done(&batch);
    end_world(&world);
}

/* A block that a reader still has keeps its number; where all numbers are kept, readers start over,
 * and the engine's list is complete all the same. */
static void readers_that_are_behind_cost_the_mirror_no_block(void **state)
{
    (void)state;
    struct world world;

    begin_world(&world, KVB_HASHES_ENGINE, 4);
    for (uint64_t hash = 1; hash <= 4; hash++) {
        store(&world, hash, hash - 1);
    }
    read_changes(&world);
    world.reader.has_cleared = false;
    for (uint64_t hash = 4; hash >= 1; hash--) {
        drop(&world, hash);
    }
    for (uint64_t hash = 5; hash <= 8; hash++) {
        store(&world, hash, hash > 5 ? hash - 1 : 0);
    }
    assert_int_equal(kvb_mirror_count(world.mirror)->held[KVB_TIER_DEVICE], 4);
    read_changes(&world);
    assert_true(world.reader.has_cleared);
    for (uint64_t hash = 1; hash <= 8; hash++) {
        assert_int_equal(world.reader.has[hash], hash > 4);
    }
    end_world(&world);
}

/* ---- Random worlds ---- */

/* A parent has a lower number, and is the same for all time. */
static uint64_t parent_of(uint64_t hash)
{
    return hash % 7 == 0 ? 0 : hash * 5 / 8;
}

struct truth {
    bool held[KVB_TIER_COUNT][max_names];
};

static bool is_wanted(const struct truth *truth, uint64_t hash)
{
    return hash == 0 || (truth->held[KVB_TIER_DEVICE][hash] && is_wanted(truth, parent_of(hash)));
}

static void random_step(struct world *world, struct truth *truth, uint64_t *rng)
{
    const uint64_t hash = 1 + kvb_random_below(rng, max_names - 1);
    const enum kvb_tier tier = kvb_random_below(rng, 3)
                                   ? KVB_TIER_DEVICE
                                   : (enum kvb_tier)kvb_random_below(rng, KVB_TIER_COUNT);

    if (kvb_random_below(rng, 300) == 0) {
        add_cleared(&world->batch);
        memset(truth, 0, sizeof *truth);
    } else if (!truth->held[tier][hash]) {
        add_block(world, hash, parent_of(hash), (uint32_t)hash)->tier = tier;
        truth->held[tier][hash] = true;
    } else {
        add_removed(&world->batch, &hash, 1);
        last_event(&world->batch)->tier = tier;
        truth->held[tier][hash] = false;
    }
    apply(world);
}

static void assert_reader_is_right(const struct world *world, const struct truth *truth)
{
    uint64_t shown = 0;

    for (uint64_t hash = 1; hash < max_names; hash++) {
        assert_int_equal(world->reader.has[hash], is_wanted(truth, hash));
        shown += world->reader.has[hash];
    }
    assert_int_equal(kvb_shown_count(world->shown)->shown, shown);
}

/* A snapshot taken during changes must equal what readers had been shown before. */
static void step_while_it_changes(struct world *world, struct truth *truth, uint64_t *rng)
{
    struct reader snapshot = { 0 };
    struct kvb_event_batch batch = { 0 };
    bool is_done = false;
    kvb_status status = KVB_OK;

    assert_ok(kvb_shown_begin(world->shown));
    while (!is_done && status == KVB_OK) {
        kvb_event_batch_reset(&batch);
        status = kvb_shown_step(
            world->shown, 1 + kvb_random_below(rng, 4), 1 + kvb_random_below(rng, 4), &batch,
            &is_done);
        read_events(&snapshot, &batch);
        random_step(world, truth, rng);
    }
    kvb_shown_end(world->shown);
    if (status == KVB_OK) {
        assert_memory_equal(snapshot.has, world->reader.has, sizeof snapshot.has);
    } else {
        assert_int_equal(status, KVB_CLOSED);
    }
    kvb_event_batch_done(&batch);
}

static void run_random_world(uint64_t seed)
{
    struct world world;
    struct truth truth = { 0 };
    uint64_t rng = seed;

    begin_world(&world, seed % 2 ? KVB_HASHES_ENGINE : KVB_HASHES_CANONICAL, seed % 3 ? 1000 : 64);
    for (int round = 0; round < 60; round++) {
        const uint64_t steps = kvb_random_below(&rng, 30);
        for (uint64_t i = 0; i < steps; i++) {
            random_step(&world, &truth, &rng);
        }
        read_changes(&world);
        assert_reader_is_right(&world, &truth);
        struct reader late = { 0 };
        read_snapshot(&world, &late);
        assert_memory_equal(late.has, world.reader.has, sizeof late.has);
        step_while_it_changes(&world, &truth, &rng);
        read_changes(&world);
        assert_reader_is_right(&world, &truth);
    }
    end_world(&world);
}

static void a_strict_reader_has_the_correct_blocks_in_random_worlds(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        run_random_world(seed);
    }
}

/* ---- Saved as bytes ---- */

static void save_all(const struct kvb_shown *shown, struct kvb_buf *out)
{
    for (size_t place = 0; place != SIZE_MAX;) {
        assert_ok(kvb_shown_save(shown, 50, 3, &place, out));
    }
}

static void restored_tokens_show_the_same_blocks(void **state)
{
    (void)state;
    const kvb_span text = { (const uint8_t *)"adapter", 7 };
    struct world world;
    struct world next;
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 1 << 16);
    begin_world(&world, KVB_HASHES_CANONICAL, 100);
    begin_world(&next, KVB_HASHES_CANONICAL, 100);
    for (uint64_t hash = 1; hash < 20; hash++) {
        store(&world, hash, hash / 2);
        store(&next, hash, hash / 2);
    }
    struct kvb_engine_event *event = add_block(&world, 20, 0, 20);
    assert_ok(kvb_event_batch_add_text(&world.batch, text, &event->lora_name));
    apply(&world);
    drop(&world, 19);
    read_changes(&world);
    save_all(world.shown, &bytes);
    assert_ok(kvb_mirror_show(next.mirror, 1)); /* as after a restart: without tokens */
    next.shown = kvb_mirror_shown(next.mirror);
    assert_ok(kvb_shown_load(next.shown, kvb_buf_span(&bytes)));
    read_changes(&next);
    world.reader.has[20] = false; /* which the other engine does not hold */
    assert_memory_equal(next.reader.has, world.reader.has, sizeof next.reader.has);
    assert_int_equal(
        kvb_shown_load(next.shown, (kvb_span){ bytes.data, bytes.len - 1 }), KVB_BAD_INPUT);
    assert_int_equal(kvb_shown_load(next.shown, (kvb_span){ bytes.data, 5 }), KVB_BAD_INPUT);
    kvb_buf_done(&bytes);
    end_world(&world);
    end_world(&next);
}

/* The counter shows whether the tokens must be saved again. */
static void only_new_tokens_count_as_contents(void **state)
{
    (void)state;
    struct world world;

    begin_world(&world, KVB_HASHES_ENGINE, 100);
    store(&world, 1, 0);
    const uint64_t saved = kvb_shown_count(world.shown)->contents;
    store(&world, 1, 0);
    add_block(&world, 1, 0, 1)->tier = KVB_TIER_HOST;
    apply(&world);
    assert_int_equal(kvb_shown_count(world.shown)->contents, saved);
    store(&world, 2, 1);
    assert_int_equal(kvb_shown_count(world.shown)->contents, saved + 1);
    end_world(&world);
}

static void what_is_hidden_is_shown_to_nobody_and_later_to_all(void **state)
{
    (void)state;
    struct world world;

    begin_world(&world, KVB_HASHES_ENGINE, 100);
    kvb_shown_hide(world.shown, true);
    store(&world, 1, 0);
    store(&world, 2, 1);
    read_changes(&world);
    assert_false(world.reader.has[1]);
    kvb_shown_hide(world.shown, false);
    read_changes(&world);
    assert_true(world.reader.has[1]);
    assert_true(world.reader.has[2]);
    kvb_shown_hide(world.shown, true);
    read_changes(&world);
    assert_false(world.reader.has[2]);
    end_world(&world);
}

/* ---- Failing allocations ---- */

/* Blocks for which there is no memory are left out; the mirror's own list does not suffer. */
static void survives_each_failing_allocation(void **state)
{
    (void)state;
    for (long n = 0; n < 40; n++) {
        const struct kvb_mirror_options options = { .max_blocks = 100, .tiers = 1 };
        struct world world = { 0 };
        struct kvb_event_batch batch = { 0 };
        bool is_full = false;
        for (uint64_t hash = 1; hash < 40; hash++) {
            (void)add_block(&world, hash, hash - 1, (uint32_t)hash);
        }
        assert_ok(kvb_mirror_new(&options, &world.mirror));
        fail_alloc_after(n);
        if (kvb_mirror_show(world.mirror, 1) == KVB_OK) {
            world.shown = kvb_mirror_shown(world.mirror);
            for (size_t at = 0; at < world.batch.event_count && !is_full; at++) {
                is_full =
                    apply_event(world.mirror, &world.batch, at, UINT64_MAX, &world.out) != KVB_OK;
            }
            fail_alloc_after(-1);
            if (is_full) {
                kvb_mirror_restart(world.mirror);
            }
            assert_ok(kvb_shown_take_changes(world.shown, 100, 1000, &batch));
            read_events(&world.reader, &batch);
            read_changes(&world);
        }
        fail_alloc_after(-1);
        kvb_event_batch_done(&batch);
        end_world(&world);
    }
}

static void refuses_impossible_sizes(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 100 };
    struct kvb_mirror *mirror = NULL;

    assert_ok(kvb_mirror_new(&options, &mirror));
    assert_int_equal(kvb_mirror_show(mirror, 0), KVB_TOO_LARGE);
    assert_null(kvb_mirror_shown(mirror));
    kvb_mirror_free(mirror);
}

SUITE(shown)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_readers_would_misread_are_left_out_with_their_descendants),
        cmocka_unit_test(blocks_in_a_circle_are_left_out),
        cmocka_unit_test(children_follow_the_entry_that_has_their_parents_name),
        cmocka_unit_test(a_hash_with_two_contents_is_removed_and_then_shown_with_the_newest),
        cmocka_unit_test(blocks_left_out_are_never_below_none),
        cmocka_unit_test(adapters_are_named_and_split_events),
        cmocka_unit_test(readers_that_are_behind_cost_the_mirror_no_block),
        cmocka_unit_test(a_strict_reader_has_the_correct_blocks_in_random_worlds),
        cmocka_unit_test(restored_tokens_show_the_same_blocks),
        cmocka_unit_test(only_new_tokens_count_as_contents),
        cmocka_unit_test(what_is_hidden_is_shown_to_nobody_and_later_to_all),
        cmocka_unit_test(survives_each_failing_allocation),
        cmocka_unit_test(refuses_impossible_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
