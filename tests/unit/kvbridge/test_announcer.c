#include "core/own.h"
#include "kvbridge/announcer.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

/* The test acts as the Dynamo service, and sets the time. */
struct scene {
    struct kvb_announcer announcer;
    uint64_t now_ns;
};

static const uint64_t ms = KVB_NS_PER_MS;

static struct kvb_dynamo_worker worker_at(uint64_t id, uint32_t dp_rank, unsigned port)
{
    struct kvb_dynamo_worker worker = { .worker_id = id,
                                        .rank_id = id + UINT64_C(100) * dp_rank,
                                        .dp_rank = dp_rank,
                                        .block_size = 16,
                                        .model = "m" };

    (void)snprintf(worker.events, sizeof worker.events, "tcp://h:%u", port);
    return worker;
}

static void want(struct scene *scene, const struct kvb_dynamo_worker *workers, size_t count)
{
    assert_ok(kvb_announcer_want(&scene->announcer, workers, count));
}

/* Expects this request; with an id, for this rank. */
static void expect(struct scene *scene, enum kvb_announce_step step, uint64_t id)
{
    const struct kvb_dynamo_worker *worker = NULL;

    assert_int_equal(kvb_announcer_next(&scene->announcer, scene->now_ns, &worker), step);
    if (step == KVB_ANNOUNCE_ADD || step == KVB_ANNOUNCE_REMOVE) {
        assert_int_equal(worker->rank_id, id);
    }
}

static void answer(struct scene *scene, unsigned code, const char *why)
{
    const struct kvb_announce_answer answer = { .code = code, .why = why };

    kvb_announcer_answered(&scene->announcer, &answer, scene->now_ns);
}

static void
list_one(struct scene *scene, enum kvb_dynamo_api api, const struct kvb_dynamo_worker *worker)
{
    const struct kvb_dynamo_listed listed = {
        .api = api,
        .id = api == KVB_DYNAMO_INDEXER ? worker->worker_id : worker->rank_id,
        .dp_rank = worker->dp_rank,
        .events = worker->events,
        .model = worker->model,
        .block_size = worker->block_size,
        .why = "",
    };

    kvb_announcer_listed(&scene->announcer, &listed);
}

/* A scene in which the first list was empty and a service of this API has accepted the worker. */
static struct scene with_one(enum kvb_dynamo_api api, const struct kvb_dynamo_worker *worker)
{
    struct scene scene = { .now_ns = 1000 * ms };

    want(&scene, worker, 1);
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, worker->rank_id);
    if (api == KVB_DYNAMO_INDEXER) {
        answer(&scene, 405, "answered HTTP 405");
        expect(&scene, KVB_ANNOUNCE_ADD, worker->rank_id);
    }
    answer(&scene, 201, "");
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    assert_int_equal(scene.announcer.api, api);
    assert_true(kvb_announcer_is_settled(&scene.announcer));
    return scene;
}

static void without_ranks_to_announce_a_service_is_sent_no_request(void **state)
{
    struct scene scene = { .now_ns = 1 };

    (void)state;
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    assert_true(kvb_announcer_is_gone(&scene.announcer));
}

static void missing_ranks_are_added_one_request_at_a_time(void **state)
{
    const struct kvb_dynamo_worker workers[] = { worker_at(7, 0, 1), worker_at(8, 0, 2) };
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    want(&scene, workers, 2);
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    list_one(&scene, KVB_DYNAMO_SELECT_SERVICE, &workers[0]);
    answer(&scene, 200, "");
    assert_false(kvb_announcer_is_settled(&scene.announcer));
    expect(&scene, KVB_ANNOUNCE_ADD, 8);
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    answer(&scene, 201, "endpoint is required");
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    assert_int_equal(kvb_announcer_count_present(&scene.announcer), 2);
    assert_int_equal(kvb_announcer_count_wanted(&scene.announcer), 2);
    assert_string_equal(kvb_announcer_why(&scene.announcer), "endpoint is required");
    kvb_announcer_done(&scene.announcer);
}

