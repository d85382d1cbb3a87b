#include "blaster.h"
#include "core/clock.h"
#include "core/own.h"
#include "parts/bench.h"
#include "parts/script.h"
#include "reader.h"
#include "republished.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <zmq.h>

/* Engines, and the subscriber that counts what a relay makes of their events: the part of relay.py
 * that must be fast.
 *
 *     bench_engines NATS_PORT
 *
 * It does what the lines on stdin say, and answers each with a line of JSON.  What goes wrong ends
 * it, with a line on stderr. */

static uint16_t nats_port;

/* ---- A run: the engines of one relay send, a subscriber counts ---- */

/* The engines that one relay reads, and where its messages are read. */
struct group {
    struct engine *engines; /* owned */
    size_t engine_count;
    size_t subscribed_count;     /* from the first on */
    const struct script *script; /* what they send; borrowed, NULL before the first batch */
    char subject[128];
    struct republished republished; /* with a socket: it is read in place of NATS */
};

struct run_options {
    const struct script *script;
    uint64_t batches_a_second; /* 0: as many as arrive */
    bool is_once; /* the script from its beginning to its end; false: for duration_ns */
    uint64_t duration_ns;
    pid_t pid; /* of the relay */
};

struct run_result {
    uint64_t batches;
    uint64_t lost; /* sent and not arrived, or arrived out of order */
    double batches_a_second;
    double cpu_ns; /* of the relay's process, for one batch */
    double bytes;  /* of payload, for one batch */
    double p50_us; /* from the engine's send to the subscriber; only at a given rate */
    double p99_us;
};

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

struct following {
    struct reader reader;
    struct republished *republished; /* borrowed: is read in place of NATS; NULL: is not */
    uint64_t position;               /* of it */
    struct blast blast;
    uint32_t *samples_ns; /* owned; NULL: latencies are not wanted */
    size_t sample_count;
    uint64_t arrived;
    uint64_t last_ns; /* when something arrived */
};

static void begin_following(struct following *following, struct group *group)
{
    struct republished *republished = &group->republished;

    following->reader.fd = -1;
    if (!republished->socket) {
        bench_must(reader_open(&following->reader, nats_port, group->subject), "the subscriber");
        following->reader.has_many_streams = group->engine_count > 1;
        return;
    }
    following->republished = republished;
    following->position = group->engines[0].next_batch == 0
                              ? republished->laps * group->script->count
                              : republished_position(republished, group->script);
}

static kvb_status read_republished(struct following *following, uint64_t *out_events)
{
    const uint64_t jumps = following->republished->jumps;

    KVB_TRY(republished_read(following->republished));
    const uint64_t position = republished_position(following->republished, following->blast.script);
    *out_events = position > following->position ? position - following->position : 0;
    following->position += *out_events;
    following->reader.jumps += following->republished->jumps - jumps;
    return KVB_OK;
}

static void note_latencies(struct following *following, uint64_t events)
{
    for (uint64_t i = following->arrived; i < following->arrived + events; i++) {
        if (following->samples_ns && following->sample_count < max_samples) {
            const uint64_t took_ns = following->last_ns - following->blast.sent_ns[i % blast_ring];
            following->samples_ns[following->sample_count++] =
                took_ns < UINT32_MAX ? (uint32_t)took_ns : UINT32_MAX; /* 4.3 s and more */
        }
    }
}

static void follow_once(struct following *following)
{
    uint64_t events = 0;
    const kvb_status status = following->republished ? read_republished(following, &events)
                                                     : reader_read(&following->reader, &events);

    if (status == KVB_OK && events > 0) {
        following->last_ns = kvb_clock_monotonic_ns();
        note_latencies(following, events);
        following->arrived += events;
        blast_note_arrived(&following->blast, events);
    }
    bench_must(status == KVB_AGAIN ? KVB_OK : status, "the subscriber");
}

static bool is_done(const struct following *following)
{
    const struct blast *blast = &following->blast;

    return kvb_clock_monotonic_ns() - following->last_ns > lost_ns ||
           (atomic_load(&blast->is_over) && following->arrived >= atomic_load(&blast->sent));
}

