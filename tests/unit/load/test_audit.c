#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "load/audit.h"

#include <stdlib.h>

#define S KVB_NS_PER_S

/* The aggregator's defaults: the keys audit.* of its configuration. */
static const struct kvb_audit_options defaults = {
    .max_streams = 64, .honest_loss = 0.001, .lie = 0.05, .false_alarm_requests = 1e8
};

enum { promise = 640, max_requests = 1000000 };

static struct kvb_audit *new_audit(void)
{
    struct kvb_audit *audit = NULL;

    assert_ok(kvb_audit_new(&defaults, &audit));
    return audit;
}

static struct kvb_stream_id worker(uint64_t worker_id)
{
    return (struct kvb_stream_id){ .name_space = "dynamo",
                                   .component = "VllmWorker",
                                   .worker_id = worker_id };
}

static void add(struct kvb_audit *audit, uint64_t worker_id, uint64_t cached)
{
    const struct kvb_stream_id id = worker(worker_id);

    assert_ok(kvb_audit_add(audit, &id, promise, cached, 0, S));
}

static void clear(struct kvb_audit *audit, uint64_t worker_id)
{
    const struct kvb_stream_id id = worker(worker_id);

    kvb_audit_cleared(audit, &id);
}

static struct kvb_audit_stats stats_of(const struct kvb_audit *audit, uint64_t worker_id)
{
    const struct kvb_stream_id id = worker(worker_id);
    struct kvb_audit_stats stats;

    assert_true(kvb_audit_find(audit, &id, &stats));
    return stats;
}

static enum kvb_audit_verdict verdict_of(const struct kvb_audit *audit, uint64_t worker_id)
{
    return stats_of(audit, worker_id).verdict;
}

static struct kvb_audit_counters counters_of(const struct kvb_audit *audit)
{
    struct kvb_audit_counters counters;

    kvb_audit_count(audit, &counters);
    return counters;
}

/* The number of requests until the alarm, when each loses all of its promised hit with this
 * probability. */
static unsigned
requests_until_alarm(const struct kvb_audit_options *options, double probability, uint64_t seed)
{
    struct kvb_audit *audit = NULL;
    unsigned requests = 0;

    assert_ok(kvb_audit_new(options, &audit));
    do {
        add(audit, 1, kvb_random_chance(&seed, probability) ? 0 : promise);
        requests++;
        assert_true(requests < max_requests);
    } while (verdict_of(audit, 1) == KVB_AUDIT_KEPT);
    kvb_audit_free(audit);
    return requests;
}

static int by_size(const void *left, const void *right)
{
    const unsigned a = *(const unsigned *)left;
    const unsigned b = *(const unsigned *)right;

    return (a > b) - (a < b);
}

/* ---- Detection ---- */

/* The number of requests until the alarm, when every request gets this share less than promised. */
static unsigned requests_for_an_even_lie(double share)
{
    struct kvb_audit *audit = new_audit();
    unsigned requests = 0;

    do {
        add(audit, 1, (uint64_t)(promise * (1 - share)));
        requests++;
        assert_true(requests < max_requests);
    } while (verdict_of(audit, 1) == KVB_AUDIT_KEPT);
    kvb_audit_free(audit);
    return requests;
}

static void a_loss_spread_evenly_is_detected_soon(void **state)
{
    (void)state;
    assert_int_equal(requests_for_an_even_lie(0.05), 15); /* 30 s at 0.5 requests/s */
    assert_int_equal(requests_for_an_even_lie(0.1), 11);
    assert_int_equal(requests_for_an_even_lie(1.0), 5);
}

static void honest_requests_build_no_credit(void **state)
{
    struct kvb_audit *audit = new_audit();

    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        add(audit, 1, promise);
    }
    for (unsigned i = 0; i < 15; i++) {
        assert_int_equal(stats_of(audit, 1).verdict, KVB_AUDIT_KEPT);
        add(audit, 1, promise - (promise / 20));
    }
    assert_int_equal(stats_of(audit, 1).verdict, KVB_AUDIT_BROKEN);
    kvb_audit_free(audit);
}

