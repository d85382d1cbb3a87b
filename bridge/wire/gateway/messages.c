#include "wire/gateway/messages.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/json/writer.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

/* Field numbers. */
enum { request_metadata = 8, request_observed = 10, request_modes = 11 };
enum { modes_of_request = 1, modes_of_response = 2 };
enum { map_entry = 1, entry_key = 1, entry_value = 2 };
enum { header_key = 1, header_old_value = 2, header_raw_value = 3 };
enum { value_number = 2, value_string = 3, value_struct = 5, value_list = 6 };
enum { list_values = 1 };
enum { response_metadata = 8, response_immediate = 7 };
enum { part_response = 1, common_headers = 2, common_body = 3, common_clear_route_cache = 5 };
enum { body_streamed = 3, streamed_body = 1, streamed_end = 2 };
enum { mutation_set = 1, mutation_remove = 2, option_header = 1, option_action = 3 };
enum { action_overwrite_or_add = 2 };
enum { immediate_status = 1, immediate_headers = 2, immediate_body = 3, immediate_details = 5 };
enum { status_code = 1 };
enum { health_service = 1 };

static const char destination[] = "x-gateway-destination-endpoint";

/* ---- What Envoy sends ---- */

static const struct part_fields {
    uint32_t in_request;  /* number in ProcessingRequest */
    uint32_t in_response; /* in ProcessingResponse */
    uint32_t end;         /* of end_of_stream in the part; 0: the part is the end */
    bool is_body;
} parts[KVB_PART_COUNT] = {
    [KVB_PART_REQUEST_HEADERS] = { .in_request = 2, .in_response = 1, .end = 3 },
    [KVB_PART_RESPONSE_HEADERS] = { .in_request = 3, .in_response = 2, .end = 3 },
    [KVB_PART_REQUEST_BODY] = { .in_request = 4, .in_response = 3, .end = 2, .is_body = true },
    [KVB_PART_RESPONSE_BODY] = { .in_request = 5, .in_response = 4, .end = 2, .is_body = true },
    [KVB_PART_REQUEST_TRAILERS] = { .in_request = 6, .in_response = 5 },
    [KVB_PART_RESPONSE_TRAILERS] = { .in_request = 7, .in_response = 6 },
};

/* KVB_BAD_INPUT if a field that we read has another type than we expect. */
static kvb_status expect_type(const struct kvb_proto_field *field, enum kvb_proto_type type)
{
    return field->type == type ? KVB_OK : KVB_BAD_INPUT;
}

/* HttpHeaders, HttpBody and HttpTrailers: field 1 is what they carry. */
static kvb_status
read_part(kvb_span bytes, const struct part_fields *part, struct kvb_ext_proc_request *request)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(bytes);
    struct kvb_proto_field field;
    kvb_span content = { 0 };

    request->end_of_stream = part->end == 0;
    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_next(&scan, &field));
        if (field.number == 1) {
            KVB_TRY(expect_type(&field, KVB_PROTO_BYTES));
            /* Headers that come in two pieces are one list by protobuf's rules.  Envoy sends one
             * piece, and two spans would not fit the struct. */
            if (content.data && !part->is_body) {
                return KVB_BAD_INPUT;
            }
            content = field.bytes;
        } else if (field.number == part->end) {
            KVB_TRY(expect_type(&field, KVB_PROTO_VARINT));
            request->end_of_stream = field.value != 0;
        }
    }
    *(part->is_body ? &request->body : &request->headers) = content;
    return KVB_OK;
}

static enum kvb_body_mode mode_of(uint64_t number)
{
    return number < KVB_MODE_UNKNOWN ? (enum kvb_body_mode)number : KVB_MODE_UNKNOWN;
}

