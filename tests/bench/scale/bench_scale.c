#include "core/clock.h"
#include "core/own.h"
#include "intake/asker.h"
#include "scale/bridges.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* An aggregator that follows 10,000 streams of some 4,096 blocks each: a real nats-server, a real
 * kvaggregator, and bridges.h in the place of a hundred bridges. */

enum {
    streams = 10000,
    unshared_streams = 2500,
    events_a_second = 20000,
    questions_a_second = 100,
    held_prompts = 72, /* of 48 + 8 blocks, behind four prefixes of 16: 4,096 */
    shared_pool = 16384,
    unshared_pool = 1 << 30, /* nobody draws a prompt that another one has */
    exact_within_ms = 120000
};

/* ---- What the aggregator's process uses ---- */

static uint64_t cpu_ns(const struct scene *scene)
{
    struct timespec used = { .tv_sec = 0 };
    clockid_t clock = 0;

    INTAKE_MUST(
        clock_getcpuclockid(scene->aggregator, &clock) == 0 && clock_gettime(clock, &used) == 0
            ? KVB_OK
            : KVB_IO);
    return (uint64_t)used.tv_sec * KVB_NS_PER_S + (uint64_t)used.tv_nsec;
}

/* Of one core, in the next `seconds`. */
static double cpu_percent(const struct scene *scene, double seconds)
{
    const uint64_t begin_ns = kvb_clock_monotonic_ns();
    const uint64_t used_ns = cpu_ns(scene);

    bench_measure(scene->aggregator);
    wait_until_ns(begin_ns + (uint64_t)(seconds * (double)KVB_NS_PER_S));
    return 100 * (double)(cpu_ns(scene) - used_ns) / (double)(kvb_clock_monotonic_ns() - begin_ns);
}

static double resident_bytes(const struct scene *scene)
{
    return scene_metric(scene, "process_resident_memory_bytes");
}

/* ---- EXACT ---- */

struct waiting {
    const struct scene *scene;
    uint32_t wanted;
};

static uint32_t count_exact(const struct scene *scene)
{
    return (uint32_t)scene_metric(scene, "kvb_streams{state=\"exact\"}");
}

static bool are_all_exact(void *context)
{
    const struct waiting *waiting = context;
    const uint32_t exact = count_exact(waiting->scene);

    bench_progress_now_and_then("%u of %u streams are EXACT", exact, waiting->wanted);
    return exact == waiting->wanted;
}

static void wait_exact(const struct scene *scene, uint32_t wanted)
{
    struct waiting waiting = { .scene = scene, .wanted = wanted };

    INTAKE_MUST(wait_until(are_all_exact, &waiting, exact_within_ms) ? KVB_OK : KVB_AGAIN);
}

/* ---- A fleet that publishes, and its reader ---- */

struct play {
    const struct intake *intake;
    struct scene scene;
    struct fleet fleet;
    struct bridges bridges;
};

static void
play_begin(const struct intake *intake, uint32_t workers, uint32_t pool, struct play *out_play)
{
    const struct fleet_options options = { .workers = workers,
                                           .held = held_prompts,
                                           .pool = pool,
                                           .groups = 4,
                                           .decoded = 16,
                                           .message_events = 1 };

    out_play->intake = intake;
    INTAKE_MUST(fleet_init(&out_play->fleet, &options));
    scene_begin(&out_play->scene, intake);
    bridges_begin(&out_play->scene, &out_play->fleet, &out_play->bridges);
    bridges_fill(&out_play->bridges);
    wait_exact(&out_play->scene, workers);
}

static void play_end(struct play *play)
{
    bridges_end(&play->bridges);
    scene_end(&play->scene);
    fleet_done(&play->fleet);
}

static void say_memory(struct play *play, const char *name)
{
    const double copies = (double)bridges_copies(&play->bridges);
    const double bytes = resident_bytes(&play->scene);
    char figure[64];

    bench_progress(
        "%s: %.1f million copies of %.1f million blocks, %.0f MB", name, copies / 1e6,
        scene_metric(&play->scene, "kvb_index_nodes") / 1e6, bytes / 1e6);
    (void)snprintf(figure, sizeof figure, "%s.bytes_per_copy", name);
    bench_figure(figure, bytes / copies, "bytes");
}

static uint64_t event_rate(const struct play *play)
{
    return bench_size(&play->intake->bench, events_a_second);
}

/* Load figures of each worker once a second, beside the heartbeats. */
static void say_load(struct play *play)
{
    bridges_set_load_rate(&play->bridges, play->fleet.options.workers);
    bench_figure(
        "scale.streams.load", cpu_percent(&play->scene, play->intake->bench.seconds / 2),
        "% of a core");
    bridges_set_load_rate(&play->bridges, 0);
}

