#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/query/refresh.h"

#include <string.h>

static kvb_status
decode(const char *json, struct kvb_refresh_request *request, struct kvb_detail *why)
{
    return kvb_refresh_json_decode(
        (kvb_span){ .data = (const uint8_t *)json, .len = strlen(json) }, request, why);
}

static void a_request_names_the_streams(void **state)
{
    (void)state;
    const struct {
        const char *json;
        struct kvb_refresh_request request;
    } cases[] = {
        { "", { 0 } },
        { " {} ", { 0 } },
        { "{\"worker_id\":null,\"dp_rank\":null,\"else\":[1,{}]}", { 0 } },
        { "{\"worker_id\":7}", { .has_worker_id = true, .worker_id = 7 } },
        { "{\"dp_rank\":4294967295,\"worker_id\":18446744073709551615}",
          { .has_worker_id = true,
            .has_rank = true,
            .worker_id = UINT64_MAX,
            .dp_rank = UINT32_MAX } },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_refresh_request request = { 0 };
        struct kvb_detail why = { "" };
        assert_ok(decode(cases[i].json, &request, &why));
        assert_int_equal(request.has_worker_id, cases[i].request.has_worker_id);
        assert_int_equal(request.has_rank, cases[i].request.has_rank);
        assert_true(request.worker_id == cases[i].request.worker_id);
        assert_int_equal(request.dp_rank, cases[i].request.dp_rank);
    }
}

static void any_other_body_is_refused_with_a_reason(void **state)
{
    (void)state;
    static const char *const cases[] = {
        " ",
        "now",
        "[]",
        "7",
        "{\"worker_id\":7}x",
        "{\"worker_id\":-7}",
        "{\"worker_id\":\"7\"}",
        "{\"worker_id\":7,\"worker_id\":8}",
        "{\"worker_id\":18446744073709551616}",
        "{\"worker_id\":7,\"dp_rank\":4294967296}",
        "{\"dp_rank\":0}",
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_refresh_request request = { .worker_id = 99 };
        struct kvb_detail why = { "" };
        assert_int_equal(decode(cases[i], &request, &why), KVB_BAD_INPUT);
        assert_true(request.worker_id == 99);
        assert_true(strlen(why.text) > 0);
    }
}

static void a_long_body_is_not_read(void **state)
{
    (void)state;
    char body[kvb_max_refresh_request_bytes + 2];
    struct kvb_refresh_request request = { 0 };
    struct kvb_detail why = { "" };

    memset(body, ' ', sizeof body);
    memcpy(body, "{}", 2);
    body[sizeof body - 1] = '\0';
    assert_int_equal(decode(body, &request, &why), KVB_TOO_LARGE);
    body[sizeof body - 2] = '\0';
    assert_ok(decode(body, &request, &why));
}

SUITE(refresh_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_names_the_streams),
        cmocka_unit_test(any_other_body_is_refused_with_a_reason),
        cmocka_unit_test(a_long_body_is_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
