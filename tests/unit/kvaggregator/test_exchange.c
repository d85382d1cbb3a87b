#include "kvaggregator/doors/exchange.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "wire/protobuf/message.h"
#include "wire/vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The recorded exchanges of an Envoy with a reference picker: what Envoy sent goes in, and what
 * comes out must be what it got then, and accepted. */

#define ENDPOINT "127.0.0.1:9101"

static const struct kvb_exchange_options usual = { .assume = KVB_MODE_DUPLEX,
                                                   .affinity_header = "",
                                                   .max_body_bytes = 32 << 20 };

/* What was answered: a letter for each message, with bodies joined. */
struct transcript {
    char kinds[64]; /* H B T: the request's; h b t: the response's; I: an error.  '.' after a last
                       part of a body */
    struct kvb_buf request, response; /* the bodies that went back */
    struct kvb_buf pick;              /* the answer with the pick */
};

static void drop_transcript(struct transcript *script)
{
    kvb_buf_done(&script->request);
    kvb_buf_done(&script->response);
    kvb_buf_done(&script->pick);
}

static struct transcript new_transcript(void)
{
    struct transcript script = { .kinds = "" };

    kvb_buf_init(&script.request, 64 << 20);
    kvb_buf_init(&script.response, 64 << 20);
    kvb_buf_init(&script.pick, 64 << 10);
    return script;
}

static kvb_span field_of(kvb_span message, unsigned number, uint64_t *out_number)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(message);
    struct kvb_proto_field field;
    kvb_span found = { 0 };

    while (scan.at < scan.end) {
        assert_ok(kvb_proto_next(&scan, &field));
        if (field.number == number) {
            found = field.bytes;
            if (out_number) {
                *out_number = field.value;
            }
        }
    }
    return found;
}

/* One ProcessingResponse. */
static void note_answer(struct transcript *script, kvb_span message)
{
    static const char letters[] = "?HhBbTtI";
    struct kvb_proto_scan scan = kvb_proto_scan_of(message);
    struct kvb_proto_field field;
    char kind[3] = "";

    while (scan.at < scan.end) {
        assert_ok(kvb_proto_next(&scan, &field));
        if (field.number < 8) {
            kind[0] = letters[field.number];
            const kvb_span common = field_of(field.bytes, 1, NULL);
            const kvb_span body = field_of(common, 3, NULL);
            const kvb_span streamed = field_of(body, 3, NULL);
            uint64_t is_end = 0;
            const kvb_span bytes = field_of(streamed, 1, NULL);
            (void)field_of(streamed, 2, &is_end);
            kind[1] = is_end ? '.' : '\0';
            if (bytes.len > 0) {
                assert_true(bytes.len <= 62000);
                assert_ok(kvb_buf_append(
                    kind[0] == 'B' ? &script->request : &script->response, bytes.data, bytes.len));
            }
            if (field_of(common, 2, NULL).len > 0) {
                kvb_buf_reset(&script->pick);
                assert_ok(kvb_buf_append(&script->pick, message.data, message.len));
            }
        }
    }
    /* How a body is cut is nobody's business. */
    const size_t len = strlen(script->kinds);
    const bool is_more = len > 0 && script->kinds[len - 1] == kind[0];
    assert_true(len + 3 < sizeof script->kinds);
    (void)snprintf(
        script->kinds + len, sizeof script->kinds - len, "%s",
        is_more && (kind[0] == 'B' || kind[0] == 'b') ? kind + 1 : kind);
}

static void take_answers(struct kvb_exchange *exchange, struct transcript *script)
{
    struct kvb_exchange_answer answer;

    while (kvb_exchange_next(exchange, &answer)) {
        KVB_OWN(kvb_buf_done) struct kvb_buf whole;
        kvb_buf_init(&whole, 1 << 20);
        assert_ok(kvb_buf_append(&whole, answer.head, answer.head_len));
        if (answer.bytes.len > 0) {
            assert_ok(kvb_buf_append(&whole, answer.bytes.data, answer.bytes.len));
        }
        note_answer(script, kvb_buf_span(&whole));
        if (answer.memory) {
            kvb_buf_done(answer.memory);
        }
    }
}

static kvb_status pick(struct kvb_exchange *exchange, const char *endpoints)
{
    struct kvb_gateway_pick made = { .endpoints = endpoints };

    return kvb_exchange_picked(exchange, &made);
}

struct told {
    unsigned events; /* all that there were */
    bool has_cached;
    bool has_response_end;
    uint64_t cached_tokens;
};

