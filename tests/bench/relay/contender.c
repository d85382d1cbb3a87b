#include "contender.h"

#include "core/clock.h"
#include "parts/bench.h"

#include <assert.h>
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { path_bytes = 256, max_sockets = 8192, subscribe_ms = 30000, look_ms = 50, stop_ms = 10000 };

/* Where many connections ended within the last minute, the port after a free one is often in use.
 */
enum { tries_each = 100 };

static const char *const names[contender_kinds] = {
    [contender_pass_through] = "pass-through",
    [contender_protobuf] = "protobuf",
    [contender_json] = "json",
    [contender_republish] = "republish",
    [contender_python] = "python",
};

const char *contender_name(enum contender_kind kind)
{
    return names[kind];
}

/* ---- The stage ---- */

_Atomic bool stage_is_over;

kvb_status stage_open(const struct stage_programs *programs, struct stage *out_stage)
{
    struct stage stage = { .programs = *programs, .zmq_context = zmq_ctx_new() };

    if (!stage.zmq_context || zmq_ctx_set(stage.zmq_context, ZMQ_MAX_SOCKETS, max_sockets) != 0 ||
        nats_server_start(&stage.server, 0, NULL) != KVB_OK) {
        stage_close(&stage);
        return KVB_IO;
    }
    *out_stage = stage;
    return KVB_OK;
}

void stage_close(struct stage *stage)
{
    if (stage->server.pid > 0) {
        nats_server_kill(&stage->server);
    }
    if (stage->zmq_context) {
        (void)zmq_ctx_term(stage->zmq_context);
        stage->zmq_context = NULL;
    }
}

/* ---- Configuration of each contender ---- */

static unsigned ranks_of(const struct stage *stage)
{
    return stage->ranks > 0 ? stage->ranks : 1;
}

static void write_endpoints(FILE *file, const struct contender *contender)
{
    for (size_t i = 0; i < contender->engine_count; i++) {
        fprintf(file, "%s\n", contender->engines[i].endpoint);
    }
}

/* Readers get no announcement when they subscribe, because it would be counted twice. */
static void write_republish(FILE *file, const struct contender *contender)
{
    fprintf(
        file, " republish = { events = \"%s\"; replay = \"%s\"; style = \"vllm\"; };",
        contender->republished_events, contender->republished_replay);
}

static void write_config(FILE *file, const struct stage *stage, const struct contender *contender)
{
    const char *format = contender->kind == contender_json ? "json" : "protobuf";

    fprintf(
        file,
        "nats = { url = \"%s\"; };\n"
        "publish = { namespace = \"bench\"; component = \"%s\"; formats = [\"%s\"]; refresh_s = 0; "
        "};\n"
        "http = \"\";\nworkers = (",
        stage->server.url, names[contender->kind], format);
    for (size_t i = 0; i < contender->engine_count; i += ranks_of(stage)) {
        fprintf(
            file, "%s\n  { id = %zuL; model = \"m\"; block_size = 16; events = \"%s\"; ranks = %u;",
            i > 0 ? "," : "", i + 1, contender->engines[i].endpoint, ranks_of(stage));
        if (i == 0 && contender->kind == contender_republish) {
            write_republish(file, contender);
        }
        fprintf(file, " }");
    }
    fprintf(file, "\n);\n");
}

static bool is_ours(enum contender_kind kind)
{
    return kind == contender_protobuf || kind == contender_json || kind == contender_republish;
}

static kvb_status
write_file(const struct stage *stage, const struct contender *contender, const char *path)
{
    FILE *file = fopen(path, "we");

    if (!file) {
        return KVB_IO;
    }
    if (is_ours(contender->kind)) {
        write_config(file, stage, contender);
    } else {
        write_endpoints(file, contender);
    }
    return fclose(file) == 0 ? KVB_OK : KVB_IO;
}

/* ---- Starting ---- */

