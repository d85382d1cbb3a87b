#include "wire/router/proto.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvbridge.pb-c.h"
#include "router_same.h"
#include "target.h"
#include "wire/protobuf/message.h"

#include <stdlib.h>

/* True: protobuf-c reads these bytes, and writes what it read as the same bytes. */
static bool is_as_protobuf_c_writes(kvb_span bytes)
{
    KVB_OWN(kvb_proto_arena_done) struct kvb_proto_arena arena;
    const ProtobufCMessage *message = NULL;
    KVB_OWN(kvb_buf_done) struct kvb_buf packed = { 0 };

    kvb_proto_arena_init(&arena);
    kvb_buf_init(&packed, kvb_max_payload_bytes);
    return kvb_proto_unpack(&kvb__kv_event_batch__descriptor, bytes, 16, &arena, &message) ==
               KVB_OK &&
           kvb_proto_pack(message, &packed) == KVB_OK && packed.len == bytes.len &&
           memcmp(packed.data, bytes.data, bytes.len) == 0;
}

/* What our decoder accepts is encoded, as protobuf-c would, and decodes to the same events. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch again = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };

    if (kvb_router_proto_decode((kvb_span){ data, size }, &batch) != KVB_OK) {
        check(batch.event_count == 0 && batch.block_count == 0);
        return 0;
    }
    kvb_buf_init(&bytes, kvb_max_payload_bytes);
    check(
        kvb_router_proto_encode(&batch, 0, batch.event_count, &bytes) == KVB_OK &&
        kvb_router_payload_decode(kvb_buf_span(&bytes), &again) == KVB_OK &&
        is_as_protobuf_c_writes(kvb_buf_span(&bytes)) && is_same_batch(&batch, &again));
    return 0;
}
