#include "fleet/options.h"

#include "core/clock.h"
#include "core/file_limit.h"
#include "fleet/config.h"
#include "fleet/metrics_page.h"
#include "fleet/serve.h"
#include "fleet/truth.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { exit_failed = 70, exit_config = 78, load_period_ms = 100, progress_period_ms = 1000 };

struct program {
    struct kvb_kvfleet_options options;
    struct kvb_trace *trace; /* owned, like the next four; NULL: none */
    struct kvb_fleet *fleet;
    struct kvb_metrics_page *page;  /* NULL: none */
    struct kvb_serve *serve;        /* NULL: none */
    struct kvb_truth_server *truth; /* NULL: none */
    int timer;
    int signals;
    uint64_t started_ns;
    uint64_t next_load_ns;
    uint64_t next_progress_ns;
};

/* Blocked before any thread starts, so that all threads block them. */
static kvb_status open_signals(struct program *program)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0) {
        return KVB_IO;
    }
    program->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return program->signals >= 0 ? KVB_OK : KVB_IO;
}

static kvb_status open_timer(struct program *program)
{
    const uint32_t ms = program->options.step_ms;
    const struct timespec period = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
    const struct itimerspec setting = { .it_interval = period, .it_value = period };

    program->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return program->timer >= 0 && timerfd_settime(program->timer, 0, &setting, NULL) == 0 ? KVB_OK
                                                                                          : KVB_IO;
}

static kvb_status start_page(struct program *program, struct kvb_detail *detail)
{
    const struct kvb_kvfleet_options *options = &program->options;
    const struct kvb_metrics_page_options page = {
        .address = options->has_http ? options->http_address : NULL,
        .port = options->http_port,
        .model = options->model,
        .first_worker = options->fleet.first_worker,
        .workers = options->fleet.workers,
        .ranks = options->fleet.ranks,
        .block_size = options->fleet.engine.block_size,
    };
    return options->has_http || options->has_serve
               ? kvb_metrics_page_start(&page, detail, &program->page)
               : KVB_OK;
}

static kvb_status start_serve(struct program *program, struct kvb_detail *detail)
{
    const struct kvb_kvfleet_options *options = &program->options;
    const struct kvb_serve_options serve = {
        .address = options->fleet.address,
        .base_port = options->serve_port,
        .model = options->model,
        .page = program->page,
        .workers = options->fleet.workers,
        .ranks = options->fleet.ranks,
    };
    return options->has_serve ? kvb_serve_start(&serve, detail, &program->serve) : KVB_OK;
}

static void fill_page(struct program *program)
{
    for (size_t at = 0; program->page && at < kvb_fleet_rank_count(program->fleet); at++) {
        struct kvb_fleet_rank_state state = { 0 };
        kvb_fleet_rank_state(program->fleet, at, &state);
        kvb_metrics_page_set(program->page, state.worker, state.rank, &state.stats);
    }
}

static kvb_status write_config(const struct program *program, struct kvb_detail *detail)
{
    const struct kvb_kvfleet_options *options = &program->options;
    const struct kvb_config_options config = {
        .address = options->fleet.address,
        .model = options->model,
        .block_size = options->fleet.engine.block_size,
        .ranks = options->fleet.ranks,
        .serve = program->serve,
    };
    return options->config_path
               ? kvb_config_write(
                     program->fleet, &config, options->config_path, options->config_split, detail)
               : KVB_OK;
}

static kvb_status start_fleet_parts(struct program *program, struct kvb_detail *detail)
{
    struct kvb_kvfleet_options *options = &program->options;

    KVB_TRY(open_signals(program));
    if (options->trace_path) {
        KVB_TRY(kvb_trace_load(options->trace_path, options->scale, detail, &program->trace));
    }
    options->fleet.trace = program->trace;
    KVB_TRY(kvb_fleet_new(&options->fleet, detail, &program->fleet));
    KVB_TRY(start_page(program, detail));
    fill_page(program);
    KVB_TRY(start_serve(program, detail));
    if (options->truth_path) {
        KVB_TRY(kvb_truth_server_new(options->truth_path, program->fleet, detail, &program->truth));
    }
    KVB_TRY(write_config(program, detail));
    return open_timer(program);
}

static void say_hello(const struct program *program)
{
    const struct kvb_fleet_ports ports = kvb_fleet_ports(program->fleet, 0);

    printf(
        "kvfleet: %u workers x %u ranks; worker %" PRIu64 ": events tcp://%s:%u replay %u load %u",
        program->options.fleet.workers, program->options.fleet.ranks, ports.worker_id,
        program->options.fleet.address, ports.events, ports.replay, ports.load);
    if (program->options.has_http) {
        printf(
            "; http://%s:%u/workers/%" PRIu64 "/metrics", program->options.http_address,
            kvb_metrics_page_port(program->page), ports.worker_id);
    }
    printf("\n");
    (void)fflush(stdout);
}

