#include "kvctl/top/draw.h"

#include "core/clock.h"
#include "kvctl/top/canvas.h"
#include "kvctl/top/columns.h"
#include "kvctl/top/keys.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { max_columns = 16, head_lines = 4 };

/* What is drawn, and onto what. */
struct drawing {
    struct kvctl_top_canvas canvas;
    const struct kvctl_top_model *model;
    struct kvctl_top_view *view;
    const struct kvctl_top_frame *frame;
};

static double seconds_since(const struct drawing *drawing, uint64_t then_ns)
{
    const uint64_t now_ns = drawing->frame->now_ns;

    return now_ns > then_ns ? (double)(now_ns - then_ns) / (double)KVB_NS_PER_S : 0;
}

/* "12.5", or "-" */
static const char *
figure_text(char text[kvctl_top_cell_bytes], const struct kvctl_top_figure *figure, int digits)
{
    if (!figure->is_known) {
        return "-";
    }
    (void)snprintf(text, kvctl_top_cell_bytes, "%.*f", digits, figure->value);
    return text;
}

/* ---- The head ------------------------------------------------------------------------------- */

static void draw_title(struct drawing *drawing)
{
    const struct kvctl_top_link *link = &drawing->model->link;
    struct kvctl_top_canvas *canvas = &drawing->canvas;

    kvctl_top_put_item(canvas, kvctl_top_bold, "kvctl top");
    if (drawing->view->is_paused) {
        kvctl_top_put_item(canvas, kvctl_top_reverse, "PAUSED");
    }
    if (link->is_connected) {
        kvctl_top_put_item(canvas, kvctl_top_green, "NATS connected");
    } else {
        kvctl_top_put_item(
            canvas, kvctl_top_red, "STALE %.0f s", seconds_since(drawing, link->lost_ns));
        kvctl_top_put_item(canvas, kvctl_top_red, "NATS away");
    }
    if (link->is_answering) {
        kvctl_top_put_item(canvas, kvctl_top_green, "aggregator %s", link->version);
    } else {
        kvctl_top_put_item(canvas, kvctl_top_red, "aggregator silent");
    }
    kvctl_top_put_item(
        canvas, kvctl_top_plain, "%zu bridge%s", drawing->model->totals.bridges,
        drawing->model->totals.bridges == 1 ? "" : "s");
    kvctl_top_put_item(canvas, kvctl_top_dim, "%s", drawing->frame->clock);
}

static void draw_states(struct drawing *drawing)
{
    const struct kvctl_top_totals *totals = &drawing->model->totals;
    struct kvctl_top_canvas *canvas = &drawing->canvas;

    kvctl_top_put_item(
        canvas, kvctl_top_bold, "%zu stream%s", drawing->model->count,
        drawing->model->count == 1 ? "" : "s");
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        const char *name = kvb_stream_state_name((enum kvb_stream_state)state);
        if (totals->states[state] > 0) {
            kvctl_top_put_item(
                canvas, kvctl_top_state_color(name), "%zu %s", totals->states[state], name);
        }
    }
    if (totals->other_states > 0) {
        kvctl_top_put_item(canvas, kvctl_top_plain, "%zu other", totals->other_states);
    }
}

static void put_rate(
    struct kvctl_top_canvas *canvas, const char *name, const struct kvctl_top_figure *rate,
    const char *rest)
{
    if (rate->is_known) {
        kvctl_top_put_item(canvas, kvctl_top_plain, "%s %.0f%%%s", name, 100 * rate->value, rest);
    } else {
        kvctl_top_put_item(canvas, kvctl_top_plain, "%s -", name);
    }
}

static void draw_events(struct drawing *drawing)
{
    const struct kvctl_top_totals *totals = &drawing->model->totals;
    struct kvctl_top_canvas *canvas = &drawing->canvas;
    char text[kvctl_top_cell_bytes];
    char routed[kvctl_top_cell_bytes];

    kvctl_top_put_item(
        canvas, kvctl_top_plain, "%s events/s", figure_text(text, &totals->events_per_s, 1));
    kvctl_top_put_item(
        canvas, kvctl_top_plain, "%s blocks held", figure_text(text, &totals->blocks, 0));
    (void)snprintf(routed, sizeof routed, " (%" PRIu64 " routed)", totals->routed);
    put_rate(canvas, "hit rate", &totals->hit_rate, routed);
    put_rate(canvas, "engines'", &totals->engine_hit_rate, "");
}

