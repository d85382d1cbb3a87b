#pragma once

#include "kvctl/top/model.h"

/* A fleet of 14 streams with fixed figures for the tests of `kvctl top`: two ranks each of workers
 * 1 to 6, one of them DOWN, one PARTIAL, one SYNCING; a worker with the longest id; and an unknown
 * one whose texts contain terminal escape sequences. */
void top_scene_make(struct kvctl_top_model *model);
