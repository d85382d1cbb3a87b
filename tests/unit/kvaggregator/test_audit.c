#include "kvb_test.h"

#include "core/buf.h"
#include "core/clock.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/query_scene.h"

#include <stdlib.h>
#include <string.h>

/* Decisions promise hits, and reports of requests are compared with them; see answers/audit.c.
 * Worker 1 holds 4 blocks. */

enum { buf_bytes = 1 << 16, prompt_tokens = 65, held_tokens = 64 };

static struct scene audited_scene(void)
{
    static const struct kvb_audit_options options = {
        .max_streams = 8, .honest_loss = 0.005, .lie = 0.05, .false_alarm_requests = 1e8
    };
    struct scene scene;

    scene_recorded(&scene);
    assert_ok(kvb_audit_new(&options, &scene.ctx.audit));
    return scene;
}

static void drop_scene(struct scene *scene)
{
    kvb_audit_free(scene->ctx.audit);
    scene_done(scene);
}

static struct kvb_route_decision route(struct scene *scene, struct kvb_query *query)
{
    struct kvb_route_decision decision;
    struct kvb_detail detail;
    struct kvb_buf buf;

    query->selection.worker_ids = calloc(1, sizeof *query->selection.worker_ids);
    assert_non_null(query->selection.worker_ids);
    query->selection.worker_ids[query->selection.worker_id_count++] = 1;
    kvb_buf_init(&buf, buf_bytes);
    assert_ok(kvb_answer_route(&scene->ctx, query, 8, &buf, &decision, &detail));
    assert_int_equal(decision.id.worker_id, 1);
    kvb_buf_done(&buf);
    kvb_query_done(query);
    return decision;
}

static struct kvb_route_decision route_prompt(struct scene *scene)
{
    struct kvb_query query = scene_query(prompt_tokens, "m");

    return route(scene, &query);
}

static void
finish(struct scene *scene, const struct kvb_route_decision *decision, uint64_t cached_tokens)
{
    struct kvb_shared_report report = { .has_cached_tokens = true, .cached_tokens = cached_tokens };

    memcpy(report.request_id, decision->request_id, sizeof report.request_id);
    assert_ok(kvb_answer_take_report(&scene->ctx, &report, KVB_REQUEST_FINISHED));
}

static uint64_t audited_requests(const struct scene *scene)
{
    struct kvb_audit_counters counters;

    kvb_audit_count(scene->ctx.audit, &counters);
    return counters.requests;
}

static void a_decision_promises_the_hit_of_its_stream(void **state)
{
    struct scene scene = audited_scene();

    (void)state;
    struct kvb_route_decision decision = route_prompt(&scene);
    assert_int_equal(decision.promised_tokens, held_tokens);
    assert_true(decision.promised_block.value != 0);
    scene.ctx.audit_slack_blocks = 1;
    decision = route_prompt(&scene);
    assert_int_equal(decision.promised_tokens, held_tokens - scene_block_size);
    scene.ctx.audit_slack_blocks = 9;
    assert_int_equal(route_prompt(&scene).promised_tokens, 0);
    drop_scene(&scene);
}

static void the_last_token_is_never_promised(void **state)
{
    struct scene scene = audited_scene();
    struct kvb_query query = scene_query(held_tokens, "m");

    (void)state;
    assert_int_equal(route(&scene, &query).promised_tokens, held_tokens - scene_block_size);
    drop_scene(&scene);
}

static void a_report_without_cached_tokens_is_not_compared(void **state)
{
    struct scene scene = audited_scene();
    struct kvb_shared_report report = { .cached_tokens = 0 };

    (void)state;
    const struct kvb_route_decision decision = route_prompt(&scene);
    memcpy(report.request_id, decision.request_id, sizeof report.request_id);
    assert_ok(kvb_answer_take_report(&scene.ctx, &report, KVB_REQUEST_FIRST_TOKEN));
    assert_ok(kvb_answer_take_report(&scene.ctx, &report, KVB_REQUEST_FINISHED));
    assert_int_equal(
        kvb_answer_take_report(&scene.ctx, &report, KVB_REQUEST_FINISHED), KVB_NOT_FOUND);
    assert_int_equal(audited_requests(&scene), 0);
    drop_scene(&scene);
}

