#include "kvb_test.h"

#include "batch_maker.h"
#include "core/limits.h"
#include "core/status.h"
#include "index/block_hash.h"
#include "stream/mirror/mirror.h"

#include <stdio.h>
#include <string.h>

/* A mirror of many blocks, compared block by block with what it must hold. */

enum { prompts = 300, blocks = 40, a_stored = 10, salts = 7 };

static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 99 };

struct world {
    enum kvb_hashes hashes;
    struct kvb_mirror *mirror;
    struct kvb_event_batch batch;
    struct kvb_router_batch out;
    size_t held[prompts]; /* number of blocks held of each prompt, from its beginning */
};

static struct world new_world(enum kvb_hashes hashes, size_t max_blocks)
{
    const struct kvb_mirror_options options = { .hashes = hashes,
                                                .max_blocks = max_blocks,
                                                .tiers = 1U << KVB_TIER_DEVICE };
    struct world world = { .hashes = hashes };

    assert_ok(kvb_mirror_new(&options, &world.mirror));
    kvb_mirror_begin_digest(world.mirror, &key);
    return world;
}

static void end_world(struct world *world)
{
    kvb_mirror_free(world->mirror);
    kvb_event_batch_done(&world->batch);
    kvb_router_batch_done(&world->out);
}

static void apply(struct world *world)
{
    apply_batch(world->mirror, &world->batch, &world->out);
}

static uint64_t engine_name(size_t prompt, size_t block)
{
    return (prompt + 1) * 1000 + block;
}

static uint32_t token_of(size_t prompt, size_t block)
{
    return (uint32_t)(prompt * 7 + block);
}

static kvb_span salt_of(size_t prompt, char text[16])
{
    const int len = snprintf(text, 16, "tenant-%zu", prompt % salts);

    return (kvb_span){ .data = (const uint8_t *)text, .len = (size_t)len };
}

/* Only the first BlockStored of a prompt has its salt. */
static void store_prompt(struct world *world, size_t prompt)
{
    char text[16];

    for (size_t from = world->held[prompt]; from < blocks;) {
        const size_t end = (from / a_stored + 1) * a_stored;
        uint64_t names[a_stored];
        uint32_t tokens[a_stored];
        for (size_t block = from; block < end; block++) {
            names[block - from] = engine_name(prompt, block);
            tokens[block - from] = token_of(prompt, block);
        }
        const uint64_t parent = engine_name(prompt, from) - 1;
        add_stored(&world->batch, from ? &parent : NULL, names, tokens, end - from);
        if (from == 0) {
            assert_ok(kvb_event_batch_add_text(
                &world->batch, salt_of(prompt, text), &last_event(&world->batch)->salt));
        }
        from = end;
    }
    world->held[prompt] = blocks;
}

/* The last block is removed first, as in engines. */
static void cut_prompt(struct world *world, size_t prompt, size_t left)
{
    while (world->held[prompt] > left) {
        world->held[prompt]--;
        add_removed(&world->batch, &(uint64_t){ engine_name(prompt, world->held[prompt]) }, 1);
    }
}

static void each_prompt(struct world *world, void (*change)(struct world *world, size_t prompt))
{
    for (size_t prompt = 0; prompt < prompts; prompt++) {
        change(world, prompt);
        if (prompt % 50 == 0) {
            apply(world);
        }
    }
    apply(world);
}

static void thin_out(struct world *world, size_t prompt)
{
    const size_t left[] = { 0, blocks, blocks - 5, blocks / 2 };

    cut_prompt(world, prompt, left[prompt % 4]);
}

static void remove_all(struct world *world, size_t prompt)
{
    cut_prompt(world, prompt, 0);
}

/* ---- What it must hold ---- */

static void add_prompt(const struct world *world, size_t prompt, struct kvb_digest *digest)
{
    char text[16];
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, salt_of(prompt, text));
    kvb_block_hash name = { 0 };

    for (size_t block = 0; block < world->held[prompt]; block++) {
        const uint32_t token = token_of(prompt, block);
        const kvb_tokens_hash tokens = kvb_tokens_hash_of(&token, 1, NULL, 0, seed);
        name = block ? kvb_block_hash_next(name, tokens) : kvb_block_hash_root(tokens);
        if (world->hashes == KVB_HASHES_ENGINE) {
            name.value = engine_name(prompt, block);
        }
        kvb_digest_add(digest, &key, KVB_TIER_DEVICE, name);
    }
}

