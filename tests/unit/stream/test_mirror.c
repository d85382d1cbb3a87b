#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_maker.h"
#include "core/status.h"
#include "index/block_hash.h"
#include "stream/mirror/mirror.h"

struct world {
    struct kvb_mirror *mirror;
    struct kvb_event_batch batch;
    struct kvb_router_batch out;
};

static struct world new_world(enum kvb_hashes hashes)
{
    const struct kvb_mirror_options options = { .hashes = hashes,
                                                .max_blocks = 1000,
                                                .tiers = 1U << KVB_TIER_DEVICE };
    struct world world = { 0 };

    assert_ok(kvb_mirror_new(&options, &world.mirror));
    return world;
}

static void end_world(struct world *world)
{
    kvb_mirror_free(world->mirror);
    kvb_event_batch_done(&world->batch);
    kvb_router_batch_done(&world->out);
}

/* Applies all events of the batch, then empties it. */
static void apply(struct world *world)
{
    apply_batch(world->mirror, &world->batch, &world->out);
}

static void store(struct world *world, const uint64_t *parent, uint64_t hash, uint32_t token)
{
    add_stored(&world->batch, parent, &hash, &token, 1);
    apply(world);
}

static void remove_one(struct world *world, uint64_t hash)
{
    add_removed(&world->batch, &hash, 1);
    apply(world);
}

static void assert_one_event(const struct world *world, enum kvb_router_kind kind, size_t blocks)
{
    assert_int_equal(world->out.event_count, 1);
    assert_int_equal(world->out.events[0].kind, kind);
    assert_int_equal(world->out.events[0].block_count, blocks);
}

static uint64_t held(const struct world *world)
{
    return kvb_mirror_count(world->mirror)->held[KVB_TIER_DEVICE];
}

static void a_block_without_its_parent_waits_and_is_published_parents_first(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);
    const uint32_t path[] = { 1, 2, 3 };

    store(&world, &(uint64_t){ 902 }, 903, 3);
    store(&world, &(uint64_t){ 901 }, 902, 2);
    assert_int_equal(world.out.event_count, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 2);

    store(&world, NULL, 901, 1);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 0);
    assert_int_equal(world.out.block_count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(world.out.blocks[i].value == name_of(path, i + 1).value);
    }
    assert_int_equal(held(&world), 3);
    end_world(&world);
}

static void engine_names_need_no_parent(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_ENGINE);

    store(&world, &(uint64_t){ 901 }, 902, 2);
    assert_one_event(&world, KVB_ROUTER_STORED, 1);
    assert_true(world.out.blocks[0].value == 902);
    assert_true(world.out.events[0].parent.value == 901);
    end_world(&world);
}

/* SGLang names the salt in each event. */
static void a_child_with_a_salt_of_its_own_uses_it(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);
    const uint32_t two = 2;
    const kvb_span salt = { .data = (const uint8_t *)"tenant-a", .len = 8 };
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, salt);

    store(&world, NULL, 901, 1);
    add_stored(&world.batch, &(uint64_t){ 901 }, &(uint64_t){ 902 }, &two, 1);
    assert_ok(kvb_event_batch_add_text(&world.batch, salt, &last_event(&world.batch)->salt));
    apply(&world);
    assert_true(world.out.tokens[0].value == kvb_tokens_hash_of(&two, 1, NULL, 0, seed).value);
    end_world(&world);
}

/* A block that is announced again without its salt is still the same block, and so are its
 * children. */
static void a_child_of_a_waiting_block_inherits_the_salt(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);
    const kvb_span salt = { .data = (const uint8_t *)"tenant-a", .len = 8 };
    const uint64_t hashes[] = { 902, 903 };
    const uint32_t tokens[] = { 2, 3 };

    add_stored(&world.batch, &(uint64_t){ 901 }, hashes, tokens, 1);
    assert_ok(kvb_event_batch_add_text(&world.batch, salt, &last_event(&world.batch)->salt));
    add_stored(&world.batch, &(uint64_t){ 901 }, hashes, tokens, 2);
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 2);
    add_stored(&world.batch, NULL, &(uint64_t){ 901 }, &(uint32_t){ 1 }, 1);
    assert_ok(kvb_event_batch_add_text(&world.batch, salt, &last_event(&world.batch)->salt));
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 0);
    assert_int_equal(held(&world), 3);
    end_world(&world);
}

/* Offloading names blocks without their tokens. */
static void a_tokenless_store_moves_known_blocks_only(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);
    const uint64_t hashes[] = { 901, 999 };

    store(&world, NULL, 901, 1);
    remove_one(&world, 901);
    store(&world, NULL, 901, 1);
    add_stored(&world.batch, NULL, hashes, NULL, 2);
    last_event(&world.batch)->tier = KVB_TIER_HOST;
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->no_tokens, 1);
    remove_one(&world, 901);
    assert_one_event(&world, KVB_ROUTER_REMOVED, 1);
    end_world(&world);
}

/* With the engine's names a block is held even without tokens. Tokens that arrive later belong to
 * the same block. */
