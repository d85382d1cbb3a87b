#include "kvb_test.h"

#include "batch_maker.h"
#include "core/hash.h"
#include "core/limits.h"
#include "index/block_hash.h"
#include "mirror_scene.h"
#include "stream/mirror/shown.h"

#include <stdlib.h>
#include <string.h>

/* Random engines as vLLM is one: several cache groups over one pool, second copies,
 * re-announcements, evictions, clears; and three views of each:
 *
 *     truth    the copies that the engine holds
 *     reader   the rules in a plain list, as struct copies of each (group, hash)
 *     mirror   what a router was told
 *
 * The mirror lists what the reader finds sure, block by block; nothing that is listed is not
 * held; what is held and not listed, the reader calls doubtful; and the reader's bounds hold. */

enum {
    worlds = 300,
    requests = 120,
    families = 3,
    depth = 9,
    branches = 4,
    prompts = families * branches,
    max_groups = 4,
    max_blocks = 512,
    max_doubtful = 64, /* below it none is forgotten */
    window_tokens = 3  /* a block has one token, so two blocks before the one to be computed */
};

/* ---- Prompts: those of a family share a beginning ---------- */

struct prompt {
    uint64_t hashes[depth];
    kvb_block_hash names[depth];
    uint32_t tokens[depth];
};

struct group {
    uint32_t number;
    bool is_window;
    bool leaves_out; /* leaves out all but the last blocks of a store */
};

struct copies_of {
    uint64_t hash;
    uint64_t parent; /* 0: none */
    kvb_block_hash name;
    int truth[max_groups];
    int min[max_groups];
    int max[max_groups];
};

struct model {
    struct mirror_scene scene;
    struct prompt prompts[prompts];
    struct group groups[max_groups];
    size_t group_count;
    struct copies_of blocks[max_blocks];
    size_t block_count;
    bool is_met[max_groups]; /* the group has stored */
    int total;               /* ceiling of copies */
    unsigned seed;
    bool has_reports; /* share of requests that cause re-announcements */
    bool is_counted;  /* each BlockStored is a copy; there are no re-announcements */
    /* The reader's view of the previous event of this batch, if it was real. */
    bool was_real;
    uint32_t number_before;
    size_t listed, doubted, missed;
    bool is_shown[max_blocks]; /* published to a reader of republished events */
};

static uint32_t draw(struct model *model, uint32_t below)
{
    return below > 0 ? (uint32_t)rand_r(&model->seed) % below : 0;
}

static kvb_span salt_of(size_t family)
{
    static const char *const salts[families] = { "", "tenant-a", "tenant-b" };

    return (kvb_span){ .data = (const uint8_t *)salts[family], .len = strlen(salts[family]) };
}

static struct copies_of *block_of(struct model *model, uint64_t hash)
{
    for (size_t i = 0; i < model->block_count; i++) {
        if (model->blocks[i].hash == hash) {
            return &model->blocks[i];
        }
    }
    return NULL;
}

static void make_block(struct model *model, const struct prompt *prompt, size_t at)
{
    if (block_of(model, prompt->hashes[at])) {
        return;
    }
    assert_true(model->block_count < max_blocks);
    model->blocks[model->block_count++] =
        (struct copies_of){ .hash = prompt->hashes[at],
                            .parent = at ? prompt->hashes[at - 1] : 0,
                            .name = prompt->names[at] };
}

static void make_prompt(struct model *model, size_t number)
{
    const size_t family = number / branches;
    const size_t branch = number % branches;
    struct prompt *prompt = &model->prompts[number];
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, salt_of(family));

    for (size_t at = 0; at < depth; at++) {
        /* where window groups leave out other blocks */
        const size_t own = at > 2 * branch ? branch + 1 : 0;
        prompt->tokens[at] = (uint32_t)(family % 2 + 10 * own + 100 * at);
        const kvb_tokens_hash tokens = kvb_tokens_hash_of(&prompt->tokens[at], 1, NULL, 0, seed);
        prompt->names[at] =
            at ? kvb_block_hash_next(prompt->names[at - 1], tokens) : kvb_block_hash_root(tokens);
        prompt->hashes[at] = prompt->names[at].value * 3 + 1; /* as arbitrary as an engine's */
        make_block(model, prompt, at);
    }
}

