#include "config_text.h"
#include "core/own.h"

#include <stdio.h>
#include <string.h>

/* Warnings of --check about settings that readers of P.kv_events cannot follow. */

#define RANKS(ids) "{ " ids " model = \"m\"; block_size = 16; ranks = 2; events = \"tcp://h:1\"; }"

static struct kvb_conf_errors read_warned(const char *text)
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { 0 };

    config_file_write(&file, text, strlen(text));
    assert_ok(kvb_bridge_config_read(file.path, &config, &errors));
    kvb_bridge_config_done(&config);
    config_file_remove(&file);
    return errors;
}

static void warns_of_ranks_that_share_an_id_if_readers_may_ignore_ranks(void **state)
{
    (void)state;
    const struct kvb_conf_errors shared =
        read_warned(PUBLISH "workers = (\n" RANKS("id = 7;") ");");
    const struct kvb_conf_errors own =
        read_warned(PUBLISH "workers = (" RANKS("ids = (7, 8);") ");");

    assert_int_equal(shared.warning_count, 1);
    assert_non_null(
        strstr(shared.warnings[0].text, ":3: warning: workers[0].id: 2 ranks share it"));
    assert_int_equal(own.warning_count, 0);
    assert_int_equal(
        read_warned(
            "publish = { namespace = \"n\"; component = \"c\"; formats = [\"protobuf\"]; };\n"
            "workers = (" RANKS("id = 7;") ");")
            .warning_count,
        0);
}

#define TIERS(more) "publish = { namespace = \"n\"; component = \"c\"; " more " };\n"

static void all_tiers_are_published_to_readers_that_know_them(void **state)
{
    (void)state;
    const unsigned window = 1U << KVB_LIST_WINDOW;
    const unsigned all = (1U << KVB_LIST_COUNT) - 1;
    static const struct {
        const char *publish;
        bool is_all;
    } rows[] = {
        { TIERS(""), false },
        { TIERS("tiers = \"device\";"), false },
        { TIERS("tiers = \"all\";"), true },
        { TIERS("formats = [\"protobuf\"];"), true },
        { TIERS("formats = [\"protobuf\"]; tiers = \"device\";"), true },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char text[256];
        (void)snprintf(
            text, sizeof text, "%sworkers = (" WORKER("1", "events = \"tcp://h:1\";") ");",
            rows[i].publish);
        struct kvb_bridge_config config = read_good(text);
        assert_int_equal(
            kvb_published_lists(&config), rows[i].is_all ? all : window | 1U << KVB_TIER_DEVICE);
        kvb_bridge_config_done(&config);
    }
}

static void warns_of_a_store_of_which_json_publishes_nothing(void **state)
{
    static const struct {
        const char *publish;
        bool is_warned;
    } rows[] = {
        { TIERS(""), true },
        { TIERS("tiers = \"all\";"), false },
        { TIERS("formats = [\"protobuf\"];"), false },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "%sworkers = (" WORKER("1", "events = \"tcp://h:1\"; store = true;") ");",
            rows[i].publish);
        const struct kvb_conf_errors errors = read_warned(text);
        assert_int_equal(errors.warning_count, rows[i].is_warned);
        assert_true(
            !rows[i].is_warned ||
            strstr(
                errors.warnings[0].text, ":2: warning: workers[0].store: nothing of this store"));
    }
}

#define REFRESHED(more)                                                                            \
    "publish = { namespace = \"n\"; component = \"c\";\n" more " };\n"                             \
    "workers = (" WORKER("1", "events = \"tcp://h:1\";") ");"

static void warns_of_a_refresh_that_has_no_effect(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *warning; /* NULL: no warning */
    } cases[] = {
        { REFRESHED("refresh_s = 5;"), NULL },
        { REFRESHED("formats = [\"protobuf\"];"), NULL },
        { REFRESHED("refresh_s = 0; formats = [\"protobuf\"];"), NULL },
        { REFRESHED("refresh_s = 5; formats = [\"protobuf\"];"),
          "without \"json\" in publish.formats" },
        { REFRESHED("refresh_s = 5; reannounce = \"never\";"), "with publish.reannounce" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        const struct kvb_conf_errors errors = read_warned(cases[i].text);
        assert_int_equal(errors.warning_count, cases[i].warning != NULL);
        assert_true(
            !cases[i].warning ||
            (strstr(errors.warnings[0].text, ":2: warning: publish.refresh_s: has no effect") &&
             strstr(errors.warnings[0].text, cases[i].warning)));
    }
}

static void refresh_needs_json_and_reannouncement(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t refresh_s;
        bool refreshes;
    } cases[] = {
        { REFRESHED("refresh_s = 5;"), 5, true },
        { REFRESHED("refresh_s = 0;"), 0, true },
        { REFRESHED("reannounce = \"on_loss\";"), 60, true },
        { REFRESHED("reannounce = \"never\";"), 0, false },
        { REFRESHED("formats = [\"protobuf\"]; reannounce = \"on_loss\";"), 0, false },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_bridge_config config = read_good(cases[i].text);
        assert_int_equal(config.publish.refresh_s, cases[i].refresh_s);
        assert_int_equal(kvb_bridge_config_refreshes(&config), cases[i].refreshes);
        kvb_bridge_config_done(&config);
    }
}

SUITE(config_readers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warns_of_a_refresh_that_has_no_effect),
        cmocka_unit_test(refresh_needs_json_and_reannouncement),
        cmocka_unit_test(warns_of_ranks_that_share_an_id_if_readers_may_ignore_ranks),
        cmocka_unit_test(all_tiers_are_published_to_readers_that_know_them),
        cmocka_unit_test(warns_of_a_store_of_which_json_publishes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
