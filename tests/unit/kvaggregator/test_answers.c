#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/pick.h"
#include "kvaggregator/query_scene.h"
#include "wire/query/json.h"

#include <stdio.h>
#include <string.h>

enum { all_rows = kvb_max_streams };

static void assert_text(struct kvb_buf *buf, const char *expected)
{
    assert_ok(kvb_buf_append(buf, "", 1));
    assert_string_equal((const char *)buf->data, expected);
    kvb_buf_done(buf);
}

static struct kvb_buf new_buf(void)
{
    struct kvb_buf buf;

    kvb_buf_init(&buf, kvb_max_answer_bytes);
    return buf;
}

static void assert_match(struct scene *scene, size_t tokens, size_t max_rows, const char *expected)
{
    struct kvb_query query = scene_query(tokens, "m");
    struct kvb_buf buf = new_buf();
    struct kvb_detail detail = { { 0 } };

    assert_ok(kvb_answer_match(&scene->ctx, &query, max_rows, &buf, &detail));
    assert_text(&buf, expected);
    kvb_query_done(&query);
}

static void match_lists_every_holder_best_first(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);

    assert_match(
        &scene, 96, all_rows,
        "{\"block_size\":16,\"blocks\":6,\"workers\":["
        "{\"worker_id\":1,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":\"VllmWorker\","
        "\"state\":\"EXACT\",\"reason\":\"\",\"blocks\":4,\"percent\":66.6666667,\"doubtful\":0,"
        "\"tokens\":{\"device\":64,\"host\":64,\"disk\":64},\"hit_tokens\":64},"
        "{\"worker_id\":2,\"dp_rank\":1,\"namespace\":\"dynamo\",\"component\":\"VllmWorker\","
        "\"state\":\"EXACT\",\"reason\":\"\",\"blocks\":2,\"percent\":33.3333333,\"doubtful\":0,"
        "\"tokens\":{\"device\":32,\"host\":32,\"disk\":32},\"hit_tokens\":32},"
        "{\"worker_id\":2,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":\"VllmWorker\","
        "\"state\":\"EXACT\",\"reason\":\"\",\"blocks\":1,\"percent\":16.6666667,\"doubtful\":0,"
        "\"tokens\":{\"device\":16,\"host\":16,\"disk\":16},\"hit_tokens\":16}]}");
    scene_done(&scene);
}

/* A row may repeat what the row before says of them: one of the same component, one of another. */
static void match_names_the_namespace_and_component_of_each_row(void **state)
{
    (void)state;
    static const char *const components[] = { "a", "a", "b", "b" };
    static const char *const rows[] = {
        "{\"worker_id\":4,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":\"b\",\"state\"",
        "{\"worker_id\":3,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":\"b\",\"state\"",
        "{\"worker_id\":2,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":\"a\",\"state\"",
        "{\"worker_id\":1,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":\"a\",\"state\"",
    };
    struct kvb_query query = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct scene scene;
    scene_empty(&scene);

    for (uint32_t i = 0; i < KVB_COUNT_OF(components); i++) {
        scene.component = components[i];
        scene_hold(
            &scene, &(struct scene_holding){ i + 1, 0, "m", 16, KVB_TIER_DEVICE, i + 1, false });
    }
    assert_ok(kvb_answer_match(&scene.ctx, &query, all_rows, &buf, &detail));
    assert_ok(kvb_buf_append(&buf, "", 1));
    const char *at = (const char *)buf.data;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        at = strstr(at, rows[i]);
        assert_non_null(at);
    }
    kvb_buf_done(&buf);
    kvb_query_done(&query);
    scene_done(&scene);
}

static void match_counts_the_rows_that_it_left_out(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);

    assert_match(&scene, 96, 0, "{\"block_size\":16,\"blocks\":6,\"workers\":[],\"more\":3}");
    scene_done(&scene);
}

static void match_without_a_hit_still_describes_the_query(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);

    assert_match(&scene, 15, all_rows, "{\"block_size\":16,\"blocks\":0,\"workers\":[]}");
    assert_match(&scene, 0, all_rows, "{\"block_size\":16,\"blocks\":0,\"workers\":[]}");
    scene_done(&scene);
}

/* ---- Which streams are listed ---- */

static void assert_has(struct kvb_buf *buf, const char *part)
{
    assert_ok(kvb_buf_append(buf, "", 1));
    if (!strstr((const char *)buf->data, part)) {
        fail_msg("%s\nis not in\n%s", part, (const char *)buf->data);
    }
    kvb_buf_done(buf);
}

/* ---- Tiers ---- */

