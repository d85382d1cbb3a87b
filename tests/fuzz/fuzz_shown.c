#include "stream/mirror/shown.h"

#include <stdlib.h>
#include <string.h>

/* Runs an arbitrary program of what an engine and readers do, of a mirror that is republished,
 * after loading arbitrary records of tokens.  Checked: a strict reader gets no block twice, and
 * none without its parent; a snapshot is equal to what this reader has; saved records can be
 * loaded. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { block_size = 2, max_blocks = 24, max_held = 256, names = 32 };

struct known {
    uint64_t hash;
    bool is_here;
};

struct reader {
    struct known held[max_held];
    size_t count;
};

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* At most max_blocks blocks are shown at a time, so the place of a removed block is used again. */
static bool *place_of(struct reader *reader, uint64_t hash)
{
    size_t free_place = reader->count;

    for (size_t i = 0; i < reader->count; i++) {
        if (reader->held[i].hash == hash) {
            return &reader->held[i].is_here;
        }
        if (!reader->held[i].is_here) {
            free_place = i;
        }
    }
    check(free_place < max_held);
    reader->count += free_place == reader->count;
    reader->held[free_place] = (struct known){ .hash = hash };
    return &reader->held[free_place].is_here;
}

static void read_hash(
    struct reader *reader, const struct kvb_engine_event *event, uint64_t hash, bool has_parent,
    uint64_t parent)
{
    const bool is_stored = event->kind == KVB_EVENT_STORED;

    check(event->tier == KVB_TIER_DEVICE);
    check(!is_stored || !has_parent || *place_of(reader, parent));
    bool *is_here = place_of(reader, hash);
    check(*is_here != is_stored);
    *is_here = is_stored;
}

static void read_events(struct reader *reader, const struct kvb_event_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_engine_event *event = &batch->events[i];
        if (event->kind == KVB_EVENT_CLEARED) {
            reader->count = 0;
        }
        for (uint32_t k = 0; k < event->hash_count; k++) {
            const kvb_engine_hash *hashes = batch->hashes + event->hash_at;
            read_hash(
                reader, event, hashes[k].value, k > 0 || event->has_parent,
                k > 0 ? hashes[k - 1].value : event->parent.value);
        }
    }
}

static size_t count_held(const struct reader *reader)
{
    size_t held = 0;

    for (size_t i = 0; i < reader->count; i++) {
        held += reader->held[i].is_here;
    }
    return held;
}

/* ---- The engine ---- */

struct engine {
    struct kvb_mirror *mirror;
    struct kvb_router_batch out;
};

static struct kvb_mirror *new_mirror(enum kvb_hashes hashes)
{
    const struct kvb_mirror_options options = { .hashes = hashes,
                                                .max_blocks = max_blocks,
                                                .tiers = (1U << KVB_TIER_COUNT) - 1,
                                                .hash_key = 3 };
    struct kvb_mirror *mirror = NULL;

    check(kvb_mirror_new(&options, &mirror) == KVB_OK);
    return mirror;
}

/* A full mirror is cleared, as its stream does it. */
static void apply(struct engine *engine, const struct kvb_event_batch *batch)
{
    uint64_t work = UINT64_MAX;

    kvb_router_batch_reset(&engine->out);
    kvb_mirror_begin_batch(engine->mirror, &engine->out);
    if (kvb_mirror_apply(engine->mirror, batch, 0, &work, &engine->out) != KVB_OK) {
        kvb_mirror_restart(engine->mirror);
    }
    check(!kvb_mirror_is_unfinished(engine->mirror));
}

static void store(struct engine *engine, uint8_t hash, uint8_t parent, uint8_t token)
{
    kvb_engine_hash hashes[] = { { hash } };
    uint32_t tokens[block_size] = { token % 4, 1 };
    struct kvb_engine_event event = { .kind = KVB_EVENT_STORED,
                                      .tier = token % 32 == 0 ? KVB_TIER_HOST : KVB_TIER_DEVICE,
                                      .has_parent = parent != 0,
                                      .parent = { parent },
                                      .block_size = block_size,
                                      .hash_count = 1,
                                      .token_count = block_size };
    const struct kvb_event_batch batch = {
        .events = &event, .event_count = 1, .hashes = hashes, .hash_count = 1, .tokens = tokens
    };

    apply(engine, &batch);
}

