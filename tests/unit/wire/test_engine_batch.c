#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_line.h"
#include "core/hash.h"
#include "core/limits.h"
#include "vector_file.h"
#include "wire/engine/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *hex_of_vector(const char *text, const char *name)
{
    const size_t len = strlen(name);

    while (strncmp(text, name, len) != 0 || text[len] != '|') {
        text = strchr(text, '\n');
        assert_non_null(text); /* otherwise there is no such vector */
        text++;
    }
    return strchr(text + len + 1, '|') + 1;
}

/* ---- By hand ---- */

static void an_invalid_event_affects_no_other(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        /* an unknown tag between good ones */
        { "92 01 93 92 " REMOVED "91 01  92 a3 4e6577 01  92 " REMOVED "91 02",
          "removed device 1; skipped unknown_event; removed device 2;" },
        { "92 01 91 05", "skipped unknown_event;" },    /* an event that is a number */
        { "92 01 91 90", "skipped unknown_event;" },    /* an empty array */
        { "92 01 91 91 01", "skipped unknown_event;" }, /* a tag that is a number */
        { "92 01 91 80", "skipped unknown_event;" },    /* a map without a type */
        { "92 01 91 81 a4 74797065 c0", "skipped unknown_event;" },
        { "92 01 91 92 " REMOVED "01", "skipped bad_removed;" }, /* hashes are a number */
        { "92 01 91 91 " REMOVED, "skipped bad_removed;" },      /* no hashes at all */
        { "92 01 91 92 " REMOVED "91 a1 78", "skipped bad_removed;" },
        { "92 01 91 92 " REMOVED "91 c4 03 010203", "skipped bad_removed;" }, /* 3 bytes */
        /* too few tokens */
        { "92 01 91 95 " STORED "91 01 c0 93 01 02 03 04", "skipped bad_stored;" },
        { "92 01 91 95 " STORED "91 01 c0 92 01 ff 02", "skipped bad_stored;" }, /* token -1 */
        { "92 01 91 95 " STORED "91 01 c0 91 cf 0000000100000000 01", "skipped bad_stored;" },
        { "92 01 91 95 " STORED "91 01 c0 92 01 02 00", "skipped bad_stored;" }, /* size 0 */
        { "92 01 91 95 " STORED "91 01 c0 c0 00", "stored device root 1 size 0 tokens;" },
        /* more tokens than the blocks cover, no hashes, another medium */
        { "92 01 91 95 " STORED "91 01 c0 93 01 02 03 02",
          "stored device root 1 size 2 tokens 1 2 3;" },
        { "92 01 91 95 " STORED "90 c0 90 02", "stored device root size 2 tokens;" },
        { "92 01 91 97 " STORED "91 01 02 91 05 01 c0 a3 637075",
          "stored host after 2 1 size 1 tokens 5;" },
        { "92 01 91 97 " STORED "91 01 c0 91 05 01 c0 a3 4e6577",
          "stored external root 1 size 1 tokens 5;" },
        /* a map about another worker's copy */
        { "92 01 91 83 a4 74797065 " REMOVED "ac 626c6f636b5f686173686573 91 01"
          " a8 6c6f63616c697479 a6 52454d4f5445",
          "skipped remote;" },
        { "92 01 91 94 " REMOVED "91 01 c0 ff", "skipped bad_removed;" }, /* a negative group */
        /* EAGLE: (1,2) (2,3) */
        { "92 01 91 95 " STORED "91 01 c0 92 92 01 02 92 02 03 02",
          "stored device root 1 size 2 tokens 1 2 behind 3;" },
    };
    CHECK_CASES(cases);
}

static void a_reset_may_be_of_one_tier(void **state)
{
    (void)state;
#define TIER_CLEARED "b1 54696572426c6f636b73436c6561726564"
    const struct case_of_hex cases[] = {
        { "92 01 91 91 " TIER_CLEARED, "cleared device;" },
        { "92 01 91 92 " TIER_CLEARED " a3 475055", "cleared device;" },
        { "92 01 91 92 " TIER_CLEARED " a3 435055", "cleared host;" },
        { "92 01 91 82 a4 74797065 " TIER_CLEARED " a6 6d656469756d a3 475055", "cleared device;" },
    };
    CHECK_CASES(cases);
}

