#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "wire/protobuf/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The messages between Envoy and an endpoint picker (ext_proc), and those of gRPC's health check.
 *
 *     HTTP request                 Envoy's messages              the picker's answers
 *     headers                  ->  request_headers           <-  headers: the pick
 *     {"model":"m", ...        ->  request_body              <-  body: the same bytes
 *      ... }                   ->  request_body, the last    <-  body: the last
 *
 * Written by hand: protobuf-c would copy each body, and an endless list of endpoints would be
 * memory.  Nothing is copied while reading, unknown fields are skipped, and no function calls
 * itself: the fields that are read lie at fixed depths.
 *
 * Source: Envoy's service/ext_proc/v3/external_processor.proto of January 2026, numbers and types.
 * Threads: any thread. */

/* ---- What Envoy sends ---- */

/* Which part of the HTTP request or response a message has, or answers. */
enum kvb_ext_proc_part {
    KVB_PART_UNKNOWN, /* of a newer Envoy */
    KVB_PART_REQUEST_HEADERS,
    KVB_PART_REQUEST_BODY,
    KVB_PART_REQUEST_TRAILERS,
    KVB_PART_RESPONSE_HEADERS,
    KVB_PART_RESPONSE_BODY,
    KVB_PART_RESPONSE_TRAILERS,
    KVB_PART_COUNT
};

/* How Envoy sends bodies.  The numbers are those on the wire. */
enum kvb_body_mode {
    KVB_MODE_NONE = 0,
    KVB_MODE_STREAMED = 1,
    KVB_MODE_BUFFERED = 2,
    KVB_MODE_BUFFERED_PARTIAL = 3,
    KVB_MODE_DUPLEX = 4, /* FULL_DUPLEX_STREAMED */
    KVB_MODE_GRPC = 5,
    KVB_MODE_UNKNOWN /* of a newer Envoy */
};

/* A ProcessingRequest.  All spans are borrowed from the message. */
struct kvb_ext_proc_request {
    enum kvb_ext_proc_part part;
    kvb_span headers;   /* of headers and trailers: for kvb_ext_proc_headers_find() */
    kvb_span body;      /* of a part of a body */
    bool end_of_stream; /* no further part of this request, or response, follows */
    bool is_observed;   /* nothing may be answered on this stream */
    bool has_modes; /* only the first message of a stream says the modes; before Envoy 1.34 none */
    enum kvb_body_mode request_body_mode;
    enum kvb_body_mode response_body_mode;
    kvb_span metadata; /* for kvb_ext_proc_metadata_find() */
};

/* KVB_BAD_INPUT  not such a message, or one that has two parts */
kvb_status kvb_ext_proc_request_decode(kvb_span message, struct kvb_ext_proc_request *out_request);

/* Finds the values of headers by their names, which are lower case; of a header that comes several
 * times, the first.  What is missing is {NULL, 0}; a value may be empty, with data.  Reads the
 * first kvb_max_gateway_header_bytes only; *out_has_more: there is more, which was not read.
 * KVB_BAD_INPUT  not headers */
kvb_status kvb_ext_proc_headers_find(
    kvb_span headers, const char *const names[], size_t count, kvb_span *out_values,
    bool *out_has_more);

/* Finds metadata_context.filter_metadata[space][key], a google.protobuf.Value.  If the key is there
 * more than once, the last counts, as for every map.
 * KVB_NOT_FOUND  no such key
 * KVB_BAD_INPUT  not metadata */
kvb_status kvb_ext_proc_metadata_find(
    kvb_span metadata, const char *space, const char *key, kvb_span *out_value);

/* The endpoints of such a value, read one by one:
 *
 *     a list of strings, a string, each with commas or without:   "10.0.0.1:8000, 10.0.0.2"
 *
 * Each is a text without blanks around it, which nobody has checked.  Values of other types have
 * none: a hint that names nobody is answered by 503, while no hint is no limit. */
struct kvb_endpoint_hint {
    struct kvb_proto_scan values; /* of the list that are left */
    kvb_span text;                /* of the string that is being read */
    size_t read;                  /* endpoints so far */
};

/* KVB_BAD_INPUT  not a Value */
kvb_status kvb_endpoint_hint_of(kvb_span value, struct kvb_endpoint_hint *out_hint);

/* KVB_NOT_FOUND  no further endpoint
 * KVB_TOO_LARGE  kvb_max_gateway_hint_endpoints were read, and there are more
 * KVB_BAD_INPUT  not a Value */
kvb_status kvb_endpoint_hint_next(struct kvb_endpoint_hint *hint, kvb_span *out_endpoint);

/* ---- What the picker answers ---- */

/* A header that is set, also where the client has sent one. */
struct kvb_gateway_header {
    const char *name;
    const char *value; /* NULL: the header is removed */
};

/* What the answer with the pick says. */
struct kvb_gateway_pick {
    enum kvb_ext_proc_part answers;        /* KVB_PART_REQUEST_HEADERS, or _BODY where the body is
                                              BUFFERED */
    const char *endpoints;                 /* "10.0.0.1:8000", or several with commas, best first */
    const struct kvb_gateway_header *more; /* further headers; borrowed, as all texts here */
    size_t more_count;
    /* The dynamic metadata `kvbridge`, for access logs. */
    uint64_t worker_id;
    uint64_t dp_rank;
    uint64_t prompt_tokens;
    uint64_t overlap_tokens;
    const char *reason; /* NULL: a pick without the other figures, and no `kvbridge` */
};

/* Appends the answer with the pick: the header and the metadata x-gateway-destination-endpoint, and
 * clear_route_cache, because routes may depend on the header.
 * KVB_TOO_LARGE  above kvb_max_gateway_answer_bytes, or than *out takes
 * KVB_NO_MEMORY */
kvb_status kvb_ext_proc_pick_encode(const struct kvb_gateway_pick *pick, struct kvb_buf *out);

/* The answer that changes nothing; in static memory. */
kvb_span kvb_ext_proc_empty_answer(enum kvb_ext_proc_part part);

/* Bodies go back in messages of at most kvb_max_gateway_echo_bytes of them.  A message is a head,
 * and then the bytes themselves, which need no copy:
 *
 *     [ head: part, lengths, end_of_stream ][ bytes of the body ]
 *
 * The end of a body that has no bytes left is a head alone. */
enum { kvb_ext_proc_echo_head_bytes = 32 };

/* Writes the head for `body_bytes` bytes of a KVB_PART_REQUEST_BODY or KVB_PART_RESPONSE_BODY.
 * Returns its length. */
size_t kvb_ext_proc_echo_head_write(
    enum kvb_ext_proc_part part, size_t body_bytes, bool end_of_stream,
    uint8_t out[kvb_ext_proc_echo_head_bytes]);

/* Appends an ImmediateResponse: the client gets this status, and an error as OpenAI's API has it.
 * reason: `kvbridge_REASON` is what Envoy's access log says.
 * KVB_TOO_LARGE  above kvb_max_gateway_answer_bytes, or than *out takes
 * KVB_NO_MEMORY */
kvb_status kvb_ext_proc_immediate_encode(
    unsigned http_status, const char *reason, const char *message, struct kvb_buf *out);

/* ---- grpc.health.v1.Health/Check ---- */

/* The service that is asked for; borrowed, may be empty.  KVB_BAD_INPUT */
kvb_status kvb_health_request_decode(kvb_span message, kvb_span *out_service);

/* The answer; in static memory. */
kvb_span kvb_health_answer(bool is_serving);
