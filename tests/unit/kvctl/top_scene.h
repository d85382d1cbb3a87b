#pragma once

#include "kvctl/top/model.h"

/* A fleet of 14 streams for the tests of `kvctl top`'s picture, fixed to the digit: two
 * ranks each of workers 1 to 6, one of them DOWN, one PARTIAL, one SYNCING; a worker with
 * the longest id; and one of whom nothing is known and whose texts would steer a
 * terminal. */
void top_scene_make(struct kvctl_top_model *model);
