#include "wire/protobuf/guard.h"

#include "wire/protobuf/scan.h"

#include <stdlib.h>

kvb_status kvb_proto_guard(kvb_span bytes, size_t max_fields)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(bytes);
    struct kvb_proto_field field;

    for (size_t fields = 0; scan.at < scan.end; fields++) {
        if (fields == max_fields) {
            return KVB_BAD_INPUT;
        }
        KVB_TRY(kvb_proto_next(&scan, &field));
    }
    return KVB_OK;
}

static void *take_memory(void *context, size_t size)
{
    struct kvb_proto_memory *memory = context;
    void *bytes = malloc(size);

    memory->has_failed |= !bytes;
    return bytes;
}

static void give_bytes_back([[maybe_unused]] void *context, void *bytes)
{
    free(bytes);
}

struct kvb_proto_memory kvb_proto_memory_of(struct kvb_proto_memory *self)
{
    return (struct kvb_proto_memory){
        .allocator = { .alloc = take_memory, .free = give_bytes_back, .allocator_data = self },
    };
}

kvb_status kvb_proto_refusal(const struct kvb_proto_memory *memory)
{
    return memory->has_failed ? KVB_NO_MEMORY : KVB_BAD_INPUT;
}
