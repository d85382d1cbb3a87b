#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/status.h"

static void formats_time_as_rfc_3339_in_utc(void **state)
{
    (void)state;
    static const struct {
        uint64_t wall_us;
        const char *expected;
    } rows[] = {
        { 0, "1970-01-01T00:00:00.000Z" },
        { 1785591845678999, "2026-08-01T13:44:05.678Z" },
        { 951782400000000, "2000-02-29T00:00:00.000Z" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char text[kvb_clock_text_bytes];
        kvb_clock_format_us(rows[i].wall_us, text);
        assert_string_equal(text, rows[i].expected);
    }
}

SUITE(clock)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_time_as_rfc_3339_in_utc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
