#include "cmd/kvctl_top_canvas.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { item_bytes = 512 };

static const char *const sgr[kvctl_top_color_count] = {
    [kvctl_top_plain] = "",           [kvctl_top_bold] = "\033[1m",
    [kvctl_top_dim] = "\033[2m",      [kvctl_top_reverse] = "\033[7m",
    [kvctl_top_green] = "\033[32m",   [kvctl_top_yellow] = "\033[33m",
    [kvctl_top_red] = "\033[31m",     [kvctl_top_cyan] = "\033[36m",
    [kvctl_top_magenta] = "\033[35m",
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

static void append_harmless(struct kvctl_top_canvas *canvas, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        append(canvas, text[i] >= ' ' && text[i] <= '~' ? &text[i] : "?", 1);
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
    const char *const before = canvas->has_color ? sgr[color] : "";
    const size_t put = smaller(len, room(canvas));

    if (put == 0) {
        return;
    }
    append_blanks(canvas);
    append(canvas, before, strlen(before));
    append_harmless(canvas, text, put);
    append(canvas, "\033[0m", before[0] ? 4 : 0);
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
    if (canvas->is_screen) {
        put_blanks(canvas, room(canvas));
        append_blanks(canvas);
    }
    append(canvas, "\n", 1);
    canvas->blanks = 0;
    canvas->at = 0;
    canvas->lines++;
}
