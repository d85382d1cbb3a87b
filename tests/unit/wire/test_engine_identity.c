#include "kvb_test.h"

#include "batch_line.h"
#include "core/buf.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "json_pack.h"
#include "wire/engine/batch.h"

#include <stdio.h>
#include <string.h>

/* What distinguishes two blocks with equal tokens, engine by engine: salts, adapters, media and
 * lookahead tokens. Also which cache group and which model an event is about. */

struct case_of_event {
    const char *event; /* the event as JSON, or some of its fields: see check_stored() */
    const char *want;  /* the expected line */
};

/* The event is between two good ones, which it must not affect. */
static void check_event(const char *event, const char *want)
{
    const char *good = "{\"type\": \"BlockRemoved\", \"block_hashes\": [9], \"medium\": null}";
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;
    char json[4096];
    char line[4096];

    const int len = snprintf(json, sizeof json, "[1, [%s, %s, %s]]", good, event, good);
    assert_true(len > 0 && (size_t)len < sizeof json);
    (void)snprintf(line, sizeof line, "removed device 9; %s; removed device 9;", want);
    kvb_buf_init(&bytes, 1 << 16);
    pack_json(json, &bytes);
    assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &batch));
    if (strcmp(line_of(&batch), line) != 0) {
        print_error("%s\n", event);
    }
    assert_string_equal(line_of(&batch), line);
    kvb_event_batch_done(&batch);
    kvb_buf_done(&bytes);
}

static void check_events(const struct case_of_event *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        check_event(cases[i].event, cases[i].want);
    }
}

/* An event of two blocks of one token, with these fields added. */
static void check_stored(const struct case_of_event *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char event[4096];
        (void)snprintf(
            event, sizeof event,
            "{\"type\": \"BlockStored\", \"block_hashes\": [1, 2], \"token_ids\": [5, 6], "
            "\"block_size\": 1, \"lora_id\": null, %s}",
            cases[i].event);
        check_event(event, cases[i].want);
    }
}

#define CHECK_EVENTS(cases) check_events(cases, sizeof(cases) / sizeof(cases)[0])
#define CHECK_STORED(cases) check_stored(cases, sizeof(cases) / sizeof(cases)[0])

#define ROOT "\"parent_block_hash\": null, "
#define CHILD "\"parent_block_hash\": 7, "
#define PLAIN_ROOT "stored device root 1,2 size 1 tokens 5 6"
#define PLAIN_CHILD "stored device after 7 1,2 size 1 tokens 5 6"
#define HEX_64 "00000000000000aa000000000000000000000000000000000000000000000000"

/* ---- SGLang ---- */

static void sglang_names_the_salt_on_every_event(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { ROOT "\"cache_salt\": \"s\"", PLAIN_ROOT " salt s" },
        { CHILD "\"cache_salt\": \"s\"", PLAIN_CHILD " salt s" },
        { CHILD "\"cache_salt\": \"s\", \"session_id\": \"x\", \"lora_name\": \"ad\"",
          PLAIN_CHILD " lora ad salt s" },
        { CHILD "\"session_id\": \"x\"", PLAIN_CHILD },
        { CHILD "\"session_id\": [[7], {}]", PLAIN_CHILD },
        { ROOT "\"cache_salt\": \"" HEX_64 "\"", PLAIN_ROOT " salt " HEX_64 },
        { ROOT "\"cache_salt\": null", PLAIN_ROOT },
        { ROOT "\"cache_salt\": \"\"", PLAIN_ROOT },
        /* the older form, also on a child */
        { CHILD "\"lora_name\": {\"cache_salt\": \"s\", \"session_id\": \"x\"}",
          PLAIN_CHILD " salt s" },
    };
    CHECK_STORED(cases);
}

static void two_salts_of_an_event_must_be_equal(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { CHILD "\"cache_salt\": \"s\", \"lora_name\": {\"cache_salt\": \"s\"}",
          PLAIN_CHILD " salt s" },
        { CHILD "\"cache_salt\": \"s\", \"lora_name\": {\"cache_salt\": \"t\"}",
          "skipped bad_stored" },
        { ROOT "\"cache_salt\": \"s\", \"extra_keys\": [[\"s\"], null]", PLAIN_ROOT " salt s" },
        { ROOT "\"cache_salt\": \"s\", \"extra_keys\": [[\"t\"], null]", "skipped bad_stored" },
        { ROOT "\"cache_salt\": \"ad\", \"lora_name\": \"ad\", \"extra_keys\": [[\"ad\", \"ad\"]]",
          PLAIN_ROOT " lora ad salt ad" },
    };
    CHECK_STORED(cases);
}

