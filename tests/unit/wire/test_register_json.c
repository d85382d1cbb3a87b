#include "kvb_test.h"

#include "fail_alloc.h"
#include "wire/query/registration.h"

#include <string.h>

static struct kvb_registration read_good(const char *text)
{
    struct kvb_registration who = { 0 };
    struct kvb_detail why = { "" };

    const kvb_status status = kvb_register_json_decode(kvb_span_of(text), &who, &why);
    assert_string_equal(why.text, "");
    assert_ok(status);
    return who;
}

static void read_bad(const char *text, kvb_status expected, const char *sentence)
{
    struct kvb_registration who = { .dp_rank = 77 };
    struct kvb_detail why = { "" };

    assert_int_equal(kvb_register_json_decode(kvb_span_of(text), &who, &why), expected);
    assert_non_null(strstr(why.text, sentence));
    assert_int_equal(who.dp_rank, 77); /* stays as it was */
}

/* As recorded from ai-dynamo-runtime 1.6.1. */
static void reads_the_body_that_dynamo_sends(void **state)
{
    const struct kvb_registration who = read_good(
        "{\"instance_id\":2,\"endpoint\":\"tcp://127.0.0.1:35854\",\"model_name\":\"m\","
        "\"block_size\":16,\"dp_rank\":1,\"tenant_id\":\"default\",\"replay_endpoint\":null}");

    (void)state;
    assert_true(who.has_worker_id && !who.is_instance_text);
    assert_int_equal(who.worker_id, 2);
    assert_string_equal(who.instance, "2");
    assert_string_equal(who.endpoint, "tcp://127.0.0.1:35854");
    assert_string_equal(who.replay_endpoint, "");
    assert_string_equal(who.model, "m");
    assert_int_equal(who.block_size, 16);
    assert_true(who.has_rank);
    assert_int_equal(who.dp_rank, 1);
}

static void reads_the_published_facts_of_the_worker(void **state)
{
#define REGISTERED "{\"endpoint\":\"tcp://h:1\",\"model\":\"m\",\"block_size\":16,"
    struct kvb_registration who =
        read_good(REGISTERED "\"address\":\"http://10.0.0.7:8000\",\"role\":\"decode\","
                             "\"tokenize\":\"http://10.0.0.7:8001\","
                             "\"labels\":{\"zone\":\"b\",\"role\":\"decode\"}}");

    (void)state;
    assert_string_equal(who.facts.address, "http://10.0.0.7:8000");
    assert_string_equal(who.facts.tokenize, "http://10.0.0.7:8001");
    assert_int_equal(who.facts.role, KVB_ROLE_DECODE);
    assert_int_equal(who.facts.labels.count, 2);
    who = read_good(REGISTERED "\"labels\":{\"address\":\"h:8000\",\"role\":\"both\"}}");
    assert_string_equal(who.facts.address, "h:8000");
    assert_int_equal(who.facts.role, KVB_ROLE_BOTH);
    read_bad(
        REGISTERED "\"role\":\"router\"}", KVB_NOT_FOUND, "role: expected prefill, decode or both");
    read_bad(
        REGISTERED "\"role\":\"both\",\"labels\":{\"role\":\"decode\"}}", KVB_NOT_FOUND,
        "role: differs from labels.role");
    read_bad(
        REGISTERED "\"tokenize\":\"h:8001\"}", KVB_NOT_FOUND,
        "tokenize: expected http://host:port");
    read_bad(
        REGISTERED "\"address\":7}", KVB_NOT_FOUND, "address: expected a string of at most 255");
#undef REGISTERED
}

/* As in the API documentation of conductor-ctrl. */
static void reads_the_body_that_mooncake_sends(void **state)
{
    const struct kvb_registration who = read_good(
        "{\"endpoint\":\"tcp://192.168.1.100:5555\","
        "\"replay_endpoint\":\"tcp://192.168.1.100:5556\",\"type\":\"vLLM\","
        "\"modelname\":\"llama-2-7b\",\"lora_name\":\"sql\",\"instance_id\":\"instance-2\","
        "\"block_size\":16,\"dp_rank\":0,\"additionalsalt\":null}");

    (void)state;
    assert_string_equal(who.instance, "instance-2");
    assert_true(who.is_instance_text && who.has_worker_id);
    /* XXH3-64 of "instance-2", below 2^53. The value must never change. */
    assert_true(who.worker_id == UINT64_C(4808767801084202));
    assert_string_equal(who.replay_endpoint, "tcp://192.168.1.100:5556");
    assert_string_equal(who.model, "llama-2-7b");
    assert_string_equal(who.lora, "sql");
}

#define BODY(more) "{\"endpoint\":\"tcp://h:1\",\"model\":\"m\",\"block_size\":16" more "}"

static void an_id_may_be_digits_in_quotes_or_missing(void **state)
{
    const struct kvb_registration digits =
        read_good(BODY(",\"instance_id\":\"9223372036854775807\""));
    const struct kvb_registration none = read_good(BODY(",\"topic\":\"kv\""));

    (void)state;
    assert_true(digits.worker_id == INT64_MAX);
    assert_false(none.has_worker_id);
    assert_false(none.has_rank);
    assert_string_equal(none.topic, "kv");
    assert_int_equal(none.speculative_drop, KVB_DROP_DETECT);
    assert_int_equal(read_good(BODY(",\"speculative_drop\":0")).speculative_drop, 0);
    assert_int_equal(read_good(BODY(",\"speculative_drop\":1")).speculative_drop, 1);
}

