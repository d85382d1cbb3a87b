#pragma once

#include "bus/bus.h"

#include <stdbool.h>

/* NATS inside a fuzz target: all functions of bus/bus.h, in memory, so that the linker does not
 * take the real ones; a new function there is added here, too.  Messages are delivered at once, on
 * the calling thread.
 *
 *     publish   to fake_bus_options.published, unless the bus is deaf: then they are lost
 *     deliver   to each subscription of the daemon whose subject fits */
struct fake_bus_options {
    void (*published)(const char *subject, const char *reply, kvb_span payload);
};

void fake_bus_reset(const struct fake_bus_options *options);

/* The server accepts what is published and loses it, until the next connection. */
void fake_bus_go_deaf(void);
void fake_bus_disconnect(void);
void fake_bus_connect(void);
bool fake_bus_is_whole(void); /* connected, and not deaf */

/* A message from outside; reply may be NULL. */
void fake_bus_deliver(const char *subject, const char *reply, kvb_span payload);
