#include "kvb_test.h"

#include "core/clock.h"
#include "core/log.h"

#include <json-c/json.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { read_bytes = 16384 };

/* A log that writes into memory; read_log() reads it back. */
static struct kvb_log open_log(bool is_json)
{
    const int fd = memfd_create("log", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return (struct kvb_log){ .level = KVB_LOG_INFO, .is_json = is_json, .fd = fd };
}

/* Returns everything written so far, and empties the log. */
static size_t read_log(const struct kvb_log *log, char text[read_bytes])
{
    const ssize_t len = pread(log->fd, text, read_bytes - 1, 0);

    assert_true(len >= 0 && len < read_bytes - 1);
    text[len] = '\0';
    assert_int_equal(ftruncate(log->fd, 0), 0);
    assert_int_equal(lseek(log->fd, 0, SEEK_SET), 0);
    return (size_t)len;
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t compiled;

    assert_int_equal(regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&compiled, text, 0, NULL, 0) != 0) {
        fail_msg("\"%s\" does not match %s", text, pattern);
    }
    regfree(&compiled);
}

/* Parses exactly one line of valid JSON; the caller frees it with json_object_put(). */
static json_object *parse_line(const char *text, size_t len)
{
    json_tokener *tokener = json_tokener_new();

    assert_ptr_equal(strchr(text, '\n'), text + len - 1);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    json_object *object = json_tokener_parse_ex(tokener, text, (int)len);
    if (json_tokener_get_error(tokener) != json_tokener_success) {
        fail_msg("no JSON: %s", text);
    }
    json_tokener_free(tokener);
    assert_true(json_object_is_type(object, json_type_object));
    return object;
}

static const char *string_of(json_object *object, const char *key)
{
    json_object *value = NULL;

    assert_true(json_object_object_get_ex(object, key, &value));
    assert_true(json_object_is_type(value, json_type_string));
    return json_object_get_string(value);
}

static void writes_one_plain_line(void **state)
{
    (void)state;
    struct kvb_log log = open_log(false);
    char text[read_bytes];

    kvb_log_write(
        &log, KVB_LOG_INFO, "bus", "connected", "url", "nats://127.0.0.1:4222", "empty", "", NULL);
    (void)read_log(&log, text);
    assert_matches(
        text, "^info 20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\\.[0-9]{3}Z "
              "bus connected url=nats://127\\.0\\.0\\.1:4222 empty=\"\"\n$");
    close(log.fd);
}

static void writes_one_json_object(void **state)
{
    (void)state;
    struct kvb_log log = open_log(true);
    char text[read_bytes];

    kvb_log_write(
        &log, KVB_LOG_WARNING, "ingest", "lost it", "worker", "7", "dp_rank",
        KVB_LOG_U64(UINT64_MAX), "peer",
        "\1"
        "7x",
        NULL);
    const size_t len = read_log(&log, text);
    json_object *object = parse_line(text, len);
    json_object *number = json_object_object_get(object, "dp_rank");
    assert_true(json_object_is_type(number, json_type_int));
    assert_true(json_object_get_uint64(number) == UINT64_MAX);
    assert_string_equal(
        string_of(object, "peer"), "\1"
                                   "7x");
    assert_string_equal(string_of(object, "level"), "warning");
    assert_string_equal(string_of(object, "room"), "ingest");
    assert_string_equal(string_of(object, "message"), "lost it");
    assert_string_equal(string_of(object, "worker"), "7");
    assert_matches(string_of(object, "time"), "^20.*Z$");
    assert_int_equal(json_object_object_length(object), 7);
    json_object_put(object);
    close(log.fd);
}

static void quotes_values_whose_end_would_be_ambiguous(void **state)
{
    (void)state;
    struct kvb_log log = open_log(false);
    char text[read_bytes];

    kvb_log_write(
        &log, KVB_LOG_INFO, "a", "b", "v", "two words", "w", "a=b", "x", "q\"q", "y", "l\nl", NULL);
    (void)read_log(&log, text);
    assert_matches(text, " v=\"two words\" w=\"a=b\" x=\"q\\\\\"q\" y=\"l\\\\u000al\"\n$");
    close(log.fd);
}

static void writes_no_control_character_of_a_peer(void **state)
{
    (void)state;
    struct kvb_log log = open_log(false);
    char text[read_bytes];
    char all[256];

    for (int i = 1; i < 256; i++) {
        all[i - 1] = (char)i;
    }
    all[255] = '\0';
    kvb_log_write(&log, KVB_LOG_INFO, "a", all, "v", all, "csi", "\xc2\x9b", NULL);
    const size_t len = read_log(&log, text);
    for (size_t i = 0; i + 1 < len; i++) {
        assert_true(text[i] >= ' ' && text[i] < 0x7f);
    }
    assert_int_equal(text[len - 1], '\n');
    close(log.fd);
}

static void is_valid_json_for_any_bytes(void **state)
{
    (void)state;
    struct kvb_log log = open_log(true);
    char text[read_bytes];
    unsigned seed = 11;

    for (int round = 0; round < 20000; round++) {
        char bytes[40];
        const size_t count = (size_t)rand_r(&seed) % sizeof bytes;
        for (size_t i = 0; i < count; i++) {
            /* half of the bytes are from the range that UTF-8 sequences use */
            bytes[i] =
                (char)(rand_r(&seed) % 2 ? 0x80 + rand_r(&seed) % 0x80 : 1 + rand_r(&seed) % 255);
        }
        bytes[count < sizeof bytes ? count : sizeof bytes - 1] = '\0';
        kvb_log_write(&log, KVB_LOG_INFO, "room", bytes, "key", bytes, NULL);
        const size_t len = read_log(&log, text);
        json_object_put(parse_line(text, len));
    }
    close(log.fd);
}

