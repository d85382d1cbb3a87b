#pragma once

#include "bus/permissions.h"
#include "kvaggregator/config.h"

/* What an aggregator uses of NATS, by its configuration.
 * Threads: any thread. */

/* Fills in all but what only a running process knows: inbox and id are "*".  The texts are those of
 * the configuration, which has to outlive *out. */
void kvb_aggregator_subject_names(
    const struct kvb_aggregator_config *config, struct kvb_subject_names *out);

/* Of enum kvb_permission_setting. */
unsigned kvb_aggregator_permission_settings(const struct kvb_aggregator_config *config);
