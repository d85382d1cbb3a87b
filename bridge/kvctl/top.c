#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/thread.h"
#include "kvctl/kvctl.h"
#include "model/stream.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <curses.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

/* `kvctl top`: the table of `kvctl streams`, drawn again and again.
 *
 *     sampler: asks an aggregator for all streams, pauses, asks again
 *                     | newest rows, under its lock
 *                     v
 *     keys, signals --> poll --> take, filter, sort, draw --> terminal
 *
 * The sampler has a thread of its own, because an answer may take until the timeout, and keys must
 * not wait for it. */

enum {
    cell_bytes = 128,
    filter_bytes = 64,
    query_bytes = 64,
    max_cells = 1000, /* of a line or a column of the terminal */
    escape_ms = 100,  /* a sequence comes at once; ESC alone is a key */
    title_line = 2,   /* below the head and what is wrong; rows follow it */
    key_escape = 0x1b,
    key_erase = 0x7f,
    key_redraw = 'L' & 0x1f
};

/* Texts are a peer's: everything but plain ASCII becomes "?", so that a byte is a cell of the
 * terminal and none can control it. */
static void cell_text(struct json_object *stream, const char *path, char text[cell_bytes])
{
    size_t len = 0;

    kvctl_text_at(stream, path, text, cell_bytes);
    for (const char *at = text; *at; at++) {
        const bool is_plain = *at >= ' ' && *at <= '~';
        if (is_plain) {
            text[len++] = *at;
        } else if (((unsigned char)*at & 0xc0U) != 0x80) { /* else a later byte of a character */
            text[len++] = '?';
        }
    }
    text[len] = '\0';
}

/* ---- The sampler ------------------------------------------------------------------------ */

struct sampler {
    const struct kvctl_line *line; /* borrowed */
    uint32_t interval_ms;
    int wake_fd; /* owned; readable after each round */
    struct kvb_buf answer;
    struct kvb_thread thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t stopping;
    bool is_stopping;
    struct json_object *newest; /* owned; rows that nobody has taken yet, or NULL */
    uint64_t answered_ns;       /* 0: never */
    struct kvb_detail trouble;  /* why the newest round failed; "": it did not */
};

/* Says it shorter than the bus does: it has to fit a line of the screen. */
static void
explain(const struct kvctl_options *options, kvb_status status, struct kvb_detail *detail)
{
    if (status == KVB_NOT_FOUND) {
        kvb_detail_set(
            detail, "nobody answers for %s/%s: is kvaggregator running?",
            options->name_space ? options->name_space : "dynamo",
            options->component ? options->component : "Router");
    } else if (status == KVB_IO) {
        kvb_detail_set(
            detail, "no answer within %u ms: is kvaggregator stuck?", options->timeout_ms);
    } else if (!detail->text[0]) {
        kvb_detail_set(detail, "%s", kvb_status_name(status));
    }
}

/* Asks for one page of streams, adds its rows, and returns where the next page begins; 0: none. */
static kvb_status ask_for_page(
    struct sampler *sampler, struct kvctl_line *line, uint64_t from, struct json_object *rows,
    uint64_t *out_next, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *page = NULL;
    char subject[kvb_subject_bytes];
    char query[query_bytes];
    char error[cell_bytes];

    KVB_TRY(kvctl_line_subject(line, "kv_get.streams", subject));
    const int len = snprintf(query, sizeof query, "{\"from\":%" PRIu64 "}", from);
    const kvb_span span = { (const uint8_t *)query, (size_t)len };
    KVB_TRY(kvctl_request(line, subject, span, &sampler->answer, detail));
    if (kvctl_parse(kvb_buf_span(&sampler->answer), &page) != KVB_OK) {
        kvb_detail_set(detail, "the answer is no JSON object");
        return KVB_BAD_INPUT;
    }
    if (kvb_json_member(page, "error")) {
        cell_text(page, "error", error);
        kvb_detail_set(detail, "%s", error);
        return KVB_AGAIN;
    }
    struct json_object *streams = kvb_json_member(page, "streams");
    /* Rows outlive their page, so each is held. */
    for (size_t i = 0; i < kvb_json_list_len(streams); i++) {
        json_object_array_add(rows, json_object_get(json_object_array_get_idx(streams, i)));
    }
    *out_next = kvb_json_member_u64(page, "next");
    /* Further pages come from the aggregator that gave the first. */
    kvctl_stay_with(line, page);
    return KVB_OK;
}

