#pragma once

#include "core/span.h"
#include "core/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

/* Checks messages before protobuf-c unpacks them: it allocates 40 bytes for each field on the
 * wire, however small, and copies each unknown one. */

/* Walks the fields of a message without allocating; does not descend into them.
 * KVB_BAD_INPUT  not protobuf, a group, or more than max_fields fields.  (Our
 *                repeated fields are packed: each column is one field.) */
kvb_status kvb_proto_guard(kvb_span bytes, size_t max_fields);

/* An allocator for one message that records failures: a NULL from protobuf-c may mean invalid
 * bytes or lack of memory.
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

/* Why an unpack returned NULL: KVB_NO_MEMORY or KVB_BAD_INPUT. */
kvb_status kvb_proto_refusal(const struct kvb_proto_memory *memory);
