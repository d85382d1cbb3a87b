#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/routes.h"
#include "kvaggregator/query_scene.h"
#include "wire/json/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char json[] = "application/json";

/* ---- Requests ---- */

static struct kvb_http_answer
query_with(struct kvb_http_route_context *context, const struct kvb_http_request *request)
{
    struct kvb_http_answer answer = { 0 };

    kvb_buf_init(&answer.body, kvb_max_answer_bytes);
    const struct kvb_http_route *route = kvb_http_route_find(request, &answer);
    if (route) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        assert_true(!kvb_http_route_needs_context(route) || context->ctx);
        if (kvb_http_route_read(route, request, &query, &answer)) {
            context->query = &query;
            do {
                kvb_http_route_answer(route, context, request, &answer);
            } while (context->is_unfinished);
            kvb_dump_done(&context->dump);
        }
    }
    assert_ok(kvb_buf_append(&answer.body, "", 1)); /* NUL-terminated for the tests */
    return answer;
}

static struct kvb_http_request
request_of(const char *method, const char *path, const char *content_type, const char *body)
{
    return (struct kvb_http_request){
        .method = method,
        .path = path,
        .parameters = "",
        .content_type = content_type,
        .authorization = "",
        .if_none_match = "",
        .body = { .data = (const uint8_t *)body, .len = strlen(body) },
    };
}

static struct kvb_http_answer
ask(struct scene *scene, const char *method, const char *path, const char *body)
{
    struct kvb_http_route_context context = { .ctx = &scene->ctx };
    const struct kvb_http_request request = request_of(method, path, json, body);

    return query_with(&context, &request);
}

static const char *text_of(const struct kvb_http_answer *answer)
{
    return (const char *)answer->body.data;
}

/* ---- Recorded answers of Dynamo's indexer ---- */

struct exchange {
    const char *name;
    const char *method;
    const char *path;
    const char *content_type; /* content type of the request */
    const char *body;         /* PROMPT stands for the 96 recorded tokens */
    unsigned status;
    const char *answer_type; /* beginning of the answer's content type; NULL: none */
    const char *answer;      /* JSON that must be equal, or the beginning of a text */
    const char *contains;    /* words that the text must contain; NULL: none */
};

#define BOTH                                                                                       \
    "{\"scores\":{\"1\":{\"0\":64},\"2\":{\"0\":16,\"1\":32}},\"frequencies\":[],\"instances\":{"  \
    "\"2\":{\"longest_matched\":32,\"gpu\":32,\"dp\":{\"0\":16,\"1\":32},\"cpu\":32,\"disk\":32}," \
    "\"1\":{\"longest_matched\":64,\"gpu\":64,\"dp\":{\"0\":64},\"cpu\":64,\"disk\":64}}}"
#define NONE "{\"scores\":{},\"frequencies\":[],\"instances\":{}}"
#define WRONG "Failed to deserialize the JSON body into the target type: "