static void sample(struct sampler *sampler)
{
    KVB_OWN(kvb_json_drop) struct json_object *rows = json_object_new_array();
    struct kvctl_line line =
        *sampler->line; /* places of pages mean nothing to another aggregator */
    struct kvb_detail detail = { 0 };
    kvb_status status = KVB_OK;
    uint64_t from = 0;
    uint64_t next = 0;

    /* A place that does not grow would be asked for without end. */
    do {
        from = next;
        next = 0;
        status = ask_for_page(sampler, &line, from, rows, &next, &detail);
    } while (status == KVB_OK && next > from && next < kvb_max_streams);
    if (status != KVB_OK) {
        explain(line.options, status, &detail);
    }
    /* The lock is held only to hand over: an answer may take long. */
    pthread_mutex_lock(&sampler->lock);
    sampler->trouble = (struct kvb_detail){ 0 };
    if (status != KVB_OK) {
        sampler->trouble = detail;
    } else {
        kvb_json_drop(&sampler->newest);
        sampler->newest = rows;
        sampler->answered_ns = kvb_clock_monotonic_ns();
        rows = NULL;
    }
    pthread_mutex_unlock(&sampler->lock);
}

static void *run_sampler(void *context)
{
    struct sampler *sampler = context;
    bool goes_on = true;

    while (goes_on) {
        struct timespec end;
        bool is_late = false;

        sample(sampler);
        (void)eventfd_write(sampler->wake_fd, 1); /* full: it is readable already */
        (void)clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += sampler->interval_ms / 1000;
        end.tv_nsec += (long)(sampler->interval_ms % 1000 * KVB_NS_PER_MS);
        end.tv_sec += end.tv_nsec / (long)KVB_NS_PER_S;
        end.tv_nsec %= (long)KVB_NS_PER_S;
        pthread_mutex_lock(&sampler->lock);
        /* The pause ends early when top does. */
        while (!sampler->is_stopping && !is_late) {
            is_late = pthread_cond_timedwait(&sampler->stopping, &sampler->lock, &end) != 0;
        }
        goes_on = !sampler->is_stopping;
        pthread_mutex_unlock(&sampler->lock);
    }
    return NULL;
}

static kvb_status start_sampler(struct sampler *sampler)
{
    (void)pthread_mutex_init(&sampler->lock, NULL);
    kvb_cond_init_monotonic(&sampler->stopping);
    kvb_buf_init(&sampler->answer, kvb_max_answer_bytes);
    kvb_detail_set(&sampler->trouble, "asking");
    sampler->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return sampler->wake_fd < 0 ? KVB_IO : kvb_thread_start(&sampler->thread, run_sampler, sampler);
}

/* Waits for the request that is under way. */
static void stop_sampler(struct sampler *sampler)
{
    pthread_mutex_lock(&sampler->lock);
    sampler->is_stopping = true;
    pthread_cond_signal(&sampler->stopping);
    pthread_mutex_unlock(&sampler->lock);
    kvb_thread_join(&sampler->thread);
    if (sampler->wake_fd >= 0) {
        (void)close(sampler->wake_fd);
    }
    kvb_json_drop(&sampler->newest);
    kvb_buf_done(&sampler->answer);
    (void)pthread_cond_destroy(&sampler->stopping);
    (void)pthread_mutex_destroy(&sampler->lock);
}

/* ---- What is shown ---- */

/* A row that the filter lets through. */
struct row {
    struct json_object *stream; /* borrowed from the answer */
    size_t place;               /* in the answer */
    char key[cell_bytes];       /* its cell in the column that is sorted by */
};

enum top_end {
    goes_on,
    has_quit,
    has_failed /* the terminal is gone, or memory is out */
};

struct top {
    const struct kvctl_options *options;
    struct kvctl_line line; /* owned */
    struct sampler sampler;
    int signal_fd; /* owned */
    const struct kvctl_column *columns;
    size_t column_count;

