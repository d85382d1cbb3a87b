#include "wire/gateway/messages.h"

#include "core/limits.h"
#include "core/own.h"
#include "ext_proc.pb-c.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef ExtProc__ProcessingResponse Response; /* the names that protoc-c makes are long */

#define BYTES(text) ((kvb_span){ (const uint8_t *)(text), sizeof(text) - 1 })

/* ---- The recorded exchanges ---- */

static const char *const exchanges[] = {
    "abort-in-answer",     "abort-in-body",       "buffered",
    "chat-duplex",         "chat-none",           "client-sent-destination",
    "close-after-request", "defaults-of-append",  "get-models",
    "immediate-413-early", "immediate-429",       "list-served",
    "sse-duplex",          "sse-streamed",        "streamed",
    "subset-hint",         "subset-none",         "trailers",
    "watch-first-filter",  "watch-second-filter",
};

struct line {
    char way;
    char kind[32];
    uint8_t *bytes; /* owned */
    size_t len;
};

static kvb_span span_of(const struct line *line)
{
    return (kvb_span){ line->bytes, line->len };
}

/* Calls `check` for each message that went this way; returns how many. */
static size_t
each_message(const char *exchange, char way, void (*check)(const struct line *, const char *))
{
    char path[96];
    size_t count = 0;

    (void)snprintf(path, sizeof path, "vectors/gateway/%s.hex", exchange);
    char *text = read_text_file(path);
    char *rest = NULL;
    for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        struct line line = { 0 };
        char *hex = NULL;
        int length = 0;
        assert_int_equal(sscanf(at, "%c %31s %n", &line.way, line.kind, &length), 2);
        const size_t len = strtoul(at + length, &hex, 10);
        line.bytes = bytes_of_hex(hex + strspn(hex, " "), &line.len);
        assert_int_equal(line.len, len);
        if (line.way == way) {
            check(&line, exchange);
            count++;
        }
        free(line.bytes);
    }
    free(text);
    return count;
}

static const char *const kinds[KVB_PART_COUNT] = {
    [KVB_PART_REQUEST_HEADERS] = "request_headers",
    [KVB_PART_REQUEST_BODY] = "request_body",
    [KVB_PART_REQUEST_TRAILERS] = "request_trailers",
    [KVB_PART_RESPONSE_HEADERS] = "response_headers",
    [KVB_PART_RESPONSE_BODY] = "response_body",
    [KVB_PART_RESPONSE_TRAILERS] = "response_trailers",
};

static void check_request(const struct line *line, const char *exchange)
{
    static const char *const names[] = { ":path", ":status", "no-such-header" };
    struct kvb_ext_proc_request request = { 0 };
    kvb_span values[3];
    bool has_more = true;

    assert_ok(kvb_ext_proc_request_decode(span_of(line), &request));
    assert_string_equal(kinds[request.part], line->kind);
    assert_int_equal(request.is_observed, strcmp(exchange, "watch-second-filter") == 0);
    assert_ok(kvb_ext_proc_headers_find(request.headers, names, 3, values, &has_more));
    assert_false(has_more);
    assert_null(values[2].data);
    if (request.part == KVB_PART_REQUEST_HEADERS) {
        assert_true(kvb_span_is(
            values[0], strcmp(exchange, "get-models") == 0      ? "/v1/models"
                       : strcmp(exchange, "abort-in-body") == 0 ? "/v1/completions"
                                                                : "/v1/chat/completions"));
        assert_int_equal(request.end_of_stream, strcmp(exchange, "get-models") == 0);
        assert_int_equal(request.has_modes, !request.is_observed);
    }
    if (request.part == KVB_PART_RESPONSE_HEADERS) {
        assert_true(kvb_span_is(values[1], "200"));
    }
    if (request.part == KVB_PART_REQUEST_TRAILERS) {
        assert_true(request.end_of_stream);
    }

    /* Cut anywhere, nothing behind the end is read. */
    for (size_t len = 0; len < line->len; len++) {
        uint8_t *cut = malloc(len > 0 ? len : 1);
        assert_non_null(cut);
        memcpy(cut, line->bytes, len);
        kvb_span value;
        if (kvb_ext_proc_request_decode((kvb_span){ cut, len }, &request) == KVB_OK) {
            (void)kvb_ext_proc_headers_find(request.headers, names, 3, values, &has_more);
            (void)kvb_ext_proc_metadata_find(request.metadata, "envoy.lb", "x", &value);
        }
        free(cut);
    }
}

