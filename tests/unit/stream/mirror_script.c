#include "mirror_script.h"

#include "kvb_test.h"

#include "batch_maker.h"
#include "core/own.h"
#include "event_words.h"
#include "index/block_hash.h"
#include "mirror_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    struct mirror_scene scene;
    bool has_names; /* the engine's */
} play;

static const struct kvb_mirror_counts *counts(void)
{
    return kvb_mirror_count(play.scene.mirror);
}

/* ---- What happens ---- */

static void do_mirror(void)
{
    struct kvb_mirror_options options = { 0 };

    for (size_t at = 1; at < script_words(); at++) {
        if (script_says(at, "names")) {
            options.hashes = KVB_HASHES_ENGINE;
        } else if (script_says(at, "counted")) {
            options.copies = KVB_COPIES_COUNTED;
        } else if (script_says(at, "chunk-tokens")) {
            options.chunk_tokens = (uint32_t)script_number(++at);
        } else {
            assert_true(script_says(at, "chunk-blocks"));
            options.chunk_blocks = (uint32_t)script_number(++at);
        }
    }
    play.has_names = options.hashes == KVB_HASHES_ENGINE;
    mirror_scene_begin(&play.scene, &options);
}

static void do_events(void)
{
    add_events_of_words(&play.scene.batch, 0);
    mirror_scene_apply(&play.scene);
    assert_shown_as_published(&play.scene);
}

static void do_meet(void)
{
    static const char *const names[] = {
        [KVB_GROUP_OTHER] = "other", [KVB_GROUP_CROSS] = "cross", [KVB_GROUP_ENCODER] = "encoder"
    };
    enum kvb_group_kind kind = KVB_GROUP_OTHER;

    while (!names[kind] || !script_says(1, names[kind])) {
        kind++;
        assert_true(kind < KVB_COUNT_OF(names));
    }
    const struct kvb_engine_event event = { .group = (uint32_t)script_number(2),
                                            .group_kind = kind };
    kvb_mirror_meet_other_group(play.scene.mirror, &event);
}

static void do_restart(void)
{
    kvb_mirror_restart(play.scene.mirror);
}

static void do_incomplete(void)
{
    kvb_mirror_set_whole(play.scene.mirror, false);
}

/* ---- What is listed then ---- */

static kvb_block_hash name_of_word(size_t at)
{
    uint32_t path[16];
    size_t depth = 0;

    if (play.has_names) {
        return (kvb_block_hash){ script_number(at) };
    }
    for (const char *text = script_word(at); *text != '\0'; depth++) {
        char *end = NULL;
        assert_true(depth < KVB_COUNT_OF(path));
        path[depth] = (uint32_t)strtoul(text, &end, 10);
        assert_true(end > text);
        text = *end == '.' ? end + 1 : end;
    }
    return name_of(path, depth);
}

static void must_list(bool is_listed)
{
    const bool is_second = script_says(1, "window1");
    const bool is_window = is_second || script_says(1, "window");
    const unsigned list = is_window ? KVB_LIST_WINDOW : tier_of_word(1);

    assert_true(script_words() > 2);
    for (size_t at = 2; at < script_words(); at++) {
        kvb_block_hash name = name_of_word(at);
        if (is_window) {
            name = kvb_block_hash_in_window(name, is_second);
        }
        assert_int_equal(scene_lists(&play.scene, list, name), is_listed);
    }
}

static void do_has(void)
{
    must_list(true);
}

static void do_lacks(void)
{
    must_list(false);
}

static void do_order(void)
{
    assert_int_equal(play.scene.out.block_count, script_words() - 1);
    for (size_t at = 1; at < script_words(); at++) {
        assert_true(play.scene.out.blocks[at - 1].value == name_of_word(at).value);
    }
}

static void do_follows(void)
{
    assert_true(play.scene.out.events[0].has_parent);
    assert_true(play.scene.out.events[0].parent.value == name_of_word(1).value);
}

