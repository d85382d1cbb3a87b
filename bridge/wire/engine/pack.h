#pragma once

#include "model/event_batch.h"
#include "wire/engine/dialect.h"

#include <msgpack.h>
#include <stddef.h>

/* Functions that the encoders of engine events share.  They return no status: the packer's sink
 * keeps the first failure. */

/* The event being written, with its batch and dialect. */
struct engine_source {
    const struct kvb_dialect_row *dialect;
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
};

void kvb_pack_text(msgpack_packer *packer, const char *text);

/* A Mooncake event has one block, so an event becomes one Mooncake event for each of its blocks;
 * count returns how many. */
size_t kvb_pack_mooncake_count(const struct engine_source *source);
void kvb_pack_mooncake_replicas(msgpack_packer *packer, const struct engine_source *source);
void kvb_pack_mooncake_objects(msgpack_packer *packer, const struct engine_source *source);

/* The batch's time in milliseconds since 1970, as a Mooncake store writes it. */
uint64_t kvb_pack_milliseconds(const struct kvb_event_batch *batch);