static void the_api_is_found_by_the_path_that_exists(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = with_one(KVB_DYNAMO_INDEXER, &worker);

    (void)state;
    /* The indexer was replaced by a select_service at the same address. */
    scene.now_ns += 10000 * ms;
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 404, "route not found");
    assert_int_equal(scene.announcer.api, KVB_DYNAMO_SELECT_SERVICE);
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 404, "route not found"); /* the service is neither */
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    assert_int_equal(kvb_announcer_count_present(&scene.announcer), 0);
    assert_string_equal(kvb_announcer_why(&scene.announcer), "route not found");
    kvb_announcer_done(&scene.announcer);
}

static void a_service_that_has_lost_a_rank_gets_it_again(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = with_one(KVB_DYNAMO_SELECT_SERVICE, &worker);

    (void)state;
    scene.now_ns += 9999 * ms;
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    scene.now_ns += ms;
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    list_one(&scene, KVB_DYNAMO_SELECT_SERVICE, &worker);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    scene.now_ns += 10000 * ms;
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    answer(&scene, 200, "");
    assert_int_equal(kvb_announcer_count_present(&scene.announcer), 0);
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    kvb_announcer_done(&scene.announcer);
}

static void a_registration_with_other_sockets_is_replaced(void **state)
{
    const struct kvb_dynamo_worker before = worker_at(7, 1, 1);
    const struct kvb_dynamo_worker now = worker_at(7, 1, 2);

    (void)state;
    for (int api = KVB_DYNAMO_SELECT_SERVICE; api <= KVB_DYNAMO_INDEXER; api++) {
        struct scene scene = { .now_ns = 1000 * ms };
        want(&scene, &now, 1);
        expect(&scene, KVB_ANNOUNCE_LIST, 0);
        list_one(&scene, (enum kvb_dynamo_api)api, &before);
        answer(&scene, 200, "");
        if (api == KVB_DYNAMO_INDEXER) {
            expect(&scene, KVB_ANNOUNCE_REMOVE, 107);
            answer(&scene, 200, "");
        }
        expect(&scene, KVB_ANNOUNCE_ADD, 107);
        answer(&scene, 201, "");
        expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
        assert_int_equal(kvb_announcer_count_present(&scene.announcer), 1);
        kvb_announcer_done(&scene.announcer);
    }
}

static void a_rank_whose_settings_change_is_sent_again(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct kvb_dynamo_worker changed = worker;
    struct scene scene = with_one(KVB_DYNAMO_SELECT_SERVICE, &worker);

    (void)state;
    want(&scene, &worker, 1);
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    changed.max_batched_tokens = 8192; /* a list does not show the settings */
    want(&scene, &changed, 1);
    want(&scene, &changed, 1);
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 201, "");
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    kvb_announcer_done(&scene.announcer);
}

/* The bridge was killed, and has other settings than the registration that it left. */
static void what_a_killed_bridge_registered_with_other_settings_is_replaced(void **state)
{
    struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct kvb_dynamo_listed listed = { .api = KVB_DYNAMO_SELECT_SERVICE,
                                        .id = 7,
                                        .events = worker.events,
                                        .model = worker.model,
                                        .block_size = worker.block_size,
                                        .why = "",
                                        .replay = "tcp://h:9",
                                        .address = "",
                                        .max_batched_tokens = 8192 };

    (void)state;
    worker.max_batched_tokens = 8192;
    (void)snprintf(worker.replay, sizeof worker.replay, "tcp://h:9");
    for (unsigned i = 0; i < 4; i++) { /* as it is, another replay socket, address, limit */
        struct scene scene = { .now_ns = 1000 * ms };
        listed.replay = i == 1 ? "tcp://h:8" : "tcp://h:9";
        listed.address = i == 2 ? "http://h" : "";
        listed.max_batched_tokens = i == 3 ? 4096 : 8192;
        want(&scene, &worker, 1);
        expect(&scene, KVB_ANNOUNCE_LIST, 0);
        kvb_announcer_listed(&scene.announcer, &listed);
        answer(&scene, 200, "");
        if (i > 0) {
            expect(&scene, KVB_ANNOUNCE_ADD, 7);
            answer(&scene, 201, "");
        }
        scene.now_ns += 10000 * ms;
        expect(&scene, KVB_ANNOUNCE_LIST, 0);
        kvb_announcer_listed(&scene.announcer, &listed); /* it is sent once */
        answer(&scene, 200, "");
        expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
        assert_int_equal(kvb_announcer_count_present(&scene.announcer), 1);
        kvb_announcer_done(&scene.announcer);
    }
}