static void reads_all_that_envoy_sent(void **state)
{
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(exchanges); i++) {
        count += each_message(exchanges[i], '>', check_request);
    }
    assert_int_equal(count, 98);
}

/* ---- Messages of one exchange ---- */

static struct kvb_ext_proc_request read_first(const struct line *line)
{
    struct kvb_ext_proc_request request = { 0 };

    assert_ok(kvb_ext_proc_request_decode(span_of(line), &request));
    return request;
}

static void check_modes(const struct line *line, const char *exchange)
{
    static const struct {
        const char *exchange;
        enum kvb_body_mode request;
        enum kvb_body_mode response;
    } expected[] = {
        { "chat-duplex", KVB_MODE_DUPLEX, KVB_MODE_DUPLEX },
        { "chat-none", KVB_MODE_DUPLEX, KVB_MODE_NONE },
        { "buffered", KVB_MODE_BUFFERED, KVB_MODE_NONE },
        { "streamed", KVB_MODE_STREAMED, KVB_MODE_STREAMED },
    };
    const struct kvb_ext_proc_request request = read_first(line);

    for (size_t i = 0; request.part == KVB_PART_REQUEST_HEADERS && i < KVB_COUNT_OF(expected);
         i++) {
        if (strcmp(expected[i].exchange, exchange) == 0) {
            assert_int_equal(request.request_body_mode, expected[i].request);
            assert_int_equal(request.response_body_mode, expected[i].response);
        }
    }
}

static void says_how_envoy_sends_bodies(void **state)
{
    static const char *const names[] = { "chat-duplex", "chat-none", "buffered", "streamed" };
    struct kvb_ext_proc_request request = { 0 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        (void)each_message(names[i], '>', check_modes);
    }
    /* A mode of a newer Envoy; a mode that is left out is NONE. */
    assert_ok(kvb_ext_proc_request_decode(BYTES("\x5a\x02\x08\x06"), &request));
    assert_true(request.has_modes);
    assert_int_equal(request.request_body_mode, KVB_MODE_UNKNOWN);
    assert_int_equal(request.response_body_mode, KVB_MODE_NONE);
}

