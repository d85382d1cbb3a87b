#include "core/own.h"
#include "wire/query/forward.h"

#include "kvb_test.h"

#include <string.h>

static const struct kvb_forward_offer offer = { .bridge = "0123456789abcdef",
                                                .bridge_id = "host.a-7-\"x\"",
                                                .challenge = "0123456789abcdef0123456789abcdef",
                                                .ranks = 12,
                                                .held = 2 };

static kvb_status decode_offer(const char *json)
{
    struct kvb_forward_offer out;

    return kvb_forward_offer_decode(kvb_span_of(json), &out);
}

static void an_offer_arrives_as_it_was_sent(void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_forward_offer out = { .ranks = 0 };

    (void)state;
    kvb_buf_init(&buf, kvb_max_forward_bytes);
    assert_ok(kvb_forward_offer_encode(&offer, &buf));
    assert_ok(kvb_forward_offer_decode(kvb_buf_span(&buf), &out));
    assert_string_equal(out.bridge, offer.bridge);
    assert_string_equal(out.bridge_id, offer.bridge_id);
    assert_string_equal(out.challenge, offer.challenge);
    assert_int_equal(out.ranks, 12);
    assert_int_equal(out.held, 2);
}

/* The id of a bridge becomes a part of a subject. */
static void an_offer_whose_id_fits_no_subject_is_refused(void **state)
{
    static const char good[] =
        "{\"bridge\":\"0123456789abcdef\",\"bridge_id\":\"b\",\"ranks\":1,\"held\":0,"
        "\"challenge\":\"0123456789abcdef0123456789abcdef\"}";
    static const char *const bad[] = {
        "",
        "[]",
        "null",
        "{\"bridge\":\"0123456789abcde>\",\"bridge_id\":\"b\",\"ranks\":1,\"held\":0,"
        "\"challenge\":\"0123456789abcdef0123456789abcdef\"}",
        "{\"bridge\":\"0123456789abcdef0\",\"bridge_id\":\"b\",\"ranks\":1,\"held\":0,"
        "\"challenge\":\"0123456789abcdef0123456789abcdef\"}",
        "{\"bridge\":\"0123456789abcdef\",\"bridge_id\":\"b\",\"ranks\":1,\"held\":0,"
        "\"challenge\":\"0123456789abcdef\"}",
        "{\"bridge\":\"0123456789abcdef\",\"bridge_id\":\"b\",\"ranks\":-1,\"held\":0,"
        "\"challenge\":\"0123456789abcdef0123456789abcdef\"}",
        "{\"bridge\":\"0123456789abcdef\",\"ranks\":1,\"held\":0,"
        "\"challenge\":\"0123456789abcdef0123456789abcdef\"}",
    };

    (void)state;
    assert_ok(decode_offer(good));
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        if (decode_offer(bad[i]) != KVB_BAD_INPUT) {
            fail_msg("%s", bad[i]);
        }
    }
}

static void a_request_arrives_as_it_was_sent(void **state)
{
    static struct kvb_forward_request request; /* 16 KiB each */
    static struct kvb_forward_request out;
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    (void)state;
    memcpy(request.path, "/register", sizeof "/register");
    memcpy(request.challenge, offer.challenge, sizeof request.challenge);
    memcpy(request.proof, "00ff", sizeof "00ff");
    memset(request.body, '\\', kvb_max_register_bytes); /* each takes two bytes in the message */
    kvb_buf_init(&buf, kvb_max_forward_bytes);
    assert_ok(kvb_forward_request_encode(&request, &buf));
    assert_ok(kvb_forward_request_decode(kvb_buf_span(&buf), &out));
    assert_memory_equal(&out, &request, sizeof out);
    assert_int_equal(
        kvb_forward_request_decode(kvb_span_of("{\"path\":\"/register\"}"), &out), KVB_BAD_INPUT);
}

static void an_answer_arrives_as_it_was_sent(void **state)
{
    static struct kvb_forward_answer out;
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    (void)state;
    kvb_buf_init(&buf, kvb_max_forward_bytes);
    assert_ok(kvb_forward_answer_encode(409, kvb_span_of("{\"error\":\"x\"}"), &buf));
    assert_ok(kvb_forward_answer_decode(kvb_buf_span(&buf), &out));
    assert_int_equal(out.status, 409);
    assert_string_equal(out.body, "{\"error\":\"x\"}");
    assert_int_equal(
        kvb_forward_answer_decode(kvb_span_of("{\"status\":99,\"body\":\"\"}"), &out),
        KVB_BAD_INPUT);
    assert_int_equal(
        kvb_forward_answer_decode(kvb_span_of("{\"status\":600,\"body\":\"\"}"), &out),
        KVB_BAD_INPUT);
}

/* The signed text must contain everything that the bridge acts on. */
static void the_text_of_a_proof_has_bridge_challenge_path_and_body(void **state)
{
    static const struct kvb_forward_request request = { .path = "/unregister",
                                                        .challenge = "c",
                                                        .body = "{}" };
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    (void)state;
    kvb_buf_init(&buf, kvb_max_forward_bytes);
    assert_ok(kvb_forward_text("b", &request, &buf));
    assert_int_equal(buf.len, strlen("b\nc\n/unregister\n{}\n"));
    assert_memory_equal(buf.data, "b\nc\n/unregister\n{}\n", buf.len);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_offer_arrives_as_it_was_sent),
        cmocka_unit_test(an_offer_whose_id_fits_no_subject_is_refused),
        cmocka_unit_test(a_request_arrives_as_it_was_sent),
        cmocka_unit_test(an_answer_arrives_as_it_was_sent),
        cmocka_unit_test(the_text_of_a_proof_has_bridge_challenge_path_and_body),
    };

    return cmocka_run_group_tests_name("wire/forward", tests, NULL, NULL);
}