static void begin(struct model *model, unsigned seed, bool is_counted)
{
    static const struct group kinds[][max_groups] = {
        { { 0 } },
        { { 0 }, { 1, true, false } },
        { { 0 }, { 1, true, true } },
        { { 0 }, { 1, false, false }, { 5, true, true } },
        { { 0 }, { 1, true, true }, { 2, true, false } },
        { { 0 }, { 3, false, false }, { 4, false, false } },
        { { 0, true, false },
          { 1, false, false } }, /* groups come in the order of the model's layers */
        { { 0, true, true }, { 1, false, false } },
        { { 0, true, true }, { 1, true, false }, { 2, true, false }, { 3, false, false } },
    };
    static const size_t counts[] = { 1, 2, 2, 3, 3, 3, 2, 2, 4 };
    const size_t kind = seed % (sizeof counts / sizeof *counts);

    memset(model, 0, sizeof *model);
    model->seed = seed;
    mirror_scene_begin(
        &model->scene, &(struct kvb_mirror_options){ .copies = is_counted ? KVB_COPIES_COUNTED
                                                                          : KVB_COPIES_INTERVAL });
    memcpy(model->groups, kinds[kind], sizeof model->groups);
    model->group_count = counts[kind];
    model->is_counted = is_counted;
    model->has_reports = !is_counted && seed / 7 % 3 > 0;
    model->total = (int)(model->group_count * (depth + 4 + draw(model, 60)));
    for (size_t i = 0; i < prompts; i++) {
        make_prompt(model, i);
    }
    assert_ok(kvb_mirror_show(model->scene.mirror, 1));
}

/* ---- The reader: the rules of copies, written down literally ---- */

struct stored {
    const struct prompt *prompt;
    size_t group;
    size_t from, to; /* blocks of the prompt that the store covers, computed or repeated */
    size_t first;    /* the first of them that is named: from, unless some are left out */
    const struct stored *last; /* end of the run, that is of the request, in the same array */
};

/* For a store from the root: whether it cannot be a repetition. */
static bool is_proof(struct model *model, const struct stored *stored)
{
    bool has_new = false;

    for (size_t at = stored->first; at < stored->to; at++) {
        has_new |= block_of(model, stored->prompt->hashes[at])->max[stored->group] == 0;
    }
    return model->groups[stored->group].is_window ? stored->first > stored->from : has_new;
}

static bool is_real(struct model *model, const struct stored *stored)
{
    const struct group *group = &model->groups[stored->group];
    bool is_real = model->is_counted || stored->from > 0 ||
                   (model->was_real && group->number > model->number_before);

    for (const struct stored *next = stored; !is_real && next <= stored->last; next++) {
        is_real = is_proof(model, next);
    }
    return is_real;
}

static void prove(struct model *model, size_t group, uint64_t parent)
{
    for (uint64_t hash = parent; hash;) {
        struct copies_of *block = block_of(model, hash);
        if (block->max[group] == 0) {
            return;
        }
        block->min[group] = block->min[group] ? block->min[group] : 1;
        hash = block->parent;
    }
}

static void read_stored(struct model *model, const struct stored *stored)
{
    const bool is_window = model->groups[stored->group].is_window;
    const bool real = is_real(model, stored);

    if (!is_window && stored->from > 0) {
        prove(model, stored->group, stored->prompt->hashes[stored->from - 1]);
    }
    for (size_t at = stored->first; at < stored->to; at++) {
        struct copies_of *block = block_of(model, stored->prompt->hashes[at]);
        int *min = &block->min[stored->group];
        block->max[stored->group]++;
        if (real) {
            ++*min;
        } else if (!is_window && *min == 0) {
            *min = 1;
        }
    }
    model->is_met[stored->group] = true;
    model->was_real = real;
    model->number_before = model->groups[stored->group].number;
}

