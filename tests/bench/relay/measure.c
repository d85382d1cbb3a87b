#include "measure.h"

#include "core/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    window_batches = 1 << 14, /* 16 ms at 1 M/s: nats.c's flusher alone waits for 1 */
    warm_up_rate = 500,
    max_samples = 1 << 20,
};

static const uint64_t silence_ns =
    200 * KVB_NS_PER_MS; /* a relay that is silent for so long is done */
static const uint64_t republished_silence_ns = KVB_NS_PER_S;
static const uint64_t lost_ns = 10 * KVB_NS_PER_S; /* messages that take longer are lost */
static const uint64_t warm_up_ns = 30 * KVB_NS_PER_S;

/* ---- Latencies ---- */

struct samples {
    uint32_t *ns; /* owned; NULL: not wanted */
    size_t count;
};

static void note(struct samples *samples, const struct blast *blast, uint64_t from, uint64_t events)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    for (uint64_t i = from; samples->ns && i < from + events; i++) {
        if (samples->count < max_samples) {
            const uint64_t took_ns = now_ns - blast->sent_ns[i % blast_ring];
            samples->ns[samples->count++] =
                took_ns < UINT32_MAX ? (uint32_t)took_ns : UINT32_MAX; /* 4.3 s and more */
        }
    }
}

static int by_size(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a;
    const uint32_t right = *(const uint32_t *)b;

    return (left > right) - (left < right);
}

static void sum_up_latencies(const struct samples *samples, struct run_result *result)
{
    if (samples->count > 0) {
        qsort(samples->ns, samples->count, sizeof *samples->ns, by_size);
        const size_t p50 = samples->count / 2;
        const size_t p99 = samples->count * 99 / 100;
        result->p50_us = (double)samples->ns[p50] / 1000;
        result->p99_us = (double)samples->ns[p99] / 1000;
    }
}

/* ---- Following ---- */

struct following {
    struct reader reader;
    struct republished *republished; /* borrowed: is read in place of NATS; NULL: is not */
    uint64_t position;               /* of it */
    struct blast blast;
    struct samples samples;
    uint64_t arrived;
    uint64_t last_ns; /* when something arrived */
};

static kvb_status
open_following(const struct stage *stage, struct contender *contender, struct following *following)
{
    struct republished *republished = &contender->republished;
    const struct script *script = contender->script;

    if (contender->kind != contender_republish) {
        return reader_open(&following->reader, stage->server.port, contender->subject);
    }
    following->reader.fd = -1;
    following->republished = republished;
    following->position = contender->engines[0].next_batch == 0
                              ? republished->laps * script->count
                              : republished_position(republished, script);
    return KVB_OK;
}

static kvb_status
read_republished(struct following *following, const struct script *script, uint64_t *out_events)
{
    const uint64_t jumps = following->republished->jumps;

    KVB_TRY(republished_read(following->republished));
    const uint64_t position = republished_position(following->republished, script);
    *out_events = position > following->position ? position - following->position : 0;
    following->position += *out_events;
    following->reader.jumps += following->republished->jumps - jumps;
    return KVB_OK;
}

static kvb_status follow_once(struct following *following)
{
    uint64_t events = 0;
    const kvb_status status = following->republished
                                  ? read_republished(following, following->blast.script, &events)
                                  : reader_read(&following->reader, &events);

    if (atomic_load(&stage_is_over)) {
        return KVB_CLOSED;
    }
    if (status == KVB_OK && events > 0) {
        following->last_ns = kvb_clock_monotonic_ns();
        note(&following->samples, &following->blast, following->arrived, events);
        following->arrived += events;
        blast_note_arrived(&following->blast, events);
    }
    return status == KVB_AGAIN ? KVB_OK : status;
}

static bool is_done(const struct following *following)
{
    const struct blast *blast = &following->blast;
    const uint64_t since_ns = kvb_clock_monotonic_ns() - following->last_ns;

    return since_ns > lost_ns ||
           (atomic_load(&blast->is_over) && following->arrived >= atomic_load(&blast->sent));
}

static kvb_status follow(struct following *following)
{
    following->last_ns = kvb_clock_monotonic_ns();
    while (!is_done(following)) {
        KVB_TRY(follow_once(following));
    }
    return KVB_OK;
}

static void begin_script(struct contender *contender, const struct script *script)
{
    if (contender->script != script) {
        contender->script = script;
        for (size_t i = 0; i < contender->engine_count; i++) {
            contender->engines[i].next_batch = 0;
        }
    }
}

