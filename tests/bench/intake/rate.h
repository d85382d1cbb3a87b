#pragma once

#include "intake/asker.h"
#include "intake/scene.h"

#include <sys/types.h>

/* How many questions a second a responder answers that has one core for itself, and what one of
 * them costs it.
 *
 * Questions are asked as fast as they are answered, `rate_in_flight` at a time; whoever asks, and
 * nats-server, are on the other cores.  On a machine with one core they share it.  A step that
 * fails ends the program. */

enum { rate_in_flight = 32, rate_rounds = 5 };

struct responder {
    pid_t pid;
    uint16_t port;       /* over HTTP */
    const char *subject; /* over NATS; borrowed */
};

/* Says ROW, questions a second, and ROW.cpu, us of the responder's process for one; both against
 * the other responder, in turns: ratios are the medians of the rounds'. */
void rate_measure(
    const struct scene *scene, const struct questions *questions, enum asking_way way,
    const struct responder *ours, const struct responder *theirs, const char *row, double seconds);