static void an_invalid_salt_costs_its_event(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { ROOT "\"cache_salt\": 5", "skipped bad_stored" },
        { ROOT "\"cache_salt\": 'bytes'", "skipped bad_stored" },
        { ROOT "\"cache_salt\": [\"s\"]", "skipped bad_stored" },
        { ROOT "\"cache_salt\": {\"cache_salt\": \"s\"}", "skipped bad_stored" },
        { ROOT "\"lora_name\": {\"cache_salt\": [\"s\"]}", "skipped bad_stored" },
    };
    CHECK_STORED(cases);
}

static void a_salt_above_the_ceiling_is_unmatchable(void **state)
{
    (void)state;
    char salt[kvb_max_string_bytes + 2];
    char fields[2048];

    memset(salt, 's', sizeof salt - 1);
    salt[sizeof salt - 1] = '\0';
    (void)snprintf(fields, sizeof fields, CHILD "\"cache_salt\": \"%s\"", salt);
    check_stored(&(struct case_of_event){ fields, "skipped unmatchable" }, 1);
    salt[kvb_max_string_bytes] = '\0';
    (void)snprintf(fields, sizeof fields, CHILD "\"cache_salt\": \"%s\"", salt);
    char want[2048];
    (void)snprintf(want, sizeof want, PLAIN_CHILD " salt %s", salt);
    check_stored(&(struct case_of_event){ fields, want }, 1);
}

/* ---- vLLM ---- */

static void a_bare_text_is_the_salt_even_if_it_looks_like_an_id(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { ROOT "\"extra_keys\": [[\"" HEX_64 "\"], null]", PLAIN_ROOT " salt " HEX_64 },
        { ROOT "\"lora_name\": \"" HEX_64 "\", \"extra_keys\": [[\"" HEX_64 "\", \"" HEX_64
               "\"], [\"" HEX_64 "\"]]",
          PLAIN_ROOT " lora " HEX_64 " salt " HEX_64 },
        /* media, then the salt, then an embedding */
        { ROOT "\"extra_keys\": [[[\"" HEX_64 "\", 0], \"s\", 'e'], [[\"" HEX_64 "\", -1]]]",
          PLAIN_ROOT " salt s media aa?,aa" },
        /* the adapter's name, if there is one, is the first item */
        { ROOT "\"lora_name\": \"ad\", \"extra_keys\": [[[\"" HEX_64 "\", 0], \"ad\"]]",
          PLAIN_ROOT " lora ad salt ad media aa,-" },
        { ROOT "\"lora_name\": null, \"extra_keys\": [[\"ad\"]]", PLAIN_ROOT " salt ad" },
        { CHILD "\"lora_name\": \"ad\", \"extra_keys\": [[\"ad\"], [\"ad\"]]",
          PLAIN_CHILD " lora ad" },
        /* neither a child nor a prompt's second block has a salt of its own */
        { CHILD "\"extra_keys\": [[\"" HEX_64 "\"], null]", PLAIN_CHILD " media ?,-" },
        { ROOT "\"extra_keys\": [null, [\"s\"]]", PLAIN_ROOT " media -,?" },
        { ROOT "\"extra_keys\": [[\"s\", \"t\"], null]", PLAIN_ROOT " salt s media ?,-" },
    };
    CHECK_STORED(cases);
}

#define OLD(parent, lora, extra)                                                                   \
    "[\"BlockStored\", [1, 2], " parent ", [5, 6], 1, null, null, " lora ", " extra "]"
#define WITH_GROUP(extra)                                                                          \
    "[\"BlockStored\", [1, 2], null, [5, 6], 1, null, null, null, " extra ", null]"

