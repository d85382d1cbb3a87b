#pragma once

#include "core/status.h"
#include "fleet/fleet.h"

#include <stdbool.h>

/* The fleet's control socket: a unix socket that takes one command a line and answers
 * with lines of JSON, the last of which is {"end":true}.
 *
 *     truth [WORKER [RANK]]       one line a rank: see truth_commands.h
 *     changes WORKER RANK SINCE   what came and went since change number SINCE, with
 *                                 times, of what --log-changes keeps: truth_commands.h
 *     stats                       one line a rank, then the totals
 *     pause | resume              no requests, no steps; or go on
 *     drain                       pause, and wait until all is published
 *     reset WORKER RANK           empty the cache (published with the next step)
 *     sleep WORKER RANK           vLLM's sleep mode, level 1: the cache is empty (published
 *                                 with the next step), and no step is made
 *     wake WORKER RANK            the end of it
 *     lose WORKER RANK BATCHES    the events of the next ones are lost, without a number
 *     restart WORKER RANK [same]  end the process and start another; same: with the
 *                                 same hashes
 *     drop WORKER RANK BATCHES    the next ones go to the replay buffer only
 *     malform WORKER RANK KIND    one malformed payload after the next batch; all: one of
 *                                 each kind, each after a batch
 *     stop                        end the program
 *
 * What went wrong stands in a line {"error":"..."} before the end.
 *
 * Threads: only the thread that made it, which is the fleet's.  A client that does
 * not read its answer holds the fleet for at most 5 s, then it is cut off.
 * Memory:  16 clients, one answer at a time. */
struct kvb_truth_server;

/* A socket left over at the path is replaced; anything else there is an error.
 * KVB_BAD_CONFIG  detail says why
 * KVB_NO_MEMORY */
kvb_status kvb_truth_server_new(
    const char *path, struct kvb_fleet *fleet, struct kvb_detail *detail,
    struct kvb_truth_server **out_server);

/* Removes the socket.  NULL is fine. */
void kvb_truth_server_free(struct kvb_truth_server *server);

/* Readable when there is something to do. */
int kvb_truth_server_fd(const struct kvb_truth_server *server);

/* Does what there is to do. */
void kvb_truth_server_serve(struct kvb_truth_server *server);

/* True after the command `stop`. */
bool kvb_truth_server_is_stopped(const struct kvb_truth_server *server);
