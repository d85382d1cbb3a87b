#pragma once

#include "kvctl/top/canvas.h"
#include "kvctl/top/model.h"

/* The table of columns: how each is called, shown, compared, and when it goes.
 * Threads: any thread. */

enum { kvctl_top_cell_bytes = 96 };

struct kvctl_top_column {
    const char *title;
    const char *name; /* of --sort */
    const char *help;
    size_t figure;     /* offset in the row; of a column of figures, like digits and is_span */
    int digits;        /* behind the point */
    unsigned width;    /* at least; the title and the cells may need more */
    unsigned priority; /* where the screen is narrow the smallest goes first */
    char key;          /* sorts by it */
    bool is_left;
    bool is_falling; /* the largest comes first unless reversed */
    bool is_span;    /* seconds, shown in the unit that fits */
    void (*render)(const struct kvctl_top_row *row, char text[kvctl_top_cell_bytes]);
    int (*compare)(const struct kvctl_top_row *a, const struct kvctl_top_row *b);
    enum kvctl_top_color (*color)(const struct kvctl_top_row *row); /* NULL: none */
};

const struct kvctl_top_column *kvctl_top_columns(size_t *out_count);

void kvctl_top_column_render(
    const struct kvctl_top_column *column, const struct kvctl_top_row *row,
    char text[kvctl_top_cell_bytes]);
int kvctl_top_column_compare(
    const struct kvctl_top_column *column, const struct kvctl_top_row *a,
    const struct kvctl_top_row *b);

/* Of "lag", "LAG", ...  KVB_NOT_FOUND. */
kvb_status kvctl_top_column_named(const char *name, size_t *out_number);

/* Of a state's name; plain for one that is not known. */
enum kvctl_top_color kvctl_top_state_color(const char *state);
