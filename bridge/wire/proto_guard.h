#pragma once

#include "core/span.h"
#include "core/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

/* What stands in front of protobuf-c, which keeps 40 bytes of notes per field
 * on the wire, however small, and a copy of each that it does not know. */

/* Walks the fields of a message without allocating; does not look into them.
 * KVB_BAD_INPUT  no protobuf, a group, or more than max_fields fields.  (Our
 *                repeated fields are packed: each column is one field.) */
kvb_status kvb_proto_guard(kvb_span bytes, size_t max_fields);

/* Memory for one message, that remembers whether there was enough: a NULL of
 * protobuf-c alone does not tell broken bytes from no memory.
 *
 *     struct kvb_proto_memory memory = kvb_proto_memory_of(&memory);
 *     message = kvb__x__unpack(&memory.allocator, ...)
 *
 * Threads: the caller locks. */
struct kvb_proto_memory {
    ProtobufCAllocator allocator;
    bool has_failed;
};

struct kvb_proto_memory kvb_proto_memory_of(struct kvb_proto_memory *self);

/* Why an unpack gave NULL. */
kvb_status kvb_proto_refusal(const struct kvb_proto_memory *memory);
