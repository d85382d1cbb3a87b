#include "cmd/kvctl_top_keys.h"

#include "cmd/kvctl_top_columns.h"
#include "core/own.h"

#include <stdio.h>
#include <string.h>

/* ---- From bytes to keys ------------------------------------------------------------------ */

struct sequence {
    const char *bytes; /* behind ESC */
    enum kvctl_top_key key;
};

/* xterm, its application mode, rxvt and the Linux console. */
static const struct sequence sequences[] = {
    { "[A", kvctl_top_key_up },       { "OA", kvctl_top_key_up },
    { "[B", kvctl_top_key_down },     { "OB", kvctl_top_key_down },
    { "[C", kvctl_top_key_right },    { "OC", kvctl_top_key_right },
    { "[D", kvctl_top_key_left },     { "OD", kvctl_top_key_left },
    { "[H", kvctl_top_key_home },     { "OH", kvctl_top_key_home },
    { "[1~", kvctl_top_key_home },    { "[7~", kvctl_top_key_home },
    { "[F", kvctl_top_key_end },      { "OF", kvctl_top_key_end },
    { "[4~", kvctl_top_key_end },     { "[8~", kvctl_top_key_end },
    { "[5~", kvctl_top_key_page_up }, { "[6~", kvctl_top_key_page_down },
};

static int key_of_sequence(const char *bytes, size_t len)
{
    for (size_t i = 0; i < KVB_COUNT_OF(sequences); i++) {
        if (strlen(sequences[i].bytes) == len && memcmp(sequences[i].bytes, bytes, len) == 0) {
            return (int)sequences[i].key;
        }
    }
    return kvctl_top_key_none;
}

/* "[5~", "OA": a letter or ~ ends it; "[" and "O" right behind ESC begin it. */
static bool is_complete(const struct kvctl_top_decoder *decoder)
{
    const char last = decoder->bytes[decoder->len - 1];

    return decoder->len > 2 && last >= '@' && last <= '~';
}

static int plain_key(char byte)
{
    switch (byte) {
    case '\n':
        return kvctl_top_key_enter;
    case '\b':
        return kvctl_top_key_erase;
    default:
        return (unsigned char)byte;
    }
}

int kvctl_top_decode(struct kvctl_top_decoder *decoder, char byte)
{
    if (decoder->len == 0 && byte != kvctl_top_key_escape) {
        return plain_key(byte);
    }
    if (decoder->len == 1 && byte != '[' && byte != 'O') { /* ESC, and then a key of its own */
        decoder->len = byte == kvctl_top_key_escape;
        return kvctl_top_key_escape;
    }
    decoder->bytes[decoder->len++] = byte;
    if (decoder->len > 2 && is_complete(decoder)) {
        const int key = key_of_sequence(decoder->bytes + 1, decoder->len - 1);
        decoder->len = 0;
        return key;
    }
    if (decoder->len == sizeof decoder->bytes) {
        decoder->len = 0; /* no sequence that we know is so long */
    }
    return kvctl_top_key_none;
}

int kvctl_top_decode_end(struct kvctl_top_decoder *decoder)
{
    const bool is_lone = decoder->len == 1;

    decoder->len = 0;
    return is_lone ? kvctl_top_key_escape : kvctl_top_key_none;
}

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

/* ---- The table of keys ------------------------------------------------------------------------
 */

enum { ctrl_b = 2, ctrl_f = 6, ctrl_l = 12 };

struct binding {
    int keys[4];
    struct kvctl_top_key_help help; /* keys NULL: told with the row before */
    void (*act)(struct kvctl_top_view *view);
};

/* clang-format off */
static const struct binding bindings[] = {
    { { 'q' }, { "q", "quit" }, quit },
    { { 'h', '?' }, { "h ?", "this help; the same key leaves it" }, toggle_help },
    { { 'p', ' ' }, { "p blank", "pause: the picture stands still" }, toggle_pause },
    { { '/', 'f' }, { "/ f", "filter: words in worker, rank, state, reason, names" }, begin_filter },
    { { kvctl_top_key_escape }, { "Esc", "no filter" }, drop_filter },
    { { '<', kvctl_top_key_left }, { "< > left right", "sort by the column beside" }, sort_left },
    { { '>', kvctl_top_key_right }, { NULL, NULL }, sort_right },
    { { 'r' }, { "r", "the other way round" }, reverse },
    { { kvctl_top_key_up, 'k' }, { "up down k j", "scroll a row" }, row_up },
    { { kvctl_top_key_down, 'j' }, { NULL, NULL }, row_down },
    { { kvctl_top_key_page_up, ctrl_b }, { "PgUp PgDn", "scroll a page" }, page_up },
    { { kvctl_top_key_page_down, ctrl_f }, { NULL, NULL }, page_down },
    { { kvctl_top_key_home, 'g' }, { "Home End g G", "to the first, to the last" }, to_begin },
    { { kvctl_top_key_end, 'G' }, { NULL, NULL }, to_end },
    { { ctrl_l }, { "Ctrl-L", "draw again" }, nothing },
};
/* clang-format on */

static const struct binding *binding_of(int key)
{
    for (size_t i = 0; i < KVB_COUNT_OF(bindings); i++) {
        for (size_t k = 0; k < KVB_COUNT_OF(bindings[i].keys); k++) {
            if (key != kvctl_top_key_none && bindings[i].keys[k] == key) {
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
    case kvctl_top_key_enter:
        memcpy(view->filter, view->typed, sizeof view->filter);
        view->is_typing = false;
        break;
    case kvctl_top_key_escape:
        view->is_typing = false;
        break;
    case kvctl_top_key_erase:
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
