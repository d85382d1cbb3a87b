#include "kvb_test.h"

#include "core/random.h"
#include "fail_alloc.h"
#include "stream/republish/block_tree.h"

#include <string.h>

/* The tree is tested with a strict reader.  It applies each event as the contract says.  It fails
 * if an event stores a block that it has, or one whose parent it does not have. */

enum { block_size = 4, max_names = 64 };

struct reader {
    bool has[max_names]; /* indexed by engine hash */
    bool has_cleared;
};

static uint32_t token_of(uint64_t hash, uint32_t i)
{
    return (uint32_t)(hash * 16 + i);
}

static void read_stored(
    struct reader *reader, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    assert_int_equal(event->block_size, block_size);
    assert_int_equal(event->token_count, event->hash_count * block_size);
    for (uint32_t i = 0; i < event->hash_count; i++) {
        const uint64_t hash = batch->hashes[event->hash_at + i].value;
        const uint64_t parent =
            i > 0 ? batch->hashes[event->hash_at + i - 1].value : event->parent.value;
        assert_true(hash < max_names);
        assert_false(reader->has[hash]);
        if (i > 0 || event->has_parent) {
            assert_true(reader->has[parent]);
        }
        for (uint32_t k = 0; k < block_size; k++) {
            assert_int_equal(
                batch->tokens[event->token_at + i * block_size + k], token_of(hash, k));
        }
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

static struct kvb_block_tree *new_tree(size_t max_blocks)
{
    const struct kvb_block_tree_options options = { .block_size = block_size,
                                                    .max_blocks = max_blocks,
                                                    .hash_key = 7 };
    struct kvb_block_tree *tree = NULL;

    assert_ok(kvb_block_tree_new(&options, &tree));
    return tree;
}

/* A BlockStored of one block, as an engine sends it; parent 0: none. */
struct sample {
    kvb_engine_hash hash;
    uint32_t tokens[block_size];
    struct kvb_block_extra extra;
    struct kvb_engine_event event;
    struct kvb_event_batch batch;
};

static void make_sample(struct sample *sample, uint64_t hash, uint64_t parent)
{
    *sample = (struct sample){ .hash = { hash } };
    for (uint32_t i = 0; i < block_size; i++) {
        sample->tokens[i] = token_of(hash, i);
    }
    sample->event = (struct kvb_engine_event){ .kind = KVB_EVENT_STORED,
                                               .has_parent = parent != 0,
                                               .parent = { parent },
                                               .block_size = block_size,
                                               .hash_count = 1,
                                               .token_count = block_size };
    sample->batch = (struct kvb_event_batch){ .events = &sample->event,
                                              .hashes = &sample->hash,
                                              .tokens = sample->tokens,
                                              .extras = &sample->extra };
}

static void store(struct kvb_block_tree *tree, uint64_t hash, uint64_t parent)
{
    struct sample sample;

    make_sample(&sample, hash, parent);
    kvb_block_tree_store(tree, &sample.batch, &sample.event, 0);
}

static void hold(struct kvb_block_tree *tree, uint64_t hash, unsigned tiers)
{
    kvb_block_tree_hold(tree, (kvb_engine_hash){ hash }, tiers);
}

static void store_and_hold(struct kvb_block_tree *tree, uint64_t hash, uint64_t parent)
{
    store(tree, hash, parent);
    hold(tree, hash, 1U << KVB_TIER_DEVICE);
}

static void read_changes(struct kvb_block_tree *tree, struct reader *reader)
{
    struct kvb_event_batch batch = { 0 };

    while (kvb_block_tree_has_changes(tree)) {
        kvb_event_batch_reset(&batch);
        assert_ok(kvb_block_tree_take_changes(tree, 3, 5, &batch));
        read_events(reader, &batch);
    }
    kvb_event_batch_done(&batch);
}

static void read_snapshot(struct kvb_block_tree *tree, struct reader *reader)
{
    struct kvb_event_batch batch = { 0 };
    bool is_done = false;

    kvb_block_tree_walk_begin(tree);
    while (!is_done) {
        kvb_event_batch_reset(&batch);
        assert_ok(kvb_block_tree_walk(tree, 2, 3, &batch, &is_done));
        assert_true(batch.hash_count <= 2);
        read_events(reader, &batch);
    }
    kvb_block_tree_walk_end(tree);
    kvb_event_batch_done(&batch);
}

static void blocks_that_readers_would_misread_are_left_out_with_their_descendants(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        struct kvb_block_tree *tree = new_tree(100);
        struct reader reader = { 0 };
        struct sample sample;
        uint8_t text[4] = "salt";
        make_sample(&sample, 1, 0);
        sample.batch.text = text;
        sample.event.salt.len = kind == 0 ? 4 : 0;
        sample.event.extra_count = kind == 1 || kind == 2;
        sample.extra.key_count = kind == 1;
        sample.extra.unmatchable = kind == 2;
        sample.event.block_size = kind == 3 ? 2 : block_size;
        if (kind < 4) {
            kvb_block_tree_store(tree, &sample.batch, &sample.event, 0);
        } /* kind 4: the block is held, but its tokens never arrived */
        hold(tree, 1, 1);
        store_and_hold(tree, 2, 1);
        store_and_hold(tree, 9, 0);
        read_changes(tree, &reader);
        assert_false(reader.has[1]);
        assert_false(reader.has[2]);
        assert_true(reader.has[9]);
        assert_int_equal(kvb_block_tree_count(tree)->held, 3);
        assert_int_equal(kvb_block_tree_count(tree)->shown, 1);
        kvb_block_tree_free(tree);
    }
}

/* An engine never has such a block.  The node must be freed when it is no longer held. */
static void a_block_that_is_its_own_parent_is_left_out_and_dropped(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(max_names);
    struct reader reader = { { 0 }, false };

    store_and_hold(tree, 5, 5);
    read_changes(tree, &reader);
    assert_false(reader.has[5]);
    assert_int_equal(kvb_block_tree_left_out(tree), 1);
    hold(tree, 5, 0);
    read_changes(tree, &reader);
    assert_int_equal(kvb_block_tree_count(tree)->nodes, 0);
    kvb_block_tree_free(tree);
}

/* 1 <- 2 <- 3 <- 1: the last block to arrive has no parent that can be shown. */
static void blocks_in_a_circle_are_left_out_and_dropped(void **state)
{
    (void)state;
    static const uint64_t orders[][3] = { { 1, 2, 3 }, { 3, 2, 1 }, { 2, 1, 3 } };

    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        struct kvb_block_tree *tree = new_tree(max_names);
        struct reader reader = { { 0 }, false };
        for (size_t k = 0; k < 3; k++) {
            store_and_hold(tree, orders[i][k], orders[i][k] % 3 + 1);
        }
        store_and_hold(tree, 4, 0);
        read_changes(tree, &reader);
        assert_int_equal(kvb_block_tree_left_out(tree), 3);
        assert_true(reader.has[4]);
        for (uint64_t hash = 1; hash <= 4; hash++) {
            hold(tree, hash, 0);
        }
        read_changes(tree, &reader);
        assert_int_equal(kvb_block_tree_count(tree)->nodes, 0);
        kvb_block_tree_free(tree);
    }
}

