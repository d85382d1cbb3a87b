#include "core/clock.h"
#include "core/own.h"
#include "intake/asker.h"
#include "intake/intake.h"
#include "intake/rate.h"
#include "intake/scene.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* A real nats-server and a real kvaggregator share the machine's cores with the bench. */

enum {
    questions_a_second = 2000,
    blocks_a_second = 100000,
    burst_blocks = 50000,
    long_prompts_a_second = 20,
    request_timeout_ms = 5000
};

/* ---- start.serving, start.ready ---- */

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return (double)(to_ns - from_ns) / 1e6;
}

void intake_serving(const struct intake *intake)
{
    enum { starts = 7 };
    double serving[starts];
    double ready[starts];
    const size_t count = intake->bench.is_small ? 2 : starts;

    for (size_t i = 0; i < count; i++) {
        struct scene scene;
        scene_begin(&scene, intake);
        serving[i] = ms_between(scene.exec_ns, scene.answering_ns);
        ready[i] = ms_between(scene.exec_ns, scene.ready_ns);
        scene_end(&scene);
    }
    bench_figure_rounds("start.serving", serving, count, "ms");
    bench_figure_rounds("start.ready", ready, count, "ms");
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

/* ==== query.* ==== */

/* ---- The baseline: answers of the same size from a program that does no work for them ---- */

#define ECHO "bench.echo"
#define MATCH "namespace.dynamo.component.Router.kv_match"

struct echoes {
    struct responder http;
    struct responder nats;
};

struct probe {
    const struct scene *scene;
    struct kvb_bus *bus;
    const struct questions *questions;
    const char *subject;
    uint64_t bytes; /* of the answers so far */
};

static void count_bytes(void *context, const struct kvb_bus_message *message)
{
    struct probe *probe = context;

    probe->bytes += message->payload.len;
}

static bool is_nats_answered(void *context)
{
    struct probe *probe = context;
    struct kvb_detail detail;

    return kvb_bus_request(
               probe->bus, probe->subject, kvb_buf_span(&probe->questions->bodies[0]),
               request_timeout_ms, count_bytes, probe, &detail) == KVB_OK;
}

static bool is_http_answered(void *context)
{
    const struct responder *responder = context;
    struct web web;
    const bool is_open = web_open(&web, responder->port);

    if (is_open) {
        web_close(&web);
    }
    return is_open;
}

/* The mean size of the aggregator's answers to all requests, in bytes. */
static uint64_t http_answer_bytes(const struct scene *scene, const struct questions *questions)
{
    struct web web;
    uint64_t bytes = 0;

    INTAKE_MUST(web_open(&web, scene->port) ? KVB_OK : KVB_IO);
    for (size_t i = 0; i < question_prompts; i++) {
        INTAKE_MUST(web_ask(&web, kvb_buf_span(&questions->posts[i])) == 200 ? KVB_OK : KVB_IO);
        bytes += web.text.len - web.body_at;
    }
    web_close(&web);
    return bytes / question_prompts;
}

static uint64_t nats_answer_bytes(struct probe *probe)
{
    struct kvb_detail detail;

    probe->subject = MATCH;
    probe->bytes = 0;
    for (size_t i = 0; i < question_prompts; i++) {
        INTAKE_MUST(kvb_bus_request(
            probe->bus, MATCH, kvb_buf_span(&probe->questions->bodies[i]), request_timeout_ms,
            count_bytes, probe, &detail));
    }
    return probe->bytes / question_prompts;
}

/* Starts a responder for each way.  Each answers with as many bytes as the aggregator. */
static void
begin_echoes(struct echoes *echoes, const struct scene *scene, const struct questions *questions)
{
    struct probe probe = { .scene = scene, .bus = scene->bus, .questions = questions };
    char bytes[2][24];
    char port[8];

    *echoes = (struct echoes){ .nats.subject = ECHO };
    INTAKE_MUST(free_port(&echoes->http.port));
    (void)snprintf(port, sizeof port, "%u", echoes->http.port);
    (void)snprintf(bytes[0], sizeof bytes[0], "%" PRIu64, http_answer_bytes(scene, questions));
    (void)snprintf(bytes[1], sizeof bytes[1], "%" PRIu64, nats_answer_bytes(&probe));
    const char *const http[] = { KVB_BENCH_ECHO, "http", port, bytes[0], NULL };
    const char *const nats[] = { KVB_BENCH_ECHO, "nats", scene->server.url, ECHO, bytes[1], NULL };
    INTAKE_MUST(process_start(http, NULL, &echoes->http.pid));
    INTAKE_MUST(process_start(nats, NULL, &echoes->nats.pid));
    probe.subject = ECHO;
    INTAKE_MUST(wait_until(is_nats_answered, &probe, request_timeout_ms) ? KVB_OK : KVB_IO);
    INTAKE_MUST(wait_until(is_http_answered, &echoes->http, request_timeout_ms) ? KVB_OK : KVB_IO);
}

static void end_echoes(struct echoes *echoes)
{
    (void)process_end(echoes->http.pid, SIGKILL, request_timeout_ms, NULL);
    (void)process_end(echoes->nats.pid, SIGKILL, request_timeout_ms, NULL);
}

/* ---- Latencies ---- */

/* What another client requests meanwhile. */
enum beside { NOTHING, DUMPS, LONG_PROMPTS };

/* What is requested, and what else happens meanwhile. */
struct situation {
    const char *name; /* of its figures; NULL: it has none */
    uint64_t burst;   /* block operations at once */
    enum asking_way way;
    bool is_echo; /* sent to bench_echo */
    enum beside beside;
};

/* What is measured, and against what, in turns. */
struct trial {
    struct situation ours;
    struct situation theirs;
    const char *against; /* NULL: there are no turns */
    bool
        has_rise; /* both also with bench_echo, because the rise of its latencies is the baseline */
};

/* clang-format off */
static const struct trial trials[] = {
    { { "query.http",       100,          ASK_HTTP, false, NOTHING }, { 0 }, NULL, false },
    { { "query.nats",       100,          ASK_NATS, false, NOTHING },
      { "query.echo",       100,          ASK_NATS, true,  NOTHING }, "echo", false },
    { { "query.http.burst", burst_blocks, ASK_HTTP, false, NOTHING }, { 0 }, NULL, false },
    { { "query.nats.burst", burst_blocks, ASK_NATS, false, NOTHING },
      { "query.echo.burst", burst_blocks, ASK_NATS, true,  NOTHING }, "echo", false },
    { { "query.http.dump",  100,          ASK_HTTP, false, DUMPS }, { 0 }, NULL, false },
    { { "query.http.long",  100,          ASK_HTTP, false, LONG_PROMPTS },
      { NULL,               100,          ASK_HTTP, false, NOTHING }, "without", true },
    { { "query.nats.long",  100,          ASK_NATS, false, LONG_PROMPTS },
      { NULL,               100,          ASK_NATS, false, NOTHING }, "without", true },
    /* The last: from then on workers have addresses, which makes other answers longer. */
    { { "query.grpc",       100,          ASK_GRPC, false, NOTHING }, { 0 }, NULL, false },
};
/* clang-format on */

enum { turns = 5, max_sides = 4, max_long_samples = 1 << 14 };

/* A client that requests dumps one after the other, or long prompts at a rate. */
struct bystander {
    struct scene *scene;
    const struct questions *questions;
    enum beside beside;
    enum asking_way way;
    const struct responder *responder;
    atomic_bool is_stopping;
    pthread_t thread;
    uint32_t samples_ns[max_long_samples]; /* of the long prompts */
    size_t count;
};

static void dump_all(struct bystander *bystander, struct web *web)
{
    static const char request[] = "GET /dump?format=rows HTTP/1.1\r\nHost: bench\r\n\r\n";

    while (!atomic_load(&bystander->is_stopping)) {
        /* 200, or 503 when it is larger than an answer may be: as much work */
        (void)web_ask(
            web, (kvb_span){ .data = (const uint8_t *)request, .len = sizeof request - 1 });
    }
}

static void ask_long(struct bystander *bystander, struct web *web)
{
    const uint64_t every_ns = KVB_NS_PER_S / long_prompts_a_second;
    uint64_t due_ns = kvb_clock_monotonic_ns();

    while (!atomic_load(&bystander->is_stopping) && bystander->count < max_long_samples) {
        const struct long_question *each =
            &bystander->questions->longs[bystander->count % long_prompts];
        struct probe probe = { 0 };
        struct kvb_detail detail;
        wait_until_ns(due_ns += every_ns);
        const uint64_t from_ns = kvb_clock_monotonic_ns();
        if (bystander->way == ASK_HTTP) {
            INTAKE_MUST(web_ask(web, kvb_buf_span(&each->post)) == 200 ? KVB_OK : KVB_IO);
        } else {
            INTAKE_MUST(kvb_bus_request(
                bystander->scene->bus, bystander->responder->subject, kvb_buf_span(&each->body),
                request_timeout_ms, count_bytes, &probe, &detail));
        }
        bystander->samples_ns[bystander->count++] = (uint32_t)(kvb_clock_monotonic_ns() - from_ns);
    }
}

static void *stand_by(void *context)
{
    struct bystander *bystander = context;
    struct web web = { .fd = -1 };

    INTAKE_MUST(web_open(&web, bystander->responder->port) ? KVB_OK : KVB_IO);
    if (bystander->beside == DUMPS) {
        dump_all(bystander, &web);
    } else {
        ask_long(bystander, &web);
    }
    web_close(&web);
    return NULL;
}

/* The state of a run of bench_intake while it sends requests. */
struct play {
    const struct intake *intake;
    struct scene scene;
    struct fleet fleet;
    struct questions questions;
    struct echoes echoes;
    struct bystander bystander;
};

static void run_situation(
    struct play *play, const struct situation *situation, double seconds, struct asked *out_asked)
{
    struct talker talker = { .scene = &play->scene,
                             .fleet = &play->fleet,
                             .rate = blocks_a_second,
                             .burst = situation->burst,
                             .seconds = seconds + 0.5 };
    const struct responder responder = { .port = situation->is_echo ? play->echoes.http.port
                                                                    : play->scene.port,
                                         .subject = situation->is_echo ? ECHO : MATCH };
    const struct asking asking = { .scene = &play->scene,
                                   .questions = &play->questions,
                                   .way = situation->way,
                                   .port = responder.port,
                                   .subject = responder.subject,
                                   .questions_a_second = questions_a_second,
                                   .seconds = seconds };
    struct bystander *bystander = &play->bystander;

    if (situation->way == ASK_GRPC) {
        play->fleet.has_addresses = true;
        scene_send_heartbeats(&play->scene, &play->fleet);
        INTAKE_MUST(kvb_bus_flush(play->scene.bus, request_timeout_ms)); /* before the first */
    }
    talker_begin(&talker);
    if (situation->beside != NOTHING) {
        *bystander = (struct bystander){ .scene = &play->scene,
                                         .questions = &play->questions,
                                         .beside = situation->beside,
                                         .way = situation->way,
                                         .responder = &responder };
        INTAKE_MUST(
            pthread_create(&bystander->thread, NULL, stand_by, bystander) == 0 ? KVB_OK : KVB_IO);
    }
    ask(&asking, out_asked);
    talker_end(&talker);
    if (situation->beside != NOTHING) {
        atomic_store(&bystander->is_stopping, true);
        (void)pthread_join(bystander->thread, NULL);
    }
    if (situation->beside == LONG_PROMPTS) {
        bench_progress(
            "long prompts: p50 %.0f us, p99 %.0f us of %zu",
            bench_percentile(bystander->samples_ns, bystander->count, 500) / 1e3,
            bench_percentile(bystander->samples_ns, bystander->count, 990) / 1e3, bystander->count);
    }
}

static void run_alone(struct play *play, const struct trial *trial)
{
    struct asked asked;

    bench_measure(play->scene.aggregator);
    run_situation(play, &trial->ours, play->intake->bench.seconds, &asked);
    asked_say(&asked, trial->ours.name);
    asked_done(&asked);
}

static void say_turns(
    const struct trial *trial, const char *percentile, const double ours_us[turns],
    const double theirs_us[turns])
{
    char name[64];

    (void)snprintf(name, sizeof name, "%s.%s", trial->ours.name, percentile);
    bench_figure_turns(
        name,
        &(struct bench_turns){ .against = trial->against,
                               .ours = ours_us,
                               .theirs = theirs_us,
                               .count = turns,
                               .is_less_better = true },
        "us");
}

static void
say_theirs(const struct trial *trial, const char *percentile, const double theirs_us[turns])
{
    char name[64];

    (void)snprintf(name, sizeof name, "%s.%s", trial->theirs.name, percentile);
    bench_figure_rounds(name, theirs_us, turns, "us");
}

/* How many times as long the small ones take, against the same of the echo. */
static void say_rise(const struct trial *trial, double p99_us[max_sides][turns])
{
    double ours[turns];
    double echo[turns];
    char name[64];

    for (size_t i = 0; i < turns; i++) {
        ours[i] = p99_us[0][i] / p99_us[1][i];
        echo[i] = p99_us[2][i] / p99_us[3][i];
    }
    (void)snprintf(name, sizeof name, "%s.rise", trial->ours.name);
    bench_figure_turns(
        name,
        &(struct bench_turns){ .against = "echo",
                               .ours = ours,
                               .theirs = echo,
                               .count = turns,
                               .is_less_better = true },
        "times");
}

static void run_in_turns(struct play *play, const struct trial *trial)
{
    struct situation sides[max_sides] = { trial->ours, trial->theirs, trial->ours, trial->theirs };
    const size_t count = trial->has_rise ? max_sides : max_sides / 2;
    double p50_us[max_sides][turns];
    double p99_us[max_sides][turns];

    sides[2].is_echo = sides[3].is_echo = true;
    bench_measure(play->scene.aggregator);
    for (size_t i = 0; i < count * turns; i++) {
        const size_t side = i % count;
        struct asked asked;
        run_situation(play, &sides[side], play->intake->bench.seconds / turns, &asked);
        p50_us[side][i / count] = bench_percentile(asked.samples_ns, asked.count, 500) / 1e3;
        p99_us[side][i / count] = bench_percentile(asked.samples_ns, asked.count, 990) / 1e3;
        bench_progress(
            "%s, %s%s: p50 %.0f us, p99 %.0f us of %zu; an answer has %.0f bytes", trial->ours.name,
            side < 2 ? "" : "of the echo, ", side % 2 == 0 ? "ours" : trial->against,
            p50_us[side][i / count], p99_us[side][i / count], asked.count, asked.answer_bytes);
        asked_done(&asked);
    }
    say_turns(trial, "p50", p50_us[0], p50_us[1]);
    say_turns(trial, "p99", p99_us[0], p99_us[1]);
    if (trial->has_rise) {
        say_rise(trial, p99_us);
    }
    if (trial->theirs.name) {
        bench_measured((struct bench_usage){ 0 }); /* not of the aggregator */
        say_theirs(trial, "p50", p50_us[1]);
        say_theirs(trial, "p99", p99_us[1]);
    }
}

/* ---- Rates ---- */

/* clang-format off */
static const struct {
    const char *name;
    enum asking_way way;
} rate_rows[] = {
    { "query.http.rate", ASK_HTTP },
    { "query.nats.rate", ASK_NATS },
};
/* clang-format on */

/* No events arrive, only heartbeats. */
static void run_rate(struct play *play, const char *name, enum asking_way way)
{
    const struct responder ours = { .pid = play->scene.aggregator,
                                    .port = play->scene.port,
                                    .subject = MATCH };
    const struct responder *theirs = way == ASK_HTTP ? &play->echoes.http : &play->echoes.nats;
    const double seconds = play->intake->bench.seconds;
    struct talker talker = {
        .scene = &play->scene, .fleet = &play->fleet, .burst = 1, .seconds = seconds + 0.5
    };

    talker_begin(&talker);
    rate_measure(&play->scene, &play->questions, way, &ours, theirs, name, seconds);
    talker_end(&talker);
}

/* ---- All of them ---- */

/* By the names of its figures: that of a trial begins others, too. */
static bool is_situation_wanted(const struct intake *intake, const struct situation *situation)
{
    static const char *const ends[] = { "p50", "p99", "rise" };
    char figure[64];
    bool is_any = false;

    for (size_t i = 0; situation->name && i < KVB_COUNT_OF(ends); i++) {
        (void)snprintf(figure, sizeof figure, "%s.%s", situation->name, ends[i]);
        is_any |= bench_wants(&intake->bench, figure);
    }
    return is_any;
}

static bool is_wanted(const struct intake *intake, const struct trial *trial)
{
    return is_situation_wanted(intake, &trial->ours) || is_situation_wanted(intake, &trial->theirs);
}

static void begin_play(struct play *play, const struct intake *intake)
{
    const struct fleet_options options = { .workers = intake->bench.is_small ? 20 : 1000,
                                           .held = 64,
                                           .pool = 16384,
                                           .groups = 4,
                                           .decoded = 16 };
    struct fleet_round round;

    play->intake = intake;
    INTAKE_MUST(fleet_init(&play->fleet, &options));
    fleet_round_init(&round);
    scene_begin(&play->scene, intake);
    scene_send_heartbeats(&play->scene, &play->fleet);
    INTAKE_MUST(fleet_make(&play->fleet, (uint64_t)options.workers * 64 * 56, &round));
    scene_send_round(&play->scene, &round);
    scene_wait_applied(&play->scene, round.events);
    fleet_round_done(&round);
    questions_make(&play->questions, &play->fleet);
    questions_make_long(&play->questions, &play->fleet);
    begin_echoes(&play->echoes, &play->scene, &play->questions);
}

static void end_play(struct play *play)
{
    end_echoes(&play->echoes);
    questions_drop(&play->questions);
    scene_end(&play->scene);
    fleet_done(&play->fleet);
}

void intake_queries(const struct intake *intake)
{
    static struct play play;

    begin_play(&play, intake);
    for (size_t i = 0; i < KVB_COUNT_OF(rate_rows); i++) {
        if (bench_wants(&intake->bench, rate_rows[i].name)) {
            run_rate(&play, rate_rows[i].name, rate_rows[i].way);
        }
    }
    for (size_t i = 0; i < KVB_COUNT_OF(trials); i++) {
        if (!is_wanted(intake, &trials[i])) {
            continue;
        }
        if (trials[i].against) {
            run_in_turns(&play, &trials[i]);
        } else {
            run_alone(&play, &trials[i]);
        }
    }
    end_play(&play);
}
