#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Checks that our own messages come back to us: a server that forwards nothing looks like any
 * other.
 *
 *     sent ---------------------> awaited -----------> missing, until one arrives
 *       ^        3 s without one    |
 *       +----------- arrives -------+
 *
 * Threads: only the thread that made it.  Times are of the monotonic clock, in ns. */
struct kvb_echo {
    bool is_awaited;
    uint64_t sent_ns; /* the first that has not arrived */
};

enum { kvb_echo_patience_ms = 3000 };

/* Another connection: what was sent before does not come. */
void kvb_echo_reset(struct kvb_echo *echo);

void kvb_echo_sent(struct kvb_echo *echo, uint64_t now_ns);
void kvb_echo_received(struct kvb_echo *echo);
bool kvb_echo_is_missing(const struct kvb_echo *echo, uint64_t now_ns);
