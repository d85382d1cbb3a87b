#include "kvb_test.h"

#include "core/own.h"
#include "kvctl/explain_text.h"
#include "wire/json/tree.h"

#include <stdio.h>
#include <string.h>

#define DEVICE(listed, min, max, trace)                                                            \
    "\"lists\":{\"device\":{\"listed\":" listed ",\"min_copies\":" min                             \
    ",\"max_copies\":" max trace "}}"

#define TRACE(what, id, origin)                                                                    \
    ",\"trace\":{\"what\":\"" what "\",\"event_id\":" id                                           \
    ",\"time_ms\":1700000000123,\"origin\":\"" origin "\"}"

#define AT "2023-11-14T22:13:20.123Z"

#define HEAD                                                                                       \
    "{\"state\":\"PARTIAL\",\"reason\":\"gone\",\"block_size\":16,\"blocks\":9,\"held_blocks\":1," \
    "\"usable_blocks\":1,\"trace\":{\"events\":3,\"first_event_id\":4,\"first_time_ms\":"          \
    "1700000000123,\"whole\":false},\"rows\":["

static struct json_object *parsed(const char *text)
{
    struct json_object *root = json_tokener_parse(text);

    assert_non_null(root);
    return root;
}

static const char *cell(struct json_object *table, size_t row, const char *name)
{
    return json_object_get_string(kvb_json_member(json_object_array_get_idx(table, row), name));
}

/* One row of each reason. */
static void each_reason_has_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *row, *why;
    } cases[] = {
        { "\"reason\":\"held\"," DEVICE("true", "1", "1", TRACE("held", "5", "replayed")),
          "held since event 5, " AT ", replayed" },
        { "\"reason\":\"held\"," DEVICE("true", "1", "1", TRACE("held_before", "5", "announced")),
          "held; event 5, " AT " stored it again" },
        { "\"reason\":\"held\"," DEVICE("true", "1", "1", ""), "held since before the trace" },
        { "\"reason\":\"removed\"," DEVICE("false", "0", "0", TRACE("removed", "5", "live")),
          "removed by event 5, " AT },
        { "\"reason\":\"cleared\"," DEVICE("false", "0", "0", TRACE("cleared", "5", "live")),
          "cleared by event 5, " AT },
        { "\"reason\":\"cleared\"," DEVICE("false", "0", "0", TRACE("cleared", "5", "restarted")),
          "gone: the list was begun anew by event 5, " AT },
        { "\"reason\":\"never_stored\"," DEVICE("false", "0", "0", TRACE("absent", "5", "live")),
          "never stored since all was cleared by event 5, " AT },
        { "\"reason\":\"never_stored\"," DEVICE("false", "0", "0", ""),
          "never stored since the bridge began" },
        { "\"reason\":\"older_than_trace\"," DEVICE("false", "0", "0", ""),
          "not held; the trace begins later, with event 4, " AT },
        { "\"reason\":\"withdrawn\"," DEVICE("false", "1", "1", ""),
          "the stream is published as empty: PARTIAL(gone)" },
        { "\"reason\":\"incomplete\"," DEVICE("false", "0", "0", ""),
          "not listed, but the list may lack blocks: PARTIAL(gone)" },
        { "\"reason\":\"doubtful\"," DEVICE("false", "0", "2", ""), "doubtful: 0 to 2 copies" },
        { "\"reason\":\"other_group\"," DEVICE("false", "1", "1", ""),
          "held by some cache groups, but not by all of full attention" },
        { "\"reason\":\"other_tier\"," DEVICE("false", "0", "0", TRACE("removed", "5", "live")),
          "in another tier alone; event 5, " AT " removed it here" },
        { "\"reason\":\"other_tier\"," DEVICE("false", "0", "0", ""), "in another tier alone" },
        { "\"reason\":\"parent_unknown\"," DEVICE("false", "0", "0", ""),
          "stored behind a parent that is not known" },
        { "\"reason\":\"other_lora_or_salt\"," DEVICE("false", "0", "0", ""),
          "held with another LoRA name or salt: give --lora, --salt" },
        { "\"reason\":\"unmatchable\"," DEVICE("false", "0", "0", ""),
          "the engine holds a block here that no query can name (extra keys)" },
        { "\"reason\":\"of_a_newer_bridge\"", "of_a_newer_bridge" },
        { "\"reason\":7", "7" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char text[1024];
        (void)snprintf(text, sizeof text, HEAD "{\"block\":0,%s}]}", cases[i].row);
        KVB_OWN(kvb_json_drop) struct json_object *bridge = parsed(text);
        KVB_OWN(kvb_json_drop) struct json_object *table = kvctl_explain_table(bridge, 0);
        assert_string_equal(cell(table, 0, "why"), cases[i].why);
    }
}