static void drop(struct engine *engine, uint8_t hash, uint8_t tier)
{
    kvb_engine_hash hashes[] = { { hash } };
    struct kvb_engine_event event = { .kind = KVB_EVENT_REMOVED,
                                      .tier = tier % 4 == 0 ? KVB_TIER_HOST : KVB_TIER_DEVICE,
                                      .hash_count = 1 };
    const struct kvb_event_batch batch = {
        .events = &event, .event_count = 1, .hashes = hashes, .hash_count = 1
    };

    apply(engine, &batch);
}

static void clear(struct engine *engine)
{
    struct kvb_engine_event event = { .kind = KVB_EVENT_CLEARED, .all_tiers = true };
    const struct kvb_event_batch batch = { .events = &event, .event_count = 1 };

    apply(engine, &batch);
}

/* ---- Readers ---- */

static void take_changes(struct kvb_shown *shown, struct reader *reader)
{
    struct kvb_event_batch batch = { .has_rank = false };

    while (kvb_shown_has_changes(shown)) {
        kvb_event_batch_reset(&batch);
        check(kvb_shown_take_changes(shown, 2, 3, &batch) == KVB_OK);
        read_events(reader, &batch);
    }
    kvb_event_batch_done(&batch);
    check(count_held(reader) == kvb_shown_count(shown)->shown);
    check(kvb_shown_count(shown)->gone == 0);
}

static void take_snapshot(struct kvb_shown *shown)
{
    struct kvb_event_batch batch = { .has_rank = false };
    struct reader reader = { .count = 0 };
    bool is_done = false;

    check(kvb_shown_begin(shown) == KVB_OK);
    while (!is_done) {
        check(kvb_shown_step(shown, 2, 3, &batch, &is_done) == KVB_OK);
    }
    kvb_shown_end(shown);
    read_events(&reader, &batch);
    kvb_event_batch_done(&batch);
    check(count_held(&reader) == kvb_shown_count(shown)->shown);
}

static void save_and_load(struct kvb_shown *shown)
{
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 1 << 20);
    for (size_t place = 0; place != SIZE_MAX;) {
        check(kvb_shown_save(shown, 100, 7, &place, &bytes) == KVB_OK);
    }
    check(kvb_shown_load(shown, kvb_buf_span(&bytes)) == KVB_OK); /* all are known: no change */
    kvb_buf_done(&bytes);
}

static void step(struct engine *engine, struct reader *reader, const uint8_t op[3])
{
    struct kvb_shown *shown = kvb_mirror_shown(engine->mirror);
    const uint8_t hash = op[1] % names;

    switch (op[0] % 8) {
    case 0:
    case 1:
    case 2:
        store(engine, hash, op[2] % names, op[2]);
        break;
    case 3:
    case 4:
        drop(engine, hash, op[2]);
        break;
    case 5:
        take_changes(shown, reader);
        take_snapshot(shown);
        break;
    case 6:
        kvb_shown_hide(shown, op[1] % 2);
        break;
    default:
        if (op[1] == 0) {
            clear(engine);
        }
        save_and_load(shown);
    }
}

/* The first byte says how many bytes of records follow, and what the blocks are called. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader reader = { .count = 0 };
    const size_t records = size > 0 && data[0] < size - 1 ? data[0] : 0;
    struct engine engine = { .mirror = new_mirror(
                                 records % 2 ? KVB_HASHES_CANONICAL : KVB_HASHES_ENGINE) };

    for (uint8_t hash = 1; hash < 8; hash++) {
        store(&engine, hash, hash / 2, 33); /* restored, without their tokens */
    }
    check(kvb_mirror_show(engine.mirror, block_size) == KVB_OK);
    struct kvb_shown *shown = kvb_mirror_shown(engine.mirror);
    const kvb_status status = kvb_shown_load(shown, (kvb_span){ data + (size > 0), records });
    check(status == KVB_OK || status == KVB_BAD_INPUT);
    for (size_t at = 1 + records; at + 3 <= size; at += 3) {
        step(&engine, &reader, data + at);
    }
    take_changes(shown, &reader);
    take_snapshot(shown);
    kvb_mirror_free(engine.mirror);
    kvb_router_batch_done(&engine.out);
    return 0;
}
