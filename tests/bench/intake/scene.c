#include "intake/scene.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/own.h"
#include "wire/router/heartbeat.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { patience_ms = 20000, max_answer_bytes = 256 << 20, path_bytes = 128 };

#define SUBJECT(tail) "namespace." FLEET_NAMESPACE ".component." FLEET_COMPONENT "." tail

void wait_until_ns(uint64_t then_ns)
{
    const struct timespec then = { .tv_sec = (time_t)(then_ns / KVB_NS_PER_S),
                                   .tv_nsec = (long)(then_ns % KVB_NS_PER_S) };

    if (kvb_clock_monotonic_ns() < then_ns) {
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL); /* early is fine */
    }
}

/* ---- HTTP ---- */

bool web_open(struct web *web, uint16_t port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(port),
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int one = 1;

    *web = (struct web){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    kvb_buf_init(&web->text, max_answer_bytes);
    if (web->fd < 0 || connect(web->fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        web_close(web);
        return false;
    }
    (void)setsockopt(web->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* else slower */
    return true;
}

void web_close(struct web *web)
{
    if (web->fd >= 0) {
        (void)close(web->fd);
    }
    kvb_buf_done(&web->text);
    web->fd = -1;
}

static void send_all(int fd, kvb_span bytes)
{
    for (size_t at = 0; at < bytes.len;) {
        const ssize_t sent = send(fd, bytes.data + at, bytes.len - at, MSG_NOSIGNAL);
        INTAKE_MUST(sent > 0 ? KVB_OK : KVB_IO);
        at += (size_t)sent;
    }
}

/* Reads until the text has `len` bytes, or its head ends when len is 0. */
static void receive(struct web *web, size_t len)
{
    while (len > 0 ? web->text.len < len : !strstr((char *)web->text.data, "\r\n\r\n")) {
        INTAKE_MUST(kvb_buf_reserve(&web->text, 65536));
        const ssize_t got = recv(web->fd, web->text.data + web->text.len, 65535, 0);
        INTAKE_MUST(got > 0 ? KVB_OK : KVB_IO);
        web->text.len += (size_t)got;
        web->text.data[web->text.len] = '\0';
    }
}

unsigned web_ask(struct web *web, kvb_span request)
{
    send_all(web->fd, request);
    kvb_buf_reset(&web->text);
    INTAKE_MUST(kvb_buf_reserve(&web->text, 65536));
    web->text.data[0] = '\0';
    receive(web, 0);
    const char *head = (const char *)web->text.data;
    const char *length = strcasestr(head, "content-length:");
    web->body_at = (size_t)(strstr(head, "\r\n\r\n") - head) + 4;
    const size_t body = length ? strtoull(length + strlen("content-length:"), NULL, 10) : 0;
    receive(web, web->body_at + body);
    return (unsigned)strtoul((const char *)web->text.data + strlen("HTTP/1.1 "), NULL, 10);
}

void web_make_post(struct kvb_buf *out, const char *path, kvb_span body)
{
    INTAKE_MUST(kvb_buf_append_format(
        out,
        "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n",
        path, body.len));
    INTAKE_MUST(kvb_buf_append(out, body.data, body.len));
}

static kvb_span span_of_text(const char *text)
{
    return (kvb_span){ .data = (const uint8_t *)text, .len = strlen(text) };
}

double scene_metric(const struct scene *scene, const char *name)
{
    struct web web;
    char line[path_bytes];

    INTAKE_MUST(web_open(&web, scene->port) ? KVB_OK : KVB_IO);
    (void)web_ask(&web, span_of_text("GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n"));
    (void)snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr((const char *)web.text.data + web.body_at, line);
    const double value = at ? strtod(at + strlen(line), NULL) : 0;
    web_close(&web);
    return value;
}

/* ---- The programs ---- */

static bool is_ready(void *context)
{
    struct scene *scene = context;
    struct web web;

    if (!web_open(&web, scene->port)) {
        return false;
    }
    const unsigned status =
        web_ask(&web, span_of_text("GET /readyz HTTP/1.1\r\nHost: bench\r\n\r\n"));
    web_close(&web);
    return status == 200;
}

static void write_config(const struct scene *scene, const char *path)
{
    FILE *file = fopen(path, "we");

    INTAKE_MUST(file ? KVB_OK : KVB_IO);
    fprintf(
        file,
        "nats = { url = \"%s\"; };\nhttp = \"127.0.0.1:%u\";\n"
        "limits = { max_index_blocks = 33554432; };\n",
        scene->server.url, scene->port);
    if (scene->grpc_port > 0) {
        fprintf(file, "grpc = { listen = \"127.0.0.1:%u\"; };\n", scene->grpc_port);
    }
    INTAKE_MUST(fclose(file) == 0 ? KVB_OK : KVB_IO);
}

static void start_aggregator(struct scene *scene, const struct intake *intake)
{
    char config[path_bytes];
    char log[path_bytes];

    INTAKE_MUST(free_port(&scene->port));
    if (bench_wants(&intake->bench, "query.grpc.p99")) { /* an older build may be measured */
        INTAKE_MUST(free_port(&scene->grpc_port));
    }
    INTAKE_MUST(folder_make(scene->folder));
    (void)snprintf(config, sizeof config, "%s/kvaggregator.cfg", scene->folder);
    (void)snprintf(log, sizeof log, "%s/log", scene->folder);
    write_config(scene, config);
    const char *const argv[] = { intake->aggregator, "--config", config, NULL };
    scene->exec_ns = kvb_clock_monotonic_ns();
    INTAKE_MUST(process_start(argv, log, &scene->aggregator));
    if (!wait_until(is_ready, scene, patience_ms)) {
        bench_progress("%s does not get ready: see %s", intake->aggregator, log);
        INTAKE_MUST(KVB_IO);
    }
    scene->ready_ns = kvb_clock_monotonic_ns();
}

static bool is_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

void scene_begin(struct scene *scene, const struct intake *intake)
{
    struct kvb_detail detail = { { 0 } };

    *scene = (struct scene){ 0 };
    INTAKE_MUST(nats_server_start(&scene->server, 0, "max_pending: 512MB\n"));
    const struct kvb_bus_options options = { .url = scene->server.url, .name = "bench" };
    start_aggregator(scene, intake);
    INTAKE_MUST(kvb_bus_open(&options, &scene->bus, &detail));
    INTAKE_MUST(wait_until(is_connected, scene->bus, patience_ms) ? KVB_OK : KVB_IO);
}

void scene_restart(struct scene *scene, const struct intake *intake)
{
    (void)process_end(scene->aggregator, SIGKILL, patience_ms, NULL);
    folder_remove(scene->folder);
    start_aggregator(scene, intake);
}

void scene_end(struct scene *scene)
{
    kvb_bus_close(scene->bus);
    (void)process_end(scene->aggregator, SIGTERM, patience_ms, NULL); /* after that it is killed */
    nats_server_kill(&scene->server);
    folder_remove(scene->folder);
}

/* ---- Publishing ---- */

void scene_send_round(struct scene *scene, const struct fleet_round *round)
{
    for (size_t i = 0; i < round->count; i++) {
        const kvb_span bytes = { .data = round->bytes.data + round->messages[i].at,
                                 .len = round->messages[i].len };
        INTAKE_MUST(kvb_bus_publish(scene->bus, SUBJECT("kv_events_pb"), bytes));
    }
    kvb_bus_write(scene->bus);
}

void scene_send_heartbeats(struct scene *scene, const struct fleet *fleet)
{
    struct kvb_buf buf;

    kvb_buf_init(&buf, max_answer_bytes);
    for (uint32_t i = 0; i < fleet->options.workers; i++) {
        struct kvb_heartbeat heartbeat;
        fleet_heartbeat(fleet, i, &heartbeat);
        kvb_buf_reset(&buf);
        INTAKE_MUST(kvb_heartbeat_encode(&heartbeat, &buf));
        INTAKE_MUST(kvb_bus_publish(scene->bus, SUBJECT("kv_heartbeat"), kvb_buf_span(&buf)));
    }
    kvb_bus_write(scene->bus);
    kvb_buf_done(&buf);
}

void scene_wait_applied(const struct scene *scene, uint64_t events)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + 60 * KVB_NS_PER_S;

    while (scene_metric(scene, "kvb_events_applied_total") < (double)events) {
        INTAKE_MUST(kvb_clock_monotonic_ns() < end_ns ? KVB_OK : KVB_IO);
        wait_until_ns(kvb_clock_monotonic_ns() + 5 * KVB_NS_PER_MS);
    }
}

/* ---- A thread that publishes ---- */

static void
add_utterance(struct talker *talker, uint64_t after_ns, bool is_heartbeat, kvb_span bytes)
{
    INTAKE_MUST(kvb_array_reserve(
        &talker->script, &talker->capacity, talker->count + 1, sizeof *talker->script, 1U << 22U));
    talker->script[talker->count++] = (struct utterance){ .after_ns = after_ns,
                                                          .is_heartbeat = is_heartbeat,
                                                          .at = talker->bytes.len,
                                                          .len = bytes.len };
    INTAKE_MUST(kvb_buf_append(&talker->bytes, bytes.data, bytes.len));
}

static void add_round(struct talker *talker, uint64_t after_ns, struct fleet_round *round)
{
    INTAKE_MUST(fleet_make(talker->fleet, talker->burst, round));
    for (size_t i = 0; i < round->count; i++) {
        add_utterance(
            talker, after_ns, false,
            (kvb_span){ .data = round->bytes.data + round->messages[i].at,
                        .len = round->messages[i].len });
    }
}

static void
add_heartbeat(struct talker *talker, uint64_t after_ns, uint32_t worker, struct kvb_buf *buf)
{
    struct kvb_heartbeat heartbeat;

    fleet_heartbeat(talker->fleet, worker, &heartbeat);
    kvb_buf_reset(buf);
    INTAKE_MUST(kvb_heartbeat_encode(&heartbeat, buf));
    add_utterance(talker, after_ns, true, kvb_buf_span(buf));
}

static void make_script(struct talker *talker)
{
    const uint64_t end_ms = (uint64_t)(talker->seconds * 1e3);
    uint64_t blocks = 0;
    struct fleet_round round;
    struct kvb_buf buf;

    kvb_buf_init(&talker->bytes, max_answer_bytes);
    kvb_buf_init(&buf, max_answer_bytes);
    fleet_round_init(&round);
    for (uint64_t ms = 0; ms < end_ms; ms++) {
        const uint64_t after_ns = ms * KVB_NS_PER_MS;
        while (blocks <= ms * talker->rate / 1000) {
            add_round(talker, after_ns, &round);
            blocks += round.blocks;
        }
        add_heartbeat(talker, after_ns, (uint32_t)(ms % talker->fleet->options.workers), &buf);
    }
    fleet_round_done(&round);
    kvb_buf_done(&buf);
}

static void *talk(void *context)
{
    const struct talker *talker = context;
    const uint64_t begin_ns = kvb_clock_monotonic_ns();

    (void)prctl(PR_SET_TIMERSLACK, 1); /* else 50 us late */
    for (size_t i = 0; i < talker->count; i++) {
        const struct utterance *here = &talker->script[i];
        wait_until_ns(begin_ns + here->after_ns);
        INTAKE_MUST(kvb_bus_publish(
            talker->scene->bus,
            here->is_heartbeat ? SUBJECT("kv_heartbeat") : SUBJECT("kv_events_pb"),
            (kvb_span){ .data = talker->bytes.data + here->at, .len = here->len }));
        kvb_bus_write(talker->scene->bus);
    }
    return NULL;
}

void talker_begin(struct talker *talker)
{
    make_script(talker);
    INTAKE_MUST(pthread_create(&talker->thread, NULL, talk, talker) == 0 ? KVB_OK : KVB_IO);
}

void talker_end(struct talker *talker)
{
    (void)pthread_join(talker->thread, NULL);
    kvb_buf_done(&talker->bytes);
    free(talker->script);
}

/* ---- The program ---- */

static bool take_aggregator(void *context, const char *value)
{
    struct intake *intake = context;

    intake->aggregator = value;
    return *value != '\0';
}

int intake_main(
    int argc, char **argv, const char *what, const struct intake_row *rows, size_t row_count)
{
    struct intake intake = { .aggregator = KVB_AGGREGATOR };
    const struct bench_option options[] = {
        { "--aggregator", "PROGRAM  a kvaggregator of another build", take_aggregator },
    };
    const struct bench_about about = {
        .what = what, .options = options, .option_count = KVB_COUNT_OF(options), .context = &intake
    };

    intake.bench = bench_begin(argc, argv, &about);
    for (size_t i = 0; i < row_count; i++) {
        if (bench_wants(&intake.bench, rows[i].name)) {
            bench_progress("%s", rows[i].name);
            bench_measure(0); /* a row may begin later, or of another process */
            rows[i].run(&intake);
        }
    }
    return 0;
}
