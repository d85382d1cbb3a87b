#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/tier.h"

#include <protobuf-c/protobuf-c.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Walks the fields of protobuf messages without allocating, writes varints, checks messages of
 * peers before protobuf-c unpacks them, and maps our enums to the numbers on the wire.
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

/* Reads the next field; requires at < end.  KVB_BAD_INPUT: not a valid field. */
kvb_status kvb_proto_next(struct kvb_proto_scan *scan, struct kvb_proto_field *out_field);

/* The length of a number as a varint: 1 to 10. */
size_t kvb_proto_varint_bytes(uint64_t value);

/* Writes it at `at`; returns the place after it. */
uint8_t *kvb_proto_write_varint(uint8_t *at, uint64_t value);

/* Writes the tag of a field of bytes below number 16, and the length of the bytes. */
uint8_t *kvb_proto_write_bytes_head(uint8_t *at, unsigned number, size_t len);

/* Checks the fields of a message, but not messages inside them.
 * KVB_BAD_INPUT  not protobuf, a group, or more than max_fields fields.  (Our
 *                repeated numbers are packed: each column is one field.) */
kvb_status kvb_proto_guard(kvb_span bytes, size_t max_fields);

/* The memory of one unpacked message: protobuf-c takes each part from here, and all of it is freed
 * at once.  Most messages fit the first bytes, so that unpacking them allocates nothing.  Lives on
 * the stack of the decoder:
 *
 *     KVB_OWN(kvb_proto_arena_done) struct kvb_proto_arena arena;
 *     kvb_proto_arena_init(&arena);
 *     KVB_TRY(kvb_proto_unpack(&descriptor, bytes, max_fields, &arena, &message));
 *
 * Threads: one. */
enum { kvb_proto_arena_bytes = 2048 };

struct kvb_proto_block; /* memory beyond the first bytes */

struct kvb_proto_arena {
    uint8_t *at; /* of the newest block, or of the first bytes */
    size_t left;
    struct kvb_proto_block *blocks; /* owned; each holds the one before it */
    bool has_failed;                /* an allocation failed */
    alignas(max_align_t) uint8_t first[kvb_proto_arena_bytes];
};

void kvb_proto_arena_init(struct kvb_proto_arena *arena);
void kvb_proto_arena_done(struct kvb_proto_arena *arena);

/* Unpacks a message of this type with protobuf-c.  kvb_proto_guard() checks it first, because
 * protobuf-c takes 40 bytes for each field, however small, and copies each unknown field.
 * *out_message is the generated struct, which lives as long as the arena.
 * KVB_BAD_INPUT, KVB_NO_MEMORY */
kvb_status kvb_proto_unpack(
    const ProtobufCMessageDescriptor *type, kvb_span bytes, size_t max_fields,
    struct kvb_proto_arena *arena, const ProtobufCMessage **out_message);

/* Appends the bytes of a generated struct.  KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_proto_pack(const ProtobufCMessage *message, struct kvb_buf *out);

/* The numbers of tiers in kvbridge.proto, indexed by our enum.  Our enums may be reordered; the
 * numbers on the wire may not. */
extern const uint32_t kvb_proto_tiers[KVB_LIST_COUNT];

/* Finds the index of a value in such a table.
 * KVB_BAD_INPUT  not in the table: a number of a newer version, or an invalid number */
kvb_status
kvb_proto_number_find(const uint32_t *numbers, size_t count, uint32_t value, unsigned *out_place);
