#include "cmd/kvctl_top_terminal.h"

#include "core/own.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

enum { usual_columns = 80, usual_rows = 24, most_cells = 1000 };

/* Own screen, no cursor, no wrapping at the right edge; and back. */
static const char enter_text[] = "\033[?1049h\033[?25l\033[?7l\033[2J";
static const char leave_text[] = "\033[0m\033[?7h\033[?25h\033[?1049l";
static const char home_text[] = "\033[H";
static const char wipe_text[] = "\033[2J\033[H";

static const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };
static const int crashes[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };

/* A crash handler cannot be given anything.  The handler only reads. */
static struct {
    volatile sig_atomic_t is_entered;
    bool has_keys;
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

    return some < most_cells ? some : most_cells;
}

void kvctl_top_terminal_size(size_t *out_columns, size_t *out_rows)
{
    struct winsize size = { 0 };

    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size); /* else all 0: not known */
    *out_columns = cut(size.ws_col, usual_columns);
    *out_rows = cut(size.ws_row, usual_rows);
}

/* ---- Writing and reading -----------------------------------------------------------------------
 */

/* Async-signal-safe. */
static kvb_status write_all(const void *bytes, size_t len)
{
    const char *at = bytes;

    while (len > 0) {
        const ssize_t written = write(STDOUT_FILENO, at, len);
        if (written < 0 && errno == EAGAIN) { /* somebody made it non-blocking */
            struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
            (void)poll(&out, 1, -1);
        } else if (written < 0 && errno != EINTR) {
            return KVB_IO;
        }
        at += written > 0 ? written : 0;
        len -= written > 0 ? (size_t)written : 0;
    }
    return KVB_OK;
}

kvb_status kvctl_top_terminal_show(kvb_span picture, bool wipes)
{
    const char *begin = wipes ? wipe_text : home_text;

    KVB_TRY(write_all(begin, strlen(begin)));
    return write_all(picture.data, picture.len);
}

kvb_status kvctl_top_terminal_read(char *bytes, size_t size, size_t *out_len)
{
    const ssize_t len = read(STDIN_FILENO, bytes, size);

    if (len < 0 && errno != EINTR && errno != EAGAIN) {
        return KVB_IO;
    }
    if (len <= 0) { /* what was there may have been flushed by Ctrl-Z meanwhile */
        return KVB_AGAIN;
    }
    *out_len = (size_t)len;
    return KVB_OK;
}

/* ---- Entering and leaving
 * ------------------------------------------------------------------------- */

static kvb_status set_keys(const struct kvctl_top_terminal *terminal)
{
    struct termios raw = state.before;

    if (!terminal->has_keys) {
        return KVB_OK;
    }
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO | IEXTEN); /* Ctrl-C and Ctrl-Z stay signals */
    raw.c_oflag |= OPOST | ONLCR;                        /* pictures have plain line ends */
    raw.c_cc[VMIN] = 0;                                  /* the loop waits, not read() */
    raw.c_cc[VTIME] = 0;
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0 ? KVB_OK : KVB_IO;
}

kvb_status kvctl_top_terminal_enter(struct kvctl_top_terminal *terminal)
{
    if (state.is_entered) {
        return KVB_OK;
    }
    if (terminal->has_keys && tcgetattr(STDIN_FILENO, &state.before) != 0) {
        return KVB_IO;
    }
    state.has_keys = terminal->has_keys;
    state.is_entered = 1; /* first: a crash on the way is to be undone too */
    return kvctl_top_terminal_resume(terminal);
}

kvb_status kvctl_top_terminal_resume(struct kvctl_top_terminal *terminal)
{
    KVB_TRY(set_keys(terminal));
    return write_all(enter_text, strlen(enter_text));
}

/* Async-signal-safe. */
static void leave(void)
{
    if (!state.is_entered) {
        return;
    }
    state.is_entered = 0;
    (void)write_all(leave_text, strlen(leave_text)); /* gone: nothing to restore */
    if (state.has_keys) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &state.before);
    }
}

void kvctl_top_terminal_leave(struct kvctl_top_terminal *terminal)
{
    sigset_t background;
    sigset_t before;

    (void)terminal; /* there is one */
    /* Restoring from the background must not stop us on our way out. */
    (void)sigemptyset(&background);
    (void)sigaddset(&background, SIGTTOU);
    (void)pthread_sigmask(SIG_BLOCK, &background, &before);
    leave();
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- Signals
 * ------------------------------------------------------------------------------------------ */

/* Gives the terminal back, then lets the crash happen as it would have. */
static void on_crash(int number)
{
    leave();
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
    kvctl_top_terminal_leave(terminal);
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

kvb_status kvctl_top_terminal_stop(struct kvctl_top_terminal *terminal)
{
    sigset_t mask;

    kvctl_top_terminal_leave(terminal);
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTSTP);
    (void)raise(SIGTSTP); /* waits until the next line lets it through */
    (void)pthread_sigmask(SIG_UNBLOCK, &mask, NULL);
    (void)pthread_sigmask(SIG_BLOCK, &mask, NULL);
    return kvctl_top_terminal_enter(terminal);
}
