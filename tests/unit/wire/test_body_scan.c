#include "../../fuzz/body_same.h"
#include "fail_alloc.h"
#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>

static struct kvb_body_scan scan_whole(kvb_span body)
{
    struct kvb_body_scan scan = { 0 };

    kvb_body_scan_feed(&scan, body);
    return scan;
}

/* Memory of exactly its size, so that ASan sees a read behind it. */
static void feed_copy(struct kvb_body_scan *scan, const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);

    assert_non_null(copy);
    memcpy(copy, bytes, len);
    kvb_body_scan_feed(scan, (kvb_span){ copy, len });
    free(copy);
}

static const char chat[] =
    " {\"model\" : \"llama \\\"3\\\"\",\"messages\":[ "
    "{\"role\":\"user\",\"content\":\"{[]},\\\\\"} ,"
    "{\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],\"n\":1,\n\"stream\":true,\"tools\":[],"
    "\"m\\u006fdel2\":0,\"chat_template_kwargs\":{\"a\":{\"model\":2}},"
    "\"add_generation_prompt\":false,\"cache_salt\":null,\"temperature\":-1.5e3}\r\n";

static void it_does_not_matter_where_chunks_end(void **state)
{
    const size_t len = strlen(chat);
    const uint8_t *bytes = (const uint8_t *)chat;
    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan whole = scan_whole(kvb_span_of(chat));
    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan bytewise = { 0 };

    (void)state;
    for (size_t cut = 0; cut <= len; cut++) {
        KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = { 0 };
        feed_copy(&scan, bytes, cut);
        assert_int_equal(
            kvb_body_scan_end(&scan), cut > len - 3 ? KVB_OK : KVB_BAD_INPUT); /* "}\r\n" */
        feed_copy(&scan, bytes + cut, len - cut);
        assert_true(are_same_scans(&scan, &whole));
    }
    for (size_t at = 0; at < len; at++) {
        feed_copy(&bytewise, bytes + at, 1);
    }
    assert_true(are_same_scans(&bytewise, &whole));
}

static void expect_no_media(const char *messages)
{
    char body[512];

    (void)snprintf(body, sizeof body, "{\"messages\":%s}", messages);
    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = scan_whole(kvb_span_of(body));
    assert_ok(kvb_body_scan_end(&scan));
    if (scan.found.has_media) {
        fail_msg("%s", messages);
    }
}

/* That other parts are noticed, the comparison with json-c shows. */
static void text_in_any_place_is_no_other_part(void **state)
{
    (void)state;
    expect_no_media("[{\"content\":\"[{\\\"image_url\\\":1}]\"}]");
    expect_no_media("[{\"content\":[{\"type\":\"text\",\"text\":\"image_url\"}]}]");
    expect_no_media("[{\"tool_calls\":[{\"function\":{\"image_url\":1}}]}]");
    expect_no_media("[{\"image_url\":1}]");
    expect_no_media("[{\"content\":[{\"profile\":1}]}]");
    /* The last "messages" counts. */
    KVB_OWN(kvb_body_scan_done)
    struct kvb_body_scan scan = scan_whole(kvb_span_of(
        "{\"messages\":[{\"content\":[{\"image_url\":1}]}],\"messages\":[{\"content\":\"a\"}]}"));
    assert_ok(kvb_body_scan_end(&scan));
    assert_false(scan.found.has_media);
    assert_int_equal(scan.found.message_count, 1);
}

/* The longest name, each letter written as an escape. */
static void the_longest_name_fits_in_every_form(void **state)
{
    const char *name = kvb_body_key_name(KVB_BODY_CONTINUE_FINAL_MESSAGE);
    char body[512] = "{\"";
    size_t len = 2;

    (void)state;
    for (size_t i = 0; i < KVB_BODY_KEY_COUNT; i++) {
        assert_true(strlen(kvb_body_key_name((enum kvb_body_key)i)) * 6 + 2 <= kvb_body_key_bytes);
    }
    for (; *name; name++) {
        len += (size_t)snprintf(body + len, sizeof body - len, "\\u%04x", (unsigned)*name);
    }
    (void)snprintf(body + len, sizeof body - len, "\":true}");
    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = scan_whole(kvb_span_of(body));
    assert_ok(kvb_body_scan_end(&scan));
    assert_int_equal(scan.found.values[KVB_BODY_CONTINUE_FINAL_MESSAGE].type, KVB_BODY_IS_BOOLEAN);
}

