#include "core/clock.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvctl/top/fleet.h"
#include "kvctl/top/json.h"
#include "wire/json/tree.h"

#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How `kvctl top` turns messages into rows, rates and totals. */

struct scene {
    struct kvctl_top_fleet fleet;
    struct kvctl_top_model model;
    uint64_t now_ns;
};

static int set_up(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);

    assert_non_null(scene);
    kvctl_top_fleet_init(&scene->fleet);
    scene->now_ns = 1000 * KVB_NS_PER_S;
    kvctl_top_set_connected(&scene->fleet, true, scene->now_ns);
    *state = scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *scene = *state;

    kvctl_top_fleet_done(&scene->fleet);
    kvctl_top_model_done(&scene->model);
    free(scene);
    return 0;
}

static struct json_object *parse(const char *text)
{
    struct json_object *root = NULL;

    assert_ok(kvctl_top_parse((kvb_span){ (const uint8_t *)text, strlen(text) }, &root));
    return root;
}

static kvb_status take_status(struct scene *scene, const char *text)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = parse(text);
    const struct kvb_stream_id component = { .name_space = "dynamo", .component = "V" };

    return kvctl_top_take_status(&scene->fleet, &component, root, scene->now_ns);
}

static void take_hit(struct scene *scene, const char *text)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = parse(text);

    kvctl_top_take_hit(&scene->fleet, root);
}

/* One status of bridge "b" with one stream. */
static void on_message(struct scene *scene, unsigned worker, unsigned events, unsigned lag_ms)
{
    char text[512];

    (void)snprintf(
        text, sizeof text,
        "{\"bridge_id\":\"b\",\"nats_reconnects\":2,\"streams\":[{\"worker_id\":%u,\"dp_rank\":0,"
        "\"state\":\"PARTIAL\",\"reason\":\"gone\",\"blocks\":{\"device\":5,\"host\":2},"
        "\"lag_ms\":%u,\"events\":%u,\"reconnects\":3}]}",
        worker, lag_ms, events);
    assert_ok(take_status(scene, text));
}

/* One complete round, in which an aggregator lists one stream with a load. */
static void list(struct scene *scene, unsigned worker, uint64_t event_id)
{
    char text[512];

    kvctl_top_begin_round(&scene->fleet);
    (void)snprintf(
        text, sizeof text,
        "{\"streams\":[{\"worker_id\":%u,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":"
        "\"V\",\"state\":\"EXACT\",\"reason\":\"\",\"blocks\":{\"device\":7,\"host\":1,\"disk\":1},"
        "\"unverified_tiers\":{\"host\":\"no_removals\"},"
        "\"last_event_id\":%llu,\"load\":0.5}]}",
        worker, (unsigned long long)event_id);
    KVB_OWN(kvb_json_drop) struct json_object *streams = parse(text);
    assert_ok(kvctl_top_take_streams(&scene->fleet, streams, scene->now_ns));
    KVB_OWN(kvb_json_drop)
    struct json_object *load =
        parse("{\"endpoints\":[{\"worker_id\":1,\"dp_rank\":0,\"name\":\"g\",\"data\":{"
              "\"request_active_slots\":4,\"num_requests_waiting\":6,"
              "\"gpu_prefix_cache_hit_rate\":0.25}}],\"load_avg\":0.5,\"load_std\":0.125}");
    kvctl_top_take_load(&scene->fleet, load);
    KVB_OWN(kvb_json_drop) struct json_object *about = parse("{\"version\":\"9.9\"}");
    kvctl_top_take_state(&scene->fleet, about);
    kvctl_top_end_round(&scene->fleet, NULL, scene->now_ns);
}

static void list_nothing(struct scene *scene, const char *trouble)
{
    kvctl_top_begin_round(&scene->fleet);
    kvctl_top_end_round(&scene->fleet, trouble, scene->now_ns);
}

