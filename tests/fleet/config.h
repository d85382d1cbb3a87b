#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "fleet/fleet.h"
#include "fleet/serve.h"

#include <stdint.h>

/* A fleet's `workers = (...)` section for a bridge's configuration file. */

struct kvb_config_options {
    const char *address; /* where others reach this fleet; borrowed, like model */
    const char *model;
    uint32_t block_size;
    uint32_t ranks;
    const struct kvb_serve *serve; /* borrowed; NULL: the workers serve no completions */
};

/* Appends the section of worker number `from` up to but without `to` (from 0).
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
kvb_status kvb_config_text(
    const struct kvb_fleet *fleet, const struct kvb_config_options *options, uint32_t from,
    uint32_t to, struct kvb_buf *out);

/* Writes path, or the workers divided among path.0 .. path.{parts - 1}; parts 0: one file.  Each
 * appears whole or not at all.
 * KVB_BAD_CONFIG  it cannot be written: detail says why
 * KVB_NO_MEMORY */
kvb_status kvb_config_write(
    const struct kvb_fleet *fleet, const struct kvb_config_options *options, const char *path,
    uint32_t parts, struct kvb_detail *detail);
