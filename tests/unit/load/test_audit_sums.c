#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "load/audit_sums.h"

#include <stdlib.h>
#include <string.h>

#define S KVB_NS_PER_S
#define MS KVB_NS_PER_MS

enum { prompt = 100, promise = 64 };

static const struct kvb_stream_id stream = { .name_space = "dynamo",
                                             .component = "VllmWorker",
                                             .worker_id = 7 };

/* An engine with its counters, and what is known of it. */
struct scene {
    struct kvb_audit_sums *sums;
    struct kvb_audit_period period; /* of the newest page that returned KVB_OK */
    struct kvb_prefix_counters counters;
    uint64_t now_ns;
    uint64_t claim;
    bool is_queue_filled; /* the page says that requests wait */
};

static kvb_status read_page(struct scene *scene)
{
    const struct kvb_audit_page page = { .counters = scene->counters,
                                         .asked_ns = scene->now_ns,
                                         .is_queue_empty = !scene->is_queue_filled,
                                         .claim = scene->claim };

    return kvb_audit_sums_page(scene->sums, &stream, &page, scene->now_ns, &scene->period);
}

static void pass(struct scene *scene, uint64_t ns)
{
    scene->now_ns += ns;
}

/* A stream without requests, whose comparison has begun. */
static struct scene begun(void)
{
    struct scene scene = { .now_ns = 100 * S,
                           .claim = 3,
                           .counters = { .queried_tokens = 1000, .cached_tokens = 500 } };

    assert_ok(kvb_audit_sums_new(8, 0, &scene.sums));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(read_page(&scene), KVB_AGAIN);
        pass(&scene, S);
    }
    return scene;
}

static void drop_sums(struct scene *scene)
{
    kvb_audit_sums_free(scene->sums);
}

static void decide(struct scene *scene, uint64_t prompt_tokens, uint64_t promised, uint64_t block)
{
    const struct kvb_promise of = { .tokens = promised, .block = { block }, .claim = scene->claim };

    kvb_audit_sums_decided(scene->sums, &stream, prompt_tokens, &of, scene->now_ns);
}

static void execute(struct scene *scene, uint64_t prompt_tokens, uint64_t cached)
{
    scene->counters.queried_tokens += prompt_tokens;
    scene->counters.cached_tokens += cached;
}

/* Two more balanced pages confirm a period. */
static kvb_status confirm(struct scene *scene)
{
    pass(scene, S);
    const kvb_status first = read_page(scene);
    if (first != KVB_AGAIN) {
        return first;
    }
    pass(scene, S);
    return read_page(scene);
}

static uint64_t resets_of(const struct scene *scene, enum kvb_audit_sums_reset why)
{
    struct kvb_audit_sums_counters counters;

    kvb_audit_sums_count(scene->sums, &counters);
    return counters.resets[why];
}

/* ---- Periods ---- */

static void a_period_has_the_promises_and_hits_between_two_balanced_pages(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    decide(&scene, prompt + 1, promise / 2, 2);
    decide(&scene, prompt + 2, 0, 0);
    execute(&scene, prompt, promise);
    execute(&scene, prompt + 1, 16);
    execute(&scene, prompt + 2, 0);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN); /* not confirmed */
    decide(&scene, prompt, promise, 1);             /* of the next period */
    execute(&scene, prompt, promise);
    assert_ok(confirm(&scene));
    assert_int_equal(scene.period.requests, 2);
    assert_int_equal(scene.period.promised_tokens, promise + (promise / 2));
    assert_int_equal(scene.period.cached_tokens, promise + 16);
    assert_int_equal(scene.period.first_promise, promise);
    assert_int_equal(scene.period.max_promise, promise);
    assert_true(scene.period.weight == 1.5);
    drop_sums(&scene);
}

static void a_request_on_its_way_belongs_to_the_next_period(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    execute(&scene, prompt, promise);
    pass(&scene, S);
    decide(&scene, prompt, UINT64_C(2) * promise, 2); /* not executed yet */
    pass(&scene, 200 * MS);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    execute(&scene, prompt, 10);
    assert_ok(confirm(&scene));
    assert_int_equal(scene.period.promised_tokens, promise);
    assert_int_equal(scene.period.cached_tokens, promise);
    pass(&scene, S);
    assert_ok(read_page(&scene));
    assert_int_equal(scene.period.promised_tokens, 2 * promise);
    assert_int_equal(scene.period.cached_tokens, 10);
    drop_sums(&scene);
}

