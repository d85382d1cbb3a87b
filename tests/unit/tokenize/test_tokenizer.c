#include "tokenize/tokenizer.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/networks.h"
#include "core/own.h"
#include "core/thread.h"
#include "kvb_test.h"
#include "web_server.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { patience_ms = 20000, max_orders = 8 };

#define TEN "[1111111],"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define TOKENS "{\"count\":3,\"max_model_len\":100,\"tokens\":[7,8,9]}"

static const struct web_page pages[] = {
    { "/good/tokenize", web_answers, TOKENS },
    { "/parts/tokenize", web_in_parts, TOKENS },
    { "/hangs/tokenize", web_hangs, "" },
    { "/busy/tokenize", web_refuses, "later" },
    { "/rejects/tokenize", web_rejects, "no messages" },
    { "/moved/tokenize", web_sends_on, "" },
    { "/cut/tokenize", web_cuts, TOKENS },
    { "/rewrites/tokenize", web_answers, "{\"tokens\":[9,8,7,6,5]}" },
    { "/wrong/tokenize", web_answers, "{\"count\":2,\"tokens\":[7,8,9]}" },
    { "/endless/tokenize", web_endless, HUNDRED HUNDRED HUNDRED HUNDRED },
    { "/ok", web_answers, TOKENS },
    { .path = NULL },
};

enum test_metric {
#define ID(id, type, name, labels, help) id, id##_end = (id) + kvb_metric_slots_##type - 1,
    KVB_TOKENIZE_METRICS(ID)
#undef ID
        metric_count
};

struct ended {
    struct kvb_tokenize_order *order;
    struct kvb_tokenize_result result;
    uint32_t first;
};

struct world {
    struct kvb_control *control;
    struct web_server *server;
    struct kvb_networks networks;
    struct kvb_tokenizer *tokenizer;
    _Atomic uint64_t values[metric_count];
    struct kvb_metrics metrics;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct ended ended[max_orders];
    size_t count;
};

static void take_result(struct kvb_tokenize_order *order, const struct kvb_tokenize_result *result)
{
    struct world *world = order->owner;

    (void)pthread_mutex_lock(&world->lock);
    assert_true(world->count < max_orders);
    world->ended[world->count++] =
        (struct ended){ order, *result, result->tokens ? result->tokens[0] : 0 };
    (void)pthread_cond_signal(&world->changed);
    (void)pthread_mutex_unlock(&world->lock);
}

static void open_world(struct world *world, uint32_t deadline_ms, const char *network)
{
    static const struct kvb_metric_row rows[metric_count];

    *world = (struct world){ .count = 0 };
    world->server = web_server_start(pages);
    world->metrics =
        (struct kvb_metrics){ .rows = rows, .values = world->values, .count = metric_count };
    assert_int_equal(pthread_mutex_init(&world->lock, NULL), 0);
    kvb_cond_init_monotonic(&world->changed);
    assert_ok(kvb_networks_add(&world->networks, network, NULL));
    assert_ok(kvb_control_new(&world->control));
    assert_ok(kvb_control_start(world->control));
    const struct kvb_tokenizer_options options = {
        .control = world->control,
        .deadline_ms = deadline_ms,
        .cache_bytes = 1 << 20,
        .cache_age_ns = UINT64_MAX,
        .seed = 7,
        .networks = &world->networks,
        .metrics = &world->metrics,
    };
    assert_ok(kvb_tokenizer_start(&options, &world->tokenizer));
}

static void close_world(struct world *world)
{
    kvb_tokenizer_free(world->tokenizer);
    kvb_control_free(world->control);
    web_server_stop(world->server);
    (void)pthread_cond_destroy(&world->changed);
    (void)pthread_mutex_destroy(&world->lock);
}

/* "" when there is no second engine. */
static void order_text(
    struct world *world, struct kvb_tokenize_order *order, const char *body, const char *one,
    const char *other)
{
    const char *const paths[kvb_tokenize_urls] = { one, other };
    char url[128];

    *order = (struct kvb_tokenize_order){ .done = take_result, .owner = world };
    kvb_buf_init(&order->text.body, 1 << 20);
    assert_ok(kvb_buf_append_text(&order->text.body, body));
    for (size_t i = 0; i < kvb_tokenize_urls; i++) {
        if (*paths[i]) {
            (void)snprintf(
                order->urls[i], sizeof order->urls[i], "%s",
                *paths[i] == '/' ? web_server_url(world->server, paths[i], url) : paths[i]);
        }
    }
    assert_ok(kvb_tokenizer_submit(world->tokenizer, order));
}