static void set_blast(struct blast *blast, struct group *group, const struct run_options *options)
{
    if (group->script != options->script || options->is_once) {
        group->script = options->script;
        for (size_t i = 0; i < group->engine_count; i++) {
            group->engines[i].next_batch = 0;
        }
    }
    *blast = (struct blast){
        .engines = group->engines,
        .engine_count = group->engine_count,
        .script = options->script,
        .window = options->batches_a_second > 0 ? blast_ring : window_batches,
        .batches_a_second = options->batches_a_second,
        .max_kept_batches = options->is_once ? options->script->count : 0,
        .duration_ns = options->duration_ns,
    };
}

static void sum_up(struct following *following, uint64_t cpu_ns, struct run_result *out_result)
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
        uint32_t *samples_ns = following->samples_ns;
        const size_t count = following->sample_count;
        out_result->p50_us = (double)bench_percentile(samples_ns, count, 500) / 1e3;
        out_result->p99_us = (double)bench_percentile(samples_ns, count, 990) / 1e3;
    }
}

/* Starts the script from its beginning when it is another one than before. */
static struct run_result run_and_follow(struct group *group, const struct run_options *options)
{
    struct following following = { .arrived = 0 };
    struct run_result result;

    set_blast(&following.blast, group, options);
    begin_following(&following, group);
    if (options->batches_a_second > 0) {
        following.samples_ns = bench_memory(max_samples, sizeof *following.samples_ns);
    }
    const uint64_t cpu_before_ns = bench_cpu_ns_of(options->pid);
    bench_must(blast_begin(&following.blast), "the engines");
    following.last_ns = kvb_clock_monotonic_ns();
    while (!is_done(&following)) {
        follow_once(&following);
    }
    blast_end(&following.blast);
    sum_up(&following, bench_cpu_ns_of(options->pid) - cpu_before_ns, &result);
    free(following.samples_ns);
    reader_close(&following.reader);
    return result;
}

/* What the relay uses while its engines are silent, in % of a core. */
static double run_at_rest(const struct group *group, uint64_t duration_ns, pid_t pid)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const uint64_t cpu_before_ns = bench_cpu_ns_of(pid);
    struct following following = { .arrived = 0 };

    bench_must(reader_open(&following.reader, nats_port, group->subject), "the subscriber");
    while (kvb_clock_monotonic_ns() - began_ns < duration_ns) {
        follow_once(&following); /* waits a moment */
    }
    reader_close(&following.reader);
    const double took_ns = (double)(kvb_clock_monotonic_ns() - began_ns);
    return 100 * (double)(bench_cpu_ns_of(pid) - cpu_before_ns) / took_ns;
}

/* Waits until each engine has published and been received.  Messages of bridges at their start may
 * be more or less than one event a batch. */
static void speak_until_received(const struct group *group, struct following *following)
{
    const uint64_t until_ns = kvb_clock_monotonic_ns() + warm_up_ns;

    while (following->arrived < 2 * group->engine_count) {
        follow_once(following);
        bench_must(kvb_clock_monotonic_ns() < until_ns ? KVB_OK : KVB_AGAIN, "the first batches");
    }
}

static void listen_until_silent(struct following *following)
{
    /* batches that are still on their way would be counted as those of the next script */
    const uint64_t enough_ns = following->republished ? republished_silence_ns : silence_ns;

    while (kvb_clock_monotonic_ns() - following->last_ns < enough_ns) {
        follow_once(following);
    }
}

/* Sends until everything that is sent arrives, whatever the relay does at its start. */
static void run_warm_up(struct group *group, const struct script *script)
{
    const struct run_options options = { .script = script,
                                         .batches_a_second = warm_up_rate + group->engine_count,
                                         .duration_ns = warm_up_ns };
    struct following following = { .arrived = 0 };

    set_blast(&following.blast, group, &options);
    begin_following(&following, group);
    bench_must(blast_begin(&following.blast), "the engines");
    speak_until_received(group, &following);
    atomic_store(&following.blast.is_over, true);
    listen_until_silent(&following);
    blast_end(&following.blast);
    reader_close(&following.reader);
}

