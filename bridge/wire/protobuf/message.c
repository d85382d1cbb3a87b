#include "wire/protobuf/message.h"

#include <stdlib.h>

enum { type_bits = 3, longest_varint = 10 };

struct kvb_proto_scan kvb_proto_scan_of(kvb_span bytes)
{
    static const uint8_t nothing[1]; /* an empty span may have NULL data: NULL + 0 is undefined */
    const uint8_t *at = bytes.len > 0 ? bytes.data : nothing;

    return (struct kvb_proto_scan){ .at = at, .end = at + bytes.len };
}

static kvb_status read_long_varint(struct kvb_proto_scan *scan, uint64_t *out_value)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < longest_varint && scan->at < scan->end; i++) {
        const uint8_t byte = *scan->at++;
        value |= (uint64_t)(byte & 0x7fU) << (7 * i);
        if (byte < 0x80) {
            *out_value = value;
            return KVB_OK;
        }
    }
    return KVB_BAD_INPUT;
}

static kvb_status read_varint(struct kvb_proto_scan *scan, uint64_t *out_value)
{
    if (scan->at < scan->end && *scan->at < 0x80) { /* most of them */
        *out_value = *scan->at++;
        return KVB_OK;
    }
    return read_long_varint(scan, out_value);
}

size_t kvb_proto_varint_bytes(uint64_t value)
{
    size_t bytes = 1;

    for (; value >= 0x80; value >>= 7) {
        bytes++;
    }
    return bytes;
}

uint8_t *kvb_proto_write_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) {
        *at++ = (uint8_t)(value | 0x80);
    }
    *at++ = (uint8_t)value;
    return at;
}

uint8_t *kvb_proto_write_bytes_head(uint8_t *at, unsigned number, size_t len)
{
    *at++ = (uint8_t)(number << type_bits | KVB_PROTO_BYTES);
    return kvb_proto_write_varint(at, len);
}

static kvb_status
take_field_bytes(struct kvb_proto_scan *scan, uint64_t len, struct kvb_proto_field *field)
{
    if (len > (size_t)(scan->end - scan->at)) {
        return KVB_BAD_INPUT;
    }
    field->bytes = (kvb_span){ .data = scan->at, .len = (size_t)len };
    scan->at += len;
    return KVB_OK;
}

kvb_status kvb_proto_next(struct kvb_proto_scan *scan, struct kvb_proto_field *out_field)
{
    uint64_t tag = 0;
    uint64_t len = 0;

    KVB_TRY(read_varint(scan, &tag));
    /* Field numbers begin at 1 and have 29 bits. */
    if (tag >> type_bits == 0 || tag > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    out_field->number = (uint32_t)(tag >> type_bits);
    switch (tag & ((1U << type_bits) - 1)) {
    case KVB_PROTO_VARINT:
        out_field->type = KVB_PROTO_VARINT;
        return read_varint(scan, &out_field->value);
    case KVB_PROTO_FIXED64:
        out_field->type = KVB_PROTO_FIXED64;
        return take_field_bytes(scan, 8, out_field);
    case KVB_PROTO_BYTES:
        out_field->type = KVB_PROTO_BYTES;
        KVB_TRY(read_varint(scan, &len));
        return take_field_bytes(scan, len, out_field);
    case KVB_PROTO_FIXED32:
        out_field->type = KVB_PROTO_FIXED32;
        return take_field_bytes(scan, 4, out_field);
    default:
        return KVB_BAD_INPUT;
    }
}

/* ---- Whole messages ---- */

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

struct kvb_proto_block {
    struct kvb_proto_block *before; /* owned */
    alignas(max_align_t) uint8_t bytes[];
};

enum { min_block_bytes = 16 << 10 };

void kvb_proto_arena_init(struct kvb_proto_arena *arena)
{
    arena->at = arena->first;
    arena->left = sizeof arena->first;
    arena->blocks = NULL;
    arena->has_failed = false;
}

void kvb_proto_arena_done(struct kvb_proto_arena *arena)
{
    while (arena->blocks) {
        struct kvb_proto_block *block = arena->blocks;
        arena->blocks = block->before;
        free(block);
    }
}

/* The rest of the block before is lost: what is unpacked lives for one message. */
static bool add_block(struct kvb_proto_arena *arena, size_t need)
{
    const size_t bytes = need > min_block_bytes ? need : min_block_bytes;
    struct kvb_proto_block *block = malloc(sizeof *block + bytes);

    if (!block) {
        return false;
    }
    block->before = arena->blocks;
    arena->blocks = block;
    arena->at = block->bytes;
    arena->left = bytes;
    return true;
}

/* Of protobuf-c, which asks for less than the message's 16 MiB a few times over: the sum with the
 * alignment cannot overflow. */
static void *allocate_part(void *context, size_t bytes)
{
    struct kvb_proto_arena *arena = context;
    const size_t need = (bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);

    if (need > arena->left && !add_block(arena, need)) {
        arena->has_failed = true;
        return NULL;
    }
    void *part = arena->at;
    arena->at += need;
    arena->left -= need;
    return part;
}

static void keep_part([[maybe_unused]] void *context, [[maybe_unused]] void *part)
{
    /* kvb_proto_arena_done() frees all parts */
}

kvb_status kvb_proto_unpack(
    const ProtobufCMessageDescriptor *type, kvb_span bytes, size_t max_fields,
    struct kvb_proto_arena *arena, const ProtobufCMessage **out_message)
{
    ProtobufCAllocator allocator = { allocate_part, keep_part, arena };

    KVB_TRY(kvb_proto_guard(bytes, max_fields));
    /* Now the bytes are fields; whether they fit the type is protobuf-c's question. */
    const ProtobufCMessage *message =
        protobuf_c_message_unpack(type, &allocator, bytes.len, bytes.data);
    if (!message) {
        /* a NULL may mean invalid bytes or lack of memory */
        return arena->has_failed ? KVB_NO_MEMORY : KVB_BAD_INPUT;
    }
    *out_message = message;
    return KVB_OK;
}

kvb_status kvb_proto_pack(const ProtobufCMessage *message, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_reserve(out, protobuf_c_message_get_packed_size(message)));
    out->len += protobuf_c_message_pack(message, out->data + out->len);
    return KVB_OK;
}

/* ---- Numbers ---- */

const uint32_t kvb_proto_tiers[KVB_LIST_COUNT] = {
    [KVB_TIER_DEVICE] = 0,   [KVB_TIER_HOST] = 1,   [KVB_TIER_DISK] = 2,
    [KVB_TIER_EXTERNAL] = 3, [KVB_LIST_WINDOW] = 4,
};

kvb_status
kvb_proto_number_find(const uint32_t *numbers, size_t count, uint32_t value, unsigned *out_place)
{
    for (unsigned i = 0; i < count; i++) {
        if (numbers[i] == value) {
            *out_place = i;
            return KVB_OK;
        }
    }
    return KVB_BAD_INPUT;
}