static void pass(struct scene *scene, uint64_t ms)
{
    scene->now_ns += ms * KVB_NS_PER_MS;
}

static const struct kvctl_top_row *show(struct scene *scene)
{
    assert_ok(kvctl_top_fleet_show(&scene->fleet, scene->now_ns, &scene->model));
    return scene->model.rows;
}

static void assert_figure(struct kvctl_top_figure figure, double value)
{
    assert_true(figure.is_known);
    assert_float_equal(figure.value, value, 1e-6);
}

/* ---- Tests --------------------------------------------------------------------------------- */

static void a_stream_combines_what_its_bridge_and_the_aggregator_report(void **state)
{
    struct scene *scene = *state;

    list(scene, 1, 10);
    on_message(scene, 1, 100, 250);
    const struct kvctl_top_row *row = show(scene);
    assert_int_equal(scene->model.count, 1);
    assert_string_equal(row->state, "EXACT"); /* the state that routers see */
    assert_string_equal(row->tier_reasons[KVB_TIER_HOST], "no_removals");
    assert_string_equal(row->tier_reasons[KVB_TIER_DISK], "");
    assert_figure(row->blocks, 9);
    assert_figure(row->load, 0.5);
    assert_figure(row->active, 4);
    assert_figure(row->waiting, 6);
    assert_figure(row->lag_s, 0.25);
    assert_figure(row->reconnects, 3);
    assert_figure(scene->model.totals.load_avg, 0.5);
    assert_figure(scene->model.totals.load_std, 0.125);
    assert_figure(scene->model.totals.engine_hit_rate, 0.25);
    assert_int_equal(scene->model.totals.states[KVB_STREAM_EXACT], 1);
    assert_int_equal(scene->model.totals.nats_reconnects, 2);
    assert_int_equal(scene->model.totals.engine_reconnects, 3);
    assert_string_equal(scene->model.link.version, "9.9");
}

static void without_an_aggregator_the_state_of_the_bridge_is_shown(void **state)
{
    struct scene *scene = *state;

    list(scene, 1, 10);
    list_nothing(scene, "nobody answers");
    on_message(scene, 1, 100, 0);
    assert_string_equal(show(scene)->state, "PARTIAL");
    assert_figure(show(scene)->blocks, 7);
    assert_string_equal(scene->model.link.trouble, "nobody answers");
    assert_true(scene->model.link.has_answer && !scene->model.link.is_answering);
}

static void rates_need_two_readings(void **state)
{
    struct scene *scene = *state;

    on_message(scene, 1, 100, 0);
    assert_false(show(scene)->events_per_s.is_known);
    pass(scene, 2000);
    on_message(scene, 1, 150, 0);
    assert_figure(show(scene)->events_per_s, 25);
    assert_figure(scene->model.totals.events_per_s, 25);
    pass(scene, 10); /* two readings at the same time give no rate: the last one stays */
    on_message(scene, 1, 151, 0);
    assert_figure(show(scene)->events_per_s, 25);
}

static void a_restarted_bridge_has_no_rate_until_its_second_message(void **state)
{
    struct scene *scene = *state;

    on_message(scene, 1, 100, 0);
    pass(scene, 1000);
    on_message(scene, 1, 5, 0);
    assert_false(show(scene)->events_per_s.is_known);
    pass(scene, 1000);
    on_message(scene, 1, 15, 0);
    assert_figure(show(scene)->events_per_s, 10);
}

static void a_publisher_without_a_bridge_is_counted_by_its_event_ids(void **state)
{
    struct scene *scene = *state;

    list(scene, 1, 10);
    pass(scene, 1000);
    list(scene, 1, 40);
    assert_figure(show(scene)->events_per_s, 30);
    pass(scene, 1000);
    list(scene, 1, 1769000000000000); /* a new epoch begins at the wall clock */
    assert_false(show(scene)->events_per_s.is_known);
    pass(scene, 1000);
    list(scene, 1, 1769000000000007);
    assert_figure(show(scene)->events_per_s, 7);
}