static void draw_load(struct drawing *drawing)
{
    const struct kvctl_top_totals *totals = &drawing->model->totals;
    struct kvctl_top_canvas *canvas = &drawing->canvas;
    char avg[kvctl_top_cell_bytes];
    char std[kvctl_top_cell_bytes];

    kvctl_top_put_item(
        canvas, kvctl_top_plain, "load %s std %s", figure_text(avg, &totals->load_avg, 3),
        figure_text(std, &totals->load_std, 3));
    kvctl_top_put_item(
        canvas, kvctl_top_plain, "%s active %s waiting", figure_text(avg, &totals->active, 0),
        figure_text(std, &totals->waiting, 0));
    kvctl_top_put_item(
        canvas, kvctl_top_plain, "reconnects %" PRIu64 " engines %" PRIu64 " NATS",
        totals->engine_reconnects, totals->nats_reconnects);
}

/* ---- What is wrong ---- */

static bool has_trouble(const struct kvctl_top_model *model)
{
    return !model->link.is_connected || !model->link.is_answering;
}

static void draw_trouble(struct drawing *drawing)
{
    const struct kvctl_top_link *link = &drawing->model->link;
    struct kvctl_top_canvas *canvas = &drawing->canvas;

    if (!link->is_connected) {
        kvctl_top_put_item(
            canvas, kvctl_top_red, "NATS is away, trying again; what stands below is %.0f s old",
            seconds_since(drawing, link->lost_ns));
    } else if (link->has_answer) {
        kvctl_top_put_item(
            canvas, kvctl_top_red, "aggregator silent for %.0f s: %s",
            seconds_since(drawing, link->answered_ns), link->trouble);
    } else {
        kvctl_top_put_item(canvas, kvctl_top_red, "aggregator silent: %s", link->trouble);
    }
}

/* ---- The table ---- */