static void while_requests_wait_no_page_ends_a_period(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    decide(&scene, prompt, promise, 2);
    execute(&scene, prompt, promise);
    for (unsigned i = 0; i < 5; i++) {
        pass(&scene, S);
        assert_int_equal(read_page(&scene), KVB_AGAIN);
    }
    execute(&scene, prompt, promise);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_ok(confirm(&scene));
    assert_int_equal(scene.period.requests, 2);
    drop_sums(&scene);
}

/* ---- Other requests ---- */

static void a_request_that_nobody_routed_drops_what_waits(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    execute(&scene, prompt, 0);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    execute(&scene, 5, 0);
    assert_int_equal(confirm(&scene), KVB_AGAIN);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_int_equal(resets_of(&scene, KVB_SUMS_OTHER_REQUESTS), 1);
    drop_sums(&scene);
}

/* It has the length of one that waits, so the first page looks balanced: one of ours seems to have
 * been executed without its hits. */
static void a_request_that_hides_behind_a_waiting_one_is_noticed_in_time(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    execute(&scene, prompt, 0); /* of somebody else */
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    execute(&scene, prompt, promise); /* ours */
    assert_int_equal(confirm(&scene), KVB_AGAIN);
    assert_int_equal(confirm(&scene), KVB_AGAIN);
    assert_int_equal(resets_of(&scene, KVB_SUMS_OTHER_REQUESTS), 1);
    drop_sums(&scene);
}

static void a_request_that_is_never_executed_is_given_up(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    pass(&scene, 59 * S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_int_equal(resets_of(&scene, KVB_SUMS_NOT_EXECUTED), 0);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_int_equal(resets_of(&scene, KVB_SUMS_NOT_EXECUTED), 1);
    decide(&scene, prompt, promise, 1); /* it begins again */
    execute(&scene, prompt, 10);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_ok(confirm(&scene));
    assert_int_equal(scene.period.cached_tokens, 10);
    drop_sums(&scene);
}

static void what_cannot_be_counted_begins_again_with_the_next_page(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, 0, 0, 0);
    assert_int_equal(resets_of(&scene, KVB_SUMS_NO_LENGTH), 1);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    for (unsigned i = 0; i < 65; i++) {
        decide(&scene, prompt, promise, 1);
    }
    assert_int_equal(resets_of(&scene, KVB_SUMS_TOO_MANY), 1);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    scene.counters = (struct kvb_prefix_counters){ .queried_tokens = 3, .cached_tokens = 1 };
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_int_equal(resets_of(&scene, KVB_SUMS_RESTARTED), 1);
    drop_sums(&scene);
}

/* ---- Requests that wait when a comparison begins ---- */

/* One of them is executed without hits in the place of one with a promise, on each page. */
static void a_waiting_request_of_the_same_length_is_not_taken_for_one_decided_later(void **state)
{
    struct scene scene = begun();

    (void)state;
    pass(&scene, 60 * S);
    decide(&scene, prompt, 0, 0);
    execute(&scene, prompt + 5, 0); /* of somebody else: the comparison begins again */
    scene.is_queue_filled = true;
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_int_equal(resets_of(&scene, KVB_SUMS_OTHER_REQUESTS), 1);
    for (unsigned i = 0; i < 6; i++) {
        pass(&scene, S);
        decide(&scene, prompt, i % 2 == 0 ? promise : 0, 1);
        execute(&scene, prompt, i % 2 == 0 ? 0 : promise); /* the one decided before it */
        if (read_page(&scene) == KVB_OK) {
            assert_true(scene.period.promised_tokens <= scene.period.cached_tokens);
        }
    }
    drop_sums(&scene);
}

/* It is executed before those decided later, which have other lengths. */
static void lengths_tell_which_request_waited(void **state)
{
    struct scene scene = begun();

    (void)state;
    pass(&scene, 60 * S);
    decide(&scene, prompt, 0, 0);
    execute(&scene, prompt + 5, 0); /* of somebody else: the comparison begins again */
    scene.is_queue_filled = true;
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    assert_int_equal(resets_of(&scene, KVB_SUMS_OTHER_REQUESTS), 1);
    for (uint64_t i = 1; i <= 4; i++) { /* it was executed before that page */
        pass(&scene, S);
        decide(&scene, prompt + i, promise, i);
        execute(&scene, prompt + i, promise / 2);
        assert_int_equal(read_page(&scene), i <= 2 ? KVB_AGAIN : KVB_OK);
    }
    assert_int_equal(scene.period.promised_tokens, promise);
    assert_int_equal(scene.period.cached_tokens, promise / 2);
    drop_sums(&scene);
}