/* The hardest lie of 5 %: one request in twenty loses everything, beside the honest loss. */
static void a_loss_in_few_requests_is_detected_within_30_s_at_8_requests_a_second(void **state)
{
    enum { runs = 1000 };
    static unsigned sorted[runs];
    double sum = 0;

    (void)state;
    for (unsigned i = 0; i < runs; i++) {
        sorted[i] = requests_until_alarm(&defaults, 0.051, i + 1);
        sum += sorted[i];
    }
    qsort(sorted, runs, sizeof *sorted, by_size);
    print_message(
        "mean %.0f, 95 %% of lies within %u requests\n", sum / runs, sorted[runs * 95 / 100]);
    assert_in_range((unsigned)(sum / runs), 115, 130); /* 30 s at 4.1 requests/s */
    assert_in_range(sorted[runs * 95 / 100], 225, 250);
}

/* ---- False alarms ---- */

/* 30 minutes of 64 streams with 20 requests a second each, with exactly the permitted loss. */
static void honest_streams_raise_no_alarm_in_30_minutes(void **state)
{
    enum { streams = 64, requests = 30 * 60 * 20 };
    struct kvb_audit *audit = new_audit();
    uint64_t random = 7;

    (void)state;
    for (unsigned n = 0; n < requests; n++) {
        for (unsigned i = 0; i < streams; i++) {
            add(audit, i, kvb_random_chance(&random, defaults.honest_loss) ? 0 : promise);
        }
    }
    assert_int_equal(counters_of(audit).alarms, 0);
    assert_int_equal(counters_of(audit).requests, streams * requests);
    kvb_audit_free(audit);
}

/* A small bound, so that false alarms occur: the mean distance between them must be above the
 * bound, whatever the distribution of the losses. */
static void false_alarms_are_rarer_than_the_bound(void **state)
{
    enum { runs = 100 };
    struct kvb_audit_options options = defaults;
    double sum = 0;

    (void)state;
    options.false_alarm_requests = 100;
    for (unsigned i = 0; i < runs; i++) {
        sum += requests_until_alarm(&options, options.honest_loss, i + 1);
    }
    print_message("bound 100, mean distance of false alarms %.0f requests\n", sum / runs);
    assert_true(sum / runs > 100);
}

/* ---- What is no loss ---- */

static void more_than_promised_is_no_loss(void **state)
{
    struct kvb_audit *audit = new_audit();

    (void)state;
    add(audit, 1, promise + 160);
    const struct kvb_audit_stats stats = stats_of(audit, 1);
    assert_int_equal(stats.short_requests, 0);
    assert_int_equal(stats.delivered_tokens, promise);
    assert_int_equal(stats.extra_tokens, 160);
    assert_true(stats.evidence == 0);
    kvb_audit_free(audit);
}

static void a_promise_of_no_blocks_is_no_evidence(void **state)
{
    struct kvb_audit *audit = new_audit();
    const struct kvb_stream_id id = worker(1);
    struct kvb_audit_stats stats;

    (void)state;
    assert_ok(kvb_audit_add(audit, &id, 0, 160, 0, S));
    assert_false(kvb_audit_find(audit, &id, &stats));
    assert_int_equal(counters_of(audit).requests, 0);
    kvb_audit_free(audit);
}

static void one_request_alone_is_no_alarm(void **state)
{
    struct kvb_audit *audit = new_audit();

    (void)state;
    add(audit, 1, 0);
    add(audit, 2, promise);
    assert_int_equal(verdict_of(audit, 1), KVB_AUDIT_KEPT);
    assert_true(stats_of(audit, 1).evidence > 0.1);
    assert_int_equal(counters_of(audit).short_requests, 1);
    assert_int_equal(counters_of(audit).promised_tokens, 2 * promise);
    assert_int_equal(counters_of(audit).delivered_tokens, promise);
    kvb_audit_free(audit);
}