static void
set_blast(struct blast *blast, struct contender *contender, const struct run_options *options)
{
    begin_script(contender, options->script);
    *blast = (struct blast){
        .engines = contender->engines,
        .engine_count = contender->engine_count,
        .script = options->script,
        .window = options->batches_a_second > 0 ? blast_ring : window_batches,
        .batches_a_second = options->batches_a_second,
        .max_kept_batches = options->max_kept_batches,
        .duration_ns = options->duration_ns,
    };
}

/* ---- A run ---- */

static void
sum_up(const struct following *following, uint64_t cpu_ns, struct run_result *out_result)
{
    const double batches = (double)following->arrived;
    const uint64_t took_ns = following->last_ns - following->blast.began_ns;

    *out_result = (struct run_result){
        .batches = following->arrived,
        .lost = atomic_load(&following->blast.sent) - following->arrived + following->reader.jumps,
    };
    if (following->arrived > 0 && took_ns > 0) {
        out_result->batches_a_second = batches * 1e9 / (double)took_ns;
        out_result->cpu_ns = (double)cpu_ns / batches;
        out_result->bytes = (double)following->reader.bytes / batches;
        sum_up_latencies(&following->samples, out_result);
    }
}

static kvb_status run_and_follow(
    struct contender *contender, struct following *following, struct run_result *out_result)
{
    const uint64_t cpu_before_ns = contender_cpu_ns(contender);

    KVB_TRY(blast_begin(&following->blast));
    const kvb_status status = follow(following);
    blast_end(&following->blast);
    KVB_TRY(status);
    sum_up(following, contender_cpu_ns(contender) - cpu_before_ns, out_result);
    return KVB_OK;
}

kvb_status measure_run(
    const struct stage *stage, struct contender *contender, const struct run_options *options,
    struct run_result *out_result)
{
    struct following following = { .arrived = 0 };

    set_blast(&following.blast, contender, options);
    KVB_TRY(open_following(stage, contender, &following));
    following.reader.has_many_streams = contender->engine_count > 1;
    if (options->batches_a_second > 0) {
        following.samples.ns = calloc(max_samples, sizeof *following.samples.ns);
    }
    const kvb_status status = run_and_follow(contender, &following, out_result);
    free(following.samples.ns);
    reader_close(&following.reader);
    return status;
}

/* ---- At rest ---- */

kvb_status measure_rest(
    const struct stage *stage, const struct contender *contender, uint64_t duration_ns,
    double *out_cpu_ms)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const uint64_t cpu_before_ns = contender_cpu_ns(contender);
    struct following following = { .arrived = 0 };
    kvb_status status = KVB_OK;

    KVB_TRY(reader_open(&following.reader, stage->server.port, contender->subject));
    while (status == KVB_OK && kvb_clock_monotonic_ns() - began_ns < duration_ns) {
        status = follow_once(&following); /* waits a moment */
    }
    reader_close(&following.reader);
    KVB_TRY(status);
    const double took_ns = (double)(kvb_clock_monotonic_ns() - began_ns);
    *out_cpu_ms = (double)(contender_cpu_ns(contender) - cpu_before_ns) / took_ns * 1000;
    return KVB_OK;
}

/* ---- Warming up ---- */

/* Waits until each engine has published and been received. Messages of bridges at their start may
 * be more or less than one event a batch. */
static kvb_status speak_until_received(struct contender *contender, struct following *following)
{
    const uint64_t enough = 2 * contender->engine_count;
    const uint64_t until_ns = kvb_clock_monotonic_ns() + warm_up_ns;

    while (following->arrived < enough) {
        KVB_TRY(follow_once(following));
        if (kvb_clock_monotonic_ns() >= until_ns) {
            return KVB_AGAIN;
        }
    }
    return KVB_OK;
}

static kvb_status listen_until_silent(struct following *following)
{
    /* batches that are still on their way would be counted as those of the next script */
    const uint64_t enough_ns = following->republished ? republished_silence_ns : silence_ns;

    while (kvb_clock_monotonic_ns() - following->last_ns < enough_ns) {
        KVB_TRY(follow_once(following));
    }
    return KVB_OK;
}

kvb_status
measure_warm_up(const struct stage *stage, struct contender *contender, const struct script *script)
{
    const struct run_options options = { .script = script,
                                         .batches_a_second = warm_up_rate + contender->engine_count,
                                         .duration_ns = warm_up_ns };
    struct following following = { .arrived = 0 };

    set_blast(&following.blast, contender, &options);
    KVB_TRY(open_following(stage, contender, &following));
    kvb_status status = blast_begin(&following.blast);
    if (status == KVB_OK) {
        status = speak_until_received(contender, &following);
        atomic_store(&following.blast.is_over, true);
        if (status == KVB_OK) {
            status = listen_until_silent(&following);
        }
        blast_end(&following.blast);
    }
    reader_close(&following.reader);
    return status;
}