/* By id the ranks of one component are all before those of the other. */
static void ranks_of_two_components_with_one_worker_id_are_merged(void **state)
{
    (void)state;
    static const struct {
        const char *component;
        struct scene_holding holding;
    } holdings[] = {
        { "a", { 5, 0, "m", 16, KVB_TIER_DEVICE, 1, false } },
        { "a", { 5, 2, "m", 16, KVB_TIER_DEVICE, 2, false } },
        { "b", { 5, 0, "m", 16, KVB_TIER_DEVICE, 2, false } },
        { "b", { 5, 1, "m", 16, KVB_TIER_DEVICE, 1, false } },
        { "b", { 5, 2, "m", 16, KVB_TIER_DEVICE, 1, false } },
    };
    struct kvb_query query = scene_query(48, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct scene scene;
    scene_empty(&scene);

    for (size_t i = 0; i < KVB_COUNT_OF(holdings); i++) {
        scene.component = holdings[i].component;
        scene_hold(&scene, &holdings[i].holding);
    }
    assert_ok(kvb_answer_query(&scene.ctx, &query, false, &buf, &detail));
    assert_text(
        &buf, "{\"scores\":{\"5\":{\"0\":32,\"1\":16,\"2\":32}},\"frequencies\":[],"
              "\"instances\":{\"5\":{\"longest_matched\":32,\"gpu\":32,"
              "\"dp\":{\"0\":32,\"1\":16,\"2\":32},\"cpu\":32,\"disk\":32}},"
              "\"hits\":{\"5\":{\"0\":32,\"1\":16,\"2\":32}}}");
    kvb_query_done(&query);
    scene_done(&scene);
}

/* Only if blocks of the prompt are in that tier: the other worker holds none of them on disk. */
static void a_tier_may_be_unverified_while_its_stream_is_exact(void **state)
{
    (void)state;
    const struct scene_holding host = { 3, 0, "m", 16, KVB_TIER_HOST, 3, false };
    const struct scene_holding device = { 4, 0, "m", 16, KVB_TIER_DEVICE, 3, false };
    struct kvb_query query = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct kvb_buf rows = new_buf();
    struct scene scene;
    scene_empty(&scene);

    scene_hold(&scene, &host);
    scene_hold(&scene, &device);
    scene_unverify_tier(&scene, &host, KVB_TIER_HOST);
    scene_unverify_tier(&scene, &device, KVB_TIER_DISK);
    assert_ok(kvb_answer_streams(&scene.ctx, 0, 9, &rows));
    assert_has(&rows, "\"unverified_tiers\":{\"disk\":\"no_removals\"}");
    assert_ok(kvb_answer_query(&scene.ctx, &query, false, &buf, &detail));
    assert_text(
        &buf, "{\"scores\":{\"3\":{},\"4\":{\"0\":48}},\"frequencies\":[],\"instances\":{"
              "\"3\":{\"longest_matched\":48,\"gpu\":0,\"dp\":{},\"cpu\":48,\"disk\":48},"
              "\"4\":{\"longest_matched\":48,\"gpu\":48,\"dp\":{\"0\":48},\"cpu\":48,\"disk\":48}},"
              "\"hits\":{\"3\":{},\"4\":{\"0\":48}},"
              "\"tier_states\":{\"3\":{\"0\":{\"unverified_tiers\":{\"host\":\"no_removals\"}}}}}");
    kvb_query_done(&query);
    scene_done(&scene);
}

static void states_other_than_exact_are_listed_for_those_ranks_alone(void **state)
{
    (void)state;
    const struct scene_holding exact = { 5, 0, "m", 16, KVB_TIER_DEVICE, 1, false };
    const struct scene_holding foreign = { 5, 1, NULL, 16, KVB_TIER_DEVICE, 1, false };
    struct kvb_query query = scene_query(16, NULL);
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct scene scene;
    scene_empty(&scene);

    scene.ctx.default_model = "m";
    scene.ctx.default_block_size = 16;
    scene_hold(&scene, &exact);
    scene_hold(&scene, &foreign);
    assert_ok(kvb_answer_query(&scene.ctx, &query, false, &buf, &detail));
    assert_text(
        &buf, "{\"scores\":{\"5\":{\"0\":16,\"1\":16}},\"frequencies\":[],\"instances\":{\"5\":{"
              "\"longest_matched\":16,\"gpu\":16,\"dp\":{\"0\":16,\"1\":16},\"cpu\":16,"
              "\"disk\":16}},\"hits\":{\"5\":{\"0\":0,\"1\":0}},"
              "\"states\":{\"5\":{\"1\":\"UNVERIFIED(no_heartbeat)\"}}}");
    kvb_query_done(&query);
    scene_done(&scene);
}

/* ---- Route ---- */

static void route_answers_the_cheapest_with_all_scores(void **state)
{
    (void)state;
    struct kvb_query query = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct kvb_route_decision decision;
    struct scene scene;
    scene_recorded(&scene);

    scene_load(&scene, 1, 0, 50);
    scene_load(&scene, 2, 0, 3);
    scene_load(&scene, 2, 1, 1);
    assert_ok(kvb_answer_route(&scene.ctx, &query, all_rows, &buf, &decision, &detail));
    assert_text(
        &buf,
        "{\"worker_id\":2,\"dp_rank\":1,\"namespace\":\"dynamo\",\"component\":\"VllmWorker\","
        "\"policy\":\"kv\",\"overlap_blocks\":2,\"reason\":\"lowest cost 5 of "
        "3\",\"request_id\":\"A-0\","
        "\"scores\":["
        "{\"worker_id\":2,\"dp_rank\":1,\"cost\":5,\"overlap_blocks\":2,"
        "\"predicted_blocks\":0,\"pending_prefill_blocks\":0,\"decode_blocks\":1,"
        "\"waiting\":2},"
        "{\"worker_id\":2,\"dp_rank\":0,\"cost\":8,\"overlap_blocks\":1,"
        "\"predicted_blocks\":0,\"pending_prefill_blocks\":0,\"decode_blocks\":3,"
        "\"waiting\":2},"
        "{\"worker_id\":1,\"dp_rank\":0,\"cost\":52,\"overlap_blocks\":4,"
        "\"predicted_blocks\":0,\"pending_prefill_blocks\":0,\"decode_blocks\":50,"
        "\"waiting\":2}]}");
    assert_int_equal(decision.hit_tokens, 32);
    struct kvb_buf event = new_buf();
    assert_ok(kvb_answer_hit_rate(&decision, &event));
    assert_text(
        &event, "{\"worker_id\":2,\"isl_tokens\":96,\"hit_tokens\":32,\"isl_blocks\":6,"
                "\"overlap_blocks\":2}");
    kvb_query_done(&query);
    scene_done(&scene);
}

static uint64_t route_once(struct scene *scene)
{
    struct kvb_query query = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct kvb_route_decision decision;

    assert_ok(kvb_answer_route(&scene->ctx, &query, all_rows, &buf, &decision, &detail));
    kvb_buf_done(&buf);
    kvb_query_done(&query);
    return (decision.id.worker_id * 10) + decision.id.dp_rank;
}

/* The host holds 3 blocks of the prompt: of chunks, only whole ones are loaded. */
static void a_hit_beyond_the_device_ends_with_a_chunk(void **state)
{
    static const struct {
        uint32_t chunk;
        const char *shown;
    } rows[] = {
        { 0, "\"cpu\":48," }, { 1, "\"cpu\":48," }, { 2, "\"cpu\":32," }, { 3, "\"cpu\":48," }
    };
    const struct scene_holding host = { 3, 0, "m", 16, KVB_TIER_HOST, 3, false };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvb_query query = scene_query(96, "m");
        struct kvb_detail detail = { { 0 } };
        struct kvb_buf buf = new_buf();
        struct scene scene;
        scene_empty(&scene);
        scene_hold(&scene, &host);
        scene_chunk(&scene, &host, rows[i].chunk);
        assert_ok(kvb_answer_query(&scene.ctx, &query, false, &buf, &detail));
        assert_has(&buf, rows[i].shown);
        kvb_query_done(&query);
        scene_done(&scene);
    }
}

