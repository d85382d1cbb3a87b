#include "log_pipe.h"

#include "core/clock.h"
#include "kvbridge/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is logged when an engine's metrics page cannot be read. The linker puts the functions below
 * in the place of those of the scraper (--wrap). */

static struct {
    bool has_page; /* a reading waits to be taken */
    bool is_good;
    bool is_of_models;
    const char *const *adapters; /* of a list of models; NULL: it is refused */
    enum kvb_engine_sleep sleep;
    uint64_t now_ns;
} script;

/* The linker prescribes these names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
kvb_status
__wrap_kvb_scraper_take(struct kvb_scraper *scraper, struct kvb_scrape_result **out_result);
kvb_status
__wrap_kvb_scraper_take(struct kvb_scraper *scraper, struct kvb_scrape_result **out_result)
{
    (void)scraper;
    if (!script.has_page) {
        return KVB_AGAIN;
    }
    struct kvb_scrape_result *result = calloc(1, sizeof *result + sizeof result->samples[0]);
    assert_non_null(result);
    if (script.is_of_models) {
        result->key = 6;
        result->code = script.is_good ? 200 : 0;
        result->outcome = script.is_good ? KVB_FETCH_OK : KVB_FETCH_UNREACHABLE;
        result->is_foreign = script.is_good && !script.adapters;
        kvb_detail_set(&result->why, "no list");
        for (size_t i = 0; script.is_good && script.adapters && script.adapters[i]; i++) {
            result->names.is_listed = true;
            (void)kvb_served_names_add(
                &result->names, KVB_SERVED_ADAPTER, kvb_span_of(script.adapters[i]));
        }
        script.has_page = false;
        *out_result = result;
        return KVB_OK;
    }
    result->key = 5;
    result->outcome = script.is_good ? KVB_FETCH_OK : KVB_FETCH_UNREACHABLE;
    result->count = script.is_good;
    result->at_ns = script.now_ns;
    result->samples[0].signs.sleep = script.is_good ? script.sleep : KVB_SLEEP_UNKNOWN;
    kvb_detail_set(&result->why, "nobody is there");
    script.has_page = false;
    *out_result = result;
    return KVB_OK;
}

uint64_t __wrap_kvb_scraper_lost(const struct kvb_scraper *scraper);
uint64_t __wrap_kvb_scraper_lost(const struct kvb_scraper *scraper)
{
    (void)scraper;
    return 0;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

static const struct kvb_bridge_config config = { .publish = { .load_expire_ms = 3000 } };

/* One rank of worker 7 with a metrics page; the log is written into a pipe. */
struct world {
    struct kvb_bridge *bridge;
    struct bridge_rank rank;
    struct bridge_rank *ranks[1];
    struct bridge_load load;
    struct bridge_load *loads[1];
    struct log_pipe log;
};

static void begin(struct world *world)
{
    *world = (struct world){ .rank = { .worker_id = 7 } };
    world->log = log_pipe_open();
    script.sleep = KVB_SLEEP_AWAKE;
    const struct kvb_stream_options options = { .mirror = { .max_blocks = 1 } };
    assert_ok(kvb_stream_new(&options, &world->rank.served.stream));
    world->load.settings =
        (struct kvb_worker_config){ .id = 7, .ranks = 1, .load = { .scrape_ms = 1000 } };
    world->load.scrape_key = 5;
    world->load.models_key = 6;
    script.is_of_models = false;
    world->load.feeds[KVB_LOAD_OF_PROMETHEUS].is_there = true;
    world->ranks[0] = &world->rank;
    world->loads[0] = &world->load;
    world->bridge = calloc(1, sizeof *world->bridge);
    assert_non_null(world->bridge);
    world->bridge->config = &config;
    world->bridge->log = &world->log.log;
    world->bridge->membership.ranks = world->ranks;
    world->bridge->membership.rank_count = 1;
    world->bridge->membership.loads = world->loads;
    world->bridge->membership.load_count = 1;
    world->bridge->ingest.scraper = (struct kvb_scraper *)world; /* never read */
    world->bridge->shown.metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                         .values = world->bridge->shown.values,
                                                         .count = kvb_bridge_metric_count };
}

static void end(struct world *world)
{
    log_pipe_close(&world->log);
    kvb_stream_free(world->rank.served.stream);
    free(world->bridge);
}

static void read_page(struct world *world, uint64_t now_s, bool is_good)
{
    script.has_page = true;
    script.is_good = is_good;
    script.now_ns = now_s * KVB_NS_PER_S;
    kvb_bridge_take_pages(world->bridge, script.now_ns);
    kvb_bridge_watch_loads(world->bridge, script.now_ns);
}

static void read_models(struct world *world, uint64_t now_s, const char *const *adapters)
{
    script.is_of_models = true;
    script.adapters = adapters;
    read_page(world, now_s, true);
}

static bool has_adapter(const struct world *world, const char *name)
{
    enum kvb_served_kind kind = KVB_SERVED_NAME;

    return kvb_served_names_find(&world->rank.names, kvb_span_of(name), &kind) &&
           kind == KVB_SERVED_ADAPTER;
}