    struct json_object *answer; /* owned; the streams as they came, or NULL */
    uint64_t answered_ns;
    struct kvb_detail trouble;
    struct row *rows; /* owned */
    size_t row_count;
    size_t row_capacity;

    size_t sort; /* number of a column */
    bool is_reversed;
    char filter[filter_bytes];
    char typed[filter_bytes];
    bool is_typing; /* the filter, into typed */
    size_t first;   /* the row on top; drawing cuts it */
    size_t page;    /* rows that fit */
    int keys_fd;    /* stdin; -1: it is no terminal */
    bool wipes;     /* before the next picture */
    enum top_end end;
};

/* Of worker, rank and texts: numbers of blocks and events have every digit in them somewhere. */
static bool is_searched(const struct kvctl_column *column)
{
    return !column->is_right || strcmp(column->path, "worker_id") == 0 ||
           strcmp(column->path, "dp_rank") == 0;
}

/* Whether each word of the filter is in a cell that is searched, case aside. */
static bool matches(const struct top *top, struct json_object *stream, const char *filter)
{
    static const char blanks[] = " \t";
    char word[filter_bytes];
    char text[cell_bytes];

    for (filter += strspn(filter, blanks); *filter; filter += strspn(filter, blanks)) {
        const size_t len = strcspn(filter, blanks);
        bool is_found = false;
        (void)snprintf(word, sizeof word, "%.*s", (int)len, filter);
        for (size_t c = 0; c < top->column_count && !is_found; c++) {
            cell_text(stream, top->columns[c].path, text);
            /* Cells are compared as they are shown, so what is seen can be found. */
            is_found = is_searched(&top->columns[c]) && strcasestr(text, word);
        }
        if (!is_found) {
            return false;
        }
        filter += len;
    }
    return true;
}

static int compare_rows(const void *left, const void *right, void *context)
{
    const struct row *a = left;
    const struct row *b = right;
    const struct top *top = context;
    int order = 0;

    /* A whole number without zeros before it is larger than a shorter one. */
    if (top->columns[top->sort].is_right && strlen(a->key) != strlen(b->key)) {
        order = strlen(a->key) < strlen(b->key) ? -1 : 1;
    } else {
        order = strcmp(a->key, b->key);
    }
    if (order == 0) { /* equal rows do not change places from one picture to the next */
        return a->place < b->place ? -1 : 1;
    }
    return top->is_reversed ? -order : order;
}

static kvb_status select_rows(struct top *top)
{
    const char *filter = top->is_typing ? top->typed : top->filter;
    const size_t count = kvb_json_list_len(top->answer);

    top->row_count = 0;
    KVB_TRY(kvb_array_reserve(
        (void *)&top->rows, &top->row_capacity, count, sizeof *top->rows, kvb_max_streams));
    for (size_t i = 0; i < count; i++) {
        struct json_object *stream = json_object_array_get_idx(top->answer, i);
        if (matches(top, stream, filter)) {
            struct row *row = &top->rows[top->row_count++];
            row->stream = stream;
            row->place = i;
            cell_text(stream, top->columns[top->sort].path, row->key);
        }
    }
    if (top->row_count > 0) {
        qsort_r(top->rows, top->row_count, sizeof *top->rows, compare_rows, top);
    }
    return KVB_OK;
}

/* ---- Drawing ---- */

enum { pair_green = 1, pair_yellow, pair_red };

static attr_t state_attribute(const char *state)
{
    if (strcmp(state, kvb_stream_state_name(KVB_STREAM_EXACT)) == 0) {
        return COLOR_PAIR(pair_green);
    }
    if (strcmp(state, kvb_stream_state_name(KVB_STREAM_DOWN)) == 0) {
        return COLOR_PAIR(pair_red);
    }
    return COLOR_PAIR(pair_yellow);
}

/* Writes a text, cut at the right end of the screen; outside of it nothing.  Returns the column
 * behind it. */
