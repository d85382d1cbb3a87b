#include "core/clock.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvctl/top/columns.h"
#include "kvctl/top/draw.h"
#include "kvctl/top/json.h"
#include "kvctl/top/keys.h"
#include "kvctl/top_scene.h"

#include "kvb_test.h"

#include <curses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compares the output of `kvctl top` with the reference pictures in tests/data/top. After an
 * intended change, KVB_PICTURES=write writes them again: look at them before you commit them. */

enum { picture_bytes = 1 << 20, golden_bytes = 1 << 16 };

struct stage {
    struct kvctl_top_model model;
    struct kvctl_top_view view;
    struct kvctl_top_frame frame;
    struct kvb_buf picture;
};

static int set_up(void **state)
{
    struct stage *stage = calloc(1, sizeof *stage);

    assert_non_null(stage);
    top_scene_make(&stage->model);
    kvb_buf_init(&stage->picture, picture_bytes);
    stage->frame = (struct kvctl_top_frame){
        .columns = 80, .rows = 24, .now_ns = 13 * KVB_NS_PER_S, .clock = "12:34:56"
    };
    *state = stage;
    return 0;
}

static int tear_down(void **state)
{
    struct stage *stage = *state;

    kvctl_top_model_done(&stage->model);
    kvb_buf_done(&stage->picture);
    free(stage);
    return 0;
}

static void draw(struct stage *stage)
{
    assert_ok(kvctl_top_select(&stage->model, &stage->view));
    assert_ok(kvctl_top_draw(&stage->model, &stage->view, &stage->frame, &stage->picture));
}

static void draw_sized(struct stage *stage, size_t columns, size_t rows)
{
    stage->frame.columns = columns;
    stage->frame.rows = rows;
    draw(stage);
}

/* The picture as text, valid until the next call. */
static const char *text_of(struct stage *stage)
{
    assert_ok(kvb_buf_append(&stage->picture, "", 1));
    stage->picture.len--;
    return (const char *)stage->picture.data;
}

static void assert_shows(struct stage *stage, const char *part)
{
    if (!strstr(text_of(stage), part)) {
        print_error("\"%s\" is not in:\n%s\n", part, text_of(stage));
        fail();
    }
}

static void assert_hides(struct stage *stage, const char *part)
{
    assert_null(strstr(text_of(stage), part));
}

static void assert_golden(struct stage *stage, const char *name)
{
    char path[512];
    char golden[golden_bytes];
    const char *write = getenv("KVB_PICTURES"); /* NOLINT(concurrency-mt-unsafe): one thread */

    (void)snprintf(path, sizeof path, "%s/top/%s.txt", KVB_DATA, name);
    FILE *file = fopen(path, write ? "w+" : "r");
    assert_non_null(file);
    if (write) {
        assert_int_equal(fputs(text_of(stage), file) < 0, 0);
        rewind(file);
    }
    const size_t len = fread(golden, 1, sizeof golden - 1, file);
    golden[len] = '\0';
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text_of(stage), golden);
}

/* No line is wider than the screen, there are no more lines than rows, and all bytes are printable
 * ASCII, line ends and kvctl's colour sequences. */
static void assert_fits(struct stage *stage)
{
    size_t column = 0;
    size_t lines = 0;
    bool is_sgr = false;

    for (const char *at = text_of(stage); *at; at++) {
        if (is_sgr) {
            assert_non_null(strchr("[0123456789m", *at));
            is_sgr = *at != 'm';
        } else if (*at == '\033' && stage->frame.has_color) {
            is_sgr = true;
        } else if (*at == '\n') {
            lines++;
            column = 0;
        } else {
            assert_in_range(*at, ' ', '~');
            assert_true(++column <= stage->frame.columns);
        }
    }
    assert_true(lines <= stage->frame.rows);
}

/* ---- Reference pictures ---------------------------------------------------------------- */

static void pictures_equal_the_reference_pictures(void **state)
{
    static const struct {
        const char *name;
        size_t columns;
        size_t rows;
        bool has_color;
    } sizes[] = {
        { "80x24", 80, 24, false },      { "20x10", 20, 10, false },
        { "200x50", 200, 50, false },    { "80x24-color", 80, 24, true },
        { "20x10-color", 20, 10, true }, { "200x50-color", 200, 50, true },
    };
    struct stage *stage = *state;

    for (size_t i = 0; i < KVB_COUNT_OF(sizes); i++) {
        stage->frame.has_color = sizes[i].has_color;
        draw_sized(stage, sizes[i].columns, sizes[i].rows);
        assert_fits(stage);
        assert_golden(stage, sizes[i].name);
    }
}

static void the_help_lists_every_key_on_an_ordinary_screen(void **state)
{
    struct stage *stage = *state;

    kvctl_top_press(&stage->view, 'h');
    draw(stage);
    assert_golden(stage, "help-80x24");
    for (size_t i = 0; kvctl_top_key_help(i); i++) {
        assert_shows(stage, kvctl_top_key_help(i)->help);
    }
}