static kvb_status read_modes(kvb_span bytes, struct kvb_ext_proc_request *request)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(bytes);
    struct kvb_proto_field field;

    request->has_modes = true; /* a mode that is not there is 0: NONE */
    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_next(&scan, &field));
        if (field.number == modes_of_request) {
            KVB_TRY(expect_type(&field, KVB_PROTO_VARINT));
            request->request_body_mode = mode_of(field.value);
        } else if (field.number == modes_of_response) {
            KVB_TRY(expect_type(&field, KVB_PROTO_VARINT));
            request->response_body_mode = mode_of(field.value);
        }
    }
    return KVB_OK;
}

static enum kvb_ext_proc_part part_of_field(uint32_t number)
{
    for (unsigned part = KVB_PART_UNKNOWN + 1; part < KVB_PART_COUNT; part++) {
        if (parts[part].in_request == number) {
            return (enum kvb_ext_proc_part)part;
        }
    }
    return KVB_PART_UNKNOWN;
}

static kvb_status
read_request_field(const struct kvb_proto_field *field, struct kvb_ext_proc_request *request)
{
    const enum kvb_ext_proc_part part = part_of_field(field->number);

    if (part != KVB_PART_UNKNOWN) {
        KVB_TRY(expect_type(field, KVB_PROTO_BYTES));
        /* Two parts in one message would need two answers, and Envoy expects one. */
        if (request->part != KVB_PART_UNKNOWN) {
            return KVB_BAD_INPUT;
        }
        request->part = part;
        return read_part(field->bytes, &parts[part], request);
    }
    switch (field->number) {
    case request_metadata:
        KVB_TRY(expect_type(field, KVB_PROTO_BYTES));
        if (request->metadata.data) { /* two pieces of one map, as above */
            return KVB_BAD_INPUT;
        }
        request->metadata = field->bytes;
        return KVB_OK;
    case request_observed:
        KVB_TRY(expect_type(field, KVB_PROTO_VARINT));
        request->is_observed = field->value != 0;
        return KVB_OK;
    case request_modes:
        KVB_TRY(expect_type(field, KVB_PROTO_BYTES));
        return read_modes(field->bytes, request);
    default:
        return KVB_OK;
    }
}

kvb_status kvb_ext_proc_request_decode(kvb_span message, struct kvb_ext_proc_request *out_request)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(message);
    struct kvb_ext_proc_request request = { 0 };
    struct kvb_proto_field field;

    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_next(&scan, &field));
        KVB_TRY(read_request_field(&field, &request));
    }
    *out_request = request;
    return KVB_OK;
}

static kvb_status read_header(kvb_span bytes, kvb_span *out_key, kvb_span *out_value)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(bytes);
    struct kvb_proto_field field;
    kvb_span old = { 0 };
    kvb_span raw = { 0 };

    *out_key = (kvb_span){ 0 };
    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_next(&scan, &field));
        if (field.number >= header_key && field.number <= header_raw_value) {
            KVB_TRY(expect_type(&field, KVB_PROTO_BYTES));
            *(field.number == header_key         ? out_key
              : field.number == header_old_value ? &old
                                                 : &raw) = field.bytes;
        }
    }
    /* Newer Envoys send raw_value, older ones value; an empty one may be left out. */
    *out_value = raw.len > 0 ? raw : old.len > 0 ? old : (kvb_span){ .data = bytes.data };
    return KVB_OK;
}

kvb_status kvb_ext_proc_headers_find(
    kvb_span headers, const char *const names[], size_t count, kvb_span *out_values,
    bool *out_has_more)
{
    const bool is_cut = headers.len > kvb_max_gateway_header_bytes;
    struct kvb_proto_scan scan = kvb_proto_scan_of(
        (kvb_span){ headers.data, is_cut ? kvb_max_gateway_header_bytes : headers.len });
    struct kvb_proto_field field;

    for (size_t i = 0; i < count; i++) {
        out_values[i] = (kvb_span){ 0 };
    }
    *out_has_more = is_cut;
    while (scan.at < scan.end) {
        kvb_span key;
        kvb_span value;

        if (kvb_proto_next(&scan, &field) != KVB_OK) {
            return is_cut ? KVB_OK : KVB_BAD_INPUT; /* this header lies across the limit */
        }
        if (field.number != map_entry) {
            continue;
        }
        KVB_TRY(expect_type(&field, KVB_PROTO_BYTES));
        KVB_TRY(read_header(field.bytes, &key, &value));
        for (size_t i = 0; i < count; i++) {
            /* Of equal headers the first counts. */
            if (!out_values[i].data && kvb_span_is(key, names[i])) {
                out_values[i] = value;
            }
        }
    }
    return KVB_OK;
}

