#include "kvb_test.h"

#include "batch_maker.h"
#include "index/block_hash.h"
#include "mirror_scene.h"

#include <stdlib.h>
#include <string.h>

/* Random engines with a device and an offload connector, against a plain reader.
 *
 * The device names salts, and stores prompts from the root on.  The connector stores blocks one by
 * one in any order, or chunks of two that overlap; most of its events hide the extra keys, some
 * have them.  What the reader knows of a hash:
 *
 *     said        an event that is still counted has said what the block is
 *     copies      stored less removed, in each tier
 *
 * A tier lists a block while it has copies there and is said. */

enum {
    worlds = 400,
    batches = 60,
    families = 3,
    depth = 6,
    branches = 3,
    prompts = families * branches,
    blocks = prompts * depth,
    tiers = 2 /* device and host */
};

struct block {
    uint64_t hash;
    uint32_t token;
    size_t parent; /* index; blocks: none */
    const char *salt;
    kvb_block_hash name;
    bool is_said;
    int copies[tiers];
};

struct world {
    struct mirror_scene scene;
    struct block blocks[blocks];
    unsigned seed;
    bool is_reset; /* the device was cleared, the host was not */
    size_t hidden; /* blocks of the host whose content was not said, at some check */
};

static size_t draw(struct world *world, size_t below)
{
    return (size_t)rand_r(&world->seed) % below;
}

static kvb_span span_of(const char *text)
{
    return (kvb_span){ .data = (const uint8_t *)text, .len = strlen(text) };
}

/* Block `at` of each prompt is of branch 0 up to the middle, and of the prompt's own branch behind
 * it.  Two families have the same tokens and other salts. */
static void make_blocks(struct world *world)
{
    static const char *const salts[families] = { "", "tenant-a", "tenant-b" };

    for (size_t i = 0; i < blocks; i++) {
        struct block *block = &world->blocks[i];
        const size_t at = i % depth;
        const size_t branch = i / depth % branches;
        const size_t family = i / depth / branches;
        *block = (struct block){ .hash = 1000 + 7 * i,
                                 .token = (uint32_t)(10 * at + (at < depth / 2 ? 0 : branch)),
                                 .parent = at == 0 ? blocks : i - 1,
                                 .salt = salts[family] };
        if (at < depth / 2) { /* shared: the entry of branch 0 stands for all */
            block->hash = world->blocks[i - branch * depth].hash;
            block->hash = branch == 0 ? 1000 + 7 * i : block->hash;
        }
        const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, span_of(block->salt));
        const kvb_tokens_hash tokens = kvb_tokens_hash_of(&block->token, 1, NULL, 0, seed);
        block->name = at == 0 ? kvb_block_hash_root(tokens)
                              : kvb_block_hash_next(world->blocks[i - 1].name, tokens);
    }
}

/* The block that stands for this one: prompts of a family share their first half. */
static struct block *shared(struct world *world, size_t i)
{
    const size_t branch = i / depth % branches;

    return &world->blocks[i % depth < depth / 2 ? i - branch * depth : i];
}

static bool is_known(const struct block *block)
{
    return block->copies[0] + block->copies[1] > 0;
}

static void say(struct world *world, bool has_keys, const char *salt)
{
    struct kvb_engine_event *event = last_event(&world->scene.batch);

    event->has_group = true;
    event->has_extra_keys = has_keys;
    event->is_of_connector = !has_keys;
    if (has_keys && !event->has_parent) {
        assert_ok(kvb_event_batch_add_text(&world->scene.batch, span_of(salt), &event->salt));
    }
}

/* Blocks i .. i + count - 1 of a prompt. */
static void store(struct world *world, size_t tier, size_t i, size_t count, bool has_keys)
{
    uint64_t hashes[depth];
    uint32_t tokens[depth];
    const uint64_t *parent = i % depth == 0 ? NULL : &shared(world, i - 1)->hash;

    for (size_t k = 0; k < count; k++) {
        struct block *block = shared(world, i + k);
        hashes[k] = block->hash;
        tokens[k] = block->token;
        block->is_said = has_keys || (block->is_said && is_known(block));
        block->copies[tier]++;
    }
    add_stored(&world->scene.batch, parent, hashes, tokens, count);
    last_event(&world->scene.batch)->tier = (enum kvb_tier)tier;
    say(world, has_keys, shared(world, i)->salt);
}