static void output_for_scripts_has_all_rows_and_no_trailing_blanks(void **state)
{
    struct stage *stage = *state;

    draw_sized(stage, 200, 0);
    assert_golden(stage, "once");
    assert_hides(stage, " \n");
    assert_hides(stage, "quit");
}

/* ---- Small screens ------------------------------------------------------------------------ */

static void every_size_gives_a_picture_that_fits(void **state)
{
    struct stage *stage = *state;

    for (size_t size = 0; size < (size_t)220 * 30; size++) {
        stage->frame.has_color = size % 2;
        stage->view.is_help = size % 3 == 0;
        stage->view.is_typing = size % 5 == 0;
        stage->model.link.is_answering = size % 7 != 0;
        draw_sized(stage, 1 + (size % 220), 1 + (size / 220));
        assert_fits(stage);
    }
}

static void trouble_is_the_last_thing_to_be_left_out(void **state)
{
    struct stage *stage = *state;

    stage->model.link.is_connected = false;
    stage->model.link.lost_ns = KVB_NS_PER_S;
    draw_sized(stage, 40, 1);
    assert_shows(stage, "NATS is away");
}

static void a_narrow_screen_drops_the_least_important_columns(void **state)
{
    struct stage *stage = *state;

    (void)snprintf(stage->view.filter, sizeof stage->view.filter, "exact");
    stage->model.count = 12; /* without the longest id */
    draw_sized(stage, 76, 24);
    assert_shows(stage, "RECON");
    draw_sized(stage, 75, 24);
    assert_hides(stage, "RECON");
    assert_shows(stage, "ACTIVE");
    draw_sized(stage, 20, 24);
    assert_shows(stage, "WORKER^ STATE");
    draw_sized(stage, 8, 24);
    assert_shows(stage, "WORKER^\n");
    assert_hides(stage, "STATE");
}

/* ---- Trouble ----------------------------------------------------------------------------------
 */

static void an_absent_nats_is_shown_with_the_age_of_the_data(void **state)
{
    struct stage *stage = *state;

    stage->model.link.is_connected = false;
    stage->model.link.lost_ns = KVB_NS_PER_S;
    draw(stage);
    assert_shows(stage, "STALE 12 s");
    assert_shows(stage, "NATS is away, trying again; what stands below is 12 s old");
    assert_shows(stage, "0 PARTIAL"); /* the last picture remains */
}

static void a_silent_aggregator_is_shown_with_the_reason(void **state)
{
    struct stage *stage = *state;

    stage->model.link.is_answering = false;
    (void)snprintf(stage->model.link.trouble, sizeof stage->model.link.trouble, "nobody answers");
    draw(stage);
    assert_shows(stage, "aggregator silent for 12 s: nobody answers");
    stage->model.link.has_answer = false;
    draw(stage);
    assert_shows(stage, "aggregator silent: nobody answers");
}

static void a_fleet_without_streams_is_shown_as_such(void **state)
{
    struct stage *stage = *state;

    stage->model.count = 0;
    draw(stage);
    assert_shows(stage, "no streams yet");
    (void)snprintf(stage->view.filter, sizeof stage->view.filter, "x");
    draw(stage);
    assert_shows(stage, "no stream has \"x\"");
}

/* ---- Rows: which, and in what order
 * ---------------------------------------------------------------- */

static void a_filter_finds_every_word_in_any_column_of_text(void **state)
{
    static const struct {
        const char *filter;
        size_t shown;
    } filters[] = {
        { "", 14 },
        { "exact", 10 },
        { "EXACT  vllm ", 10 },
        { "GONE", 1 },
        { "9223372036854775807", 1 },
        { "down 2", 1 },
        { "down gone", 0 },
    };
    struct stage *stage = *state;

    for (size_t i = 0; i < KVB_COUNT_OF(filters); i++) {
        (void)snprintf(stage->view.filter, sizeof stage->view.filter, "%s", filters[i].filter);
        assert_ok(kvctl_top_select(&stage->model, &stage->view));
        assert_int_equal(stage->model.shown_count, filters[i].shown);
    }
}

static void every_column_sorts_both_ways_and_ties_keep_their_order(void **state)
{
    struct stage *stage = *state;
    size_t count = 0;
    const struct kvctl_top_column *columns = kvctl_top_columns(&count);

    for (size_t c = 0; c < 2 * count; c++) {
        stage->view.sort = c / 2;
        stage->view.is_reversed = c % 2;
        const bool is_falling = columns[c / 2].is_falling != stage->view.is_reversed;
        assert_ok(kvctl_top_select(&stage->model, &stage->view));
        for (size_t i = 1; i < stage->model.shown_count; i++) {
            const struct kvctl_top_row *a = stage->model.shown[i - 1];
            const struct kvctl_top_row *b = stage->model.shown[i];
            const int order = kvctl_top_column_compare(&columns[c / 2], a, b);
            assert_true(is_falling ? order >= 0 : order <= 0);
            assert_true(order != 0 || a->id.worker_id <= b->id.worker_id);
        }
    }
}

