#include "kvctl/top/terminal.h"

#include "core/own.h"

#include <curses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

enum {
    usual_columns = 80,
    usual_rows = 24,
    max_cells = 1000,
    escape_ms = 100 /* a sequence comes at once; ESC alone is a key */
};

/* What a crash sends, when curses itself may be what crashed: no attributes, plain keys,
 * the cursor, the screen of before.  As xterm and most others have it. */
static const char crash_text[] = "\033[0m\033[?1l\033>\033[?25h\033[?1049l";

static const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };
static const int crashes[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };

/* A crash handler cannot be given anything.  The handler only reads. */
static struct {
    SCREEN *volatile screen; /* NULL: not entered yet */
    struct termios before;
    sigset_t mask_before;
    struct sigaction crash_before[KVB_COUNT_OF(crashes)];
} state;

/* ---- What stdout is ------------------------------------------------------------------------- */

/* The environment is read before any thread could change it, and none does.
 * NOLINTBEGIN(concurrency-mt-unsafe) */
static bool is_dumb(void)
{
    const char *term = getenv("TERM");

    return !term || !term[0] || strcmp(term, "dumb") == 0;
}

kvb_status kvctl_top_terminal_check(void)
{
    return isatty(STDOUT_FILENO) && !is_dumb() ? KVB_OK : KVB_BAD_CONFIG;
}

bool kvctl_top_terminal_has_color(void)
{
    const char *no_color = getenv("NO_COLOR"); /* no-color.org: set, and not empty */

    return isatty(STDOUT_FILENO) && !is_dumb() && !(no_color && no_color[0]);
}
/* NOLINTEND(concurrency-mt-unsafe) */

static size_t cut(size_t cells, size_t usual)
{
    const size_t some = cells > 0 ? cells : usual;

    return some < max_cells ? some : max_cells;
}

void kvctl_top_terminal_size(size_t *out_columns, size_t *out_rows)
{
    struct winsize size = { 0 };

    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size); /* else all 0: not known */
    *out_columns = cut(size.ws_col, usual_columns);
    *out_rows = cut(size.ws_row, usual_rows);
}

/* ---- Setting up curses ----------------------------------------------------------------------- */

/* What terminals send for a key whatever TERM says: xterm, its application mode, rxvt and
 * the Linux console. */
static void define_keys(void)
{
    static const struct {
        const char *bytes;
        int key;
    } sequences[] = {
        { "\033[A", KEY_UP },   { "\033OA", KEY_UP },     { "\033[B", KEY_DOWN },
        { "\033OB", KEY_DOWN }, { "\033[C", KEY_RIGHT },  { "\033OC", KEY_RIGHT },
        { "\033[D", KEY_LEFT }, { "\033OD", KEY_LEFT },   { "\033[H", KEY_HOME },
        { "\033OH", KEY_HOME }, { "\033[1~", KEY_HOME },  { "\033[7~", KEY_HOME },
        { "\033[F", KEY_END },  { "\033OF", KEY_END },    { "\033[4~", KEY_END },
        { "\033[8~", KEY_END }, { "\033[5~", KEY_PPAGE }, { "\033[6~", KEY_NPAGE },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(sequences); i++) {
        (void)define_key(sequences[i].bytes, sequences[i].key);
    }
}

/* Pairs have the numbers of their colours. */
static void define_colors(void)
{
    (void)start_color();
    const int background = use_default_colors() == OK ? -1 : COLOR_BLACK;
    for (int color = COLOR_RED; color <= COLOR_WHITE; color++) {
        (void)init_pair((short)color, (short)color, (short)background);
    }
}

/* A TERM that is not in this machine's list, as over ssh, is most likely like xterm. */
static SCREEN *new_screen(void)
{
    SCREEN *screen = newterm(NULL, stdout, stdin);

    return screen ? screen : newterm("xterm", stdout, stdin);
}

/* curses catches signals that have their default; ours come through signal_fd. */
static SCREEN *new_screen_without_signals(void)
{
    struct sigaction before[KVB_COUNT_OF(caught)];

    for (size_t i = 0; i < KVB_COUNT_OF(caught); i++) {
        (void)sigaction(caught[i], NULL, &before[i]);
    }
    SCREEN *const screen = new_screen();
    for (size_t i = 0; i < KVB_COUNT_OF(caught); i++) {
        (void)sigaction(caught[i], &before[i], NULL);
    }
    return screen;
}

