#include "cmd/daemon_options.h"
#include "cmd/daemon_run.h"
#include "daemon/bridge.h"

#include <stdio.h>
#include <stdlib.h>

/* kvbridge: listens to engines on ZMQ and tells NATS. */

static const struct kvb_daemon_program program = {
    .about = "Takes the KV-cache events and load figures of inference engines from ZMQ and "
             "publishes them on NATS.",
    .default_config = "/etc/kvbridge/kvbridge.cfg",
    .print_keys = kvb_bridge_config_help,
};

static int run(const struct kvb_bridge_config *config, struct kvb_log *log)
{
    struct kvb_bridge *bridge = NULL;
    struct kvb_detail detail = { { 0 } };
    sigset_t signals;

    kvb_daemon_block_signals(&signals);
    const kvb_status status = kvb_bridge_start(config, log, &bridge, &detail);
    if (status != KVB_OK) {
        return kvb_daemon_say_not_started(log, "kvbridge", status, &detail);
    }
    kvb_daemon_wait_for_end(&signals, log, "kvbridge", kvb_bridge_http_port(bridge));
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
