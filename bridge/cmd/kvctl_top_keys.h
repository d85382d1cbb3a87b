#pragma once

#include "cmd/kvctl_top_model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From the bytes of a keyboard to what they change in the view.
 *
 * Threads: the caller locks. */

/* A key is its ASCII character, or one of these. */
enum kvctl_top_key {
    kvctl_top_key_none = 0,
    kvctl_top_key_enter = '\r',
    kvctl_top_key_escape = 0x1b,
    kvctl_top_key_erase = 0x7f,
    kvctl_top_key_up = 0x100,
    kvctl_top_key_down,
    kvctl_top_key_left,
    kvctl_top_key_right,
    kvctl_top_key_home,
    kvctl_top_key_end,
    kvctl_top_key_page_up,
    kvctl_top_key_page_down,
};

/* A terminal sends "\033[A" for one key, perhaps in two pieces.  {0} is empty. */
struct kvctl_top_decoder {
    char bytes[16];
    size_t len; /* of a sequence that has begun */
};

/* One byte more; kvctl_top_key_none while a sequence is not complete, and for one
 * that stands for nothing we know. */
int kvctl_top_decode(struct kvctl_top_decoder *decoder, char byte);

/* Nothing followed for a while: a lone ESC was the key itself. */
int kvctl_top_decode_end(struct kvctl_top_decoder *decoder);

/* What a key does. */
void kvctl_top_press(struct kvctl_top_view *view, int key);

/* For the help: what the keys are called and do. */
struct kvctl_top_key_help {
    const char *keys;
    const char *help;
};

/* One after the other, from 0; NULL after the last. */
const struct kvctl_top_key_help *kvctl_top_key_help(size_t number);
