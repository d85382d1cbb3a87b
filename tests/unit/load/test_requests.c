#include "kvb_test.h"

#include "core/clock.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "load/requests.h"

#include <stdio.h>
#include <string.h>

#define S KVB_NS_PER_S
#define MS KVB_NS_PER_MS

enum { max_requests = 64, max_streams = 8 };

static struct kvb_requests *new_requests(void)
{
    const struct kvb_requests_options options = { .max_requests = max_requests,
                                                  .max_streams = max_streams };
    struct kvb_requests *requests = NULL;

    assert_ok(kvb_requests_new(&options, &requests));
    return requests;
}

static struct kvb_stream_id worker(uint64_t worker_id)
{
    return (struct kvb_stream_id){ .name_space = "dynamo",
                                   .component = "VllmWorker",
                                   .worker_id = worker_id };
}

struct routed {
    const char *request_id;
    uint64_t worker_id;
    uint64_t blocks;
    uint64_t prefill_blocks;
    uint64_t ttl_ms;
    bool is_shared;
};

static kvb_status add(struct kvb_requests *requests, struct routed routed, uint64_t now_ns)
{
    const struct kvb_stream_id id = worker(routed.worker_id);
    const struct kvb_request_decision decision = {
        .request_id = routed.request_id,
        .id = &id,
        .blocks = routed.blocks,
        .prefill_blocks = routed.prefill_blocks,
        .ttl_ms = routed.ttl_ms ? routed.ttl_ms : 120000,
        .is_shared = routed.is_shared,
    };

    return kvb_requests_add(requests, &decision, now_ns);
}

static struct kvb_request_sums
sums_of(const struct kvb_requests *requests, uint64_t worker_id, bool has_load, uint64_t now_ns)
{
    const struct kvb_stream_id id = worker(worker_id);
    const struct kvb_stream_key key = kvb_stream_key_of(&id, 0);
    struct kvb_request_sums sums;

    kvb_requests_sums(requests, &key, has_load, now_ns, &sums);
    return sums;
}

static void report(struct kvb_requests *requests, uint64_t worker_id, uint64_t now_ns)
{
    const struct kvb_stream_id id = worker(worker_id);

    kvb_requests_load_reported(requests, &id, now_ns);
}

static struct kvb_request_counters counters_of(const struct kvb_requests *requests)
{
    struct kvb_request_counters counters;

    kvb_requests_count(requests, &counters);
    return counters;
}

static void without_a_load_requests_count_until_they_end(void **state)
{
    (void)state;
    struct kvb_requests *requests = new_requests();

    assert_ok(add(requests, (struct routed){ "a", 1, 10, 8, 500, false }, S));
    struct kvb_request_sums sums = sums_of(requests, 1, false, S);
    assert_int_equal(sums.in_flight_blocks, 10);
    assert_int_equal(sums.pending_prefill_blocks, 0); /* nothing would tell when the prefill ends */
    assert_false(kvb_requests_expire(requests, S + 500 * MS - 1, 10));
    assert_int_equal(sums_of(requests, 1, false, S).in_flight, 1);
    assert_false(kvb_requests_expire(requests, S + 500 * MS, 10));
    assert_int_equal(sums_of(requests, 1, false, S).in_flight_blocks, 0);
    assert_int_equal(counters_of(requests).expired, 1);
    kvb_requests_free(requests);
}

static void routers_that_stop_reporting_first_tokens_are_noticed(void **state)
{
    (void)state;
    struct kvb_requests *requests = new_requests();

    assert_ok(add(requests, (struct routed){ "a", 1, 10, 8, 0, false }, S));
    assert_ok(kvb_requests_first_token(requests, "a", S));
    assert_ok(add(requests, (struct routed){ "b", 1, 10, 8, 0, false }, 60 * S));
    report(requests, 1, 61 * S - 1);
    assert_int_equal(sums_of(requests, 1, true, 61 * S).pending_prefill_blocks, 8);
    report(requests, 1, 61 * S);
    assert_int_equal(sums_of(requests, 1, true, 61 * S).pending_prefill_blocks, 0);
    kvb_requests_free(requests);
}

