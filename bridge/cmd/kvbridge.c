#include "cmd/daemon_options.h"
#include "daemon/bridge.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kvb_daemon_program program = {
    .about = "Takes the KV-cache events and load figures of inference engines from ZMQ and "
             "publishes them on NATS.",
    .default_config = "/etc/kvbridge/kvbridge.cfg",
    .print_keys = kvb_bridge_config_help,
};

static void block_signals(sigset_t *out_stop)
{
    (void)sigemptyset(out_stop);
    (void)sigaddset(out_stop, SIGINT);
    (void)sigaddset(out_stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, out_stop, NULL); /* every thread inherits it */
    (void)signal(SIGPIPE, SIG_IGN);
}

static int run(const struct kvb_bridge_config *config, struct kvb_log *log)
{
    struct kvb_bridge *bridge = NULL;
    struct kvb_detail detail = { .text = "" };
    sigset_t stop;
    int signal_number = 0;
    char port[24];

    block_signals(&stop);
    const kvb_status status = kvb_bridge_start(config, log, &bridge, &detail);
    if (status != KVB_OK) {
        kvb_log_write(
            log, KVB_LOG_ERROR, "kvbridge", "cannot start", "why",
            detail.text[0] ? detail.text : kvb_status_name(status), NULL);
        return status == KVB_BAD_CONFIG ? kvb_daemon_exit_config : kvb_daemon_exit_failed;
    }
    kvb_log_write(
        log, KVB_LOG_INFO, "kvbridge", "started", "version", KVB_VERSION, "http_port",
        kvb_log_u64(port, kvb_bridge_http_port(bridge)), NULL);
    (void)sigwait(&stop, &signal_number); /* fails for a bad set only */
    kvb_log_write(
        log, KVB_LOG_INFO, "kvbridge", "stopping", "signal", strsignal(signal_number), NULL);
    kvb_bridge_stop(bridge);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct kvb_daemon_options options;
    struct kvb_bridge_config config = { 0 };
    struct kvb_conf_errors errors = { 0 };
    int exit_code = EXIT_SUCCESS;

    if (kvb_daemon_options_parse(&program, argc, argv, &options) != KVB_OK) {
        return kvb_daemon_exit_usage;
    }
    if (options.task == KVB_DAEMON_DONE) {
        return EXIT_SUCCESS;
    }
    const kvb_status status = kvb_bridge_config_read(options.config_path, &config, &errors);
    if (kvb_daemon_options_settle(&options, status, &errors, &exit_code)) {
        struct kvb_log log = { .level =
                                   options.has_log_level ? options.log_level : config.log.level,
                               .is_json = config.log.format == KVB_LOG_JSON,
                               .fd = 2 };
        exit_code = run(&config, &log);
    }
    kvb_bridge_config_done(&config);
    return exit_code;
}
