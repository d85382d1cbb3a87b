#include "core/clock.h"
#include "core/own.h"
#include "intake/asker.h"
#include "intake/intake.h"
#include "intake/scene.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* A real nats-server and a real kvaggregator, everything on this machine's cores. */

enum {
    questions_a_second = 2000,
    blocks_a_second = 100000,
    burst_blocks = 50000,
    request_timeout_ms = 5000
};

/* ---- start.serving ---- */

void intake_serving(const struct intake *intake)
{
    enum { starts = 7 };
    double samples[starts];
    const size_t count = intake->bench.is_small ? 2 : starts;

    for (size_t i = 0; i < count; i++) {
        struct scene scene;
        scene_begin(&scene, intake);
        samples[i] = (double)(scene.serving_ns - scene.exec_ns) / 1e6;
        scene_end(&scene);
    }
    bench_figure_rounds("start.serving", samples, count, "ms");
}

/* ---- intake.nats ---- */

void intake_nats(const struct intake *intake)
{
    const struct fleet_options options = {
        .workers = 128, .held = 300, .pool = 8192, .groups = 64, .decoded = 16
    };
    const uint64_t blocks = intake->bench.is_small ? 100000 : 8000000;
    struct scene scene;
    struct fleet fleet;
    struct fleet_round round;

    INTAKE_MUST(fleet_init(&fleet, &options));
    fleet_round_init(&round);
    scene_begin(&scene, intake);
    scene_send_heartbeats(&scene, &fleet);
    INTAKE_MUST(fleet_make(&fleet, blocks, &round));
    bench_measure(scene.aggregator);
    const uint64_t begin_ns = kvb_clock_monotonic_ns();
    scene_send_round(&scene, &round);
    INTAKE_MUST(kvb_bus_flush(scene.bus, request_timeout_ms));
    const uint64_t sent_ns = kvb_clock_monotonic_ns();
    scene_wait_applied(&scene, round.events);
    const uint64_t end_ns = kvb_clock_monotonic_ns();
    bench_progress(
        "sent after %.2f s, applied after %.2f s", (double)(sent_ns - begin_ns) / 1e9,
        (double)(end_ns - begin_ns) / 1e9);
    bench_figure(
        "intake.nats", (double)round.blocks * 1e3 / (double)(end_ns - begin_ns),
        "M block operations/s");
    scene_end(&scene);
    fleet_round_done(&round);
    fleet_done(&fleet);
}

/* ---- query.* ---- */

static bool is_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

/* ---- The floor: an answer of the same size from somebody who does nothing for it ---- */

#define ECHO "bench.echo"
#define MATCH "namespace.dynamo.component.Router.kv_match"

struct echo {
    struct kvb_bus *bus;
    struct kvb_bus_subscription *received;
};

static void answer_echo(void *context, const struct kvb_bus_message *message)
{
    static const uint8_t answer[11240];
    const struct echo *echo = context;

    INTAKE_MUST(kvb_bus_publish(
        echo->bus, message->reply, (kvb_span){ .data = answer, .len = sizeof answer }));
}

static void begin_echo(struct echo *echo, const struct scene *scene)
{
    const struct kvb_bus_options options = { .url = scene->server.url,
                                             .name = "echo",
                                             .sends_at_once = true };
    struct kvb_detail detail = { { 0 } };

    INTAKE_MUST(kvb_bus_open(&options, &echo->bus, &detail));
    INTAKE_MUST(kvb_bus_subscribe(echo->bus, ECHO, answer_echo, echo, &echo->received));
    INTAKE_MUST(wait_until(is_connected, echo->bus, request_timeout_ms) ? KVB_OK : KVB_IO);
    INTAKE_MUST(kvb_bus_flush(echo->bus, request_timeout_ms)); /* now it is subscribed */
}

static void end_echo(struct echo *echo)
{
    kvb_bus_unsubscribe(echo->received);
    kvb_bus_close(echo->bus);
}

struct trial {
    const char *name; /* of the figure */
    uint64_t burst;   /* block operations at once */
    enum asking_way way;
    const char *subject; /* that is asked over NATS */
    bool has_dump;       /* somebody asks for all there is, again and again */
    bool is_echo;        /* answered by this process */
};

struct dumper {
    struct scene *scene;
    atomic_bool is_stopping;
    pthread_t thread;
};