static void check_hint(const struct line *line, const char *exchange)
{
    const struct kvb_ext_proc_request request = read_first(line);
    struct kvb_endpoint_hint hint;
    kvb_span value;
    kvb_span endpoint;

    assert_ok(kvb_ext_proc_metadata_find(
        request.metadata, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", &value));
    assert_ok(kvb_endpoint_hint_of(value, &hint));
    assert_ok(kvb_endpoint_hint_next(&hint, &endpoint));
    assert_true(kvb_span_is(
        endpoint, strcmp(exchange, "subset-hint") == 0 ? "127.0.0.1:9102" : "127.0.0.1:9177"));
    assert_int_equal(kvb_endpoint_hint_next(&hint, &endpoint), KVB_NOT_FOUND);
}

static void check_served(const struct line *line, const char *exchange)
{
    const struct kvb_ext_proc_request request = read_first(line);
    struct kvb_endpoint_hint served;
    kvb_span value;
    kvb_span endpoint;

    (void)exchange;
    if (request.part != KVB_PART_RESPONSE_HEADERS) {
        return;
    }
    assert_ok(kvb_ext_proc_metadata_find(
        request.metadata, "envoy.lb", "x-gateway-destination-endpoint-served", &value));
    assert_ok(kvb_endpoint_hint_of(value, &served));
    assert_ok(kvb_endpoint_hint_next(&served, &endpoint));
    assert_true(kvb_span_is(endpoint, "127.0.0.1:9102"));
}

static void finds_the_hint_and_who_served(void **state)
{
    (void)state;
    assert_true(each_message("subset-hint", '>', check_hint) > 0);
    assert_true(each_message("subset-none", '>', check_hint) > 0);
    assert_true(each_message("list-served", '>', check_served) > 0);
}

/* ---- Values of hints ---- */

static void reads_no_more_endpoints_than_the_limit(void **state)
{
    enum { head = 4 };
    const size_t most = kvb_max_gateway_hint_endpoints;
    uint8_t *value = malloc(head + 2 * (most + 1));
    struct kvb_endpoint_hint hint;
    kvb_span endpoint;

    (void)state;
    assert_non_null(value);
    uint8_t *at = value;
    *at++ = 0x1a;
    at = kvb_proto_write_varint(at, 2 * (most + 1));
    for (size_t i = 0; i <= most; i++) {
        *at++ = '1';
        *at++ = ',';
    }
    assert_ok(kvb_endpoint_hint_of((kvb_span){ value, (size_t)(at - value) }, &hint));
    for (size_t i = 0; i < most; i++) {
        assert_ok(kvb_endpoint_hint_next(&hint, &endpoint));
    }
    assert_int_equal(kvb_endpoint_hint_next(&hint, &endpoint), KVB_TOO_LARGE);
    free(value);
}

static void the_last_of_equal_keys_counts(void **state)
{
    kvb_span value;
    /* {"a": {"k": 1st, "k": 2nd}}, then {"a": {"x": "y"}}, which has no k. */
    const kvb_span twice = BYTES("\x0a\x13"
                                 "\x0a\x01"
                                 "a"
                                 "\x12\x0e"
                                 "\x0a\x05\x0a\x01k\x12\x00"
                                 "\x0a\x05\x12\x00\x0a\x01k");
    const kvb_span replaced = BYTES("\x0a\x0c"
                                    "\x0a\x01"
                                    "a"
                                    "\x12\x07"
                                    "\x0a\x05\x0a\x01k\x12\x00"
                                    "\x0a\x03"
                                    "\x0a\x01"
                                    "a");

    (void)state;
    assert_ok(kvb_ext_proc_metadata_find(twice, "a", "k", &value));
    assert_int_equal(value.len, 0);
    assert_ptr_equal(value.data, twice.data + 18);
    assert_int_equal(kvb_ext_proc_metadata_find(replaced, "a", "k", &value), KVB_NOT_FOUND);
    assert_int_equal(kvb_ext_proc_metadata_find(twice, "b", "k", &value), KVB_NOT_FOUND);
    assert_int_equal(kvb_ext_proc_metadata_find(twice, "a", "", &value), KVB_NOT_FOUND);
    assert_int_equal(
        kvb_ext_proc_metadata_find(BYTES("\x08\x01"), "a", "k", &value), KVB_BAD_INPUT);
}

/* ---- Headers ---- */

static void finds_headers_by_name(void **state)
{
    static const char *const names[] = { "a", "b", "c", "d" };
    kvb_span values[4];
    bool has_more = true;

    (void)state;
    assert_ok(kvb_ext_proc_headers_find(
        BYTES("\x0a\x06\x0a\x01"
              "a\x1a\x01"
              "1" /* raw_value */
              "\x0a\x06\x0a\x01"
              "b\x12\x01"
              "2" /* value, as older Envoys */
              "\x0a\x06\x0a\x01"
              "a\x1a\x01"
              "3" /* a second one */
              "\x0a\x03\x0a\x01"
              "c"          /* no value at all */
              "\x10\x07"), /* a field that we do not know */
        names, 4, values, &has_more));
    assert_true(kvb_span_is(values[0], "1"));
    assert_true(kvb_span_is(values[1], "2"));
    assert_true(values[2].data && values[2].len == 0);
    assert_null(values[3].data);
    assert_false(has_more);
    assert_int_equal(
        kvb_ext_proc_headers_find(BYTES("\x0a\x06\x0a"), names, 4, values, &has_more),
        KVB_BAD_INPUT);
    assert_int_equal(
        kvb_ext_proc_headers_find(BYTES("\x0a\x02\x08\x01"), names, 4, values, &has_more),
        KVB_BAD_INPUT);
}

static void headers_beyond_the_limit_are_not_read(void **state)
{
    static const char *const names[] = { "a", "b" };
    const kvb_span one = BYTES("\x0a\x06\x0a\x01"
                               "a\x1a\x01"
                               "1");
    const kvb_span last = BYTES("\x0a\x06\x0a\x01"
                                "b\x1a\x01"
                                "2");
    const size_t filler = kvb_max_gateway_header_bytes - one.len - 4; /* a header without a name */
    uint8_t *headers = calloc(1, kvb_max_gateway_header_bytes + last.len);
    kvb_span values[2];
    bool has_more = false;

    (void)state;
    assert_non_null(headers);
    memcpy(headers, one.data, one.len);
    headers[one.len] = 0x12; /* a field that we do not know */
    assert_ptr_equal(kvb_proto_write_varint(headers + one.len + 1, filler), headers + one.len + 4);
    memcpy(headers + kvb_max_gateway_header_bytes, last.data, last.len);

    assert_ok(kvb_ext_proc_headers_find(
        (kvb_span){ headers, kvb_max_gateway_header_bytes }, names, 2, values, &has_more));
    assert_false(has_more);
    assert_ok(kvb_ext_proc_headers_find(
        (kvb_span){ headers, kvb_max_gateway_header_bytes + last.len }, names, 2, values,
        &has_more));
    assert_true(has_more);
    assert_true(kvb_span_is(values[0], "1"));
    assert_null(values[1].data);
    /* A header across the limit is not an error. */
    headers[one.len + 1]++;
    assert_ok(kvb_ext_proc_headers_find(
        (kvb_span){ headers, kvb_max_gateway_header_bytes + last.len }, names, 2, values,
        &has_more));
    assert_true(kvb_span_is(values[0], "1"));
    free(headers);
}

/* ---- What is refused, and what is skipped ---- */

static void skips_fields_of_newer_envoys(void **state)
{
    struct kvb_ext_proc_request request = { 0 };

    (void)state;
    assert_ok(kvb_ext_proc_request_decode(
        BYTES("\xa2\x06\x03"
              "abc"
              "\x22\x0a\x0a\x01x\x10\x01\x22\x01z\x28\x05"
              "\x50\x00"),
        &request));
    assert_int_equal(request.part, KVB_PART_REQUEST_BODY);
    assert_true(kvb_span_is(request.body, "x"));
    assert_true(request.end_of_stream);
    assert_false(request.is_observed);
    assert_ok(kvb_ext_proc_request_decode(BYTES("\xa2\x06\x00"), &request));
    assert_int_equal(request.part, KVB_PART_UNKNOWN);
}

/* ---- Answers ---- */

static Response *unpack(kvb_span message)
{
    Response *response = ext_proc__processing_response__unpack(NULL, message.len, message.data);

    assert_non_null(response);
    return response;
}

static void drop_response(Response *response)
{
    ext_proc__processing_response__free_unpacked(response, NULL);
}

static enum kvb_ext_proc_part part_of(const char *kind)
{
    unsigned part = 1;

    while (part < KVB_PART_COUNT && strcmp(kinds[part], kind) != 0) {
        part++;
    }
    return (enum kvb_ext_proc_part)part;
}

/* The pick that stands in a recorded answer, written by us. */
static void check_pick(const struct line *line, const ExtProc__CommonResponse *common)
{
    const ExtProc__HeaderValue *header = common->header_mutation->set_headers[0]->header;
    char *endpoints = strndup((const char *)header->raw_value.data, header->raw_value.len);
    const struct kvb_gateway_pick pick = { .answers = part_of(line->kind), .endpoints = endpoints };
    struct kvb_buf out;

    kvb_buf_init(&out, 4096);
    assert_ok(kvb_ext_proc_pick_encode(&pick, &out));
    assert_int_equal(out.len, line->len);
    assert_memory_equal(out.data, line->bytes, out.len);
    kvb_buf_done(&out);
    free(endpoints);
}

/* A body that stands in a recorded answer, written by us: the same message.  protobuf-c writes it
 * in the order of the numbers, as the recorded one is. */
static void check_echo(const struct line *line, const ExtProc__StreamedBodyResponse *streamed)
{
    uint8_t message[4096];
    const size_t head = kvb_ext_proc_echo_head_write(
        part_of(line->kind), streamed->body.len, streamed->end_of_stream, message);

    assert_true(head <= kvb_ext_proc_echo_head_bytes);
    if (streamed->body.len > 0) { /* an empty one has no bytes to point at */
        memcpy(message + head, streamed->body.data, streamed->body.len);
    }
    Response *again = unpack((kvb_span){ message, head + streamed->body.len });
    assert_int_equal(ext_proc__processing_response__get_packed_size(again), line->len);
    uint8_t packed[4096];
    assert_int_equal(ext_proc__processing_response__pack(again, packed), line->len);
    assert_memory_equal(packed, line->bytes, line->len);
    drop_response(again);
}

static void check_answer(const struct line *line, const char *exchange)
{
    Response *response = unpack(span_of(line));
    const bool is_body =
        response->response_case == EXT_PROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_BODY ||
        response->response_case == EXT_PROC__PROCESSING_RESPONSE__RESPONSE_RESPONSE_BODY;
    const bool is_headers =
        response->response_case == EXT_PROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_HEADERS;
    /* The members of the oneof have the same form as far as they are used here. */
    const ExtProc__CommonResponse *common = is_body      ? response->request_body->response
                                            : is_headers ? response->request_headers->response
                                                         : NULL;

    if (response->response_case == EXT_PROC__PROCESSING_RESPONSE__RESPONSE_IMMEDIATE_RESPONSE) {
        assert_memory_equal(exchange, "immediate", 9);
    } else if (common && common->header_mutation) {
        if (strcmp(exchange, "defaults-of-append") != 0) { /* we always write append_action */
            check_pick(line, common);
        }
    } else if (common && common->body_mutation) {
        check_echo(line, common->body_mutation->streamed_response);
    } else {
        const kvb_span empty = kvb_ext_proc_empty_answer(part_of(line->kind));
        assert_int_equal(empty.len, line->len);
        assert_memory_equal(empty.data, line->bytes, empty.len);
    }
    drop_response(response);
}

static void writes_the_answers_that_envoy_accepted(void **state)
{
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(exchanges); i++) {
        if (strcmp(exchanges[i], "subset-none") != 0) { /* the 503 is an immediate one */
            count += each_message(exchanges[i], '<', check_answer);
        }
    }
    assert_true(count > 60);
}

static double number_of(const ExtProc__Struct *fields, const char *key)
{
    for (size_t i = 0; i < fields->n_fields; i++) {
        if (strcmp(fields->fields[i]->key, key) == 0) {
            assert_int_equal(
                fields->fields[i]->value->kind_case, EXT_PROC__VALUE__KIND_NUMBER_VALUE);
            return fields->fields[i]->value->number_value;
        }
    }
    fail_msg("no %s", key);
    return -1;
}

static void a_pick_says_its_figures_and_further_headers(void **state)
{
    static const struct kvb_gateway_header more[] = {
        { .name = "x-data-parallel-rank", .value = "3" },
        { .name = "x-prefiller-host-port" },
    };
    const struct kvb_gateway_pick pick = {
        .answers = KVB_PART_REQUEST_BODY,
        .endpoints = "[fd00::1]:8000,10.0.0.2:8000",
        .more = more,
        .more_count = 2,
        .worker_id = 7,
        .dp_rank = 3,
        .prompt_tokens = 100000,
        .overlap_tokens = 99968,
        .reason = "tokens",
    };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    (void)state;
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_ext_proc_pick_encode(&pick, &out));
    Response *response = unpack(kvb_buf_span(&out));
    assert_int_equal(response->response_case, EXT_PROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_BODY);
    const ExtProc__CommonResponse *common = response->request_body->response;
    assert_true(common->clear_route_cache);
    const ExtProc__HeaderMutation *headers = common->header_mutation;
    assert_int_equal(headers->n_set_headers, 2);
    assert_string_equal(headers->set_headers[0]->header->key, "x-gateway-destination-endpoint");
    assert_string_equal(headers->set_headers[1]->header->key, "x-data-parallel-rank");
    assert_int_equal(headers->set_headers[1]->header->raw_value.len, 1);
    assert_int_equal(
        headers->set_headers[1]->append_action,
        EXT_PROC__HEADER_VALUE_OPTION__ACTION__OVERWRITE_IF_EXISTS_OR_ADD);
    assert_int_equal(headers->n_remove_headers, 1);
    assert_string_equal(headers->remove_headers[0], "x-prefiller-host-port");

    const ExtProc__Struct *metadata = response->dynamic_metadata;
    assert_int_equal(metadata->n_fields, 2);
    assert_string_equal(metadata->fields[0]->key, "envoy.lb");
    assert_string_equal(
        metadata->fields[0]->value->struct_value->fields[0]->value->string_value, pick.endpoints);
    assert_string_equal(metadata->fields[1]->key, "kvbridge");
    const ExtProc__Struct *figures = metadata->fields[1]->value->struct_value;
    assert_true(number_of(figures, "worker") == 7 && number_of(figures, "rank") == 3);
    assert_true(number_of(figures, "prompt_tokens") == 100000);
    assert_true(number_of(figures, "overlap_tokens") == 99968);
    assert_string_equal(figures->fields[4]->key, "reason");
    assert_string_equal(figures->fields[4]->value->string_value, "tokens");
    drop_response(response);
}