/* A worker that holds 3 blocks, in a tier that may list what is gone. */
static void what_only_an_unverified_tier_holds_counts_as_configured(void **state)
{
    static const struct {
        double share;
        uint64_t blocks;
    } rows[] = { { 0, 0 }, { 0.5, 1 }, { 1, 3 } };
    const struct scene_holding host = { 3, 0, "m", 16, KVB_TIER_HOST, 3, false };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvb_query query = scene_query(96, "m");
        struct kvb_route_decision decision = { 0 };
        struct kvb_detail detail = { { 0 } };
        struct kvb_buf buf = new_buf();
        struct scene scene;
        scene_empty(&scene);
        scene.ctx.route.unverified_tiers = rows[i].share;
        scene_hold(&scene, &host);
        assert_ok(kvb_answer_route(&scene.ctx, &query, all_rows, &buf, &decision, &detail));
        assert_int_equal(decision.overlap_blocks, 3); /* as long as nothing is against the tier */
        scene_unverify_tier(&scene, &host, KVB_TIER_HOST);
        kvb_buf_reset(&buf);
        assert_ok(kvb_answer_route(&scene.ctx, &query, all_rows, &buf, &decision, &detail));
        assert_int_equal(decision.overlap_blocks, rows[i].blocks);
        kvb_buf_done(&buf);
        kvb_query_done(&query);
        scene_done(&scene);
    }
}