/* ---- From broken to kept again ---- */

static void break_stream(struct kvb_audit *audit, uint64_t worker_id)
{
    for (unsigned i = 0; i < 8; i++) {
        add(audit, worker_id, 0);
    }
    assert_int_equal(verdict_of(audit, worker_id), KVB_AUDIT_BROKEN);
}

static void a_broken_stream_is_kept_again_after_a_clear_alone(void **state)
{
    struct kvb_audit *audit = new_audit();

    (void)state;
    break_stream(audit, 1);
    assert_int_equal(counters_of(audit).broken, 1);
    for (unsigned i = 0; i < 1000; i++) {
        add(audit, 1,
            promise); /* the list is the same: blocks that no request needs may be wrong */
    }
    assert_int_equal(verdict_of(audit, 1), KVB_AUDIT_BROKEN);
    clear(audit, 1);
    clear(audit, 1); /* changes nothing more */
    assert_int_equal(verdict_of(audit, 1), KVB_AUDIT_KEPT);
    assert_int_equal(counters_of(audit).broken, 0);
    assert_int_equal(counters_of(audit).returns, 1);
    break_stream(audit, 1); /* it lies again, and is found as soon as the first time */
    assert_int_equal(counters_of(audit).alarms, 2);
    kvb_audit_free(audit);
}

static void a_clear_ends_the_evidence_against_the_old_list(void **state)
{
    struct kvb_audit *audit = new_audit();

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        add(audit, 1, 0);
    }
    clear(audit, 1);
    clear(audit, 2); /* the stream is not audited */
    add(audit, 1, 0);
    assert_int_equal(verdict_of(audit, 1), KVB_AUDIT_KEPT);
    kvb_audit_free(audit);
}

/* ---- Limits ---- */

static void streams_without_requests_are_removed_except_broken_ones(void **state)
{
    struct kvb_audit *audit = new_audit();
    struct kvb_audit_stats stats;
    const struct kvb_stream_id ids[] = { worker(1), worker(2), worker(3) };
    enum kvb_audit_verdict verdict = KVB_AUDIT_KEPT;

    (void)state;
    add(audit, 1, promise);
    break_stream(audit, 2);
    break_stream(audit, 3);
    clear(audit, 3);
    kvb_audit_expire(audit, 600 * S);
    assert_int_equal(counters_of(audit).streams, 3);
    kvb_audit_expire(audit, 601 * S);
    assert_false(kvb_audit_find(audit, &ids[0], &stats));
    assert_true(kvb_audit_find(audit, &ids[1], &stats));
    assert_false(kvb_audit_find(audit, &ids[2], &stats)); /* nothing audits it any more */
    assert_int_equal(counters_of(audit).broken, 1);
    assert_int_equal(kvb_audit_limit(audit), 3);
    assert_null(kvb_audit_at(audit, 0, &verdict));
    assert_int_equal(kvb_audit_at(audit, 1, &verdict)->worker_id, 2);
    assert_int_equal(verdict, KVB_AUDIT_BROKEN);
    kvb_audit_free(audit);
}

static void streams_beyond_the_limit_are_refused(void **state)
{
    struct kvb_audit *audit = new_audit();
    const struct kvb_stream_id id = worker(64);

    (void)state;
    for (unsigned i = 0; i < 64; i++) {
        add(audit, i, promise);
    }
    assert_int_equal(kvb_audit_add(audit, &id, promise, promise, 0, S), KVB_TOO_LARGE);
    assert_int_equal(counters_of(audit).requests, 64);
    kvb_audit_free(audit);
}