/* Finds the value of a key in a map: in field 1 of Struct and of Metadata. */
static kvb_status find_entry(kvb_span map, const char *key, kvb_span *out_value)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(map);
    struct kvb_proto_field field;
    kvb_span found = { 0 };

    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_next(&scan, &field));
        if (field.number != map_entry) {
            continue;
        }
        KVB_TRY(expect_type(&field, KVB_PROTO_BYTES));

        /* Key and value of an entry may come in either order. */
        struct kvb_proto_scan entry = kvb_proto_scan_of(field.bytes);
        struct kvb_proto_field part;
        kvb_span name = { 0 };
        kvb_span value = { .data = field.bytes.data }; /* an empty one may be left out */
        while (entry.at < entry.end) {
            KVB_TRY(kvb_proto_next(&entry, &part));
            if (part.number == entry_key || part.number == entry_value) {
                KVB_TRY(expect_type(&part, KVB_PROTO_BYTES));
                *(part.number == entry_key ? &name : &value) = part.bytes;
            }
        }
        if (kvb_span_is(name, key)) {
            found = value; /* the last one counts */
        }
    }
    if (!found.data) {
        return KVB_NOT_FOUND;
    }
    *out_value = found;
    return KVB_OK;
}

kvb_status kvb_ext_proc_metadata_find(
    kvb_span metadata, const char *space, const char *key, kvb_span *out_value)
{
    kvb_span fields;

    KVB_TRY(find_entry(metadata, space, &fields));
    return find_entry(fields, key, out_value);
}

/* Which kind a Value has, and its bytes; of the kinds that are no endpoints only the number. */
static kvb_status read_value(kvb_span value, uint32_t *out_kind, kvb_span *out_bytes)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(value);
    struct kvb_proto_field field;

    *out_kind = 0;
    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_next(&scan, &field));
        if (field.number == value_string || field.number == value_list) {
            KVB_TRY(expect_type(&field, KVB_PROTO_BYTES));
            *out_bytes = field.bytes;
        }
        /* A oneof that comes twice: the last one counts, whatever its kind. */
        if (field.number <= value_list) {
            *out_kind = field.number;
        }
    }
    return KVB_OK;
}

kvb_status kvb_endpoint_hint_of(kvb_span value, struct kvb_endpoint_hint *out_hint)
{
    struct kvb_endpoint_hint hint = { .values = kvb_proto_scan_of((kvb_span){ 0 }) };
    uint32_t kind = 0;
    kvb_span bytes = { 0 };

    KVB_TRY(read_value(value, &kind, &bytes));
    /* Any other kind names nobody, so that no endpoint is allowed. */
    if (kind == value_list) {
        hint.values = kvb_proto_scan_of(bytes);
    } else if (kind == value_string) {
        hint.text = bytes;
    }
    *out_hint = hint;
    return KVB_OK;
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t';
}

/* Takes the text up to the next comma, without blanks around it; it may be empty. */
static kvb_span take_endpoint(kvb_span *text)
{
    const uint8_t *end = text->data + text->len;
    const uint8_t *comma = memchr(text->data, ',', text->len);
    const uint8_t *first = text->data;
    const uint8_t *last = comma ? comma : end; /* behind it */

    *text = comma ? (kvb_span){ comma + 1, (size_t)(end - comma - 1) } : (kvb_span){ 0 };
    while (first < last && is_blank(*first)) {
        first++;
    }
    while (last > first && is_blank(last[-1])) {
        last--;
    }
    return (kvb_span){ first, (size_t)(last - first) };
}