static void a_decision_that_comes_after_its_end_is_dropped(void **state)
{
    (void)state;
    struct kvb_requests *requests = new_requests();

    assert_int_equal(kvb_requests_finish(requests, "a", S), KVB_NOT_FOUND);
    assert_int_equal(add(requests, (struct routed){ "a", 1, 10, 8, 0, true }, 2 * S), KVB_AGAIN);
    assert_ok(add(requests, (struct routed){ "a", 1, 10, 8, 0, false }, 2 * S)); /* routed again */
    assert_ok(kvb_requests_finish(requests, "a", 3 * S));
    /* a decision that arrives long after */
    assert_ok(add(requests, (struct routed){ "a", 1, 10, 8, 0, true }, 6 * S));
    assert_int_equal(counters_of(requests).finished_early, 1);
    kvb_requests_free(requests);
}

static void the_rate_is_blocks_divided_by_busy_time(void **state)
{
    (void)state;
    struct kvb_requests *requests = new_requests();

    assert_true(sums_of(requests, 1, true, S).prefill_blocks_per_s == 0);
    assert_ok(add(requests, (struct routed){ "a", 1, 100, 100, 0, false }, S));
    assert_ok(add(requests, (struct routed){ "b", 1, 300, 300, 0, false }, S));
    assert_ok(kvb_requests_first_token(requests, "a", 2 * S)); /* 100 blocks in 1 s */
    assert_float_equal(sums_of(requests, 1, true, 2 * S).prefill_blocks_per_s, 100, 1e-6);
    assert_ok(kvb_requests_first_token(requests, "b", 5 * S)); /* 300 blocks in 3 s, after a */
    assert_float_equal(sums_of(requests, 1, true, 5 * S).prefill_blocks_per_s, 100, 1e-6);
    assert_ok(
        add(requests, (struct routed){ "c", 1, 50, 50, 0, false }, 10 * S)); /* after a pause */
    assert_ok(kvb_requests_first_token(requests, "c", 10 * S + 500 * MS));
    assert_float_equal(sums_of(requests, 1, true, 11 * S).prefill_blocks_per_s, 100, 1e-6);
    kvb_requests_free(requests);
}

static void without_room_the_request_that_ends_first_is_evicted(void **state)
{
    (void)state;
    struct kvb_requests *requests = new_requests();
    char name[16];

    for (unsigned i = 0; i <= max_requests; i++) {
        (void)snprintf(name, sizeof name, "r%u", i);
        assert_ok(add(requests, (struct routed){ name, 1, 1, 0, 0, false }, (i + 1) * S));
    }
    assert_int_equal(counters_of(requests).in_flight, max_requests);
    assert_int_equal(counters_of(requests).evicted, 1);
    assert_int_equal(kvb_requests_finish(requests, "r0", 99 * S), KVB_NOT_FOUND);
    assert_ok(kvb_requests_finish(requests, "r1", 99 * S));
    kvb_requests_free(requests);
}

static void expired_requests_end_in_slices(void **state)
{
    (void)state;
    struct kvb_requests *requests = new_requests();
    char name[16];

    for (unsigned i = 0; i < 10; i++) {
        (void)snprintf(name, sizeof name, "r%u", i);
        assert_ok(add(requests, (struct routed){ name, 1, 1, 0, 100, false }, S));
    }
    assert_true(kvb_requests_expire(requests, 9 * S, 4));
    assert_int_equal(counters_of(requests).in_flight, 6);
    assert_false(kvb_requests_expire(requests, 9 * S, 6));
    assert_int_equal(counters_of(requests).in_flight, 0);
    kvb_requests_free(requests);
}

static void streams_without_requests_make_room(void **state)
{
    (void)state;
    struct kvb_requests *requests = new_requests();
    char name[16];

    for (unsigned i = 0; i < max_streams; i++) {
        (void)snprintf(name, sizeof name, "r%u", i);
        assert_ok(add(requests, (struct routed){ name, i, 1, 0, 0, false }, S));
    }
    assert_int_equal(add(requests, (struct routed){ "x", 99, 1, 0, 0, false }, S), KVB_TOO_LARGE);
    assert_ok(kvb_requests_finish(requests, "r0", S));
    (void)kvb_requests_expire(requests, 601 * S, 100);
    assert_ok(add(requests, (struct routed){ "x", 99, 1, 0, 0, false }, 601 * S));
    kvb_requests_free(requests);
}

/* ---- Against a reference list ---- */

struct plain {
    bool is_used;
    bool is_prefilling, is_routed;
    char id[8];
    uint64_t worker_id, blocks, prefill, until_ns, prefill_until_ns;
};

