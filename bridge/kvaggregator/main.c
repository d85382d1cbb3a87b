#include "bus/bus.h"
#include "core/log.h"
#include "core/own.h"
#include "daemon/run.h"
#include "kvaggregator/aggregator.h"
#include "kvaggregator/config.h"

#include <stdlib.h>
#include <unistd.h>

/* kvaggregator: follows bridges on NATS and answers routers. */

static const struct kvb_daemon_program program = {
    .about = "Follows the KV-cache events of inference engines that bridges publish on NATS, and "
             "answers routers which workers hold how much of a prompt." KVB_DAEMON_EXITS,
    .default_config = "/etc/kvbridge/kvaggregator.cfg",
    .keys = kvb_aggregator_config_keys,
};

static void read_aggregator_liveness(const void *daemon, struct kvb_liveness *out_liveness)
{
    kvb_aggregator_liveness(daemon, out_liveness);
}

/* ---- Reading the configuration again: what HTTP shows, and the login of NATS ---- */

struct aggregator_reloader {
    const char *path;
    struct kvb_aggregator *aggregator;
    struct kvb_log *log;
};

/* Other keys are read only at the start. */
static void reload_aggregator(void *context)
{
    const struct aggregator_reloader *reloader = context;
    KVB_OWN(kvb_aggregator_config_done) struct kvb_aggregator_config config = { .forget_ms = 0 };
    struct kvb_conf_errors errors = { 0 };
    struct kvb_detail why = { 0 };
    const kvb_status status = kvb_aggregator_config_read(reloader->path, &config, &errors);

    /* Certificates and tokens may have changed although the configuration is wrong now. */
    kvb_aggregator_reload_files(reloader->aggregator);
    if (status != KVB_OK) {
        kvb_daemon_log_errors(reloader->log, "kvaggregator", &errors);
        return;
    }
    kvb_daemon_log_renewal(
        reloader->log, "kvaggregator",
        kvb_aggregator_renew_login(reloader->aggregator, &config.nats.login, &why), &why);
}

static int run_aggregator(
    const struct kvb_aggregator_config *config, const char *path, const sigset_t *signals,
    struct kvb_log *log)
{
    struct kvb_aggregator *aggregator = NULL;
    struct kvb_detail detail = { { 0 } };
    KVB_OWN(kvb_notify_close) struct kvb_notify notify = { .fd = -1 };

    kvb_notify_open(&notify, log, "kvaggregator");
    const kvb_status status = kvb_aggregator_start(config, log, &aggregator, &detail);
    if (status != KVB_OK) {
        return kvb_daemon_say_not_started(log, "kvaggregator", status, &detail);
    }
    struct aggregator_reloader reloader = {
        .path = path,
        .aggregator = aggregator,
        .log = log,
    };
    const struct kvb_daemon_running running = {
        .name = "kvaggregator",
        .log = log,
        .http_port = kvb_aggregator_http_port(aggregator),
        .daemon = aggregator,
        .read_liveness = read_aggregator_liveness,
        .reloader = &reloader,
        .reload = reload_aggregator,
    };
    kvb_daemon_wait_for_end(signals, &notify, &running);
    kvb_aggregator_stop(aggregator);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct kvb_daemon_options options = { 0 };
    struct kvb_aggregator_config config = { .forget_ms = 0 };
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
    const kvb_status status = kvb_aggregator_config_read(options.config_path, &config, &errors);
    if (kvb_daemon_options_settle(&options, status, &errors, &exit_code)) {
        struct kvb_log log = {
            .level = options.has_log_level ? options.log_level : config.log.level,
            .is_json = config.log.format == KVB_LOG_JSON,
            .fd = STDERR_FILENO,
        };
        kvb_daemon_log_warnings(&log, "kvaggregator", &errors);
        (void)kvb_log_start(&log); /* without its thread the log waits for its reader */
        exit_code = run_aggregator(&config, options.config_path, &signals, &log);
        kvb_log_stop(&log);
    }
    kvb_aggregator_config_done(&config);
    return exit_code;
}
