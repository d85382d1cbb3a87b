#include "tokenize/chain.h"

#include "core/own.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "tokenize/cache.h"

#include <stdio.h>
#include <string.h>

enum { max_messages = 8, max_bytes = 4096 };

/* A chat, or a prompt, as an engine is asked for it. */
struct chat {
    char body[max_bytes];
    size_t bytes;
    size_t open_bytes; /* counted while it is written: the model's own */
    uint32_t ends[max_messages];
    size_t end_count;
    bool is_prompt;
};

static struct kvb_text_view view_of(const struct chat *chat)
{
    return (struct kvb_text_view){ .body = { (const uint8_t *)chat->body, chat->bytes },
                                   .ends = chat->is_prompt ? NULL : chat->ends,
                                   .end_count = chat->end_count };
}

static void append(struct chat *chat, const char *text)
{
    assert_true(chat->bytes + strlen(text) < max_bytes);
    memcpy(chat->body + chat->bytes, text, strlen(text));
    chat->bytes += strlen(text);
}

/* Each letter of `messages` is a message. */
static struct chat make_chat(const char *root, const char *messages, const char *close)
{
    struct chat chat = { .bytes = 0 };

    append(&chat, root);
    append(&chat, "\"messages\":[");
    for (size_t i = 0; messages[i]; i++) {
        char message[32];
        (void)snprintf(message, sizeof message, "%s{\"m\":\"%c\"}", i ? "," : "", messages[i]);
        append(&chat, message);
        chat.ends[chat.end_count++] = (uint32_t)chat.bytes;
    }
    chat.open_bytes = chat.bytes;
    append(&chat, close);
    return chat;
}

static struct chat make_prompt(const char *letters, size_t count, char last)
{
    struct chat prompt = { .is_prompt = true };

    append(&prompt, "{\"model\":\"m\",\"prompt\":\"");
    for (size_t i = 0; i < count; i++) {
        const char letter[] = { letters[i % strlen(letters)], '\0' };
        append(&prompt, letter);
    }
    if (last) {
        append(&prompt, (const char[]){ last, '\0' });
    }
    prompt.open_bytes = prompt.bytes;
    append(&prompt, "\"}");
    return prompt;
}

static void put(struct kvb_token_cache *cache, const struct chat *chat, uint32_t token)
{
    const struct kvb_text_view view = view_of(chat);

    assert_ok(kvb_token_cache_put(cache, &view, &token, 1, 0));
}

/* The token of the longest beginning; 0: none. */
static uint32_t find(struct kvb_token_cache *cache, const struct chat *chat, uint64_t now_ns)
{
    const struct kvb_text_view view = view_of(chat);
    const uint32_t *tokens = NULL;
    size_t count = 0;
    size_t bytes = 0;

    if (kvb_token_cache_find_beginning(cache, &view, now_ns, &tokens, &count, &bytes) != KVB_OK) {
        return 0;
    }
    assert_true(count == 1 && bytes > 0 && bytes <= chat->bytes);
    return tokens[0];
}

static void what_closes_a_text_is_not_its_beginning([[maybe_unused]] void **state)
{
    static const struct {
        const char *body;
        size_t bytes;
    } rows[] = {
        { "{\"messages\":[1]}", 14 },
        { "{\"messages\":[1 \n]}", 14 },
        { "{\"prompt\":\"a\"}", 12 },
        { "{\"prompt\":\"a  \"}", 14 },
        { "{\"prompt\":\"a]\"}", 13 },
        { "}", 0 },
        { "", 0 },
        { "]}", 0 },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_int_equal(kvb_text_open_bytes(kvb_span_of(rows[i].body)), rows[i].bytes);
    }
}

static void a_chat_begins_with_its_earlier_turns([[maybe_unused]] void **state)
{
    struct kvb_token_cache *cache = NULL;
    const struct chat one = make_chat("{\"model\":\"m\",", "ab", "]}");
    const struct chat two = make_chat("{\"model\":\"m\",", "abcd", " ]}");
    const struct chat three = make_chat("{\"model\":\"m\",", "abcdef", "]}");
    const struct chat other_model = make_chat("{\"model\":\"n\",", "abcdef", "]}");
    const struct chat other_tools = make_chat("{\"model\":\"m\",\"tools\":[1],", "abcdef", "]}");
    const struct chat fork = make_chat("{\"model\":\"m\",", "abXd", "]}");

    assert_ok(kvb_token_cache_new(1 << 20, 1000, 7, &cache));
    assert_int_equal(find(cache, &three, 0), 0);
    put(cache, &one, 1);
    assert_int_equal(find(cache, &three, 0), 1);
    put(cache, &two, 2);
    assert_int_equal(find(cache, &three, 0), 2);
    assert_int_equal(find(cache, &fork, 0), 1);
    assert_int_equal(find(cache, &other_model, 0), 0);
    assert_int_equal(find(cache, &other_tools, 0), 0);
    assert_int_equal(find(cache, &three, 1000), 0); /* too old */
    /* A later turn is no beginning of an earlier one. */
    put(cache, &three, 3);
    assert_int_equal(find(cache, &two, 0), 2);
    kvb_token_cache_free(cache);
}