static void *dump_all(void *context)
{
    static const char request[] = "GET /dump?format=rows HTTP/1.1\r\nHost: bench\r\n\r\n";
    struct dumper *dumper = context;
    struct web web = { .fd = -1 };

    INTAKE_MUST(web_open(&web, dumper->scene->port) ? KVB_OK : KVB_IO);
    while (!atomic_load(&dumper->is_stopping)) {
        /* 200, or 503 when it is larger than an answer may be: as much work */
        (void)web_ask(
            &web, (kvb_span){ .data = (const uint8_t *)request, .len = sizeof request - 1 });
    }
    web_close(&web);
    return NULL;
}

static void run_trial(
    const struct intake *intake, struct scene *scene, struct fleet *fleet,
    const struct questions *questions, const struct trial *trial)
{
    struct talker talker = { .scene = scene,
                             .fleet = fleet,
                             .rate = blocks_a_second,
                             .burst = trial->burst,
                             .seconds = intake->bench.seconds + 0.5 };
    const struct asking asking = { .scene = scene,
                                   .questions = questions,
                                   .way = trial->way,
                                   .subject = trial->subject,
                                   .questions_a_second = questions_a_second,
                                   .seconds = intake->bench.seconds };
    struct asked asked;
    struct dumper dumper = { .scene = scene };

    if (trial->way == ASK_GRPC) {
        fleet->has_addresses = true;
        scene_send_heartbeats(scene, fleet);
        INTAKE_MUST(kvb_bus_flush(scene->bus, request_timeout_ms)); /* long before the first */
    }
    talker_begin(&talker);
    if (trial->has_dump) {
        INTAKE_MUST(pthread_create(&dumper.thread, NULL, dump_all, &dumper) == 0 ? KVB_OK : KVB_IO);
    }
    bench_measure(trial->is_echo ? 0 : scene->aggregator);
    ask(&asking, &asked);
    talker_end(&talker);
    if (trial->has_dump) {
        atomic_store(&dumper.is_stopping, true);
        (void)pthread_join(dumper.thread, NULL);
    }
    asked_say(&asked, trial->name);
    asked_done(&asked);
}

/* clang-format off */
static const struct trial trials[] = {
    { "query.http",       100,          ASK_HTTP, NULL, false, false },
    { "query.nats",       100,          ASK_NATS, MATCH, false, false },
    { "query.echo",       100,          ASK_NATS, ECHO, false, true },
    { "query.http.burst", burst_blocks, ASK_HTTP, NULL, false, false },
    { "query.nats.burst", burst_blocks, ASK_NATS, MATCH, false, false },
    { "query.http.dump",  100,          ASK_HTTP, NULL, true, false },
    /* The last: from then on workers have addresses, which makes other answers longer. */
    { "query.grpc",       100,          ASK_GRPC, NULL, false, false },
};
/* clang-format on */

/* By the names of its figures: that of a trial begins others, too. */
static bool is_wanted(const struct intake *intake, const struct trial *trial)
{
    char p50[64];
    char p99[64];

    (void)snprintf(p50, sizeof p50, "%s.p50", trial->name);
    (void)snprintf(p99, sizeof p99, "%s.p99", trial->name);
    return bench_wants(&intake->bench, p50) || bench_wants(&intake->bench, p99);
}

void intake_queries(const struct intake *intake)
{
    const struct fleet_options options = { .workers = intake->bench.is_small ? 20 : 1000,
                                           .held = 64,
                                           .pool = 16384,
                                           .groups = 4,
                                           .decoded = 16 };
    struct scene scene;
    struct fleet fleet;
    struct fleet_round round;
    struct echo echo;
    static struct questions questions;

    INTAKE_MUST(fleet_init(&fleet, &options));
    fleet_round_init(&round);
    scene_begin(&scene, intake);
    scene_send_heartbeats(&scene, &fleet);
    INTAKE_MUST(fleet_make(&fleet, (uint64_t)options.workers * 64 * 56, &round));
    scene_send_round(&scene, &round);
    scene_wait_applied(&scene, round.events);
    questions_make(&questions, &fleet);
    begin_echo(&echo, &scene);
    for (size_t i = 0; i < KVB_COUNT_OF(trials); i++) {
        if (is_wanted(intake, &trials[i])) {
            run_trial(intake, &scene, &fleet, &questions, &trials[i]);
        }
    }
    end_echo(&echo);
    questions_drop(&questions);
    scene_end(&scene);
    fleet_round_done(&round);
    fleet_done(&fleet);
}