static void a_body_goes_back_in_messages_of_any_size(void **state)
{
    static const size_t sizes[] = { 0, 1, 127, 128, 16383, 16384, kvb_max_gateway_echo_bytes };
    uint8_t *message = calloc(1, kvb_ext_proc_echo_head_bytes + kvb_max_gateway_echo_bytes);

    (void)state;
    assert_non_null(message);
    for (size_t i = 0; i < 2 * KVB_COUNT_OF(sizes); i++) {
        const size_t size = sizes[i / 2];
        const bool is_last = i % 2;
        const size_t head =
            kvb_ext_proc_echo_head_write(KVB_PART_RESPONSE_BODY, size, is_last, message);
        assert_true(head <= kvb_ext_proc_echo_head_bytes);
        Response *response = unpack((kvb_span){ message, head + size });
        const ExtProc__BodyMutation *body = response->response_body->response->body_mutation;
        assert_int_equal(body->mutation_case, EXT_PROC__BODY_MUTATION__MUTATION_STREAMED_RESPONSE);
        assert_int_equal(body->streamed_response->body.len, size);
        assert_int_equal(body->streamed_response->end_of_stream, is_last);
        drop_response(response);
    }
    free(message);
}

static void an_error_is_what_clients_of_openai_read(void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    (void)state;
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_ext_proc_immediate_encode(503, "no_endpoint", "no \"engine\" is ready", &out));
    Response *response = unpack(kvb_buf_span(&out));
    const ExtProc__ImmediateResponse *answer = response->immediate_response;
    const char *body = "{\"error\":{\"message\":\"no \\\"engine\\\" is ready\",\"type\":"
                       "\"no_endpoint\",\"code\":503}}";
    assert_int_equal(answer->status->code, 503);
    assert_string_equal(answer->details, "kvbridge_no_endpoint");
    assert_int_equal(answer->body.len, strlen(body));
    assert_memory_equal(answer->body.data, body, answer->body.len);
    assert_int_equal(answer->headers->n_set_headers, 1);
    assert_string_equal(answer->headers->set_headers[0]->header->key, "content-type");
    drop_response(response);
}