static void read_removed(struct copies_of *block, size_t group)
{
    block->max[group]--;
    block->min[group] -= block->min[group] > 0;
    if (block->max[group] == 0) {
        block->min[group] = 0;
    }
}

/* ---- The engine ---- */

static void add_event(struct model *model, const struct stored *stored)
{
    const struct prompt *prompt = stored->prompt;
    const struct group *group = &model->groups[stored->group];
    const size_t family = (size_t)(prompt - model->prompts) / branches;
    struct kvb_event_batch *batch = &model->scene.batch;

    add_stored(
        batch, stored->from ? &prompt->hashes[stored->from - 1] : NULL,
        prompt->hashes + stored->first, prompt->tokens + stored->first, stored->to - stored->first);
    if (stored->from == 0) {
        assert_int_equal(
            kvb_event_batch_add_text(batch, salt_of(family), &last_event(batch)->salt), KVB_OK);
    }
    if (!group->is_window) {
        of_full_group(&model->scene, group->number);
    } else if (stored->first > stored->from) {
        of_sparse_window_group(&model->scene, group->number, window_tokens);
    } else {
        of_window_group(&model->scene, group->number, window_tokens);
    }
}

/* One BlockStored for each group; a repetition changes no copy. */
static void
say(struct model *model, const struct prompt *prompt, size_t from, size_t to, bool again)
{
    struct stored stored[max_groups];

    for (size_t g = model->group_count; g > 0; g--) {
        const struct group *group = &model->groups[g - 1];
        const bool leaves_out = group->leaves_out && !again && to - from > 2;
        stored[g - 1] = (struct stored){ .prompt = prompt,
                                         .group = g - 1,
                                         .from = from,
                                         .to = to,
                                         .first = leaves_out ? to - 2 : from,
                                         .last = &stored[model->group_count - 1] };
    }
    for (size_t g = 0; g < model->group_count; g++) {
        for (size_t at = stored[g].first; !again && at < to; at++) {
            block_of(model, prompt->hashes[at])->truth[g]++;
            model->total--;
        }
        add_event(model, &stored[g]);
        read_stored(model, &stored[g]);
    }
}

static bool holds(struct model *model, const struct prompt *prompt, size_t at, size_t group)
{
    return block_of(model, prompt->hashes[at])->truth[group] > 0;
}

/* True when a request may begin after this many blocks. */
static bool is_hit(struct model *model, const struct prompt *prompt, size_t blocks)
{
    for (size_t g = 0; g < model->group_count; g++) {
        const size_t reach = window_tokens - 1;
        const size_t from = model->groups[g].is_window && blocks > reach ? blocks - reach : 0;
        for (size_t at = from; at < blocks; at++) {
            if (!holds(model, prompt, at, g)) {
                return false;
            }
        }
    }
    return true;
}

static size_t find_hit(struct model *model, const struct prompt *prompt, size_t blocks)
{
    while (!is_hit(model, prompt, blocks)) {
        blocks--;
    }
    return blocks;
}

static bool is_in(const struct prompt *prompt, uint64_t hash)
{
    for (size_t at = 0; at < depth; at++) {
        if (prompt->hashes[at] == hash) {
            return true;
        }
    }
    return false;
}

/* Evicts a copy of some block of another prompt; false when there is none. */
static bool evict(struct model *model, const struct prompt *kept)
{
    const size_t first = draw(model, (uint32_t)(model->block_count * model->group_count));

    for (size_t i = 0; i < model->block_count * model->group_count; i++) {
        const size_t at = (first + i) % (model->block_count * model->group_count);
        struct copies_of *block = &model->blocks[at / model->group_count];
        const size_t group = at % model->group_count;
        if (block->truth[group] == 0 || is_in(kept, block->hash)) {
            continue;
        }
        block->truth[group]--;
        model->total++;
        add_removed(&model->scene.batch, &block->hash, 1);
        of_full_group(&model->scene, model->groups[group].number);
        read_removed(block, group);
        return true;
    }
    return false;
}