static void a_silent_bridge_s_lag_grows_and_its_rate_is_unknown(void **state)
{
    struct scene *scene = *state;

    on_message(scene, 1, 100, 500);
    pass(scene, 1000);
    on_message(scene, 1, 200, 500);
    pass(scene, 3000);
    assert_figure(show(scene)->events_per_s, 100);
    assert_figure(show(scene)->lag_s, 0.5);
    pass(scene, 1000);
    assert_false(show(scene)->events_per_s.is_known);
    assert_figure(show(scene)->lag_s, 4.5);
}

static void streams_that_nobody_reports_are_forgotten_after_a_while(void **state)
{
    struct scene *scene = *state;

    pass(scene, 60000);
    on_message(scene, 1, 100, 0);
    list_nothing(scene, NULL);
    (void)show(scene);
    assert_int_equal(scene->model.count, 1);
    pass(scene, 11000);
    list_nothing(scene, "stuck"); /* no answer does not mean that the stream has gone */
    (void)show(scene);
    assert_int_equal(scene->model.count, 1);
    assert_int_equal(scene->model.totals.bridges, 0);
    list_nothing(scene, NULL);
    (void)show(scene);
    assert_int_equal(scene->model.count, 0);
}

static void nothing_changes_while_nats_is_away_and_no_stream_is_forgotten_after(void **state)
{
    struct scene *scene = *state;

    on_message(scene, 1, 100, 500);
    pass(scene, 1000);
    on_message(scene, 1, 200, 500);
    kvctl_top_set_connected(&scene->fleet, false, scene->now_ns);
    pass(scene, 60000);
    list_nothing(scene, "not connected");
    assert_figure(show(scene)->events_per_s, 100);
    assert_figure(show(scene)->lag_s, 0.5);
    assert_int_equal(scene->model.totals.bridges, 1);
    assert_true(scene->now_ns - scene->model.link.lost_ns == 60 * KVB_NS_PER_S);
    kvctl_top_set_connected(&scene->fleet, true, scene->now_ns);
    list_nothing(scene, NULL);
    (void)show(scene);
    assert_int_equal(scene->model.count, 1);
    assert_int_equal(scene->model.totals.bridges, 1);
}

static void the_hit_rate_is_that_of_the_last_rounds(void **state)
{
    struct scene *scene = *state;

    (void)show(scene);
    assert_false(scene->model.totals.hit_rate.is_known);
    take_hit(scene, "{\"isl_tokens\":100,\"hit_tokens\":0}");
    take_hit(scene, "{\"isl_tokens\":300,\"hit_tokens\":300}");
    (void)show(scene);
    assert_figure(scene->model.totals.hit_rate, 0.75);
    assert_int_equal(scene->model.totals.routed, 2);
    for (unsigned i = 0; i < 8; i++) {
        list_nothing(scene, NULL);
    }
    take_hit(scene, "{\"isl_tokens\":100,\"hit_tokens\":20}");
    for (unsigned i = 0; i < 8; i++) {
        list_nothing(scene, NULL);
    }
    (void)show(scene);
    assert_figure(scene->model.totals.hit_rate, 0.2);
    assert_int_equal(scene->model.totals.routed, 1);
}

static void the_same_rank_of_another_component_keeps_its_own_load(void **state)
{
    struct scene *scene = *state;
    KVB_OWN(kvb_json_drop)
    struct json_object *other =
        parse("{\"streams\":[{\"worker_id\":1,\"dp_rank\":0,\"namespace\":\"dynamo\","
              "\"component\":\"Other\",\"state\":\"EXACT\",\"load\":null}]}");

    assert_ok(kvctl_top_take_streams(&scene->fleet, other, scene->now_ns));
    list(scene, 1, 10);
    (void)show(scene);
    assert_int_equal(scene->model.count, 2);
    for (size_t i = 0; i < 2; i++) {
        const struct kvctl_top_row *row = &scene->model.rows[i];
        assert_int_equal(row->active.is_known, strcmp(row->id.component, "V") == 0);
    }
}

