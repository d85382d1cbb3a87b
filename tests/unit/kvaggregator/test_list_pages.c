#include "kvb_test.h"

#include "core/limits.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/list_scene.h"

#include <string.h>

/* What /streams, /rows and /dump show of window lists and of stores. */

static const struct lists hybrid = {
    .worker_id = 5,
    .shape = { 16, 0 },
    .device = "111",
    .window = "011",
    .window_tokens = 17,
};

static struct kvb_buf new_buf(void)
{
    struct kvb_buf buf;

    kvb_buf_init(&buf, kvb_max_answer_bytes);
    return buf;
}

static const char *text_of(struct kvb_buf *buf)
{
    assert_ok(kvb_buf_append(buf, "", 1));
    return (const char *)buf->data;
}

static size_t count_words(const char *text, const char *word)
{
    size_t count = 0;

    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        count++;
    }
    return count;
}

static void pages_continue_within_the_window_list(void **state)
{
    (void)state;
    struct kvb_dump_place place = { 0 };
    struct kvb_buf whole = new_buf();
    struct kvb_buf pages = new_buf();
    size_t count = 0;
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &hybrid);
    hold_lists(&scene, &(struct lists){ .worker_id = 6, .shape = { 16, 0 }, .device = "1" });
    assert_ok(kvb_answer_dump_rows(&scene.ctx, 1 << 20, &place, &whole));
    for (place = (struct kvb_dump_place){ 0 }; !place.is_end; count++) {
        assert_ok(kvb_answer_dump_rows(&scene.ctx, 1, &place, &pages));
    }
    /* one page has the rows of an extent, or of one cell of the window list */
    assert_true(count >= 4);
    assert_string_equal(text_of(&pages), text_of(&whole));
    kvb_buf_done(&whole);
    kvb_buf_done(&pages);
    scene_done(&scene);
}

/* Dynamo's readers have no such tier. */
static void router_events_of_a_dump_leave_the_window_list_out(void **state)
{
    (void)state;
    struct kvb_dump dump = { 0 };
    struct kvb_buf buf = new_buf();
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &hybrid);
    const struct kvb_dump_options options = {
        .model = "", .name_space = "", .component = "", .max_blocks = UINT64_MAX
    };
    assert_ok(kvb_dump_begin(&dump, &scene.ctx, &options, NULL));
    assert_ok(kvb_dump_step(&dump, &scene.ctx, &buf));
    const char *text = text_of(&buf);
    assert_int_equal(count_words(text, "\"block_hash\""), 3);
    assert_null(strstr(text, "window"));
    kvb_dump_done(&dump);
    kvb_buf_done(&buf);
    scene_done(&scene);
}

static void streams_show_the_window_list_and_whether_they_are_a_store(void **state)
{
    (void)state;
    const struct lists store = {
        .worker_id = 9, .shape = { 16, 0 }, .host_shape = { 16, 0 }, .host = "1", .is_store = true
    };
    struct kvb_buf buf = new_buf();
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &hybrid);
    hold_lists(&scene, &store);
    assert_ok(kvb_answer_streams(&scene.ctx, 0, 10, &buf));
    const char *text = text_of(&buf);
    assert_non_null(
        strstr(text, "\"blocks\":{\"device\":3,\"host\":0,\"disk\":0,\"window\":2},\"doubtful\""));
    assert_non_null(
        strstr(text, "\"blocks\":{\"device\":0,\"host\":1,\"disk\":0},\"store\":true,"));
    assert_int_equal(count_words(text, "\"store\""), 1);
    kvb_buf_done(&buf);
    scene_done(&scene);
}

SUITE(list_pages)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_continue_within_the_window_list),
        cmocka_unit_test(router_events_of_a_dump_leave_the_window_list_out),
        cmocka_unit_test(streams_show_the_window_list_and_whether_they_are_a_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