static void clear(struct model *model)
{
    add_cleared(&model->scene.batch);
    for (size_t i = 0; i < model->block_count; i++) {
        struct copies_of *block = &model->blocks[i];
        for (size_t g = 0; g < model->group_count; g++) {
            model->total += block->truth[g];
            block->truth[g] = block->min[g] = block->max[g] = 0;
        }
    }
}

/* Begins after a hit, or at the root when prompt_logprobs are requested; computes the prompt in one
 * step or in two. */
static void serve(struct model *model)
{
    const struct prompt *prompt = &model->prompts[draw(model, prompts)];
    const size_t blocks = 1 + draw(model, depth);
    const size_t hit = draw(model, 12) ? find_hit(model, prompt, blocks) : 0;
    const size_t middle = hit + draw(model, (uint32_t)(blocks - hit) + 1);
    bool has_room = true;

    if (hit > 0 && model->has_reports && draw(model, 4) == 0) {
        say(model, prompt, 0, hit, true);
    }
    while (has_room && model->total < (int)(model->group_count * (blocks - hit))) {
        has_room = evict(model, prompt);
    }
    for (uint32_t more = draw(model, 4); more > 0; more--) {
        (void)evict(model, prompt);
    }
    if (has_room && middle > hit) {
        say(model, prompt, hit, middle, false);
    }
    if (has_room && blocks > middle) {
        say(model, prompt, middle, blocks, false);
    }
}

/* ---- Comparing ---- */

static bool is_sure(const struct model *model, const struct copies_of *block, bool is_window)
{
    bool is_any = false;

    for (size_t g = 0; g < model->group_count; g++) {
        if (!model->is_met[g] || model->groups[g].is_window != is_window) {
            continue;
        }
        if (block->min[g] == 0) {
            return false;
        }
        is_any = true;
    }
    return is_any;
}

static void compare_block(struct model *model, const struct copies_of *block)
{
    bool has_kind[2] = { false, false };
    bool is_held[2] = { true, true };
    bool is_doubtful[2] = { false, false };

    for (size_t g = 0; g < model->group_count; g++) {
        const bool is_window = model->groups[g].is_window;
        assert_in_range(block->truth[g], block->min[g], block->max[g]);
        has_kind[is_window] = true;
        is_held[is_window] &= block->truth[g] > 0;
        is_doubtful[is_window] |= block->min[g] == 0 && block->max[g] > 0;
        model->doubted += block->min[g] == 0 && block->max[g] > 0;
    }
    for (size_t window = 0; window < 2; window++) {
        const unsigned list = window ? KVB_LIST_WINDOW : KVB_TIER_DEVICE;
        const bool is_listed = scene_lists(&model->scene, list, block->name);
        assert_int_equal(is_listed, is_sure(model, block, window));
        assert_true(!is_listed || (has_kind[window] && is_held[window]));
        const bool is_missed = has_kind[window] && is_held[window] && !is_listed;
        assert_true(!is_missed || is_doubtful[window]);
        model->listed += is_listed;
        model->missed += is_missed;
    }
}

/* ---- A reader of republished events: no block twice, and no child without its parent ---- */

static size_t number_of(struct model *model, uint64_t hash)
{
    return (size_t)(block_of(model, hash) - model->blocks);
}

static void read_shown(struct model *model, const struct kvb_event_batch *batch)
{
    for (size_t e = 0; e < batch->event_count; e++) {
        const struct kvb_engine_event *event = &batch->events[e];
        const bool is_stored = event->kind == KVB_EVENT_STORED;
        if (event->kind == KVB_EVENT_CLEARED) {
            memset(model->is_shown, 0, sizeof model->is_shown);
        }
        for (uint32_t i = 0; i < event->hash_count; i++) {
            const uint64_t hash = batch->hashes[event->hash_at + i].value;
            const uint64_t parent = block_of(model, hash)->parent;
            assert_int_equal(model->is_shown[number_of(model, hash)], !is_stored);
            assert_true(!is_stored || !parent || model->is_shown[number_of(model, parent)]);
            model->is_shown[number_of(model, hash)] = is_stored;
        }
    }
}