/* ---- The program ---- */

enum { max_groups = 8, max_scripts = 2, max_sockets = 8192, snapshot_ms = 30000 };

/* Where many connections ended within the last minute, the port after a free one is often in use.
 */
enum { tries_each = 100 };

static void *zmq_context;
static struct group groups[max_groups];
static struct script scripts[max_scripts];

static struct group *group_at(const char *word)
{
    const uint64_t number = bench_number(word);

    BENCH_MUST_BE(number < max_groups);
    return &groups[number];
}

static struct script *script_at(const char *word)
{
    const uint64_t number = bench_number(word);

    BENCH_MUST_BE(number < max_scripts);
    return &scripts[number];
}

static uint64_t ns_of(const char *seconds)
{
    return (uint64_t)(bench_real(seconds) * (double)KVB_NS_PER_S);
}

/* ---- Commands: each reads its words and prints its answer ---- */

/* script NUMBER BLOCKS_A_BATCH POOL_BLOCKS SEED: how many blocks it has */
static void make_script(char *const words[])
{
    const struct script_options options = { .dialect = KVB_DIALECT_VLLM_0_22,
                                            .has_rank = true,
                                            .blocks_per_batch = bench_number(words[1]),
                                            .pool_blocks = bench_number(words[2]),
                                            .seed = bench_number(words[3]) };
    struct script *script = script_at(words[0]);

    script_done(script);
    bench_must(script_make(&options, script), "a script");
    printf("%zu", script->block_count);
}

/* The ranks of one worker, which have ports in a row.  False: one of these is taken. */
static bool open_worker(struct group *group, size_t ranks)
{
    const size_t first = group->engine_count;

    for (size_t i = first; i < first + ranks; i++) {
        const struct engine *before = i > first ? &group->engines[i - 1] : NULL;
        const kvb_status status = engine_open(zmq_context, before, &group->engines[i]);
        if (status != KVB_OK) {
            bench_must(before ? KVB_OK : status, "an engine's socket");
            while (i-- > first) {
                engine_close(&group->engines[i]);
            }
            return false;
        }
    }
    group->engine_count += ranks;
    return true;
}

/* open GROUP ENGINES RANKS SUBJECT: the endpoint of each worker */
static void open_group(char *const words[])
{
    struct group *group = group_at(words[0]);
    const size_t count = bench_number(words[1]);
    const size_t ranks = bench_number(words[2]);

    BENCH_MUST_BE(ranks > 0 && count % ranks == 0);
    *group = (struct group){ .engines = bench_memory(count, sizeof *group->engines) };
    (void)snprintf(group->subject, sizeof group->subject, "%s", words[3]);
    for (size_t tries = 0; group->engine_count < count; tries++) {
        bench_must(tries < tries_each * count ? KVB_OK : KVB_IO, "free ports in a row");
        (void)open_worker(group, ranks);
    }
    for (size_t i = 0; i < count; i += ranks) {
        printf("%s\"%s\"", i == 0 ? "[" : ",", group->engines[i].endpoint);
    }
    printf("]");
}

/* subscribed GROUP MS: whether all engines are, after this time at most */
static void wait_for_subscriptions(char *const words[])
{
    struct group *group = group_at(words[0]);
    const uint64_t ms = bench_number(words[1]);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    kvb_status status = KVB_OK;

    while (status == KVB_OK && group->subscribed_count < group->engine_count &&
           kvb_clock_monotonic_ns() - began_ns < ms * KVB_NS_PER_MS) {
        status = engine_wait(&group->engines[group->subscribed_count], (int)ms);
        group->subscribed_count += status == KVB_OK;
    }
    bench_must(status == KVB_AGAIN ? KVB_OK : status, "a subscription");
    printf("%s", group->subscribed_count == group->engine_count ? "true" : "false");
}

/* republished GROUP EVENTS: counts what is republished at this address, and waits for its first
 * batch: a bridge sends an empty one each second */