static void the_names_of_a_list_are_published_at_once(void **state)
{
    static const char *const first[] = { "a", "b", NULL };
    static const char *const second[] = { "b", NULL };
    struct world world;

    (void)state;
    begin(&world);
    read_models(&world, 1, first);
    assert_true(has_adapter(&world, "a") && has_adapter(&world, "b"));
    assert_true(world.rank.served.advertiser.is_beat_due);
    world.rank.served.advertiser.is_beat_due = false;
    read_models(&world, 2, first);
    assert_false(world.rank.served.advertiser.is_beat_due);
    read_models(&world, 3, second);
    assert_true(!has_adapter(&world, "a") && has_adapter(&world, "b"));
    assert_true(world.rank.served.advertiser.is_beat_due);
    script.is_of_models = true;
    read_page(&world, 4, false); /* no answer: the engine is busy or gone */
    assert_true(has_adapter(&world, "b"));
    assert_int_equal(
        kvb_metric_get(&world.bridge->shown.metrics, kvb_bridge_model_lists_unreachable), 1);
    end(&world);
}

static void a_refused_list_leaves_no_names_and_is_logged_after_growing_pauses(void **state)
{
    static const char *const names[] = { "a", NULL };
    struct world world;

    (void)state;
    begin(&world);
    read_models(&world, 1, names);
    for (uint64_t now_s = 5; now_s <= 45; now_s += 5) {
        read_models(&world, now_s, NULL);
    }
    assert_int_equal(world.rank.names.count, 0);
    assert_false(world.rank.names.is_listed);
    assert_int_equal(
        kvb_metric_get(&world.bridge->shown.metrics, kvb_bridge_model_lists_refused), 9);
    assert_int_equal(log_lines(&world.log, "no list"), 3); /* at 5, 15 and 35 s */
    read_models(&world, 50, names);
    assert_int_equal(log_lines(&world.log, "is read again"), 1);
    end(&world);
}

static void too_many_names_are_said_when_the_list_changes(void **state)
{
    static char texts[kvb_max_served_names + 2][8];
    static const char *names[kvb_max_served_names + 3];
    struct world world;

    (void)state;
    begin(&world);
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        (void)snprintf(texts[i], sizeof texts[i], "n%zu", i);
        names[i] = texts[i];
    }
    read_models(&world, 1, names);
    read_models(&world, 2, names);
    assert_int_equal(world.rank.names.left_out, 2);
    assert_int_equal(log_lines(&world.log, "2 names are left out"), 1);
    end(&world);
}

/* Beside the metrics page, or below the URL that is asked for the event sockets. */
static void the_list_of_models_is_read_where_the_engine_has_it(void **state)
{
    static const struct {
        const char *discover, *prometheus, *want;
    } rows[] = {
        { "", "http://h:8000/metrics", "http://h:8000/v1/models" },
        { "", "http://h/engine/metrics", "http://h/engine/v1/models" },
        { "", "http://h:8000/metrics?x", "" },
        { "", "http://h:9100/exporter", "" },
        { "", "", "" },
        { "http://h:8000", "http://other:1/metrics", "http://h:8000/v1/models" },
        { "http://h:8000/", "", "http://h:8000/v1/models" },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        static struct kvb_worker_config worker;
        char url[kvb_max_page_url_bytes] = "?";
        (void)snprintf(worker.discover, sizeof worker.discover, "%s", rows[i].discover);
        (void)snprintf(
            worker.load.prometheus, sizeof worker.load.prometheus, "%s", rows[i].prometheus);
        kvb_worker_models_url(&worker, url);
        assert_string_equal(url, rows[i].want);
    }
}

static void an_absent_engine_is_logged_after_growing_pauses(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    for (uint64_t now_s = 1; now_s <= 3600; now_s++) {
        read_page(&world, now_s, false);
    }
    /* at 0, 10, 30, 70, 150, 310, 630, and then every 600 s */
    assert_int_equal(log_lines(&world.log, " worker=7 "), 7 + 4);
    end(&world);
}

static void its_return_is_logged_once(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    for (uint64_t now_s = 1; now_s <= 100; now_s++) {
        read_page(&world, now_s, false);
    }
    assert_int_equal(log_lines(&world.log, "sends again"), 0);
    for (uint64_t now_s = 101; now_s <= 200; now_s++) {
        read_page(&world, now_s, true);
    }
    assert_int_equal(log_lines(&world.log, "sends again"), 1);
    read_page(&world, 201, false); /* absent again: the pauses start with the shortest one */
    assert_int_equal(log_lines(&world.log, "nobody is there"), 1);
    end(&world);
}

static void a_sleep_is_counted_and_logged_once(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    read_page(&world, 1, true);
    script.sleep = KVB_SLEEP_DISCARDED;
    read_page(&world, 2, true);
    read_page(&world, 3, true);
    assert_true(kvb_stream_is_cache_discarded(world.rank.served.stream));
    assert_int_equal(kvb_metric_get(&world.bridge->shown.metrics, kvb_bridge_silent_asleep), 1);
    script.sleep = KVB_SLEEP_AWAKE;
    read_page(&world, 4, true);
    assert_int_equal(log_lines(&world.log, " worker=7 "), 2);
    end(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_names_of_a_list_are_published_at_once),
        cmocka_unit_test(a_refused_list_leaves_no_names_and_is_logged_after_growing_pauses),
        cmocka_unit_test(too_many_names_are_said_when_the_list_changes),
        cmocka_unit_test(the_list_of_models_is_read_where_the_engine_has_it),
        cmocka_unit_test(an_absent_engine_is_logged_after_growing_pauses),
        cmocka_unit_test(its_return_is_logged_once),
        cmocka_unit_test(a_sleep_is_counted_and_logged_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
