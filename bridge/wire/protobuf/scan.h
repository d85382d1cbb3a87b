#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdint.h>

/* Walks the fields of a protobuf message without allocating: used by the fast RouterEvent
 * decoder, and to check messages before protobuf-c unpacks them.
 *
 *     | tag | len |   bytes   | tag | varint | tag | ...
 *      ^ at                                           ^ end
 *
 * Threads: the caller locks. */
struct kvb_proto_scan {
    const uint8_t *at; /* borrowed, like end */
    const uint8_t *end;
};

enum kvb_proto_type {
    KVB_PROTO_VARINT = 0,
    KVB_PROTO_FIXED64 = 1,
    KVB_PROTO_BYTES = 2,
    KVB_PROTO_FIXED32 = 5 /* 3 and 4 are groups, which are obsolete: refused */
};

struct kvb_proto_field {
    uint32_t number; /* 1 .. 2^29-1 */
    enum kvb_proto_type type;
    uint64_t value; /* of a varint */
    kvb_span bytes; /* of all others; borrowed */
};

struct kvb_proto_scan kvb_proto_scan_of(kvb_span bytes);

/* Reads the next field; requires at < end.  KVB_BAD_INPUT: it is not a valid field. */
kvb_status kvb_proto_next(struct kvb_proto_scan *scan, struct kvb_proto_field *out_field);

/* Reads the next varint of a packed column; errors as above. */
kvb_status kvb_proto_varint(struct kvb_proto_scan *scan, uint64_t *out_value);