kvb_status kvb_endpoint_hint_next(struct kvb_endpoint_hint *hint, kvb_span *out_endpoint)
{
    while (true) { /* ends: the text, then the list of texts, is read to its end */
        /* First what is left of the text that was read last. */
        while (hint->text.len > 0) {
            const kvb_span endpoint = take_endpoint(&hint->text);
            if (endpoint.len == 0) {
                continue;
            }
            if (hint->read == kvb_max_gateway_hint_endpoints) {
                return KVB_TOO_LARGE;
            }
            hint->read++;
            *out_endpoint = endpoint;
            return KVB_OK;
        }
        if (hint->values.at == hint->values.end) {
            return KVB_NOT_FOUND;
        }

        /* Then the next value of the list; numbers and the like are no endpoints. */
        struct kvb_proto_field field;
        uint32_t kind = 0;
        kvb_span bytes = { 0 };
        KVB_TRY(kvb_proto_next(&hint->values, &field));
        if (field.number == list_values) {
            KVB_TRY(expect_type(&field, KVB_PROTO_BYTES));
            KVB_TRY(read_value(field.bytes, &kind, &bytes));
            if (kind == value_string) {
                hint->text = bytes;
            }
        }
    }
}

/* ---- What the picker answers ----
 *
 * A message is written from its end to its beginning: when the length of a message within it is
 * due, its bytes are there. */

struct backwards {
    uint8_t *at; /* the first byte that is written; full: NULL */
    uint8_t bytes[kvb_max_gateway_answer_bytes];
};

static void put_bytes(struct backwards *out, const void *bytes, size_t len)
{
    if (!out->at || len > (size_t)(out->at - out->bytes)) {
        out->at = NULL;
        return;
    }
    out->at -= len;
    memcpy(out->at, bytes, len);
}

static void put_varint(struct backwards *out, uint64_t value)
{
    uint8_t bytes[10];

    put_bytes(out, bytes, (size_t)(kvb_proto_write_varint(bytes, value) - bytes));
}

static void put_tag(struct backwards *out, unsigned number, enum kvb_proto_type type)
{
    put_varint(out, number << 3 | (unsigned)type);
}

static void put_number_field(struct backwards *out, unsigned number, uint64_t value)
{
    put_varint(out, value);
    put_tag(out, number, KVB_PROTO_VARINT);
}

/* Turns what was written since `end` was out->at into a field. */
static void close_field(struct backwards *out, unsigned number, const uint8_t *end)
{
    if (out->at) {
        put_varint(out, (uint64_t)(end - out->at));
        put_tag(out, number, KVB_PROTO_BYTES);
    }
}

static void put_text_field(struct backwards *out, unsigned number, const char *text)
{
    const uint8_t *end = out->at;

    put_bytes(out, text, strlen(text));
    close_field(out, number, end);
}

/* set_headers: replaces what the client sent. */
static void put_header(struct backwards *out, const char *name, const char *value)
{
    const uint8_t *end = out->at;

    put_number_field(out, option_action, action_overwrite_or_add);
    const uint8_t *header_end = out->at;
    put_text_field(out, header_raw_value, value);
    put_text_field(out, header_key, name);
    close_field(out, option_header, header_end);
    close_field(out, mutation_set, end);
}

/* The end of an entry of a map that began at `end`: its value was written last. */
static void
close_entry(struct backwards *out, const char *key, const uint8_t *value_end, const uint8_t *end)
{
    close_field(out, entry_value, value_end);
    put_text_field(out, entry_key, key);
    close_field(out, map_entry, end);
}

static void put_text_entry(struct backwards *out, const char *key, const char *text)
{
    const uint8_t *end = out->at;

    put_text_field(out, value_string, text);
    close_entry(out, key, end, end);
}

static void put_number_entry(struct backwards *out, const char *key, uint64_t number)
{
    const uint8_t *end = out->at;
    const double value = (double)number;
    uint64_t bits = 0;

    /* A Value knows no integers: above 2^53 access logs show the nearest double. */
    memcpy(&bits, &value, sizeof bits);
    bits = htole64(bits);
    put_bytes(out, &bits, sizeof bits);
    put_tag(out, value_number, KVB_PROTO_FIXED64);
    close_entry(out, key, end, end);
}

