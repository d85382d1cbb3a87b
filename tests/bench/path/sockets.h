#pragma once

#include "model/stream.h"

#include <stdint.h>

/* The whole way, sockets included: an engine in a process of its own (PUB) over TCP to the
 * bridge's source, decoder, stream, publisher and bus, and on to a nats-server that both are
 * started here.
 *
 * Calls begin when what grows is grown; returns when at least so many events more were
 * published.  False: something of that cannot be started. */
bool bench_run_sockets(
    enum kvb_format format, uint64_t events, void (*begin)(void *context), void *context);
