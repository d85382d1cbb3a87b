#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* The terminal of `kvctl top`: an own screen, no cursor, keys as they are pressed;
 * and the way back, whatever ends the program: a key, a signal, Ctrl-Z, a crash.
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

/* Each may be called twice.  KVB_IO: the terminal is gone. */
kvb_status kvctl_top_terminal_enter(struct kvctl_top_terminal *terminal);
void kvctl_top_terminal_leave(struct kvctl_top_terminal *terminal);

enum kvctl_top_signal {
    kvctl_top_signal_none,
    kvctl_top_signal_quit,   /* Ctrl-C, SIGTERM, SIGHUP */
    kvctl_top_signal_stop,   /* Ctrl-Z: call kvctl_top_terminal_stop() */
    kvctl_top_signal_resume, /* stopped by whatever, and going on: kvctl_top_terminal_resume() */
    kvctl_top_signal_redraw, /* another size */
};

/* The next one from signal_fd. */
enum kvctl_top_signal kvctl_top_terminal_signal(const struct kvctl_top_terminal *terminal);

/* The screen and the keys again, after another program had them.  KVB_IO. */
kvb_status kvctl_top_terminal_resume(struct kvctl_top_terminal *terminal);

/* Leaves, stops the process as Ctrl-Z does, and enters when it goes on.  KVB_IO. */
kvb_status kvctl_top_terminal_stop(struct kvctl_top_terminal *terminal);

/* Of stdout; 80 x 24 where nobody knows. */
void kvctl_top_terminal_size(size_t *out_columns, size_t *out_rows);

/* Draws over the screen from the upper left corner; wipes it before when asked to.
 * KVB_IO: the terminal is gone. */
kvb_status kvctl_top_terminal_show(kvb_span picture, bool wipes);

/* Bytes from the keyboard.  KVB_AGAIN: none.  KVB_IO: the terminal is gone. */
kvb_status kvctl_top_terminal_read(char *bytes, size_t size, size_t *out_len);