static void with_engine_names_a_tokenless_store_is_a_block(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_ENGINE);
    const uint32_t token = 1;
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, (kvb_span){ 0 });

    add_stored(&world.batch, NULL, &(uint64_t){ 901 }, NULL, 1);
    apply(&world);
    assert_one_event(&world, KVB_ROUTER_STORED, 1);
    assert_true(world.out.blocks[0].value == 901 && world.out.tokens[0].value == 901);
    add_stored(&world.batch, NULL, &(uint64_t){ 901 }, NULL, 1);
    last_event(&world.batch)->tier = KVB_TIER_HOST;
    apply(&world);
    assert_int_equal(world.out.event_count, 0); /* the block is known in another tier */
    store(&world, NULL, 901, token);
    assert_int_equal(world.out.event_count, 2); /* removed and stored again */
    assert_true(world.out.tokens[1].value == kvb_tokens_hash_of(&token, 1, NULL, 0, seed).value);
    assert_int_equal(kvb_mirror_count(world.mirror)->aliases, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->shapes[0].shape.block_size, 1);
    remove_one(&world, 901);
    remove_one(&world, 901);
    assert_int_equal(held(&world), 0);
    add_removed(&world.batch, &(uint64_t){ 901 }, 1);
    last_event(&world.batch)->tier = KVB_TIER_HOST;
    apply(&world);
    /* the block is still held */
    assert_int_equal(kvb_mirror_count(world.mirror)->unknown_removed, 0);
    end_world(&world);
}

static void a_block_that_names_itself_as_parent_is_refused_whole(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);

    store(&world, &(uint64_t){ 901 }, 901, 1);
    assert_int_equal(world.out.event_count, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->self_parents, 1);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 0);
    end_world(&world);
}

static void an_engine_hash_with_other_content_takes_the_new_content(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);

    store(&world, NULL, 901, 1);
    store(&world, NULL, 901, 7);
    assert_int_equal(kvb_mirror_count(world.mirror)->aliases, 1);
    assert_int_equal(world.out.event_count, 2);
    assert_int_equal(world.out.events[0].kind, KVB_ROUTER_REMOVED);
    assert_int_equal(world.out.events[1].kind, KVB_ROUTER_STORED);
    assert_int_equal(held(&world), 1);
    end_world(&world);
}

static void blocks_that_no_query_can_name_are_kept_apart(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);

    add_stored(&world.batch, NULL, &(uint64_t){ 901 }, &(uint32_t){ 1 }, 1);
    assert_ok(kvb_event_batch_reserve_extras(&world.batch, 1));
    world.batch.extras[0] = (struct kvb_block_extra){ .unmatchable = true };
    world.batch.extra_count = 1;
    last_event(&world.batch)->extra_count = 1;
    apply(&world);
    store(&world, &(uint64_t){ 901 }, 902, 2);
    assert_int_equal(world.out.event_count, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->unmatchable, 2);
    end_world(&world);
}

static void clear_tier(struct world *world, enum kvb_tier tier)
{
    add_cleared(&world->batch);
    last_event(&world->batch)->all_tiers = false;
    last_event(&world->batch)->tier = tier;
    apply(world);
}

static void clearing_one_tier_leaves_the_others(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);

    store(&world, NULL, 901, 1);
    clear_tier(&world, KVB_TIER_HOST);
    assert_int_equal(world.out.event_count, 0);
    assert_int_equal(held(&world), 1);
    clear_tier(&world, KVB_TIER_DEVICE);
    assert_one_event(&world, KVB_ROUTER_REMOVED, 1);
    assert_int_equal(held(&world), 0);
    end_world(&world);
}

static void doubtful_blocks_have_a_ceiling_but_stay_in_the_sum(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);

    for (uint32_t i = 1; i <= 100; i++) {
        store(&world, NULL, 900 + i, i);
        store(&world, NULL, 900 + i, i);
        remove_one(&world, 900 + i);
    }
    const struct kvb_mirror_counts *counts = kvb_mirror_count(world.mirror);
    assert_int_equal(counts->doubtful, 100);
    assert_int_equal(counts->forgotten_doubtful, 36); /* the ceiling of doubtful blocks is 64 */
    remove_one(&world, 901);                          /* the oldest one is forgotten */
    assert_int_equal(counts->unknown_removed, 1);
    end_world(&world);
}

static kvb_status note_shown(void *context, struct kvb_router_batch *chunk)
{
    struct kvb_router_batch *all = context;

    for (size_t i = 0; i < chunk->event_count; i++) {
        const struct kvb_router_event *event = &chunk->events[i];
        KVB_TRY(kvb_router_batch_add_event(all, event));
        for (size_t b = event->block_at; b < event->block_at + event->block_count; b++) {
            KVB_TRY(kvb_router_batch_add_block(all, chunk->blocks[b], chunk->tokens[b]));
        }
    }
    return KVB_OK;
}