static void names_the_field_that_is_wrong(void **state)
{
    (void)state;
    read_bad("{", KVB_BAD_INPUT, "body: no JSON");
    read_bad("[1]", KVB_NOT_FOUND, "body: expected an object");
    read_bad("null", KVB_NOT_FOUND, "body: expected an object");
    read_bad("{}", KVB_NOT_FOUND, "missing field `endpoint`");
    read_bad("{\"endpoint\":\"\"}", KVB_NOT_FOUND, "endpoint: is empty");
    read_bad("{\"endpoint\":\"tcp://h:1\"}", KVB_NOT_FOUND, "missing field `model_name`");
    read_bad(
        "{\"endpoint\":\"tcp://h:1\",\"model\":\"m\"}", KVB_NOT_FOUND,
        "missing field `block_size`");
    read_bad("{\"endpoint\":5}", KVB_NOT_FOUND, "endpoint: expected a string of at most 255");
    read_bad("{\"endpoint\":\"a\\u0000b\"}", KVB_NOT_FOUND, "endpoint: expected a string");
    read_bad("{\"endpoint\":\"a\\nb\"}", KVB_NOT_FOUND, "endpoint: expected a string");
    read_bad(/* the letter E with an accent, two bytes in UTF-8 */
             "{\"endpoint\":\"\xc1\x85\"}", KVB_NOT_FOUND, "endpoint: expected a string");
    read_bad(
        "{\"endpoint\":\"tcp://h:1\",\"model\":\"m\",\"block_size\":0}", KVB_NOT_FOUND,
        "block_size: expected a whole number from 1 to 65536");
    read_bad(
        BODY(",\"dp_rank\":128"), KVB_NOT_FOUND, "dp_rank: expected a whole number from 0 to 127");
    read_bad(BODY(",\"dp_rank\":-1"), KVB_NOT_FOUND, "dp_rank: expected");
    read_bad(
        BODY(",\"speculative_drop\":65"), KVB_NOT_FOUND,
        "speculative_drop: expected a whole number from 0 to 64");
    read_bad(BODY(",\"dp_rank\":1.5"), KVB_NOT_FOUND, "dp_rank: expected");
    read_bad(BODY(",\"instance_id\":9223372036854775808"), KVB_NOT_FOUND, "instance_id: expected");
    read_bad(
        BODY(",\"instance_id\":99999999999999999999999"), KVB_NOT_FOUND, "instance_id: expected");
    read_bad(BODY(",\"instance_id\":\"\""), KVB_NOT_FOUND, "instance_id: is empty");
}

/* Ignoring these fields would list blocks that do not exist, or that belong to another tenant. */
static void refuses_what_it_cannot_honour(void **state)
{
    (void)state;
    read_bad(BODY(",\"additional_salt\":\"s\""), KVB_NOT_FOUND, "additional_salt: a salt");
    read_bad(BODY(",\"additionalsalt\":\"s\""), KVB_NOT_FOUND, "additionalsalt: a salt");
    read_bad(BODY(",\"tenant_id\":\"other\""), KVB_NOT_FOUND, "tenant_id: only \"default\"");
}

static void refuses_a_body_that_is_too_large_or_deep(void **state)
{
    static char large[(1 << 14) + 8];

    (void)state;
    memset(large, ' ', sizeof large - 1);
    read_bad(large, KVB_TOO_LARGE, "body: at most 16384 bytes");
    read_bad(BODY(",\"x\":[[[[[[[[[[1]]]]]]]]]]"), KVB_TOO_LARGE, "8 levels");
}

static void an_unregistration_needs_only_the_id(void **state)
{
    struct kvb_registration who = { 0 };
    struct kvb_detail why = { "" };

    (void)state;
    assert_ok(kvb_unregister_json_decode(
        kvb_span_of("{\"type\":\"vLLM\",\"modelname\":\"m\",\"instance_id\":\"7\",\"dp_rank\":3}"),
        &who, &why));
    assert_int_equal(who.worker_id, 7);
    assert_true(who.has_rank && who.dp_rank == 3);
    assert_string_equal(who.model, "m");
    assert_ok(kvb_unregister_json_decode(kvb_span_of("{\"instance_id\":7}"), &who, &why));
    assert_false(who.has_rank);
    assert_string_equal(who.model, "");
    assert_int_equal(
        kvb_unregister_json_decode(kvb_span_of("{\"dp_rank\":3}"), &who, &why), KVB_NOT_FOUND);
    assert_string_equal(why.text, "missing field `instance_id`");
}

static void survives_every_allocation_that_fails(void **state)
{
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long n = 0; status != KVB_OK; n++) {
        struct kvb_registration who = { .dp_rank = 77 };
        fail_alloc_after(n);
        status = kvb_register_json_decode(kvb_span_of(BODY("")), &who, NULL);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || (status == KVB_NO_MEMORY && who.dp_rank == 77));
        assert_true(n < 100);
    }
}

SUITE(register_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_body_that_dynamo_sends),
        cmocka_unit_test(reads_the_published_facts_of_the_worker),
        cmocka_unit_test(reads_the_body_that_mooncake_sends),
        cmocka_unit_test(an_id_may_be_digits_in_quotes_or_missing),
        cmocka_unit_test(names_the_field_that_is_wrong),
        cmocka_unit_test(refuses_what_it_cannot_honour),
        cmocka_unit_test(refuses_a_body_that_is_too_large_or_deep),
        cmocka_unit_test(an_unregistration_needs_only_the_id),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
