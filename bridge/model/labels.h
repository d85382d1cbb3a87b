#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Labels of a worker: pairs of name and value.  Requests may select workers by them.
 *
 *     text   "address=10.0.0.7:8000\0" "role=prefill\0" "zone=b\0"     in the order of the names
 *
 * A name has 1 to 63 bytes of A-Z a-z 0-9 . _ / -, a value 0 to 127 bytes of UTF-8 without control
 * characters.  Equal labels have equal bytes, in whatever order they were added.
 *
 * Threads: plain data.  Memory: in place; {0} has none. */

enum {
    kvb_max_labels = 16,
    kvb_labels_bytes = 512,
    kvb_label_name_bytes = 63,
    kvb_label_value_bytes = 127
};

struct kvb_labels {
    uint16_t count;
    uint16_t bytes; /* of text */
    char text[kvb_labels_bytes];
};

/* One label, borrowed from struct kvb_labels. */
struct kvb_label {
    const char *pair; /* "role=prefill" */
    size_t name_len;
    const char *value;
};

/* Names of labels; {0} has none. */
struct kvb_label_names {
    size_t count;
    char names[kvb_max_labels][kvb_label_name_bytes + 1];
};

/* KVB_BAD_INPUT  not a valid name, see above
 * KVB_TOO_LARGE  more than kvb_max_labels
 * On failure the names are unchanged, and detail, which may be NULL, says why. */
kvb_status
kvb_label_names_add(struct kvb_label_names *names, const char *name, struct kvb_detail *detail);

/* KVB_BAD_INPUT  the name or the value is not valid, see above, or a label has this name already
 * KVB_TOO_LARGE  more than kvb_max_labels labels, or more than kvb_labels_bytes in total
 * On failure the labels are unchanged, and detail, which may be NULL, says why. */
kvb_status kvb_labels_add(
    struct kvb_labels *labels, const char *name, const char *value, struct kvb_detail *detail);

/* As kvb_labels_add(), from a text "name=value". */
kvb_status
kvb_labels_add_pair(struct kvb_labels *labels, const char *pair, struct kvb_detail *detail);

/* NULL: no label has this name. */
const char *kvb_labels_find(const struct kvb_labels *labels, const char *name);

/* Iterates over the labels; *at is 0 before the first call.  False: no label is left. */
bool kvb_labels_next(const struct kvb_labels *labels, size_t *at, struct kvb_label *out_label);

/* Whether the labels contain the pair "name=value". */
bool kvb_labels_have(const struct kvb_labels *labels, const char *pair);

/* Removes the labels whose names are not in `names`. */
void kvb_labels_keep(struct kvb_labels *labels, const struct kvb_label_names *names);

bool kvb_labels_are_same(const struct kvb_labels *one, const struct kvb_labels *other);