/* Orders a chat of this many messages, {"n":1}, {"n":2}, ... */
static void
order_chat(struct world *world, struct kvb_tokenize_order *order, size_t messages, const char *path)
{
    char body[1024] = "{\"messages\":[";
    char url[128];
    size_t bytes = strlen(body);

    *order = (struct kvb_tokenize_order){ .done = take_result, .owner = world };
    order->text.ends = calloc(messages, sizeof *order->text.ends);
    assert_non_null(order->text.ends);
    for (size_t i = 0; i < messages; i++) {
        bytes +=
            (size_t)snprintf(body + bytes, sizeof body - bytes, "%s{\"n\":%zu}", i ? "," : "", i);
        order->text.ends[order->text.end_count++] = (uint32_t)bytes;
    }
    order->text.block_tokens = 1;
    (void)snprintf(order->text.model, sizeof order->text.model, "m");
    kvb_buf_init(&order->text.body, 1 << 20);
    assert_ok(kvb_buf_append_format(&order->text.body, "%s]}", body));
    (void)snprintf(
        order->urls[0], sizeof order->urls[0], "%s",
        *path ? web_server_url(world->server, path, url) : "");
    assert_ok(kvb_tokenizer_submit(world->tokenizer, order));
}

/* Waits until this many orders have ended, and frees them all. */
static struct ended wait_for_end(struct world *world, size_t count)
{
    struct timespec end;

    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += patience_ms / 1000;
    (void)pthread_mutex_lock(&world->lock);
    while (world->count < count) {
        assert_int_equal(pthread_cond_timedwait(&world->changed, &world->lock, &end), 0);
    }
    const struct ended last = world->ended[world->count - 1];
    for (size_t i = 0; i < world->count; i++) {
        kvb_tokenize_text_done(&world->ended[i].order->text);
    }
    world->count = 0;
    (void)pthread_mutex_unlock(&world->lock);
    return last;
}

static struct ended ask(struct world *world, const char *body, const char *one, const char *other)
{
    struct kvb_tokenize_order order;

    order_text(world, &order, body, one, other);
    return wait_for_end(world, 1);
}

static void assert_tokens(struct ended ended)
{
    assert_int_equal(ended.result.outcome, KVB_TOKENIZE_OK);
    assert_int_equal(ended.result.count, 3);
    assert_int_equal(ended.first, 7);
}

static void the_same_text_is_requested_once(void **state)
{
    (void)state;
    struct world world;

    open_world(&world, patience_ms, "127.0.0.0/8");
    assert_tokens(ask(&world, "{\"a\":1}", "/good", ""));
    assert_tokens(ask(&world, "{\"a\":1}", "/hangs", ""));
    assert_int_equal(web_server_requests(world.server), 1);
    assert_tokens(ask(&world, "{\"a\":2}", "/parts", ""));
    assert_int_equal(web_server_requests(world.server), 2);
    assert_int_equal(world.values[tokenize_cache], 1);
    assert_int_equal(world.values[tokenize_engine], 2);
    assert_true(world.values[tokenize_cache_bytes] > 0);
    close_world(&world);
}

static void equal_texts_under_way_share_a_request(void **state)
{
    (void)state;
    struct world world;
    struct kvb_tokenize_order orders[3];

    open_world(&world, 300, "127.0.0.0/8");
    for (size_t i = 0; i < 3; i++) {
        order_text(&world, &orders[i], "{\"a\":1}", "/hangs", "");
    }
    assert_int_equal(wait_for_end(&world, 3).result.outcome, KVB_TOKENIZE_TIMEOUT);
    assert_int_equal(world.values[tokenize_requests], 1);
    close_world(&world);
}

static void an_engine_that_fails_or_is_silent_is_passed_over(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "/busy", "/moved", "/cut", "/wrong", "/nowhere", "/hangs", "http://127.0.0.1:1", "no url",
    };

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        struct world world;
        /* A silent one is waited for until half of the deadline.  The deadline is before the end of
         * its request, so a second engine that is asked only after that end is asked too late. */
        const bool is_silent = strcmp(bad[i], "/hangs") == 0;
        open_world(&world, is_silent ? kvb_tokenize_late_ms / 5 : patience_ms, "127.0.0.0/8");
        assert_tokens(ask(&world, "{\"a\":1}", bad[i], "/good"));
        assert_int_equal(world.values[tokenize_requests], 2);
        /* That engine is now requested second, so the answer arrives without it. */
        assert_tokens(ask(&world, "{\"a\":2}", bad[i], "/good"));
        assert_int_equal(world.values[tokenize_requests], 3);
        close_world(&world);
    }
}

