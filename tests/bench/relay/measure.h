#pragma once

#include "blaster.h"
#include "contender.h"
#include "core/status.h"
#include "reader.h"
#include "script.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One run of one relay: its engines send, a subscriber counts. */

struct run_options {
    const struct script *script;
    uint64_t batches_a_second; /* 0: as many as arrive */
    uint64_t max_kept_batches; /* 0: until the time is over */
    uint64_t duration_ns;
};

struct run_result {
    uint64_t batches;
    uint64_t lost; /* sent and not arrived, or arrived out of order */
    double batches_a_second;
    double cpu_ns; /* of the relay's process, for one batch */
    double bytes;  /* of NATS payload, for one batch */
    double p50_us; /* from the engine's send to the subscriber; only at a given rate */
    double p99_us;
};

/* Sends until everything that is sent arrives, whatever the relay does at its start.
 * KVB_AGAIN: that never happens */
kvb_status measure_warm_up(
    const struct stage *stage, struct contender *contender, const struct script *script);

/* Starts the script from its beginning when it is another one than before. KVB_IO, KVB_NO_MEMORY;
 * KVB_CLOSED: stage_is_over */
kvb_status measure_run(
    const struct stage *stage, struct contender *contender, const struct run_options *options,
    struct run_result *out_result);

/* What its process uses while its engines are silent: processor time in milliseconds a second.
 * KVB_CLOSED: stage_is_over */
kvb_status measure_rest(
    const struct stage *stage, const struct contender *contender, uint64_t duration_ns,
    double *out_cpu_ms);
