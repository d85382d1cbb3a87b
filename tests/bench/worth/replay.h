#pragma once

#include "worth/router.h"
#include "worth/workload.h"

/* One run: a workload sent to a fleet of simulated engines through one router, in virtual time.
 *
 *     burst   all chains at once: how long the fleet works on all of it
 *     open    each chain at its share of span_us, whatever the fleet does
 *     closed  so many clients; each begins the next chain when its last one is finished
 *
 * The same options give the same result.  Requests of the first fifth of the chains warm the
 * caches; the figures are of the others. */
enum worth_loop { WORTH_BURST, WORTH_OPEN, WORTH_CLOSED };

struct worth_replay_options {
    const struct worth_workload *workload;
    struct worth_rates rates;
    struct worth_router_options router;
    enum worth_loop loop;
    uint64_t span_us; /* open */
    size_t clients;   /* closed */
};

struct worth_result {
    double hit_rate;                 /* blocks reused / whole blocks of prompts */
    double ttft_p50_ms, ttft_p99_ms; /* from sending to the first token */
    double load_std; /* over workers of blocks in use / blocks of the pool; mean over time */
    double requests_per_s;
    uint64_t busy_us;  /* of all engines */
    uint64_t checksum; /* of all decisions */
};

struct worth_result worth_replay(const struct worth_replay_options *options);