static void assert_holds_what_it_must(const struct world *world)
{
    const struct kvb_digest *digest = kvb_mirror_digest(world->mirror, KVB_TIER_DEVICE);
    struct kvb_digest expected = { 0 };
    size_t held = 0;

    for (size_t prompt = 0; prompt < prompts; prompt++) {
        add_prompt(world, prompt, &expected);
        held += world->held[prompt];
    }
    assert_int_equal(kvb_mirror_count(world->mirror)->held[KVB_TIER_DEVICE], held);
    assert_int_equal(kvb_mirror_count(world->mirror)->proven_copies, held);
    assert_memory_equal(digest, &expected, sizeof expected);
}

static void run_through(enum kvb_hashes hashes)
{
    struct world world = new_world(hashes, (size_t)prompts * blocks);

    each_prompt(&world, store_prompt);
    assert_holds_what_it_must(&world);
    each_prompt(&world, thin_out);
    assert_holds_what_it_must(&world);
    each_prompt(&world, store_prompt);
    assert_holds_what_it_must(&world);
    each_prompt(&world, remove_all);
    assert_holds_what_it_must(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->unknown_removed, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->aliases, 0);
    each_prompt(&world, store_prompt);
    assert_holds_what_it_must(&world);
    end_world(&world);
}

static void many_blocks_are_held_under_rolling_names(void **state)
{
    (void)state;
    run_through(KVB_HASHES_CANONICAL);
}

static void many_blocks_are_held_under_the_engines_names(void **state)
{
    (void)state;
    run_through(KVB_HASHES_ENGINE);
}

/* ---- Walks, with the engine's names ------------------- */

struct walked {
    const struct world *world;
    bool is_shown[prompts][blocks];
    size_t count;
};

static void note_block(struct walked *walked, kvb_block_hash name)
{
    bool *is_shown = &walked->is_shown[name.value / 1000 - 1][name.value % 1000];

    assert_false(*is_shown);
    *is_shown = true;
    walked->count++;
}

static kvb_status note_chunk(void *context, struct kvb_router_batch *chunk)
{
    struct walked *walked = context;

    for (size_t i = 0; i < chunk->event_count; i++) {
        const struct kvb_router_event *event = &chunk->events[i];
        const uint64_t parent = event->has_parent ? event->parent.value : 0;
        if (parent) {
            assert_true(walked->is_shown[parent / 1000 - 1][parent % 1000]);
        }
        for (size_t b = 0; b < event->block_count; b++) {
            note_block(walked, chunk->blocks[event->block_at + b]);
        }
    }
    return KVB_OK;
}

static void each_of_many_blocks_is_shown_once_and_after_its_parent(void **state)
{
    (void)state;
    static struct walked walked;
    struct world world = new_world(KVB_HASHES_ENGINE, (size_t)prompts * blocks);

    each_prompt(&world, store_prompt);
    each_prompt(&world, thin_out);
    each_prompt(&world, store_prompt); /* into entries that became free in another order */
    each_prompt(&world, thin_out);
    memset(&walked, 0, sizeof walked);
    walked.world = &world;
    assert_ok(show_all(world.mirror, 100, note_chunk, &walked));
    assert_int_equal(walked.count, kvb_mirror_count(world.mirror)->held[KVB_TIER_DEVICE]);
    end_world(&world);
}

static kvb_status count_blocks(void *context, struct kvb_router_batch *chunk)
{
    *(size_t *)context += chunk->block_count;
    return KVB_OK;
}

/* An engine may publish such events under its own names. */
static void blocks_in_a_circle_are_shown_too(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_ENGINE, (size_t)prompts * blocks);
    size_t count = 0;

    for (uint64_t i = 0; i < 3; i++) {
        add_stored(
            &world.batch, &(uint64_t){ 901 + (i + 1) % 3 }, &(uint64_t){ 901 + i },
            &(uint32_t){ 1 }, 1);
    }
    apply(&world);
    assert_ok(show_all(world.mirror, 100, count_blocks, &count));
    assert_int_equal(count, 3);
    end_world(&world);
}

/* ---- Long events ---- */

struct links {
    size_t blocks;
    uint64_t last; /* the newest published block */
};

/* Each event continues where the one before ended. */
static kvb_status follow_chain(void *context, struct kvb_router_batch *chunk)
{
    struct links *links = context;

    for (size_t at = 0; at < chunk->event_count; at++) {
        const struct kvb_router_event *event = &chunk->events[at];
        assert_in_range(event->block_count, 1, kvb_max_event_blocks);
        assert_int_equal(event->has_parent, links->blocks > 0);
        assert_int_equal(event->parent.value, links->last);
        links->blocks += event->block_count;
        links->last = chunk->blocks[event->block_at + event->block_count - 1].value;
    }
    return KVB_OK;
}