static size_t main_group(const struct model *model)
{
    size_t g = 0;

    while (model->groups[g].is_window) {
        g++;
    }
    return g;
}

/* The blocks of the first family have no salt. */
static bool should_be_shown(struct model *model, size_t number)
{
    const struct copies_of *block = &model->blocks[number];
    bool is_salted = true;

    for (size_t i = 0; i < branches; i++) {
        is_salted &= !is_in(&model->prompts[i], block->hash);
    }
    return !is_salted && block->min[main_group(model)] > 0 &&
           (!block->parent || should_be_shown(model, number_of(model, block->parent)));
}

static void compare_shown(struct model *model)
{
    struct kvb_event_batch batch = { .has_rank = false };

    assert_ok(
        kvb_shown_take_changes(kvb_mirror_shown(model->scene.mirror), SIZE_MAX, SIZE_MAX, &batch));
    read_shown(model, &batch);
    kvb_event_batch_done(&batch);
    for (size_t i = 0; i < model->block_count; i++) {
        assert_int_equal(model->is_shown[i], should_be_shown(model, i));
    }
}

static void compare(struct model *model)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(model->scene.mirror);
    uint64_t proven = 0;
    uint64_t doubtful = 0;

    for (size_t i = 0; i < model->block_count; i++) {
        compare_block(model, &model->blocks[i]);
        for (size_t g = 0; g < model->group_count; g++) {
            proven += (uint64_t)model->blocks[i].min[g];
            doubtful += model->blocks[i].min[g] == 0 && model->blocks[i].max[g] > 0;
        }
    }
    assert_int_equal(counts->proven_copies, proven);
    assert_int_equal(counts->doubtful, doubtful);
    assert_int_equal(counts->unknown_removed, 0);
    assert_int_equal(counts->unplaced, 0);
    assert_int_equal(counts->aliases, 0);
    assert_false(kvb_mirror_has_odd_groups(model->scene.mirror));
}

static void run(struct model *model, unsigned seed, bool is_counted, size_t sums[3])
{
    begin(model, seed, is_counted);
    for (size_t i = 0; i < requests; i++) {
        model->was_real = false;
        if (draw(model, 60) == 0) {
            clear(model);
        }
        serve(model);
        if (draw(model, 3) == 0) {
            serve(model);
        }
        model->scene.part_work = draw(model, 2) == 0 ? UINT64_MAX : 1 + (uint64_t)draw(model, 6);
        mirror_scene_apply(&model->scene);
        if (kvb_mirror_count(model->scene.mirror)->doubtful > max_doubtful) {
            break; /* the oldest may be forgotten: the reader knows more than the mirror does */
        }
        compare(model);
        if (draw(model, 2) == 0) { /* readers are sent the changes of several batches at once */
            compare_shown(model);
        }
    }
    assert_shown_as_published(&model->scene);
    sums[0] += model->listed;
    sums[1] += model->doubted;
    sums[2] += model->missed;
    mirror_scene_end(&model->scene);
}

static void random_engines_are_listed_correctly(void **state)
{
    (void)state;
    static struct model model;
    size_t sums[3] = { 0 };

    for (unsigned seed = 1; seed <= worlds; seed++) {
        run(&model, seed, false, sums);
    }
    print_message("%zu listed, %zu doubtful, %zu missed\n", sums[0], sums[1], sums[2]);
    assert_true(sums[0] > 20 * sums[2]);
}

/* Without re-announcements the numbers of copies are exact. */
static void counted_copies_are_exact_without_reannouncements(void **state)
{
    (void)state;
    static struct model model;
    size_t sums[3] = { 0 };

    for (unsigned seed = 1; seed <= worlds / 5; seed++) {
        run(&model, seed, true, sums);
    }
    assert_true(sums[0] > 0);
    assert_int_equal(sums[1], 0);
    assert_int_equal(sums[2], 0);
}

SUITE(mirror_world)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_engines_are_listed_correctly),
        cmocka_unit_test(counted_copies_are_exact_without_reannouncements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