static int put(int y, int x, attr_t attribute, const char *text)
{
    int height = 0;
    int width = 0;

    getmaxyx(stdscr, height, width);
    if (y < height && x < width) {
        (void)attrset((int)attribute);
        (void)mvaddnstr(y, x, text, width - x);
    }
    return x + (int)strlen(text);
}

static void draw_head(const struct top *top)
{
    const time_t now_s = (time_t)(kvb_clock_wall_us() / 1000000);
    const size_t count = kvb_json_list_len(top->answer);
    size_t states[KVB_STREAM_STATE_COUNT] = { 0 };
    char text[cell_bytes];
    struct tm clock;
    int x = put(0, 0, A_BOLD, "kvctl top");

    localtime_r(&now_s, &clock);
    if (strftime(text, sizeof text, "  %H:%M:%S", &clock) > 0) {
        x = put(0, x, A_NORMAL, text);
    }
    (void)snprintf(text, sizeof text, "  %zu stream%s", count, count == 1 ? "" : "s");
    x = put(0, x, A_NORMAL, text);
    for (size_t i = 0; i < count; i++) {
        const char *state =
            kvb_json_member_text(json_object_array_get_idx(top->answer, i), "state");
        /* A state that this version does not know is in no count. */
        for (int s = 0; s < KVB_STREAM_STATE_COUNT; s++) {
            states[s] += strcmp(state, kvb_stream_state_name((enum kvb_stream_state)s)) == 0;
        }
    }
    for (int s = 0; s < KVB_STREAM_STATE_COUNT; s++) {
        const char *name = kvb_stream_state_name((enum kvb_stream_state)s);
        if (states[s] > 0) {
            (void)snprintf(text, sizeof text, "  %zu %s", states[s], name);
            x = put(0, x, state_attribute(name), text);
        }
    }
}

/* What is wrong, and how old therefore the table is. */
static void draw_trouble(const struct top *top)
{
    const bool is_connected = kvb_bus_is_connected(top->line.bus);
    const char *why = is_connected ? top->trouble.text : "NATS is away, trying again";
    char text[sizeof top->trouble.text + cell_bytes];

    if (why[0] == '\0') {
        return;
    }
    if (top->answered_ns > 0) {
        (void)snprintf(
            text, sizeof text, "%s; what stands below is %" PRIu64 " s old", why,
            (kvb_clock_monotonic_ns() - top->answered_ns) / KVB_NS_PER_S);
    } else {
        (void)snprintf(text, sizeof text, "%s", why);
    }
    (void)put(1, 0, A_BOLD | COLOR_PAIR(pair_red), text);
}

/* How wide the title and the cells on the page are. */
static int measure(const struct top *top, const char *path, const char *title, size_t row_count)
{
    size_t cells = strlen(title);
    char text[cell_bytes];

    for (size_t r = 0; r < row_count; r++) {
        cell_text(top->rows[top->first + r].stream, path, text);
        cells = strlen(text) > cells ? strlen(text) : cells;
    }
    return (int)cells;
}

static void draw_column(
    const struct top *top, const struct kvctl_column *column, int x, int cells, size_t row_count)
{
    const bool has_states = strcmp(column->path, "state") == 0;
    char text[cell_bytes];

    for (size_t r = 0; r < row_count; r++) {
        cell_text(top->rows[top->first + r].stream, column->path, text);
        (void)put(
            title_line + 1 + (int)r, x + (column->is_right ? cells - (int)strlen(text) : 0),
            has_states ? state_attribute(text) : A_NORMAL, text);
    }
}

/* Shows as many columns as fit, from the left on, each as wide as what the page has in it. */
static void draw_table(const struct top *top, int width, size_t row_count)
{
    int x = 0;

    for (size_t c = 0; c < top->column_count; c++) {
        const struct kvctl_column *column = &top->columns[c];
        const char *mark = top->is_reversed ? "v" : "^";
        char title[cell_bytes];

        (void)snprintf(title, sizeof title, "%s%s", column->title, c == top->sort ? mark : "");
        const int cells = measure(top, column->path, title, row_count);
        if (c > 0 && x + cells > width) {
            break; /* half a column would mislead */
        }
        (void)put(
            title_line, x + (column->is_right ? cells - (int)strlen(title) : 0),
            c == top->sort ? A_REVERSE : A_BOLD, title);
        draw_column(top, column, x, cells, row_count);
        x += cells + 1;
    }
}

