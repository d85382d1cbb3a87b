#include "kvb_test.h"

#include "core/buf.h"
#include "fail_alloc.h"

#include <string.h>

static void assert_holds(const struct kvb_buf *buf, const char *text)
{
    const kvb_span span = kvb_buf_span(buf);

    assert_int_equal(span.len, strlen(text));
    assert_memory_equal(span.data, text, span.len);
}

static void appends_bytes_text_numbers_and_formats(void **state)
{
    (void)state;
    struct kvb_buf buf;

    kvb_buf_init(&buf, 1000);
    assert_ok(kvb_buf_append(&buf, "ab", 2));
    assert_ok(kvb_buf_append(&buf, NULL, 0));
    assert_ok(kvb_buf_append_text(&buf, "cd "));
    assert_ok(kvb_buf_append_u64(&buf, 0));
    assert_ok(kvb_buf_append_text(&buf, " "));
    assert_ok(kvb_buf_append_u64(&buf, UINT64_MAX));
    assert_ok(kvb_buf_append_format(&buf, " %d-%s", -5, "x"));
    assert_holds(&buf, "abcd 0 18446744073709551615 -5-x");
    kvb_buf_done(&buf);
}

static void a_reset_keeps_the_memory(void **state)
{
    (void)state;
    struct kvb_buf buf;

    kvb_buf_init(&buf, 1000);
    assert_ok(kvb_buf_append_text(&buf, "something"));
    const uint8_t *const before = buf.data;
    kvb_buf_reset(&buf);
    assert_holds(&buf, "");
    fail_alloc_after(0);
    assert_ok(kvb_buf_append_text(&buf, "else"));
    fail_alloc_after(-1);
    assert_ptr_equal(buf.data, before);
    assert_holds(&buf, "else");
    kvb_buf_done(&buf);
}

static void refuses_what_goes_beyond_the_ceiling_and_keeps_the_rest(void **state)
{
    (void)state;
    struct kvb_buf buf;

    kvb_buf_init(&buf, 5);
    assert_ok(kvb_buf_append_text(&buf, "abc"));
    assert_int_equal(kvb_buf_append_text(&buf, "def"), KVB_TOO_LARGE);
    assert_int_equal(kvb_buf_append_u64(&buf, 123), KVB_TOO_LARGE);
    assert_int_equal(kvb_buf_append_format(&buf, "%d", 123), KVB_TOO_LARGE);
    assert_int_equal(kvb_buf_reserve(&buf, SIZE_MAX), KVB_TOO_LARGE);
    assert_holds(&buf, "abc");
    assert_ok(kvb_buf_append_text(&buf, "de"));
    assert_holds(&buf, "abcde");
    kvb_buf_done(&buf);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_buf buf;
        size_t done = 0;
        kvb_buf_init(&buf, 1 << 20);
        fail_alloc_after(n);
        status = KVB_OK;
        for (; done < 1000 && status == KVB_OK; done += status == KVB_OK) {
            status = kvb_buf_append_format(&buf, "%03zu", done);
        }
        fail_alloc_after(-1);
        assert_int_equal(buf.len, 3 * done);
        kvb_buf_done(&buf);
        assert_true(n < 100);
    }
    assert_ok(status);
}

SUITE(buf)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_bytes_text_numbers_and_formats),
        cmocka_unit_test(a_reset_keeps_the_memory),
        cmocka_unit_test(refuses_what_goes_beyond_the_ceiling_and_keeps_the_rest),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
