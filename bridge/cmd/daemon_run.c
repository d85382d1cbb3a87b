#include "cmd/daemon_run.h"

#include "cmd/daemon_options.h"
#include "core/clock.h"

#include <time.h>

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

void kvb_daemon_log_warnings(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors)
{
    for (size_t i = 0; i < errors->warning_count; i++) {
        kvb_log_write(
            log, KVB_LOG_WARNING, name, "configuration", "why", errors->warnings[i].text, NULL);
    }
}

void kvb_daemon_log_errors(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors)
{
    char text[24];

    for (size_t i = 0; i < errors->count && i < kvb_conf_max_errors; i++) {
        kvb_log_write(
            log, KVB_LOG_ERROR, name, "configuration", "why", errors->texts[i].text, NULL);
    }
    kvb_log_write(
        log, KVB_LOG_ERROR, name, "configuration not taken: all is as it was", "mistakes",
        kvb_log_u64(text, errors->count), NULL);
}

/* The next signal; 0: none came before the next look. */
static int wait_for_signal(const sigset_t *signals, const struct kvb_notify *notify)
{
    int number = 0;

    if (!kvb_notify_is_open(notify)) {
        (void)sigwait(signals, &number); /* fails for an invalid set only */
        return number;
    }
    const uint64_t pause_ns = kvb_notify_news_pause_ns(&notify->news);
    const struct timespec pause = { .tv_sec = (time_t)(pause_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(pause_ns % KVB_NS_PER_S) };
    number = sigtimedwait(signals, NULL, &pause);
    return number > 0 ? number : 0;
}

static bool is_end(int signal_number)
{
    return signal_number == SIGTERM || signal_number == SIGINT;
}

void kvb_daemon_wait_for_end(
    const sigset_t *signals, struct kvb_notify *notify, const struct kvb_daemon_running *running)
{
    int number = 0;
    char text[24];

    kvb_log_write(
        running->log, KVB_LOG_INFO, running->name, "started", "version", KVB_VERSION, "http_port",
        kvb_log_u64(text, running->http_port), NULL);
    while (!is_end(number)) {
        struct kvb_pulse pulse = { .turns = 0 };
        running->read_pulse(running->daemon, &pulse);
        kvb_notify_look(notify, &pulse);
        number = wait_for_signal(signals, notify);
        if (number == SIGHUP && running->reload) {
            kvb_notify_say_reloading(notify);
            running->reload(running->reloader);
            kvb_notify_say_reloaded(notify);
        }
    }
    kvb_notify_say_stopping(notify);
    kvb_log_write(
        running->log, KVB_LOG_INFO, running->name, "stopping", "signal",
        number == SIGINT ? "SIGINT" : "SIGTERM", NULL);
}

int kvb_daemon_say_not_started(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *detail)
{
    kvb_log_write(
        log, KVB_LOG_ERROR, name, "cannot start", "reason",
        detail->text[0] ? detail->text : kvb_status_name(status), NULL);
    return status == KVB_BAD_CONFIG ? kvb_daemon_exit_config : kvb_daemon_exit_failed;
}
