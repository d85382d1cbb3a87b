#include "daemon/run.h"

#include "core/clock.h"
#include "daemon/options.h"

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
        log, KVB_LOG_ERROR, name, "configuration rejected; keeping the running one", "mistakes",
        kvb_log_u64(text, errors->count), NULL);
}

/* The next signal; 0: none came before the next notification is due. */
static int wait_for_signal(const sigset_t *signals, const struct kvb_notify *notify)
{
    int number = 0;

    if (!kvb_notify_is_open(notify)) {
        (void)sigwait(signals, &number); /* fails for an invalid set only */
        return number;
    }
    const uint64_t pause_ns = kvb_notify_update_pause_ns(&notify->update);
    const struct timespec pause = { .tv_sec = (time_t)(pause_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(pause_ns % KVB_NS_PER_S) };
    number = sigtimedwait(signals, NULL, &pause);
    return number > 0 ? number : 0;
}

bool kvb_daemon_is_ended_within(uint64_t wait_ns)
{
    const struct timespec wait = { .tv_sec = (time_t)(wait_ns / KVB_NS_PER_S),
                                   .tv_nsec = (long)(wait_ns % KVB_NS_PER_S) };
    sigset_t ends;

    (void)sigemptyset(&ends); /* as above */
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    return sigtimedwait(&ends, NULL, &wait) > 0;
}

static bool is_end_signal(int signal_number)
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
    while (!is_end_signal(number)) {
        struct kvb_liveness liveness = { .turns = 0 };
        running->read_liveness(running->daemon, &liveness);
        kvb_notify_look(notify, &liveness);
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