/* Envoy's messages through an exchange; `expected`: what the reference answered. */
static void play(
    const char *name, const struct kvb_exchange_options *options, const char *endpoints,
    struct transcript *script, struct transcript *expected, struct told *told)
{
    struct kvb_exchange exchange = { .options = options };
    char path[96];

    (void)snprintf(path, sizeof path, "vectors/gateway/%s.hex", name);
    char *text = read_text_file(path);
    char *rest = NULL;
    *told = (struct told){ 0 };
    for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        char way = 0;
        char kind[32];
        size_t len = 0;
        int hex = 0;
        assert_int_equal(sscanf(at, "%c %31s %*u %n", &way, kind, &hex), 2);
        uint8_t *bytes = bytes_of_hex(at + hex, &len);
        if (way == '<') {
            note_answer(expected, (kvb_span){ bytes, len });
        } else {
            struct kvb_buf message;
            kvb_buf_init(&message, len);
            assert_ok(kvb_buf_append(&message, bytes, len));
            kvb_exchange_take(&exchange, &message, false);
            kvb_buf_done(&message);
            told->events |= exchange.events;
            if (exchange.events & KVB_EXCHANGE_WANTS_PICK) {
                if (endpoints) {
                    assert_ok(pick(&exchange, endpoints));
                } else {
                    assert_ok(kvb_exchange_refused(&exchange, 503, "no_endpoint", "nobody"));
                }
            }
            told->events |= exchange.events;
            exchange.events = 0;
            take_answers(&exchange, script);
        }
        free(bytes);
    }
    told->has_cached = exchange.has_cached;
    told->cached_tokens = exchange.cached_tokens;
    kvb_exchange_left(&exchange);
    told->events |= exchange.events;
    told->has_response_end = exchange.has_response_end;
    kvb_exchange_done(&exchange);
    free(text);
}

static void answers_what_envoy_accepted(void **state)
{
    static const struct {
        const char *name;
        const char *endpoints; /* of the recorded pick; NULL: there was an error */
        bool has_other_pick;   /* the recorded one is written in another way on purpose */
    } rows[] = {
        { "chat-duplex", ENDPOINT, false },
        { "chat-none", ENDPOINT, false },
        { "sse-duplex", ENDPOINT, false },
        { "sse-streamed", ENDPOINT, false },
        { "watch-first-filter", ENDPOINT, false },
        { "watch-second-filter", ENDPOINT, false },
        { "get-models", ENDPOINT, false },
        { "trailers", ENDPOINT, false },
        { "buffered", ENDPOINT, false },
        { "streamed", ENDPOINT, false },
        { "subset-hint", ENDPOINT, false },
        { "subset-none", NULL, true },
        { "list-served", "127.0.0.1:9199,127.0.0.1:9102,127.0.0.1:9101", false },
        { "client-sent-destination", ENDPOINT, false },
        { "defaults-of-append", ENDPOINT, true },
        { "abort-in-answer", ENDPOINT, false },
        { "abort-in-body", ENDPOINT, false },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct transcript script = new_transcript();
        struct transcript expected = new_transcript();
        struct told told;
        play(rows[i].name, &usual, rows[i].endpoints, &script, &expected, &told);
        if (strcmp(script.kinds, expected.kinds) != 0) {
            fail_msg("%s: %s, Envoy got %s", rows[i].name, script.kinds, expected.kinds);
        }
        assert_int_equal(script.request.len, expected.request.len);
        assert_int_equal(script.response.len, expected.response.len);
        if (script.request.len > 0) {
            assert_memory_equal(script.request.data, expected.request.data, script.request.len);
        }
        if (script.response.len > 0) {
            assert_memory_equal(script.response.data, expected.response.data, script.response.len);
        }
        /* The pick itself is the same, byte for byte, with whichever engine was recorded. */
        if (!rows[i].has_other_pick && script.pick.len == expected.pick.len &&
            script.pick.len > 0 && rows[i].endpoints) {
            uint8_t *digit = NULL;
            for (size_t at = 0; at < script.pick.len; at++) {
                digit = &script.pick.data[at];
                if (*digit != expected.pick.data[at]) {
                    assert_true(*digit >= '1' && *digit <= '2'); /* engine 1 or 2 */
                }
            }
        } else if (!rows[i].has_other_pick && rows[i].endpoints) {
            assert_int_equal(script.pick.len, expected.pick.len);
        }
        assert_false(told.events & KVB_EXCHANGE_BROKEN);
        drop_transcript(&script);
        drop_transcript(&expected);
    }
}