static struct plain *plain_find(struct plain *plain, const char *id)
{
    for (size_t i = 0; i < max_requests; i++) {
        if (plain[i].is_used && strcmp(plain[i].id, id) == 0) {
            return &plain[i];
        }
    }
    return NULL;
}

static void plain_add(struct plain *plain, const struct routed *routed, uint64_t now_ns)
{
    struct plain *at = plain_find(plain, routed->request_id);

    for (size_t i = 0; !at; i++) {
        at = plain[i].is_used ? NULL : &plain[i];
    }
    const uint64_t until_ns = now_ns + routed->ttl_ms * MS;
    *at = (struct plain){ true,
                          routed->prefill_blocks > 0,
                          true,
                          "",
                          routed->worker_id,
                          routed->blocks,
                          routed->prefill_blocks,
                          until_ns,
                          until_ns < now_ns + 60 * S ? until_ns : now_ns + 60 * S };
    (void)snprintf(at->id, sizeof at->id, "%s", routed->request_id);
}

static void plain_expire(struct plain *plain, uint64_t now_ns)
{
    for (size_t i = 0; i < max_requests; i++) {
        plain[i].is_used = plain[i].is_used && plain[i].until_ns > now_ns;
        plain[i].is_prefilling = plain[i].is_prefilling && plain[i].prefill_until_ns > now_ns;
    }
}

struct world {
    struct kvb_requests *requests;
    struct plain plain[max_requests];
    struct plain_ended {
        uint64_t requests, blocks; /* in the worker's newest load report, but finished since */
    } ended[4];                    /* by worker_id */
    uint64_t random;
    uint64_t now_ns;
    uint64_t token_ns; /* time of the newest first token; 0: none */
};

static void compare(const struct world *world, uint64_t worker_id)
{
    const struct plain *plain = world->plain;
    const struct kvb_request_sums sums = sums_of(world->requests, worker_id, true, world->now_ns);
    struct kvb_request_sums expected = { .ended_requests = world->ended[worker_id].requests,
                                         .ended_blocks = world->ended[worker_id].blocks };

    for (size_t i = 0; i < max_requests; i++) {
        if (plain[i].is_used && plain[i].worker_id == worker_id) {
            expected.in_flight++;
            expected.in_flight_blocks += plain[i].blocks;
            expected.routed_blocks += plain[i].is_routed ? plain[i].blocks : 0;
            expected.pending_prefill_blocks += plain[i].is_prefilling ? plain[i].prefill : 0;
        }
    }
    assert_int_equal(sums.in_flight, expected.in_flight);
    assert_int_equal(sums.in_flight_blocks, expected.in_flight_blocks);
    assert_int_equal(sums.routed_blocks, expected.routed_blocks);
    assert_int_equal(sums.pending_prefill_blocks, expected.pending_prefill_blocks);
    assert_int_equal(sums.ended_requests, expected.ended_requests);
    assert_int_equal(sums.ended_blocks, expected.ended_blocks);
}

static void step_finish(struct world *world, const char *id)
{
    struct plain *known = plain_find(world->plain, id);

    assert_int_equal(
        kvb_requests_finish(world->requests, id, world->now_ns), known ? KVB_OK : KVB_NOT_FOUND);
    if (known) {
        known->is_used = false;
        if (!known->is_routed) {
            world->ended[known->worker_id].requests++;
            world->ended[known->worker_id].blocks += known->blocks;
        }
    }
}

static void step_first_token(struct world *world, const char *id)
{
    struct plain *known = plain_find(world->plain, id);

    (void)kvb_requests_first_token(world->requests, id, world->now_ns);
    world->token_ns = world->now_ns;
    if (known) {
        known->is_prefilling = false;
    }
}

static void step_load(struct world *world, uint64_t worker_id)
{
    const bool has_tokens = world->token_ns && world->now_ns < world->token_ns + 60 * S;

    report(world->requests, worker_id, world->now_ns);
    world->ended[worker_id] = (struct plain_ended){ 0 };
    for (size_t i = 0; i < max_requests; i++) {
        if (world->plain[i].worker_id == worker_id) {
            world->plain[i].is_routed = false;
            world->plain[i].is_prefilling = world->plain[i].is_prefilling && has_tokens;
        }
    }
}

