#include "wire/proto_guard.h"

#include <stdint.h>
#include <stdlib.h>

enum { type_bits = 3, longest_varint = 10 };

struct walk {
    const uint8_t *at;
    size_t left;
};

static kvb_status skip(struct walk *walk, uint64_t bytes)
{
    if (bytes > walk->left) {
        return KVB_BAD_INPUT;
    }
    walk->at += bytes;
    walk->left -= (size_t)bytes;
    return KVB_OK;
}

static kvb_status read_varint(struct walk *walk, uint64_t *out_value)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < longest_varint; i++) {
        const uint8_t *byte = walk->at;
        KVB_TRY(skip(walk, 1));
        value |= (uint64_t)(*byte & 0x7f) << (7 * i);
        if (*byte < 0x80) {
            *out_value = value;
            return KVB_OK;
        }
    }
    return KVB_BAD_INPUT;
}

static kvb_status skip_field(struct walk *walk)
{
    uint64_t tag = 0;
    uint64_t value = 0;

    KVB_TRY(read_varint(walk, &tag));
    if (tag >> type_bits == 0 || tag > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    switch (tag & ((1 << type_bits) - 1)) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        return read_varint(walk, &value);
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        return skip(walk, 8);
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        KVB_TRY(read_varint(walk, &value));
        return skip(walk, value);
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        return skip(walk, 4);
    default:
        return KVB_BAD_INPUT;
    }
}

kvb_status kvb_proto_guard(kvb_span bytes, size_t max_fields)
{
    struct walk walk = { .at = bytes.data, .left = bytes.len };

    for (size_t fields = 0; walk.left > 0; fields++) {
        if (fields == max_fields) {
            return KVB_BAD_INPUT;
        }
        KVB_TRY(skip_field(&walk));
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

static void give_back([[maybe_unused]] void *context, void *bytes)
{
    free(bytes);
}

struct kvb_proto_memory kvb_proto_memory_of(struct kvb_proto_memory *self)
{
    return (struct kvb_proto_memory){
        .allocator = { .alloc = take_memory, .free = give_back, .allocator_data = self },
    };
}

kvb_status kvb_proto_refusal(const struct kvb_proto_memory *memory)
{
    return memory->has_failed ? KVB_NO_MEMORY : KVB_BAD_INPUT;
}