static void tells_first_tokens_ends_and_cached_tokens(void **state)
{
    static const struct {
        const char *name;
        unsigned events;
        bool has_cached;
    } rows[] = {
        { "chat-duplex", KVB_EXCHANGE_FIRST_TOKEN | KVB_EXCHANGE_FINISHED, true },
        { "sse-streamed", KVB_EXCHANGE_FIRST_TOKEN | KVB_EXCHANGE_FINISHED, true },
        { "watch-second-filter", KVB_EXCHANGE_FIRST_TOKEN | KVB_EXCHANGE_FINISHED, true },
        { "abort-in-answer", KVB_EXCHANGE_FIRST_TOKEN | KVB_EXCHANGE_FINISHED, false },
        /* Nothing is shown of the response, so its end is not known. */
        { "chat-none", 0, false },
        { "watch-first-filter", 0, false },
        { "list-served", KVB_EXCHANGE_FIRST_TOKEN | KVB_EXCHANGE_FINISHED | KVB_EXCHANGE_MOVED,
          false },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct transcript script = new_transcript();
        struct transcript expected = new_transcript();
        struct told told;
        const char *endpoints =
            strcmp(rows[i].name, "list-served") == 0 ? "127.0.0.1:9199,127.0.0.1:9101" : ENDPOINT;
        play(rows[i].name, &usual, endpoints, &script, &expected, &told);
        const unsigned seen =
            told.events & (KVB_EXCHANGE_FIRST_TOKEN | KVB_EXCHANGE_FINISHED | KVB_EXCHANGE_MOVED);
        /* Which of two engines was recorded as the one that served is not ours to choose. */
        if ((seen & ~(unsigned)KVB_EXCHANGE_MOVED) !=
            (rows[i].events & ~(unsigned)KVB_EXCHANGE_MOVED)) {
            fail_msg("%s: %x", rows[i].name, seen);
        }
        if (rows[i].events & KVB_EXCHANGE_MOVED) {
            assert_true(seen & KVB_EXCHANGE_MOVED);
        }
        /* What the client left has not ended. */
        assert_int_equal(
            told.has_response_end, (rows[i].events & KVB_EXCHANGE_FINISHED) &&
                                       strcmp(rows[i].name, "abort-in-answer") != 0);
        if (told.has_cached && !rows[i].has_cached) {
            fail_msg("%s has cached tokens", rows[i].name);
        }
        drop_transcript(&script);
        drop_transcript(&expected);
    }
}

static void skipping_the_response_ends_the_stream_after_the_request(void **state)
{
    struct kvb_exchange_options options = usual;
    struct transcript script = new_transcript();
    struct transcript expected = new_transcript();
    struct told told;

    (void)state;
    options.skips_response = true;
    play("close-after-request", &options, ENDPOINT, &script, &expected, &told);
    assert_string_equal(script.kinds, expected.kinds);
    assert_true(told.events & KVB_EXCHANGE_ENDS);
    drop_transcript(&script);
    drop_transcript(&expected);
}

/* ---- Bodies that are too large ---- */

static void append_field(struct kvb_buf *out, unsigned number, kvb_span bytes)
{
    uint8_t head[12];
    uint8_t *at = head;

    *at++ = (uint8_t)(number << 3 | KVB_PROTO_BYTES);
    at = kvb_proto_write_varint(at, bytes.len);
    assert_ok(kvb_buf_append(out, head, (size_t)(at - head)));
    if (bytes.len > 0) {
        assert_ok(kvb_buf_append(out, bytes.data, bytes.len));
    }
}

/* A request_body of `len` bytes. */
static struct kvb_buf body_message(const uint8_t *bytes, size_t len, bool is_end)
{
    static const uint8_t flag[] = { 0x10, 1 };
    KVB_OWN(kvb_buf_done) struct kvb_buf body;
    struct kvb_buf message;

    kvb_buf_init(&body, len + 64);
    kvb_buf_init(&message, len + 128);
    append_field(&body, 1, (kvb_span){ bytes, len });
    if (is_end) {
        assert_ok(kvb_buf_append(&body, flag, sizeof flag));
    }
    append_field(&message, 4, kvb_buf_span(&body));
    return message;
}

static struct kvb_buf headers_message(void)
{
    struct kvb_buf message;

    kvb_buf_init(&message, 64);
    append_field(&message, 2, (kvb_span){ 0 });
    return message;
}