static void options_out_of_range_are_refused(void **state)
{
    static const struct kvb_audit_options wrong[] = {
        { 1, .honest_loss = 0, .lie = 0.05, .false_alarm_requests = 1e8 },
        { 1, .honest_loss = 0.01, .lie = 0, .false_alarm_requests = 1e8 },
        { 1, .honest_loss = 0.5, .lie = 0.5, .false_alarm_requests = 1e8 },
        { 1, .honest_loss = 0.01, .lie = 0.05, .false_alarm_requests = 1 },
    };
    struct kvb_audit *audit = NULL;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(wrong); i++) {
        assert_int_equal(kvb_audit_new(&wrong[i], &audit), KVB_BAD_CONFIG);
    }
    assert_null(audit);
}

static void without_memory_the_request_is_not_counted(void **state)
{
    const struct kvb_stream_id id = worker(1);

    (void)state;
    for (long i = 0; i < 6; i++) {
        struct kvb_audit *audit = new_audit();
        fail_alloc_after(i);
        const kvb_status status = kvb_audit_add(audit, &id, promise, 0, 0, S);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_int_equal(counters_of(audit).requests, status == KVB_OK);
        kvb_audit_free(audit);
    }
}

/* An engine with EAGLE or MTP: whatever the promise, one block of 16 tokens is missing. */
static void short_by_one_block_again_and_again_is_named(void **state)
{
    struct kvb_audit *audit = new_audit();
    const struct kvb_stream_id id = worker(1);
    struct kvb_audit_stats stats;

    (void)state;
    for (uint64_t i = 1; i <= kvb_audit_block_reports; i++) {
        assert_ok(kvb_audit_add(audit, &id, 160 * i, 160 * i - 16, 16, S));
        assert_true(kvb_audit_find(audit, &id, &stats));
        assert_int_equal(stats.block_short, i);
        assert_int_equal(kvb_audit_why(&stats) != NULL, i == kvb_audit_block_reports);
        assert_int_equal(kvb_audit_take_block_short(audit, 0), i == kvb_audit_block_reports);
    }
    assert_non_null(strstr(kvb_audit_why(&stats), "speculative_drop = 1"));
    assert_int_equal(counters_of(audit).block_short, 1);
    assert_ok(kvb_audit_add(audit, &id, 160, 144, 16, S));
    assert_false(kvb_audit_take_block_short(audit, 0)); /* once */

    static const struct {
        uint64_t cached;
        uint32_t block_tokens;
    } others[] = { { 160, 16 }, { 128, 16 }, { 145, 16 }, { 144, 32 }, { 144, 0 }, { 176, 16 } };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_ok(kvb_audit_add(audit, &id, 160, 144, 16, S));
        assert_ok(kvb_audit_add(audit, &id, 160, others[i].cached, others[i].block_tokens, S));
        assert_true(kvb_audit_find(audit, &id, &stats));
        assert_int_equal(stats.block_short, 0);
        assert_null(kvb_audit_why(&stats));
    }
    kvb_audit_free(audit);
}

SUITE(audit)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_spread_evenly_is_detected_soon),
        cmocka_unit_test(honest_requests_build_no_credit),
        cmocka_unit_test(a_loss_in_few_requests_is_detected_within_30_s_at_8_requests_a_second),
        cmocka_unit_test(honest_streams_raise_no_alarm_in_30_minutes),
        cmocka_unit_test(false_alarms_are_rarer_than_the_bound),
        cmocka_unit_test(more_than_promised_is_no_loss),
        cmocka_unit_test(a_promise_of_no_blocks_is_no_evidence),
        cmocka_unit_test(one_request_alone_is_no_alarm),
        cmocka_unit_test(a_broken_stream_is_kept_again_after_a_clear_alone),
        cmocka_unit_test(a_clear_ends_the_evidence_against_the_old_list),
        cmocka_unit_test(streams_without_requests_are_removed_except_broken_ones),
        cmocka_unit_test(streams_beyond_the_limit_are_refused),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(without_memory_the_request_is_not_counted),
        cmocka_unit_test(short_by_one_block_again_and_again_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