static void predicted_blocks_are_shown_separately_from_held_ones(void **state)
{
    (void)state;
    const struct scene_holding one = { 1, 0, "m", 16, KVB_TIER_DEVICE, 2, false };
    struct kvb_query query = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf before = new_buf();
    struct kvb_buf after = new_buf();
    struct scene scene;
    scene_empty(&scene);

    scene_predict(&scene);
    scene_hold(&scene, &one);
    assert_ok(kvb_answer_match(&scene.ctx, &query, all_rows, &before, &detail));
    assert_int_equal(route_once(&scene), 10);
    assert_ok(kvb_answer_match(&scene.ctx, &query, all_rows, &after, &detail));
    const size_t held = before.len - 1; /* everything but the last bracket */
    assert_memory_equal(before.data, after.data, held);
    kvb_buf_reset(&before);
    assert_ok(kvb_buf_append(&before, after.data + held, after.len - held));
    assert_text(
        &before, ",\"predicted\":[{\"worker_id\":1,\"dp_rank\":0,\"blocks\":4,\"tokens\":64}]}");
    kvb_buf_done(&after);
    kvb_query_done(&query);
    scene_done(&scene);
}

/* The worker holds more than worker 1, but no heartbeat confirms it. */
static void a_worker_without_heartbeats_is_chosen_only_with_a_fresh_load(void **state)
{
    (void)state;
    const struct scene_holding known = { 1, 0, "m", 16, KVB_TIER_DEVICE, 2, false };
    const struct scene_holding foreign = { 2, 0, NULL, 16, KVB_TIER_DEVICE, 4, false };
    struct scene scene;
    scene_empty(&scene);

    scene.ctx.default_model = "m";
    scene.ctx.default_block_size = 16;
    scene_hold(&scene, &known);
    scene_hold(&scene, &foreign);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(route_once(&scene), 10);
    }
    scene_load(&scene, 1, 0, 50);
    scene_load(&scene, 2, 0, 0);
    assert_int_equal(route_once(&scene), 20);
    (void)kvb_load_tracker_expire(scene.tracker, 1000 * KVB_NS_PER_S);
    assert_int_equal(route_once(&scene), 10);
    scene_done(&scene);
}

/* ---- Selections in route requests ---- */

enum { no_worker = 0 };

/* The worker in the answer; or no_worker, with the status and the error text. */
static uint64_t route_selected(
    struct scene *scene, const char *body, kvb_status *out_status, struct kvb_detail *detail)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    struct kvb_buf buf = new_buf();
    struct kvb_route_decision decision = { 0 };
    const kvb_span json = { (const uint8_t *)body, strlen(body) };

    *out_status = kvb_query_json_decode(json, &query, detail);
    assert_ok(*out_status);
    *out_status = kvb_answer_route(&scene->ctx, &query, all_rows, &buf, &decision, detail);
    kvb_buf_done(&buf);
    return *out_status == KVB_OK ? decision.id.worker_id : no_worker;
}

static void scene_of_roles(struct scene *scene)
{
    static const struct scene_holding workers[] = {
        { 1, 0, "m", 16, KVB_TIER_DEVICE, 2, false },
        { 2, 0, "m", 16, KVB_TIER_DEVICE, 1, false },
        { 3, 0, "m", 16, KVB_TIER_DEVICE, 1, false },
    };

    scene_empty(scene);
    for (size_t i = 0; i < 3; i++) {
        scene_hold(scene, &workers[i]);
    }
    scene_label(scene, &workers[1], "role=decode", false);
    scene_label(scene, &workers[2], "address=h:3", true);
}

