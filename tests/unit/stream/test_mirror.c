#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_maker.h"
#include "core/own.h"
#include "core/status.h"
#include "index/block_hash.h"
#include "mirror_scene.h"
#include "mirror_script.h"

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
    /* The ceiling is 64: the oldest 36 are forgotten. */
    remove_one(&world, 937);
    assert_int_equal(counts->unknown_removed, 0);
    remove_one(&world, 936);
    assert_int_equal(counts->unknown_removed, 1);
    end_world(&world);
}

/* ---- Many copies and doubts ---- */

static void change_copies(
    struct mirror_scene *scene, enum kvb_event_kind kind, uint64_t hash, size_t times,
    enum kvb_tier tier)
{
    for (size_t i = 0; i < times; i++) {
        if (kind == KVB_EVENT_STORED) {
            add_stored(&scene->batch, NULL, &hash, &(uint32_t){ (uint32_t)hash }, 1);
        } else {
            add_removed(&scene->batch, &hash, 1);
        }
        last_event(&scene->batch)->tier = tier;
    }
    mirror_scene_apply(scene);
}

/* More than a byte can count; in two tiers, so that the last copy of one leaves that of the other.
 */
static void many_certain_copies_are_listed_until_the_last_one_is_removed(void **state)
{
    static const enum kvb_tier tiers[] = { KVB_TIER_DEVICE, KVB_TIER_HOST };
    enum { many = 300 };
    struct mirror_scene scene;

    (void)state;
    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ .copies = KVB_COPIES_COUNTED });
    change_copies(&scene, KVB_EVENT_STORED, 1, many, KVB_TIER_DEVICE);
    change_copies(&scene, KVB_EVENT_STORED, 1, many + 1, KVB_TIER_HOST);
    change_copies(&scene, KVB_EVENT_STORED, 2, many + 2, KVB_TIER_DEVICE);
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, many + many + 2);
    for (size_t i = 0; i < KVB_COUNT_OF(tiers); i++) {
        const size_t count = scene.lists[tiers[i]].count;
        change_copies(&scene, KVB_EVENT_REMOVED, 1, many + i - 1, tiers[i]);
        assert_int_equal(scene.lists[tiers[i]].count, count);
        change_copies(&scene, KVB_EVENT_REMOVED, 1, 1, tiers[i]);
        assert_int_equal(scene.lists[tiers[i]].count, count - 1);
    }
    assert_int_equal(kvb_mirror_count(scene.mirror)->doubtful, 0);
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, many + 2);
    mirror_scene_end(&scene);
}

/* Whether block 1 is certain behind a store of it and of a new block. */
static bool does_new_block_prove(struct mirror_scene *scene)
{
    static const uint64_t hashes[] = { 1, 2, 3 };
    static const uint32_t tokens[] = { 1, 2, 3 };

    add_stored(&scene->batch, NULL, hashes, tokens, 2);
    add_stored(&scene->batch, NULL, hashes, tokens, 3);
    add_removed(&scene->batch, hashes, 1);
    mirror_scene_apply(scene);
    return scene_lists(scene, KVB_TIER_DEVICE, name_of(tokens, 1));
}

/* The ceiling is below 200 doubtful blocks: the oldest are forgotten, but the engine may hold them.
 */