/* A correct parent arrives, so the blocks below it are shown. */
static void a_circle_ends_with_a_better_parent(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(max_names);
    struct reader reader = { { 0 }, false };

    store_and_hold(tree, 1, 2);
    store_and_hold(tree, 2, 1);
    store(tree, 2, 0);
    read_changes(tree, &reader);
    assert_int_equal(kvb_block_tree_count(tree)->shown, 2);
    kvb_block_tree_free(tree);
}

static void blocks_left_out_are_never_below_none(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(max_names);
    struct reader reader = { { 0 }, false };

    store_and_hold(tree, 1, 0);
    store_and_hold(tree, 2, 1);
    read_changes(tree, &reader);
    hold(tree, 2, 0); /* and the change has not been taken yet */
    assert_int_equal(kvb_block_tree_left_out(tree), 0);
    kvb_block_tree_free(tree);
}

static void adapters_are_named_and_split_events(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(100);
    struct kvb_event_batch batch = { 0 };
    struct sample sample;
    uint8_t text[] = "adapter";

    make_sample(&sample, 1, 0);
    sample.batch.text = text;
    sample.event.lora_name = (struct kvb_text_ref){ 0, 7 };
    kvb_block_tree_store(tree, &sample.batch, &sample.event, 0);
    hold(tree, 1, 1);
    store_and_hold(tree, 2, 1);
    assert_ok(kvb_block_tree_take_changes(tree, 100, 100, &batch));
    assert_int_equal(batch.event_count, 2);
    const kvb_span name = kvb_event_batch_text(&batch, batch.events[0].lora_name);
    assert_int_equal(name.len, 7);
    assert_memory_equal(name.data, "adapter", 7);
    assert_int_equal(batch.events[1].lora_name.len, 0);
    kvb_event_batch_done(&batch);
    kvb_block_tree_free(tree);
}