static void ranks_no_longer_announced_are_removed(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = with_one(KVB_DYNAMO_SELECT_SERVICE, &worker);

    (void)state;
    want(&scene, NULL, 0);
    assert_false(kvb_announcer_is_gone(&scene.announcer));
    expect(&scene, KVB_ANNOUNCE_REMOVE, 7);
    assert_false(kvb_announcer_is_gone(&scene.announcer));
    answer(&scene, 404, "worker 7 not found"); /* the rank was gone already */
    assert_true(kvb_announcer_is_gone(&scene.announcer));
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    kvb_announcer_done(&scene.announcer);
}

/* The request under way has the settings from before; no list shows them all. */
static void a_rank_whose_settings_change_while_it_is_added_is_sent_again(void **state)
{
    static const unsigned codes[] = { 201, 409 };
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct kvb_dynamo_worker changed = worker;

    (void)state;
    changed.max_batched_tokens = 8192;
    for (size_t i = 0; i < KVB_COUNT_OF(codes); i++) {
        struct scene scene = { .now_ns = 1000 * ms };
        want(&scene, &worker, 1);
        expect(&scene, KVB_ANNOUNCE_LIST, 0);
        answer(&scene, 200, "");
        expect(&scene, KVB_ANNOUNCE_ADD, 7);
        want(&scene, NULL, 0);
        want(&scene, &changed, 1);
        answer(&scene, codes[i], "");
        assert_false(kvb_announcer_is_settled(&scene.announcer));
        expect(&scene, KVB_ANNOUNCE_ADD, 7);
        answer(&scene, 201, "");
        expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
        assert_int_equal(kvb_announcer_count_present(&scene.announcer), 1);
        kvb_announcer_done(&scene.announcer);
    }
}

/* Whether the request without an answer was carried out is not known. */
static void a_rank_whose_settings_change_after_a_lost_answer_is_sent_again(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct kvb_dynamo_worker changed = worker;
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    changed.max_batched_tokens = 8192;
    want(&scene, &worker, 1);
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 0, "timeout");
    want(&scene, &changed, 1);
    scene.now_ns += 500 * ms;
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    list_one(&scene, KVB_DYNAMO_SELECT_SERVICE, &worker);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 201, "");
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    kvb_announcer_done(&scene.announcer);
}

static void a_rank_that_leaves_after_a_lost_answer_is_removed(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    want(&scene, &worker, 1);
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 0, "timeout");
    want(&scene, NULL, 0);
    scene.now_ns += 500 * ms;
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    list_one(&scene, KVB_DYNAMO_SELECT_SERVICE, &worker);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_REMOVE, 7);
    answer(&scene, 200, "");
    assert_true(kvb_announcer_is_gone(&scene.announcer));
    kvb_announcer_done(&scene.announcer);
}

