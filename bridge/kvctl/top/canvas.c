#include "kvctl/top/canvas.h"

#include <curses.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { item_bytes = 512 };

/* How a colour is written in a text, and on curses' screen, whose pairs have the numbers
 * of their colours. */
struct look {
    const char *sgr;
    attr_t attributes;
};

static const struct look looks[kvctl_top_color_count] = {
    [kvctl_top_plain] = { "", A_NORMAL },
    [kvctl_top_bold] = { "\033[1m", A_BOLD },
    [kvctl_top_dim] = { "\033[2m", A_DIM },
    [kvctl_top_reverse] = { "\033[7m", A_REVERSE },
    [kvctl_top_green] = { "\033[32m", COLOR_PAIR(COLOR_GREEN) },
    [kvctl_top_yellow] = { "\033[33m", COLOR_PAIR(COLOR_YELLOW) },
    [kvctl_top_red] = { "\033[31m", COLOR_PAIR(COLOR_RED) },
    [kvctl_top_cyan] = { "\033[36m", COLOR_PAIR(COLOR_CYAN) },
    [kvctl_top_magenta] = { "\033[35m", COLOR_PAIR(COLOR_MAGENTA) },
};

static void append(struct kvctl_top_canvas *canvas, const char *bytes, size_t len)
{
    if (canvas->status == KVB_OK) {
        canvas->status = kvb_buf_append(canvas->out, bytes, len);
    }
}

static void append_blanks(struct kvctl_top_canvas *canvas)
{
    for (; canvas->blanks > 0 && canvas->status == KVB_OK; canvas->blanks--) {
        append(canvas, " ", 1);
    }
}

static const char *harmless(const char *byte)
{
    return *byte >= ' ' && *byte <= '~' ? byte : "?";
}

static void
append_text(struct kvctl_top_canvas *canvas, const char *sgr, const char *text, size_t len)
{
    append_blanks(canvas);
    append(canvas, sgr, strlen(sgr));
    for (size_t i = 0; i < len; i++) {
        append(canvas, harmless(&text[i]), 1);
    }
    append(canvas, "\033[0m", sgr[0] ? 4 : 0);
}

/* Outside of the screen, and in its last cell, curses answers ERR: nothing is lost. */
static void
draw_text(const struct kvctl_top_canvas *canvas, attr_t attributes, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const chtype cell = (chtype)*harmless(&text[i]) | attributes;
        (void)mvaddch((int)canvas->lines, (int)(canvas->at + i), cell);
    }
}

static size_t room(const struct kvctl_top_canvas *canvas)
{
    return canvas->columns > canvas->at ? canvas->columns - canvas->at : 0;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void put_blanks(struct kvctl_top_canvas *canvas, size_t count)
{
    const size_t put = smaller(count, room(canvas));

    canvas->blanks += put;
    canvas->at += put;
}

static void
put_bytes(struct kvctl_top_canvas *canvas, enum kvctl_top_color color, const char *text, size_t len)
{
    const struct look *look = &looks[canvas->has_color ? color : kvctl_top_plain];
    const size_t put = smaller(len, room(canvas));

    if (put == 0) {
        return;
    }
    if (canvas->out) {
        append_text(canvas, look->sgr, text, put);
    } else {
        draw_text(canvas, look->attributes, text, put);
    }
    canvas->at += put;
}

void kvctl_top_put(struct kvctl_top_canvas *canvas, enum kvctl_top_color color, const char *text)
{
    put_bytes(canvas, color, text, strlen(text));
}

void kvctl_top_put_cell(
    struct kvctl_top_canvas *canvas, enum kvctl_top_color color, const char *text, size_t width,
    bool is_left)
{
    const size_t len = smaller(strlen(text), width);

    put_blanks(canvas, is_left ? 0 : width - len);
    put_bytes(canvas, color, text, len);
    put_blanks(canvas, is_left ? width - len : 0);
}

void kvctl_top_put_item(
    struct kvctl_top_canvas *canvas, enum kvctl_top_color color, const char *format, ...)
{
    char text[item_bytes];
    va_list values;

    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values); /* cut: longer than any line should be */
    va_end(values);
    if (canvas->at > 0) {
        if (room(canvas) < strlen(text) + 2) {
            return;
        }
        put_blanks(canvas, 2);
    }
    kvctl_top_put(canvas, color, text);
}

void kvctl_top_end_line(struct kvctl_top_canvas *canvas)
{
    if (canvas->out) {
        append(canvas, "\n", 1);
    }
    canvas->blanks = 0;
    canvas->at = 0;
    canvas->lines++;
}