static void a_new_block_proves_nothing_when_doubtful_ones_were_forgotten(void **state)
{
    struct mirror_scene scene;

    (void)state;
    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ 0 });
    for (uint64_t hash = 5000; hash < 5200; hash++) {
        change_copies(&scene, KVB_EVENT_STORED, hash, 2, KVB_TIER_DEVICE);
        change_copies(&scene, KVB_EVENT_REMOVED, hash, 1, KVB_TIER_DEVICE);
    }
    assert_false(does_new_block_prove(&scene));
    add_cleared(&scene.batch); /* after a clear nothing is doubtful */
    mirror_scene_apply(&scene);
    assert_true(does_new_block_prove(&scene));
    mirror_scene_end(&scene);
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
        MIRROR(
            "a block without its parent waits, and is published parents first",
            "mirror, stored 3 parent 2, stored 2 parent 1, publishes 0, unrooted 2, stored 1,"
            "unrooted 0, order 1 1.2 1.2.3, device 3"),
        MIRROR(
            "the engine's names need no parent",
            "mirror names, stored 2 parent 1, order 2, follows 1"),
        /* Offloading names blocks without their tokens. */
        MIRROR(
            "a store without tokens moves known blocks only",
            "mirror, stored 1, removed 1, stored 1, stored 1 2 no-tokens host, without-tokens 1,"
            "removed 1, publishes 1, lacks device 1, has host 1"),
        MIRROR(
            "a block that names itself as parent is refused whole",
            "mirror, stored 1 parent 1, publishes 0, self-parents 1, unrooted 0"),
        MIRROR(
            "a hash with other content takes the new content",
            "mirror, stored 1, stored 1 tokens 7, aliases 1, lacks device 1, has device 7,"
            "device 1"),
        MIRROR(
            "clearing one tier leaves the others",
            "mirror, stored 1, cleared host, publishes 0, has device 1, cleared device,"
            "publishes 1, device 0"),

        /* ---- Copies, or repetitions of blocks that are held ---- */

        /* Other rules apply to the objects of a pool and to other tiers. */
        MIRROR(
            "in another tier a second store is never certain",
            "mirror, stored 1 ; stored 2 parent 1 host, stored 1 ; stored 2 parent 1 host,"
            "removed 2 host, host 0, doubtful 1"),
        /* A block that is not in the mirror may be held by the engine, and stored again. */
        MIRROR(
            "a new block proves nothing while blocks may be missing",
            "mirror, incomplete, stored 1 2, stored 1 3, removed 1, lacks device 1, doubtful 1"),
        MIRROR(
            "a new block before known ones proves nothing either",
            "mirror, incomplete, stored 2 2 parent 1, stored 1 3, has device 1.2, removed 2,"
            "lacks device 1.2"),
        MIRROR(
            "with the engine's names the ancestors are proven too",
            "mirror names, stored 1 3, stored 1 3, removed 1 2 3, doubtful 3, lacks device 1,"
            "stored 4 parent 3, device 4"),

        /* ---- Chunks of an offload connector ---- */

        MIRROR(
            "a chunk without a description is known by its last block",
            "mirror chunk-blocks 4, chunk 4,"
            "stored 1 8 ; stored 4 no-tokens host ; stored 8 no-tokens host, host 8,"
            "removed 8 host, host 4, has host 1.2.3.4, device 8"),
        MIRROR(
            "without its size it is one block",
            "mirror, chunk 1, stored 1 8 ; stored 4 no-tokens host ; stored 8 no-tokens host,"
            "host 2, removed 8 host, host 1, has host 1.2.3.4, device 8"),
        MIRROR(
            "a described chunk says how many blocks it has",
            /* of the device: no chunk */
            "mirror, stored 1 4, chunk 1, stored 1 4 host connector, chunk 4"),

        cmocka_unit_test(a_child_with_a_salt_of_its_own_uses_it),
        cmocka_unit_test(a_child_of_a_waiting_block_inherits_the_salt),
        cmocka_unit_test(with_engine_names_a_tokenless_store_is_a_block),
        cmocka_unit_test(blocks_that_no_query_can_name_are_kept_apart),
        cmocka_unit_test(doubtful_blocks_have_a_ceiling_but_stay_in_the_sum),
        cmocka_unit_test(many_certain_copies_are_listed_until_the_last_one_is_removed),
        cmocka_unit_test(a_new_block_proves_nothing_when_doubtful_ones_were_forgotten),
        cmocka_unit_test(all_blocks_are_shown_parents_first),
        cmocka_unit_test(a_parent_is_shown_before_a_child_that_took_an_earlier_place),
        cmocka_unit_test(refuses_more_blocks_than_its_ceiling),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
