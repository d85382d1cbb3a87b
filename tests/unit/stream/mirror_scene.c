#include "kvb_test.h"

#include "batch_maker.h"
#include "mirror_scene.h"

#include <string.h>

static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 99 };

void mirror_scene_begin(struct mirror_scene *scene, const struct kvb_mirror_options *options)
{
    struct kvb_mirror_options all = *options;

    memset(scene, 0, sizeof *scene);
    scene->part_work = UINT64_MAX;
    all.tiers = (1U << KVB_TIER_COUNT) - 1;
    all.max_blocks = all.max_blocks ? all.max_blocks : 4000;
    assert_ok(kvb_mirror_new(&all, &scene->mirror));
    kvb_mirror_begin_digest(scene->mirror, &key);
}

void mirror_scene_end(struct mirror_scene *scene)
{
    kvb_mirror_free(scene->mirror);
    kvb_event_batch_done(&scene->batch);
    kvb_router_batch_done(&scene->out);
}

/* ---- What a router lists ---- */

static size_t find(const struct scene_list *list, kvb_block_hash name)
{
    size_t at = 0;

    while (at < list->count && list->names[at].value != name.value) {
        at++;
    }
    return at;
}

static void add(struct scene_list *list, kvb_block_hash name)
{
    assert_int_equal(find(list, name), list->count);
    assert_true(list->count < scene_max_names);
    list->names[list->count++] = name;
}

static void take(struct scene_list *list, kvb_block_hash name)
{
    const size_t at = find(list, name);

    assert_true(at < list->count);
    list->names[at] = list->names[--list->count];
}

static void take_in(struct scene_list *lists, const struct kvb_router_batch *events)
{
    for (size_t i = 0; i < events->event_count; i++) {
        const struct kvb_router_event *event = &events->events[i];
        for (size_t list = 0; event->kind == KVB_ROUTER_CLEARED && list < KVB_LIST_COUNT; list++) {
            lists[list].count = 0;
        }
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            if (event->kind == KVB_ROUTER_STORED) {
                add(&lists[event->tier], events->blocks[at]);
            } else {
                take(&lists[event->tier], events->blocks[at]);
            }
        }
    }
}

void mirror_scene_apply(struct mirror_scene *scene)
{
    kvb_router_batch_reset(&scene->out);
    kvb_mirror_begin_batch(scene->mirror, &scene->out);
    for (size_t at = 0; at < scene->batch.event_count; at++) {
        assert_ok(apply_event(scene->mirror, &scene->batch, at, scene->part_work, &scene->out));
    }
    kvb_event_batch_reset(&scene->batch);
    take_in(scene->lists, &scene->out);
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        assert_int_equal(kvb_mirror_count(scene->mirror)->held[list], scene->lists[list].count);
    }
}

bool scene_lists(const struct mirror_scene *scene, unsigned list, kvb_block_hash name)
{
    return find(&scene->lists[list], name) < scene->lists[list].count;
}

/* ---- The same lists by pictures of each order, and by digest ---- */

static kvb_status take_in_chunk(void *context, struct kvb_router_batch *chunk)
{
    take_in(context, chunk);
    return KVB_OK;
}

static void assert_same_lists(const struct mirror_scene *scene, const struct scene_list *lists)
{
    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        assert_int_equal(lists[list].count, scene->lists[list].count);
        for (size_t i = 0; i < lists[list].count; i++) {
            assert_true(scene_lists(scene, list, lists[list].names[i]));
        }
    }
}

static void assert_digests(const struct mirror_scene *scene)
{
    for (size_t i = 0; i < KVB_LIST_COUNT; i++) {
        const enum kvb_tier list = (enum kvb_tier)i;
        struct kvb_digest digest = { 0 };
        for (size_t at = 0; at < scene->lists[i].count; at++) {
            kvb_digest_add(&digest, &key, list, scene->lists[i].names[at]);
        }
        assert_memory_equal(kvb_mirror_digest(scene->mirror, list), &digest, sizeof digest);
    }
}

void assert_shown_as_published(const struct mirror_scene *scene)
{
    static struct scene_list lists[KVB_LIST_COUNT];
    const struct kvb_picture_part part = { .max_blocks = 5, .max_looks = 7 };
    struct kvb_picture picture = { .lists = kvb_picture_all_lists };
    struct kvb_router_batch shown = { 0 };
    bool is_done = false;

    memset(lists, 0, sizeof lists);
    assert_ok(show_all(scene->mirror, 3, take_in_chunk, lists));
    assert_same_lists(scene, lists);

    memset(lists, 0, sizeof lists);
    while (!is_done) {
        kvb_router_batch_reset(&shown);
        assert_ok(kvb_picture_step(&picture, scene->mirror, &part, &shown, &is_done));
        assert_in_range(shown.block_count, 0, part.max_blocks);
        take_in(lists, &shown);
    }
    kvb_router_batch_done(&shown);
    assert_same_lists(scene, lists);
    assert_digests(scene);
    kvb_mirror_begin_digest(scene->mirror, &key);
    assert_digests(scene);
}

/* ---- Events ---- */

void of_full_group(struct mirror_scene *scene, uint32_t group)
{
    last_event(&scene->batch)->has_group = true;
    last_event(&scene->batch)->group = group;
}

void of_window_group(struct mirror_scene *scene, uint32_t group, uint32_t window_tokens)
{
    of_full_group(scene, group);
    last_event(&scene->batch)->group_kind = KVB_GROUP_WINDOW;
    last_event(&scene->batch)->window_tokens = window_tokens;
}

void of_sparse_window_group(struct mirror_scene *scene, uint32_t group, uint32_t window_tokens)
{
    of_window_group(scene, group, window_tokens);
    last_event(&scene->batch)->is_sparse = true;
    last_event(&scene->batch)->token_count = 0;
}