static void cuts_long_values_between_characters(void **state)
{
    (void)state;
    struct kvb_log log = open_log(true);
    char text[read_bytes];
    char value[2002];

    for (size_t i = 0; i < 2000; i += 2) { /* the limit of 512 is even: begin with one odd byte */
        memcpy(value + 1 + i, "\xc3\xbc", 2);
    }
    value[0] = 'x';
    value[2001] = '\0';
    kvb_log_write(&log, KVB_LOG_INFO, "a", "b", "v", value, "after", "it", NULL);
    const size_t len = read_log(&log, text);
    json_object *object = parse_line(text, len);
    const char *shown = string_of(object, "v");
    assert_int_equal(strlen(shown), 513 + 3);
    assert_string_equal(shown + 513, "...");
    assert_string_equal(string_of(object, "after"), "it");
    json_object_put(object);
    close(log.fd);
}

static void leaves_out_whole_pairs_when_the_line_is_full(void **state)
{
    (void)state;
    char text[read_bytes];
    char value[512];

    memset(value, 1, sizeof value); /* six bytes each when escaped */
    value[511] = '\0';
    for (int is_json = 0; is_json < 2; is_json++) {
        struct kvb_log log = open_log(is_json);
        kvb_log_write(&log, KVB_LOG_INFO, "a", "b", "v", value, "w", value, "x", "y", NULL);
        const size_t len = read_log(&log, text);
        assert_true(len <= 4096);
        assert_ptr_equal(strchr(text, '\n'), text + len - 1);
        assert_null(strstr(text, "w"));
        if (is_json) {
            json_object_put(parse_line(text, len));
        }
        close(log.fd);
    }
}

static void logs_repeated_trouble_at_once_and_then_every_ten_seconds(void **state)
{
    (void)state;
    struct kvb_log_limit limit = { 0 };
    uint64_t count = 99;

    assert_true(kvb_log_limit_due(&limit, 5 * KVB_NS_PER_S, &count));
    assert_int_equal(count, 1);
    for (int i = 0; i < 1000; i++) {
        assert_false(kvb_log_limit_due(&limit, 6 * KVB_NS_PER_S, &count));
    }
    assert_int_equal(count, 1);
    assert_true(kvb_log_limit_due(&limit, 15 * KVB_NS_PER_S, &count));
    assert_int_equal(count, 1001);
    assert_false(kvb_log_limit_due(&limit, 15 * KVB_NS_PER_S + 1, &count));
}

static void remembers_a_line_at_time_zero(void **state)
{
    (void)state;
    struct kvb_log_limit limit = { 0 };
    uint64_t count = 0;

    assert_true(kvb_log_limit_due(&limit, 0, &count));
    assert_false(kvb_log_limit_due(&limit, 1, &count));
}

static void logs_lasting_trouble_at_intervals_that_double_up_to_ten_minutes(void **state)
{
    (void)state;
    static const uint64_t expected_s[] = { 3, 13, 33, 73, 153, 313, 633, 1233, 1833 };
    struct kvb_log_backoff backoff = { 0 };
    size_t said = 0;

    for (uint64_t now_s = 3; now_s < 2400; now_s++) {
        if (kvb_log_backoff_due(&backoff, now_s * KVB_NS_PER_S)) {
            assert_true(said < sizeof expected_s / sizeof expected_s[0]);
            assert_int_equal(now_s, expected_s[said++]);
        }
    }
    assert_int_equal(said, sizeof expected_s / sizeof expected_s[0]);
}

static void repeated_trouble_is_logged_ten_seconds_after_the_newest_line(void **state)
{
    (void)state;
    struct kvb_log_backoff backoff = { 0 };

    kvb_log_backoff_end(&backoff); /* there was none */
    assert_true(kvb_log_backoff_due(&backoff, 3 * KVB_NS_PER_S));
    assert_true(kvb_log_backoff_due(&backoff, 13 * KVB_NS_PER_S));
    kvb_log_backoff_end(&backoff);
    kvb_log_backoff_end(&backoff);
    assert_false(kvb_log_backoff_due(&backoff, 22 * KVB_NS_PER_S));
    assert_true(kvb_log_backoff_due(&backoff, 23 * KVB_NS_PER_S));
    assert_false(kvb_log_backoff_due(&backoff, 32 * KVB_NS_PER_S));
    assert_true(kvb_log_backoff_due(&backoff, 33 * KVB_NS_PER_S));
}

SUITE(log)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_one_plain_line),
        cmocka_unit_test(writes_one_json_object),
        cmocka_unit_test(quotes_values_whose_end_would_be_ambiguous),
        cmocka_unit_test(writes_no_control_character_of_a_peer),
        cmocka_unit_test(is_valid_json_for_any_bytes),
        cmocka_unit_test(cuts_long_values_between_characters),
        cmocka_unit_test(leaves_out_whole_pairs_when_the_line_is_full),
        cmocka_unit_test(logs_repeated_trouble_at_once_and_then_every_ten_seconds),
        cmocka_unit_test(remembers_a_line_at_time_zero),
        cmocka_unit_test(logs_lasting_trouble_at_intervals_that_double_up_to_ten_minutes),
        cmocka_unit_test(repeated_trouble_is_logged_ten_seconds_after_the_newest_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