static void what_does_not_fit_is_refused_and_appends_nothing(void **state)
{
    char endpoints[3000];
    const struct kvb_gateway_pick pick = { .answers = KVB_PART_REQUEST_HEADERS,
                                           .endpoints = endpoints };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    (void)state;
    memset(endpoints, 'a', sizeof endpoints - 1);
    endpoints[sizeof endpoints - 1] = '\0';
    kvb_buf_init(&out, 1 << 20);
    assert_int_equal(kvb_ext_proc_pick_encode(&pick, &out), KVB_TOO_LARGE);
    assert_int_equal(out.len, 0);
    endpoints[kvb_max_gateway_answer_bytes / 2 - 100] = '\0'; /* it stands there twice */
    assert_ok(kvb_ext_proc_pick_encode(&pick, &out));
}

static void survives_the_failure_of_each_allocation(void **state)
{
    const struct kvb_gateway_pick pick = { .answers = KVB_PART_REQUEST_HEADERS,
                                           .endpoints = "10.0.0.1:8000" };
    struct kvb_buf out;
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long n = 0; status != KVB_OK; n++) {
        kvb_buf_init(&out, 4096);
        fail_alloc_after(n);
        status = kvb_ext_proc_pick_encode(&pick, &out);
        if (status == KVB_OK) {
            status = kvb_ext_proc_immediate_encode(503, "no_endpoint", "none", &out);
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_buf_done(&out);
    }
}