/* Arrays without the field group_idx may contain media as bare texts. */
static void an_old_vllm_writes_media_as_bare_ids(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { OLD("null", "null", "[[\"" HEX_64 "\"], [\"" HEX_64 "\"]]"), PLAIN_ROOT " media aa,aa" },
        { OLD("null", "null", "[[\"s\"], null]"), PLAIN_ROOT " salt s" },
        { OLD("null", "\"ad\"", "[[\"ad\", \"" HEX_64 "\", \"s\"], [\"ad\"]]"),
          PLAIN_ROOT " lora ad salt s media aa,-" },
        { OLD("7", "null", "[[\"" HEX_64 "\"], [\"\"]]"),
          PLAIN_CHILD " media aa,2d06800538d394c2" },
        { WITH_GROUP("[[\"" HEX_64 "\"], null]"), PLAIN_ROOT " salt " HEX_64 },
        { WITH_GROUP("[null, [\"" HEX_64 "\"]]"), PLAIN_ROOT " media -,?" },
    };
    CHECK_EVENTS(cases);
}

static void lookahead_tokens_follow_each_block(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { ROOT "\"lookahead_token_ids\": [[6], [7]]", PLAIN_ROOT " behind 6 7" },
        { ROOT "\"lookahead_token_ids\": [[6, 7], [7, 4294967295]]",
          PLAIN_ROOT " behind 6 7 7 4294967295" },
        { ROOT "\"lookahead_token_ids\": [[], null]", PLAIN_ROOT },
        { ROOT "\"lookahead_token_ids\": null", PLAIN_ROOT },
        { ROOT "\"lookahead_token_ids\": [[6], [7, 8]]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [[6], []]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [[6], null]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [null, [7]]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [[6]]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [[6], [7], [8]]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [6, 7]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [[[6]], [[7]]]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [[-1], [7]]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": [[\"6\"], [7]]", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": {}", "skipped bad_stored" },
        { ROOT "\"lookahead_token_ids\": 1", "skipped bad_stored" },
    };
    CHECK_STORED(cases);
}

static void append_times(char *text, size_t room, const char *more, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        const size_t len = strlen(text);
        (void)snprintf(text + len, room - len, "%s", more);
    }
}

static void lookahead_tokens_have_a_ceiling(void **state)
{
    (void)state;
    for (unsigned count = kvb_max_lookahead_tokens; count <= kvb_max_lookahead_tokens + 1;
         count++) {
        char list[512] = "";
        char fields[2048];
        append_times(list, sizeof list, "1,", count);
        (void)snprintf(
            fields, sizeof fields, ROOT "\"lookahead_token_ids\": [[%s], [%s]]", list, list);
        char want[2048] = "skipped bad_stored";
        if (count == kvb_max_lookahead_tokens) {
            (void)snprintf(want, sizeof want, PLAIN_ROOT " behind");
            append_times(want, sizeof want, " 1", 2 * count);
        }
        check_stored(&(struct case_of_event){ fields, want }, 1);
    }
}

#define PAIRED(fields)                                                                             \
    "{\"type\": \"BlockStored\", \"block_hashes\": [1], \"parent_block_hash\": null, "             \
    "\"token_ids\": [[1, 2], [2, 3]], \"block_size\": 2, " fields "}"
#define TOKENLESS(fields)                                                                          \
    "{\"type\": \"BlockStored\", \"block_hashes\": [1], \"parent_block_hash\": null, "             \
    "\"token_ids\": [], \"block_size\": 2, " fields "}"

static void pairs_and_lookahead_tokens_must_agree(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { PAIRED("\"lora_name\": null"), "stored device root 1 size 2 tokens 1 2 behind 3" },
        { PAIRED("\"lookahead_token_ids\": [[3]]"),
          "stored device root 1 size 2 tokens 1 2 behind 3" },
        { PAIRED("\"lookahead_token_ids\": [[4]]"), "skipped bad_stored" },
        { PAIRED("\"lookahead_token_ids\": [[]]"), "skipped bad_stored" },
        { PAIRED("\"lookahead_token_ids\": [[3, 4]]"), "skipped bad_stored" },
        /* without tokens blocks are known only by their hashes */
        { TOKENLESS("\"lookahead_token_ids\": []"), "stored device root 1 size 2 tokens" },
        { TOKENLESS("\"lookahead_token_ids\": [[3]]"), "stored device root 1 size 2 tokens" },
        { TOKENLESS("\"lookahead_token_ids\": 3"), "skipped bad_stored" },
    };
    CHECK_EVENTS(cases);
}