/* clang-format off */
static const struct exchange exchanges[] = {
    { "hit", "POST", "/query", json, "{\"token_ids\":PROMPT,\"model_name\":\"m\"}",
      200, json, BOTH, NULL },
    { "hit with parameters in the type", "POST", "/query", "application/json; charset=utf-8",
      "{\"token_ids\":PROMPT,\"model_name\":\"m\"}", 200, json, BOTH, NULL },
    { "no model, but there is one", "POST", "/query", json, "{\"token_ids\":PROMPT}",
      200, json, BOTH, NULL },
    { "less than a block", "POST", "/query", json,
      "{\"token_ids\":[100,101,102,103,104],\"model_name\":\"m\"}", 200, json, NONE, NULL },
    { "no tokens", "POST", "/query", json, "{\"token_ids\":[],\"model_name\":\"m\"}",
      200, json, NONE, NULL },
    { "unknown model", "POST", "/query", json, "{\"token_ids\":PROMPT,\"model_name\":\"zz\"}",
      404, json, "{\"error\":\"no indexer for model=zz routing_group=default; known are: m\"}", NULL },
    { "missing tokens", "POST", "/query", json, "{\"model_name\":\"m\"}",
      422, "text/plain; charset=utf-8", WRONG, "token_ids" },
    { "no JSON", "POST", "/query", json, "x",
      400, "text/plain; charset=utf-8", "Failed to parse the request body as JSON: ", NULL },
    { "negative token", "POST", "/query", json, "{\"token_ids\":[-1],\"model_name\":\"m\"}",
      422, "text/plain; charset=utf-8", WRONG, "token_ids[0]" },
    { "token beyond u32", "POST", "/query", json,
      "{\"token_ids\":[4294967296],\"model_name\":\"m\"}",
      422, "text/plain; charset=utf-8", WRONG, "token_ids[0]" },
    { "GET of a question", "GET", "/query", json, "", 405, NULL, "", NULL },
    { "POST of a page", "POST", "/dump", json, "{\"model_name\":\"m\"}", 405, NULL, "", NULL },
    { "no content type", "POST", "/query", "", "{}", 415, "text/plain; charset=utf-8",
      "Expected request with `Content-Type: application/json`", NULL },
    { "another content type", "POST", "/query", "application/jsonp", "{}", 415,
      "text/plain; charset=utf-8", "Expected request with `Content-Type: application/json`", NULL },
    { "i64 hashes", "POST", "/query_by_hash", json,
      "{\"block_hashes\":[-7623552809318391097,1219978239041041138,-6867685727239145527,"
      "-3091496805004918777,2425442600994447317,-3666753217873930691],\"model_name\":\"m\"}",
      200, json, BOTH, NULL },
    { "u64 hashes", "POST", "/query_by_hash", json,
      "{\"block_hashes\":[10823191264391160519,1219978239041041138,11579058346470406089,"
      "15355247268704632839],\"model_name\":\"m\"}", 200, json, BOTH, NULL },
    { "hashes as strings", "POST", "/query_by_hash", json,
      "{\"block_hashes\":[\"10823191264391160519\",\"1219978239041041138\","
      "\"11579058346470406089\",\"15355247268704632839\"],\"model_name\":\"m\"}",
      200, json, BOTH, NULL },
    { "no hashes", "POST", "/query_by_hash", json, "{\"block_hashes\":[],\"model_name\":\"m\"}",
      200, json, NONE, NULL },
    { "other hashes", "POST", "/query_by_hash", json,
      "{\"block_hashes\":[1,2],\"model_name\":\"m\"}", 200, json, NONE, NULL },
    { "misspelt hashes", "POST", "/query_by_hash", json,
      "{\"block_hash\":[1],\"model_name\":\"m\"}",
      422, "text/plain; charset=utf-8", WRONG, "block_hashes" },
    { "tokens for hashes", "POST", "/query_by_hash", json,
      "{\"token_ids\":[1],\"model_name\":\"m\"}",
      422, "text/plain; charset=utf-8", WRONG, "block_hashes" },
    { "unknown path", "GET", "/nope", json, "", 404, NULL, "", NULL },
    { "a path of an earlier version", "POST", "/register", json, "{}", 410, "text/plain; charset=utf-8",
      "gone: workers register at a bridge, with POST /register there\n", NULL },
    { "healthz", "GET", "/healthz", json, "", 404, NULL, "", NULL },
    { "health", "GET", "/health", json, "", 200, NULL, "", NULL },
};
/* clang-format on */

/* The body, with PROMPT replaced by the tokens. */
static char *spell(const char *body)
{
    struct kvb_buf text;
    const char *prompt = strstr(body, "PROMPT");
    const size_t before = prompt ? (size_t)(prompt - body) : strlen(body);

    kvb_buf_init(&text, 1 << 16);
    assert_ok(kvb_buf_append(&text, body, before));
    for (int token = 100; prompt && token < 196; token++) {
        assert_ok(kvb_buf_append_format(&text, "%c%d", token == 100 ? '[' : ',', token));
    }
    assert_ok(kvb_buf_append_format(&text, "%s%s", prompt ? "]" : "", prompt ? prompt + 6 : ""));
    assert_ok(kvb_buf_append(&text, "", 1));
    return (char *)text.data;
}

static struct json_object *parse(const char *text)
{
    struct kvb_json_budget budget = { .depth = 16, .containers = 1000, .values = 1000 };
    struct json_object *root = NULL;

    assert_ok(kvb_json_parse(
        (kvb_span){ .data = (const uint8_t *)text, .len = strlen(text) }, &budget, &root));
    return root;
}

/* "hits" is an addition of this project: Dynamo's indexer does not send it. */
static void assert_same_json(const char *text, const char *expected)
{
    KVB_OWN(kvb_json_drop) struct json_object *a = parse(text);
    KVB_OWN(kvb_json_drop) struct json_object *b = parse(expected);

    if (json_object_is_type(a, json_type_object)) {
        json_object_object_del(a, "hits");
    }
    if (!json_object_equal(a, b)) {
        fail_msg("got %s, expected %s", text, expected);
    }
}

static void check(struct scene *scene, const struct exchange *exchange)
{
    struct kvb_http_route_context context = { .ctx = &scene->ctx };
    char *body = spell(exchange->body);
    const struct kvb_http_request request =
        request_of(exchange->method, exchange->path, exchange->content_type, body);
    struct kvb_http_answer answer = query_with(&context, &request);

    print_message("%s\n", exchange->name);
    assert_int_equal(answer.status, exchange->status);
    if (exchange->answer_type) {
        assert_string_equal(answer.content_type, exchange->answer_type);
    } else {
        assert_null(answer.content_type);
    }
    if (exchange->answer_type == json) {
        assert_same_json(text_of(&answer), exchange->answer);
    } else if (*exchange->answer) {
        assert_memory_equal(text_of(&answer), exchange->answer, strlen(exchange->answer));
    } else {
        assert_string_equal(text_of(&answer), "");
    }
    if (exchange->contains) {
        assert_non_null(strstr(text_of(&answer), exchange->contains));
    }
    kvb_buf_done(&answer.body);
    free(body);
}

