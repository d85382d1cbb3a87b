#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* The terminal of `kvctl top`, by curses: an own screen, no cursor, keys as they are
 * pressed; and the way back, whatever ends the program: a key, a signal, Ctrl-Z, a crash.
 *
 *     open: signals come through signal_fd     enter: own screen   <--+
 *     close                                    leave: as it was   ----+ Ctrl-Z, fg
 *
 * One at a time in a process: a signal handler has to find it.
 *
 * Threads: only the thread that made it, which begins before all others, so that
 * these have the same signals blocked. */
struct kvctl_top_terminal {
    bool has_keys; /* stdin is a terminal too */
    int signal_fd; /* readable: kvctl_top_terminal_signal() */
};

/* May stdout be drawn on?  KVB_BAD_CONFIG: no terminal, or TERM says that it is dumb. */
kvb_status kvctl_top_terminal_check(void);

/* Colours on stdout: it is a terminal, TERM is not dumb, NO_COLOR is not set. */
bool kvctl_top_terminal_has_color(void);

/* Catches signals; changes nothing on the screen.  KVB_IO. */
kvb_status kvctl_top_terminal_open(struct kvctl_top_terminal *terminal);

/* Leaves too.  Then signals do again what they did before. */
void kvctl_top_terminal_close(struct kvctl_top_terminal *terminal);

/* Makes curses' screen, once; from then on keys come from getch(), which does not wait.
 * KVB_IO: curses cannot use the terminal. */
kvb_status kvctl_top_terminal_enter(void);

/* May be called twice, or without a screen.  The next show enters again. */
void kvctl_top_terminal_leave(void);

enum kvctl_top_signal {
    kvctl_top_signal_none,
    kvctl_top_signal_quit,   /* Ctrl-C, SIGTERM, SIGHUP */
    kvctl_top_signal_stop,   /* Ctrl-Z: call kvctl_top_terminal_stop() */
    kvctl_top_signal_resume, /* stopped by whatever, and going on: leave, and draw again */
    kvctl_top_signal_redraw, /* another size */
};

/* The next one from signal_fd. */
enum kvctl_top_signal kvctl_top_terminal_signal(const struct kvctl_top_terminal *terminal);

/* Leaves, and stops the process as Ctrl-Z does. */
void kvctl_top_terminal_stop(void);

/* Of stdout; 80 x 24 where nobody knows. */
void kvctl_top_terminal_size(size_t *out_columns, size_t *out_rows);

/* Erases curses' screen, which is as large as the terminal now. */
void kvctl_top_terminal_erase(size_t *out_columns, size_t *out_rows);

/* Brings curses' screen to the terminal: what has changed, or all of it.  KVB_IO. */
kvb_status kvctl_top_terminal_show(bool is_all);