/* The end of an entry whose value is a Struct: one name space of the metadata. */
static void close_space(struct backwards *out, const char *space, const uint8_t *end)
{
    close_field(out, value_struct, end);
    close_entry(out, space, end, end);
}

static void put_metadata(struct backwards *out, const struct kvb_gateway_pick *pick)
{
    const uint8_t *end = out->at;

    /* For access logs; the gateway itself reads the name space after this one. */
    if (pick->reason) {
        put_text_entry(out, "reason", pick->reason);
        put_number_entry(out, "overlap_tokens", pick->overlap_tokens);
        put_number_entry(out, "prompt_tokens", pick->prompt_tokens);
        put_number_entry(out, "rank", pick->dp_rank);
        put_number_entry(out, "worker", pick->worker_id);
        close_space(out, "kvbridge", end);
    }
    /* The gateway's load balancer reads the endpoints here or in the header. */
    const uint8_t *lb_end = out->at;
    put_text_entry(out, destination, pick->endpoints);
    close_space(out, "envoy.lb", lb_end);
    close_field(out, response_metadata, end);
}

static void put_header_mutation(struct backwards *out, const struct kvb_gateway_pick *pick)
{
    const uint8_t *end = out->at;

    /* From the last to the first: what is written last stands first.  Those to be removed are
     * another field, behind those that are set. */
    for (size_t i = pick->more_count; i > 0; i--) {
        if (!pick->more[i - 1].value) {
            put_text_field(out, mutation_remove, pick->more[i - 1].name);
        }
    }
    for (size_t i = pick->more_count; i > 0; i--) {
        if (pick->more[i - 1].value) {
            put_header(out, pick->more[i - 1].name, pick->more[i - 1].value);
        }
    }
    put_header(out, destination, pick->endpoints);
    close_field(out, common_headers, end);
}

static kvb_status append_backwards(const struct backwards *message, struct kvb_buf *out)
{
    if (!message->at) {
        return KVB_TOO_LARGE;
    }
    return kvb_buf_append(
        out, message->at, (size_t)(message->bytes + sizeof message->bytes - message->at));
}

static void start_backwards(struct backwards *out)
{
    out->at = out->bytes + sizeof out->bytes; /* not {0}: that would clear all bytes */
}

kvb_status kvb_ext_proc_pick_encode(const struct kvb_gateway_pick *pick, struct kvb_buf *out)
{
    struct backwards message;

    start_backwards(&message);
    put_metadata(&message, pick);
    /* The route may depend on the header that is set, so it is chosen anew. */
    const uint8_t *end = message.at;
    put_number_field(&message, common_clear_route_cache, 1);
    put_header_mutation(&message, pick);
    close_field(&message, part_response, end);
    close_field(&message, parts[pick->answers].in_response, end);
    return append_backwards(&message, out);
}

kvb_span kvb_ext_proc_empty_answer(enum kvb_ext_proc_part part)
{
    /* The field of the part, and in it an empty CommonResponse; of trailers the field alone. */
    static const uint8_t answers[KVB_PART_COUNT][4] = {
        [KVB_PART_REQUEST_HEADERS] = { 0x0a, 2, 0x0a, 0 },
        [KVB_PART_RESPONSE_HEADERS] = { 0x12, 2, 0x0a, 0 },
        [KVB_PART_REQUEST_BODY] = { 0x1a, 2, 0x0a, 0 },
        [KVB_PART_RESPONSE_BODY] = { 0x22, 2, 0x0a, 0 },
        [KVB_PART_REQUEST_TRAILERS] = { 0x2a, 0 },
        [KVB_PART_RESPONSE_TRAILERS] = { 0x32, 0 },
    };

    assert(part > KVB_PART_UNKNOWN && part < KVB_PART_COUNT);
    return (kvb_span){ .data = answers[part], .len = parts[part].end == 0 ? 2 : 4 };
}