/* Shows all with chunks of each size up to `count`, the number of blocks held. */
static void assert_parents_first(const struct world *world, size_t count)
{
    struct kvb_router_batch all = { 0 };

    for (size_t chunk = 1; chunk <= count + 1; chunk++) {
        kvb_router_batch_reset(&all);
        assert_ok(show_all(world->mirror, chunk, note_shown, &all));
        assert_int_equal(all.block_count, count);
        for (size_t i = 0; i < all.event_count; i++) {
            bool is_known = !all.events[i].has_parent;
            for (size_t b = 0; b < all.events[i].block_at; b++) {
                is_known |= all.blocks[b].value == all.events[i].parent.value;
            }
            assert_true(is_known);
        }
    }
    kvb_router_batch_done(&all);
}

/* A tree of three prompts: 1-2-3-4, 1-2-5, 6. */
static void all_blocks_are_shown_parents_first(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);
    const uint64_t hashes[] = { 901, 902, 903, 904 };
    const uint32_t tokens[] = { 1, 2, 3, 4 };

    add_stored(&world.batch, NULL, hashes, tokens, 4);
    add_stored(&world.batch, &hashes[1], &(uint64_t){ 905 }, &(uint32_t){ 5 }, 1);
    add_stored(&world.batch, NULL, &(uint64_t){ 906 }, &(uint32_t){ 6 }, 1);
    apply(&world);
    assert_parents_first(&world, 6);
    end_world(&world);
}

static void a_parent_is_shown_before_a_child_that_took_an_earlier_place(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL);

    store(&world, NULL, 901, 1);
    store(&world, NULL, 902, 2);
    remove_one(&world, 901);
    store(&world, &(uint64_t){ 902 }, 903, 3); /* in the entry of 901 */
    assert_parents_first(&world, 2);
    end_world(&world);
}

static kvb_status do_everything(struct world *world)
{
    struct kvb_router_batch all = { 0 };
    kvb_status status = KVB_OK;

    kvb_router_batch_reset(&world->out);
    for (size_t at = 0; status == KVB_OK && at < world->batch.event_count; at++) {
        status = apply_event(world->mirror, &world->batch, at, UINT64_MAX, &world->out);
    }
    if (status == KVB_OK) {
        status = show_all(world->mirror, 2, note_shown, &all);
    }
    kvb_router_batch_done(&all);
    return status;
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 100,
                                                .tiers = 1U << KVB_TIER_DEVICE,
                                                .lora_name = "adapter-a" };
    const uint64_t hashes[] = { 901, 902, 903 };
    const uint32_t tokens[] = { 1, 2, 3 };
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct world world = { 0 };
        add_stored(&world.batch, &hashes[0], &hashes[1], &tokens[1], 2);
        add_stored(&world.batch, NULL, hashes, tokens, 1);
        last_event(&world.batch)->key = 7;
        add_removed(&world.batch, hashes, 1);
        add_stored(&world.batch, NULL, hashes, tokens, 1);
        add_stored(&world.batch, NULL, hashes, tokens, 1);
        add_removed(&world.batch, hashes, 1); /* doubtful from here on */
        fail_alloc_after(n);
        status = kvb_mirror_new(&options, &world.mirror);
        if (status == KVB_OK) {
            status = do_everything(&world);
        }
        fail_alloc_after(-1);
        end_world(&world);
        assert_true(n < 200);
    }
    assert_ok(status);
}

static void refuses_more_blocks_than_its_ceiling(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 2, .tiers = 1U << KVB_TIER_DEVICE };
    struct world world = { 0 };
    const uint64_t hashes[] = { 901, 902, 903 };
    const uint32_t tokens[] = { 1, 2, 3 };

    assert_ok(kvb_mirror_new(&options, &world.mirror));
    add_stored(&world.batch, NULL, hashes, tokens, 3);
    assert_int_equal(
        apply_event(world.mirror, &world.batch, 0, UINT64_MAX, &world.out), KVB_TOO_LARGE);
    end_world(&world);
}

SUITE(mirror)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_without_its_parent_waits_and_is_published_parents_first),
        cmocka_unit_test(engine_names_need_no_parent),
        cmocka_unit_test(a_child_with_a_salt_of_its_own_uses_it),
        cmocka_unit_test(a_child_of_a_waiting_block_inherits_the_salt),
        cmocka_unit_test(a_tokenless_store_moves_known_blocks_only),
        cmocka_unit_test(with_engine_names_a_tokenless_store_is_a_block),
        cmocka_unit_test(a_block_that_names_itself_as_parent_is_refused_whole),
        cmocka_unit_test(an_engine_hash_with_other_content_takes_the_new_content),
        cmocka_unit_test(blocks_that_no_query_can_name_are_kept_apart),
        cmocka_unit_test(clearing_one_tier_leaves_the_others),
        cmocka_unit_test(doubtful_blocks_have_a_ceiling_but_stay_in_the_sum),
        cmocka_unit_test(all_blocks_are_shown_parents_first),
        cmocka_unit_test(a_parent_is_shown_before_a_child_that_took_an_earlier_place),
        cmocka_unit_test(refuses_more_blocks_than_its_ceiling),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