static void a_registered_rank_that_leaves_after_a_lost_change_is_removed(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct kvb_dynamo_worker changed = worker;
    struct scene scene = with_one(KVB_DYNAMO_SELECT_SERVICE, &worker);

    (void)state;
    changed.max_batched_tokens = 8192;
    want(&scene, &changed, 1);
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 0, "timeout");
    want(&scene, NULL, 0);
    scene.now_ns += 500 * ms;
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    list_one(&scene, KVB_DYNAMO_SELECT_SERVICE, &worker);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_REMOVE, 7);
    answer(&scene, 200, "");
    assert_true(kvb_announcer_is_gone(&scene.announcer));
    kvb_announcer_done(&scene.announcer);
}

static void a_rank_that_changes_and_leaves_at_once_is_removed(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    const struct kvb_dynamo_worker changed = worker_at(7, 0, 2);
    struct scene scene = with_one(KVB_DYNAMO_SELECT_SERVICE, &worker);

    (void)state;
    want(&scene, &changed, 1);
    want(&scene, NULL, 0);
    expect(&scene, KVB_ANNOUNCE_REMOVE, 7);
    answer(&scene, 200, "");
    assert_true(kvb_announcer_is_gone(&scene.announcer));
    kvb_announcer_done(&scene.announcer);
}

/* Its service was taken out of the configuration and put back. */
static void a_rank_that_is_wanted_again_before_its_removal_stays(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = with_one(KVB_DYNAMO_SELECT_SERVICE, &worker);

    (void)state;
    want(&scene, NULL, 0);
    want(&scene, &worker, 1);
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    want(&scene, NULL, 0);
    expect(&scene, KVB_ANNOUNCE_REMOVE, 7);
    want(&scene, &worker, 1);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 201, "");
    assert_int_equal(kvb_announcer_count_present(&scene.announcer), 1);
    kvb_announcer_done(&scene.announcer);
}

/* A standby that has taken the worker over has registered its own sockets. */
static void registrations_of_another_bridge_stay(void **state)
{
    const struct kvb_dynamo_worker ours = worker_at(7, 0, 1);
    const struct kvb_dynamo_worker others = worker_at(7, 0, 2);
    struct scene scene = with_one(KVB_DYNAMO_SELECT_SERVICE, &ours);

    (void)state;
    scene.now_ns += 10000 * ms;
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    want(&scene, NULL, 0); /* while the request for the list is under way */
    list_one(&scene, KVB_DYNAMO_SELECT_SERVICE, &others);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    assert_true(kvb_announcer_is_gone(&scene.announcer));
    kvb_announcer_done(&scene.announcer);
}

static void a_rank_that_leaves_while_it_is_added_is_removed(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    want(&scene, &worker, 1);
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    want(&scene, NULL, 0);
    answer(&scene, 201, "");
    expect(&scene, KVB_ANNOUNCE_REMOVE, 7);
    answer(&scene, 200, "");
    assert_true(kvb_announcer_is_gone(&scene.announcer));
    kvb_announcer_done(&scene.announcer);
}

/* A registration by an earlier process of this bridge, which was killed, is removed too. */
static void an_earlier_registration_is_found_before_it_is_forgotten(void **state)
{
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    want(&scene, &worker, 1);
    want(&scene, NULL, 0);
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    list_one(&scene, KVB_DYNAMO_INDEXER, &worker);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_REMOVE, 7);
    kvb_announcer_done(&scene.announcer);
}

static void pauses_after_failures_double(void **state)
{
    static const uint64_t waits_ms[] = { 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000 };
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    want(&scene, &worker, 1);
    for (size_t i = 0; i < KVB_COUNT_OF(waits_ms); i++) {
        expect(&scene, KVB_ANNOUNCE_LIST, 0);
        answer(&scene, i % 2 ? 503 : 0, "refused");
        assert_string_equal(kvb_announcer_why(&scene.announcer), "refused");
        /* the goodbye does not wait for the pause */
        assert_true(kvb_announcer_is_gone(&scene.announcer));
        scene.now_ns += (waits_ms[i] - 1) * ms;
        expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
        scene.now_ns += ms;
    }
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    answer(&scene, 200, "");
    expect(&scene, KVB_ANNOUNCE_ADD, 7);
    answer(&scene, 0, "it has ended");
    scene.now_ns += 500 * ms; /* the pause is short again */
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    kvb_announcer_done(&scene.announcer);
}