static size_t field_bytes(size_t len)
{
    return 1 + kvb_proto_varint_bytes(len) + len;
}

size_t kvb_ext_proc_echo_head_write(
    enum kvb_ext_proc_part part, size_t body_bytes, bool end_of_stream,
    uint8_t out[kvb_ext_proc_echo_head_bytes])
{
    assert(parts[part].is_body && body_bytes <= kvb_max_gateway_echo_bytes);
    /* The lengths of five messages, one within the other, from the innermost out. */
    const size_t streamed =
        (end_of_stream ? 2U : 0) + (body_bytes > 0 ? field_bytes(body_bytes) : 0);
    const size_t mutation = field_bytes(streamed);
    const size_t common = field_bytes(mutation);

    uint8_t *at = kvb_proto_write_bytes_head(out, parts[part].in_response, field_bytes(common));
    at = kvb_proto_write_bytes_head(at, part_response, common);
    at = kvb_proto_write_bytes_head(at, common_body, mutation);
    at = kvb_proto_write_bytes_head(at, body_streamed, streamed);
    /* The flag stands before the bytes, against the order of the numbers, so that the bytes are
     * the message's end.  Readers of protobuf accept each order. */
    if (end_of_stream) {
        *at++ = streamed_end << 3 | KVB_PROTO_VARINT;
        *at++ = 1;
    }
    if (body_bytes > 0) {
        at = kvb_proto_write_bytes_head(at, streamed_body, body_bytes);
    }
    return (size_t)(at - out);
}

static kvb_status
write_error(unsigned http_status, const char *reason, const char *message, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_begin(&json, "error", '{');
    kvb_json_write_pair_text(&json, "message", message);
    kvb_json_write_pair_text(&json, "type", reason);
    kvb_json_write_pair_u64(&json, "code", http_status);
    kvb_json_write_end(&json, '}');
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status kvb_ext_proc_immediate_encode(
    unsigned http_status, const char *reason, const char *message, struct kvb_buf *out)
{
    static const char details[] = "kvbridge_";
    KVB_OWN(kvb_buf_done) struct kvb_buf error;
    struct backwards answer;

    kvb_buf_init(&error, kvb_max_gateway_answer_bytes);
    KVB_TRY(write_error(http_status, reason, message, &error));

    /* The body is in hand before its length is written. */
    start_backwards(&answer);
    const uint8_t *end = answer.at;
    put_bytes(&answer, reason, strlen(reason));
    put_bytes(&answer, details, strlen(details));
    close_field(&answer, immediate_details, end);
    const uint8_t *body_end = answer.at;
    put_bytes(&answer, error.data, error.len);
    close_field(&answer, immediate_body, body_end);
    const uint8_t *headers_end = answer.at;
    put_header(&answer, "content-type", "application/json");
    close_field(&answer, immediate_headers, headers_end);
    const uint8_t *status_end = answer.at;
    put_number_field(&answer, status_code, http_status);
    close_field(&answer, immediate_status, status_end);
    close_field(&answer, response_immediate, end);
    return append_backwards(&answer, out);
}

/* ---- grpc.health.v1.Health/Check ---- */

kvb_status kvb_health_request_decode(kvb_span message, kvb_span *out_service)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(message);
    struct kvb_proto_field field;
    kvb_span service = { 0 };

    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_next(&scan, &field));
        if (field.number == health_service) {
            KVB_TRY(expect_type(&field, KVB_PROTO_BYTES));
            service = field.bytes;
        }
    }
    *out_service = service;
    return KVB_OK;
}

kvb_span kvb_health_answer(bool is_serving)
{
    enum { serving = 1, not_serving = 2 };
    static const uint8_t yes[] = { 0x08, serving };
    static const uint8_t no[] = { 0x08, not_serving };

    return (kvb_span){ .data = is_serving ? yes : no, .len = sizeof yes };
}