static void blocks_that_find_no_room_are_left_out_and_counted(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(3);
    struct reader reader = { 0 };

    for (uint64_t hash = 1; hash < 9; hash++) {
        store_and_hold(tree, hash, hash - 1);
    }
    read_changes(tree, &reader);
    assert_int_equal(kvb_block_tree_count(tree)->shown, 3);
    assert_true(kvb_block_tree_count(tree)->no_room > 0);
    for (uint64_t hash = 9; hash-- > 1;) {
        hold(tree, hash, 0);
    }
    read_changes(tree, &reader);
    assert_int_equal(kvb_block_tree_count(tree)->nodes, 0);
    store_and_hold(tree, 5, 0);
    read_changes(tree, &reader);
    assert_true(reader.has[5]);
    kvb_block_tree_free(tree);
}

/* ---- Random worlds ---- */

struct world {
    unsigned held[max_names];
    uint64_t parent[max_names]; /* parent at the last store; 0: none */
    bool is_known[max_names];
    bool shown[max_names]; /* after the newest changes */
};

static bool is_wanted(const struct world *world, uint64_t hash)
{
    return hash == 0 || (world->is_known[hash] && (world->held[hash] >> KVB_TIER_DEVICE & 1) &&
                         is_wanted(world, world->parent[hash]));
}

/* True when the tree keeps this node: it is held, or an ancestor of a held one. */
static bool is_needed(const struct world *world, uint64_t hash)
{
    for (uint64_t other = 1; other < max_names; other++) {
        uint64_t at = world->held[other] ? other : 0;
        while (at != 0 && at != hash) {
            at = world->is_known[at] ? world->parent[at] : 0;
        }
        if (at == hash) {
            return true;
        }
    }
    return false;
}

static void note_read(struct world *world, const struct reader *reader)
{
    memcpy(world->shown, reader->has, sizeof world->shown);
    for (uint64_t hash = 1; hash < max_names; hash++) {
        world->is_known[hash] = world->is_known[hash] && is_needed(world, hash);
    }
}

/* The hash has new content, so its children have lost their parent. */
static void lose_children(struct world *world, uint64_t hash)
{
    for (uint64_t child = 1; child < max_names; child++) {
        if (world->is_known[child] && world->parent[child] == hash) {
            world->is_known[child] = false;
        }
    }
}

static void random_step(struct kvb_block_tree *tree, struct world *world, uint64_t *rng)
{
    const uint64_t hash = 1 + kvb_random_below(rng, max_names - 1);
    const uint64_t kind = kvb_random_below(rng, 100);

    if (kind < 50) { /* a parent has a lower number, so there are no circles */
        const bool is_again = world->is_known[hash] && kind < 45;
        const uint64_t parent = is_again ? world->parent[hash] : kvb_random_below(rng, hash);
        const bool is_other = world->is_known[hash] && parent != world->parent[hash];
        if (is_other || (!world->is_known[hash] && world->shown[hash])) {
            lose_children(world, hash);
        }
        store(tree, hash, parent);
        world->is_known[hash] = true;
        world->parent[hash] = parent;
        world->held[hash] |= 1U << kvb_random_below(rng, KVB_TIER_COUNT);
        hold(tree, hash, world->held[hash]);
    } else if (kind < 98) {
        world->held[hash] &= ~(1U << kvb_random_below(rng, KVB_TIER_COUNT));
        hold(tree, hash, world->held[hash]);
    } else if (kind < 99) {
        world->held[hash] |= 1U << kvb_random_below(rng, KVB_TIER_COUNT);
        hold(tree, hash, world->held[hash]);
    } else if (kvb_random_below(rng, 4) == 0) {
        kvb_block_tree_clear(tree);
        *world = (struct world){ .held = { 0 } };
    }
}

static void assert_reader_is_right(
    const struct kvb_block_tree *tree, const struct world *world, const struct reader *reader)
{
    uint64_t shown = 0;

    for (uint64_t hash = 1; hash < max_names; hash++) {
        assert_int_equal(reader->has[hash], is_wanted(world, hash));
        shown += reader->has[hash];
    }
    assert_int_equal(kvb_block_tree_count(tree)->shown, shown);
}