static void the_worst_and_the_largest_come_first(void **state)
{
    struct stage *stage = *state;

    kvctl_top_press(&stage->view, 'E');
    assert_ok(kvctl_top_select(&stage->model, &stage->view));
    assert_true(stage->model.shown[0]->id.worker_id == INT64_MAX);
    assert_false(stage->model.shown[13]->events_per_s.is_known);
    (void)snprintf(stage->view.filter, sizeof stage->view.filter, "vllm");
    kvctl_top_press(&stage->view, 'S');
    assert_ok(kvctl_top_select(&stage->model, &stage->view));
    assert_string_equal(stage->model.shown[0]->state, "DOWN");
}

static void columns_are_found_by_title_in_any_case(void **state)
{
    (void)state;
    size_t number = 0;

    assert_ok(kvctl_top_column_named("Lag", &number));
    assert_int_equal(number, 5);
    assert_int_equal(kvctl_top_column_named("lags", &number), KVB_NOT_FOUND);
}

static void scrolling_ends_where_the_last_page_is_full(void **state)
{
    struct stage *stage = *state;

    stage->frame.rows = 12;
    kvctl_top_press(&stage->view, KEY_END);
    draw(stage);
    assert_int_equal(stage->view.page, 6);
    assert_int_equal(stage->view.first, 8);
    assert_shows(stage, "9-14 of 14");
    kvctl_top_press(&stage->view, KEY_PPAGE);
    kvctl_top_press(&stage->view, KEY_UP);
    draw(stage);
    assert_shows(stage, "2-7 of 14");
    stage->frame.rows = 24;
    draw(stage);
    assert_shows(stage, "1-14 of 14");
}

/* ---- For programs, and without memory
 * ------------------------------------------------------------------ */

static void json_has_every_row_and_null_for_unknown_values(void **state)
{
    struct stage *stage = *state;

    (void)snprintf(stage->view.filter, sizeof stage->view.filter, "bridge_stopped");
    assert_ok(kvctl_top_select(&stage->model, &stage->view));
    assert_ok(kvctl_top_json(&stage->model, &stage->picture));
    assert_shows(stage, "\"totals\":{\"bridges\":2,\"states\":{\"SYNCING\":1,\"EXACT\":10,");
    assert_shows(
        stage,
        "\"streams\":[{\"namespace\":\"dynamo\",\"component\":\"VllmWorker\",\"worker_id\":2,"
        "\"dp_rank\":1,\"state\":\"DOWN\",\"reason\":\"bridge_stopped\","
        "\"events_per_s\":null,\"lag_s\":754,");
}

static void a_tier_that_is_unverified_alone_is_named(void **state)
{
    struct stage *stage = *state;
    struct kvctl_top_row row = { .state = "EXACT",
                                 .tier_reasons = { [KVB_TIER_HOST] = "no_removals" } };
    char text[kvctl_top_cell_bytes];
    size_t count = 0;
    size_t at = 0;

    const struct kvctl_top_column *columns = kvctl_top_columns(&count);
    while (strcmp(columns[at].name, "reason") != 0) {
        at++;
    }
    columns[at].render(&row, text);
    assert_string_equal(text, "host:no_removals");
    (void)snprintf(row.reason, sizeof row.reason, "gone");
    columns[at].render(&row, text);
    assert_string_equal(text, "gone host:no_removals");
    assert_true(columns[at].compare(&row, &stage->model.rows[0]) != 0);
    row = (struct kvctl_top_row){ .state = "EXACT" };
    columns[at].render(&row, text);
    assert_string_equal(text, "-");
}

static void lack_of_memory_is_reported(void **state)
{
    struct stage *stage = *state;

    fail_alloc_after(0);
    assert_int_equal(kvctl_top_select(&stage->model, &stage->view), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    assert_ok(kvctl_top_select(&stage->model, &stage->view));
    fail_alloc_after(0);
    assert_int_equal(
        kvctl_top_draw(&stage->model, &stage->view, &stage->frame, &stage->picture), KVB_NO_MEMORY);
    fail_alloc_after(-1);
}

int main(void)
{
#define ON_STAGE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        ON_STAGE(pictures_equal_the_reference_pictures),
        ON_STAGE(the_help_lists_every_key_on_an_ordinary_screen),
        ON_STAGE(output_for_scripts_has_all_rows_and_no_trailing_blanks),
        ON_STAGE(every_size_gives_a_picture_that_fits),
        ON_STAGE(trouble_is_the_last_thing_to_be_left_out),
        ON_STAGE(a_narrow_screen_drops_the_least_important_columns),
        ON_STAGE(an_absent_nats_is_shown_with_the_age_of_the_data),
        ON_STAGE(a_silent_aggregator_is_shown_with_the_reason),
        ON_STAGE(a_fleet_without_streams_is_shown_as_such),
        ON_STAGE(a_filter_finds_every_word_in_any_column_of_text),
        ON_STAGE(every_column_sorts_both_ways_and_ties_keep_their_order),
        ON_STAGE(the_worst_and_the_largest_come_first),
        ON_STAGE(columns_are_found_by_title_in_any_case),
        ON_STAGE(scrolling_ends_where_the_last_page_is_full),
        ON_STAGE(json_has_every_row_and_null_for_unknown_values),
        ON_STAGE(a_tier_that_is_unverified_alone_is_named),
        ON_STAGE(lack_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
