#include "cmd/daemon_run.h"

#include "cmd/daemon_options.h"

void kvb_daemon_block_signals(sigset_t *out_signals)
{
    const struct sigaction ignore = { .sa_handler = SIG_IGN };

    (void)sigemptyset(out_signals); /* these fail for numbers that are no signals only */
    (void)sigaddset(out_signals, SIGINT);
    (void)sigaddset(out_signals, SIGTERM);
    (void)sigaddset(out_signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, out_signals, NULL);
    (void)sigaction(SIGPIPE, &ignore, NULL);
}

void kvb_daemon_wait_for_end(
    const sigset_t *signals, struct kvb_log *log, const char *name, uint16_t http_port)
{
    int number = SIGHUP;
    char text[24];

    kvb_log_write(
        log, KVB_LOG_INFO, name, "started", "version", KVB_VERSION, "http_port",
        kvb_log_u64(text, http_port), NULL);
    while (number == SIGHUP) {
        (void)sigwait(signals, &number); /* fails for an invalid set only */
    }
    kvb_log_write(
        log, KVB_LOG_INFO, name, "stopping", "signal", number == SIGINT ? "SIGINT" : "SIGTERM",
        NULL);
}

int kvb_daemon_say_not_started(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *detail)
{
    kvb_log_write(
        log, KVB_LOG_ERROR, name, "cannot start", "reason",
        detail->text[0] ? detail->text : kvb_status_name(status), NULL);
    return status == KVB_BAD_CONFIG ? kvb_daemon_exit_config : kvb_daemon_exit_failed;
}
