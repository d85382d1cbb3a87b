#include "tokenize/cache.h"

#include "core/random.h"
#include "fail_alloc.h"
#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { body_bytes = 40, max_tokens = 8 };

static const uint64_t age_ns = 1000;

static kvb_span body_of(unsigned number, char text[body_bytes + 1])
{
    (void)snprintf(text, body_bytes + 1, "%*u", body_bytes, number);
    return (kvb_span){ .data = (const uint8_t *)text, .len = body_bytes };
}

static kvb_status
put(struct kvb_token_cache *cache, unsigned number, uint32_t token, size_t count, uint64_t now_ns)
{
    char text[body_bytes + 1];
    uint32_t tokens[max_tokens];

    for (size_t i = 0; i < count; i++) {
        tokens[i] = token;
    }
    const struct kvb_text_view view = { .body = body_of(number, text) };
    return kvb_token_cache_put(cache, &view, tokens, count, now_ns);
}

/* The first token of the answer; 0: not found. */
static uint32_t find(struct kvb_token_cache *cache, unsigned number, uint64_t now_ns)
{
    char text[body_bytes + 1];
    const uint32_t *tokens = NULL;
    size_t count = 0;

    if (kvb_token_cache_find(cache, body_of(number, text), now_ns, &tokens, &count) != KVB_OK) {
        return 0;
    }
    assert_true(count > 0 && tokens[count - 1] == tokens[0]);
    return tokens[0];
}

/* The bytes of an entry with one token, as the cache counts them. */
static uint64_t bytes_of_one(void)
{
    struct kvb_token_cache *cache = NULL;

    assert_ok(kvb_token_cache_new(1 << 20, age_ns, 7, &cache));
    assert_ok(put(cache, 1, 9, 1, 0));
    const uint64_t bytes = kvb_token_cache_count(cache).bytes;
    kvb_token_cache_free(cache);
    return bytes;
}

static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    struct kvb_token_cache *cache = NULL;

    assert_ok(kvb_token_cache_new(3 * bytes_of_one(), age_ns, 7, &cache));
    assert_int_equal(find(cache, 1, 0), 0);
    for (unsigned i = 1; i <= 3; i++) {
        assert_ok(put(cache, i, 10 + i, 1, 0));
    }
    assert_int_equal(find(cache, 1, 0), 11);
    assert_ok(put(cache, 4, 14, 1, 0));
    assert_int_equal(find(cache, 2, 0), 0);
    assert_int_equal(find(cache, 1, 0), 11);
    assert_int_equal(find(cache, 3, 0), 13);
    assert_int_equal(find(cache, 4, 0), 14);
    assert_int_equal(kvb_token_cache_count(cache).entries, 3);
    assert_int_equal(kvb_token_cache_count(cache).evicted, 1);
    kvb_token_cache_free(cache);
}

static void a_newer_answer_replaces_the_one_before(void **state)
{
    (void)state;
    struct kvb_token_cache *cache = NULL;

    assert_ok(kvb_token_cache_new(1 << 20, age_ns, 7, &cache));
    assert_ok(put(cache, 1, 11, 1, 0));
    assert_ok(put(cache, 1, 12, 8, 0));
    assert_int_equal(find(cache, 1, 0), 12);
    assert_int_equal(kvb_token_cache_count(cache).entries, 1);
    assert_int_equal(kvb_token_cache_count(cache).bytes, bytes_of_one() + 7 * sizeof(uint32_t));
    kvb_token_cache_free(cache);
}

static void an_old_answer_is_forgotten(void **state)
{
    (void)state;
    struct kvb_token_cache *cache = NULL;

    assert_ok(kvb_token_cache_new(1 << 20, age_ns, 7, &cache));
    assert_ok(put(cache, 1, 11, 1, 5));
    assert_int_equal(find(cache, 1, 5 + age_ns - 1), 11); /* a lookup does not extend its life */
    assert_int_equal(find(cache, 1, 5 + age_ns), 0);
    assert_int_equal(kvb_token_cache_count(cache).bytes, 0);
    kvb_token_cache_free(cache);
}