/* ---- Health ---- */

static void health_is_said_in_two_bytes(void **state)
{
    (void)state;
    assert_true(kvb_span_is(kvb_health_answer(true), "\x08\x01"));
    assert_true(kvb_span_is(kvb_health_answer(false), "\x08\x02"));
}

SUITE(gateway_messages)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(health_is_said_in_two_bytes),
        cmocka_unit_test(reads_all_that_envoy_sent),
        cmocka_unit_test(says_how_envoy_sends_bodies),
        cmocka_unit_test(finds_the_hint_and_who_served),
        cmocka_unit_test(reads_no_more_endpoints_than_the_limit),
        cmocka_unit_test(the_last_of_equal_keys_counts),
        cmocka_unit_test(finds_headers_by_name),
        cmocka_unit_test(headers_beyond_the_limit_are_not_read),
        cmocka_unit_test(skips_fields_of_newer_envoys),
        cmocka_unit_test(writes_the_answers_that_envoy_accepted),
        cmocka_unit_test(a_pick_says_its_figures_and_further_headers),
        cmocka_unit_test(a_body_goes_back_in_messages_of_any_size),
        cmocka_unit_test(an_error_is_what_clients_of_openai_read),
        cmocka_unit_test(what_does_not_fit_is_refused_and_appends_nothing),
        cmocka_unit_test(survives_the_failure_of_each_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