static void draw_foot(const struct top *top, int y, size_t row_count)
{
    char text[cell_bytes + filter_bytes];

    if (top->is_typing) {
        (void)snprintf(text, sizeof text, "filter: %s_", top->typed);
    } else {
        (void)snprintf(
            text, sizeof text,
            "%zu-%zu of %zu%s%s%s by %s  q quit  / filter  < > sort  r reverse  PgUp PgDn",
            row_count > 0 ? top->first + 1 : 0, top->first + row_count, top->row_count,
            top->filter[0] ? " \"" : "", top->filter, top->filter[0] ? "\"" : "",
            top->columns[top->sort].title); /* it may be a column that does not fit */
    }
    (void)put(y, 0, A_DIM, text);
}

/* Curses learns of another size here, because SIGWINCH comes through signal_fd. */
static void fit_to_terminal(int *out_height, int *out_width)
{
    struct winsize size = { 0 };

    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size); /* else all 0: curses keeps its size */
    if (size.ws_row > 0 && size.ws_col > 0) {
        (void)resize_term(
            size.ws_row < max_cells ? size.ws_row : max_cells,
            size.ws_col < max_cells ? size.ws_col : max_cells);
    }
    getmaxyx(stdscr, *out_height, *out_width);
}

static void redraw(struct top *top)
{
    int height = 0;
    int width = 0;

    fit_to_terminal(&height, &width);
    if (select_rows(top) != KVB_OK) {
        top->end = has_failed;
        return;
    }
    top->page = height > title_line + 2 ? (size_t)(height - title_line - 2) : 1;
    /* Rows and page may have become fewer since the last key. */
    const size_t last = top->row_count > top->page ? top->row_count - top->page : 0;
    top->first = top->first < last ? top->first : last;
    const size_t left = top->row_count - top->first;
    const size_t shown = left < top->page ? left : top->page;

    /* Curses compares with what is on the screen, and sends only what differs. */
    (void)erase();
    draw_head(top);
    draw_trouble(top);
    draw_table(top, width, shown);
    if (top->row_count == 0) {
        const bool is_empty = kvb_json_list_len(top->answer) == 0;
        (void)put(title_line + 1, 0, A_NORMAL, is_empty ? "no streams yet" : "none of this filter");
    }
    if (height > title_line + 1) {
        draw_foot(top, height - 1, shown);
    }
    (void)clearok(stdscr, top->wipes);
    top->wipes = false;
    if (refresh() != OK) {
        top->end = has_failed;
    }
}

/* ---- Keys ---- */

static void sort_beside(struct top *top, bool is_right)
{
    top->sort = (top->sort + (is_right ? 1 : top->column_count - 1)) % top->column_count;
    top->is_reversed = false;
}

/* While the filter is typed, keys are letters. */
static void type(struct top *top, int key)
{
    const size_t len = strlen(top->typed);

    switch (key) {
    case '\r':
    case '\n':
    case KEY_ENTER:
        memcpy(top->filter, top->typed, sizeof top->filter);
        top->is_typing = false;
        break;
    case key_escape:
        top->is_typing = false;
        break;
    case '\b':
    case key_erase:
    case KEY_BACKSPACE:
        top->typed[len > 0 ? len - 1 : 0] = '\0';
        break;
    default:
        if (key >= ' ' && key <= '~' && len + 1 < sizeof top->typed) {
            top->typed[len] = (char)key;
            top->typed[len + 1] = '\0';
        }
        break;
    }
    top->first = 0;
}