/* ---- Groups and shapes ---- */

static void do_windows(void)
{
    struct kvb_window_rule windows[kvb_max_windows];
    const size_t count = kvb_mirror_windows(play.scene.mirror, windows);
    char text[64];

    assert_int_equal(count, script_says(1, "none") ? 0 : script_words() - 1);
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(
            text, sizeof text, "%s%u/%u", windows[i].is_chunked ? "c" : "", windows[i].tokens,
            windows[i].size);
        assert_string_equal(text, script_word(i + 1));
    }
}

static uint32_t bits_of_words(size_t at)
{
    uint32_t bits = 0;

    for (; at < script_words(); at++) {
        bits |= 1U << script_number(at);
    }
    return bits;
}

static void do_full_groups(void)
{
    assert_int_equal(kvb_mirror_full_groups(play.scene.mirror), bits_of_words(1));
}

static void do_window_groups(void)
{
    assert_int_equal(
        kvb_mirror_window_groups(play.scene.mirror, (uint32_t)script_number(1)), bits_of_words(2));
}

static void do_shape(void)
{
    const size_t at = script_number(1);

    assert_true(at < counts()->shape_count);
    assert_int_equal(counts()->shapes[at].tier, tier_of_word(2));
    assert_int_equal(counts()->shapes[at].shape.block_size, script_number(3));
}

static void do_chunk(void)
{
    assert_int_equal(kvb_mirror_chunk_blocks(play.scene.mirror), script_number(1));
}

static void do_even(void)
{
    assert_false(kvb_mirror_has_odd_groups(play.scene.mirror));
}

/* The text for people contains these words. */
static void do_odd(void)
{
    const char *why = kvb_mirror_odd_groups_why(play.scene.mirror);

    assert_true(kvb_mirror_has_odd_groups(play.scene.mirror));
    assert_non_null(why);
    for (size_t at = 1; at < script_words(); at++) {
        assert_non_null(strstr(why, script_word(at)));
    }
}

static void do_count(void)
{
    const struct {
        const char *name;
        uint64_t is;
    } rows[] = {
        { "device", play.scene.lists[KVB_TIER_DEVICE].count },
        { "host", play.scene.lists[KVB_TIER_HOST].count },
        { "disk", play.scene.lists[KVB_TIER_DISK].count },
        { "window", play.scene.lists[KVB_LIST_WINDOW].count },
        { "publishes", play.scene.out.block_count },
        { "aliases", counts()->aliases },
        { "doubtful", counts()->doubtful },
        { "self-parents", counts()->self_parents },
        { "shapes", counts()->shape_count },
        { "unknown-removed", counts()->unknown_removed },
        { "unplaced", counts()->unplaced },
        { "unrooted", counts()->unrooted },
        { "window-elsewhere", counts()->window_elsewhere },
        { "without-tokens", counts()->no_tokens },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (script_says(0, rows[i].name)) {
            assert_int_equal(rows[i].is, script_number(1));
            return;
        }
    }
    fail_msg("unknown: \"%s\"", script_word(0));
}

static const struct script_verb verbs[] = {
    { "mirror", do_mirror },
    { "stored", do_events },
    { "removed", do_events },
    { "cleared", do_events },
    { "meet", do_meet },
    { "restart", do_restart },
    { "incomplete", do_incomplete },
    { "has", do_has },
    { "lacks", do_lacks },
    { "order", do_order },
    { "follows", do_follows },
    { "windows", do_windows },
    { "full-groups", do_full_groups },
    { "window-groups", do_window_groups },
    { "shape", do_shape },
    { "chunk", do_chunk },
    { "even", do_even },
    { "odd", do_odd },
};

void play_mirror_script(void **state)
{
    script_play(*state, verbs, KVB_COUNT_OF(verbs), do_count);
}

int end_mirror_script(void **state)
{
    (void)state;
    script_tell_failure();
    mirror_scene_end(&play.scene);
    return 0;
}