static void store_on_device(struct world *world)
{
    const size_t prompt = draw(world, prompts) * depth;
    const size_t end = 1 + draw(world, depth);
    size_t at = 0;

    while (at < end && shared(world, prompt + at)->copies[KVB_TIER_DEVICE] > 0) {
        at++;
    }
    if (at < end) {
        store(world, KVB_TIER_DEVICE, prompt + at, end - at, true);
    } else if (end == 1) {
        store(world, KVB_TIER_DEVICE, prompt, 1, true); /* a second copy */
    }
}

/* Copies what the device holds, and blocks of which this reader has never heard. */
static void store_on_host(struct world *world)
{
    const size_t i = draw(world, blocks);
    const struct block *before = i % depth == 0 ? NULL : shared(world, i - 1);
    const bool is_rooted = !before || (is_known(before) && before->is_said);
    const bool is_chunk = i % 2 == 0 && draw(world, 3) == 0;

    /* an event that says what it stores is understood behind a parent that is */
    store(world, KVB_TIER_HOST, i, is_chunk ? 2 : 1, is_rooted && draw(world, 8) == 0);
}

/* What an event of the host says of a block of the device is not believed. */
static void contradict(struct world *world)
{
    const size_t i = draw(world, prompts) * depth;

    if (shared(world, i)->copies[KVB_TIER_DEVICE] > 0) {
        store(world, KVB_TIER_HOST, i, 1, true);
        last_event(&world->scene.batch)->salt = (struct kvb_text_ref){ 0 };
        assert_ok(kvb_event_batch_add_text(
            &world->scene.batch, span_of("nobody"), &last_event(&world->scene.batch)->salt));
    }
}

static void remove_some(struct world *world, size_t tier)
{
    const size_t i = draw(world, blocks);
    struct block *block = shared(world, i);
    bool is_leaf = true;

    for (size_t k = 0; k < blocks; k++) {
        const struct block *child = shared(world, k);
        const bool is_below = k % depth > 0 && shared(world, k - 1) == block;
        is_leaf &= !is_below || child->copies[KVB_TIER_DEVICE] == 0;
    }
    if (block->copies[tier] > 0 && (is_leaf || tier == KVB_TIER_HOST)) {
        add_removed(&world->scene.batch, &block->hash, 1);
        last_event(&world->scene.batch)->tier = (enum kvb_tier)tier;
        last_event(&world->scene.batch)->has_group = true;
        block->copies[tier]--;
    }
}

static void clear(struct world *world, size_t tier)
{
    add_cleared(&world->scene.batch);
    if (tier == KVB_TIER_DEVICE) {
        last_event(&world->scene.batch)->leaves_tiers = true;
    } else {
        last_event(&world->scene.batch)->all_tiers = false;
        last_event(&world->scene.batch)->tier = (enum kvb_tier)tier;
    }
    bool is_offloaded = false;
    for (size_t i = 0; i < blocks; i++) {
        is_offloaded |= world->blocks[i].copies[KVB_TIER_HOST] > 0;
        world->blocks[i].copies[tier] = 0;
    }
    world->is_reset = tier == KVB_TIER_DEVICE && is_offloaded;
}

static void act(struct world *world)
{
    switch (draw(world, 12)) {
    case 0:
    case 1:
    case 2:
        store_on_device(world);
        break;
    case 3:
    case 4:
    case 5:
    case 6:
        store_on_host(world);
        break;
    case 7:
        contradict(world);
        break;
    case 8:
        if (draw(world, 6) == 0) {
            clear(world, draw(world, 3) > 0 ? KVB_TIER_DEVICE : KVB_TIER_HOST);
        }
        break;
    default:
        remove_some(world, draw(world, tiers));
        break;
    }
}

