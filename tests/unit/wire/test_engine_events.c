#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_line.h"
#include "case_file.h"
#include "core/buf.h"
#include "core/limits.h"
#include "core/own.h"
#include "json_pack.h"
#include "vector_file.h"
#include "wire/engine/batch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The events of each dialect, and what becomes of them. */

static kvb_status decode(
    const char *json, void (*pack)(const char *, struct kvb_buf *), struct kvb_engine_habits habits,
    struct kvb_event_batch *batch)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };

    kvb_buf_init(&bytes, kvb_max_payload_bytes);
    pack(json, &bytes);
    return kvb_engine_batch_decode_further(kvb_buf_span(&bytes), habits, batch);
}

/* ---- tests/data/cases/events.txt ----
 *
 * A case is a batch, or one event: this is put between two others, which it must not affect. */

static void check_event(kvb_span text)
{
#define GOOD "{\"type\": \"BlockRemoved\", \"block_hashes\": [9]}"
    static const char good[] = "removed device 9;";
    const bool is_batch =
        text.len > 3 && (isdigit(text.data[1]) || memcmp(text.data, "{\"ts", 4) == 0);
    struct kvb_event_batch batch = { 0 };
    char json[8192];
    char line[8192];

    (void)snprintf(
        json, sizeof json, is_batch ? "%.*s" : "[1, [" GOOD ", %.*s, " GOOD "]]", (int)text.len,
        (const char *)text.data);
    for (int is_short = 0; is_short < 2; is_short++) {
        assert_ok(decode(
            json, is_short ? pack_json_short : pack_json, (struct kvb_engine_habits){ 0 }, &batch));
        (void)snprintf(line, sizeof line, "%s", line_of(&batch));
        if (!is_batch) { /* without the two others, and the last ; */
            const size_t len = strlen(line);
            assert_memory_equal(line, good, sizeof good - 1);
            assert_memory_equal(line + len - (sizeof good - 1), good, sizeof good - 1);
            line[len - (sizeof good - 1) - 2] = '\0';
            memmove(line, line + sizeof good, strlen(line + sizeof good) + 1);
        }
        assert_answer(line + (line[0] == ' '));
    }
    kvb_event_batch_done(&batch);
}

static void each_event_becomes_what_its_case_says(void **state)
{
    (void)state;
    each_case("events.txt", NULL, check_event);
}

/* ---- What a line does not show ---- */

static void a_parent_0_is_none_unless_a_block_has_the_hash_0(void **state)
{
#define STORED_BEHIND(hash, parent)                                                                \
    "[\"BlockStored\",[" hash "]," parent ",[5],1,null,\"GPU\",null,[[\"s\"]]]"
    static const struct {
        const char *json;
        bool has_zero_hash, has_parent, is_salted; /* of the last event */
    } rows[] = {
        { "[1,[" STORED_BEHIND("1", "0") "]]", false, false, true },
        { "[1,[" STORED_BEHIND("1", "0") "]]", true, true, false },
        { "[1,[" STORED_BEHIND("0", "null") "," STORED_BEHIND("1", "0") "]]", false, true, false },
        { "[1,[[\"BlockRemoved\",[0]]," STORED_BEHIND("1", "0") "]]", false, true, false },
        { "[1,[" STORED_BEHIND("1", "7") "]]", false, true, false },
    };
    struct kvb_event_batch batch = { 0 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const struct kvb_engine_habits habits = { .has_zero_hash = rows[i].has_zero_hash };
        assert_ok(decode(rows[i].json, pack_json, habits, &batch));
        const struct kvb_engine_event *last = &batch.events[batch.event_count - 1];
        assert_int_equal(last->has_parent, rows[i].has_parent);
        assert_int_equal(last->salt.len > 0, rows[i].is_salted);
    }
    kvb_event_batch_done(&batch);
}

static void a_pair_shows_that_a_bare_text_is_the_salt(void **state)
{
#define HEX16 "0123456789abcdef"
#define HEX64 HEX16 HEX16 HEX16 HEX16
#define WITH_KEYS(keys) "[1,[[\"BlockStored\",[1,2],null,[5,6],1,null,\"GPU\",null," keys "]]]"
    static const struct {
        const char *json;
        bool knows_pairs, is_salt, is_unsure, has_pairs;
    } rows[] = {
        { WITH_KEYS("[[\"" HEX64 "\"],null]"), false, false, true, false },
        { WITH_KEYS("[[\"" HEX64 "\"],null]"), true, true, false, true },
        { WITH_KEYS("[[\"" HEX64 "\"],[[\"img\",7]]]"), false, true, false, true }, /* behind it */
        { WITH_KEYS("[[\"salt\"],null]"), false, true, false, false },
        { WITH_KEYS("[null,[[\"img\",7]]]"), false, false, false, true },
    };
    struct kvb_event_batch batch = { 0 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const struct kvb_engine_habits habits = { .has_pairs = rows[i].knows_pairs };
        assert_ok(decode(rows[i].json, pack_json, habits, &batch));
        assert_int_equal(batch.events[0].salt.len > 0, rows[i].is_salt);
        assert_int_equal(batch.events[0].is_salt_unsure, rows[i].is_unsure);
        assert_int_equal(batch.habits.has_pairs, rows[i].has_pairs);
    }
    kvb_event_batch_done(&batch);
}

