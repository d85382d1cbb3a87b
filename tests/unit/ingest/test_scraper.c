#include "kvb_test.h"

#include "control/control.h"
#include "core/clock.h"
#include "ingest/http/scraper.h"
#include "web_server.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { patience_ms = 20000 };

#define RANK(r, active)                                                                            \
    "vllm:num_requests_running{engine=\"" r "\"} " active "\n"                                     \
    "vllm:num_requests_waiting{engine=\"" r "\"} NaN\n"

static const struct web_page pages[] = {
    { "/metrics", web_answers, RANK("0", "3") RANK("1", "5") },
    { "/parts", web_in_parts, RANK("0", "7") },
    { "/v1/models", web_answers, "{\"data\":[{\"id\":\"m\"},{\"id\":\"lora\",\"parent\":\"m\"}]}" },
    { "/two", web_answers, "{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}" },
    { "/busy", web_refuses, "" },
    { "/hangs", web_hangs, "" },
    { .path = NULL },
};

struct world {
    struct web_server *server;
    struct kvb_control *control;
    struct kvb_scraper *scraper;
};

static struct world open_world(void)
{
    struct world world = { .server = web_server_start(pages) };

    assert_ok(kvb_control_new(&world.control));
    assert_ok(kvb_control_start(world.control));
    assert_ok(kvb_scraper_start(world.control, NULL, &world.scraper));
    return world;
}

static void close_world(struct world *world)
{
    kvb_scraper_stop(world->scraper);
    kvb_control_free(world->control);
    web_server_stop(world->server);
}

static void add_with(
    struct world *world, uint64_t key, const char *path, uint32_t period_ms, uint32_t timeout_ms)
{
    char url[128];
    const struct kvb_scrape_target target = { .key = key,
                                              .url = web_server_url(world->server, path, url),
                                              .period_ms = period_ms,
                                              .timeout_ms = timeout_ms,
                                              .block_size = 16,
                                              .model = "m" };

    assert_ok(kvb_scraper_add(world->scraper, &target, NULL));
}

static void add(struct world *world, uint64_t key, const char *path, uint32_t period_ms)
{
    add_with(world, key, path, period_ms, patience_ms);
}

/* The next result, of any target; the caller frees it. */
static struct kvb_scrape_result *next(struct world *world)
{
    const uint64_t deadline = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    struct pollfd fd = { .fd = kvb_scraper_fd(world->scraper), .events = POLLIN };
    struct kvb_scrape_result *result = NULL;

    while (kvb_scraper_take(world->scraper, &result) != KVB_OK) {
        assert_true(kvb_clock_monotonic_ns() < deadline);
        (void)poll(&fd, 1, 100);
    }
    return result;
}

static struct kvb_scrape_result *next_of(struct world *world, uint64_t key)
{
    struct kvb_scrape_result *result = next(world);

    while (result->key != key) {
        free(result);
        result = next(world);
    }
    return result;
}

static struct kvb_scrape_result *
models_at(struct world *world, uint64_t key, const char *path, const char *key_file)
{
    char url[128];
    const struct kvb_scrape_target target = { .key = key,
                                              .page = KVB_SCRAPE_MODELS,
                                              .url = web_server_url(world->server, path, url),
                                              .key_file = key_file,
                                              .period_ms = 20,
                                              .timeout_ms = patience_ms,
                                              .model = "m" };

    assert_ok(kvb_scraper_add(world->scraper, &target, NULL));
    return next_of(world, key);
}

static void a_list_of_models_is_read(void **state)
{
    (void)state;
    struct world world = open_world();
    enum kvb_served_kind kind = KVB_SERVED_NAME;

    struct kvb_scrape_result *result = models_at(&world, 1, "/v1/models", NULL);
    assert_int_equal(result->outcome, KVB_FETCH_OK);
    assert_true(result->names.is_listed && !result->is_foreign);
    assert_true(kvb_served_names_find(&result->names, kvb_span_of("lora"), &kind));
    assert_int_equal(result->count, 0);
    free(result);
    result = models_at(&world, 2, "/two", NULL);
    assert_true(result->is_foreign && !result->names.is_listed);
    assert_non_null(strstr(result->why.text, "several base models"));
    free(result);
    result = models_at(&world, 3, "/busy", NULL);
    assert_int_equal(result->outcome, KVB_FETCH_CODE);
    assert_true(result->code >= 400);
    free(result);
    result = models_at(&world, 4, "/v1/models", "/nonexistent/key");
    assert_int_equal(result->outcome, KVB_FETCH_CODE); /* no request is made */
    assert_int_equal(result->code, 0);
    assert_non_null(strstr(result->why.text, "/nonexistent/key"));
    free(result);
    close_world(&world);
}

static void a_removed_target_gives_no_more_results(void **state)
{
    (void)state;
    struct world world = open_world();

    add(&world, 1, "/metrics", 1);
    add(&world, 2, "/metrics", 1);
    add(&world, 3, "/hangs", 1);
    free(next_of(&world, 1));
    assert_ok(kvb_scraper_remove(world.scraper, 1));
    assert_ok(kvb_scraper_remove(world.scraper, 3));
    assert_ok(kvb_scraper_remove(world.scraper, 99));
    add(&world, 4, "/parts", 1);
    free(next_of(&world, 4)); /* a result may precede the removal */
    for (struct kvb_scrape_result *old = NULL; kvb_scraper_take(world.scraper, &old) == KVB_OK;) {
        free(old);
    }
    free(next_of(&world, 2)); /* by now the results queued before the removal have been taken out */
    for (int i = 0; i < 20; i++) {
        struct kvb_scrape_result *result = next(&world);
        assert_true(result->key == 2 || result->key == 4);
        free(result);
    }
    close_world(&world);
    kvb_scraper_stop(NULL);
}

SUITE(scraper)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_models_is_read),
        cmocka_unit_test(a_removed_target_gives_no_more_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