static void check(struct world *world)
{
    size_t listed[tiers] = { 0 };

    for (size_t i = 0; i < blocks; i++) {
        const struct block *block = &world->blocks[i];
        for (size_t tier = 0; tier < tiers && block == shared(world, i); tier++) {
            const bool is_listed = block->copies[tier] > 0 && block->is_said;
            assert_int_equal(scene_lists(&world->scene, (unsigned)tier, block->name), is_listed);
            listed[tier] += is_listed;
            world->hidden += block->copies[tier] > 0 && !block->is_said;
        }
    }
    for (size_t tier = 0; tier < tiers; tier++) { /* and nothing else is listed */
        assert_int_equal(world->scene.lists[tier].count, listed[tier]);
    }
    assert_int_equal(
        kvb_mirror_reset_tiers(world->scene.mirror) >> KVB_TIER_HOST & 1, world->is_reset);
    assert_int_equal(kvb_mirror_count(world->scene.mirror)->aliases, 0);
}

static void a_host_adds_copies_to_what_the_device_names(void **state)
{
    static struct world world;
    size_t hidden = 0;
    size_t resets = 0;

    (void)state;
    for (unsigned seed = 1; seed <= worlds; seed++) {
        memset(&world, 0, sizeof world);
        world.seed = seed;
        mirror_scene_begin(
            &world.scene, &(struct kvb_mirror_options){ .copies = KVB_COPIES_COUNTED });
        world.scene.part_work = 1 + draw(&world, 8);
        make_blocks(&world);
        store(
            &world, KVB_TIER_DEVICE, 0, 1, true); /* the device's events have lists: from here on */
        for (size_t i = 0; i < batches; i++) {
            for (size_t events = 1 + draw(&world, 6); events > 0; events--) {
                act(&world);
            }
            mirror_scene_apply(&world.scene);
            check(&world);
            resets += world.is_reset;
        }
        assert_shown_as_published(&world.scene);
        hidden += world.hidden;
        mirror_scene_end(&world.scene);
    }
    assert_true(hidden > worlds); /* the worlds contain what they are about */
    assert_true(resets > worlds);
}

/* A host that only stores: it is dropped whenever it fills the mirror, and the device's list is
 * whole all the time. */
static void a_host_that_fills_the_mirror_is_dropped_before_the_device(void **state)
{
    enum { max = 100, device_blocks = 10, host_blocks = 1000 };
    static struct mirror_scene scene;
    uint64_t drops = 0;

    (void)state;
    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ .max_blocks = max });
    scene.part_work = 7;
    for (uint32_t i = 0; i < host_blocks; i++) {
        const uint64_t hash = i + 1;
        const uint64_t old = hash - device_blocks;
        const size_t before = scene.lists[KVB_TIER_HOST].count;
        add_stored(&scene.batch, NULL, &hash, &i, 1);
        add_stored(&scene.batch, NULL, &hash, &i, 1);
        last_event(&scene.batch)->tier = KVB_TIER_HOST;
        if (i >= device_blocks) {
            add_removed(&scene.batch, &old, 1);
        }
        mirror_scene_apply(&scene);
        for (uint32_t k = 0; k < device_blocks && k <= i; k++) {
            const uint32_t token = i - k;
            assert_true(scene_lists(&scene, KVB_TIER_DEVICE, name_of(&token, 1)));
        }
        assert_true(scene.lists[KVB_TIER_DEVICE].count <= device_blocks);
        drops += scene.lists[KVB_TIER_HOST].count < before;
    }
    assert_in_range(drops, host_blocks / max, 2 * host_blocks / max);
    assert_int_equal(kvb_mirror_dropped_tiers(scene.mirror), 1U << KVB_TIER_HOST);
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);
}

SUITE(mirror_tiers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_adds_copies_to_what_the_device_names),
        cmocka_unit_test(a_host_that_fills_the_mirror_is_dropped_before_the_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