/* ---- vLLM's groups ---- */

#define KIND(kind) "\"group_idx\": 1, \"kv_cache_spec_kind\": \"" kind "\""
#define WINDOW(tokens) "\"kv_cache_spec_sliding_window\": " tokens

static void a_group_kind_tells_which_blocks_a_request_needs(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { ROOT "\"group_idx\": 0", PLAIN_ROOT " group 0" },
        { ROOT KIND("full_attention"), PLAIN_ROOT " group 1" },
        { ROOT KIND("full_attention") ", " WINDOW("64"), PLAIN_ROOT " group 1" },
        { ROOT KIND("full_attention") ", " WINDOW("\"x\""), PLAIN_ROOT " group 1" },
        { ROOT KIND("mla_attention"), PLAIN_ROOT " group 1" },
        { ROOT KIND("sink_full_attention"), PLAIN_ROOT " group 1" },
        { ROOT KIND("sliding_window") ", " WINDOW("64"), PLAIN_ROOT " group 1 window 64" },
        { ROOT KIND("sliding_window_mla") ", " WINDOW("64"), PLAIN_ROOT " group 1 window 64" },
        { ROOT KIND("sliding_window"), "skipped not_prefix group 1 other kind" },
        { ROOT KIND("sliding_window") ", " WINDOW("0"), "skipped not_prefix group 1 other kind" },
        { ROOT KIND("mamba"), PLAIN_ROOT " group 1 window 2" },
        { ROOT KIND("chunked_local_attention") ", " WINDOW("64"), PLAIN_ROOT " group 1" },
        { ROOT KIND("cross_attention"), "skipped not_prefix group 1 cross kind" },
        { ROOT KIND("encoder_only_attention"), "skipped not_prefix group 1 encoder kind" },
        { ROOT KIND("unknown"), "skipped not_prefix group 1 other kind" },
        { ROOT KIND(""), "skipped not_prefix group 1 other kind" },
        { ROOT "\"kv_cache_spec_kind\": 7", "skipped not_prefix other kind" },
        { ROOT "\"kv_cache_spec_kind\": null", PLAIN_ROOT },
        { ROOT KIND("mamba") ", " WINDOW("\"x\""), PLAIN_ROOT " group 1 window 2" },
        { ROOT KIND("sliding_window") ", " WINDOW("\"x\""), "skipped bad_stored group 1 window 0" },
        { ROOT KIND("sliding_window") ", " WINDOW("-1"), "skipped bad_stored group 1 window 0" },
        { ROOT KIND("sliding_window") ", " WINDOW("4294967296"),
          "skipped bad_stored group 1 window 0" },
        { ROOT KIND("sliding_window") ", " WINDOW("[64]"), "skipped bad_stored group 1 window 0" },
        { ROOT KIND("sliding_window") ", \"locality\": \"REMOTE\", " WINDOW("64"),
          "skipped remote group 1 window 64" },
    };
    CHECK_STORED(cases);
}

#define WINDOW_STORED(hashes, tokens, fields)                                                      \
    "{\"type\": \"BlockStored\", \"block_hashes\": " hashes ", \"parent_block_hash\": 7, "         \
    "\"token_ids\": " tokens ", \"block_size\": 2, " KIND("sliding_window") ", " WINDOW("4")       \
        fields "}"