/* Otherwise all callers would wait for that engine. */
static void an_engine_that_always_fails_is_not_waited_for(void **state)
{
    (void)state;
    struct world world;
    char body[32];
    uint64_t requests = 0;
    struct ended ended;
    int number = 0;

    open_world(&world, 1000, "127.0.0.0/8");
    do { /* one attempt more if the machine paused for a second */
        requests = world.values[tokenize_requests];
        (void)snprintf(body, sizeof body, "{\"a\":%d}", number++);
        ended = ask(&world, body, "/busy", "");
        assert_int_not_equal(ended.result.outcome, KVB_TOKENIZE_OK);
    } while (world.values[tokenize_requests] > requests && number < 100);
    assert_int_equal(ended.result.outcome, KVB_TOKENIZE_UNAVAILABLE);
    assert_true(requests >= kvb_tokenize_rest_failures && number < 100);
    assert_tokens(ask(&world, "{\"b\":1}", "/busy", "/good")); /* another engine is requested */
    close_world(&world);
}

/* Otherwise one bad text would move all other texts to other engines. */
static void an_engine_that_refuses_a_text_is_requested_first_again(void **state)
{
    (void)state;
    struct world world;

    open_world(&world, patience_ms, "127.0.0.0/8");
    assert_tokens(ask(&world, "{\"a\":1}", "/rejects", "/good"));
    assert_int_equal(world.values[tokenize_requests], 2);
    assert_tokens(ask(&world, "{\"a\":2}", "/rejects", "/good"));
    assert_int_equal(world.values[tokenize_requests], 4);
    close_world(&world);
}

static void each_failure_has_its_name(void **state)
{
    (void)state;
    const struct {
        const char *path;
        enum kvb_tokenize_outcome outcome;
        unsigned code;
    } cases[] = {
        { "/busy", KVB_TOKENIZE_REFUSED, 503 },
        { "/rejects", KVB_TOKENIZE_REFUSED, 400 },
        { "/moved", KVB_TOKENIZE_REFUSED, 302 },
        { "/nowhere", KVB_TOKENIZE_REFUSED, 404 },
        { "/cut", KVB_TOKENIZE_UNAVAILABLE, 200 },
        { "/wrong", KVB_TOKENIZE_INVALID, 200 },
        { "/endless", KVB_TOKENIZE_INVALID, 200 },
        { "http://127.0.0.1:1", KVB_TOKENIZE_UNAVAILABLE, 0 },
        { "http://169.254.169.254", KVB_TOKENIZE_UNAVAILABLE, 0 },
    };
    struct world world;
    char body[32];

    open_world(&world, patience_ms, "0.0.0.0/0");
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        (void)snprintf(body, sizeof body, "{\"a\":%zu}", i);
        const struct ended ended = ask(&world, body, cases[i].path, "");
        if (ended.result.outcome != cases[i].outcome || ended.result.code != cases[i].code) {
            fail_msg(
                "%s: %s %u", cases[i].path, kvb_tokenize_outcome_name(ended.result.outcome),
                ended.result.code);
        }
    }
    close_world(&world);
}

static void only_the_networks_listed_are_connected_to(void **state)
{
    (void)state;
    struct world world;

    open_world(&world, 1000, "10.0.0.0/8");
    assert_int_equal(
        ask(&world, "{\"a\":1}", "/good", "").result.outcome, KVB_TOKENIZE_UNAVAILABLE);
    assert_int_equal(web_server_requests(world.server), 0);
    close_world(&world);
}

static void a_stop_ends_waiting_orders(void **state)
{
    (void)state;
    struct world world;
    struct kvb_tokenize_order order;

    open_world(&world, 100, "127.0.0.0/8");
    order_text(&world, &order, "{\"a\":1}", "/hangs", "");
    kvb_tokenizer_close(world.tokenizer);
    assert_int_equal(kvb_tokenizer_submit(world.tokenizer, &order), KVB_CLOSED);
    assert_int_equal(wait_for_end(&world, 1).result.outcome, KVB_TOKENIZE_TIMEOUT);
    close_world(&world);
}