static void a_request_goes_to_a_selected_worker(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        uint64_t worker;
        kvb_status status;
        const char *why;
    } rows[] = {
        { "{\"token_ids\":[1]}", 1, KVB_OK, NULL },
        { "{\"token_ids\":[1],\"role\":\"decode\"}", 2, KVB_OK, NULL },
        { "{\"token_ids\":[1],\"labels\":{\"role\":\"decode\"}}", 2, KVB_OK, NULL },
        { "{\"token_ids\":[1],\"candidates\":[9,2]}", 2, KVB_OK, NULL },
        { "{\"token_ids\":[1],\"candidates\":[1],\"policy\":\"ttft\"}", 1, KVB_OK, NULL },
        { "{\"token_ids\":[1],\"candidates\":[\"h:3\"]}", no_worker, KVB_AGAIN,
          "no worker of the model is left: of 3 streams 2 not among the candidates, 1 draining" },
        { "{\"token_ids\":[1],\"candidates\":[\"h:3\",1],\"role\":\"decode\"}", no_worker,
          KVB_AGAIN,
          "no worker of the model is left: of 3 streams 2 without the role or labels, "
          "1 not among the candidates" },
        { "{\"token_ids\":[1],\"role\":\"prefill\"}", no_worker, KVB_NOT_FOUND,
          "no worker of the model has label role=prefill" },
        { "{\"token_ids\":[1],\"candidates\":[8,\"h:9\"]}", no_worker, KVB_NOT_FOUND,
          "no worker of the model is among the 2 candidates, the first of which is 8" },
        { "{\"token_ids\":[1],\"policy\":\"best\"}", no_worker, KVB_BAD_INPUT,
          "policy: \"best\" is unknown; there are kv, least_requests, ttft, "
          "round_robin" },
        { "{\"token_ids\":[1],\"policy\":\"weighted\"}", no_worker, KVB_BAD_INPUT,
          "policy: \"weighted\" is gone: \"kv\" serves in its place" },
    };
    struct scene scene;
    scene_of_roles(&scene);

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_detail detail = { { 0 } };
        kvb_status status = KVB_OK;
        scene_load(&scene, 1, 0, 0);
        scene_load(&scene, 2, 0, 1);
        assert_int_equal(route_selected(&scene, rows[i].body, &status, &detail), rows[i].worker);
        assert_int_equal(status, rows[i].status);
        if (rows[i].why) {
            assert_string_equal(detail.text, rows[i].why);
        }
    }
    scene_done(&scene);
}

/* ---- Facts of a worker in the answers ---- */

static const struct scene_holding told[] = { { 1, 0, "m", 16, KVB_TIER_DEVICE, 4, false },
                                             { 2, 0, "m", 16, KVB_TIER_DEVICE, 2, false },
                                             { 2, 1, "m", 16, KVB_TIER_DEVICE, 1, false } };

static const struct kvb_worker_facts pod = { .address = "http://10.0.0.7:8000",
                                             .role = KVB_ROLE_BOTH,
                                             .pod = "vllm-0",
                                             .pod_namespace = "inference",
                                             .node = "gpu-17",
                                             .ready = KVB_READY_YES };

/* Worker 1 is a pod; nothing is known of worker 2. */
static void scene_of_pod(struct scene *scene)
{
    scene_empty(scene);
    for (size_t i = 0; i < KVB_COUNT_OF(told); i++) {
        scene_hold(scene, &told[i]);
    }
    scene_tell(scene, &told[0], &pod);
}

static void a_worker_is_draining_when_all_its_ranks_are(void **state)
{
    (void)state;
    static const struct kvb_worker_facts draining = { .is_draining = true };
    struct scene scene;
    struct kvb_buf buf = new_buf();
    scene_of_pod(&scene);

    scene_tell(&scene, &told[1], &draining);
    assert_ok(kvb_answer_workers(&scene.ctx, &buf));
    assert_ok(kvb_buf_append(&buf, "", 1));
    assert_null(strstr((const char *)buf.data, "draining"));
    kvb_buf_done(&buf);
    scene_tell(&scene, &told[2], &draining);
    buf = new_buf();
    assert_ok(kvb_answer_workers(&scene.ctx, &buf));
    assert_has(&buf, "\"status\":\"active\"}},\"draining\":true}]");
    scene_done(&scene);
}

/* Long addresses: the rows must fit into the bytes that as many usual rows take. */
static void a_route_of_long_addresses_has_fewer_rows(void **state)
{
    (void)state;
    struct scene scene;
    struct kvb_query query = scene_query(96, "m");
    struct kvb_route_decision decision = { 0 };
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct kvb_worker_facts facts = { .ready = KVB_READY_YES };
    scene_of_pod(&scene);

    memset(facts.address, '"', kvb_worker_address_bytes); /* each takes two bytes in JSON */
    for (size_t i = 0; i < KVB_COUNT_OF(told); i++) {
        scene_tell(&scene, &told[i], &facts);
    }
    assert_ok(kvb_answer_route(&scene.ctx, &query, 2, &buf, &decision, &detail));
    assert_has(&buf, "],\"more\":2");
    kvb_query_done(&query);
    scene_done(&scene);
}

static void assert_matched(struct scene *scene, const char *body, const char *scores)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();

    assert_ok(
        kvb_query_json_decode((kvb_span){ (const uint8_t *)body, strlen(body) }, &query, &detail));
    assert_ok(kvb_answer_query(&scene->ctx, &query, false, &buf, &detail));
    assert_has(&buf, scores);
}

