#pragma once

#include "kvctl/kvctl.h"
#include "kvctl/top/model.h"

/* Asks and listens for `kvctl top`: one round of queries an interval on a thread of
 * its own, so that keys are answered while an aggregator is slow; what bridges and
 * routers publish comes on threads of the bus.
 *
 * Threads: only the thread that made it. */
struct kvctl_top_sampler;

/* Subscribes and begins.  wake_fd is an eventfd that becomes readable after each
 * round; line and it are borrowed until the end.  On KVB_OK the caller owns
 * *out_sampler.
 * KVB_BAD_INPUT  --namespace or --component is no name
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvctl_top_sampler_start(
    const struct kvctl_line *line, uint32_t interval_ms, int wake_fd,
    struct kvctl_top_sampler **out_sampler);

/* Waits for a query that is under way, at most its time-out.  NULL is fine. */
void kvctl_top_sampler_stop(struct kvctl_top_sampler *sampler);

/* What is known at this moment.  KVB_NO_MEMORY: the model is as it was. */
kvb_status kvctl_top_sampler_read(struct kvctl_top_sampler *sampler, struct kvctl_top_model *model);