static void give(struct kvb_exchange *exchange, struct kvb_buf message, bool is_crowded)
{
    kvb_exchange_take(exchange, &message, is_crowded);
    kvb_buf_done(&message);
}

static void a_large_body_is_passed_on_whole(void **state)
{
    enum { piece = 200000, pieces = 7 };
    struct kvb_exchange_options options = usual;
    struct kvb_exchange exchange = { .options = &options };
    struct transcript script = new_transcript();
    uint8_t *bytes = malloc(piece);

    (void)state;
    assert_non_null(bytes);
    options.max_body_bytes = (size_t)3 * piece;
    give(&exchange, headers_message(), false);
    for (int i = 0; i < pieces; i++) {
        memset(bytes, 'a' + i, piece);
        give(&exchange, body_message(bytes, piece, false), false);
        if (exchange.events & KVB_EXCHANGE_WANTS_PICK) {
            assert_int_equal(i, 3);
            assert_string_equal(exchange.by_load, "too_large");
            assert_string_equal(script.kinds, ""); /* nothing before the pick */
            assert_ok(pick(&exchange, ENDPOINT));
        }
        exchange.events = 0;
        take_answers(&exchange, &script);
    }
    assert_string_equal(script.kinds, "HB");
    give(&exchange, body_message(bytes, 0, true), false);
    take_answers(&exchange, &script);
    assert_string_equal(script.kinds, "HB.");
    assert_int_equal(exchange.state, KVB_EXCHANGE_DONE);
    assert_int_equal(script.request.len, piece * pieces);
    for (size_t i = 0; i < script.request.len; i++) {
        assert_int_equal(script.request.data[i], 'a' + i / piece);
    }
    /* A second end, as some Envoys send it, is not answered. */
    give(&exchange, body_message(bytes, 0, true), false);
    take_answers(&exchange, &script);
    assert_string_equal(script.kinds, "HB.");
    assert_true(exchange.events & KVB_EXCHANGE_AFTER_END);
    kvb_exchange_done(&exchange);
    drop_transcript(&script);
    free(bytes);
}

static void without_memory_for_bodies_it_is_passed_on(void **state)
{
    struct kvb_exchange exchange = { .options = &usual };
    struct transcript script = new_transcript();

    (void)state;
    give(&exchange, headers_message(), true);
    give(&exchange, body_message((const uint8_t *)"{\"a\":", 5, false), true);
    assert_true(exchange.events & KVB_EXCHANGE_WANTS_PICK);
    assert_string_equal(exchange.by_load, "busy");
    /* More comes before the pick does. */
    give(&exchange, body_message((const uint8_t *)"1}", 2, true), true);
    take_answers(&exchange, &script);
    assert_string_equal(script.kinds, "");
    assert_ok(pick(&exchange, ENDPOINT));
    take_answers(&exchange, &script);
    assert_string_equal(script.kinds, "HB.");
    assert_int_equal(script.request.len, 7);
    kvb_exchange_done(&exchange);
    drop_transcript(&script);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    for (long at = 0; at < 40; at++) {
        struct kvb_exchange exchange = { .options = &usual };
        struct kvb_exchange_answer answer;
        struct kvb_buf head = headers_message();
        struct kvb_buf body = body_message((const uint8_t *)"{\"a\":1}", 7, true);
        fail_alloc_after(at);
        kvb_exchange_take(&exchange, &head, false);
        kvb_exchange_take(&exchange, &body, false);
        if (exchange.events & KVB_EXCHANGE_WANTS_PICK) {
            struct kvb_gateway_pick made = { .endpoints = ENDPOINT };
            const kvb_status status = kvb_exchange_picked(&exchange, &made);
            assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        } else {
            assert_true(exchange.events & KVB_EXCHANGE_BROKEN);
        }
        fail_alloc_after(-1);
        while (kvb_exchange_next(&exchange, &answer)) {
            if (answer.memory) {
                kvb_buf_done(answer.memory);
            }
        }
        kvb_buf_done(&head);
        kvb_buf_done(&body);
        kvb_exchange_done(&exchange);
    }
}

SUITE(exchange)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_what_envoy_accepted),
        cmocka_unit_test(tells_first_tokens_ends_and_cached_tokens),
        cmocka_unit_test(skipping_the_response_ends_the_stream_after_the_request),
        cmocka_unit_test(a_large_body_is_passed_on_whole),
        cmocka_unit_test(without_memory_for_bodies_it_is_passed_on),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
