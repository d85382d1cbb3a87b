#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/routes.h"
#include "kvaggregator/query_scene.h"

#include <json-c/json.h>
#include <string.h>

/* A dump is made in parts, one each turn, so that queries are answered between them. */

static const struct kvb_http_request dump_request = { .method = "GET",
                                                      .path = "/dump",
                                                      .parameters = "",
                                                      .content_type = "",
                                                      .authorization = "",
                                                      .if_none_match = "" };

static const char *text_of(const struct kvb_http_answer *answer)
{
    return (const char *)answer->body.data;
}

static size_t count_words(const char *text, const char *word)
{
    size_t count = 0;

    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        count++;
    }
    return count;
}

/* Requests a dump turn by turn; one stream is removed after the first turn. */
static struct kvb_http_answer
dump_in_turns(struct scene *scene, const char *query, const struct scene_holding *going)
{
    struct kvb_http_route_context context = { .ctx = &scene->ctx };
    struct kvb_http_request request = dump_request;
    struct kvb_http_answer answer = { 0 };
    size_t turns = 0;

    request.parameters = query;
    kvb_buf_init(&answer.body, kvb_max_answer_bytes);
    const struct kvb_http_route *route = kvb_http_route_find(&request, &answer);
    do {
        kvb_http_route_answer(route, &context, &request, &answer);
        if (++turns == 1 && going) {
            scene_bye(scene, going);
            kvb_followers_tick(scene->followers, (scene_now_s + 61) * KVB_NS_PER_S);
        }
        assert_true(answer.body.len < turns * (128U << 10U)); /* a turn is short */
    } while (context.is_unfinished);
    kvb_dump_done(&context.dump);
    assert_true(turns > 1);
    assert_int_equal(answer.status, 200);
    assert_ok(kvb_buf_append(&answer.body, "", 1));
    return answer;
}

static void a_long_dump_takes_several_turns_and_is_whole(void **state)
{
    (void)state;
    enum { streams = 60, blocks = 64 };
    struct scene scene;
    scene_empty(&scene);
    for (uint64_t i = 0; i < streams; i++) {
        scene_hold(
            &scene, &(struct scene_holding){ i, 0, i < 50 ? "m" : "n", 16, KVB_TIER_DEVICE, blocks,
                                             false });
    }

    struct kvb_http_answer answer = dump_in_turns(&scene, "", NULL);
    assert_int_equal(count_words(text_of(&answer), "\"stored\""), streams);
    assert_int_equal(count_words(text_of(&answer), "\"block_hash\""), streams * blocks);
    assert_int_equal(count_words(text_of(&answer), ":default"), 2);
    assert_int_equal(count_words(text_of(&answer), "\"event_id\":0,"), 2); /* of each model */
    assert_int_equal(count_words(text_of(&answer), "\"event_id\":49,"), 1);
    struct json_object *parsed = json_tokener_parse(text_of(&answer));
    assert_non_null(parsed);
    (void)json_object_put(parsed); /* this was the last reference */
    kvb_buf_done(&answer.body);
    scene_done(&scene);
}

/* A stream of any size takes many turns, and no turn costs more than the one before. */
static void one_long_stream_takes_many_turns(void **state)
{
    (void)state;
    enum { blocks = 8000 };
    static const struct {
        const char *query;
        const char *word;
    } forms[] = { { "", "\"block_hash\"" }, { "format=rows", "\n" } };
    struct scene scene;
    scene_empty(&scene);
    scene_hold(&scene, &(struct scene_holding){ 1, 0, "m", 16, KVB_TIER_DEVICE, blocks, false });

    for (size_t i = 0; i < KVB_COUNT_OF(forms); i++) {
        struct kvb_http_answer answer = dump_in_turns(&scene, forms[i].query, NULL);
        assert_int_equal(count_words(text_of(&answer), forms[i].word), blocks);
        kvb_buf_done(&answer.body);
    }
    scene_done(&scene);
}

static void a_stream_that_goes_during_a_dump_is_left_out(void **state)
{
    enum { streams = 60, blocks = 64 };
    static const struct {
        const char *parameters;
        const char *its_row;
        const char *end;
    } formats[] = { { "", "\"worker_id\":59,", "]}}" }, { "format=rows", "\n59 ", "\n" } };
    const struct scene_holding last = { streams - 1, 0, "m", 16, KVB_TIER_DEVICE, blocks, false };

    (void)state;
    for (size_t f = 0; f < KVB_COUNT_OF(formats); f++) {
        struct scene scene;
        scene_empty(&scene);
        for (uint64_t i = 0; i < streams; i++) {
            struct scene_holding holding = last;
            holding.worker_id = i;
            scene_hold(&scene, &holding);
        }
        struct kvb_http_answer answer = dump_in_turns(&scene, formats[f].parameters, &last);
        const char *text = text_of(&answer);
        assert_int_equal(count_words(text, formats[f].its_row), 0);
        assert_string_equal(text + strlen(text) - strlen(formats[f].end), formats[f].end);
        kvb_buf_done(&answer.body);
        scene_done(&scene);
    }
}

/* Not even the text before the first of many empty streams fits. */
static void a_dump_without_room_ends_with_its_first_turn(void **state)
{
    (void)state;
    enum { streams = 600, room = 8 };
    struct scene scene;
    struct kvb_http_route_context context = { .ctx = &scene.ctx };
    struct kvb_http_answer answer = { 0 };
    scene_empty(&scene);
    for (uint64_t i = 0; i < streams; i++) {
        scene_hold(&scene, &(struct scene_holding){ i, 0, "m", 16, KVB_TIER_DEVICE, 0, false });
    }

    kvb_buf_init(&answer.body, room);
    const struct kvb_http_route *route = kvb_http_route_find(&dump_request, &answer);
    kvb_http_route_answer(route, &context, &dump_request, &answer);
    kvb_dump_done(&context.dump);
    assert_false(context.is_unfinished);
    assert_int_equal(answer.status, 503);
    kvb_buf_done(&answer.body);
    scene_done(&scene);
}

SUITE(dump_turns)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_dump_takes_several_turns_and_is_whole),
        cmocka_unit_test(one_long_stream_takes_many_turns),
        cmocka_unit_test(a_stream_that_goes_during_a_dump_is_left_out),
        cmocka_unit_test(a_dump_without_room_ends_with_its_first_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