static void nothing_begins_while_unknown_requests_may_wait(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, 0, 0, 0);
    scene.is_queue_filled = true;
    for (unsigned i = 0; i < 6; i++) {
        decide(&scene, prompt, promise, 1);
        execute(&scene, prompt, 0);
        pass(&scene, 9 * S);
        assert_int_equal(read_page(&scene), KVB_AGAIN);
    }
    pass(&scene, 6 * S); /* one that waited so long is not executed */
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(read_page(&scene), KVB_AGAIN);
        decide(&scene, prompt + 1, promise, 1);
        execute(&scene, prompt + 1, 0);
        pass(&scene, 60 * S);
    }
    assert_ok(read_page(&scene));
    drop_sums(&scene);
}

/* ---- Promises that the stream takes back ---- */

static kvb_status run_period(struct scene *scene)
{
    execute(scene, prompt, 0);
    pass(scene, S);
    assert_int_equal(read_page(scene), KVB_AGAIN);
    return confirm(scene);
}

static void a_promise_whose_block_was_removed_is_left_out(void **state)
{
    static const kvb_block_hash removed[] = { { 9 }, { 1 } };
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    kvb_audit_sums_removed(scene.sums, &stream, removed, 1);
    assert_ok(run_period(&scene));
    assert_int_equal(scene.period.promised_tokens, promise);
    decide(&scene, prompt, promise, 1);
    kvb_audit_sums_removed(scene.sums, &stream, removed, 2);
    assert_int_equal(run_period(&scene), KVB_AGAIN);
    decide(&scene, prompt, promise, 0); /* its block is unknown */
    kvb_audit_sums_removed(scene.sums, &stream, removed, 1);
    assert_int_equal(run_period(&scene), KVB_AGAIN);
    drop_sums(&scene);
}

static void promises_from_before_a_clear_or_another_claim_are_left_out(void **state)
{
    struct scene scene = begun();

    (void)state;
    decide(&scene, prompt, promise, 1);
    kvb_audit_sums_cleared(scene.sums, &stream);
    assert_int_equal(run_period(&scene), KVB_AGAIN);
    decide(&scene, prompt, promise, 1);
    execute(&scene, prompt, 0);
    pass(&scene, S);
    assert_int_equal(read_page(&scene), KVB_AGAIN);
    kvb_audit_sums_cleared(scene.sums, &stream); /* while the period waits */
    assert_int_equal(confirm(&scene), KVB_AGAIN);
    decide(&scene, prompt, promise, 1);
    scene.claim++;
    assert_int_equal(run_period(&scene), KVB_AGAIN);
    drop_sums(&scene);
}

/* ---- Limits ---- */

static void streams_without_a_page_are_not_known(void **state)
{
    struct scene scene = begun();
    const struct kvb_stream_id other = { .name_space = "dynamo", .component = "c", .worker_id = 8 };
    const struct kvb_promise none = { 0 };
    struct kvb_audit_sums_counters counters;

    (void)state;
    kvb_audit_sums_decided(scene.sums, &other, prompt, &none, scene.now_ns);
    kvb_audit_sums_removed(scene.sums, &other, NULL, 0);
    kvb_audit_sums_cleared(scene.sums, &other);
    kvb_audit_sums_count(scene.sums, &counters);
    assert_int_equal(counters.streams, 1);
    kvb_audit_sums_expire(scene.sums, scene.now_ns + (58 * S));
    kvb_audit_sums_count(scene.sums, &counters);
    assert_int_equal(counters.streams, 1);
    kvb_audit_sums_expire(scene.sums, scene.now_ns + (60 * S));
    kvb_audit_sums_count(scene.sums, &counters);
    assert_int_equal(counters.streams, 0);
    drop_sums(&scene);
}

static void without_memory_nothing_is_compared(void **state)
{
    (void)state;
    for (long i = 0; i < 8; i++) {
        struct scene scene = { .now_ns = S };
        assert_ok(kvb_audit_sums_new(8, 0, &scene.sums));
        fail_alloc_after(i);
        const kvb_status first = read_page(&scene);
        decide(&scene, prompt, promise, 1);
        fail_alloc_after(-1);
        assert_true(first == KVB_AGAIN || first == KVB_NO_MEMORY);
        execute(&scene, prompt, promise);
        pass(&scene, S);
        assert_int_equal(read_page(&scene), KVB_AGAIN);
        const kvb_status status = confirm(&scene);
        assert_true(status == KVB_OK || status == KVB_AGAIN);
        assert_true(status != KVB_OK || scene.period.cached_tokens == promise);
        drop_sums(&scene);
    }
}

