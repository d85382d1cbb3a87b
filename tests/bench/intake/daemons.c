#include "core/clock.h"
#include "core/own.h"
#include "intake/intake.h"
#include "intake/scene.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* A real nats-server and a real kvaggregator, everything on this machine's cores. */

enum {
    askers = 4,
    questions_a_second = 2000,
    blocks_a_second = 100000,
    burst_blocks = 50000,
    prompts = 256,
    max_samples = 1 << 20,
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
    bench_figure("start.serving", bench_median(samples, count), "ms");
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

/* Questions that are asked again and again, made before the clock runs. */
struct questions {
    struct kvb_buf bodies[prompts];
    struct kvb_buf posts[prompts];
};

static void make_questions(struct questions *questions, struct fleet *fleet)
{
    static uint32_t tokens[fleet_query_tokens];

    for (size_t i = 0; i < prompts; i++) {
        struct kvb_buf *body = &questions->bodies[i];
        kvb_buf_init(body, 1U << 20U);
        kvb_buf_init(&questions->posts[i], 1U << 20U);
        fleet_query(fleet, tokens);
        INTAKE_MUST(
            kvb_buf_append_text(body, "{\"model_name\":\"" FLEET_MODEL "\",\"token_ids\":["));
        for (size_t n = 0; n < fleet_query_tokens; n++) {
            INTAKE_MUST(kvb_buf_append_format(body, "%s%u", n > 0 ? "," : "", tokens[n]));
        }
        INTAKE_MUST(kvb_buf_append_text(body, "]}"));
        web_make_post(&questions->posts[i], "/query", kvb_buf_span(body));
    }
}

static void drop_questions(struct questions *questions)
{
    for (size_t i = 0; i < prompts; i++) {
        kvb_buf_done(&questions->bodies[i]);
        kvb_buf_done(&questions->posts[i]);
    }
}

static bool is_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

/* ---- The floor: an answer of the same size from somebody who does nothing for it ---- */

#define ECHO "bench.echo"

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

/* ---- Asking ---- */

enum way { by_http, by_nats, by_echo };

/* One of several that ask, each at its part of the rate. */
struct asker {
    struct scene *scene;
    const struct questions *questions;
    enum way way;
    uint32_t number;
    uint64_t begin_ns;
    uint64_t end_ns;
    uint32_t *samples_ns; /* owned */
    size_t count;
    uint64_t answer_bytes;
    pthread_t thread;
};

static void ask_http(struct asker *asker, struct web *web, size_t i)
{
    const unsigned status = web_ask(web, kvb_buf_span(&asker->questions->posts[i]));

    INTAKE_MUST(status == 200 ? KVB_OK : KVB_IO);
    asker->answer_bytes += web->text.len - web->body_at;
}

static void take_answer(void *context, const struct kvb_bus_message *message)
{
    struct asker *asker = context;

    asker->answer_bytes += message->payload.len;
}

static void ask_nats(struct asker *asker, struct kvb_bus *bus, size_t i)
{
    struct kvb_detail detail = { { 0 } };

    INTAKE_MUST(kvb_bus_request(
        bus, asker->way == by_echo ? ECHO : "namespace.dynamo.component.Router.kv_match",
        kvb_buf_span(&asker->questions->bodies[i]), request_timeout_ms, take_answer, asker,
        &detail));
}

/* A question that had to wait for the answer before it waited since its own time. */
static void ask_at_rate(struct asker *asker, struct web *web, struct kvb_bus *bus)
{
    const uint64_t every_ns = KVB_NS_PER_S * askers / questions_a_second;
    uint64_t due_ns = asker->begin_ns + (asker->number * every_ns / askers);
    uint64_t free_ns = 0; /* since when */

    for (; due_ns < asker->end_ns && asker->count < max_samples; due_ns += every_ns) {
        const size_t i = ((asker->count * askers) + asker->number) % prompts;
        wait_until_ns(due_ns);
        const uint64_t from_ns = free_ns > due_ns ? due_ns : kvb_clock_monotonic_ns();
        if (asker->way == by_http) {
            ask_http(asker, web, i);
        } else {
            ask_nats(asker, bus, i);
        }
        free_ns = kvb_clock_monotonic_ns();
        asker->samples_ns[asker->count++] = (uint32_t)(free_ns - from_ns);
    }
}

static void *ask_all(void *context)
{
    struct asker *asker = context;
    const struct kvb_bus_options options = { .url = asker->scene->server.url, .name = "router" };
    struct kvb_detail detail = { { 0 } };
    struct kvb_bus *bus = NULL;
    struct web web = { .fd = -1 };

    (void)prctl(PR_SET_TIMERSLACK, 1); /* else 50 us late */
    if (asker->way == by_http) {
        INTAKE_MUST(web_open(&web, asker->scene->port) ? KVB_OK : KVB_IO);
    } else {
        INTAKE_MUST(kvb_bus_open(&options, &bus, &detail));
        INTAKE_MUST(wait_until(is_connected, bus, request_timeout_ms) ? KVB_OK : KVB_IO);
    }
    ask_at_rate(asker, &web, bus);
    web_close(&web);
    kvb_bus_close(bus);
    return NULL;
}

/* All samples of all askers, in one array that the caller frees. */
static uint32_t *gather(struct asker group[askers], size_t *out_count)
{
    uint32_t *all = NULL;
    size_t count = 0;

    for (size_t i = 0; i < askers; i++) {
        count += group[i].count;
    }
    all = calloc(count + 1, sizeof *all);
    INTAKE_MUST(all ? KVB_OK : KVB_NO_MEMORY);
    *out_count = 0;
    for (size_t i = 0; i < askers; i++) {
        memcpy(all + *out_count, group[i].samples_ns, group[i].count * sizeof *all);
        *out_count += group[i].count;
        free(group[i].samples_ns);
    }
    return all;
}

struct trial {
    const char *name; /* of the figure */
    uint64_t burst;   /* block operations at once */
    enum way way;
    bool has_dump; /* somebody asks for all there is, again and again */
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

static void say_quantiles(const struct trial *trial, uint32_t *samples_ns, size_t count)
{
    const double p50 = bench_percentile(samples_ns, count, 500) / 1e3;
    const double p99 = bench_percentile(samples_ns, count, 990) / 1e3;
    char name[64];

    bench_progress(
        "%s: p50 %.0f us, p99 %.0f us, p99.9 %.0f us, most %.0f us of %zu", trial->name, p50, p99,
        bench_percentile(samples_ns, count, 999) / 1e3,
        bench_percentile(samples_ns, count, 1000) / 1e3, count);
    (void)snprintf(name, sizeof name, "%s.p50", trial->name);
    bench_figure(name, p50, "us");
    (void)snprintf(name, sizeof name, "%s.p99", trial->name);
    bench_figure(name, p99, "us");
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
    struct asker group[askers] = { 0 };
    struct dumper dumper = { .scene = scene };
    size_t count = 0;

    talker_begin(&talker);
    if (trial->has_dump) {
        INTAKE_MUST(pthread_create(&dumper.thread, NULL, dump_all, &dumper) == 0 ? KVB_OK : KVB_IO);
    }
    const uint64_t begin_ns = kvb_clock_monotonic_ns() + KVB_NS_PER_S / 4;
    for (uint32_t i = 0; i < askers; i++) {
        group[i] = (struct asker){
            .scene = scene,
            .questions = questions,
            .way = trial->way,
            .number = i,
            .begin_ns = begin_ns,
            .end_ns = begin_ns + (uint64_t)(intake->bench.seconds * (double)KVB_NS_PER_S),
            .samples_ns = calloc(max_samples, sizeof(uint32_t)),
        };
        INTAKE_MUST(group[i].samples_ns ? KVB_OK : KVB_NO_MEMORY);
        INTAKE_MUST(
            pthread_create(&group[i].thread, NULL, ask_all, &group[i]) == 0 ? KVB_OK : KVB_IO);
    }
    for (uint32_t i = 0; i < askers; i++) {
        (void)pthread_join(group[i].thread, NULL);
    }
    talker_end(&talker);
    if (trial->has_dump) {
        atomic_store(&dumper.is_stopping, true);
        (void)pthread_join(dumper.thread, NULL);
    }
    bench_progress(
        "%s: an answer has %.0f bytes", trial->name,
        (double)group[0].answer_bytes / (double)(group[0].count + 1));
    uint32_t *samples_ns = gather(group, &count);
    say_quantiles(trial, samples_ns, count);
    free(samples_ns);
}

/* clang-format off */
static const struct trial trials[] = {
    { "query.http",       100,          by_http, false },
    { "query.nats",       100,          by_nats, false },
    { "query.echo",       100,          by_echo, false },
    { "query.http.burst", burst_blocks, by_http, false },
    { "query.nats.burst", burst_blocks, by_nats, false },
    { "query.http.dump",  100,          by_http, true },
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
    make_questions(&questions, &fleet);
    begin_echo(&echo, &scene);
    for (size_t i = 0; i < KVB_COUNT_OF(trials); i++) {
        if (is_wanted(intake, &trials[i])) {
            run_trial(intake, &scene, &fleet, &questions, &trials[i]);
        }
    }
    end_echo(&echo);
    drop_questions(&questions);
    scene_end(&scene);
    fleet_round_done(&round);
    fleet_done(&fleet);
}