static void a_sparse_window_is_recognised_by_its_hashes(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { WINDOW_STORED("[1, 2]", "[1, 2, 3, 4]", ""),
          "stored device after 7 1,2 size 2 tokens 1 2 3 4 group 1 window 4" },
        { WINDOW_STORED("[2]", "[1, 2, 3, 4]", ""),
          "stored device after 7 2 size 2 tokens group 1 window 4 sparse" },
        { WINDOW_STORED("[]", "[1, 2, 3, 4]", ""),
          "stored device after 7 size 2 tokens group 1 window 4 sparse" },
        { WINDOW_STORED(
              "[2]", "[1, 2, 3, 4]",
              ", \"lookahead_token_ids\": [[5]], "
              "\"extra_keys\": [[\"s\"], [7]], \"mm_keys\": 5"),
          "stored device after 7 2 size 2 tokens group 1 window 4 sparse" },
        { WINDOW_STORED("[2]", "[[1, 2], [2, 3], [3, 4], [4, 5]]", ""),
          "stored device after 7 2 size 2 tokens group 1 window 4 sparse" },
        { WINDOW_STORED("[2]", "[]", ""),
          "stored device after 7 2 size 2 tokens group 1 window 4" },
        { WINDOW_STORED("[]", "[]", ""), "stored device after 7 size 2 tokens group 1 window 4" },
        { WINDOW_STORED("[1, 2]", "[1, 2, 3]", ""), "skipped bad_stored group 1 window 4" },
        { WINDOW_STORED("5", "[1, 2, 3]", ""), "skipped bad_stored group 1 window 4" },
        /* as an array: the positions of kind and window */
        { "[\"BlockStored\", [2], null, [1, 2, 3], 2, null, null, null, null, 1, "
          "\"sliding_window\", 4]",
          "stored device root 2 size 2 tokens group 1 window 4 sparse" },
        /* full attention: the tokens belong to the first blocks */
        { "[\"BlockStored\", [2], null, [1, 2, 3], 2, null, null, null, null, 1, "
          "\"full_attention\", null]",
          "stored device root 2 size 2 tokens 1 2 3 group 1" },
    };
    CHECK_EVENTS(cases);
}

static void a_removal_contains_its_group(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { "[\"BlockRemoved\", [5], \"GPU\", 1]", "removed device 5 group 1" },
        { "{\"type\": \"BlockRemoved\", \"block_hashes\": [5], \"group_idx\": 1}",
          "removed device 5 group 1" },
        /* in a removal a kind needs no window length */
        { "{\"type\": \"BlockRemoved\", \"block_hashes\": [5], " KIND("sliding_window") "}",
          "removed device 5 group 1 window 0" },
        { "{\"type\": \"BlockRemoved\", \"block_hashes\": [5], " KIND("mamba") "}",
          "removed device 5 group 1 window 0" },
        { "{\"type\": \"BlockRemoved\", \"block_hashes\": [5], " KIND("cross_attention") "}",
          "skipped not_prefix group 1 cross kind" },
    };
    CHECK_EVENTS(cases);
}

/* ---- TensorRT-LLM ---- */

#define MM(hash, offset)                                                                           \
    "{\"type\": \"mm_key\", \"hash\": \"" hash "\", \"start_offset\": " offset "}"

static void mm_keys_count_with_hash_and_offset(void **state)
{
    (void)state;
    const uint64_t pair[] = { 0xaa, 2 };
    char want[256];
    (void)snprintf(
        want, sizeof want, PLAIN_ROOT " media aa+%llx,-",
        (unsigned long long)kvb_hash64((kvb_span){ (const uint8_t *)pair, sizeof pair }, 0));
    const struct case_of_event cases[] = {
        { ROOT "\"mm_keys\": [[" MM(HEX_64, "0") "], []]", PLAIN_ROOT " media aa,-" },
        { ROOT "\"mm_keys\": [[" MM(HEX_64, "0") ", " MM(HEX_64, "2") "], null]", want },
        /* a uuid and unknown fields are ignored; a missing offset is 0 */
        { ROOT "\"mm_keys\": [[{\"uuid\": \"u\", \"x\": [1], \"hash\": \"" HEX_64 "\"}]]",
          PLAIN_ROOT " media aa,-" },
        { ROOT "\"mm_keys\": [[{\"type\": \"new_key\", \"x\": 1}]]", PLAIN_ROOT " media ?,-" },
        { ROOT "\"mm_keys\": [[{\"type\": 5, \"hash\": \"x\"}]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[], []]", PLAIN_ROOT },
        { ROOT "\"mm_keys\": []", PLAIN_ROOT },
        { ROOT "\"mm_keys\": null", PLAIN_ROOT },
        { ROOT "\"mm_keys\": [[], [], [" MM(HEX_64, "0") "]]", PLAIN_ROOT },
        { ROOT "\"mm_keys\": [[{\"hash\": 5, \"start_offset\": 0}]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[{\"start_offset\": 0}]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[{\"hash\": \"\", \"start_offset\": 0}]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[" MM(HEX_64, "-1") "]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[" MM(HEX_64, "\"0\"") "]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[{5: \"x\"}]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[\"" HEX_64 "\"]]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [" MM(HEX_64, "0") "]", "skipped bad_stored" },
        { ROOT "\"mm_keys\": {}", "skipped bad_stored" },
        { ROOT "\"mm_keys\": [[]], \"extra_keys\": [[]]", "skipped bad_stored" },
    };
    CHECK_STORED(cases);
}