/* ---- A simulated fleet, against the simplest count of what is true ----
 *
 * A router sends prompts to an engine, where they wait in a queue; now and then somebody else sends
 * one, or one of ours is lost.  The reference model counts what each request of ours was promised
 * and given.  Whatever the audit tests, an honest engine was given what was promised, so no period
 * of it may be short by more than the audit forgives. */

enum { max_queue = 64 };

struct sim {
    struct scene scene;
    struct kvb_audit *audit;
    uint64_t random;
    struct {
        uint64_t tokens, cached;
    } queue[max_queue];
    size_t waiting;
    uint64_t tested; /* requests in periods */
};

struct sim_options {
    double other;  /* share of requests that pass us by */
    double lost;   /* share of decisions that never arrive */
    double lie;    /* share of requests that are given nothing */
    double drains; /* share of steps in which the queue empties */
    unsigned lengths;
    bool is_even; /* all promises are equal */
    uint64_t seed;
    unsigned steps;
};

static const struct kvb_audit_options test_options = {
    .max_streams = 8, .honest_loss = 0.001, .lie = 0.05, .false_alarm_requests = 1e8
};

static void enqueue(struct sim *sim, uint64_t tokens, uint64_t cached)
{
    if (sim->waiting < max_queue) {
        sim->queue[sim->waiting].tokens = tokens;
        sim->queue[sim->waiting++].cached = cached;
    }
}

static void route_one(struct sim *sim, const struct sim_options *options)
{
    const uint64_t tokens = 1000 + kvb_random_below(&sim->random, options->lengths);
    const uint64_t promised = options->is_even ? 480 : 16 * kvb_random_below(&sim->random, 60);
    const bool is_lie = kvb_random_chance(&sim->random, options->lie);

    if (kvb_random_chance(&sim->random, options->other)) {
        enqueue(sim, tokens, 0);
        return;
    }
    decide(&sim->scene, tokens, promised, 1);
    if (!kvb_random_chance(&sim->random, options->lost)) {
        enqueue(sim, tokens, is_lie ? 0 : promised);
    }
}

static void execute_some(struct sim *sim, const struct sim_options *options)
{
    const bool drains = kvb_random_chance(&sim->random, options->drains);
    const size_t count = drains ? sim->waiting : kvb_random_below(&sim->random, sim->waiting + 1);

    for (size_t i = 0; i < count; i++) {
        execute(&sim->scene, sim->queue[i].tokens, sim->queue[i].cached);
    }
    sim->waiting -= count;
    memmove(sim->queue, sim->queue + count, sim->waiting * sizeof *sim->queue);
}

/* Returns the number of requests routed until the alarm, or 0: there was none. */
static unsigned simulate(const struct sim_options *options)
{
    struct sim sim = { .random = options->seed };
    struct kvb_audit_stats stats;
    unsigned alarm = 0;

    sim.scene = begun();
    assert_ok(kvb_audit_new(&test_options, &sim.audit));
    for (unsigned i = 1; i <= options->steps && alarm == 0; i++) {
        route_one(&sim, options);
        execute_some(&sim, options);
        pass(&sim.scene, 200 * MS);
        if (i % 5 == 0 && read_page(&sim.scene) == KVB_OK) {
            sim.tested += sim.scene.period.requests;
            assert_ok(
                kvb_audit_add_period(sim.audit, &stream, &sim.scene.period, sim.scene.now_ns));
        }
        if (kvb_audit_find(sim.audit, &stream, &stats) && stats.verdict != KVB_AUDIT_KEPT) {
            alarm = i;
        }
    }
    if (options->other == 0 && options->lost == 0 && alarm == 0) {
        assert_true(sim.tested * 2 > options->steps);
    }
    kvb_audit_free(sim.audit);
    drop_sums(&sim.scene);
    return alarm;
}