/* The columns that are shown, and how wide each is. */
struct table {
    const struct kvctl_top_column *columns;
    size_t count;
    bool is_shown[max_columns];
    size_t widths[max_columns];
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void measure(const struct drawing *drawing, struct table *table, size_t row_count)
{
    const struct kvctl_top_view *view = drawing->view;
    char text[kvctl_top_cell_bytes];

    for (size_t c = 0; c < table->count; c++) {
        const struct kvctl_top_column *column = &table->columns[c];
        const size_t mark = c == view->sort; /* behind the title */
        table->widths[c] = larger(column->width, strlen(column->title) + mark);
        for (size_t r = 0; r < row_count; r++) {
            kvctl_top_column_render(column, drawing->model->shown[view->first + r], text);
            table->widths[c] = larger(table->widths[c], strlen(text));
        }
    }
}

/* The most important column that is less important than `below`; count: none. */
static size_t next_important(const struct table *table, unsigned below)
{
    size_t best = table->count;

    for (size_t c = 0; c < table->count; c++) {
        const unsigned priority = table->columns[c].priority;
        if (priority < below &&
            (best == table->count || priority > table->columns[best].priority)) {
            best = c;
        }
    }
    return best;
}

/* Shows each column that fits beside the more important ones; the first in any case. */
static void choose_columns(struct table *table, size_t room)
{
    size_t taken = 0;
    size_t c = next_important(table, UINT_MAX);

    for (; c < table->count; c = next_important(table, table->columns[c].priority)) {
        const size_t width = table->widths[c] + (taken > 0);
        table->is_shown[c] = taken == 0 || taken + width <= room;
        taken += table->is_shown[c] ? width : 0;
    }
}

static void put_cell(
    struct drawing *drawing, const struct table *table, size_t column, enum kvctl_top_color color,
    const char *text)
{
    if (drawing->canvas.at > 0) {
        kvctl_top_put_cell(&drawing->canvas, kvctl_top_plain, "", 1, true);
    }
    kvctl_top_put_cell(
        &drawing->canvas, color, text, table->widths[column], table->columns[column].is_left);
}

static void draw_titles(struct drawing *drawing, const struct table *table)
{
    const struct kvctl_top_view *view = drawing->view;
    char text[kvctl_top_cell_bytes];

    for (size_t c = 0; c < table->count; c++) {
        const struct kvctl_top_column *column = &table->columns[c];
        const bool is_sort = c == view->sort;
        const char *mark = column->is_falling != view->is_reversed ? "v" : "^";
        if (table->is_shown[c]) {
            (void)snprintf(text, sizeof text, "%s%s", column->title, is_sort ? mark : "");
            put_cell(drawing, table, c, is_sort ? kvctl_top_reverse : kvctl_top_bold, text);
        }
    }
    kvctl_top_end_line(&drawing->canvas);
}

static enum kvctl_top_color cell_color(
    const struct drawing *drawing, const struct kvctl_top_column *column,
    const struct kvctl_top_row *row)
{
    if (!drawing->model->link.is_connected) {
        return kvctl_top_dim;
    }
    return column->color ? column->color(row) : kvctl_top_plain;
}

static void
draw_row(struct drawing *drawing, const struct table *table, const struct kvctl_top_row *row)
{
    char text[kvctl_top_cell_bytes];

    for (size_t c = 0; c < table->count; c++) {
        if (table->is_shown[c]) {
            kvctl_top_column_render(&table->columns[c], row, text);
            put_cell(drawing, table, c, cell_color(drawing, &table->columns[c], row), text);
        }
    }
    kvctl_top_end_line(&drawing->canvas);
}

static void draw_no_rows(struct drawing *drawing)
{
    const struct kvctl_top_view *view = drawing->view;
    const char *filter = view->is_typing ? view->typed : view->filter;

    if (filter[0]) {
        kvctl_top_put_item(&drawing->canvas, kvctl_top_plain, "no stream has \"%s\"", filter);
    } else {
        kvctl_top_put_item(&drawing->canvas, kvctl_top_plain, "no streams yet");
    }
    kvctl_top_end_line(&drawing->canvas);
}

/* Sets what is on top, so that the last page is full. */
static void cut_scrolling(struct kvctl_top_view *view, size_t count, size_t page)
{
    view->page = page;
    view->first = smaller(view->first, count > page ? count - page : 0);
}

/* Into `lines` lines, at least one; the titles go first when there is only one. */
static void draw_table(struct drawing *drawing, size_t lines)
{
    const size_t titles = lines > 1;
    const struct kvctl_top_model *model = drawing->model;
    struct table table = { .count = 0 };

    cut_scrolling(drawing->view, model->shown_count, lines - titles);
    const size_t first = drawing->view->first;
    const size_t row_count = smaller(model->shown_count - first, lines - titles);
    table.columns = kvctl_top_columns(&table.count);
    table.count = smaller(table.count, max_columns);
    measure(drawing, &table, row_count);
    choose_columns(&table, drawing->canvas.columns);
    if (titles) {
        draw_titles(drawing, &table);
    }
    for (size_t i = 0; i < row_count; i++) {
        draw_row(drawing, &table, model->shown[first + i]);
    }
    if (model->shown_count == 0) {
        draw_no_rows(drawing);
    }
}

/* ---- The help ---- */

static void draw_help_line(struct drawing *drawing, const char *keys, const char *help)
{
    kvctl_top_put_cell(&drawing->canvas, kvctl_top_bold, keys, 15, true);
    kvctl_top_put(&drawing->canvas, kvctl_top_plain, help);
    kvctl_top_end_line(&drawing->canvas);
}

static void draw_column_help(struct drawing *drawing, const struct kvctl_top_column *column)
{
    char keys[kvctl_top_cell_bytes];
    char help[2 * kvctl_top_cell_bytes];

    (void)snprintf(keys, sizeof keys, "%c", column->key);
    (void)snprintf(help, sizeof help, "sort by %-8s  %s", column->title, column->help);
    draw_help_line(drawing, keys, help);
}

static void draw_help(struct drawing *drawing, size_t lines)
{
    size_t key_count = 0;
    size_t column_count = 0;
    const struct kvctl_top_column *columns = kvctl_top_columns(&column_count);

    while (kvctl_top_key_help(key_count)) {
        key_count++;
    }
    const size_t count = key_count + column_count;
    cut_scrolling(drawing->view, count, lines);
    for (size_t i = drawing->view->first; i < smaller(count, drawing->view->first + lines); i++) {
        if (i < key_count) {
            const struct kvctl_top_key_help *key = kvctl_top_key_help(i);
            draw_help_line(drawing, key->keys, key->help);
        } else {
            draw_column_help(drawing, &columns[i - key_count]);
        }
    }
}

/* ---- The last line ---- */

static void draw_keys(struct drawing *drawing)
{
    const struct kvctl_top_view *view = drawing->view;
    struct kvctl_top_canvas *canvas = &drawing->canvas;
    const size_t count = drawing->model->shown_count;
    const size_t last = smaller(count, view->first + view->page);

    if (view->is_typing) {
        kvctl_top_put_item(canvas, kvctl_top_bold, "filter: %s_", view->typed);
        kvctl_top_put_item(canvas, kvctl_top_plain, "Enter takes it, Esc drops it");
        return;
    }
    if (view->is_help) {
        kvctl_top_put_item(canvas, kvctl_top_bold, "h back");
        kvctl_top_put_item(canvas, kvctl_top_plain, "q quit");
        return;
    }
    kvctl_top_put_item(
        canvas, kvctl_top_bold, "%zu-%zu of %zu", count > 0 ? view->first + 1 : 0, last, count);
    if (view->filter[0]) {
        kvctl_top_put_item(canvas, kvctl_top_yellow, "filter \"%s\"", view->filter);
    }
    kvctl_top_put_item(canvas, kvctl_top_plain, "q quit");
    kvctl_top_put_item(canvas, kvctl_top_plain, "h help");
    kvctl_top_put_item(canvas, kvctl_top_plain, "/ filter");
    kvctl_top_put_item(canvas, kvctl_top_plain, "< > sort");
    kvctl_top_put_item(canvas, kvctl_top_plain, "r reverse");
    kvctl_top_put_item(canvas, kvctl_top_plain, "p %s", view->is_paused ? "go on" : "pause");
}

/* ---- The whole ---- */

/* How many lines each part gets. */
struct parts {
    size_t head; /* of head_lines */
    size_t trouble;
    size_t table;
    size_t keys;
};

static struct parts share_rows(const struct drawing *drawing)
{
    const size_t rows = drawing->frame->rows;
    const size_t listed = larger(drawing->model->shown_count, 1);
    struct parts parts = { .trouble = has_trouble(drawing->model) };

