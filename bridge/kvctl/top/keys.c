#include "kvctl/top/keys.h"

#include "core/own.h"
#include "kvctl/top/columns.h"

#include <curses.h>
#include <string.h>

/* ---- What keys do -------------------------------------------------------------------------- */

static void quit(struct kvctl_top_view *view)
{
    view->is_done = true;
}

static void toggle_help(struct kvctl_top_view *view)
{
    view->is_help = !view->is_help;
    view->first = 0;
}

static void leave_help(struct kvctl_top_view *view)
{
    if (view->is_help) {
        toggle_help(view);
    }
}

static void toggle_pause(struct kvctl_top_view *view)
{
    view->is_paused = !view->is_paused;
}

static void begin_filter(struct kvctl_top_view *view)
{
    leave_help(view);
    view->is_typing = true;
    memcpy(view->typed, view->filter, sizeof view->typed);
}

static void drop_filter(struct kvctl_top_view *view)
{
    leave_help(view);
    view->filter[0] = '\0';
}

static void sort_by(struct kvctl_top_view *view, size_t column)
{
    view->sort = column;
    view->is_reversed = false;
}

static void sort_left(struct kvctl_top_view *view)
{
    size_t count = 0;

    (void)kvctl_top_columns(&count);
    sort_by(view, view->sort > 0 ? view->sort - 1 : count - 1);
}

static void sort_right(struct kvctl_top_view *view)
{
    size_t count = 0;

    (void)kvctl_top_columns(&count);
    sort_by(view, view->sort + 1 < count ? view->sort + 1 : 0);
}

static void reverse(struct kvctl_top_view *view)
{
    view->is_reversed = !view->is_reversed;
}

static void scroll_up(struct kvctl_top_view *view, size_t rows)
{
    view->first -= rows < view->first ? rows : view->first;
}

static void scroll_down(struct kvctl_top_view *view, size_t rows)
{
    view->first += rows; /* draw cuts it */
}

static void row_up(struct kvctl_top_view *view)
{
    scroll_up(view, 1);
}

static void row_down(struct kvctl_top_view *view)
{
    scroll_down(view, 1);
}

static void page_up(struct kvctl_top_view *view)
{
    scroll_up(view, view->page);
}

static void page_down(struct kvctl_top_view *view)
{
    scroll_down(view, view->page);
}

static void to_begin(struct kvctl_top_view *view)
{
    view->first = 0;
}

static void to_end(struct kvctl_top_view *view)
{
    view->first = SIZE_MAX / 2; /* draw cuts it */
}

static void nothing(struct kvctl_top_view *view)
{
    (void)view; /* the picture is drawn after every key */
}

/* ---- The table of keys ---- */

enum { ctrl_b = 2, ctrl_f = 6, ctrl_l = 12, escape = 0x1b, erase_byte = 0x7f };

struct binding {
    int keys[4];
    struct kvctl_top_key_help help; /* keys NULL: described with the row before */
    void (*act)(struct kvctl_top_view *view);
};

/* clang-format off */
static const struct binding bindings[] = {
    { { 'q' }, { "q", "quit" }, quit },
    { { 'h', '?' }, { "h ?", "this help; the same key leaves it" }, toggle_help },
    { { 'p', ' ' }, { "p blank", "pause: the picture stands still" }, toggle_pause },
    { { '/', 'f' }, { "/ f", "filter: words in worker, rank, state, reason, names" }, begin_filter },
    { { escape }, { "Esc", "no filter" }, drop_filter },
    { { '<', KEY_LEFT }, { "< > left right", "sort by the column beside" }, sort_left },
    { { '>', KEY_RIGHT }, { NULL, NULL }, sort_right },
    { { 'r' }, { "r", "the other way round" }, reverse },
    { { KEY_UP, 'k' }, { "up down k j", "scroll a row" }, row_up },
    { { KEY_DOWN, 'j' }, { NULL, NULL }, row_down },
    { { KEY_PPAGE, ctrl_b }, { "PgUp PgDn", "scroll a page" }, page_up },
    { { KEY_NPAGE, ctrl_f }, { NULL, NULL }, page_down },
    { { KEY_HOME, 'g' }, { "Home End g G", "to the first, to the last" }, to_begin },
    { { KEY_END, 'G' }, { NULL, NULL }, to_end },
    { { ctrl_l }, { "Ctrl-L", "draw again" }, nothing },
};
/* clang-format on */

static const struct binding *binding_of(int key)
{
    for (size_t i = 0; i < KVB_COUNT_OF(bindings); i++) {
        for (size_t k = 0; k < KVB_COUNT_OF(bindings[i].keys); k++) {
            if (key != 0 && bindings[i].keys[k] == key) {
                return &bindings[i];
            }
        }
    }
    return NULL;
}

/* A column's own letter; once more: the other way round. */
static void press_column(struct kvctl_top_view *view, int key)
{
    size_t count = 0;
    const struct kvctl_top_column *columns = kvctl_top_columns(&count);

    for (size_t i = 0; i < count; i++) {
        if (columns[i].key == key && view->sort == i) {
            reverse(view);
        } else if (columns[i].key == key) {
            sort_by(view, i);
        }
    }
}

/* While the filter is typed, keys are letters. */
static void type(struct kvctl_top_view *view, int key)
{
    const size_t len = strlen(view->typed);

    switch (key) {
    case '\r':
    case '\n':
    case KEY_ENTER:
        memcpy(view->filter, view->typed, sizeof view->filter);
        view->is_typing = false;
        break;
    case escape:
        view->is_typing = false;
        break;
    case '\b':
    case erase_byte:
    case KEY_BACKSPACE:
        view->typed[len > 0 ? len - 1 : 0] = '\0';
        break;
    default:
        if (key >= ' ' && key <= '~' && len + 1 < sizeof view->typed) {
            view->typed[len] = (char)key;
            view->typed[len + 1] = '\0';
        }
        break;
    }
    view->first = 0;
}

void kvctl_top_press(struct kvctl_top_view *view, int key)
{
    const struct binding *binding = NULL;

    if (view->is_typing) {
        type(view, key);
        return;
    }
    binding = binding_of(key);
    if (binding) {
        binding->act(view);
    } else {
        press_column(view, key);
    }
}

const struct kvctl_top_key_help *kvctl_top_key_help(size_t number)
{
    for (size_t i = 0; i < KVB_COUNT_OF(bindings); i++) {
        if (bindings[i].help.keys && number-- == 0) {
            return &bindings[i].help;
        }
    }
    return NULL;
}