static void a_refused_rank_is_tried_again_with_the_next_list(void **state)
{
    static const char why[] = "block_size mismatch";
    const struct kvb_dynamo_worker workers[] = { worker_at(7, 0, 1), worker_at(8, 0, 2) };
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    want(&scene, workers, 2);
    for (int i = 0; i < 2; i++) {
        expect(&scene, KVB_ANNOUNCE_LIST, 0);
        if (i > 0) {
            list_one(&scene, KVB_DYNAMO_INDEXER, &workers[1]);
        }
        answer(&scene, 200, "");
        expect(&scene, KVB_ANNOUNCE_ADD, 7);
        answer(&scene, 409, why);
        if (i == 0) {
            expect(&scene, KVB_ANNOUNCE_ADD, 8); /* other ranks do not wait for it */
            answer(&scene, 201, "");
        }
        expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
        assert_int_equal(kvb_announcer_count_present(&scene.announcer), 1);
        assert_string_equal(kvb_announcer_why(&scene.announcer), why);
        scene.now_ns += 10000 * ms;
    }
    kvb_announcer_done(&scene.announcer);
}

static void an_invalid_list_is_a_failure(void **state)
{
    const struct kvb_announce_answer none = { .code = 200,
                                              .is_unreadable = true,
                                              .why = "no list" };
    const struct kvb_dynamo_worker worker = worker_at(7, 0, 1);
    struct scene scene = { .now_ns = 1000 * ms };

    (void)state;
    want(&scene, &worker, 1);
    expect(&scene, KVB_ANNOUNCE_LIST, 0);
    kvb_announcer_answered(&scene.announcer, &none, scene.now_ns);
    assert_string_equal(kvb_announcer_why(&scene.announcer), "no list");
    expect(&scene, KVB_ANNOUNCE_NOTHING, 0);
    kvb_announcer_done(&scene.announcer);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_ranks_to_announce_a_service_is_sent_no_request),
        cmocka_unit_test(missing_ranks_are_added_one_request_at_a_time),
        cmocka_unit_test(the_api_is_found_by_the_path_that_exists),
        cmocka_unit_test(a_service_that_has_lost_a_rank_gets_it_again),
        cmocka_unit_test(a_registration_with_other_sockets_is_replaced),
        cmocka_unit_test(a_rank_whose_settings_change_is_sent_again),
        cmocka_unit_test(a_rank_whose_settings_change_while_it_is_added_is_sent_again),
        cmocka_unit_test(a_rank_whose_settings_change_after_a_lost_answer_is_sent_again),
        cmocka_unit_test(a_rank_that_leaves_after_a_lost_answer_is_removed),
        cmocka_unit_test(a_registered_rank_that_leaves_after_a_lost_change_is_removed),
        cmocka_unit_test(a_rank_that_changes_and_leaves_at_once_is_removed),
        cmocka_unit_test(a_rank_that_is_wanted_again_before_its_removal_stays),
        cmocka_unit_test(what_a_killed_bridge_registered_with_other_settings_is_replaced),
        cmocka_unit_test(ranks_no_longer_announced_are_removed),
        cmocka_unit_test(registrations_of_another_bridge_stay),
        cmocka_unit_test(a_rank_that_leaves_while_it_is_added_is_removed),
        cmocka_unit_test(an_earlier_registration_is_found_before_it_is_forgotten),
        cmocka_unit_test(pauses_after_failures_double),
        cmocka_unit_test(a_refused_rank_is_tried_again_with_the_next_list),
        cmocka_unit_test(an_invalid_list_is_a_failure),
    };

    return cmocka_run_group_tests_name("kvbridge/announcer", tests, NULL, NULL);
}
