#include "core/clock.h"
#include "parts/bench.h"
#include "stream/mirror/mirror.h"

#include <stdio.h>

/* The rows mirror.*: what a block costs in the bridge's list of what an engine holds, in memory
 * and in time. The hashes of its tokens, the digest and the published events are included.
 *
 * A prompt is one Stored of its first part, then Storeds of one block each, as decoding
 * makes them; the engine evicts the oldest prompt, its last block first. */

enum { block_tokens = 16, held_blocks = 1 << 20, max_prompt_blocks = 64 };

struct shape {
    const char *name;
    uint32_t min, max; /* blocks in a prompt's first Stored */
    uint32_t decoded;  /* blocks stored singly behind it */
};

static const struct shape shapes[] = {
    { "mirror.conversation", 8, 48, 4 },
    { "mirror.one_block_prompts", 1, 1, 0 },
};

struct scene {
    const struct shape *shape;
    struct kvb_mirror *mirror;
    struct kvb_event_batch batch;
    struct kvb_router_batch out;
    uint64_t oldest, newest; /* prompts held: oldest .. newest - 1 */
    uint64_t held;
    uint64_t stored_ns, removed_ns, stored, removed;
};

/* ---- Prompts: derived from their number ---- */

static uint32_t first_part(const struct shape *shape, uint64_t prompt)
{
    return shape->min + (uint32_t)(bench_mix(prompt) % (shape->max - shape->min + 1));
}

static uint32_t whole(const struct shape *shape, uint64_t prompt)
{
    return first_part(shape, prompt) + shape->decoded;
}

static kvb_engine_hash name_of(uint64_t prompt, uint32_t block)
{
    return (kvb_engine_hash){ bench_mix(prompt * max_prompt_blocks + block) };
}

static struct kvb_engine_event *
add_event(struct scene *scene, enum kvb_event_kind kind, uint32_t blocks)
{
    struct kvb_event_batch *batch = &scene->batch;

    bench_must(kvb_event_batch_reserve_events(batch, 1), "an event");
    bench_must(kvb_event_batch_reserve_hashes(batch, blocks), "its hashes");
    struct kvb_engine_event *event = &batch->events[batch->event_count++];
    *event = (struct kvb_engine_event){ .kind = kind,
                                        .hash_at = (uint32_t)batch->hash_count,
                                        .hash_count = blocks };
    batch->hash_count += blocks;
    return event;
}

/* Blocks first .. first + count - 1 of the prompt. */
static void add_stored(struct scene *scene, uint64_t prompt, uint32_t first, uint32_t count)
{
    struct kvb_event_batch *batch = &scene->batch;
    struct kvb_engine_event *event = add_event(scene, KVB_EVENT_STORED, count);

    bench_must(kvb_event_batch_reserve_tokens(batch, (size_t)count * block_tokens), "its tokens");
    event->block_size = block_tokens;
    event->token_at = (uint32_t)batch->token_count;
    event->token_count = count * block_tokens;
    event->has_parent = first > 0;
    event->parent = first > 0 ? name_of(prompt, first - 1) : (kvb_engine_hash){ 0 };
    for (uint32_t i = 0; i < count; i++) {
        batch->hashes[event->hash_at + i] = name_of(prompt, first + i);
    }
    for (uint32_t i = 0; i < event->token_count; i++) {
        batch->tokens[batch->token_count++] =
            (uint32_t)(prompt * 7919 + (uint64_t)first * block_tokens + i);
    }
}

static void add_removed(struct scene *scene, uint64_t prompt)
{
    const uint32_t count = whole(scene->shape, prompt);
    const struct kvb_engine_event *event = add_event(scene, KVB_EVENT_REMOVED, count);

    for (uint32_t i = 0; i < count; i++) {
        scene->batch.hashes[event->hash_at + i] = name_of(prompt, count - 1 - i);
    }
}

/* ---- Running ---- */

/* Applies the batch and empties it; returns ns. */
static uint64_t apply(struct scene *scene)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    kvb_router_batch_reset(&scene->out);
    kvb_mirror_expect_batch(scene->mirror, &scene->batch);
    kvb_mirror_begin_batch(scene->mirror, &scene->out);
    for (size_t at = 0; at < scene->batch.event_count; at++) {
        uint64_t work = UINT64_MAX;
        bench_must(
            kvb_mirror_apply(scene->mirror, &scene->batch, at, &work, &scene->out), "the mirror");
    }
    const uint64_t ns = kvb_clock_monotonic_ns() - began_ns;
    kvb_event_batch_reset(&scene->batch);
    return ns;
}

/* Prompts are stored and removed in groups of blocks so large that the clock's cost does not
 * matter. */
enum { round_blocks = 512 };

static void store_round(struct scene *scene)
{
    uint64_t blocks = 0;

    while (blocks < round_blocks) {
        const uint32_t first = first_part(scene->shape, scene->newest);
        add_stored(scene, scene->newest, 0, first);
        for (uint32_t i = 0; i < scene->shape->decoded; i++) {
            add_stored(scene, scene->newest, first + i, 1);
        }
        blocks += whole(scene->shape, scene->newest++);
    }
    scene->stored_ns += apply(scene);
    scene->stored += blocks;
    scene->held += blocks;
}

static void remove_round(struct scene *scene)
{
    uint64_t blocks = 0;

    while (blocks < round_blocks) {
        blocks += whole(scene->shape, scene->oldest);
        add_removed(scene, scene->oldest++);
    }
    scene->removed_ns += apply(scene);
    scene->removed += blocks;
    scene->held -= blocks;
}

static void
say(const struct bench *bench, const char *row, const char *figure, double value, const char *unit)
{
    char name[96];

    (void)snprintf(name, sizeof name, "%s.%s", row, figure);
    if (bench_wants(bench, name)) {
        bench_figure(name, value, unit);
    }
}

static void measure(const struct bench *bench, const struct shape *shape)
{
    const struct kvb_mirror_options options = { .hashes = KVB_HASHES_CANONICAL,
                                                .max_blocks = 4 << 20,
                                                .tiers = 1U << KVB_TIER_DEVICE };
    struct scene scene = { .shape = shape };
    const size_t held = bench_size(bench, held_blocks);
    const size_t before = bench_resident_bytes();

    bench_must(kvb_mirror_new(&options, &scene.mirror), "a mirror");
    while (scene.held < held) {
        store_round(&scene);
    }
    const double bytes = (double)(bench_resident_bytes() - before) / (double)scene.held;
    bench_progress(
        "%s: filled at %.0f ns a block", shape->name,
        (double)scene.stored_ns / (double)scene.stored);
    scene.stored_ns = scene.stored = 0;
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        remove_round(&scene);
        store_round(&scene);
    } while (bench_seconds_since(began_ns) < bench->seconds || scene.removed < held);

    say(bench, shape->name, "bytes_per_block", bytes, "B");
    say(bench, shape->name, "store", (double)scene.stored_ns / (double)scene.stored, "ns/block");
    say(bench, shape->name, "remove", (double)scene.removed_ns / (double)scene.removed, "ns/block");
    kvb_mirror_free(scene.mirror);
    kvb_event_batch_done(&scene.batch);
    kvb_router_batch_done(&scene.out);
}

int main(int argc, char **argv)
{
    const struct bench_about about = { .what = "What a block costs in the bridge's mirror." };
    const struct bench bench = bench_begin(argc, argv, &about);

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (bench_wants(&bench, shapes[i].name)) {
            measure(&bench, &shapes[i]);
        }
    }
    return 0;
}
