#pragma once

#include "index/index.h"

#include <stddef.h>
#include <stdint.h>

/* A small index for tests. Lower-case letters are contents of blocks, capital letters their names:
 *
 *     scene_store(scene, 0, 'A', "BC", "bc");
 *
 * lets slot 0 hold the blocks that it calls B and C, of content b and c, below the
 * one that it calls A.  no_parent: the run begins a prompt. */

enum { slots = 4, max_nodes = 40, longest = 32, no_parent = 0 };

struct scene {
    struct kvb_prefix_index *index; /* owned */
    kvb_slot_ref slot[slots];
    struct kvb_match match;   /* of the last query */
    uint32_t depth[slots];    /* the same, by slot */
    uint8_t changed[longest]; /* of the last store or take; 2 where nothing was reported */
};

/* Setup and teardown for cmocka. The teardown clears every slot and checks that the index is empty.
 */
int scene_set_up(void **state);
int scene_tear_down(void **state);

struct kvb_index_counters scene_counted(const struct scene *scene);
size_t scene_blocks_of(const struct scene *scene, size_t s);

void scene_store(
    struct scene *scene, size_t s, char parent, const char *names, const char *contents);
void scene_take(struct scene *scene, size_t s, const char *names);

/* How many blocks of the query slot s holds from its beginning. The other slots' depths are in
 * scene->depth. */
uint32_t scene_depth(struct scene *scene, size_t s, const char *contents);
uint32_t scene_depth_by_names(struct scene *scene, size_t s, const char *names);
