#include "daemon/run.h"

#include "core/clock.h"
#include "daemon/options.h"

#include <time.h>

void kvb_daemon_block_signals(sigset_t *out_signals)
{
    const struct sigaction ignore = { .sa_handler = SIG_IGN };

    (void)sigemptyset(out_signals); /* these fail only for invalid signal numbers */
    (void)sigaddset(out_signals, SIGINT);
    (void)sigaddset(out_signals, SIGTERM);
    (void)sigaddset(out_signals, SIGHUP);
    (void)sigaddset(out_signals, SIGIO);
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
    for (size_t i = 0; i < errors->count && i < kvb_conf_max_errors; i++) {
        kvb_log_write(
            log, KVB_LOG_ERROR, name, "configuration", "why", errors->texts[i].text, NULL);
    }
    kvb_log_write(
        log, KVB_LOG_ERROR, name, "configuration rejected; keeping the running one", "mistakes",
        KVB_LOG_U64(errors->count), NULL);
}

void kvb_daemon_log_renewal(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *why)
{
    if (status != KVB_OK) {
        kvb_log_write(
            log, KVB_LOG_ERROR, name, "the login of NATS was not changed", "why",
            why->text[0] ? why->text : kvb_status_name(status), NULL);
    }
}

/* When the next task without a signal is due; UINT64_MAX: never. */
static uint64_t
next_task_ns(const struct kvb_notify *notify, const struct kvb_file_watch *watch, uint64_t now_ns)
{
    const uint64_t notify_ns =
        notify->fd >= 0 ? now_ns + kvb_notify_update_pause_ns(&notify->update) : UINT64_MAX;
    const uint64_t compare_ns = watch ? kvb_file_watch_due_ns(watch) : UINT64_MAX;

    return notify_ns < compare_ns ? notify_ns : compare_ns;
}

/* Waits for the next signal; 0: none came until due_ns. */
static int wait_for_signal(const sigset_t *signals, uint64_t due_ns)
{
    int number = 0;

    if (due_ns == UINT64_MAX) {
        (void)sigwait(signals, &number); /* fails only for an invalid set */
        return number;
    }
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const uint64_t pause_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    const struct timespec pause = { .tv_sec = (time_t)(pause_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(pause_ns % KVB_NS_PER_S) };
    number = sigtimedwait(signals, NULL, &pause);
    return number > 0 ? number : 0;
}

/* True when the configuration must be read again. */
static bool wants_reload(const struct kvb_daemon_running *running, int signal_number)
{
    if (!running->reload) {
        return false;
    }
    if (signal_number == SIGIO && running->watch) {
        kvb_file_watch_take_events(running->watch, kvb_clock_monotonic_ns());
    }
    return signal_number == SIGHUP ||
           (running->watch && kvb_file_watch_has_changed(running->watch, kvb_clock_monotonic_ns()));
}

bool kvb_daemon_is_ended_within(uint64_t wait_ns)
{
    sigset_t ends;

    (void)sigemptyset(&ends); /* cannot fail, like the next two */
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    return wait_for_signal(&ends, kvb_clock_monotonic_ns() + wait_ns) > 0;
}

static bool is_end_signal(int signal_number)
{
    return signal_number == SIGTERM || signal_number == SIGINT;
}

void kvb_daemon_wait_for_end(
    const sigset_t *signals, struct kvb_notify *notify, const struct kvb_daemon_running *running)
{
    int number = 0;

    kvb_log_write(
        running->log, KVB_LOG_INFO, running->name, "started", "version", KVB_VERSION, "http_port",
        KVB_LOG_U64(running->http_port), NULL);
    while (!is_end_signal(number)) {
        struct kvb_liveness liveness = { .turns = 0 };
        running->read_liveness(running->daemon, &liveness);
        kvb_notify_look(notify, &liveness);
        const uint64_t due_ns = next_task_ns(notify, running->watch, kvb_clock_monotonic_ns());
        number = wait_for_signal(signals, due_ns);
        if (!is_end_signal(number) && wants_reload(running, number)) {
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
