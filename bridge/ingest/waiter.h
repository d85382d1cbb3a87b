#pragma once

#include "core/status.h"
#include "ingest/load_source.h"
#include "ingest/zmq_source.h"

#include <stddef.h>

/* Waits for any of a bridge's sockets.  Filled anew for each wait, because a
 * source's replay socket comes and goes:
 *
 *     begin, add ..., wait, ask what is ready by the positions that add returned
 *
 * Threads: only the thread that made it.  Cost: linear in the sockets. */
struct kvb_waiter;

enum { kvb_ready_live = 1, kvb_ready_reply = 2 };

/* most_handles: kvb_source_sockets a source, one a load source, one a descriptor. */
kvb_status kvb_waiter_new(size_t most_handles, struct kvb_waiter **out_waiter);
void kvb_waiter_free(struct kvb_waiter *waiter);

void kvb_waiter_begin(struct kvb_waiter *waiter);
size_t kvb_waiter_add_source(struct kvb_waiter *waiter, const struct kvb_source *source);
size_t kvb_waiter_add_load(struct kvb_waiter *waiter, const struct kvb_load_source *load);
size_t kvb_waiter_add_fd(struct kvb_waiter *waiter, int fd);

/* Returns when something is ready, or after timeout_ms, or on a signal. */
void kvb_waiter_wait(struct kvb_waiter *waiter, int timeout_ms);

/* kvb_ready_* bits. */
unsigned kvb_waiter_source_ready(const struct kvb_waiter *waiter, size_t at);
/* For a load source or a descriptor. */
int kvb_waiter_is_ready(const struct kvb_waiter *waiter, size_t at);
