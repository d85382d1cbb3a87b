#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvfleet/fleet.h"

#include <stdint.h>

/* A `workers = (...)` section for a bridge's configuration file, from worker number
 * `from` up to but without `to` (from 0).
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
struct kvb_config_options {
    const char *address; /* where others reach this fleet; borrowed, like model */
    const char *model;
    uint32_t block_size;
    uint32_t ranks;
};

kvb_status kvb_config_text(
    const struct kvb_fleet *fleet, const struct kvb_config_options *options, uint32_t from,
    uint32_t to, struct kvb_buf *out);