static void depth_length_and_messages_have_limits(void **state)
{
    enum { most = kvb_max_gateway_messages };
    static const char open[] = "{\"a\":";
    char deep[kvb_max_gateway_body_depth * 2 + 16];
    KVB_OWN(kvb_body_scan_done)
    struct kvb_body_scan many = scan_whole(kvb_span_of("{\"messages\":["));

    (void)state;
    for (unsigned more = 0; more < 2; more++) {
        const size_t lists = kvb_max_gateway_body_depth - 1 + more;
        char *at = stpcpy(deep, open);
        memset(at, '[', lists);
        memset(at + lists, ']', lists);
        at[2 * lists] = '}';
        at[2 * lists + 1] = '\0';
        KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = scan_whole(kvb_span_of(deep));
        assert_int_equal(kvb_body_scan_end(&scan), more ? KVB_TOO_LARGE : KVB_OK);
    }

    for (size_t i = 0; i < most + 2; i++) {
        kvb_body_scan_feed(&many, kvb_span_of(i > 0 ? ",{}" : "{}"));
    }
    kvb_body_scan_feed(&many, kvb_span_of("]}"));
    assert_ok(kvb_body_scan_end(&many));
    assert_int_equal(many.found.message_count, most);
    assert_int_equal(many.found.messages_left_out, 2);

    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = scan_whole(kvb_span_of("{}"));
    kvb_body_scan_feed(&scan, (kvb_span){ (const uint8_t *)"", kvb_max_gateway_body_bytes - 1 });
    assert_int_equal(kvb_body_scan_end(&scan), KVB_TOO_LARGE); /* nothing of it was read */
}

static void without_memory_the_last_messages_are_left_out(void **state)
{
    static const char body[] = "{\"messages\":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},"
                               "{},{},{}],\"model\":\"m\"}";
    size_t left_out = 20;

    (void)state;
    for (long n = 0; left_out > 0; n++) {
        fail_alloc_after(n);
        KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = scan_whole(kvb_span_of(body));
        fail_alloc_after(-1);
        assert_ok(kvb_body_scan_end(&scan));
        assert_int_equal(scan.found.values[KVB_BODY_MODEL].type, KVB_BODY_IS_STRING);
        left_out = scan.found.messages_left_out;
        assert_int_equal(scan.found.message_count + left_out, 20);
        for (size_t i = 0; i < scan.found.message_count; i++) {
            assert_int_equal(scan.found.messages[i].at, 13 + 3 * i);
        }
    }
}

/* ---- Beside json-c ---- */

static char *put(char *at, const char *text)
{
    return stpcpy(at, text);
}

static const char *one_of(unsigned *seed, const char *const texts[], size_t count)
{
    return texts[(size_t)rand_r(seed) % count];
}

static char *put_value(char *at, unsigned *seed, unsigned depth)
{
    static const char *const scalars[] = {
        "1",    "-2.5e-3",     "true",     "false",       "null",
        "\"\"", "\"a\\\"]}\"", "\"\\\\\"", "\"\\u00e9\"", "\"\xc3\xa9,:{\"",
    };
    static const char *const keys[] = {
        "\"a\"",          "\"model\"",     "\"image_url\"",       "\"content\"",
        "\"\\u0066ile\"", "\"prompt\"",    "\"image_embeds\"",    "\"input_audio\"",
        "\"audio_url\"",  "\"video_url\"", "\"im\\u0061ge_url\"",
    };
    static const char *const blanks[] = { "", "", "", " ", "\n\t" };
    const int kind = depth == 0 ? 0 : rand_r(seed) % 4;

    at = put(at, one_of(seed, blanks, KVB_COUNT_OF(blanks)));
    if (kind < 2) {
        at = put(at, one_of(seed, scalars, KVB_COUNT_OF(scalars)));
    } else {
        const int count = rand_r(seed) % 4;
        *at++ = kind == 2 ? '[' : '{';
        for (int i = 0; i < count; i++) {
            if (i > 0) {
                *at++ = ',';
            }
            if (kind == 3) {
                at = put(at, one_of(seed, blanks, KVB_COUNT_OF(blanks)));
                at = put(at, one_of(seed, keys, KVB_COUNT_OF(keys)));
                at = put(at, one_of(seed, blanks, KVB_COUNT_OF(blanks)));
                *at++ = ':';
            }
            at = put_value(at, seed, depth - 1);
        }
        *at++ = kind == 2 ? ']' : '}';
    }
    return put(at, one_of(seed, blanks, KVB_COUNT_OF(blanks)));
}