enum { chain = 3 * kvb_max_event_blocks + 7 };

static void no_event_is_longer_than_a_message_may_be(void **state)
{
    static uint64_t names[chain];
    static uint32_t tokens[chain];
    struct links applied = { 0 };
    struct links walked = { 0 };

    (void)state;
    struct world world = new_world(KVB_HASHES_ENGINE, chain);
    for (uint32_t i = 0; i < chain; i++) {
        names[i] = i + 1;
        tokens[i] = i;
    }
    add_stored(&world.batch, NULL, names, tokens, chain);
    apply(&world);
    assert_ok(follow_chain(&applied, &world.out));
    assert_int_equal(applied.blocks, chain);
    assert_ok(show_all(world.mirror, (size_t)8 * kvb_max_event_blocks, follow_chain, &walked));
    assert_int_equal(walked.blocks, chain);
    end_world(&world);
}

/* Three blocks end the step, although it may look at more entries. */
static void a_step_has_at_most_the_requested_number_of_blocks(void **state)
{
    struct world world = new_world(KVB_HASHES_ENGINE, (size_t)prompts * blocks);
    struct kvb_router_batch out = { 0 };
    const struct kvb_picture_part part = { .max_blocks = 3, .max_looks = 1000 };
    struct kvb_picture picture = { .lists = kvb_picture_all_lists };
    bool is_done = false;
    size_t count = 0;

    (void)state;
    store_prompt(&world, 0);
    apply(&world);
    while (!is_done) {
        kvb_router_batch_reset(&out);
        assert_ok(kvb_picture_step(&picture, world.mirror, &part, &out, &is_done));
        assert_in_range(out.block_count, 0, 3);
        count += out.block_count;
    }
    assert_int_equal(count, blocks);
    kvb_router_batch_done(&out);
    end_world(&world);
}

/* ---- Salts ---- */

/* The salt is the number of the prompt, and its second block inherits it. */
static void store_salted(struct world *world, uint32_t prompt)
{
    const kvb_span salt = { .data = (const uint8_t *)&prompt, .len = sizeof prompt };
    const uint64_t parent = engine_name(prompt, 0);
    const uint32_t tokens[] = { 1, 2 };

    add_stored(&world->batch, NULL, &parent, tokens, 1);
    assert_ok(kvb_event_batch_add_text(&world->batch, salt, &last_event(&world->batch)->salt));
    apply(world);
    add_stored(&world->batch, &parent, &(uint64_t){ parent + 1 }, &tokens[1], 1);
    apply(world);
    assert_int_equal(world->out.block_count, 1);
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, salt);
    assert_true(
        world->out.tokens[0].value == kvb_tokens_hash_of(&tokens[1], 1, NULL, 0, seed).value);
}

static void remove_salted(struct world *world, uint32_t from, uint32_t to)
{
    for (uint32_t prompt = from; prompt < to; prompt++) {
        const uint64_t first = engine_name(prompt, 0);
        add_removed(&world->batch, (const uint64_t[]){ first + 1, first }, 2);
    }
    apply(world);
    assert_int_equal(world->out.block_count, 2 * (to - from));
}

/* As many salts at once as there may be blocks; salts of removed prompts must not count. */
static void a_salt_of_each_prompt_is_freed_with_it(void **state)
{
    (void)state;
    struct world world = new_world(KVB_HASHES_CANONICAL, 200);

    for (uint32_t prompt = 0; prompt < 1000; prompt++) {
        store_salted(&world, prompt);
        if (prompt % 50 == 49 && prompt > 50) {
            remove_salted(&world, prompt - 99, prompt - 49);
        }
    }
    assert_int_equal(kvb_mirror_count(world.mirror)->held[KVB_TIER_DEVICE], 100);
    end_world(&world);
}

SUITE(mirror_large)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_blocks_are_held_under_rolling_names),
        cmocka_unit_test(many_blocks_are_held_under_the_engines_names),
        cmocka_unit_test(each_of_many_blocks_is_shown_once_and_after_its_parent),
        cmocka_unit_test(blocks_in_a_circle_are_shown_too),
        cmocka_unit_test(no_event_is_longer_than_a_message_may_be),
        cmocka_unit_test(a_step_has_at_most_the_requested_number_of_blocks),
        cmocka_unit_test(a_salt_of_each_prompt_is_freed_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