static void a_prompt_begins_with_any_shorter_one([[maybe_unused]] void **state)
{
    struct kvb_token_cache *cache = NULL;
    const struct chat small = make_prompt("abc", 100, 0);
    const struct chat one = make_prompt("abc", 600, 0);
    const struct chat two = make_prompt("abc", 603, 0);
    const struct chat off = make_prompt("abc", 603, 'X');
    const struct chat long_one = make_prompt("abc", 700, 0);

    assert_ok(kvb_token_cache_new(1 << 20, 1000, 7, &cache));
    put(cache, &small, 1);
    assert_int_equal(find(cache, &long_one, 0), 0); /* shorter than a chunk: not filed */
    put(cache, &one, 2);
    put(cache, &off, 3); /* under the same place, with another end */
    assert_int_equal(find(cache, &long_one, 0), 2);
    put(cache, &two, 4);
    assert_int_equal(find(cache, &long_one, 0), 4);
    kvb_token_cache_free(cache);
}

/* Random chats and prompts against all of them compared byte by byte. */
static void the_longest_beginning_is_found([[maybe_unused]] void **state)
{
    enum { texts = 60, rounds = 2000 };
    static struct chat kept[texts];
    uint64_t random = 11;
    size_t found = 0;
    struct kvb_token_cache *cache = NULL;

    assert_ok(kvb_token_cache_new(1 << 24, UINT64_MAX, 7, &cache));
    for (size_t round = 0; round < rounds; round++) {
        const bool is_prompt = kvb_random_next(&random) % 2 == 0;
        struct chat text;
        if (is_prompt) {
            text = make_prompt(
                kvb_random_next(&random) % 2 ? "ab" : "abc", kvb_random_next(&random) % 1024, 0);
        } else {
            char messages[max_messages + 1] = "";
            const size_t count = 1 + kvb_random_next(&random) % (max_messages - 1);
            for (size_t i = 0; i < count; i++) {
                messages[i] = kvb_random_next(&random) % 4 ? 'a' : 'b';
            }
            text = make_chat("{\"model\":\"m\",", messages, "]}");
        }
        size_t want = 0;
        size_t want_bytes = 0;
        for (size_t i = 0; i < texts; i++) {
            const bool is_filed = !kept[i].is_prompt || kept[i].open_bytes >= kvb_text_chunk_bytes;
            if (kept[i].bytes > 0 && is_filed && kept[i].open_bytes <= text.open_bytes &&
                kept[i].open_bytes > want_bytes &&
                memcmp(kept[i].body, text.body, kept[i].open_bytes) == 0) {
                want = i + 1;
                want_bytes = kept[i].open_bytes;
            }
        }
        const uint32_t got = find(cache, &text, 0);
        /* Equal texts are kept once in the cache, more than once in the model. */
        assert_true((got == 0) == (want == 0));
        if (got != 0) {
            assert_int_equal(kept[got - 1].open_bytes, want_bytes);
            assert_memory_equal(kept[got - 1].body, text.body, want_bytes);
            found++;
        }
        if (round < texts) {
            kept[round] = text;
            put(cache, &text, (uint32_t)round + 1);
        }
    }
    assert_true(found > rounds / 4);
    kvb_token_cache_free(cache);
}

static void what_is_evicted_is_no_candidate([[maybe_unused]] void **state)
{
    struct kvb_token_cache *cache = NULL;
    const struct chat one = make_chat("{\"model\":\"m\",", "ab", "]}");
    const struct chat two = make_chat("{\"model\":\"m\",", "abcd", "]}");

    assert_ok(kvb_token_cache_new(1 << 20, 1000, 7, &cache));
    put(cache, &one, 1);
    const uint64_t bytes = kvb_token_cache_count(cache).bytes;
    kvb_token_cache_free(cache);
    assert_ok(kvb_token_cache_new(bytes + bytes / 2, 1000, 7, &cache));
    for (const char *root = "abcdefghijklmnopqrstuvwxy"; *root; root++) {
        const char model[] = { '{', '"', 'm', '"', ':', *root, *root, *root, *root, ',', '\0' };
        const struct chat other = make_chat(model, "ab", "]}");
        put(cache, &one, 1);
        assert_int_equal(find(cache, &two, 0), 1);
        put(cache, &other, 2);
        assert_int_equal(find(cache, &two, 0), 0);
    }
    kvb_token_cache_free(cache);
}

static void without_memory_a_text_is_not_filed([[maybe_unused]] void **state)
{
    const struct chat one = make_chat("{\"model\":\"m\",", "ab", "]}");
    const struct kvb_text_view view = view_of(&one);
    struct kvb_text_chain chain = { .seed = 7 };
    uint32_t ids[kvb_text_candidates];
    uint32_t key = 0;

    fail_alloc_after(0);
    assert_int_equal(kvb_text_chain_put(&chain, &view, 5, &key), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    assert_int_equal(kvb_text_chain_find(&chain, &view, ids), 0);
    assert_ok(kvb_text_chain_put(&chain, &view, 5, &key));
    assert_int_equal(kvb_text_chain_find(&chain, &view, ids), 1);
    assert_int_equal(ids[0], 5);
    kvb_text_chain_remove(&chain, key, 5);
    assert_int_equal(kvb_text_chain_find(&chain, &view, ids), 0);
    kvb_text_chain_done(&chain);
}

SUITE(chain)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_closes_a_text_is_not_its_beginning),
        cmocka_unit_test(a_chat_begins_with_its_earlier_turns),
        cmocka_unit_test(a_prompt_begins_with_any_shorter_one),
        cmocka_unit_test(the_longest_beginning_is_found),
        cmocka_unit_test(what_is_evicted_is_no_candidate),
        cmocka_unit_test(without_memory_a_text_is_not_filed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
