#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The names, besides that of its base model, by which requests may ask a worker for a model.
 *
 *     text   [ kind | length | q w e n \0 ] [ kind | length | s q l - l o r a \0 ] ...
 *
 *     name      a second name of the base model: its blocks are those of the base model
 *     adapter   a LoRA adapter of the base model: its name is hashed into its blocks
 *
 * They come from the engine's own list, which says all of them, and from events that name adapters,
 * which say only what was used.
 *
 * Threads: plain data.  Memory: in place; {0} has none. */

enum {
    kvb_served_name_bytes = 128, /* kvb_model_bytes */
    kvb_max_served_names = 64,
    kvb_served_names_bytes = 1024 /* of text: a heartbeat has at most 4096 bytes */
};

enum kvb_served_kind { KVB_SERVED_NAME, KVB_SERVED_ADAPTER, KVB_SERVED_KIND_COUNT };

struct kvb_served_names {
    bool is_listed;    /* they are the engine's own list */
    uint16_t count;    /* of names */
    uint16_t bytes;    /* of text */
    uint32_t left_out; /* names for which there was no room; of events: as often as they came */
    char text[kvb_served_names_bytes];
};

/* One name, borrowed from struct kvb_served_names. */
struct kvb_served_name {
    enum kvb_served_kind kind;
    const char *name;
    size_t len;
};

/* Adds a name; one that is there already keeps its kind.
 * KVB_BAD_INPUT  not 1 to kvb_served_name_bytes bytes of UTF-8 without control characters
 * KVB_TOO_LARGE  no room: it is counted in left_out */
kvb_status
kvb_served_names_add(struct kvb_served_names *names, enum kvb_served_kind kind, kvb_span name);

/* Iterates over the names; *at is 0 before the first call.  False: no name is left. */
bool kvb_served_names_next(
    const struct kvb_served_names *names, size_t *at, struct kvb_served_name *out_name);

/* False: the name is not there. */
bool kvb_served_names_find(
    const struct kvb_served_names *names, kvb_span name, enum kvb_served_kind *out_kind);

/* True: the engine answers requests for any other name with 404, its base model's aside. */
bool kvb_served_names_are_all(const struct kvb_served_names *names);

bool kvb_served_names_are_same(
    const struct kvb_served_names *one, const struct kvb_served_names *other);
