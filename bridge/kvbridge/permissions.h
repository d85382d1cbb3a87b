#pragma once

#include "bus/permissions.h"
#include "kvbridge/config.h"

/* What a bridge uses of NATS, by its configuration.
 * Threads: any thread. */

/* Fills in all but what only a running process knows: inbox and id are "*".  The texts are those of
 * the configuration, which has to outlive *out. */
void kvb_bridge_subject_names(
    const struct kvb_bridge_config *config, struct kvb_subject_names *out);

/* Of enum kvb_permission_setting. */
unsigned kvb_bridge_permission_settings(const struct kvb_bridge_config *config);
