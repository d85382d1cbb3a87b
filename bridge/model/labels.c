#include "model/labels.h"

#include "core/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { pair_bytes = kvb_label_name_bytes + 1 + kvb_label_value_bytes + 1 };

/* ---- What a label may be ---- */

static bool is_label_name(const char *name, size_t len)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";

    return len > 0 && len <= kvb_label_name_bytes && strspn(name, allowed) >= len;
}

static bool is_label_value(const char *value)
{
    return strlen(value) <= kvb_label_value_bytes && kvb_utf8_is_plain(value);
}

static kvb_status refuse_label_name(struct kvb_detail *detail)
{
    kvb_detail_set(
        detail, "the name of a label has 1 to %d bytes of A-Z a-z 0-9 . _ / -",
        kvb_label_name_bytes);
    return KVB_BAD_INPUT;
}

/* ---- Reading ---- */

bool kvb_labels_next(const struct kvb_labels *labels, size_t *at, struct kvb_label *out_label)
{
    if (*at >= labels->bytes) {
        return false;
    }
    const char *pair = labels->text + *at;
    const size_t name_len = strcspn(pair, "=");
    *out_label =
        (struct kvb_label){ .pair = pair, .name_len = name_len, .value = pair + name_len + 1 };
    *at += strlen(pair) + 1;
    return true;
}

const char *kvb_labels_find(const struct kvb_labels *labels, const char *name)
{
    const size_t len = strlen(name);
    struct kvb_label label;

    for (size_t at = 0; kvb_labels_next(labels, &at, &label);) {
        if (label.name_len == len && memcmp(label.pair, name, len) == 0) {
            return label.value;
        }
    }
    return NULL;
}

bool kvb_labels_have(const struct kvb_labels *labels, const char *pair)
{
    struct kvb_label label;

    for (size_t at = 0; kvb_labels_next(labels, &at, &label);) {
        if (strcmp(label.pair, pair) == 0) {
            return true;
        }
    }
    return false;
}

bool kvb_labels_are_same(const struct kvb_labels *one, const struct kvb_labels *other)
{
    return one->bytes == other->bytes && memcmp(one->text, other->text, one->bytes) == 0;
}

/* ---- Adding ---- */

/* The position in the text at which the pair is to be inserted; false: a label has this name. */
static bool
find_label_place(const struct kvb_labels *labels, const char *name, size_t len, size_t *out_place)
{
    struct kvb_label label;

    *out_place = 0;
    for (size_t at = 0; kvb_labels_next(labels, &at, &label);) {
        /* Names are ordered as texts: by their bytes, and a shorter one before its
         * continuations. */
        const size_t common = len < label.name_len ? len : label.name_len;
        const int order = memcmp(label.pair, name, common);
        if (order == 0 && len == label.name_len) {
            return false;
        }
        if (order > 0 || (order == 0 && label.name_len > len)) {
            break;
        }
        *out_place = at;
    }
    return true;
}

kvb_status
kvb_labels_add_pair(struct kvb_labels *labels, const char *pair, struct kvb_detail *detail)
{
    const size_t name_len = strcspn(pair, "=");
    const size_t bytes = strlen(pair) + 1;
    size_t place = 0;

    if (!is_label_name(pair, name_len) || pair[name_len] == '\0') {
        return refuse_label_name(detail);
    }
    if (!is_label_value(pair + name_len + 1)) {
        kvb_detail_set(
            detail,
            "label %.*s: the value has at most %d bytes of UTF-8 without control characters",
            (int)name_len, pair, kvb_label_value_bytes);
        return KVB_BAD_INPUT;
    }
    if (!find_label_place(labels, pair, name_len, &place)) {
        kvb_detail_set(detail, "label %.*s is given twice", (int)name_len, pair);
        return KVB_BAD_INPUT;
    }
    if (labels->count == kvb_max_labels || bytes > sizeof labels->text - labels->bytes) {
        kvb_detail_set(
            detail, "at most %d labels of %d bytes in all", kvb_max_labels, kvb_labels_bytes);
        return KVB_TOO_LARGE;
    }
    /* Kept in order, so that equal sets are equal bytes. */
    memmove(labels->text + place + bytes, labels->text + place, labels->bytes - place);
    memcpy(labels->text + place, pair, bytes);
    labels->bytes = (uint16_t)(labels->bytes + bytes);
    labels->count++;
    return KVB_OK;
}

kvb_status kvb_labels_add(
    struct kvb_labels *labels, const char *name, const char *value, struct kvb_detail *detail)
{
    char pair[pair_bytes + 1]; /* one byte more, so that a longer pair is refused as too long */

    if (strchr(name, '=')) {
        name = ""; /* refused: not a valid name */
    }
    if (strlen(name) > kvb_label_name_bytes) {
        return kvb_labels_add_pair(labels, "", detail);
    }
    (void)snprintf(pair, sizeof pair, "%s=%.*s", name, kvb_label_value_bytes + 1, value);
    return kvb_labels_add_pair(labels, pair, detail);
}

/* ---- Names ---- */

kvb_status
kvb_label_names_add(struct kvb_label_names *names, const char *name, struct kvb_detail *detail)
{
    if (!is_label_name(name, strlen(name))) {
        return refuse_label_name(detail);
    }
    if (names->count == kvb_max_labels) {
        kvb_detail_set(detail, "at most %d labels", kvb_max_labels);
        return KVB_TOO_LARGE;
    }
    (void)snprintf(
        names->names[names->count++], sizeof names->names[0], "%.*s", kvb_label_name_bytes, name);
    return KVB_OK;
}

static bool is_among_names(const struct kvb_label_names *names, const struct kvb_label *label)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strlen(names->names[i]) == label->name_len &&
            memcmp(names->names[i], label->pair, label->name_len) == 0) {
            return true;
        }
    }
    return false;
}

void kvb_labels_keep(struct kvb_labels *labels, const struct kvb_label_names *names)
{
    struct kvb_labels kept = { 0 };
    struct kvb_label label;

    for (size_t at = 0; kvb_labels_next(labels, &at, &label);) {
        if (is_among_names(names, &label)) {
            const kvb_status status = kvb_labels_add_pair(&kept, label.pair, NULL);
            assert(status == KVB_OK); /* `kept` is never larger than `labels` */
            (void)status;
        }
    }
    *labels = kept;
}