static void blocks_of_which_the_same_is_said_share_a_row(void **state)
{
    (void)state;
#define HELD(n, hash)                                                                              \
    "{\"block\":" n ",\"hash\":" hash                                                              \
    ",\"reason\":\"held\"," DEVICE("true", "1", "1", TRACE("held", "5", "live")) "}"
    KVB_OWN(kvb_json_drop)
    struct json_object *bridge =
        parsed(HEAD HELD("0", "18446744073709551615") "," HELD("1", "8") "," HELD(
            "2", "9") ",{\"block\":3,\"reason\":\"removed\","
                      "\"lists\":{\"device\":{\"listed\":false,\"min_copies\":0,\"max_copies\":1},"
                      "\"host\":{\"listed\":true,\"min_copies\":1,\"max_copies\":1},"
                      "\"disk\":{\"listed\":false,\"min_copies\":1,\"max_copies\":1}}}]}");
    KVB_OWN(kvb_json_drop) struct json_object *table = kvctl_explain_table(bridge, 2);
    KVB_OWN(kvb_json_drop) struct json_object *alone = kvctl_explain_table(bridge, -1);

    assert_int_equal(json_object_array_length(table), 3);
    assert_string_equal(cell(table, 0, "blocks"), "0-1");
    assert_string_equal(cell(table, 0, "tokens"), "0-31");
    assert_string_equal(cell(table, 0, "hash"), "18446744073709551615");
    assert_string_equal(cell(table, 0, "bridge"), "device");
    assert_string_equal(cell(table, 0, "router"), "listed");
    assert_string_equal(cell(table, 1, "blocks"), "2");
    assert_string_equal(cell(table, 1, "router"), "not listed");
    assert_string_equal(cell(table, 2, "bridge"), "device? host disk*");
    assert_string_equal(cell(table, 2, "router"), "behind the end");
    assert_null(cell(table, 2, "hash"));
    assert_int_equal(json_object_array_length(alone), 2);
    assert_string_equal(cell(alone, 0, "router"), "?");
}

static void says_where_and_why_the_prefix_ends(void **state)
{
    (void)state;
    static const char broken[] = HEAD "{\"block\":0,\"reason\":\"held\"},{\"block\":1,\"reason\":"
                                      "\"parent_unknown\"}]}";
    static const char large[] = "{\"held_blocks\":0,\"held_at_least\":true,\"rows\":[{\"block\":0,"
                                "\"reason\":\"older_than_trace\"}]}";
    static const char whole[] = "{\"held_blocks\":4,\"usable_blocks\":2,\"rows\":[1,2,3,4]}";
    char text[kvctl_sentence_bytes];
    KVB_OWN(kvb_json_drop) struct json_object *one = parsed(broken);
    KVB_OWN(kvb_json_drop) struct json_object *other = parsed(whole);
    KVB_OWN(kvb_json_drop) struct json_object *least = parsed(large);

    kvctl_explain_break(one, text);
    assert_string_equal(
        text, "The prefix ends before block 1: stored behind a parent that is not known");
    kvctl_explain_break(other, text);
    assert_string_equal(text, "All blocks are listed; sliding windows leave 2 of 4 to a request");
    kvctl_explain_break(least, text);
    assert_string_equal(
        text, "The prefix ends before block 0, or later: not held; there is no trace "
              "(limits.sync_blocks)");
}