static kvb_status start_process(const struct stage *stage, struct contender *contender)
{
    const char *name = names[contender->kind];
    char path[path_bytes];
    char log_path[path_bytes];

    (void)snprintf(path, sizeof path, "%s/%s", stage->server.folder, name);
    (void)snprintf(log_path, sizeof log_path, "%s/%s.log", stage->server.folder, name);
    KVB_TRY(write_file(stage, contender, path));

    const char *const bridge[] = { stage->programs.bridge, "--config", path, NULL };
    const char *const pass[] = { KVB_BENCH_PASS_THROUGH, path, stage->server.url,
                                 contender->subject, NULL };
    const char *const python[] = { stage->programs.python, KVB_BENCH_PYTHON_RELAY, path,
                                   stage->server.url,      contender->subject,     NULL };
    const char *const *const programs[contender_kinds] = {
        [contender_pass_through] = pass, [contender_protobuf] = bridge, [contender_json] = bridge,
        [contender_republish] = bridge,  [contender_python] = python,
    };
    return process_start(programs[contender->kind], log_path, &contender->pid);
}

/* The ranks of one worker, behind those that are open.  KVB_AGAIN: a port of the row is taken. */
static kvb_status open_worker(const struct stage *stage, struct contender *contender)
{
    const size_t first = contender->engine_count;

    for (size_t i = first; i < first + ranks_of(stage); i++) {
        const struct engine *before = i > first ? &contender->engines[i - 1] : NULL;
        const kvb_status status = engine_open(stage->zmq_context, before, &contender->engines[i]);
        if (status != KVB_OK) {
            while (i-- > first) {
                engine_close(&contender->engines[i]);
            }
            return before ? KVB_AGAIN : status;
        }
    }
    contender->engine_count += ranks_of(stage);
    return KVB_OK;
}

static kvb_status open_engines(const struct stage *stage, size_t count, struct contender *contender)
{
    contender->engines = calloc(count, sizeof *contender->engines);
    if (!contender->engines) {
        return KVB_NO_MEMORY;
    }
    for (size_t tries = 0; contender->engine_count < count && tries < tries_each * count; tries++) {
        const kvb_status status = open_worker(stage, contender);
        KVB_TRY(status == KVB_AGAIN ? KVB_OK : status);
    }
    return contender->engine_count == count ? KVB_OK : KVB_IO;
}

/* Runs until it is ended; a relay that cannot start prints why and ends. */
static kvb_status wait_for_subscription(struct contender *contender, struct engine *engine)
{
    const uint64_t until_ns = kvb_clock_monotonic_ns() + subscribe_ms * KVB_NS_PER_MS;
    kvb_status status = KVB_AGAIN;
    int how = 0;

    while (status == KVB_AGAIN && kvb_clock_monotonic_ns() < until_ns) {
        status = engine_wait(engine, look_ms);
        if (atomic_load(&stage_is_over)) {
            return KVB_CLOSED;
        }
        if (status == KVB_AGAIN && process_has_ended(contender->pid, &how)) {
            contender->pid = 0;
            return KVB_IO;
        }
    }
    return status;
}

static kvb_status wait_for_subscriptions(struct contender *contender)
{
    for (size_t i = 0; i < contender->engine_count; i++) {
        KVB_TRY(wait_for_subscription(contender, &contender->engines[i]));
    }
    return KVB_OK;
}

/* ---- The reader of what is republished ---- */

static kvb_status choose_addresses(struct contender *contender)
{
    uint16_t events = 0;
    uint16_t replay = 0;

    KVB_TRY(free_port(&events));
    KVB_TRY(free_port(&replay));
    (void)snprintf(
        contender->republished_events, sizeof contender->republished_events, "tcp://127.0.0.1:%u",
        events);
    (void)snprintf(
        contender->republished_replay, sizeof contender->republished_replay, "tcp://127.0.0.1:%u",
        replay);
    return KVB_OK;
}