#define TOKENS(tokens)                                                                             \
    "{\"type\": \"BlockStored\", \"block_hashes\": [1, 2], \"parent_block_hash\": null, "          \
    "\"token_ids\": " tokens ", \"block_size\": 2}"

static void a_text_in_place_of_a_token_costs_only_its_block(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { TOKENS("[1, 2, \"ab\", 4]"), "stored device root 1,2 size 2 tokens 1 2 0 4 media -,?" },
        { TOKENS("[\"1\", 2, \"3\", 4]"),
          "stored device root 1,2 size 2 tokens 0 2 0 4 media ?,?" },
        { TOKENS("[1, 2, 3, 4, \"5\"]"), "stored device root 1,2 size 2 tokens 1 2 3 4 0" },
        { TOKENS("[1, 2, 'ab', 4]"), "skipped bad_stored" },
        { TOKENS("[1, 2, \"ab\", -4]"), "skipped bad_stored" },
        { TOKENS("[\"ab\"]"), "skipped bad_stored" },
        { TOKENS("[[\"a\", 2], [2, 3], [3, 4], [4, 5]]"), "skipped bad_stored" },
    };
    CHECK_EVENTS(cases);
}

/* ---- Mooncake ---- */

#define OBJECT(model, hash, parent, tokens)                                                        \
    "[\"BlockStoreEvent\", \"42\", [[\"memory\", \"tcp://127.0.0.1:6000\"]], " model               \
    ", 512, " hash ", " parent ", " tokens "]"

static void an_object_names_its_model(void **state)
{
    (void)state;
    const struct case_of_event cases[] = {
        { OBJECT("\"m\"", "\"7\"", "\"\"", "[]"),
          "stored host root 7 size 0 tokens by key model m" },
        { OBJECT("\"\"", "\"7\"", "\"\"", "[]"), "stored host root 7 size 0 tokens by key" },
        { OBJECT("null", "\"7\"", "\"\"", "[]"), "stored host root 7 size 0 tokens by key" },
        { OBJECT("5", "\"7\"", "\"\"", "[]"), "skipped bad_stored" },
        { OBJECT("[\"m\"]", "\"7\"", "\"\"", "[]"), "skipped bad_stored" },
        { "[\"BlockUpdateEvent\", \"42\", [[\"disk\", \"/data\"]], \"m\"]",
          "stored disk root 2a size 0 tokens by key model m; removed host 2a by key model m; "
          "removed external 2a by key model m" },
        /* a possible removal counts even if its model cannot be read */
        { "[\"BlockUpdateEvent\", \"42\", [[\"disk\", \"/data\"]], 5]",
          "stored disk root 2a size 0 tokens by key; removed host 2a by key; "
          "removed external 2a by key" },
        { "{\"type\": \"BlockStored\", \"seq_hashes\": [5], \"model\": \"m\"}",
          "stored device root 5 size 0 tokens model m" },
        { "{\"event_type\": \"removed\", \"seq_hashes\": [5], \"model_name\": \"m\"}",
          "removed device 5 model m" },
        { "{\"event_type\": \"removed\", \"seq_hashes\": [5], \"model_name\": {}}",
          "removed device 5" },
        { "{\"event_type\": \"cleared\", \"model_name\": \"m\"}", "cleared all model m" },
    };
    CHECK_EVENTS(cases);
}

