#include "cmd/daemon_options.h"
#include "core/log.h"
#include "daemon/aggregator.h"
#include "daemon/aggregator_config.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* kvaggregator: listens to bridges on NATS and answers routers. */

static const struct kvb_daemon_program program = {
    .about = "Follows what bridges say on NATS of the KV caches of inference engines, and tells\n"
             "routers who holds how much of a prompt.",
    .default_config = "/etc/kvbridge/kvaggregator.cfg",
    .print_keys = kvb_aggregator_config_help,
};

/* Before any thread starts, so that all inherit the mask and only the main thread,
 * in sigwait, sees them. */
static void block_signals(sigset_t *out_signals)
{
    const struct sigaction ignore = { .sa_handler = SIG_IGN };

    (void)sigemptyset(out_signals); /* these fail for numbers that are no signals only */
    (void)sigaddset(out_signals, SIGINT);
    (void)sigaddset(out_signals, SIGTERM);
    (void)sigaddset(out_signals, SIGHUP); /* nothing to read again: ignored */
    (void)pthread_sigmask(SIG_BLOCK, out_signals, NULL);
    (void)sigaction(SIGPIPE, &ignore, NULL); /* a peer that hangs up is no reason to end */
}

static void wait_for_end(const sigset_t *signals)
{
    int number = SIGHUP;

    while (number == SIGHUP) {
        (void)sigwait(signals, &number); /* fails for an invalid set only */
    }
}

static void say_started(struct kvb_log *log, const struct kvb_aggregator *aggregator)
{
    char port[24];

    kvb_log_write(
        log, KVB_LOG_INFO, "kvaggregator", "started", "version", KVB_VERSION, "http_port",
        kvb_log_u64(port, kvb_aggregator_http_port(aggregator)), NULL);
}

static int run(const struct kvb_aggregator_config *config, struct kvb_log *log)
{
    struct kvb_aggregator *aggregator = NULL;
    struct kvb_detail detail = { { 0 } };
    sigset_t signals;

    block_signals(&signals);
    const kvb_status status = kvb_aggregator_start(config, log, &aggregator, &detail);
    if (status != KVB_OK) {
        kvb_log_write(
            log, KVB_LOG_ERROR, "kvaggregator", "cannot start", "reason",
            detail.text[0] ? detail.text : kvb_status_name(status), NULL);
        return status == KVB_BAD_CONFIG ? kvb_daemon_exit_config : kvb_daemon_exit_failed;
    }
    say_started(log, aggregator);
    wait_for_end(&signals);
    kvb_log_write(log, KVB_LOG_INFO, "kvaggregator", "stopping", NULL);
    kvb_aggregator_stop(aggregator);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct kvb_daemon_options options = { 0 };
    struct kvb_aggregator_config config = { .forget_ms = 0 };
    struct kvb_conf_errors errors = { 0 };
    int exit_code = EXIT_SUCCESS;

    if (kvb_daemon_options_parse(&program, argc, argv, &options) != KVB_OK) {
        return kvb_daemon_exit_usage;
    }
    if (options.task == KVB_DAEMON_DONE) {
        return EXIT_SUCCESS;
    }
    const kvb_status status = kvb_aggregator_config_read(options.config_path, &config, &errors);
    if (kvb_daemon_options_settle(&options, status, &errors, &exit_code)) {
        struct kvb_log log = {
            .level = options.has_log_level ? options.log_level : config.log.level,
            .is_json = config.log.format == KVB_LOG_JSON,
            .fd = STDERR_FILENO,
        };
        exit_code = run(&config, &log);
    }
    kvb_aggregator_config_done(&config);
    return exit_code;
}
