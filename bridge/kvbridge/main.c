#include "bus/bus.h"
#include "core/clock.h"
#include "core/own.h"
#include "daemon/run.h"
#include "kvbridge/bridge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* kvbridge: reads events of engines from ZMQ and publishes them on NATS. */

static const struct kvb_daemon_program program = {
    .about = "Reads the KV-cache events and load figures of inference engines from ZMQ and "
             "publishes them on NATS." KVB_DAEMON_EXITS,
    .default_config = "/etc/kvbridge/kvbridge.cfg",
    .keys = kvb_bridge_config_keys,
};

static void read_bridge_liveness(const void *daemon, struct kvb_liveness *out_liveness)
{
    kvb_bridge_liveness(daemon, out_liveness);
}

/* ---- Reading the configuration again ---- */

struct reloader {
    const char *path;
    const struct kvb_bridge_config *config; /* the configuration at the start */
    struct kvb_bridge *bridge;
    struct kvb_log *log;
    struct kvb_file_watch watch;
    char workers_file[kvb_config_path_bytes]; /* from the newest configuration that was read */
};

/* Watches the files that were read for changes after `since`. */
static void watch_config_files(
    struct reloader *reloader, const struct kvb_bridge_config *config, struct timespec since)
{
    const char *paths[kvb_max_watched_files] = { reloader->path, reloader->workers_file };

    /* A copy: the watch keeps the path, and this configuration is freed after the reload. */
    memcpy(reloader->workers_file, config->workers_file, sizeof reloader->workers_file);
    const size_t count = config->workers_file[0] != '\0' ? 2 : 1;
    kvb_file_watch_set(
        &reloader->watch, paths, config->watch_files ? count : 0, since, reloader->log);
}

static void say_needs_restart(void *context, const char *path)
{
    const struct reloader *reloader = context;

    if (strcmp(path, "workers_file") == 0 || strcmp(path, "watch_files") == 0 ||
        kvb_config_is_login_key(path)) {
        return; /* already applied */
    }
    kvb_log_write(
        reloader->log, KVB_LOG_WARNING, "kvbridge",
        "a changed key takes effect only after a restart", "key", path, NULL);
}

static void say_taken(const struct reloader *reloader, const struct kvb_membership_result *answer)
{
    kvb_log_write(
        reloader->log, answer->failed > 0 ? KVB_LOG_ERROR : KVB_LOG_INFO, "kvbridge",
        "configuration read again; in ranks:", "added", KVB_LOG_U64(answer->added), "removed",
        KVB_LOG_U64(answer->gone), "changed", KVB_LOG_U64(answer->changed), "unchanged",
        KVB_LOG_U64(answer->same), "failed", KVB_LOG_U64(answer->failed), "updated",
        KVB_LOG_U64(answer->updated), NULL);
}

static void take_new_config(struct reloader *reloader, const struct kvb_bridge_config *config)
{
    struct kvb_membership_result answer = { 0 };
    const kvb_status status =
        kvb_bridge_take_list(reloader->bridge, KVB_SOURCE_FILE, &config->workers, NULL, &answer);

    /* KVB_IO: the list was taken, and some ranks cannot be opened; `failed` counts them. */
    if (status != KVB_OK && status != KVB_IO) {
        kvb_log_write(
            reloader->log, KVB_LOG_ERROR, "kvbridge",
            "configuration rejected; keeping the running one", "why",
            answer.why.text[0] ? answer.why.text : kvb_status_name(status), NULL);
        return;
    }
    kvb_conf_differences(
        kvb_bridge_config_keys(), reloader->config, config, say_needs_restart, reloader);
    if (!kvb_worker_defaults_are_same(&reloader->config->defaults, &config->defaults)) {
        kvb_log_write(
            reloader->log, KVB_LOG_WARNING, "kvbridge",
            "changed defaults take effect in pods, members of the DNS name and registrations only "
            "after a restart",
            NULL);
    }
    say_taken(reloader, &answer);
}

static void reload(void *context)
{
    struct reloader *reloader = context;
    KVB_OWN(kvb_bridge_config_done) struct kvb_bridge_config config = { 0 };
    struct kvb_conf_errors errors = { 0 };
    struct kvb_detail why = { 0 };
    /* Before the files are read: a change during the reading is noticed afterwards. */
    const struct timespec since = kvb_file_watch_now();
    const kvb_status status = kvb_bridge_config_read(reloader->path, &config, &errors);

    /* Also when the file has mistakes: certificates and token have files of their own. */
    kvb_bridge_reload_http(reloader->bridge);
    if (status != KVB_OK) {
        kvb_daemon_log_errors(reloader->log, "kvbridge", &errors);
        return;
    }
    /* workers_file may be another one now. */
    watch_config_files(reloader, &config, since);
    kvb_daemon_log_warnings(reloader->log, "kvbridge", &errors);
    kvb_daemon_log_renewal(
        reloader->log, "kvbridge",
        kvb_bridge_renew_login(reloader->bridge, &config.nats.login, &why), &why);
    take_new_config(reloader, &config);
}

/* ---- Running ---- */

/* An earlier process may still be writing its last checkpoints; it releases the directory when it
 * ends. */
static const uint64_t predecessor_ns = 5 * KVB_NS_PER_S;
static const uint64_t predecessor_look_ns = 50 * KVB_NS_PER_MS;

