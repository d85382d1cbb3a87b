#include "wire/protobuf/scan.h"

#include <stddef.h>

enum { type_bits = 3, longest_varint = 10 };

struct kvb_proto_scan kvb_proto_scan_of(kvb_span bytes)
{
    static const uint8_t nothing[1]; /* an empty span's data may be NULL, which has no arithmetic */
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

kvb_status kvb_proto_varint(struct kvb_proto_scan *scan, uint64_t *out_value)
{
    if (scan->at < scan->end && *scan->at < 0x80) { /* most of them */
        *out_value = *scan->at++;
        return KVB_OK;
    }
    return read_long_varint(scan, out_value);
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

    KVB_TRY(kvb_proto_varint(scan, &tag));
    if (tag >> type_bits == 0 || tag > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    out_field->number = (uint32_t)(tag >> type_bits);
    switch (tag & ((1U << type_bits) - 1)) {
    case KVB_PROTO_VARINT:
        out_field->type = KVB_PROTO_VARINT;
        return kvb_proto_varint(scan, &out_field->value);
    case KVB_PROTO_FIXED64:
        out_field->type = KVB_PROTO_FIXED64;
        return take_field_bytes(scan, 8, out_field);
    case KVB_PROTO_BYTES:
        out_field->type = KVB_PROTO_BYTES;
        KVB_TRY(kvb_proto_varint(scan, &len));
        return take_field_bytes(scan, len, out_field);
    case KVB_PROTO_FIXED32:
        out_field->type = KVB_PROTO_FIXED32;
        return take_field_bytes(scan, 4, out_field);
    default:
        return KVB_BAD_INPUT;
    }
}