/* A snapshot taken during changes must equal what readers had been shown before. */
static void walk_while_it_changes(
    struct kvb_block_tree *tree, struct world *world, const struct reader *live, uint64_t *rng)
{
    struct reader snapshot = { 0 };
    struct kvb_event_batch batch = { 0 };
    bool is_done = false;
    kvb_status status = KVB_OK;

    kvb_block_tree_walk_begin(tree);
    while (!is_done && status == KVB_OK) {
        kvb_event_batch_reset(&batch);
        status = kvb_block_tree_walk(
            tree, 1 + kvb_random_below(rng, 4), 1 + kvb_random_below(rng, 4), &batch, &is_done);
        read_events(&snapshot, &batch);
        random_step(tree, world, rng);
    }
    kvb_block_tree_walk_end(tree);
    if (status == KVB_OK) {
        assert_memory_equal(snapshot.has, live->has, sizeof live->has);
    } else {
        assert_int_equal(status, KVB_CLOSED);
    }
    kvb_event_batch_done(&batch);
}

static void run_random_world(uint64_t seed)
{
    struct kvb_block_tree *tree = new_tree(1000);
    struct world world = { 0 };
    struct reader live = { 0 };
    uint64_t rng = seed;

    for (int round = 0; round < 60; round++) {
        const uint64_t steps = kvb_random_below(&rng, 30);
        for (uint64_t i = 0; i < steps; i++) {
            random_step(tree, &world, &rng);
        }
        read_changes(tree, &live);
        note_read(&world, &live);
        assert_reader_is_right(tree, &world, &live);
        struct reader late = { 0 };
        read_snapshot(tree, &late);
        assert_memory_equal(late.has, live.has, sizeof live.has);
        walk_while_it_changes(tree, &world, &live, &rng);
        read_changes(tree, &live);
        note_read(&world, &live);
        assert_reader_is_right(tree, &world, &live);
    }
    kvb_block_tree_clear(tree);
    assert_int_equal(kvb_block_tree_count(tree)->nodes, 0);
    kvb_block_tree_free(tree);
}

static void a_strict_reader_has_the_correct_blocks_in_random_worlds(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        run_random_world(seed);
    }
}

/* ---- Saved as bytes ---- */

static void save_all(const struct kvb_block_tree *tree, struct kvb_buf *out)
{
    for (size_t place = 0; place != SIZE_MAX;) {
        assert_ok(kvb_block_tree_save(tree, 50, 3, &place, out));
    }
}

static void a_restored_tree_shows_the_same_blocks(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(100);
    struct kvb_block_tree *next = new_tree(100);
    struct reader reader = { 0 };
    struct reader late = { 0 };
    struct sample sample;
    uint8_t text[] = "adapter";
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 1 << 16);
    for (uint64_t hash = 1; hash < 20; hash++) {
        store_and_hold(tree, hash, hash / 2);
    }
    make_sample(&sample, 20, 0);
    sample.batch.text = text;
    sample.batch.has_signed_hashes = true;
    sample.event.lora_name = (struct kvb_text_ref){ 0, 7 };
    kvb_block_tree_store(tree, &sample.batch, &sample.event, 0);
    hold(tree, 20, 1);
    hold(tree, 19, 0);
    read_changes(tree, &reader);
    save_all(tree, &bytes);
    assert_ok(kvb_block_tree_load(next, kvb_buf_span(&bytes)));
    for (uint64_t hash = 1; hash < 19; hash++) {
        hold(next, hash, 1); /* all but block 20, which the engine has dropped */
    }
    read_changes(next, &late);
    reader.has[20] = false;
    assert_memory_equal(late.has, reader.has, sizeof late.has);
    assert_int_equal(kvb_block_tree_count(next)->nodes, 18);
    assert_true(kvb_block_tree_count(next)->has_signed_hashes);
    assert_int_equal(
        kvb_block_tree_load(next, (kvb_span){ bytes.data, bytes.len - 1 }), KVB_BAD_INPUT);
    assert_int_equal(kvb_block_tree_load(next, (kvb_span){ bytes.data, 5 }), KVB_BAD_INPUT);
    kvb_buf_done(&bytes);
    kvb_block_tree_free(tree);
    kvb_block_tree_free(next);
}