/* KVB_CLOSED: a signal to stop arrived while it waited. */
static kvb_status start_or_retry(
    const struct kvb_bridge_config *config, struct kvb_log *log, struct kvb_bridge **out_bridge,
    struct kvb_detail *detail)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + predecessor_ns;
    kvb_status status = kvb_bridge_start(config, log, out_bridge, detail);

    if (status == KVB_AGAIN) {
        kvb_log_write(
            log, KVB_LOG_WARNING, "kvbridge", "waiting 5 s for the directory of checkpoints", "why",
            detail->text, NULL);
    }
    while (status == KVB_AGAIN && kvb_clock_monotonic_ns() < deadline_ns) {
        /* Signals are blocked: without this look a stop would have to wait. */
        if (kvb_daemon_is_ended_within(predecessor_look_ns)) {
            return KVB_CLOSED;
        }
        status = kvb_bridge_start(config, log, out_bridge, detail);
    }
    return status;
}

static void close_reloader(struct reloader *reloader)
{
    kvb_file_watch_close(&reloader->watch);
}

/* since: when the configuration began to be read */
static int run_bridge(
    const struct kvb_bridge_config *config, const char *path, struct timespec since,
    const sigset_t *signals, struct kvb_log *log)
{
    struct kvb_bridge *bridge = NULL;
    struct kvb_detail detail = { { 0 } };
    KVB_OWN(kvb_notify_close) struct kvb_notify notify = { .fd = -1 };

    /* Before the start, which may wait: a socket that cannot be used is logged at once. */
    kvb_notify_open(&notify, log, "kvbridge");
    const kvb_status status = start_or_retry(config, log, &bridge, &detail);
    if (status == KVB_CLOSED) {
        return EXIT_SUCCESS;
    }
    if (status != KVB_OK) {
        return kvb_daemon_say_not_started(log, "kvbridge", status, &detail);
    }
    KVB_OWN(close_reloader)
    struct reloader reloader = {
        .path = path, .config = config, .bridge = bridge, .log = log, .watch = { .fd = -1 }
    };
    watch_config_files(&reloader, config, since);
    const struct kvb_daemon_running running = {
        .name = "kvbridge",
        .log = log,
        .http_port = kvb_bridge_http_port(bridge),
        .daemon = bridge,
        .read_liveness = read_bridge_liveness,
        .reloader = &reloader,
        .reload = reload,
        .watch = &reloader.watch,
    };
    kvb_daemon_wait_for_end(signals, &notify, &running);
    kvb_bridge_stop(bridge);
    return EXIT_SUCCESS;
}

/* What is right in the file may still be more than this process can open. */
static kvb_status check_limits(
    const char *path, const struct kvb_bridge_config *config, struct kvb_conf_errors *errors)
{
    struct kvb_detail detail = { { 0 } };
    const kvb_status status = kvb_bridge_raise_limits(config, &detail);

    if (status != KVB_OK) {
        kvb_detail_set(&errors->texts[errors->count++], "%s: workers: %s", path, detail.text);
    }
    return status;
}

static void print_model_rules(const char *path, const struct kvb_bridge_config *config)
{
    const struct kvb_kubernetes_config *of = &config->kubernetes;
    const char *const labels[] = { of->rules.model_label, kvb_pod_preset_model(of->rules.preset) };

    (void)printf("%s: kubernetes: the model of a pod: ", path);
    for (size_t i = 0; i < KVB_COUNT_OF(labels); i++) {
        if (labels[i][0] != '\0') {
            (void)printf("label %s, else ", labels[i]);
        }
    }
    (void)printf(
        "its engine's arguments%s%s\n", config->defaults.spec->model[0] != '\0' ? ", else " : "",
        config->defaults.spec->model);
}

int main(int argc, char **argv)
{
    struct kvb_daemon_options options;
    struct kvb_bridge_config config = { 0 };
    struct kvb_conf_errors errors = { 0 };
    int exit_code = EXIT_SUCCESS;
    sigset_t signals;

    kvb_openssl_keep_at_exit();
    if (kvb_daemon_options_parse(&program, argc, argv, &options) != KVB_OK) {
        return kvb_daemon_exit_usage;
    }
    if (options.task == KVB_DAEMON_DONE) {
        return EXIT_SUCCESS;
    }
    if (options.task == KVB_DAEMON_RUN) {
        /* before the file is read: a SIGHUP that comes meanwhile must reload, not end it */
        kvb_daemon_block_signals(&signals);
    }
    const struct timespec since = kvb_file_watch_now();
    /* --check goes the same way, so that it finds what the start would. */
    kvb_status status = kvb_bridge_config_read(options.config_path, &config, &errors);
    if (status == KVB_OK) {
        status = check_limits(options.config_path, &config, &errors);
    }
    if (status == KVB_OK && options.task == KVB_DAEMON_CHECK && config.kubernetes.is_on) {
        print_model_rules(options.config_path, &config);
    }
    if (kvb_daemon_options_settle(&options, status, &errors, &exit_code)) {
        struct kvb_log log = { .level =
                                   options.has_log_level ? options.log_level : config.log.level,
                               .is_json = config.log.format == KVB_LOG_JSON,
                               .fd = 2 };
        kvb_daemon_log_warnings(&log, "kvbridge", &errors);
        (void)kvb_log_start(&log); /* without its thread the log waits for its reader */
        exit_code = run_bridge(&config, options.config_path, since, &signals, &log);
        kvb_log_stop(&log);
    }
    kvb_bridge_config_done(&config);
    return exit_code;
}