#define PROMPT                                                                                     \
    "{\"token_ids\":[100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115],"            \
    "\"model\":\"m\","

static void a_query_lists_only_selected_workers(void **state)
{
    (void)state;
    struct scene scene;
    scene_of_pod(&scene);

    assert_matched(
        &scene, PROMPT "\"role\":null}",
        "{\"scores\":{\"1\":{\"0\":16},\"2\":{\"0\":16,\"1\":16}},");
    assert_matched(&scene, PROMPT "\"role\":\"prefill\"}", "{\"scores\":{\"1\":{\"0\":16}},");
    assert_matched(
        &scene, PROMPT "\"candidates\":[\"http://10.0.0.7:8000\"]}",
        "{\"scores\":{\"1\":{\"0\":16}},");
    assert_matched(
        &scene, PROMPT "\"labels\":{\"address\":\"http://10.0.0.7:8000\"}}",
        "{\"scores\":{\"1\":{\"0\":16}},");
    assert_matched(
        &scene, PROMPT "\"candidates\":[2]}", "{\"scores\":{\"2\":{\"0\":16,\"1\":16}},");
    assert_matched(&scene, PROMPT "\"candidates\":[\"10.0.0.7:8000\"]}", "{\"scores\":{},");
    assert_matched(&scene, PROMPT "\"labels\":{\"zone\":\"b\"}}", "{\"scores\":{},");
    assert_matched(/* the next query finds workers that one query left out */
                   &scene, PROMPT "\"role\":null}",
                   "{\"scores\":{\"1\":{\"0\":16},\"2\":{\"0\":16,\"1\":16}},");
    scene_done(&scene);
}

static void assert_down(struct scene *scene, const char *selection, const char *down)
{
    char body[256];

    (void)snprintf(body, sizeof body, PROMPT "%s}", selection);
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf match = new_buf();
    struct kvb_buf answer = new_buf();

    assert_ok(kvb_query_json_decode(kvb_span_of(body), &query, &detail));
    assert_ok(kvb_answer_match(&scene->ctx, &query, all_rows, &match, &detail));
    assert_ok(kvb_answer_query(&scene->ctx, &query, false, &answer, &detail));
    assert_ok(kvb_buf_append(&match, "", 1));
    assert_ok(kvb_buf_append(&answer, "", 1));
    const char *in_match = strstr((const char *)match.data, "\"down\":");
    const char *in_answer = strstr((const char *)answer.data, "\"down\":");
    if (down) {
        assert_non_null(in_match);
        assert_non_null(in_answer);
        assert_memory_equal(in_match, down, strlen(down));
        assert_memory_equal(in_answer, down, strlen(down));
    } else {
        assert_null(in_match);
        assert_null(in_answer);
    }
    kvb_buf_done(&match);
    kvb_buf_done(&answer);
}

#define DOWN_ROW(worker, rank)                                                                     \
    "{\"worker_id\":" worker ",\"dp_rank\":" rank                                                  \
    ",\"namespace\":\"dynamo\",\"component\":\"VllmWorker\",\"state\":\"DOWN\",\"reason\":"        \
    "\"bridge_stopped\"}"

/* An empty answer alone would look as if nobody had the prompt. */
static void workers_are_named_as_down_where_none_is_up(void **state)
{
    (void)state;
    struct scene scene;
    scene_of_pod(&scene);
    scene_label(&scene, &told[2], "zone=b", false);

    assert_down(&scene, "\"candidates\":[1]", NULL);
    scene_bye(&scene, &told[0]);
    assert_down(&scene, "\"role\":null", NULL); /* others have it */
    assert_down(&scene, "\"candidates\":[1]", "\"down\":[" DOWN_ROW("1", "0") "]");
    assert_down(&scene, "\"instance_id\":1", "\"down\":[" DOWN_ROW("1", "0") "]");
    assert_down(&scene, "\"candidates\":[1,2]", NULL);
    assert_down(&scene, "\"lora_name\":\"x\"", NULL); /* nobody has it, and workers are up */
    scene_bye(&scene, &told[1]);
    assert_down(
        &scene, "\"instance_id\":2,\"data_parallel_rank\":0", "\"down\":[" DOWN_ROW("2", "0") "]");
    assert_down(&scene, "\"instance_id\":2", NULL);
    scene_bye(&scene, &told[2]);
    assert_down(
        &scene, "\"role\":null",
        "\"down\":[" DOWN_ROW("1", "0") "," DOWN_ROW("2", "0") "," DOWN_ROW("2", "1") "]");
    assert_down(&scene, "\"candidates\":[7]", NULL); /* it is not known at all */
    scene_done(&scene);
}