/* The counter shows whether the tree must be saved again. */
static void a_block_not_held_at_the_save_counts_as_new(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(100);
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 1 << 16);
    store_and_hold(tree, 1, 0);
    store_and_hold(tree, 2, 1);
    hold(tree, 1, 0); /* it stays in the tree, because block 2 is below it */
    store(tree, 3, 0);
    const uint64_t saved = kvb_block_tree_count(tree)->contents;
    save_all(tree, &bytes);
    const size_t one_record = bytes.len;
    hold(tree, 2, 3); /* in one more tier */
    store(tree, 2, 1);
    assert_int_equal(kvb_block_tree_count(tree)->contents, saved);
    hold(tree, 1, 1);
    const uint64_t after_first = kvb_block_tree_count(tree)->contents;
    assert_true(after_first > saved);
    hold(tree, 3, 1);
    assert_true(kvb_block_tree_count(tree)->contents > after_first);
    kvb_buf_reset(&bytes);
    save_all(tree, &bytes);
    assert_int_equal(bytes.len, 3 * one_record);
    kvb_buf_done(&bytes);
    kvb_block_tree_free(tree);
}

static void a_hidden_tree_shows_nothing_and_later_everything(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = new_tree(100);
    struct reader reader = { 0 };

    kvb_block_tree_hide(tree, true);
    store_and_hold(tree, 1, 0);
    store_and_hold(tree, 2, 1);
    read_changes(tree, &reader);
    assert_false(reader.has[1]);
    kvb_block_tree_hide(tree, false);
    read_changes(tree, &reader);
    assert_true(reader.has[1]);
    assert_true(reader.has[2]);
    kvb_block_tree_hide(tree, true);
    read_changes(tree, &reader);
    assert_false(reader.has[2]);
    kvb_block_tree_free(tree);
}

/* ---- Failing allocations ---- */

static void run_with_failures(long allocations)
{
    const struct kvb_block_tree_options options = { .block_size = block_size,
                                                    .max_blocks = 100,
                                                    .hash_key = 7 };
    struct kvb_block_tree *tree = NULL;
    struct kvb_event_batch batch = { 0 };
    struct reader reader = { 0 };

    fail_alloc_after(allocations);
    if (kvb_block_tree_new(&options, &tree) == KVB_OK) {
        for (uint64_t hash = 1; hash < 40; hash++) {
            store_and_hold(tree, hash, hash - 1);
        }
        (void)kvb_block_tree_take_changes(tree, 100, 1000, &batch);
        fail_alloc_after(-1);
        read_events(&reader, &batch);
        for (uint64_t hash = 40; hash-- > 1;) {
            hold(tree, hash, 0);
        }
        kvb_event_batch_reset(&batch);
        assert_ok(kvb_block_tree_take_changes(tree, 1000, 1000, &batch));
        assert_false(kvb_block_tree_has_changes(tree));
        assert_int_equal(kvb_block_tree_count(tree)->nodes, 0);
    }
    fail_alloc_after(-1);
    kvb_event_batch_done(&batch);
    kvb_block_tree_free(tree);
}

static void survives_each_failing_allocation(void **state)
{
    (void)state;
    for (long i = 0; i < 40; i++) {
        run_with_failures(i);
    }
}

static void refuses_impossible_sizes(void **state)
{
    (void)state;
    struct kvb_block_tree *tree = NULL;
    struct kvb_block_tree_options options = { .block_size = 0, .max_blocks = 1 };

    assert_int_equal(kvb_block_tree_new(&options, &tree), KVB_TOO_LARGE);
    options = (struct kvb_block_tree_options){ .block_size = 1, .max_blocks = 0 };
    assert_int_equal(kvb_block_tree_new(&options, &tree), KVB_TOO_LARGE);
    kvb_block_tree_free(NULL);
}

SUITE(block_tree)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_readers_would_misread_are_left_out_with_their_descendants),
        cmocka_unit_test(a_block_that_is_its_own_parent_is_left_out_and_dropped),
        cmocka_unit_test(blocks_in_a_circle_are_left_out_and_dropped),
        cmocka_unit_test(a_circle_ends_with_a_better_parent),
        cmocka_unit_test(blocks_left_out_are_never_below_none),
        cmocka_unit_test(adapters_are_named_and_split_events),
        cmocka_unit_test(blocks_that_find_no_room_are_left_out_and_counted),
        cmocka_unit_test(a_strict_reader_has_the_correct_blocks_in_random_worlds),
        cmocka_unit_test(a_restored_tree_shows_the_same_blocks),
        cmocka_unit_test(a_block_not_held_at_the_save_counts_as_new),
        cmocka_unit_test(a_hidden_tree_shows_nothing_and_later_everything),
        cmocka_unit_test(survives_each_failing_allocation),
        cmocka_unit_test(refuses_impossible_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