static void a_batch_comes_as_a_map_or_with_more_elements_too(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        { "83 a2 7473 01 a6 6576656e7473 91 91 b0 416c6c426c6f636b73436c6561726564"
          " b2 646174615f706172616c6c656c5f72616e6b 03",
          "cleared all; rank 3" },
        { "94 01 90 02 a1 78", " rank 2" },
        { "93 01 90 ff", "" }, /* a negative rank is ignored */
        { "93 ce 6553f100 90 c0", "" },
    };
    CHECK_CASES(cases);
}

static void an_invalid_batch_is_refused(void **state)
{
    (void)state;
    const char *const bad[] = {
        "",
        "c1c1c1",
        "dd05f5e100",                             /* 10^8 items in 5 bytes */
        "01",                                     /* a number */
        "91 01",                                  /* one element */
        "92 c0 90",                               /* no timestamp */
        "92 01 80",                               /* events are a map */
        "92 01 90 00",                            /* a trailing byte */
        "92 01 dd ffffffff",                      /* a count that is too large */
        "81 a2 7473 01",                          /* a map without events */
        "82 01 02 03 04",                         /* a map with other keys */
        "92 01 91 91 91 91 91 91 91 91 91 91 90", /* too deep */
    };
    struct kvb_event_batch batch = { 0 };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const kvb_status status = decode_hex(bad[i], &batch);
        assert_true(status == KVB_BAD_INPUT || status == KVB_TOO_LARGE);
        assert_int_equal(batch.event_count, 0);
    }
    kvb_event_batch_done(&batch);
}

/* ---- Extra keys ---- */

static void extra_keys_become_salt_ids_or_unmatchable(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };

    /* three blocks of one token; lora "ad"; extras:
     * ["ad", "s"]   ["img", "00..00ff" (64 digits)]   [bin] */
    assert_ok(decode_hex(
        "92 01 91 99 " STORED "93 01 02 03 c0 93 05 06 07 01 c0 c0 a2 6164 93"
        " 92 a2 6164 a1 73"
        " 92 a3 696d67 d9 40"
        " 30303030303030303030303030306666 30303030303030303030303030303030"
        " 30303030303030303030303030303030 30303030303030303030303030303030"
        " 91 c4 01 00",
        &batch));
    const struct kvb_engine_event *event = &batch.events[0];
    assert_int_equal(event->kind, KVB_EVENT_STORED);
    assert_int_equal(event->extra_count, 3);
    assert_int_equal(kvb_event_batch_text(&batch, event->salt).len, 1);
    const struct kvb_block_extra *extras = batch.extras + event->extra_at;
    assert_int_equal(extras[0].key_count, 0);
    assert_false(extras[0].unmatchable);
    assert_int_equal(extras[1].key_count, 2);
    const kvb_span img = { (const uint8_t *)"img", 3 };
    assert_true(batch.keys[extras[1].key_at] == kvb_hash64(img, 0));
    assert_int_equal(batch.keys[extras[1].key_at + 1], 0xff);
    assert_true(extras[2].unmatchable);
    kvb_event_batch_done(&batch);
}

static void a_salt_is_found_in_every_place_where_engines_put_it(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        /* SGLang: {"cache_salt": "s"} in the field lora_name, also when there is a lora_id */
        { "92 01 91 98 " STORED "91 01 c0 91 05 01 c0 c0 81 aa 63616368655f73616c74 a1 73",
          "stored device root 1 size 1 tokens 5 salt s;" },
        { "92 01 91 98 " STORED "91 01 c0 91 05 01 07 c0 82 01 02 aa 63616368655f73616c74 a1 73",
          "skipped bad_stored;" }, /* a key that is no text */
        { "92 01 91 98 " STORED "91 01 c0 91 05 01 07 c0 81 aa 63616368655f73616c74 a1 73",
          "stored device root 1 size 1 tokens 5 lora lora_id:7 salt s;" },
        { "92 01 91 98 " STORED "91 01 c0 91 05 01 c0 c0 81 aa 63616368655f73616c74 c0",
          "stored device root 1 size 1 tokens 5;" },
        { "92 01 91 98 " STORED "91 01 c0 91 05 01 c0 c0 81 aa 63616368655f73616c74 05",
          "skipped bad_stored;" },
        /* vLLM: after the LoRA name, even if it is the same text */
        { "92 01 91 99 " STORED "91 01 c0 91 05 01 c0 c0 a2 6164 91 92 a2 6164 a2 6164",
          "stored device root 1 size 1 tokens 5 lora ad salt ad;" },
    };
    CHECK_CASES(cases);
}