    if (rows == 0) { /* no screen: all of it */
        parts.head = head_lines;
        parts.table = listed + 1;
        return parts;
    }
    parts.keys = rows > 4 || (rows > 1 && drawing->view->is_typing);
    parts.head = rows > 11 ? head_lines : (rows > 7 ? 2 : 1);
    parts.head = drawing->view->is_help ? 1 : parts.head;
    parts.head = rows > parts.keys + parts.trouble ? parts.head : 0;
    const size_t taken = parts.head + parts.trouble + parts.keys;
    parts.table = rows > taken ? rows - taken : 0;
    return parts;
}

static void draw_head(struct drawing *drawing, size_t lines)
{
    static void (*const draw[head_lines])(struct drawing *) = {
        draw_title,
        draw_states,
        draw_events,
        draw_load,
    };

    for (size_t i = 0; i < lines; i++) {
        draw[i](drawing);
        kvctl_top_end_line(&drawing->canvas);
    }
}

static void draw_parts(struct drawing *drawing, const struct parts *parts)
{
    struct kvctl_top_canvas *canvas = &drawing->canvas;

    draw_head(drawing, parts->head);
    if (parts->trouble) {
        draw_trouble(drawing);
        kvctl_top_end_line(canvas);
    }
    if (parts->table > 0 && drawing->view->is_help) {
        draw_help(drawing, parts->table);
    } else if (parts->table > 0) {
        draw_table(drawing, parts->table);
    }
    while (canvas->lines + parts->keys < drawing->frame->rows) {
        kvctl_top_end_line(canvas);
    }
    if (parts->keys) {
        draw_keys(drawing);
        kvctl_top_end_line(canvas);
    }
}

kvb_status kvctl_top_draw(
    const struct kvctl_top_model *model, struct kvctl_top_view *view,
    const struct kvctl_top_frame *frame, struct kvb_buf *out)
{
    struct drawing drawing = {
        .canvas = { .out = out,
                    .columns = larger(frame->columns, 1),
                    .has_color = frame->has_color },
        .model = model,
        .view = view,
        .frame = frame,
    };

    if (out) {
        kvb_buf_reset(out);
    }
    const struct parts parts = share_rows(&drawing);
    draw_parts(&drawing, &parts);
    return drawing.canvas.status;
}