/* A text that is not a number is a name too, the same for block and parent. */
static void a_hash_may_be_any_text(void **state)
{
    (void)state;
    const kvb_span text = { (const uint8_t *)"9f-x", 4 };
    const unsigned long long hash = kvb_hash64(text, 0);
    char want[2][256];
    (void)snprintf(want[0], sizeof want[0], "stored host root %llx size 1 tokens 5 by key", hash);
    (void)snprintf(
        want[1], sizeof want[1], "stored host after %llx 2a size 1 tokens 5 by key", hash);
    const struct case_of_event cases[] = {
        { OBJECT("\"\"", "\"9f-x\"", "\"\"", "[5]"), want[0] },
        { OBJECT("\"\"", "\"0x2a\"", "\"9f-x\"", "[5]"), want[1] },
        { OBJECT("\"\"", "[7]", "\"\"", "[5]"), "skipped bad_stored" },
    };
    CHECK_EVENTS(cases);
}

/* The first event of a batch of one. */
static struct kvb_engine_event decoded(const char *event)
{
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;
    char json[1024];

    (void)snprintf(json, sizeof json, "[1, [%s]]", event);
    kvb_buf_init(&bytes, 1 << 16);
    pack_json(json, &bytes);
    assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &batch));
    const struct kvb_engine_event first = batch.events[0];
    kvb_event_batch_done(&batch);
    kvb_buf_done(&bytes);
    return first;
}

static void a_parent_0_is_none_unless_a_block_has_the_hash_0(void **state)
{
#define STORED_BEHIND(hash, parent)                                                                \
    "[\"BlockStored\",[" hash "]," parent ",[5],1,null,\"GPU\",null,[[\"s\"]]]"
    static const struct {
        const char *events;
        bool has_zero_hash, has_parent, is_salted; /* of the last event */
    } rows[] = {
        { STORED_BEHIND("1", "0"), false, false, true },
        { STORED_BEHIND("1", "0"), true, true, false },
        { STORED_BEHIND("0", "null") "," STORED_BEHIND("1", "0"), false, true, false },
        { "[\"BlockRemoved\",[0]]," STORED_BEHIND("1", "0"), false, true, false },
        { STORED_BEHIND("1", "7"), false, true, false },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const struct kvb_engine_habits habits = { .has_zero_hash = rows[i].has_zero_hash };
        struct kvb_event_batch batch = { 0 };
        struct kvb_buf bytes;
        char json[2048];
        (void)snprintf(json, sizeof json, "[1, [%s]]", rows[i].events);
        kvb_buf_init(&bytes, 1 << 16);
        pack_json(json, &bytes);
        assert_ok(kvb_engine_batch_decode_further(kvb_buf_span(&bytes), habits, &batch));
        const struct kvb_engine_event *last = &batch.events[batch.event_count - 1];
        assert_int_equal(last->kind, KVB_EVENT_STORED);
        assert_int_equal(last->has_parent, rows[i].has_parent);
        assert_int_equal(last->salt.len > 0, rows[i].is_salted);
        kvb_event_batch_done(&batch);
        kvb_buf_done(&bytes);
    }
}

static void a_pair_shows_that_a_bare_text_is_the_salt(void **state)
{
#define HEX16 "0123456789abcdef"
#define HEX64 HEX16 HEX16 HEX16 HEX16
    static const char stored[] = "[\"BlockStored\",[1,2],null,[5,6],1,null,\"GPU\",null,%s]";
    static const struct {
        const char *keys;
        bool knows_pairs, is_salt, is_unsure, has_pairs;
    } rows[] = {
        { "[[\"" HEX64 "\"],null]", false, false, true, false },
        { "[[\"" HEX64 "\"],null]", true, true, false, true },
        { "[[\"" HEX64 "\"],[[\"img\",7]]]", false, true, false, true }, /* behind it */
        { "[[\"salt\"],null]", false, true, false, false },
        { "[null,[[\"img\",7]]]", false, false, false, true },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_event_batch batch = { 0 };
        struct kvb_buf bytes;
        char event[1024];
        char json[2048];
        (void)snprintf(event, sizeof event, stored, rows[i].keys);
        (void)snprintf(json, sizeof json, "[1, [%s]]", event);
        kvb_buf_init(&bytes, 1 << 16);
        pack_json(json, &bytes);
        assert_ok(kvb_engine_batch_decode_further(
            kvb_buf_span(&bytes), (struct kvb_engine_habits){ .has_pairs = rows[i].knows_pairs },
            &batch));
        assert_int_equal(batch.events[0].kind, KVB_EVENT_STORED);
        assert_int_equal(batch.events[0].salt.len > 0, rows[i].is_salt);
        assert_int_equal(batch.events[0].is_salt_unsure, rows[i].is_unsure);
        assert_int_equal(batch.habits.has_pairs, rows[i].has_pairs);
        kvb_event_batch_done(&batch);
        kvb_buf_done(&bytes);
    }
}

