#pragma once

#include "kvctl/top/model.h"

#include <stddef.h>

/* What keys change in the view.
 *
 * Threads: the caller locks. */

/* What a key of curses does: a character, or KEY_UP and the like. */
void kvctl_top_press(struct kvctl_top_view *view, int key);

/* For the help: what the keys are called and do. */
struct kvctl_top_key_help {
    const char *keys;
    const char *help;
};

/* One after the other, from 0; NULL after the last. */
const struct kvctl_top_key_help *kvctl_top_key_help(size_t number);