static void what_an_event_leaves_unsaid_is_known(void **state)
{
#define STORED_MAP(more)                                                                           \
    "[1,[{\"type\":\"BlockStored\",\"block_hashes\":[1],\"token_ids\":[5],\"block_size\":1" more   \
    "}]]"
    static const struct {
        const char *json;
        bool is_of_connector, has_extra_keys, all_tiers, leaves_tiers;
    } rows[] = {
        { STORED_MAP(",\"medium\":\"CPU\",\"group_idx\":0"), true, false, false, false },
        { STORED_MAP(",\"extra_keys\":null,\"group_idx\":0"), true, false, false, false },
        { STORED_MAP(",\"extra_keys\":[null],\"group_idx\":0"), false, true, false, false },
        { STORED_MAP(""), false, false, false, false },
        { "[1,[[\"BlockStored\",[1],null,[5],1,null,\"CPU\",null,null,0]]]", false, false, false,
          false },
        { "[1,[[\"BlockStored\",[1],null,[5],1,null,\"CPU\",null,[null],0]]]", false, true, false,
          false },
        { "[1,[[\"AllBlocksCleared\"]]]", false, false, true, true },
        { "[1,[{\"type\":\"AllBlocksCleared\"}]]", false, false, true, true },
        { "[1,[{\"type\":\"AllBlocksCleared\",\"medium\":\"CPU\"}]]", false, false, false, false },
        { "[1,[{\"type\":\"TierBlocksCleared\"}]]", false, false, false, false },
        { "[1,[{\"event_type\":\"cleared\"}]]", false, false, true, false },
        { "[1,[[\"RemoveAllEvent\"]]]", false, false, true, false },
    };
    struct kvb_event_batch batch = { 0 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_ok(decode(rows[i].json, pack_json, (struct kvb_engine_habits){ 0 }, &batch));
        assert_int_equal(batch.events[0].is_of_connector, rows[i].is_of_connector);
        assert_int_equal(batch.events[0].has_extra_keys, rows[i].has_extra_keys);
        assert_int_equal(batch.events[0].all_tiers, rows[i].all_tiers);
        assert_int_equal(batch.events[0].leaves_tiers, rows[i].leaves_tiers);
        assert_int_equal(batch.counts_from_one, strstr(rows[i].json, "event_type") != NULL);
    }
    kvb_event_batch_done(&batch);
}

static void unknown_media_are_counted_and_placed(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };

    assert_ok(decode(
        "[1, [[\"BlockStored\", [1], null, [5], 1, null, \"New\"], [\"BlockRemoved\", [1], "
        "\"New\"], [\"BlockRemoved\", [2], \"gpu\"], [\"BlockStored\", [1], null, [-1], 1, null, "
        "\"New\"]]]",
        pack_json, (struct kvb_engine_habits){ 0 }, &batch));
    assert_int_equal(batch.unknown_media, 2); /* the last event cannot be read */
    kvb_event_batch_place_unknown(&batch, KVB_TIER_HOST);
    assert_string_equal(
        line_of(&batch), "stored host root 1 size 1 tokens 5; removed host 1; "
                         "removed device 2; skipped bad_stored;");
    kvb_event_batch_done(&batch);
}

static void times_are_converted_to_seconds(void **state)
{
    static const struct {
        const char *json;
        double seconds;
    } rows[] = {
        { "[1700000000123, []]", 1700000000.123 },
        { "[1700000000, []]", 1700000000 },
        { "[1700000000123.0, []]", 1700000000123 }, /* a float is seconds */
    };
    struct kvb_event_batch batch = { 0 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_ok(decode(rows[i].json, pack_json, (struct kvb_engine_habits){ 0 }, &batch));
        assert_true(batch.timestamp_s == rows[i].seconds);
    }
    kvb_event_batch_done(&batch);
}

/* ---- Ceilings ---- */

/* A batch of this event, over and over. */
static void decode_many(const char *event, size_t count, struct kvb_event_batch *batch)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };

    kvb_buf_init(&bytes, kvb_max_payload_bytes);
    assert_ok(kvb_buf_append(
        &bytes, (const uint8_t[]){ 0x92, 0x01, 0xdc, (uint8_t)(count >> 8), (uint8_t)count }, 5));
    pack_json(event, &bytes);
    const size_t each = bytes.len - 5;
    assert_ok(kvb_buf_reserve(&bytes, each * count)); /* so that the first one stays where it is */
    for (size_t i = 1; i < count; i++) {
        assert_ok(kvb_buf_append(&bytes, bytes.data + 5, each));
    }
    assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), batch));
    assert_int_equal(batch->event_count, count);
}