/* Waits for its first batch: a bridge sends an empty one each second. */
static kvb_status open_republished(struct contender *contender)
{
    const uint64_t until_ns = kvb_clock_monotonic_ns() + subscribe_ms * KVB_NS_PER_MS;
    kvb_status status = KVB_AGAIN;

    KVB_TRY(republished_open(contender->republished_events, &contender->republished));
    while (status == KVB_AGAIN && kvb_clock_monotonic_ns() < until_ns) {
        status =
            atomic_load(&stage_is_over) ? KVB_CLOSED : republished_read(&contender->republished);
    }
    return status;
}

/* Shows the beginning of its log, where errors at the start are. */
static void say_why(const struct stage *stage, enum contender_kind kind)
{
    char path[path_bytes];
    char text[2048] = "";

    (void)snprintf(path, sizeof path, "%s/%s.log", stage->server.folder, names[kind]);
    (void)file_read(path, text, sizeof text); /* none, or longer: what there is */
    text[sizeof text - 1] = '\0';
    bench_progress("%s does not start: %s", names[kind], text);
}

kvb_status contender_start(
    const struct stage *stage, enum contender_kind kind, size_t engines,
    struct contender *out_contender)
{
    struct contender contender = { .kind = kind };

    (void)snprintf(
        contender.subject, sizeof contender.subject, "namespace.bench.component.%s.%s", names[kind],
        kind == contender_json ? "kv_events" : "kv_events_pb");
    kvb_status status = open_engines(stage, engines, &contender);
    if (status == KVB_OK && kind == contender_republish) {
        status = choose_addresses(&contender);
    }
    if (status == KVB_OK) {
        status = start_process(stage, &contender);
    }
    if (status == KVB_OK) {
        status = wait_for_subscriptions(&contender);
    }
    if (status == KVB_OK && kind == contender_republish) {
        status = open_republished(&contender);
    }
    if (status != KVB_OK) {
        contender_stop(&contender);
        if (status != KVB_CLOSED) {
            say_why(stage, kind);
        }
        return status;
    }
    *out_contender = contender;
    return KVB_OK;
}

/* All are killed, because a bridge that stops at SIGTERM first publishes that nothing is held any
 * more, which nobody reads here. */
void contender_stop(struct contender *contender)
{
    if (contender->pid > 0) {
        (void)process_end(contender->pid, SIGKILL, stop_ms, NULL);
    }
    for (size_t i = 0; i < contender->engine_count; i++) {
        engine_close(&contender->engines[i]);
    }
    free(contender->engines);
    republished_close(&contender->republished);
    *contender = (struct contender){ .pid = 0 };
}

/* ---- What it costs ---- */

uint64_t contender_cpu_ns(const struct contender *contender)
{
    struct timespec used = { .tv_sec = 0 };
    clockid_t clock = 0;

    if (clock_getcpuclockid(contender->pid, &clock) != 0 || clock_gettime(clock, &used) != 0) {
        return 0;
    }
    return (uint64_t)used.tv_sec * KVB_NS_PER_S + (uint64_t)used.tv_nsec;
}

uint64_t contender_resident_bytes(const struct contender *contender)
{
    char path[64];
    char text[256];
    char *end = text;

    (void)snprintf(path, sizeof path, "/proc/%d/statm", contender->pid);
    if (file_read(path, text, sizeof text) != KVB_OK) {
        return 0;
    }
    (void)strtoull(text, &end, 10); /* the address space */
    return strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

size_t contender_open_files(const struct contender *contender)
{
    char path[64];
    size_t count = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", contender->pid);
    DIR *folder = opendir(path);
    if (!folder) {
        return 0;
    }
    /* glibc's readdir() is safe when each thread has a DIR of its own. */
    for (const struct dirent *entry = NULL;
         (entry = readdir(folder));) { /* NOLINT(concurrency-mt-unsafe) */
        count += entry->d_name[0] != '.';
    }
    (void)closedir(folder);
    return count;
}