static void press(struct top *top, int key)
{
    switch (key) {
    case 'q':
        top->end = has_quit;
        break;
    case '/':
        memcpy(top->typed, top->filter, sizeof top->typed);
        top->is_typing = true;
        break;
    case key_escape:
        top->filter[0] = '\0';
        break;
    case '<':
    case KEY_LEFT:
        sort_beside(top, false);
        break;
    case '>':
    case KEY_RIGHT:
        sort_beside(top, true);
        break;
    case 'r':
        top->is_reversed = !top->is_reversed;
        break;
    case KEY_UP:
        top->first -= top->first > 0;
        break;
    case KEY_DOWN:
        top->first++; /* drawing cuts it, here and below */
        break;
    case KEY_PPAGE:
        top->first -= top->first < top->page ? top->first : top->page;
        break;
    case KEY_NPAGE:
        top->first += top->page;
        break;
    case KEY_HOME:
        top->first = 0;
        break;
    case KEY_END:
        top->first = top->row_count;
        break;
    case key_redraw: /* somebody wrote over our screen */
        top->wipes = true;
        break;
    default:
        break;
    }
}

/* ---- The terminal and its signals ---- */

static const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };

/* Gives the terminal back.  With SIGTTOU a program in the background would be stopped by that. */
static void leave_screen(void)
{
    sigset_t background;
    sigset_t before;

    if (!isendwin()) {
        (void)sigemptyset(&background);
        (void)sigaddset(&background, SIGTTOU);
        (void)pthread_sigmask(SIG_BLOCK, &background, &before);
        (void)endwin();
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
}

static void take_signal(struct top *top)
{
    struct signalfd_siginfo info;
    sigset_t stop;

    if (read(top->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) {
        return;
    }
    switch (info.ssi_signo) {
    case SIGTSTP: /* Ctrl-Z: the terminal is the shell's until it continues us */
        leave_screen();
        (void)sigemptyset(&stop);
        (void)sigaddset(&stop, SIGTSTP);
        (void)raise(SIGTSTP); /* waits until the next line lets it through */
        (void)pthread_sigmask(SIG_UNBLOCK, &stop, NULL);
        (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
        top->wipes = true;
        break;
    case SIGCONT: /* whatever another program left: all anew */
        leave_screen();
        top->wipes = true;
        break;
    case SIGWINCH:
        top->wipes = true;
        break;
    default:
        top->end = has_quit;
        break;
    }
}

/* False: curses knows no such terminal. */
static bool enter_screen(void)
{
    struct sigaction before[KVB_COUNT_OF(caught)];
    const char *no_color = secure_getenv("NO_COLOR"); /* no-color.org: set, and not empty */

    /* curses would catch signals that come through signal_fd. */
    for (size_t i = 0; i < KVB_COUNT_OF(caught); i++) {
        (void)sigaction(caught[i], NULL, &before[i]);
    }
    const SCREEN *screen = newterm(NULL, stdout, stdin);
    for (size_t i = 0; i < KVB_COUNT_OF(caught); i++) {
        (void)sigaction(caught[i], &before[i], NULL);
    }
    if (!screen) {
        return false;
    }
    (void)cbreak(); /* Ctrl-C and Ctrl-Z stay signals */
    (void)noecho();
    (void)keypad(stdscr, true);
    (void)nodelay(stdscr, true); /* step() waits, not getch() */
    (void)set_escdelay(escape_ms);
    (void)curs_set(0);
    if (!(no_color && no_color[0]) && start_color() == OK) {
        const short background = use_default_colors() == OK ? -1 : COLOR_BLACK;
        (void)init_pair(pair_green, COLOR_GREEN, background);
        (void)init_pair(pair_yellow, COLOR_YELLOW, background);
        (void)init_pair(pair_red, COLOR_RED, background);
    }
    return true;
}

/* ---- The loop ---- */

static void take_sample(struct top *top)
{
    struct sampler *sampler = &top->sampler;
    eventfd_t count = 0;

    (void)eventfd_read(sampler->wake_fd, &count); /* nothing there: the interval is over */
    pthread_mutex_lock(&sampler->lock);
    /* Taken over, not copied: the sampler makes another one. */
    if (sampler->newest) {
        kvb_json_drop(&top->answer);
        top->answer = sampler->newest;
        sampler->newest = NULL;
    }
    top->answered_ns = sampler->answered_ns;
    top->trouble = sampler->trouble;
    pthread_mutex_unlock(&sampler->lock);
}

static void step(struct top *top)
{
    enum { wake, signals, keys, screen, sources };
    struct pollfd polled[sources] = {
        [wake] = { .fd = top->sampler.wake_fd, .events = POLLIN },
        [signals] = { .fd = top->signal_fd, .events = POLLIN },
        [keys] = { .fd = top->keys_fd, .events = POLLIN },
        [screen] = { .fd = STDOUT_FILENO }, /* for the end of it */
    };

    const int ready = poll(polled, sources, (int)top->options->interval_ms);
    if (polled[wake].revents || ready == 0) { /* ages and the clock go on without an answer, too */
        take_sample(top);
    }
    if (polled[signals].revents) {
        take_signal(top);
    }
    if (polled[screen].revents || (polled[keys].revents & ~POLLIN)) {
        top->end = has_failed; /* hung up */
    } else if (polled[keys].revents) {
        for (int key = getch(); key != ERR; key = getch()) {
            if (top->is_typing) {
                type(top, key);
            } else {
                press(top, key);
            }
        }
    }
}

/* Signals are blocked by now: what comes is read in step(). */
static enum kvctl_exit run_loop(struct top *top)
{
    const enum kvctl_exit connected = kvctl_connect(top->options, NULL, &top->line);

    if (connected != kvctl_ok) {
        return connected;
    }
    top->sampler.line = &top->line;
    top->sampler.interval_ms = top->options->interval_ms;
    const kvb_status status = start_sampler(&top->sampler);
    const bool has_screen = status == KVB_OK && enter_screen();
    if (status != KVB_OK) {
        kvctl_say("top: %s", kvb_status_name(status));
    } else if (!has_screen) {
        kvctl_say("top: curses knows no terminal as TERM names it: use `kvctl streams`");
    } else {
        /* The first picture says that the answer is awaited. */
        take_sample(top);
        redraw(top);
        while (top->end == goes_on) {
            step(top);
            if (top->end == goes_on) {
                redraw(top);
            }
        }
        leave_screen(); /* before it waits for an answer that is under way */
    }
    stop_sampler(&top->sampler);
    kvctl_hang_up(&top->line);
    return has_screen && top->end == has_quit ? kvctl_ok : kvctl_failed;
}

/* Finds the column with this title, case aside. */
static kvb_status find_column(const struct top *top, const char *title, size_t *out_number)
{
    for (size_t c = 0; c < top->column_count; c++) {
        if (strcasecmp(top->columns[c].title, title) == 0) {
            *out_number = c;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

enum kvctl_exit kvctl_top(const struct kvctl_options *options)
{
    struct top top = { .options = options, .keys_fd = isatty(STDIN_FILENO) ? STDIN_FILENO : -1 };
    char subject[kvb_subject_bytes];
    sigset_t mask;
    sigset_t before;

    top.columns = kvctl_stream_columns(&top.column_count);
    if (options->sort && find_column(&top, options->sort, &top.sort) != KVB_OK) {
        kvctl_say("--sort: expected the title of a column, got \"%s\"", options->sort);
        return kvctl_usage;
    }
    if (kvctl_router_subject(options, "kv_get.streams", subject) != KVB_OK) {
        kvctl_say("--namespace, --component: 1 to 64 of A-Z a-z 0-9 _ -");
        return kvctl_usage;
    }
    const char *term = secure_getenv("TERM");
    if (!isatty(STDOUT_FILENO) || !term || strcmp(term, "dumb") == 0) {
        kvctl_say(
            "top draws on a terminal, which stdout is not (or TERM is dumb): use `kvctl streams`");
        return kvctl_usage;
    }
    (void)snprintf(top.filter, sizeof top.filter, "%s", options->filter ? options->filter : "");

    /* Before there is any other thread, so that all have the same signals blocked. */
    (void)sigemptyset(&mask);
    for (size_t i = 0; i < KVB_COUNT_OF(caught); i++) {
        (void)sigaddset(&mask, caught[i]);
    }
    (void)pthread_sigmask(SIG_BLOCK, &mask, &before);
    top.signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (top.signal_fd < 0) {
        kvctl_say("top: cannot catch signals");
        return kvctl_failed;
    }
    const enum kvctl_exit result = run_loop(&top);
    (void)close(top.signal_fd);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    kvb_json_drop(&top.answer);
    free(top.rows);
    return result;
}
