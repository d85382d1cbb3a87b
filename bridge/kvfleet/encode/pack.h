#pragma once

#include "model/event_batch.h"
#include "wire/engine/dialect.h"

#include <msgpack.h>
#include <stddef.h>

/* What the encoders of engine events share.  Nothing here fails: the packer's sink
 * keeps the first failure. */

/* One event on its way out. */
struct engine_source {
    const struct kvb_dialect_row *dialect;
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
};

void kvb_pack_text(msgpack_packer *packer, const char *text);

/* A Mooncake store speaks of one block at a time: an event becomes several, or none. */
size_t kvb_pack_mooncake_count(const struct engine_source *source);
void kvb_pack_mooncake_replicas(msgpack_packer *packer, const struct engine_source *source);
void kvb_pack_mooncake_objects(msgpack_packer *packer, const struct engine_source *source);

/* Milliseconds since 1970, as a store writes its times. */
uint64_t kvb_pack_milliseconds(const struct kvb_event_batch *batch);