static struct ended ask_chat(struct world *world, size_t messages, const char *path)
{
    struct kvb_tokenize_order order;

    order_chat(world, &order, messages, path);
    return wait_for_end(world, 1);
}

static void assert_prefix(struct ended ended, enum kvb_tokenize_outcome outcome)
{
    assert_int_equal(ended.result.known, KVB_TEXT_TOKENS_PREFIX);
    assert_int_equal(ended.result.outcome, outcome);
    assert_int_equal(ended.result.count, 2); /* of three, less a block of one */
    assert_int_equal(ended.first, 7);
    assert_true(ended.result.unknown > 0);
}

static void a_chat_that_has_grown_little_is_not_waited_for(void **state)
{
    (void)state;
    struct world world;

    open_world(&world, patience_ms, "127.0.0.0/8");
    assert_tokens(ask_chat(&world, 8, "/good"));
    for (size_t messages = 9; messages <= 10; messages++) {
        /* whatever engines do, and where there is none */
        assert_prefix(ask_chat(&world, messages, "/hangs"), KVB_TOKENIZE_NOT_ASKED);
        assert_prefix(ask_chat(&world, messages, ""), KVB_TOKENIZE_NOT_ASKED);
    }
    close_world(&world);
}

static void a_chat_that_nobody_tokenizes_in_time_begins_with_an_earlier_one(void **state)
{
    (void)state;
    struct world world;

    open_world(&world, 50, "127.0.0.0/8");
    struct ended ended = ask_chat(&world, 1, "/hangs");
    assert_int_equal(ended.result.known, KVB_TEXT_TOKENS_NONE);
    assert_int_equal(ended.result.outcome, KVB_TOKENIZE_TIMEOUT);
    assert_true(ended.result.unknown > 0 && !ended.result.tokens);
    do { /* the deadline is short */
        ended = ask_chat(&world, 2, "/good");
    } while (ended.result.outcome != KVB_TOKENIZE_OK);
    assert_prefix(ask_chat(&world, 30, "/hangs"), KVB_TOKENIZE_TIMEOUT);
    assert_prefix(ask_chat(&world, 31, "/busy"), KVB_TOKENIZE_REFUSED);
    assert_prefix(ask_chat(&world, 32, ""), KVB_TOKENIZE_NO_ENGINE);
    assert_int_equal(world.values[tokenize_rewriting], 0);
    close_world(&world);
}

static void a_model_that_rewrites_earlier_turns_is_found_out(void **state)
{
    (void)state;
    struct world world;

    open_world(&world, patience_ms, "127.0.0.0/8");
    assert_tokens(ask_chat(&world, 4, "/good"));
    assert_tokens(ask_chat(&world, 10, "/good")); /* more than a third longer: asked */
    assert_int_equal(world.values[tokenize_same], 1);
    assert_int_equal(ask_chat(&world, 30, "/rewrites").result.known, KVB_TEXT_TOKENS_WHOLE);
    assert_int_equal(world.values[tokenize_rewritten], 1);
    const struct ended ended = ask_chat(&world, 31, "/busy");
    assert_int_equal(ended.result.known, KVB_TEXT_TOKENS_NONE);
    assert_true(ended.result.is_rewriting);
    assert_int_equal(world.values[tokenize_rewriting], 1);
    close_world(&world);
}

SUITE(tokenizer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_text_is_requested_once),
        cmocka_unit_test(equal_texts_under_way_share_a_request),
        cmocka_unit_test(an_engine_that_fails_or_is_silent_is_passed_over),
        cmocka_unit_test(an_engine_that_always_fails_is_not_waited_for),
        cmocka_unit_test(an_engine_that_refuses_a_text_is_requested_first_again),
        cmocka_unit_test(each_failure_has_its_name),
        cmocka_unit_test(only_the_networks_listed_are_connected_to),
        cmocka_unit_test(a_stop_ends_waiting_orders),
        cmocka_unit_test(a_chat_that_has_grown_little_is_not_waited_for),
        cmocka_unit_test(a_chat_that_nobody_tokenizes_in_time_begins_with_an_earlier_one),
        cmocka_unit_test(a_model_that_rewrites_earlier_turns_is_found_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
