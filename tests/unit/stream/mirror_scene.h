#pragma once

#include "stream/mirror/mirror.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A mirror that tests drive by hand, and the lists that a router would build from its events. No
 * block may be stored twice, or removed without having been stored. */
enum { scene_max_names = 4096 };

struct scene_list {
    kvb_block_hash names[scene_max_names];
    size_t count;
};

struct mirror_scene {
    struct kvb_mirror *mirror;
    struct kvb_event_batch batch;
    struct kvb_router_batch out; /* the events of the last batch */
    struct scene_list lists[KVB_LIST_COUNT];
    uint64_t part_work; /* events are applied in parts of this much work */
};

/* All tiers are published. The caller ends the scene. */
void mirror_scene_begin(struct mirror_scene *scene, const struct kvb_mirror_options *options);
void mirror_scene_end(struct mirror_scene *scene);

/* Applies the batch and empties it. */
void mirror_scene_apply(struct mirror_scene *scene);

bool scene_lists(const struct mirror_scene *scene, unsigned list, kvb_block_hash name);

/* A walk, slices and the digest must show exactly what was published. */
void assert_shown_as_published(const struct mirror_scene *scene);

/* ---- Events of one group, one token a block ---- */

/* Sets fields of the event added last. */
void of_full_group(struct mirror_scene *scene, uint32_t group);
void of_window_group(struct mirror_scene *scene, uint32_t group, uint32_t window_tokens);
/* As decoded when the engine leaves blocks out of a run: without tokens. */
void of_sparse_window_group(struct mirror_scene *scene, uint32_t group, uint32_t window_tokens);
