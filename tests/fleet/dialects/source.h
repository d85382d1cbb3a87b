#pragma once

#include "fleet/dialects/dialect.h"
#include "model/event_batch.h"

#include <msgpack.h>
#include <stddef.h>

/* What the writers of the dialects share, beside wire/engine/pack.h. */

/* The event being written, with its batch and dialect. */
struct engine_source {
    const struct kvb_dialect_row *dialect;
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
};

/* A Mooncake event has one block, so an event becomes one Mooncake event for each of its blocks;
 * count returns how many. */
size_t kvb_pack_mooncake_count(const struct engine_source *source);
void kvb_pack_mooncake_replicas(msgpack_packer *packer, const struct engine_source *source);
void kvb_pack_mooncake_objects(msgpack_packer *packer, const struct engine_source *source);

/* The batch's time in milliseconds since 1970, as a Mooncake store writes it. */
uint64_t kvb_pack_milliseconds(const struct kvb_event_batch *batch);