static void an_entry_larger_than_the_cache_is_not_kept(void **state)
{
    (void)state;
    struct kvb_token_cache *cache = NULL;

    assert_ok(kvb_token_cache_new(bytes_of_one(), age_ns, 7, &cache));
    assert_ok(put(cache, 1, 11, 1, 0));
    assert_int_equal(put(cache, 2, 12, 2, 0), KVB_TOO_LARGE);
    assert_int_equal(find(cache, 1, 0), 11); /* nothing was evicted for it */
    assert_int_equal(put(cache, 1, 13, 2, 0), KVB_TOO_LARGE);
    assert_int_equal(find(cache, 1, 0), 0); /* otherwise it would remain, outdated */
    kvb_token_cache_free(cache);
    assert_ok(kvb_token_cache_new(0, age_ns, 7, &cache));
    assert_int_equal(put(cache, 1, 11, 1, 0), KVB_TOO_LARGE);
    kvb_token_cache_free(cache);
}

/* ---- Compared with a reference model ---- */

enum { model_max = 4096, model_numbers = 200 };

/* Entries, the newest first. */
struct model {
    struct model_entry {
        unsigned number;
        uint32_t token;
        size_t count;
        uint64_t put_ns;
    } entries[model_max];
    size_t count;
    uint64_t max_bytes;
    uint64_t one_bytes;
};

static uint64_t model_bytes(const struct model *model)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < model->count; i++) {
        bytes += model->one_bytes + (model->entries[i].count - 1) * sizeof(uint32_t);
    }
    return bytes;
}

static void model_remove(struct model *model, size_t at)
{
    memmove(
        &model->entries[at], &model->entries[at + 1],
        (--model->count - at) * sizeof model->entries[0]);
}

static void model_push(struct model *model, struct model_entry entry)
{
    memmove(&model->entries[1], &model->entries[0], model->count++ * sizeof model->entries[0]);
    model->entries[0] = entry;
}

static size_t model_at(const struct model *model, unsigned number)
{
    size_t at = 0;

    while (at < model->count && model->entries[at].number != number) {
        at++;
    }
    return at;
}

static uint32_t model_find(struct model *model, unsigned number, uint64_t now_ns)
{
    const size_t at = model_at(model, number);

    if (at == model->count) {
        return 0;
    }
    const struct model_entry entry = model->entries[at];
    model_remove(model, at);
    if (now_ns - entry.put_ns >= age_ns) {
        return 0;
    }
    model_push(model, entry);
    return entry.token;
}

static void model_put(struct model *model, struct model_entry entry)
{
    const size_t at = model_at(model, entry.number);

    if (at < model->count) {
        model_remove(model, at);
    }
    model_push(model, entry);
    while (model_bytes(model) > model->max_bytes) {
        model->count--;
    }
}

static void agrees_with_a_list_over_many_operations(void **state)
{
    (void)state;
    static struct model model;
    struct kvb_token_cache *cache = NULL;
    uint64_t rng = 1;
    uint64_t now_ns = 0;

    model = (struct model){ .one_bytes = bytes_of_one() };
    model.max_bytes = 50 * model.one_bytes;
    assert_ok(kvb_token_cache_new(model.max_bytes, age_ns, 7, &cache));
    for (uint32_t i = 1; i <= 100000; i++) {
        const uint64_t random = kvb_random_next(&rng);
        const unsigned number = (unsigned)(random % model_numbers);
        now_ns += random >> 32 & 7;
        if (random >> 40 & 1) {
            const size_t count = 1 + (random >> 44 & 7);
            assert_ok(put(cache, number, i, count, now_ns));
            model_put(&model, (struct model_entry){ number, i, count, now_ns });
        } else {
            assert_int_equal(find(cache, number, now_ns), model_find(&model, number, now_ns));
        }
        assert_int_equal(kvb_token_cache_count(cache).entries, model.count);
        assert_int_equal(kvb_token_cache_count(cache).bytes, model_bytes(&model));
    }
    assert_true(kvb_token_cache_count(cache).evicted > 1000);
    kvb_token_cache_free(cache);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        struct kvb_token_cache *cache = NULL;
        fail_alloc_after(n);
        status = kvb_token_cache_new(1 << 20, age_ns, 7, &cache);
        for (unsigned i = 0; i < 100 && status == KVB_OK; i++) {
            status = put(cache, i, i + 1, 1, 0);
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        for (unsigned i = 0; cache && i < kvb_token_cache_count(cache).entries; i++) {
            assert_int_equal(find(cache, i, 0), i + 1);
        }
        kvb_token_cache_free(cache);
    }
}

SUITE(cache)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(a_newer_answer_replaces_the_one_before),
        cmocka_unit_test(an_old_answer_is_forgotten),
        cmocka_unit_test(an_entry_larger_than_the_cache_is_not_kept),
        cmocka_unit_test(agrees_with_a_list_over_many_operations),
        cmocka_unit_test(survives_every_allocation_failing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
