#include "kvb_test.h"

#include "refresh_scene.h"

#include <stdlib.h>
#include <string.h>

uint32_t draw(struct world *world, uint32_t below)
{
    return (uint32_t)rand_r(&world->seed) % below;
}

static void make_node(struct world *world, int n)
{
    struct node *node = &world->nodes[n];

    do {
        node->parent = draw(world, 8) == 0 ? -1 : (int)draw(world, (uint32_t)n + 1) - 1;
    } while (node->parent >= 0 && world->nodes[node->parent].depth + 1 >= max_depth);
    node->depth = 1;
    if (node->parent >= 0) {
        const struct node *parent = &world->nodes[node->parent];
        node->depth = parent->depth + 1;
        memcpy(node->path, parent->path, parent->depth * sizeof *node->path);
    }
    node->path[node->depth - 1] = (uint32_t)n + 1;
    node->name = world->hashes == KVB_HASHES_ENGINE ? (uint64_t)n + 1
                                                    : name_of(node->path, node->depth).value;
}

static void file_node(struct world *world, int n)
{
    size_t at = world->nodes[n].name % places;

    while (world->by_name[at] > 0) {
        at = (at + 1) % places;
    }
    world->by_name[at] = n + 1;
}

void begin_world(struct world *world, const struct life *life)
{
    const struct kvb_mirror_options options = {
        .hashes = life->hashes,
        .max_blocks = 4096,
        .tiers = 1U << KVB_TIER_DEVICE | 1U << KVB_LIST_WINDOW,
    };

    *world = (struct world){ .seed = life->seed,
                             .is_orderly = life->is_orderly,
                             .hashes = life->hashes,
                             .groups = life->groups };
    assert_ok(kvb_mirror_new(&options, &world->mirror));
    for (int n = 0; n < max_nodes; n++) {
        make_node(world, n);
        file_node(world, n);
    }
}

void end_world(struct world *world)
{
    kvb_picture_end(&world->picture);
    kvb_mirror_free(world->mirror);
    kvb_event_batch_done(&world->batch);
    kvb_router_batch_done(&world->out);
}

/* ---- Readers ---- */

static int find_node(const struct world *world, uint64_t name)
{
    size_t at = name % places;

    while (world->by_name[at] > 0 && world->nodes[world->by_name[at] - 1].name != name) {
        at = (at + 1) % places;
    }
    assert_true(world->by_name[at] > 0); /* otherwise a name that no node has */
    return world->by_name[at] - 1;
}

static void on_message(
    const struct world *world, struct reader *reader, const struct kvb_router_batch *batch,
    bool takes_orphans)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_router_event *event = &batch->events[i];
        const bool is_of_window = (unsigned)event->tier == KVB_LIST_WINDOW;
        bool *has = is_of_window ? reader->has_in_window : reader->has;
        if (event->kind == KVB_ROUTER_CLEARED) {
            memset(reader->has, 0, sizeof reader->has);
            memset(reader->has_in_window, 0, sizeof reader->has_in_window);
        }
        if (event->kind == KVB_ROUTER_STORED && event->has_parent && !takes_orphans &&
            !has[find_node(world, event->parent.value)]) {
            reader->ignored++;
            continue;
        }
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            has[find_node(world, batch->blocks[at].value)] = event->kind == KVB_ROUTER_STORED;
        }
    }
}

static kvb_status see(void *context, struct kvb_router_batch *chunk)
{
    struct world *world = context;

    on_message(world, &world->truth, chunk, true);
    return KVB_OK;
}

void look_up_truth(struct world *world)
{
    memset(&world->truth, 0, sizeof world->truth);
    assert_ok(show_all(world->mirror, 64, see, world));
}

/* ---- What the engine does ---- */

void apply(struct world *world)
{
    apply_batch(world->mirror, &world->batch, &world->out);
    on_message(world, &world->early, &world->out, false);
    on_message(world, &world->late, &world->out, false);
    if (world->picture.mirror && world->out.event_count > 0) {
        look_up_truth(world);
    }
}

uint64_t engine_name(int n, bool is_alias)
{
    return (uint64_t)n + 1 + (is_alias ? aliases : 0);
}

void add_to_group(struct world *world, size_t group, int n, bool is_alias)
{
    const struct node *node = &world->nodes[n];
    const uint64_t name = engine_name(n, is_alias);
    const uint64_t parent = engine_name(node->parent, false);
    const bool is_window = world->groups.kinds[group] == KVB_GROUP_WINDOW;

    add_stored(
        &world->batch, node->parent >= 0 ? &parent : NULL, &name, &node->path[node->depth - 1], 1);
    last_event(&world->batch)->has_group = world->groups.count > 1;
    last_event(&world->batch)->group = (uint32_t)group;
    last_event(&world->batch)->group_kind = world->groups.kinds[group];
    last_event(&world->batch)->window_tokens = is_window ? window_tokens : 0;
    world->copies[group][is_alias][n]++;
}

/* ---- Refreshes ---- */

void begin_refresh(struct world *world)
{
    assert_ok(kvb_picture_begin(
        &world->picture, world->mirror, KVB_PICTURE_FROM_ROOTS, 1U << KVB_TIER_DEVICE));
}

bool step(struct world *world, size_t max_blocks, size_t max_looks)
{
    struct kvb_router_batch advertised = { 0 };
    const size_t ignored = world->late.ignored;
    bool is_done = false;

    const struct kvb_picture_part part = { .max_blocks = max_blocks, .max_looks = max_looks };
    assert_ok(kvb_picture_step(&world->picture, world->mirror, &part, &advertised, &is_done));
    assert_true(advertised.block_count <= max_blocks);
    for (size_t i = 0; i < advertised.event_count; i++) {
        assert_int_equal(advertised.events[i].tier, KVB_TIER_DEVICE);
    }
    for (size_t i = 0; i < advertised.block_count; i++) {
        assert_true(world->truth.has[find_node(world, advertised.blocks[i].value)]);
    }
    on_message(world, &world->late, &advertised, false);
    assert_int_equal(world->late.ignored, ignored);
    on_message(world, &world->early, &advertised, false);
    kvb_router_batch_done(&advertised);
    return is_done;
}

/* ---- By hand ---- */

void place_node(struct world *world, int parent, int n)
{
    struct node *node = &world->nodes[n];

    node->parent = parent;
    node->depth = parent < 0 ? 1 : world->nodes[parent].depth + 1;
    if (parent >= 0) {
        memcpy(node->path, world->nodes[parent].path, (node->depth - 1) * sizeof *node->path);
    }
    node->path[node->depth - 1] = (uint32_t)n + 1;
    node->name = name_of(node->path, node->depth).value;
    file_node(world, n);
}

void uproot(struct world *world)
{
    end_world(world);
    free(world);
}
