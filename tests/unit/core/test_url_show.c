#include "kvb_test.h"

#include "core/own.h"
#include "core/url_show.h"

#include <string.h>

static void a_url_is_shown_without_its_secrets(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        const char *shown;
    } cases[] = {
        { "http://host:8000/metrics", "http://host:8000/metrics" },
        { "http://user:secret@host:8000/metrics", "http://host:8000/metrics" },
        { "https://user:se/cr@et@host/", "https://host/" },
        { "http://host/metrics?token=secret", "http://host/metrics?..." },
        { "http://host/?key=secret@more", "http://more" },
        { "user:secret@host", "host" },
        { "secret://more@host", "host" },
        { "http://user:secret@", "http://" },
        { "", "" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char shown[kvb_url_shown_bytes];
        assert_string_equal(kvb_url_show(cases[i].url, shown, sizeof shown), cases[i].shown);
        assert_null(strstr(shown, "secret"));
    }
}

static void several_urls_are_shown_without_their_secrets(void **state)
{
    (void)state;
    static const struct {
        const char *urls;
        const char *shown;
    } cases[] = {
        { "nats://a:1,nats://b:2", "nats://a:1,nats://b:2" },
        { "nats://u:secret@a:1,tls://u:secret@b:2", "nats://a:1,tls://b:2" },
        { "nats://secret@a:1,b:2,c", "nats://a:1,b:2,c" },
        { "nats://u:secret,secret@a:1", "nats://a:1" },
        { "nats://u:secret,secret@a:1,nats://b:2", "nats://a:1,nats://b:2" },
        { "nats//u:secret@a", "a" },
        { "", "" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char shown[kvb_url_shown_bytes];
        assert_string_equal(kvb_urls_show(cases[i].urls, shown, sizeof shown), cases[i].shown);
    }
}

static void urls_that_do_not_fit_are_left_out(void **state)
{
    (void)state;
    char shown[12];

    assert_string_equal(kvb_url_show("http://host:8000/", shown, sizeof shown), "http://host");
    assert_string_equal(kvb_urls_show("nats://a:1,nats://b:2", shown, sizeof shown), "nats://a:1");
    assert_string_equal(kvb_urls_show("nats://a:1,b", shown, 11), "nats://a:1");
}

SUITE(url_show)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_url_is_shown_without_its_secrets),
        cmocka_unit_test(several_urls_are_shown_without_their_secrets),
        cmocka_unit_test(urls_that_do_not_fit_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