static void says_what_json_c_says(void **state)
{
    enum { rounds = 20000, depth = 6 };
#define LONG_NAME "modelmodelmodelmodelmodelmodelmodelmodelmodelmodel"
    static const char *const others[] = {
        "messages", "messages",    "messages",     "other",  "Model",
        "mod",      "m\\u006Fdel", "pr\\u006fmpt", "model ", LONG_NAME LONG_NAME LONG_NAME
    };
    static char body[1 << 20];
    unsigned seed = 20261129;
    size_t media = 0;

    (void)state;
    for (int round = 0; round < rounds; round++) {
        const int members = 1 + rand_r(&seed) % 5;
        char *at = put(body, " {");
        for (int i = 0; i < members; i++) {
            const size_t key = (size_t)rand_r(&seed) % (KVB_BODY_KEY_COUNT + 4);
            at += snprintf(
                at, (size_t)(body + sizeof body - at), "%s\"%s\":", i > 0 ? "," : "",
                key < KVB_BODY_KEY_COUNT ? kvb_body_key_name((enum kvb_body_key)key)
                                         : one_of(&seed, others, KVB_COUNT_OF(others)));
            at = put_value(at, &seed, depth);
        }
        at = put(at, "} ");
        const kvb_span text = { (const uint8_t *)body, (size_t)(at - body) };
        KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = scan_whole(text);
        KVB_OWN(drop_json) struct json_object *root = parse_whole(text);
        assert_non_null(root);
        assert_ok(kvb_body_scan_end(&scan));
        if (!is_same_body(text, &scan.found, root)) {
            fail_msg("%.*s", (int)text.len, body);
        }
        media += scan.found.has_media;
    }
    assert_true(media > rounds / 100);
}

/* ---- Values ---- */

static void reads_texts(void **state)
{
    char text[8] = "before";

    (void)state;
    assert_ok(kvb_body_text_read(kvb_span_of("\"a\\u00e9\\n\""), text, sizeof text));
    assert_string_equal(text, "a\xc3\xa9\n");
    assert_ok(kvb_body_text_read(kvb_span_of("\"\""), text, sizeof text));
    assert_string_equal(text, "");
    assert_ok(kvb_body_text_read(kvb_span_of("\"1234567\""), text, sizeof text));
    static const char *const refused[] = {
        "",         "1",        "null",     "\"",     "\"12345678\"", "\"\\u0000\"",
        "\"\xff\"", "\"\x01\"", "\"a\" ,1", "[\"a\"]"
    };
    for (size_t i = 0; i < KVB_COUNT_OF(refused); i++) {
        assert_int_equal(
            kvb_body_text_read(kvb_span_of(refused[i]), text, sizeof text), KVB_BAD_INPUT);
    }
    assert_string_equal(text, "1234567"); /* untouched */
}

static void assert_tokens(const char *list, const uint32_t *expected, size_t count)
{
    uint32_t *tokens = NULL;
    size_t read = 0;

    assert_ok(kvb_body_tokens_read(kvb_span_of(list), &tokens, &read));
    assert_int_equal(read, count);
    assert_memory_equal(tokens, expected, count * sizeof *tokens);
    free(tokens);
}

static void reads_tokens(void **state)
{
    static const uint32_t tokens[] = { 0, 17, UINT32_MAX, 5 };
    static const char *const refused[] = { "[]",    "[ ]",     "[1,]",         "[-1]",
                                           "[1.0]", "[\"1\"]", "[4294967296]", "[1",
                                           "1",     "",        "[1] 2",        "[[1]]" };
    uint32_t *none = NULL;
    size_t count = 77;

    (void)state;
    assert_tokens("[0]", tokens, 1);
    assert_tokens("[0,17,4294967295,5]", tokens, 4);
    assert_tokens(" [ 0 , 17 ,\n4294967295,5 ] ", tokens, 4);
    for (size_t i = 0; i < KVB_COUNT_OF(refused); i++) {
        if (kvb_body_tokens_read(kvb_span_of(refused[i]), &none, &count) != KVB_BAD_INPUT) {
            fail_msg("%s", refused[i]);
        }
    }
    fail_alloc_after(0);
    assert_int_equal(kvb_body_tokens_read(kvb_span_of("[1]"), &none, &count), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    assert_null(none);
    assert_int_equal(count, 77);
}

static void reads_no_more_tokens_than_a_query_may_have(void **state)
{
    const size_t most = kvb_max_query_tokens;
    char *list = malloc(2 * most + 4);
    uint32_t *tokens = NULL;
    size_t count = 0;

    (void)state;
    assert_non_null(list);
    for (size_t i = 0; i <= most; i++) {
        list[2 * i] = i > 0 ? ',' : '[';
        list[2 * i + 1] = '7';
    }
    list[2 * most] = ']';
    list[2 * most + 1] = '\0';
    assert_ok(kvb_body_tokens_read(kvb_span_of(list), &tokens, &count));
    assert_int_equal(count, most);
    free(tokens);
    memcpy(list + 2 * most, ",7]", 4);
    assert_int_equal(kvb_body_tokens_read(kvb_span_of(list), &tokens, &count), KVB_TOO_LARGE);
    free(list);
}

SUITE(body_scan)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_does_not_matter_where_chunks_end),
        cmocka_unit_test(text_in_any_place_is_no_other_part),
        cmocka_unit_test(the_longest_name_fits_in_every_form),
        cmocka_unit_test(depth_length_and_messages_have_limits),
        cmocka_unit_test(without_memory_the_last_messages_are_left_out),
        cmocka_unit_test(says_what_json_c_says),
        cmocka_unit_test(reads_texts),
        cmocka_unit_test(reads_tokens),
        cmocka_unit_test(reads_no_more_tokens_than_a_query_may_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
