#pragma once

#include "intake/asker.h"
#include "intake/scene.h"

#include <sys/types.h>

/* What an answer costs a responder that has one core for itself.
 *
 * Requests are sent as fast as they are answered, `rate_in_flight` at a time; the clients and
 * nats-server are on the other cores.  On a machine with one core they share it.  A step that
 * fails ends the program. */

enum { rate_in_flight = 32, rate_rounds = 9 };

struct responder {
    pid_t pid;
    uint16_t port;       /* over HTTP */
    const char *subject; /* over NATS; borrowed */
};

/* Reports the row: us of the responder's process for one answer, against the other responder. */
void rate_measure(
    const struct scene *scene, const struct questions *questions, enum asking_way way,
    const struct responder *ours, const struct responder *theirs, const char *row, double seconds);
