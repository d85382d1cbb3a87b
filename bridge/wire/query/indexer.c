#include "wire/query/indexer.h"

#include "core/decimal.h"
#include "core/limits.h"
#include "model/worker_facts.h"
#include "wire/protobuf/message.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum { request_hashes = 1, request_max_blocks = 2 };
enum { response_matches = 1, response_best = 2, response_read = 3 };
enum { match_address = 1, match_blocks = 2, match_worker_id = 3 };

/* ---- Requests ---- */

/* The hashes of a field, one or packed; false: the field has another type or a wrong length. */
static bool read_hash_column(const struct kvb_proto_field *field, kvb_span *out_column)
{
    if (field->type != KVB_PROTO_FIXED64 && field->type != KVB_PROTO_BYTES) {
        return false;
    }
    *out_column = field->bytes;
    return field->bytes.len % sizeof(uint64_t) == 0;
}

struct indexer_request {
    size_t count; /* hashes so far */
    uint32_t max_blocks;
    uint64_t *hashes; /* borrowed; NULL: they are only counted */
};

static kvb_status
take_hash_column(struct indexer_request *request, kvb_span column, struct kvb_detail *detail)
{
    for (size_t at = 0; request->hashes && at < column.len; at += sizeof(uint64_t)) {
        uint64_t hash = 0;
        memcpy(&hash, column.data + at, sizeof hash);
        request->hashes[request->count + at / sizeof hash] = le64toh(hash);
    }
    request->count += column.len / sizeof(uint64_t);
    if (request->count > kvb_max_query_tokens) {
        kvb_detail_set(detail, "`hashes`: more than %d", kvb_max_query_tokens);
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

static kvb_status take_indexer_field(
    struct indexer_request *request, const struct kvb_proto_field *field, struct kvb_detail *detail)
{
    kvb_span column = { 0 };

    if (field->number == request_hashes) {
        if (!read_hash_column(field, &column)) {
            kvb_detail_set(
                detail, "`hashes` is not a list of sfixed64: is the router of another version?");
            return KVB_BAD_INPUT;
        }
        return take_hash_column(request, column, detail);
    }
    if (field->number == request_max_blocks) {
        if (field->type != KVB_PROTO_VARINT) {
            kvb_detail_set(detail, "`max_blocks` is not a uint32");
            return KVB_BAD_INPUT;
        }
        request->max_blocks = (uint32_t)field->value; /* protobuf truncates a uint32 likewise */
    }
    return KVB_OK;
}

static kvb_status
walk_indexer_request(kvb_span message, struct indexer_request *request, struct kvb_detail *detail)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(message);
    struct kvb_proto_field field;

    while (scan.at < scan.end) {
        if (kvb_proto_next(&scan, &field) != KVB_OK) {
            kvb_detail_set(detail, "the message is not protobuf");
            return KVB_BAD_INPUT;
        }
        KVB_TRY(take_indexer_field(request, &field, detail));
    }
    if (request->count == 0) {
        kvb_detail_set(detail, "`hashes` is empty");
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

kvb_status
kvb_indexer_request_decode(kvb_span message, struct kvb_query *out_query, struct kvb_detail *detail)
{
    struct indexer_request counted = { 0 };
    struct indexer_request request = { 0 };

    if (message.len > kvb_max_indexer_bytes) {
        kvb_detail_set(detail, "the message has more than %d bytes", kvb_max_indexer_bytes);
        return KVB_TOO_LARGE;
    }
    /* Twice over the message: first to count, then into memory of that size. */
    KVB_TRY(walk_indexer_request(message, &counted, detail));
    request.hashes = malloc(counted.count * sizeof *request.hashes);
    if (!request.hashes) {
        return KVB_NO_MEMORY;
    }
    (void)walk_indexer_request(
        message, &request, detail); /* cannot fail: the first walk succeeded */
    *out_query = (struct kvb_query){ .form = KVB_QUERY_BLOCK_HASHES,
                                     .hashes = request.hashes,
                                     .count = request.count };
    if (request.max_blocks > 0 && request.max_blocks < request.count) {
        out_query->count = request.max_blocks;
        /* Whoever counts the memory of queries counts the hashes that are looked up. */
        uint64_t *fewer = realloc(request.hashes, out_query->count * sizeof *fewer);
        out_query->hashes = fewer ? fewer : request.hashes;
    }
    return KVB_OK;
}

/* ---- Responses ---- */

enum {
    varint_bytes = 10,
    /* the maximum for one worker: address, id, and a tag and a varint for each of the four: match,
     * address, blocks, id */
    match_bytes = kvb_worker_address_bytes + 2 * kvb_decimal_bytes + 4 * (1 + varint_bytes)
};

static uint8_t *put_uint_field(uint8_t *at, unsigned number, uint64_t value)
{
    *at++ = (uint8_t)(number << 3 | KVB_PROTO_VARINT);
    return kvb_proto_write_varint(at, value);
}

static uint8_t *put_text_field(uint8_t *at, unsigned number, const char *text, size_t len)
{
    at = kvb_proto_write_bytes_head(at, number, len);
    memcpy(at, text, len);
    return at + len;
}

/* "7/0": worker and rank. */
static size_t write_worker_id(const struct kvb_indexer_match *match, char *out)
{
    size_t len = kvb_decimal_write(out, match->worker_id);

    out[len++] = '/';
    return len + kvb_decimal_write(out + len, match->dp_rank);
}

static kvb_status put_match(const struct kvb_indexer_match *match, struct kvb_buf *out)
{
    char worker_id[2 * kvb_decimal_bytes + 1];
    const size_t address_len = strnlen(match->address, kvb_worker_address_bytes);
    const size_t id_len = write_worker_id(match, worker_id);
    const size_t len = 1 + kvb_proto_varint_bytes(address_len) + address_len + 1 +
                       kvb_proto_varint_bytes(match->blocks) + 1 + kvb_proto_varint_bytes(id_len) +
                       id_len;

    KVB_TRY(kvb_buf_reserve(out, match_bytes));
    uint8_t *at = kvb_proto_write_bytes_head(out->data + out->len, response_matches, len);
    at = put_text_field(at, match_address, match->address, address_len);
    at = put_uint_field(at, match_blocks, match->blocks);
    at = put_text_field(at, match_worker_id, worker_id, id_len);
    out->len = (size_t)(at - out->data);
    return KVB_OK;
}

kvb_status kvb_indexer_response_encode(
    const struct kvb_indexer_match *matches, size_t count, size_t asked, struct kvb_buf *out)
{
    if (count == 0) {
        return KVB_OK;
    }
    for (size_t i = 0; i < count; i++) {
        KVB_TRY(put_match(&matches[i], out));
    }
    const uint64_t best = matches[0].blocks;
    KVB_TRY(kvb_buf_reserve(out, match_bytes));
    uint8_t *at = put_uint_field(out->data + out->len, response_best, best);
    /* The block after the best match was looked up too: the match ended there. */
    at = put_uint_field(at, response_read, best < asked ? best + 1 : asked);
    out->len = (size_t)(at - out->data);
    return KVB_OK;
}