static void step_route(struct world *world, const char *id, uint64_t worker_id)
{
    const uint64_t blocks = 1 + kvb_random_below(&world->random, 20);
    const struct routed routed = { id,
                                   worker_id,
                                   blocks,
                                   kvb_random_below(&world->random, blocks + 1),
                                   1 + kvb_random_below(&world->random, 100000),
                                   false };

    assert_ok(add(world->requests, routed, world->now_ns));
    plain_add(world->plain, &routed, world->now_ns);
}

static void one_step(struct world *world, bool has_first_tokens)
{
    const uint64_t worker_id = 1 + kvb_random_below(&world->random, 3);
    char id[8];

    (void)snprintf(id, sizeof id, "%u", (unsigned)kvb_random_below(&world->random, 50));
    world->now_ns += kvb_random_below(&world->random, 10) == 0 ? 30 * S : 50 * MS;
    (void)kvb_requests_expire(world->requests, world->now_ns, 1000);
    plain_expire(world->plain, world->now_ns);
    switch (kvb_random_below(&world->random, 6)) {
    case 0:
        step_finish(world, id);
        return;
    case 1:
        if (has_first_tokens) {
            step_first_token(world, id);
        }
        return;
    case 2:
        step_load(world, worker_id);
        return;
    default:
        step_route(world, id, worker_id);
    }
}

/* Half of the fleets have routers that report first tokens. */
static void sums_agree_with_a_reference_list(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct world world = { .requests = new_requests(), .random = seed, .now_ns = S };
        for (unsigned step = 0; step < 400; step++) {
            one_step(&world, seed % 2 == 1);
            for (uint64_t w = 1; w <= 3; w++) {
                compare(&world, w);
            }
        }
        kvb_requests_free(world.requests);
    }
}

/* ---- Promises ---- */

static enum kvb_promise_state
promise_of(const struct kvb_requests *requests, const char *request_id)
{
    struct kvb_request_promise promise;

    assert_ok(kvb_requests_promise(requests, request_id, &promise));
    return promise.state;
}

static void
promise(struct kvb_requests *requests, const char *request_id, uint64_t worker_id, uint64_t block)
{
    const struct kvb_stream_id id = worker(worker_id);
    const struct kvb_request_decision decision = { .request_id = request_id,
                                                   .id = &id,
                                                   .blocks = 10,
                                                   .ttl_ms = 120000,
                                                   .promise = { 64, { block }, 3 } };

    assert_ok(kvb_requests_add(requests, &decision, S));
}

static void removed(struct kvb_requests *requests, uint64_t worker_id, uint64_t block)
{
    const struct kvb_stream_id id = worker(worker_id);
    const kvb_block_hash blocks[] = { { 1 }, { block } };

    kvb_requests_blocks_removed(requests, &id, blocks, 2);
}

static void a_request_has_the_promise_of_its_decision(void **state)
{
    struct kvb_requests *requests = new_requests();
    struct kvb_request_promise found;

    (void)state;
    promise(requests, "a", 7, 5);
    assert_ok(kvb_requests_promise(requests, "a", &found));
    assert_int_equal(found.promise.tokens, 64);
    assert_int_equal(found.promise.claim, 3);
    assert_int_equal(found.id.worker_id, 7);
    assert_int_equal(found.state, KVB_PROMISE_OPEN);
    assert_ok(add(requests, (struct routed){ "b", 7, 10, 8, 0, false }, S));
    assert_int_equal(promise_of(requests, "b"), KVB_PROMISE_NONE);
    assert_int_equal(kvb_requests_promise(requests, "c", &found), KVB_NOT_FOUND);
    kvb_requests_free(requests);
}

static void a_promise_whose_deepest_block_is_removed_is_void(void **state)
{
    struct kvb_requests *requests = new_requests();

    (void)state;
    promise(requests, "a", 7, 5);
    promise(requests, "b", 7, 5);
    promise(requests, "c", 7, 6);
    promise(requests, "d", 8, 5);
    promise(requests, "unknown", 7, 0); /* a removal under another name of the same block */
    removed(requests, 9, 5);
    removed(requests, 8, 4);
    assert_int_equal(promise_of(requests, "unknown"), KVB_PROMISE_OPEN);
    removed(requests, 7, 4);
    assert_int_equal(promise_of(requests, "unknown"), KVB_PROMISE_EVICTED); /* whoever removed it */
    assert_int_equal(promise_of(requests, "a"), KVB_PROMISE_OPEN);
    removed(requests, 7, 5);
    assert_int_equal(promise_of(requests, "a"), KVB_PROMISE_EVICTED);
    assert_int_equal(promise_of(requests, "b"), KVB_PROMISE_EVICTED);
    assert_int_equal(promise_of(requests, "c"), KVB_PROMISE_OPEN);
    assert_int_equal(promise_of(requests, "d"), KVB_PROMISE_OPEN);
    promise(requests, "e", 7, 5); /* the block is stored again */
    assert_int_equal(promise_of(requests, "e"), KVB_PROMISE_OPEN);
    kvb_requests_free(requests);
}