/* The rate is what arrived: on a machine that cannot publish so much it is lower. */
static void say_intake(struct play *play)
{
    const double seconds = play->intake->bench.seconds;
    struct bridges *bridges = &play->bridges;

    bench_figure("scale.streams.idle", cpu_percent(&play->scene, seconds / 2), "% of a core");
    say_load(play);
    bridges_set_rate(bridges, event_rate(play));
    const uint64_t begin_ns = kvb_clock_monotonic_ns();
    const double applied = scene_metric(&play->scene, "kvb_events_applied_total");
    const uint64_t event_bytes = atomic_load(&bridges->event_bytes);
    const uint64_t heartbeat_bytes = atomic_load(&bridges->heartbeat_bytes);
    double percent = 0;
    /* a short run on a busy machine may end before the first event */
    do {
        percent = cpu_percent(&play->scene, seconds);
    } while (scene_metric(&play->scene, "kvb_events_applied_total") <= applied &&
             bench_seconds_since(begin_ns) < 60);
    const double took_s = bench_seconds_since(begin_ns);
    const double event_mb = (double)(atomic_load(&bridges->event_bytes) - event_bytes) / 1e6;
    const double heartbeat_mb =
        (double)(atomic_load(&bridges->heartbeat_bytes) - heartbeat_bytes) / 1e6;
    const double events =
        (scene_metric(&play->scene, "kvb_events_applied_total") - applied) / took_s;
    bench_progress(
        "scale.streams: %.0f events/s applied; on NATS %.2f MB/s of them, %.2f of heartbeats",
        events, event_mb / took_s, heartbeat_mb / took_s);
    INTAKE_MUST(events > 0 ? KVB_OK : KVB_IO);
    bench_figure("scale.streams.intake", percent, "% of a core");
}

/* clang-format off */
static const struct {
    const char *name;
    const char *subject; /* NULL: POST /query */
} trials[] = {
    { "scale.streams.query.http", NULL },
    { "scale.streams.route.nats", "namespace.dynamo.component.Router.kv_route" },
};
/* clang-format on */

static void say_questions(struct play *play)
{
    static struct questions questions;

    (void)pthread_mutex_lock(&play->bridges.lock);
    questions_make(&questions, &play->fleet);
    (void)pthread_mutex_unlock(&play->bridges.lock);
    for (size_t i = 0; i < KVB_COUNT_OF(trials); i++) {
        const struct asking asking = { .scene = &play->scene,
                                       .questions = &questions,
                                       .way = trials[i].subject ? ASK_NATS : ASK_HTTP,
                                       .subject = trials[i].subject,
                                       .questions_a_second = questions_a_second,
                                       .seconds = play->intake->bench.seconds };
        struct asked asked;
        bench_measure(play->scene.aggregator);
        ask(&asking, &asked);
        asked_say(&asked, trials[i].name);
        asked_done(&asked);
    }
    questions_drop(&questions);
}

/* After all requests: no stream may have left EXACT, or its figures would be of another work. */
static void check_exact(const struct play *play)
{
    const double lost = scene_metric(&play->scene, "kvb_streams_differ_total");

    if (lost > 0 || count_exact(&play->scene) != play->fleet.options.workers) {
        bench_fail("scale.streams: not every stream stayed EXACT");
    }
}

/* A new aggregator, while events continue: it gets each stream by kv_sync. */
static void say_cold_start(struct play *play)
{
    bench_progress("a new aggregator");
    scene_restart(&play->scene, play->intake);
    wait_exact(&play->scene, play->fleet.options.workers);
    bench_measured(bench_usage_of(play->scene.aggregator)); /* since exec */
    bench_figure("scale.streams.exact", bench_seconds_since(play->scene.exec_ns), "s");
    bench_progress("%llu lists were sent", (unsigned long long)atomic_load(&play->bridges.lists));
}

static void run_streams(const struct intake *intake)
{
    static struct play play;

    play_begin(intake, (uint32_t)bench_size(&intake->bench, streams), shared_pool, &play);
    say_memory(&play, "scale.streams");
    say_intake(&play);
    say_questions(&play);
    check_exact(&play);
    say_cold_start(&play);
    play_end(&play);
}

static void run_unshared(const struct intake *intake)
{
    static struct play play;

    play_begin(
        intake, (uint32_t)bench_size(&intake->bench, unshared_streams), unshared_pool, &play);
    say_memory(&play, "scale.unshared");
    play_end(&play);
}

/* ---- The program ---- */

static const struct intake_row rows[] = {
    { "scale.streams", run_streams },
    { "scale.unshared", run_unshared },
};

int main(int argc, char **argv)
{
    return intake_main(
        argc, argv, "What an aggregator of 10,000 streams needs.", rows, KVB_COUNT_OF(rows));
}