/* On a terminal each line overwrites the previous one; otherwise all lines are kept. */
static void say_progress(const struct program *program, uint64_t now_ns)
{
    const bool is_terminal = isatty(STDOUT_FILENO) == 1;
    struct kvb_fleet_totals totals = { 0 };

    kvb_fleet_totals(program->fleet, &totals);
    printf(
        "%s%4" PRIu64 " s  requests %" PRIu64 " (running %" PRIu64 ", waiting %" PRIu64
        ", refused %" PRIu64 ")  batches %" PRIu64 "  blocks held %" PRIu64 "%s%s",
        is_terminal ? "\r" : "", (now_ns - program->started_ns) / KVB_NS_PER_S, totals.requests,
        totals.running, totals.waiting, totals.refused + totals.too_large, totals.batches,
        totals.held_blocks, totals.is_paused ? "  paused" : "", is_terminal ? "\033[K" : "\n");
    (void)fflush(stdout);
}

static kvb_status on_timer(struct program *program)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    uint64_t expirations = 0;

    /* A late tick counts as one tick, so overloaded engines become slower, like real ones. */
    if (read(program->timer, &expirations, sizeof expirations) < 0) {
        return KVB_OK;
    }
    if (program->serve) {
        kvb_serve_admit(program->serve, program->fleet);
    }
    KVB_TRY(kvb_fleet_tick(program->fleet, now_ns));
    if (program->serve) {
        kvb_serve_pass_on(program->serve);
    }
    if (now_ns >= program->next_load_ns) {
        kvb_fleet_send_load(program->fleet);
        fill_page(program);
        program->next_load_ns = now_ns + load_period_ms * KVB_NS_PER_MS;
    }
    if (now_ns >= program->next_progress_ns) {
        say_progress(program, now_ns);
        program->next_progress_ns += progress_period_ms * KVB_NS_PER_MS;
    }
    return KVB_OK;
}

static bool is_over(const struct program *program)
{
    const uint64_t seconds = program->options.seconds;
    const bool is_late =
        seconds > 0 && kvb_clock_monotonic_ns() >= program->started_ns + seconds * KVB_NS_PER_S;

    return is_late || (program->truth && kvb_truth_server_is_stopped(program->truth));
}

static kvb_status run_fleet(struct program *program)
{
    struct pollfd fds[] = {
        { .fd = program->timer, .events = POLLIN },
        { .fd = program->signals, .events = POLLIN },
        { .fd = program->truth ? kvb_truth_server_fd(program->truth) : -1, .events = POLLIN },
    };

    program->started_ns = kvb_clock_monotonic_ns();
    program->next_progress_ns = program->started_ns + progress_period_ms * KVB_NS_PER_MS;
    while (!is_over(program)) {
        if (poll(fds, 3, -1) < 0 && errno != EINTR) {
            return KVB_IO;
        }
        if (fds[1].revents) {
            break;
        }
        if (fds[2].revents) {
            kvb_truth_server_serve(program->truth);
        }
        if (fds[0].revents) {
            KVB_TRY(on_timer(program));
        }
    }
    say_progress(program, kvb_clock_monotonic_ns());
    return KVB_OK;
}

static void shut_down(struct program *program)
{
    kvb_truth_server_free(program->truth);
    kvb_serve_stop(program->serve);
    kvb_metrics_page_stop(program->page);
    kvb_fleet_free(program->fleet);
    kvb_serve_free(program->serve); /* the engines of the fleet have held its requests */
    kvb_trace_free(program->trace);
    if (program->timer >= 0) {
        (void)close(program->timer);
    }
    if (program->signals >= 0) {
        (void)close(program->signals);
    }
}

static int fail_program(kvb_status status, const struct kvb_detail *detail)
{
    const char *text = detail->text[0] ? detail->text : kvb_status_name(status);

    (void)fprintf(stderr, "kvfleet: %s\n", text);
    return status == KVB_BAD_CONFIG ? exit_config : exit_failed;
}

int main(int argc, char **argv)
{
    struct program program = { .timer = -1, .signals = -1 };
    struct kvb_detail detail = { 0 };

    kvb_kvfleet_options_parse(argc, argv, &program.options);
    /* Each socket of libzmq takes several descriptors.  If there are too few, the start of the
     * fleet reports it. */
    (void)kvb_file_limit_raise(UINT64_MAX);
    kvb_status status = start_fleet_parts(&program, &detail);
    if (status == KVB_OK) {
        say_hello(&program);
        status = run_fleet(&program);
    }
    shut_down(&program);
    return status == KVB_OK ? EXIT_SUCCESS : fail_program(status, &detail);
}
