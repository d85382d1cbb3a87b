#pragma once

#include "core/status.h"

#include <stdint.h>

/* Ends readers of republished events that send more than readers do.
 *
 * libzmq keeps each subscription of a reader in a tree, some 30 bytes for each byte, and puts all
 * that have arrived into it before anything else is done with the socket.  So one reader that sends
 * subscriptions without end would stop the thread that owns the socket, and fill the memory.  The
 * watch is a job of the control thread: it learns from the monitor who connects, and from the
 * kernel how much each connection has brought.
 *
 * A reader may bring a sum at once, and so much a second from then on; it may subscribe 1,000
 * times, and once a second more.  Above it is disconnected.  So are readers beyond 256 of one
 * socket.  Over ipc:// only subscriptions and readers are limited.
 *
 * Threads: any.  All calls lock. */
struct kvb_control;
struct kvb_reader_watch;
struct kvb_watched_readers; /* of one socket */

/* control: borrowed until the end.  KVB_NO_MEMORY */
kvb_status kvb_reader_watch_new(struct kvb_control *control, struct kvb_reader_watch **out_watch);
/* No sockets may be watched any more.  NULL is fine. */
void kvb_reader_watch_free(struct kvb_reader_watch *watch);

/* Watches the connections of a socket that listens.  monitor: reports kvb_reader_watch_events of
 * it; used only by the watch until kvb_reader_watch_drop(), and closed by the caller after that.
 * KVB_NO_MEMORY */
kvb_status kvb_reader_watch_add(
    struct kvb_reader_watch *watch, void *monitor, uint64_t max_bytes, uint64_t bytes_a_second,
    struct kvb_watched_readers **out_readers);
/* NULL is fine. */
void kvb_reader_watch_drop(struct kvb_reader_watch *watch, struct kvb_watched_readers *readers);

/* The reader with this connection has subscribed. */
void kvb_reader_watch_subscribed(
    struct kvb_reader_watch *watch, struct kvb_watched_readers *readers, int fd);

/* How many readers were ended since the last call. */
uint64_t
kvb_reader_watch_take_ended(struct kvb_reader_watch *watch, struct kvb_watched_readers *readers);

extern const int kvb_reader_watch_events;
