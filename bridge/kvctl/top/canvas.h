#pragma once

#include "core/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Lines of at most so many columns, put together from left to right: as text in a
 * buffer, or on curses' screen, which the caller has erased.
 * The one way to the terminal: every byte that is not printable ASCII becomes "?",
 * so nothing from the wire can steer it.
 *
 * Threads: the caller locks; curses' screen is for the thread that made it. */

enum kvctl_top_color {
    kvctl_top_plain,
    kvctl_top_bold,
    kvctl_top_dim,
    kvctl_top_reverse,
    kvctl_top_green,
    kvctl_top_yellow,
    kvctl_top_red,
    kvctl_top_cyan,
    kvctl_top_magenta,
    kvctl_top_color_count
};

struct kvctl_top_canvas {
    struct kvb_buf *out; /* borrowed; NULL: curses' screen */
    size_t columns;      /* at least 1 */
    bool has_color;
    size_t lines;      /* ended */
    size_t at;         /* column in the line */
    size_t blanks;     /* held back until something follows */
    kvb_status status; /* the first failure stays: KVB_TOO_LARGE, KVB_NO_MEMORY */
};

/* Cut at the right edge. */
void kvctl_top_put(struct kvctl_top_canvas *canvas, enum kvctl_top_color color, const char *text);

/* Filled with blanks, or cut, to width. */
void kvctl_top_put_cell(
    struct kvctl_top_canvas *canvas, enum kvctl_top_color color, const char *text, size_t width,
    bool is_left);

/* Two blanks and the text when all of it fits; at the beginning of a line without
 * the blanks, and cut. */
void kvctl_top_put_item(
    struct kvctl_top_canvas *canvas, enum kvctl_top_color color, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void kvctl_top_end_line(struct kvctl_top_canvas *canvas);