static void honest_engines_are_never_contradicted(void **state)
{
    static const struct sim_options worlds[] = {
        { .drains = 0.8, .lengths = 500 },
        { .drains = 0.8, .lengths = 1 },
        { .drains = 0.8, .lengths = 500, .other = 0.05 },
        { .drains = 0.8, .lengths = 1, .other = 0.05 },
        { .drains = 0.8, .lengths = 1, .other = 0.001 },
        { .drains = 0.2, .lengths = 1, .other = 0.01 },
        { .drains = 0, .lengths = 1, .other = 0.01 },
        { .drains = 0.8, .lengths = 500, .lost = 0.01 },
        { .drains = 0.8, .lengths = 1, .lost = 0.01 },
        { .drains = 0.8, .lengths = 1, .lost = 0.001 },
        { .drains = 0.8, .lengths = 1, .lost = 0.01, .other = 0.01 },
        { .drains = 0.3, .lengths = 1, .lost = 0.002, .other = 0.002 },
        { .drains = 0.8, .lengths = 2, .lost = 0.01, .other = 0.01 },
        { .drains = 0.8, .lengths = 500, .lie = 0.001 }, /* the limit of honesty */
        { .drains = 0.8, .lengths = 500, .lie = 0.001, .is_even = true },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(worlds); i++) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            struct sim_options options = worlds[i];
            options.seed = seed;
            options.steps = 20000;
            const unsigned alarm = simulate(&options);
            if (alarm != 0) {
                fail_msg("world %zu, seed %d: alarm after %u requests", i, (int)seed, alarm);
            }
        }
    }
}

static int by_size(const void *left, const void *right)
{
    const unsigned a = *(const unsigned *)left;
    const unsigned b = *(const unsigned *)right;

    return (a > b) - (a < b);
}

/* Requests until the alarm: the mean, and what 95 % of the runs need at most. */
static void measure_lies(const struct sim_options *lie, unsigned *out_mean, unsigned *out_most)
{
    enum { runs = 100 };
    struct sim_options options = *lie;
    unsigned sorted[runs];
    double sum = 0;

    for (unsigned i = 0; i < runs; i++) {
        options.seed = i + 1;
        sorted[i] = simulate(&options);
        assert_true(sorted[i] > 0);
        sum += sorted[i];
    }
    qsort(sorted, runs, sizeof *sorted, by_size);
    *out_mean = (unsigned)(sum / runs);
    *out_most = sorted[runs * 95 / 100];
    print_message("mean %u, 95 %% of lies within %u requests\n", *out_mean, *out_most);
}

/* One request in twenty is given nothing; 5 requests/s, and a page a second. */
static void a_lie_of_5_percent_is_found_in_sum(void **state)
{
    struct sim_options lie = { .lie = 0.05, .drains = 0.8, .lengths = 500, .steps = 100000 };
    unsigned mean = 0;
    unsigned most = 0;

    (void)state;
    measure_lies(&lie, &mean, &most); /* promises of 0 to 944 tokens: half the largest on average */
    assert_in_range(mean, 220, 270);
    assert_in_range(most, 380, 480);
    lie.is_even = true;
    measure_lies(&lie, &mean, &most);
    assert_in_range(mean, 120, 150);
    assert_in_range(most, 220, 320);
}

/* ---- Engines that always have requests waiting ----
 *
 * An engine executes each request some time after its decision, in order.  Where all prompts have
 * one length, its counters do not tell which ones were executed, and promises differ. */

enum { max_flight = 256 };

struct flight_options {
    double per_step; /* probability of a decision in 10 ms */
    double pause;    /* probability that a second passes without decisions */
    double lie;
    unsigned delay_ms;
    unsigned lengths;
};

struct flight {
    struct scene scene;
    struct kvb_audit *audit;
    uint64_t random;
    struct {
        uint64_t at_ns, tokens, cached;
    } queue[max_flight];
    size_t head;
    size_t tail;
};

static void route_in_flight(struct flight *flight, const struct flight_options *options)
{
    const uint64_t tokens = 1000 + kvb_random_below(&flight->random, options->lengths);
    const uint64_t promised = 16 * kvb_random_below(&flight->random, 60);
    const bool is_lie = kvb_random_chance(&flight->random, options->lie);
    const size_t at = flight->tail++ % max_flight;

    decide(&flight->scene, tokens, promised, 1);
    flight->queue[at].at_ns = flight->scene.now_ns;
    flight->queue[at].tokens = tokens;
    flight->queue[at].cached = is_lie ? 0 : promised;
}

/* Whether a request was decided that long ago and waits. */
static bool is_waiting(const struct flight *flight, uint64_t ns)
{
    return flight->head < flight->tail &&
           flight->queue[flight->head % max_flight].at_ns + ns <= flight->scene.now_ns;
}