static void open_republished(char *const words[])
{
    struct republished *reader = &group_at(words[0])->republished;
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    kvb_status status = KVB_AGAIN;

    bench_must(republished_open(words[1], reader), "the reader of what is republished");
    while (status == KVB_AGAIN &&
           kvb_clock_monotonic_ns() - began_ns < snapshot_ms * KVB_NS_PER_MS) {
        status = republished_read(reader);
    }
    bench_must(status, "what is republished");
    printf("true");
}

/* warm GROUP SCRIPT */
static void warm_up(char *const words[])
{
    run_warm_up(group_at(words[0]), script_at(words[1]));
    printf("true");
}

/* run GROUP SCRIPT BATCHES_A_SECOND IS_ONCE SECONDS PID */
static void run(char *const words[])
{
    const struct run_options options = { .script = script_at(words[1]),
                                         .batches_a_second = bench_number(words[2]),
                                         .is_once = bench_number(words[3]) != 0,
                                         .duration_ns = ns_of(words[4]),
                                         .pid = (pid_t)bench_number(words[5]) };
    const struct run_result result = run_and_follow(group_at(words[0]), &options);

    printf(
        "{\"batches\":%" PRIu64 ",\"lost\":%" PRIu64
        ",\"batches_a_second\":%.17g,\"cpu_ns\":%.17g,\"bytes\":%.17g,\"p50_us\":%.17g,"
        "\"p99_us\":%.17g}",
        result.batches, result.lost, result.batches_a_second, result.cpu_ns, result.bytes,
        result.p50_us, result.p99_us);
}

/* rest GROUP SECONDS PID: the process's % of a core */
static void rest(char *const words[])
{
    printf(
        "%.17g", run_at_rest(group_at(words[0]), ns_of(words[1]), (pid_t)bench_number(words[2])));
}

/* snapshot GROUP SCRIPT REPLAY: s from a new reader's request until it has all the script's blocks
 */
static void take_snapshot(char *const words[])
{
    struct republished *reader = &group_at(words[0])->republished;
    const size_t wanted = script_at(words[1])->block_count;
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const uint64_t laps = reader->laps;

    bench_must(republished_ask_for_all(reader, words[2]), "a request for all blocks");
    while (reader->laps == laps || reader->blocks < wanted) {
        const kvb_status status = republished_read(reader);
        bench_must(status == KVB_AGAIN ? KVB_OK : status, "what is republished");
        bench_must(
            kvb_clock_monotonic_ns() - began_ns < snapshot_ms * KVB_NS_PER_MS ? KVB_OK : KVB_AGAIN,
            "all blocks");
    }
    printf("%.17g", bench_seconds_since(began_ns));
}

/* close GROUP */
static void close_group(char *const words[])
{
    struct group *group = group_at(words[0]);

    for (size_t i = 0; i < group->engine_count; i++) {
        engine_close(&group->engines[i]);
    }
    free(group->engines);
    republished_close(&group->republished);
    *group = (struct group){ .engine_count = 0 };
    printf("true");
}

/* clang-format off */
static const struct bench_command commands[] = {
    { "script",      4, make_script },
    { "open",        4, open_group },
    { "subscribed",  2, wait_for_subscriptions },
    { "republished", 2, open_republished },
    { "warm",        2, warm_up },
    { "run",         6, run },
    { "rest",        3, rest },
    { "snapshot",    3, take_snapshot },
    { "close",       1, close_group },
};
/* clang-format on */

int main(int argc, char **argv)
{
    zmq_context = zmq_ctx_new();
    if (argc != 2 || !zmq_context || zmq_ctx_set(zmq_context, ZMQ_MAX_SOCKETS, max_sockets) != 0) {
        (void)fprintf(stderr, "usage: %s NATS_PORT\n", argv[0]);
        return EXIT_FAILURE;
    }
    nats_port = (uint16_t)bench_number(argv[1]);
    bench_obey(commands, KVB_COUNT_OF(commands));
    return EXIT_SUCCESS;
}