struct plain_promise {
    bool is_used;
    bool is_evicted;
    uint64_t worker_id;
    uint64_t block;
};

enum { plain_promises = 16 };

static void name_plain(char *out, size_t bytes, uint64_t number)
{
    (void)snprintf(out, bytes, "r%u", (unsigned)number);
}

static void remove_plain(struct plain_promise *plain, uint64_t worker_id, uint64_t block)
{
    for (size_t i = 0; i < plain_promises; i++) {
        plain[i].is_evicted |= plain[i].worker_id == worker_id && plain[i].block == block;
    }
}

static void step_promises(
    struct kvb_requests *requests, struct plain_promise plain[plain_promises], uint64_t *random)
{
    const uint64_t at = kvb_random_below(random, plain_promises);
    const uint64_t worker_id = 1 + kvb_random_below(random, 2);
    const uint64_t block = 5 + kvb_random_below(random, 2);
    char id[8];

    name_plain(id, sizeof id, at);
    if (kvb_random_below(random, 8) == 0) {
        removed(requests, worker_id, block);
        remove_plain(plain, worker_id, block);
    } else if (kvb_random_below(random, 3) == 0) {
        (void)kvb_requests_finish(requests, id, S);
        plain[at].is_used = false;
    } else {
        promise(requests, id, worker_id, block);
        plain[at] = (struct plain_promise){ true, false, worker_id, block };
    }
}

static void compare_promises(
    const struct kvb_requests *requests, const struct plain_promise plain[plain_promises])
{
    char id[8];

    for (size_t i = 0; i < plain_promises; i++) {
        name_plain(id, sizeof id, i);
        if (plain[i].is_used) {
            assert_int_equal(
                promise_of(requests, id),
                plain[i].is_evicted ? KVB_PROMISE_EVICTED : KVB_PROMISE_OPEN);
        }
    }
}

/* Requests with the same deepest block begin, end and lose that block in any order. */
static void promises_agree_with_a_reference_list(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct kvb_requests *requests = new_requests();
        struct plain_promise plain[plain_promises] = { 0 };
        uint64_t random = seed;
        for (unsigned step = 0; step < 300; step++) {
            step_promises(requests, plain, &random);
            compare_promises(requests, plain);
        }
        kvb_requests_free(requests);
    }
}

static void without_memory_no_request_is_entered_partly(void **state)
{
    (void)state;
    for (long i = 0; i < 12; i++) {
        struct kvb_requests *requests = new_requests();
        fail_alloc_after(i);
        const kvb_status status = add(requests, (struct routed){ "a", 1, 10, 8, 0, false }, S);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_int_equal(counters_of(requests).in_flight, status == KVB_OK);
        assert_int_equal(sums_of(requests, 1, true, S).routed_blocks, status == KVB_OK ? 10 : 0);
        assert_ok(add(requests, (struct routed){ "a", 1, 10, 8, 0, false }, S));
        kvb_requests_free(requests);
    }
}

SUITE(requests)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_load_requests_count_until_they_end),
        cmocka_unit_test(routers_that_stop_reporting_first_tokens_are_noticed),
        cmocka_unit_test(a_decision_that_comes_after_its_end_is_dropped),
        cmocka_unit_test(the_rate_is_blocks_divided_by_busy_time),
        cmocka_unit_test(without_room_the_request_that_ends_first_is_evicted),
        cmocka_unit_test(expired_requests_end_in_slices),
        cmocka_unit_test(streams_without_requests_make_room),
        cmocka_unit_test(sums_agree_with_a_reference_list),
        cmocka_unit_test(a_request_has_the_promise_of_its_decision),
        cmocka_unit_test(a_promise_whose_deepest_block_is_removed_is_void),
        cmocka_unit_test(promises_agree_with_a_reference_list),
        cmocka_unit_test(without_memory_no_request_is_entered_partly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