static void answers_equal_those_of_the_recorded_indexer(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);

    for (size_t i = 0; i < KVB_COUNT_OF(exchanges); i++) {
        check(&scene, &exchanges[i]);
    }
    scene_done(&scene);
}

static void a_405_names_the_method_that_is_allowed(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);

    struct kvb_http_answer answer = ask(&scene, "GET", "/query", "");
    assert_string_equal(answer.allow, "POST");
    kvb_buf_done(&answer.body);
    answer = ask(&scene, "DELETE", "/workers", "");
    assert_string_equal(answer.allow, "GET");
    kvb_buf_done(&answer.body);
    scene_done(&scene);
}

static void assert_get(struct scene *scene, const char *path, const char *expected)
{
    struct kvb_http_answer answer = ask(scene, "GET", path, "");

    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.content_type, json);
    assert_same_json(text_of(&answer), expected);
    kvb_buf_done(&answer.body);
}

static void workers_have_the_recorded_keys(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);

#define SUBJECT "namespace.dynamo.component.VllmWorker.kv_events"
    assert_get(
        &scene, "/workers",
        "[{\"instance_id\":1,\"source\":\"nats\",\"status\":\"active\",\"model_name\":\"m\","
        "\"routing_group\":\"default\",\"block_size\":16,\"endpoints\":{\"0\":\"" SUBJECT "\"},"
        "\"listeners\":{\"0\":{\"endpoint\":\"" SUBJECT "\",\"status\":\"active\"}}},"
        "{\"instance_id\":2,\"source\":\"nats\",\"status\":\"active\",\"model_name\":\"m\","
        "\"routing_group\":\"default\",\"block_size\":16,\"endpoints\":{\"0\":\"" SUBJECT "\","
        "\"1\":\"" SUBJECT "\"},\"listeners\":{\"0\":{\"endpoint\":\"" SUBJECT "\","
        "\"status\":\"active\"},\"1\":{\"endpoint\":\"" SUBJECT "\",\"status\":\"active\"}}}]");
#undef SUBJECT
    scene_done(&scene);
}

static void dump_is_router_events_by_model(void **state)
{
    (void)state;
    const struct scene_holding holding = { 1, 3, "m", 16, KVB_TIER_HOST, 1, false };
    struct scene scene;
    scene_empty(&scene);

    scene_hold(&scene, &holding);
    assert_get(
        &scene, "/dump",
        "{\"m:default\":{\"block_size\":16,\"events\":[{\"worker_id\":1,"
        "\"storage_tier\":\"host_pinned\",\"residency_domain\":\"worker\",\"event\":{\"event_id\":"
        "0,"
        "\"data\":{\"stored\":{\"parent_hash\":null,\"start_position\":null,\"blocks\":[{"
        "\"block_hash\":10823191264391160519,\"tokens_hash\":10823191264391160519,"
        "\"mm_extra_info\":null}]}},\"dp_rank\":3}}]}}");
    scene_done(&scene);
}

static void dump_takes_a_model_and_a_format(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_http_route_context context = { .ctx = &scene.ctx };
    struct kvb_http_request request = request_of("GET", "/dump", "", "");

    request.parameters = "model_name=other";
    struct kvb_http_answer answer = query_with(&context, &request);
    assert_string_equal(text_of(&answer), "{}");
    kvb_buf_done(&answer.body);
    char long_query[600] = "model_name=";
    memset(long_query + strlen(long_query), 'm', 580);
    request.parameters = long_query;
    answer = query_with(&context, &request);
    assert_int_equal(answer.status, 409);
    kvb_buf_done(&answer.body);
    request.parameters = "x=y&format=rows";
    answer = query_with(&context, &request);
    assert_string_equal(answer.content_type, "text/plain; charset=utf-8");
    assert_memory_equal(
        text_of(&answer), "1 0 device 10823191264391160519\n",
        strlen("1 0 device 10823191264391160519\n"));
    kvb_buf_done(&answer.body);
    scene_done(&scene);
}

/* One digit for each worker, in the order in which they are listed. */
static void assert_workers(struct scene *scene, const char *expected)
{
    static const char key[] = "\"instance_id\":";
    struct kvb_http_answer answer = ask(scene, "GET", "/workers", "");
    char workers[16] = "";
    size_t count = 0;

    for (const char *at = text_of(&answer); (at = strstr(at, key)); at++) {
        assert_true(count + 1 < sizeof workers);
        workers[count++] = at[strlen(key)];
    }
    assert_string_equal(workers, expected);
    kvb_buf_done(&answer.body);
}