static void names_what_bridge_and_aggregator_say_differently(void **state)
{
    (void)state;
    static const struct {
        const char *router;
        size_t count;
        const char *last;
    } cases[] = {
        { "{\"state\":\"PARTIAL\",\"reason\":\"gone\",\"tokens\":{\"device\":16}}", 0, NULL },
        { "{\"state\":\"PARTIAL\",\"reason\":\"gone\",\"tokens\":{\"device\":48}}", 1,
          "blocks from the beginning: 1 by the bridge, 3 by the aggregator" },
        { "{\"state\":\"UNVERIFIED\",\"reason\":\"\",\"tokens\":{\"device\":16}}", 2,
          "reason: gone by the bridge, none by the aggregator" },
        { "{}", 3, "blocks from the beginning: 1 by the bridge, 0 by the aggregator" },
        { NULL, 1, "the aggregator lists nothing of this prompt there" },
    };
    KVB_OWN(kvb_json_drop) struct json_object *bridge = parsed(HEAD "]}");

    KVB_OWN(kvb_json_drop)
    struct json_object *least = parsed("{\"state\":\"PARTIAL\",\"reason\":\"gone\",\"block_size\":"
                                       "16,\"held_blocks\":1,\"held_at_least\":true}");
    KVB_OWN(kvb_json_drop) struct json_object *more = parsed(cases[1].router);
    KVB_OWN(kvb_json_drop) struct json_object *none = kvctl_explain_differences(least, more);

    assert_int_equal(json_object_array_length(none), 0);
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        KVB_OWN(kvb_json_drop)
        struct json_object *router = cases[i].router ? parsed(cases[i].router) : NULL;
        KVB_OWN(kvb_json_drop)
        struct json_object *said = kvctl_explain_differences(bridge, router);
        assert_int_equal(json_object_array_length(said), cases[i].count);
        if (cases[i].last) {
            assert_string_equal(
                json_object_get_string(json_object_array_get_idx(said, cases[i].count - 1)),
                cases[i].last);
        }
    }
}

static void lists_five_workers_that_are_near(void **state)
{
    (void)state;
    KVB_OWN(kvb_json_drop)
    struct json_object *rows =
        parsed("[{\"worker_id\":9},{\"worker_id\":1},{\"worker_id\":7},{\"worker_id\":7},"
               "{\"worker_id\":100},{\"worker_id\":9223372036854775807},{\"worker_id\":4}]");
    KVB_OWN(kvb_json_drop) struct json_object *none = parsed("[]");
    char text[kvctl_sentence_bytes];

    kvctl_near_workers(rows, 8, text);
    assert_string_equal(text, "7, 9, 4, 1, 100");
    kvctl_near_workers(none, 8, text);
    assert_string_equal(text, "");
}

/* Answers come from the network. */
static void an_answer_of_other_types_is_no_trouble(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "{}",
        "{\"rows\":7,\"trace\":[],\"held_blocks\":\"x\"}",
        "{\"rows\":[null,7,\"x\",[],{}]}",
        "{\"rows\":[{\"lists\":{\"device\":7}},{\"lists\":[],\"reason\":{}}],\"block_size\":-1}",
    };
    char text[kvctl_sentence_bytes];

    for (size_t i = 0; i < KVB_COUNT_OF(answers); i++) {
        KVB_OWN(kvb_json_drop) struct json_object *bridge = parsed(answers[i]);
        KVB_OWN(kvb_json_drop) struct json_object *table = kvctl_explain_table(bridge, 1);
        KVB_OWN(kvb_json_drop)
        struct json_object *said = kvctl_explain_differences(bridge, bridge);
        kvctl_explain_break(bridge, text);
        kvctl_near_workers(kvb_json_member(bridge, "rows"), 1, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_reason_has_a_sentence),
        cmocka_unit_test(blocks_of_which_the_same_is_said_share_a_row),
        cmocka_unit_test(says_where_and_why_the_prefix_ends),
        cmocka_unit_test(names_what_bridge_and_aggregator_say_differently),
        cmocka_unit_test(lists_five_workers_that_are_near),
        cmocka_unit_test(an_answer_of_other_types_is_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