static size_t in_flight_of(const struct scene *scene, uint64_t worker_id, uint32_t dp_rank)
{
    struct kvb_request_sums sums = { 0 };

    for (size_t i = 0; i < kvb_followers_limit(scene->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(scene->followers, i);
        if (follower && follower->id.worker_id == worker_id && follower->id.dp_rank == dp_rank) {
            const struct kvb_stream_key key = kvb_followers_key(scene->followers, (uint32_t)i);
            kvb_requests_sums(scene->requests, &key, false, scene->ctx.now_ns, &sums);
        }
    }
    return sums.in_flight;
}

/* Rank 0 holds more of the prompt, and is not chosen; the books count the request on rank 1. */
static void a_pinned_rank_is_chosen_and_stays_in_the_books(void **state)
{
    (void)state;
    static const char body[] = PROMPT "\"data_parallel_rank\":1,\"request_id\":\"r\"}";
    struct kvb_shared_report report = { .request_id = "r" };
    struct kvb_route_decision decision = { 0 };
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct scene scene;
    scene_of_pod(&scene);

    assert_ok(kvb_query_json_decode(kvb_span_of(body), &query, &detail));
    assert_ok(kvb_answer_route(&scene.ctx, &query, all_rows, &buf, &decision, &detail));
    assert_int_equal(decision.id.worker_id, 2);
    assert_int_equal(decision.id.dp_rank, 1);
    assert_int_equal(in_flight_of(&scene, 2, 1), 1);
    assert_int_equal(in_flight_of(&scene, 2, 0), 0);
    assert_ok(kvb_answer_take_report(&scene.ctx, &report, KVB_REQUEST_FINISHED));
    assert_int_equal(in_flight_of(&scene, 2, 1), 0);
    kvb_buf_done(&buf);
    scene_done(&scene);
}

/* The worker for a request of a session; 0 tokens: nothing is known of the prompt. */
static uint64_t pick_for(struct scene *scene, size_t tokens, uint64_t session)
{
    struct kvb_query query = scene_query(tokens, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_pick pick;

    query.selection.affinity = session;
    assert_ok(kvb_pick_make(&scene->ctx, &query, &pick, &detail));
    kvb_query_done(&query);
    return pick.decision.id.worker_id;
}

static void a_session_keeps_its_worker_while_that_is_not_loaded_most(void **state)
{
    (void)state;
    enum { workers = 3, sessions = 64 };
    unsigned picked[workers + 1] = { 0 };
    struct scene scene;
    scene_empty(&scene);

    for (uint64_t id = 1; id <= workers; id++) {
        scene_hold(
            &scene,
            &(struct scene_holding){ id, 0, "m", 16, KVB_TIER_DEVICE, id == 1 ? 4 : 1, false });
        scene_load(&scene, id, 0, 5);
    }
    for (uint64_t session = 1; session <= sessions; session++) {
        const uint64_t own = pick_for(&scene, 0, session);
        picked[own]++;
        /* Now others are loaded less, then more. */
        scene_load(&scene, own, 0, 6);
        assert_int_not_equal(pick_for(&scene, 0, session), own);
        scene_load(&scene, own % workers + 1, 0, 7);
        assert_int_equal(pick_for(&scene, 0, session), own);
        /* What is held of a prompt says more. */
        assert_int_equal(pick_for(&scene, 64, session), 1);
        scene_load(&scene, own, 0, 5);
        scene_load(&scene, own % workers + 1, 0, 5);
    }
    for (uint64_t id = 1; id <= workers; id++) {
        assert_in_range(picked[id], sessions / 6, sessions / 2);
    }
    scene_done(&scene);
}

/* On an idle fleet requests take turns. A dry run is no turn and counts nowhere. */
static void a_dry_run_changes_nothing(void **state)
{
    (void)state;
    struct kvb_detail detail = { { 0 } };
    kvb_status status = KVB_OK;
    struct scene scene;
    scene_of_roles(&scene);

    scene_load(&scene, 1, 0, 0);
    scene_load(&scene, 2, 0, 0);
    static const char dry[] = "{\"token_ids\":[1],\"policy\":\"round_robin\",\"dry_run\":true}";
    static const char wet[] = "{\"token_ids\":[1],\"policy\":\"round_robin\"}";
    for (int i = 0; i < 3; i++) {
        assert_int_equal(route_selected(&scene, dry, &status, &detail), 1);
    }
    assert_int_equal(scene.ctx.decisions, 0);
    assert_int_equal(route_selected(&scene, wet, &status, &detail), 1);
    assert_int_equal(route_selected(&scene, dry, &status, &detail), 2);
    assert_int_equal(route_selected(&scene, wet, &status, &detail), 2);
    assert_int_equal(scene.ctx.decisions, 2);
    struct kvb_request_counters counters;
    kvb_requests_count(scene.requests, &counters);
    assert_int_equal(counters.in_flight, 2);
    scene_done(&scene);
}

static void route_never_chooses_a_worker_that_is_down(void **state)
{
    (void)state;
    const struct scene_holding holding = { 1, 0, "m", 16, KVB_TIER_DEVICE, 2, false };
    struct kvb_query query = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = new_buf();
    struct kvb_route_decision decision;
    struct scene scene;
    scene_empty(&scene);

    scene_hold(&scene, &holding);
    scene_bye(&scene, &holding);
    assert_int_equal(
        kvb_answer_route(&scene.ctx, &query, all_rows, &buf, &decision, &detail), KVB_AGAIN);
    assert_string_equal(detail.text, "no worker of the model is up");
    kvb_buf_done(&buf);
    kvb_query_done(&query);
    scene_done(&scene);
}

/* ---- The rest ---- */

static void streams_are_listed_in_pages(void **state)
{
    (void)state;
    struct kvb_buf first = new_buf();
    struct kvb_buf last = new_buf();
    struct scene scene;
    scene_recorded(&scene);

    assert_ok(kvb_answer_streams(&scene.ctx, 0, 2, &first));
    assert_ok(kvb_buf_append(&first, "", 1));
    assert_non_null(strstr((const char *)first.data, "\"next\":2}"));
    assert_ok(kvb_answer_streams(&scene.ctx, 2, 2, &last));
    assert_ok(kvb_buf_append(&last, "", 1));
    assert_null(strstr((const char *)last.data, "next"));
    assert_non_null(strstr((const char *)last.data, "\"worker_id\":2,\"dp_rank\":1"));
    kvb_buf_done(&first);
    kvb_buf_done(&last);
    scene_done(&scene);
}

static void survives_every_failing_allocation(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        struct scene scene;
        scene_recorded(&scene);
        struct kvb_query query = scene_query(96, "m");
        struct kvb_detail detail = { { 0 } };
        struct kvb_buf buf = new_buf();
        struct kvb_route_decision decision;
        fail_alloc_after(n);
        status = kvb_answer_route(&scene.ctx, &query, all_rows, &buf, &decision, &detail);
        if (status == KVB_OK) {
            status = kvb_answer_streams(&scene.ctx, 0, all_rows, &buf);
        }
        if (status == KVB_OK) {
            status = kvb_answer_dump_page(&scene.ctx, 100, (struct kvb_dump_place){ 0 }, &buf);
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_buf_done(&buf);
        kvb_query_done(&query);
        scene_done(&scene);
    }
}

SUITE(answers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(match_lists_every_holder_best_first),
        cmocka_unit_test(match_names_the_namespace_and_component_of_each_row),
        cmocka_unit_test(match_counts_the_rows_that_it_left_out),
        cmocka_unit_test(match_without_a_hit_still_describes_the_query),
        cmocka_unit_test(ranks_of_two_components_with_one_worker_id_are_merged),
        cmocka_unit_test(a_tier_may_be_unverified_while_its_stream_is_exact),
        cmocka_unit_test(states_other_than_exact_are_listed_for_those_ranks_alone),
        cmocka_unit_test(route_answers_the_cheapest_with_all_scores),
        cmocka_unit_test(a_hit_beyond_the_device_ends_with_a_chunk),
        cmocka_unit_test(what_only_an_unverified_tier_holds_counts_as_configured),
        cmocka_unit_test(predicted_blocks_are_shown_separately_from_held_ones),
        cmocka_unit_test(a_worker_without_heartbeats_is_chosen_only_with_a_fresh_load),
        cmocka_unit_test(a_request_goes_to_a_selected_worker),
        cmocka_unit_test(a_worker_is_draining_when_all_its_ranks_are),
        cmocka_unit_test(a_route_of_long_addresses_has_fewer_rows),
        cmocka_unit_test(a_query_lists_only_selected_workers),
        cmocka_unit_test(workers_are_named_as_down_where_none_is_up),
        cmocka_unit_test(a_pinned_rank_is_chosen_and_stays_in_the_books),
        cmocka_unit_test(a_session_keeps_its_worker_while_that_is_not_loaded_most),
        cmocka_unit_test(a_dry_run_changes_nothing),
        cmocka_unit_test(route_never_chooses_a_worker_that_is_down),
        cmocka_unit_test(streams_are_listed_in_pages),
        cmocka_unit_test(survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