static void what_an_event_leaves_unsaid_is_known(void **state)
{
    static const struct {
        const char *event;
        bool is_of_connector, has_extra_keys;
    } stored[] = {
        { "{\"type\":\"BlockStored\",\"block_hashes\":[1],\"token_ids\":[5],\"block_size\":1,"
          "\"medium\":\"CPU\",\"group_idx\":0}",
          true, false },
        { "{\"type\":\"BlockStored\",\"block_hashes\":[1],\"token_ids\":[5],\"block_size\":1,"
          "\"extra_keys\":null,\"group_idx\":0}",
          true, false },
        { "{\"type\":\"BlockStored\",\"block_hashes\":[1],\"token_ids\":[5],\"block_size\":1,"
          "\"extra_keys\":[null],\"group_idx\":0}",
          false, true },
        { "{\"type\":\"BlockStored\",\"block_hashes\":[1],\"token_ids\":[5],\"block_size\":1}",
          false, false },
        { "[\"BlockStored\",[1],null,[5],1,null,\"CPU\",null,null,0]", false, false },
        { "[\"BlockStored\",[1],null,[5],1,null,\"CPU\",null,[null],0]", false, true },
    };
    static const struct {
        const char *event;
        bool all_tiers, leaves_tiers;
    } cleared[] = {
        { "[\"AllBlocksCleared\"]", true, true },
        { "{\"type\":\"AllBlocksCleared\"}", true, true },
        { "{\"type\":\"AllBlocksCleared\",\"medium\":\"CPU\"}", false, false },
        { "{\"type\":\"TierBlocksCleared\"}", false, false },
        { "{\"event_type\":\"cleared\"}", true, false },
        { "[\"RemoveAllEvent\"]", true, false },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(stored); i++) {
        const struct kvb_engine_event event = decoded(stored[i].event);
        assert_int_equal(event.kind, KVB_EVENT_STORED);
        assert_int_equal(event.is_of_connector, stored[i].is_of_connector);
        assert_int_equal(event.has_extra_keys, stored[i].has_extra_keys);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(cleared); i++) {
        const struct kvb_engine_event event = decoded(cleared[i].event);
        assert_int_equal(event.kind, KVB_EVENT_CLEARED);
        assert_int_equal(event.all_tiers, cleared[i].all_tiers);
        assert_int_equal(event.leaves_tiers, cleared[i].leaves_tiers);
    }
}

SUITE(engine_identity)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sglang_names_the_salt_on_every_event),
        cmocka_unit_test(two_salts_of_an_event_must_be_equal),
        cmocka_unit_test(an_invalid_salt_costs_its_event),
        cmocka_unit_test(a_salt_above_the_ceiling_is_unmatchable),
        cmocka_unit_test(a_bare_text_is_the_salt_even_if_it_looks_like_an_id),
        cmocka_unit_test(an_old_vllm_writes_media_as_bare_ids),
        cmocka_unit_test(lookahead_tokens_follow_each_block),
        cmocka_unit_test(lookahead_tokens_have_a_ceiling),
        cmocka_unit_test(pairs_and_lookahead_tokens_must_agree),
        cmocka_unit_test(a_group_kind_tells_which_blocks_a_request_needs),
        cmocka_unit_test(a_sparse_window_is_recognised_by_its_hashes),
        cmocka_unit_test(a_removal_contains_its_group),
        cmocka_unit_test(mm_keys_count_with_hash_and_offset),
        cmocka_unit_test(a_text_in_place_of_a_token_costs_only_its_block),
        cmocka_unit_test(an_object_names_its_model),
        cmocka_unit_test(a_hash_may_be_any_text),
        cmocka_unit_test(what_an_event_leaves_unsaid_is_known),
        cmocka_unit_test(a_parent_0_is_none_unless_a_block_has_the_hash_0),
        cmocka_unit_test(a_pair_shows_that_a_bare_text_is_the_salt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