static void execute_in_order(struct flight *flight, unsigned delay_ms)
{
    for (; is_waiting(flight, delay_ms * MS); flight->head++) {
        const size_t at = flight->head % max_flight;
        execute(&flight->scene, flight->queue[at].tokens, flight->queue[at].cached);
    }
    flight->scene.is_queue_filled = is_waiting(flight, 20 * MS); /* they need 20 ms to arrive */
}

static bool fly(const struct flight_options *options, uint64_t seed)
{
    struct flight flight = { .scene = begun(), .random = seed };
    struct kvb_audit_stats stats = { .verdict = KVB_AUDIT_KEPT };
    bool is_paused = false;

    assert_ok(kvb_audit_new(&test_options, &flight.audit));
    for (unsigned step = 1; step <= 200000 && stats.verdict == KVB_AUDIT_KEPT; step++) {
        if (step % 100 == 0) {
            is_paused = kvb_random_chance(&flight.random, options->pause);
        }
        if (!is_paused && kvb_random_chance(&flight.random, options->per_step)) {
            route_in_flight(&flight, options);
        }
        pass(&flight.scene, 10 * MS);
        execute_in_order(&flight, options->delay_ms);
        if (step % 100 == 50 && read_page(&flight.scene) == KVB_OK) {
            assert_ok(kvb_audit_add_period(
                flight.audit, &stream, &flight.scene.period, flight.scene.now_ns));
        }
        (void)kvb_audit_find(flight.audit, &stream, &stats);
    }
    kvb_audit_free(flight.audit);
    drop_sums(&flight.scene);
    return stats.verdict != KVB_AUDIT_KEPT;
}

/* More are decided between two pages than are kept, so comparisons begin while requests wait. */
static void honest_engines_with_waiting_requests_are_never_contradicted(void **state)
{
    static const struct flight_options worlds[] = {
        { .per_step = 0.3, .delay_ms = 500, .pause = 0.3, .lengths = 1 },
        { .per_step = 0.6, .delay_ms = 240, .pause = 0, .lengths = 1 },
        { .per_step = 0.6, .delay_ms = 200, .pause = 0.05, .lengths = 1 },
        { .per_step = 0.6, .delay_ms = 500, .pause = 0, .lengths = 1 },
        { .per_step = 0.6, .delay_ms = 500, .pause = 0.05, .lengths = 2 },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(worlds); i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            if (fly(&worlds[i], seed)) {
                fail_msg("world %zu, seed %d: alarm", i, (int)seed);
            }
        }
    }
}

static void a_lie_is_found_where_requests_wait(void **state)
{
    static const struct flight_options one_length = {
        .per_step = 0.1, .delay_ms = 500, .lengths = 1, .lie = 0.1
    };
    static const struct flight_options lengths = {
        .per_step = 0.6, .delay_ms = 50, .lengths = 500, .lie = 0.1
    };

    (void)state;
    assert_true(fly(&one_length, 1));
    assert_true(fly(&lengths, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_period_has_the_promises_and_hits_between_two_balanced_pages),
        cmocka_unit_test(a_request_on_its_way_belongs_to_the_next_period),
        cmocka_unit_test(while_requests_wait_no_page_ends_a_period),
        cmocka_unit_test(a_request_that_nobody_routed_drops_what_waits),
        cmocka_unit_test(a_request_that_hides_behind_a_waiting_one_is_noticed_in_time),
        cmocka_unit_test(a_request_that_is_never_executed_is_given_up),
        cmocka_unit_test(what_cannot_be_counted_begins_again_with_the_next_page),
        cmocka_unit_test(a_waiting_request_of_the_same_length_is_not_taken_for_one_decided_later),
        cmocka_unit_test(lengths_tell_which_request_waited),
        cmocka_unit_test(nothing_begins_while_unknown_requests_may_wait),
        cmocka_unit_test(a_promise_whose_block_was_removed_is_left_out),
        cmocka_unit_test(promises_from_before_a_clear_or_another_claim_are_left_out),
        cmocka_unit_test(streams_without_a_page_are_not_known),
        cmocka_unit_test(without_memory_nothing_is_compared),
        cmocka_unit_test(honest_engines_are_never_contradicted),
        cmocka_unit_test(a_lie_of_5_percent_is_found_in_sum),
        cmocka_unit_test(honest_engines_with_waiting_requests_are_never_contradicted),
        cmocka_unit_test(a_lie_is_found_where_requests_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
