#include "wire/router/proto.h"

#include "core/limits.h"
#include "core/own.h"
#include "router_same.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What our decoder accepts is encoded, and decodes to the same events. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch again = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };

    if (kvb_router_proto_decode((kvb_span){ data, size }, &batch) != KVB_OK) {
        if (batch.event_count != 0 || batch.block_count != 0) {
            abort();
        }
        return 0;
    }
    kvb_buf_init(&bytes, kvb_max_payload_bytes);
    if (kvb_router_proto_encode(&batch, 0, batch.event_count, &bytes) != KVB_OK ||
        kvb_router_payload_decode(kvb_buf_span(&bytes), &again) != KVB_OK ||
        !is_same_batch(&batch, &again)) {
        abort();
    }
    return 0;
}