kvb_status kvctl_top_terminal_enter(void)
{
    state.screen = new_screen_without_signals();
    if (!state.screen) {
        return KVB_IO;
    }
    (void)cbreak(); /* Ctrl-C and Ctrl-Z stay signals */
    (void)noecho();
    (void)keypad(stdscr, true);
    (void)nodelay(stdscr, true); /* the loop waits, not getch() */
    (void)set_escdelay(escape_ms);
    (void)curs_set(0);
    define_keys();
    if (kvctl_top_terminal_has_color()) {
        define_colors();
    }
    return KVB_OK;
}

/* ---- The screen ----------------------------------------------------------------------------- */

static bool is_entered(void)
{
    return state.screen && !isendwin();
}

void kvctl_top_terminal_leave(void)
{
    sigset_t background;
    sigset_t before;

    if (!is_entered()) {
        return;
    }
    /* Restoring from the background must not stop us on our way out. */
    (void)sigemptyset(&background);
    (void)sigaddset(&background, SIGTTOU);
    (void)pthread_sigmask(SIG_BLOCK, &background, &before);
    (void)endwin(); /* the terminal may be gone */
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void kvctl_top_terminal_erase(size_t *out_columns, size_t *out_rows)
{
    kvctl_top_terminal_size(out_columns, out_rows);
    (void)resize_term((int)*out_rows, (int)*out_columns);
    (void)erase();
}

kvb_status kvctl_top_terminal_show(bool is_all)
{
    (void)clearok(stdscr, is_all);
    return refresh() == OK ? KVB_OK : KVB_IO;
}

/* ---- Signals -------------------------------------------------------------------------------- */

/* Gives the terminal back, then lets the crash happen as it would have. */
static void on_crash(int number)
{
    if (is_entered() && write(STDOUT_FILENO, crash_text, strlen(crash_text)) > 0) {
        (void)tcsetattr(STDOUT_FILENO, TCSANOW, &state.before);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(crashes); i++) {
        if (crashes[i] == number) {
            (void)sigaction(number, &state.crash_before[i], NULL);
        }
    }
    (void)raise(number);
}

static void catch_crashes(void)
{
    struct sigaction action = { .sa_handler = on_crash };

    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < KVB_COUNT_OF(crashes); i++) {
        (void)sigaction(crashes[i], &action, &state.crash_before[i]);
    }
}

static void release_crashes(void)
{
    for (size_t i = 0; i < KVB_COUNT_OF(crashes); i++) {
        (void)sigaction(crashes[i], &state.crash_before[i], NULL);
    }
}

kvb_status kvctl_top_terminal_open(struct kvctl_top_terminal *terminal)
{
    sigset_t mask;

    (void)sigemptyset(&mask);
    for (size_t i = 0; i < KVB_COUNT_OF(caught); i++) {
        (void)sigaddset(&mask, caught[i]);
    }
    (void)pthread_sigmask(SIG_BLOCK, &mask, &state.mask_before);
    (void)tcgetattr(STDOUT_FILENO, &state.before); /* a terminal: checked */
    terminal->has_keys = isatty(STDIN_FILENO);
    terminal->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (terminal->signal_fd < 0) {
        (void)pthread_sigmask(SIG_SETMASK, &state.mask_before, NULL);
        return KVB_IO;
    }
    catch_crashes();
    return KVB_OK;
}

void kvctl_top_terminal_close(struct kvctl_top_terminal *terminal)
{
    kvctl_top_terminal_leave();
    release_crashes();
    (void)close(terminal->signal_fd);
    /* From now on a second Ctrl-C ends what may still wait. */
    (void)pthread_sigmask(SIG_SETMASK, &state.mask_before, NULL);
}

enum kvctl_top_signal kvctl_top_terminal_signal(const struct kvctl_top_terminal *terminal)
{
    struct signalfd_siginfo info;

    if (read(terminal->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) {
        return kvctl_top_signal_none;
    }
    switch (info.ssi_signo) {
    case SIGTSTP:
        return kvctl_top_signal_stop;
    case SIGCONT:
        return kvctl_top_signal_resume;
    case SIGWINCH:
        return kvctl_top_signal_redraw;
    default:
        return kvctl_top_signal_quit;
    }
}

void kvctl_top_terminal_stop(void)
{
    sigset_t mask;

    kvctl_top_terminal_leave();
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTSTP);
    (void)raise(SIGTSTP); /* waits until the next line lets it through */
    (void)pthread_sigmask(SIG_UNBLOCK, &mask, NULL);
    (void)pthread_sigmask(SIG_BLOCK, &mask, NULL);
}