static void of_a_malformed_message_the_valid_fields_are_used(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{\"bridge_id\":7}",
        "{\"bridge_id\":\"x\",\"streams\":[null,7,{},{\"worker_id\":-1,\"dp_rank\":0}]}",
        "{\"bridge_id\":\"x\",\"streams\":[{\"worker_id\":1,\"dp_rank\":4294967296}]}",
    };
    struct scene *scene = *state;

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        assert_int_equal(take_status(scene, bad[i]), KVB_BAD_INPUT);
    }
    take_hit(scene, "{\"isl_tokens\":1.5,\"hit_tokens\":[]}");
    (void)show(scene);
    assert_int_equal(scene->model.count, 0);
    assert_ok(take_status(
        scene, "{\"bridge_id\":\"x\",\"streams\":[{\"worker_id\":1,\"dp_rank\":0,\"state\":[],"
               "\"blocks\":3,\"lag_ms\":\"x\",\"events\":-5}]}"));
    const struct kvctl_top_row *row = show(scene);
    assert_int_equal(scene->model.count, 1);
    assert_false(row->lag_s.is_known || row->blocks.is_known || row->events_per_s.is_known);
    assert_string_equal(row->state, "");
    assert_int_equal(scene->model.totals.other_states, 1);
}

static void only_objects_are_messages(void **state)
{
    static const char *const bad[] = { "", "7", "[]", "null", "{\"a\":", "{} {}" };
    struct json_object *root = NULL;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        const kvb_span text = { (const uint8_t *)bad[i], strlen(bad[i]) };
        assert_int_equal(kvctl_top_parse(text, &root), KVB_BAD_INPUT);
    }
}

static void lack_of_memory_changes_nothing(void **state)
{
    struct scene *scene = *state;
    KVB_OWN(kvb_json_drop)
    struct json_object *root =
        parse("{\"bridge_id\":\"b\",\"streams\":[{\"worker_id\":1,\"dp_rank\":0}]}");
    const struct kvb_stream_id component = { .name_space = "dynamo", .component = "V" };
    kvb_status status = KVB_NO_MEMORY;

    for (long i = 0; status != KVB_OK; i++) {
        assert_true(i < 100);
        fail_alloc_after(i);
        status = kvctl_top_take_status(&scene->fleet, &component, root, scene->now_ns);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
    }
    fail_alloc_after(0);
    assert_int_equal(
        kvctl_top_fleet_show(&scene->fleet, scene->now_ns, &scene->model), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    (void)show(scene);
    assert_int_equal(scene->model.count, 1);
}

int main(void)
{
#define ON_SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        ON_SCENE(a_stream_combines_what_its_bridge_and_the_aggregator_report),
        ON_SCENE(without_an_aggregator_the_state_of_the_bridge_is_shown),
        ON_SCENE(rates_need_two_readings),
        ON_SCENE(a_restarted_bridge_has_no_rate_until_its_second_message),
        ON_SCENE(a_publisher_without_a_bridge_is_counted_by_its_event_ids),
        ON_SCENE(a_silent_bridge_s_lag_grows_and_its_rate_is_unknown),
        ON_SCENE(streams_that_nobody_reports_are_forgotten_after_a_while),
        ON_SCENE(nothing_changes_while_nats_is_away_and_no_stream_is_forgotten_after),
        ON_SCENE(the_hit_rate_is_that_of_the_last_rounds),
        ON_SCENE(the_same_rank_of_another_component_keeps_its_own_load),
        ON_SCENE(of_a_malformed_message_the_valid_fields_are_used),
        cmocka_unit_test(only_objects_are_messages),
        ON_SCENE(lack_of_memory_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