/* ---- Ceilings ---- */

/* count Stored events, each with a LoRA name of text_len bytes, then one Removed. */
static kvb_status
decode_long_names(uint16_t count, uint16_t text_len, struct kvb_event_batch *batch)
{
    const uint8_t before[] = "\x98\xab"
                             "BlockStored\x91\x01\xc0\x91\x05\x01\xc0\xc0\xda";
    const uint8_t after[] = "\x92\xac"
                            "BlockRemoved\x91\x02";
    const size_t each = sizeof before - 1 + 2 + text_len;
    const size_t len = 5 + count * each + sizeof after - 1;
    const uint16_t events = (uint16_t)(count + 1);
    uint8_t *bytes = malloc(len);

    assert_non_null(bytes);
    memcpy(
        bytes, (const uint8_t[]){ 0x92, 0x01, 0xdc, (uint8_t)(events >> 8), (uint8_t)events }, 5);
    for (uint16_t i = 0; i < count; i++) {
        uint8_t *at = bytes + 5 + i * each;
        memcpy(at, before, sizeof before - 1);
        at += sizeof before - 1;
        at[0] = (uint8_t)(text_len >> 8);
        at[1] = (uint8_t)text_len;
        memset(at + 2, 'x', text_len);
    }
    memcpy(bytes + len - (sizeof after - 1), after, sizeof after - 1);
    const kvb_status status = kvb_engine_batch_decode((kvb_span){ bytes, len }, batch);
    free(bytes);
    return status;
}

static void a_text_too_long_costs_only_its_event(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };

    assert_ok(decode_long_names(1, kvb_max_string_bytes, &batch));
    assert_int_equal(batch.events[0].lora_name.len, kvb_max_string_bytes);
    assert_ok(decode_long_names(2, kvb_max_string_bytes + 1, &batch));
    assert_string_equal(
        line_of(&batch), "skipped bad_stored; skipped bad_stored; removed device 2;");
    assert_int_equal(batch.text_len, 0);
    assert_int_equal(batch.token_count, 0); /* nothing of the skipped events is left */
    assert_int_equal(batch.hash_count, 1);
    kvb_event_batch_done(&batch);
}

/* ---- Whole recordings ---- */

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

/* Every prefix of a good batch is refused; no read goes beyond its end (ASan). */
static void a_batch_that_is_cut_anywhere_is_refused(void **state)
{
    (void)state;
    char *text = read_text_file("vectors/engine-events.txt");
    struct kvb_event_batch batch = { 0 };
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(hex_of_vector(text, "v022_stored_array_full"), &len);

    for (size_t cut = 0; cut < len; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1);
        assert_non_null(copy);
        memcpy(copy, bytes, cut);
        assert_int_equal(kvb_engine_batch_decode((kvb_span){ copy, cut }, &batch), KVB_BAD_INPUT);
        free(copy);
    }
    kvb_event_batch_done(&batch);
    free(bytes);
    free(text);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    char *text = read_text_file("vectors/engine-events.txt");
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(hex_of_vector(text, "v022_stored_array_full"), &len);
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_event_batch batch = { 0 };
        fail_alloc_after(n);
        status = kvb_engine_batch_decode((kvb_span){ bytes, len }, &batch);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || batch.event_count == 0);
        kvb_event_batch_done(&batch);
        assert_true(n < 50);
    }
    assert_ok(status);
    free(bytes);
    free(text);
}

SUITE(engine_batch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_invalid_event_affects_no_other),
        cmocka_unit_test(a_reset_may_be_of_one_tier),
        cmocka_unit_test(a_batch_comes_as_a_map_or_with_more_elements_too),
        cmocka_unit_test(an_invalid_batch_is_refused),
        cmocka_unit_test(extra_keys_become_salt_ids_or_unmatchable),
        cmocka_unit_test(a_salt_is_found_in_every_place_where_engines_put_it),
        cmocka_unit_test(a_text_too_long_costs_only_its_event),
        cmocka_unit_test(a_real_engines_recording_is_decoded_completely),
        cmocka_unit_test(a_batch_that_is_cut_anywhere_is_refused),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