/* The decision does not know the engine's names in removals. */
static void with_engine_names_any_removal_ends_a_promise(void **state)
{
    static const kvb_block_hash another = { 77 };
    struct scene scene = audited_scene();
    const struct scene_holding holding = {
        .worker_id = 1, .model = "m", .block_size = scene_block_size, .count = 4
    };

    (void)state;
    scene_hold(&scene, &holding);
    scene_name_by_engine(&scene, &holding, "http://a");
    const struct kvb_route_decision kept = route_prompt(&scene);
    finish(&scene, &kept, held_tokens);
    assert_int_equal(audited_requests(&scene), 1);
    const struct kvb_route_decision evicted = route_prompt(&scene);
    kvb_requests_blocks_removed(scene.requests, &evicted.id, &another, 1);
    finish(&scene, &evicted, 0);
    assert_int_equal(scene.ctx.audit_left_out[KVB_LEFT_OUT_EVICTED], 1);
    assert_int_equal(audited_requests(&scene), 1);
    drop_scene(&scene);
}

static void a_promise_of_a_list_that_was_emptied_or_is_stale_is_left_out(void **state)
{
    struct scene scene = audited_scene();
    const struct scene_holding holding = { .worker_id = 1,
                                           .model = "m",
                                           .block_size = scene_block_size,
                                           .tier = KVB_TIER_DEVICE,
                                           .count = 4 };

    (void)state;
    const struct kvb_route_decision decision = route_prompt(&scene);
    scene_hold(&scene, &holding); /* the list is cleared, and the same blocks are stored again */
    finish(&scene, &decision, 0);
    assert_int_equal(scene.ctx.audit_left_out[KVB_LEFT_OUT_LIST_CHANGED], 1);
    kvb_followers_nats_away(scene.followers, scene_now_s * KVB_NS_PER_S);
    const struct kvb_route_decision stale = route_prompt(&scene);
    finish(&scene, &stale, 0);
    assert_int_equal(scene.ctx.audit_left_out[KVB_LEFT_OUT_NO_PROMISE], 1);
    assert_int_equal(audited_requests(&scene), 0);
    drop_scene(&scene);
}

static void the_row_of_a_stream_shows_its_audit(void **state)
{
    struct scene scene = audited_scene();
    struct kvb_buf buf;

    (void)state;
    const struct kvb_route_decision decision = route_prompt(&scene);
    finish(&scene, &decision, held_tokens + 16);
    kvb_buf_init(&buf, buf_bytes);
    assert_ok(kvb_answer_streams(&scene.ctx, 0, 8, &buf));
    assert_ok(kvb_buf_append(&buf, "", 1));
    const char *audit = strstr((const char *)buf.data, "\"audit\":");
    assert_non_null(audit);
    assert_non_null(strstr(
        audit, "{\"verdict\":\"kept\",\"requests\":1,\"short_requests\":0,"
               "\"promised_tokens\":64,"
               "\"delivered_tokens\":64,\"extra_tokens\":16,\"evidence\":0"));
    assert_null(strstr(audit + 1, "\"audit\":")); /* for one stream */
    kvb_buf_done(&buf);
    drop_scene(&scene);
}

SUITE(audit)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_decision_promises_the_hit_of_its_stream),
        cmocka_unit_test(the_last_token_is_never_promised),
        cmocka_unit_test(a_report_without_cached_tokens_is_not_compared),
        cmocka_unit_test(with_engine_names_any_removal_ends_a_promise),
        cmocka_unit_test(a_promise_of_a_list_that_was_emptied_or_is_stale_is_left_out),
        cmocka_unit_test(the_row_of_a_stream_shows_its_audit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
