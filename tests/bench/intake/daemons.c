#include "core/clock.h"
#include "core/own.h"
#include "intake/asker.h"
#include "intake/intake.h"
#include "intake/rate.h"
#include "intake/scene.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

/* A real nats-server and a real kvaggregator share the machine's cores with the bench. */

enum {
    questions_a_second = 2000,
    blocks_a_second = 100000,
    blocks_at_once = 100,
    request_timeout_ms = 5000
};

/* ---- start.ready ---- */

void intake_ready(const struct intake *intake)
{
    enum { starts = 7 };
    double ready_ms[starts];
    const size_t count = intake->bench.is_small ? 2 : starts;

    for (size_t i = 0; i < count; i++) {
        struct scene scene;
        scene_begin(&scene, intake);
        ready_ms[i] = (double)(scene.ready_ns - scene.exec_ns) / 1e6;
        scene_end(&scene);
    }
    bench_figure_rounds("start.ready", ready_ms, count, "ms");
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

/* The state of a run of bench_intake while it sends requests. */
struct play {
    const struct intake *intake;
    struct scene scene;
    struct fleet fleet;
    struct questions questions;
    struct echoes echoes;
};

/* Events arrive meanwhile, whoever answers. */
static void ask_meanwhile(
    struct play *play, enum asking_way way, const char *subject, double seconds,
    struct asked *out_asked)
{
    struct talker talker = { .scene = &play->scene,
                             .fleet = &play->fleet,
                             .rate = blocks_a_second,
                             .burst = blocks_at_once,
                             .seconds = seconds + 0.5 };
    const struct asking asking = { .scene = &play->scene,
                                   .questions = &play->questions,
                                   .way = way,
                                   .subject = subject,
                                   .questions_a_second = questions_a_second,
                                   .seconds = seconds };

    talker_begin(&talker);
    ask(&asking, out_asked);
    talker_end(&talker);
}

static void run_alone(struct play *play, const char *row, enum asking_way way)
{
    struct asked asked;

    bench_measure(play->scene.aggregator);
    ask_meanwhile(play, way, NULL, play->intake->bench.seconds, &asked);
    asked_say(&asked, row);
    asked_done(&asked);
}

static void run_http(struct play *play)
{
    run_alone(play, "query.http", ASK_HTTP);
}

/* The last: from then on workers have addresses, which makes other answers longer. */
static void run_grpc(struct play *play)
{
    play->fleet.has_addresses = true;
    scene_send_heartbeats(&play->scene, &play->fleet);
    INTAKE_MUST(kvb_bus_flush(play->scene.bus, request_timeout_ms)); /* before the first */
    run_alone(play, "query.grpc", ASK_GRPC);
}

/* ---- Over NATS, against the echo ---- */

enum { side_ours, side_echo, sides, nats_rounds = 5 };
enum { number_p50, number_p99 };

static kvb_status take_side(void *context, size_t side, double out_numbers[bench_max_numbers])
{
    struct play *play = context;
    const char *subject = side == side_ours ? MATCH : ECHO;
    struct asked asked;

    ask_meanwhile(play, ASK_NATS, subject, play->intake->bench.seconds / nats_rounds, &asked);
    out_numbers[number_p50] = bench_percentile(asked.samples_ns, asked.count, 500) / 1e3;
    out_numbers[number_p99] = bench_percentile(asked.samples_ns, asked.count, 990) / 1e3;
    bench_progress(
        "query.nats, %s: p50 %.0f us, p99 %.0f us of %zu; an answer has %.0f bytes",
        side == side_ours ? "ours" : "echo", out_numbers[number_p50], out_numbers[number_p99],
        asked.count, asked.answer_bytes);
    asked_done(&asked);
    return KVB_OK;
}

static void run_nats(struct play *play)
{
    static struct bench_turns turns;
    struct bench_versus versus = {
        .ours = side_ours, .theirs = side_echo, .against = "echo", .is_less_better = true
    };

    turns = (struct bench_turns){
        .sides = sides, .rounds = nats_rounds, .take = take_side, .context = play
    };
    bench_measure(play->scene.aggregator);
    INTAKE_MUST(bench_take_turns(&turns));
    versus.number = number_p50;
    bench_figure_turns("query.nats.p50", &turns, &versus, "us");
    versus.number = number_p99;
    bench_figure_turns("query.nats.p99", &turns, &versus, "us");
}

/* ---- What an answer costs ---- */

/* No events arrive, only heartbeats. */
static void
run_rate(struct play *play, const char *row, enum asking_way way, const struct responder *theirs)
{
    const struct responder ours = { .pid = play->scene.aggregator,
                                    .port = play->scene.port,
                                    .subject = MATCH };
    const double seconds = play->intake->bench.seconds;
    struct talker talker = {
        .scene = &play->scene, .fleet = &play->fleet, .burst = 1, .seconds = seconds + 0.5
    };

    talker_begin(&talker);
    rate_measure(&play->scene, &play->questions, way, &ours, theirs, row, seconds);
    talker_end(&talker);
}

static void run_http_rate(struct play *play)
{
    run_rate(play, "query.http.rate.cpu", ASK_HTTP, &play->echoes.http);
}

static void run_nats_rate(struct play *play)
{
    run_rate(play, "query.nats.rate.cpu", ASK_NATS, &play->echoes.nats);
}

/* ---- All of them ---- */

/* clang-format off */
static const struct {
    const char *figures[2]; /* names */
    void (*run)(struct play *play);
} query_rows[] = {
    { { "query.http.rate.cpu", "query.http.rate.cpu" }, run_http_rate },
    { { "query.nats.rate.cpu", "query.nats.rate.cpu" }, run_nats_rate },
    { { "query.http.p50",      "query.http.p99" },      run_http },
    { { "query.nats.p50",      "query.nats.p99" },      run_nats },
    { { "query.grpc.p50",      "query.grpc.p99" },      run_grpc },
};
/* clang-format on */

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
    for (size_t i = 0; i < KVB_COUNT_OF(query_rows); i++) {
        if (bench_wants(&intake->bench, query_rows[i].figures[0]) ||
            bench_wants(&intake->bench, query_rows[i].figures[1])) {
            query_rows[i].run(&play);
        }
    }
    end_play(&play);
}