static void streams_are_listed_in_order_after_additions_and_removals(void **state)
{
    (void)state;
    struct scene_holding holding = { 3, 0, "m", 16, KVB_TIER_DEVICE, 1, false };
    struct scene scene;
    scene_empty(&scene);

    scene_hold(&scene, &holding);
    assert_workers(&scene, "3");
    holding.worker_id = 1;
    scene_hold(&scene, &holding);
    assert_workers(&scene, "13");
    scene_bye(&scene, &holding);
    kvb_followers_tick(scene.followers, (scene_now_s + 61) * KVB_NS_PER_S);
    assert_workers(&scene, "3");
    holding.worker_id = 5;
    scene_hold(&scene, &holding); /* gets the number of the removed one */
    assert_workers(&scene, "35");
    scene_done(&scene);
}

static void query_lists_streams_that_are_down_on_request(void **state)
{
    (void)state;
    const struct scene_holding holding = { 1, 0, "m", 16, KVB_TIER_DEVICE, 1, false };
    struct scene scene;
    scene_empty(&scene);
    scene_hold(&scene, &holding);
    scene_bye(&scene, &holding);
    struct kvb_http_route_context context = { .ctx = &scene.ctx };
    char *body = spell("{\"token_ids\":PROMPT}");
    struct kvb_http_request request = request_of("POST", "/query", json, body);

    struct kvb_http_answer answer = query_with(&context, &request);
    assert_non_null(strstr(text_of(&answer), "\"instances\":{}"));
    assert_non_null(strstr(text_of(&answer), "\"state\":\"DOWN\",\"reason\":\"bridge_stopped\""));
    kvb_buf_done(&answer.body);
    request.parameters = "down=true";
    answer = query_with(&context, &request);
    assert_non_null(strstr(text_of(&answer), "DOWN(bridge_stopped)"));
    kvb_buf_done(&answer.body);
    free(body);
    scene_done(&scene);
}

static void several_models_and_none_named_is_422(void **state)
{
    (void)state;
    const struct scene_holding other = { 5, 0, "other", 16, KVB_TIER_DEVICE, 1, false };
    struct scene scene;
    scene_recorded(&scene);

    scene_hold(&scene, &other);
    struct kvb_http_answer answer = ask(&scene, "POST", "/query", "{\"token_ids\":[1]}");
    assert_int_equal(answer.status, 422);
    assert_non_null(strstr(text_of(&answer), "missing field `model_name`"));
    kvb_buf_done(&answer.body);
    scene_done(&scene);
}

static void an_answer_that_does_not_fit_is_503(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_http_route_context context = { .ctx = &scene.ctx };
    const struct kvb_http_request request = request_of("GET", "/dump", "", "");
    struct kvb_http_answer answer = { 0 };

    kvb_buf_init(&answer.body, 200);
    const struct kvb_http_route *route = kvb_http_route_find(&request, &answer);
    kvb_http_route_answer(route, &context, &request, &answer);
    kvb_dump_done(&context.dump);
    assert_int_equal(answer.status, 503);
    assert_memory_equal(answer.body.data, "{\"error\":", 9);
    kvb_buf_done(&answer.body);
    scene_done(&scene);
}

static void parameter_names_must_match_completely(void **state)
{
    (void)state;
    char out[8];

    assert_true(kvb_http_parameter("a=1&ab=2", "ab", out, sizeof out));
    assert_string_equal(out, "2");
    assert_false(kvb_http_parameter("ab=2", "a", out, sizeof out));
    assert_false(kvb_http_parameter("", "a", out, sizeof out));
    assert_false(kvb_http_parameter("a", "a", out, sizeof out));
    assert_true(kvb_http_parameter("&&a=", "a", out, sizeof out));
    assert_string_equal(out, "");
    assert_false(kvb_http_parameter("a=12345678", "a", out, sizeof out));
}

SUITE(routes)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_equal_those_of_the_recorded_indexer),
        cmocka_unit_test(a_405_names_the_method_that_is_allowed),
        cmocka_unit_test(workers_have_the_recorded_keys),
        cmocka_unit_test(dump_is_router_events_by_model),
        cmocka_unit_test(dump_takes_a_model_and_a_format),
        cmocka_unit_test(streams_are_listed_in_order_after_additions_and_removals),
        cmocka_unit_test(query_lists_streams_that_are_down_on_request),
        cmocka_unit_test(several_models_and_none_named_is_422),
        cmocka_unit_test(an_answer_that_does_not_fit_is_503),
        cmocka_unit_test(parameter_names_must_match_completely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