/* 30,000 times 40 bytes are more than the texts of one batch may take. */
static void one_name_in_every_event_is_kept_once(void **state)
{
#define NAME_40 "0123456789abcdef0123456789abcdef01234567"
    const size_t count = 30000;
    struct kvb_event_batch batch = { 0 };

    (void)state;
    decode_many("[\"BlockStored\",[1],null,[5],1,null,null,\"" NAME_40 "\"]", count, &batch);
    assert_int_equal(batch.events[count - 1].lora_name.len, 40);
    assert_int_equal(batch.text_len, 40);
    decode_many(
        "[\"BlockStored\",[1],null,[5],1,null,null,null,[[\"" NAME_40 "\"]],null]", count, &batch);
    assert_int_equal(batch.events[count - 1].salt.len, 40);
    assert_int_equal(batch.text_len, 40);
    kvb_event_batch_done(&batch);
}

/* Each event has a salt of another length, so that none is kept for two. */
static void a_salt_beyond_the_space_for_texts_costs_its_own_event(void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf json = { 0 };
    struct kvb_event_batch batch = { 0 };
    size_t len = 0;
    size_t events = 0;

    (void)state;
    kvb_buf_init(&json, 1 << 22);
    assert_ok(kvb_buf_append_text(&json, "[1,["));
    for (; len <= kvb_max_batch_text_bytes; events++) {
        const int salt = kvb_max_string_bytes - (int)(events % 2);
        assert_ok(kvb_buf_append_format(
            &json, "[\"BlockStored\",[1],null,[5],1,null,null,null,[[\"%0*d\"]],null],", salt, 0));
        len += (size_t)salt;
    }
    assert_ok(kvb_buf_append(&json, "]]", 3));
    assert_ok(decode((const char *)json.data, pack_json, (struct kvb_engine_habits){ 0 }, &batch));
    assert_int_equal(batch.event_count, events);
    assert_int_equal(batch.events[events - 2].kind, KVB_EVENT_STORED);
    assert_int_equal(batch.events[events - 1].skip, KVB_SKIP_BAD_STORED);
    kvb_event_batch_done(&batch);
}

static void nothing_of_a_skipped_event_is_left(void **state)
{
    struct kvb_event_batch batch = { 0 };
    char json[kvb_max_string_bytes + 128];

    (void)state;
    (void)snprintf(
        json, sizeof json,
        "[1,[[\"BlockStored\",[1],null,[5],1,null,null,\"%0*d\"],[\"BlockRemoved\",[2]]]]",
        kvb_max_string_bytes + 1, 0);
    assert_ok(decode(json, pack_json, (struct kvb_engine_habits){ 0 }, &batch));
    assert_string_equal(line_of(&batch), "skipped bad_stored; removed device 2;");
    assert_int_equal(batch.text_len, 0);
    assert_int_equal(batch.token_count, 0);
    assert_int_equal(batch.hash_count, 1);
    kvb_event_batch_done(&batch);
}

/* ---- A whole recording ---- */

static void a_real_engines_recording_is_decoded_completely(void **state)
{
    (void)state;
    char *text = read_text_file("vllm-0.32/frames.hex");
    struct kvb_event_batch batch = { 0 };
    size_t frames = 0;

    for (char *line = text; *line; line = strchr(line, '\n') + 1, frames++) {
        size_t len = 0;
        uint8_t *bytes = bytes_of_hex(strchr(strchr(line, ' ') + 1, ' ') + 1, &len);
        assert_ok(kvb_engine_batch_decode((kvb_span){ bytes, len }, &batch));
        for (size_t i = 0; i < batch.event_count; i++) {
            assert_int_equal(batch.events[i].skip, KVB_SKIP_NONE);
        }
        free(bytes);
    }
    assert_int_equal(frames, 176);
    kvb_event_batch_done(&batch);
    free(text);
}

SUITE(engine_events)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_becomes_what_its_case_says),
        cmocka_unit_test(a_parent_0_is_none_unless_a_block_has_the_hash_0),
        cmocka_unit_test(a_pair_shows_that_a_bare_text_is_the_salt),
        cmocka_unit_test(what_an_event_leaves_unsaid_is_known),
        cmocka_unit_test(unknown_media_are_counted_and_placed),
        cmocka_unit_test(times_are_converted_to_seconds),
        cmocka_unit_test(one_name_in_every_event_is_kept_once),
        cmocka_unit_test(a_salt_beyond_the_space_for_texts_costs_its_own_event),
        cmocka_unit_test(nothing_of_a_skipped_event_is_left),
        cmocka_unit_test(a_real_engines_recording_is_decoded_completely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
