#include "bus/link.h"
#include "bus/login.h"
#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

/* ---- The connection manager: dials, and reports changes ---- */

static void report_change(struct kvb_bus *bus, bool is_connected)
{
    kvb_log_write(
        bus->log, is_connected ? KVB_LOG_INFO : KVB_LOG_WARNING, "bus",
        is_connected ? "connected" : "connection lost", "url", bus->shown_url, NULL);
    if (bus->on_change) {
        bus->on_change(bus->context, is_connected);
    }
}

/* Reports each change once, including a loss that ended before this thread woke. */
static void publish_changes(struct kvb_bus *bus)
{
    const struct kvb_bus_reported was = bus->reported;
    const struct kvb_bus_reported now = {
        .is_connected = kvb_bus_is_connected(bus),
        .connects = kvb_bus_connects(bus),
    };
    /* A link that was replaced within one step is a loss for readers, too. */
    const bool was_replaced = now.connects != was.connects;

    if (was.is_connected && (!now.is_connected || was_replaced)) {
        report_change(bus, false);
    }
    if (now.is_connected && (!was.is_connected || was_replaced)) {
        report_change(bus, true);
    }
    /* kvb_bus_look() compares with it on the control thread. */
    pthread_mutex_lock(&bus->lock);
    bus->reported = now;
    pthread_mutex_unlock(&bus->lock);
}

static bool has_update(const struct kvb_bus *bus)
{
    return kvb_bus_is_connected(bus) != bus->reported.is_connected ||
           kvb_bus_connects(bus) != bus->reported.connects;
}

static const struct kvb_backoff_range between_dials = { .first_ns = 100 * KVB_NS_PER_MS,
                                                        .longest_ns = KVB_NS_PER_S };

static void wait_before_dialing(struct kvb_bus *bus)
{
    const struct timespec deadline = kvb_bus_deadline(kvb_bus_retry_ms(bus));

    pthread_mutex_lock(&bus->lock);
    /* Flushes and dials broadcast as well; only the end of the bus cuts the pause short. */
    while (!bus->is_stopping && pthread_cond_timedwait(&bus->changed, &bus->lock, &deadline) == 0) {
    }
    pthread_mutex_unlock(&bus->lock);
}

void kvb_bus_retire_link(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    /* Out of reach first: no call takes the link any more when it is closed. */
    struct kvb_link *link = bus->link;
    bus->link = NULL;
    atomic_store_explicit(&bus->is_connected, false, memory_order_release);
    pthread_cond_broadcast(&bus->changed); /* wakes callers that wait for a PONG on this link */
    pthread_mutex_unlock(&bus->lock);
    if (link) {
        /* Before the close: its last INFO may name servers for the next dial. */
        kvb_link_note_servers(link);
        kvb_link_close(link);
    }
    /* This waits for handlers, which may publish: so not under `lock`. */
    pthread_mutex_lock(&bus->subscribing);
    kvb_subscriptions_retire(bus);
    pthread_mutex_unlock(&bus->subscribing);
}

static void note_payload_ceiling(struct kvb_bus *bus, struct kvb_link *link)
{
    const int64_t max = natsConnection_GetMaxPayload(link->nats);
    size_t ceiling = kvb_max_nats_payload_bytes;
    char text[24];

    if (max > 0 && max < kvb_min_nats_payload_bytes) {
        kvb_log_write(
            bus->log, KVB_LOG_WARNING, "bus",
            "max_payload of nats-server is below 48 KiB: raise it, or messages are lost", "url",
            bus->shown_url, "max_payload", kvb_log_number(text, (uint64_t)max), NULL);
        /* Messages are not made smaller than this: those above the server's limit fail. */
        ceiling = kvb_min_nats_payload_bytes;
    } else if (max > 0 && max < kvb_max_nats_payload_bytes) {
        ceiling = (size_t)max;
    }
    atomic_store_explicit(&bus->max_payload, ceiling, memory_order_relaxed);
}

/* login_print: what take_login() returned before the link was dialed. */
static void make_current(struct kvb_bus *bus, struct kvb_link *link, uint64_t login_print)
{
    bus->login_print = login_print;
    bus->connected_ns = kvb_clock_monotonic_ns();
    pthread_mutex_lock(&bus->subscribing);
    /* Held until the link is current: a subscription that is added in between would be made on
     * neither link. */
    const kvb_status status = kvb_subscriptions_make(bus, link);
    note_payload_ceiling(bus, link);
    pthread_mutex_lock(&bus->lock);
    /* Current even when broken: the manager then retires it like any other, and dials again. */
    bus->link = link;
    kvb_bus_watch_begin(&bus->watch, kvb_clock_monotonic_ns());
    /* on_closed() may have come first, and must not be forgotten. */
    link->is_broken |= status != KVB_OK;
    if (!link->is_broken) {
        atomic_fetch_add_explicit(&bus->connects, 1, memory_order_relaxed);
        atomic_store_explicit(&bus->is_connected, true, memory_order_release);
    }
    pthread_mutex_unlock(&bus->lock);
    pthread_mutex_unlock(&bus->subscribing);
}

/* Logs a failed dial at once when the reason is new; else at growing intervals. */
static void say_failure(struct kvb_bus *bus)
{
    const bool is_other = strcmp(bus->dial_failure.text, bus->said_failure.text) != 0;

    /* Asked for a new reason, too: its line then counts for the interval. */
    if (!kvb_log_backoff_due(&bus->dial_log, kvb_clock_monotonic_ns()) && !is_other) {
        return;
    }
    bus->said_failure = bus->dial_failure;
    const char *remedy = kvb_nats_remedy(bus->dial_failure.text);
    kvb_log_write(
        bus->log, KVB_LOG_WARNING, "bus", "not connected, trying again", "url", bus->shown_url,
        "reason", bus->dial_failure.text, remedy[0] ? "remedy" : NULL, remedy, NULL);
}

/* ---- The login ---- */

static const uint64_t check_login_ns = 10 * KVB_NS_PER_S;

/* Called before each dial. */
static uint64_t take_login(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    struct kvb_bus_login *next = bus->next_login;
    bus->next_login = NULL;
    bus->check_login_at_ns = kvb_clock_monotonic_ns() + check_login_ns;
    pthread_mutex_unlock(&bus->lock);
    if (next) {
        /* a changed prefix needs a restart, because reply subjects in use begin with the old one */
        memcpy(next->inbox_prefix, bus->login.inbox_prefix, sizeof next->inbox_prefix);
        bus->login = *next;
        free(next);
    }
    /* Before the dial reads the files: when one changes in between, the next check finds another
     * hash. */
    return kvb_login_print(&bus->login);
}

static void show_failure(struct kvb_bus *bus, kvb_status status)
{
    pthread_mutex_lock(&bus->lock);
    bus->shown_failure = status == KVB_OK ? (struct kvb_detail){ 0 } : bus->dial_failure;
    pthread_mutex_unlock(&bus->lock);
}

static void dial_link(struct kvb_bus *bus)
{
    struct kvb_link *link = NULL;

    /* The first pause again, not none: after a loss, not all clients dial at once.  A connection
     * that ended at once counts as a failed dial: its subscriptions may be what the server refuses.
     */
    if (bus->connected_ns > 0 &&
        kvb_clock_monotonic_ns() - bus->connected_ns >= between_dials.longest_ns) {
        bus->pauses = (struct kvb_backoff){ .pause_ns = between_dials.first_ns };
    }
    bus->connected_ns = 0;
    if (bus->pauses.pause_ns > 0) {
        wait_before_dialing(bus);
    }
    /* Each dial counts as failed until its connection has lasted. */
    (void)kvb_backoff_fail(&bus->pauses, &between_dials, kvb_clock_monotonic_ns());
    const uint64_t print = take_login(bus);
    const kvb_status status = kvb_link_dial(bus, &link);
    show_failure(bus, status);
    if (status == KVB_OK) {
        make_current(bus, link, print);
        /* The same failure after this connection is news again. */
        bus->said_failure.text[0] = '\0';
        kvb_log_backoff_end(&bus->dial_log);
    } else {
        say_failure(bus);
    }
}

/* ---- A server in lame duck mode ---- */

static const uint64_t left_last_ns = 120 * KVB_NS_PER_S; /* lame_duck_duration's default */
static const uint64_t leave_retry_ns = KVB_NS_PER_S;

enum { leave_flush_ms = 200 };

/* Stores which server is left, and the other servers of its cluster, which its last INFO names. */
static void note_left_server(struct kvb_bus *bus, uint64_t now_ns)
{
    char url[1024];

    kvb_link_note_servers(bus->link);
    if (natsConnection_GetConnectedUrl(bus->link->nats, url, sizeof url) == NATS_OK && url[0]) {
        (void)kvb_url_show(url, bus->left_server, sizeof bus->left_server);
        bus->left_until_ns = now_ns + left_last_ns;
    }
}

static void say_leaving(struct kvb_bus *bus, bool has_other)
{
    if (!has_other && !kvb_log_backoff_due(&bus->dial_log, kvb_clock_monotonic_ns())) {
        return;
    }
    kvb_log_write(
        bus->log, KVB_LOG_WARNING, "bus",
        has_other ? "server in lame duck mode, another one is used"
                  : "server in lame duck mode, no other one answers: it is used until it stops",
        "server", bus->left_server, "url", bus->shown_url, "reason",
        has_other ? "" : bus->dial_failure.text, NULL);
}

/* Makes a link that was dialed meanwhile the current one.  What the old one had under way may be
 * lost; readers detect it, and repair their lists. */
static void use_instead(struct kvb_bus *bus, struct kvb_link *link, uint64_t login_print)
{
    kvb_log_backoff_end(&bus->dial_log);
    (void)kvb_bus_flush(bus, leave_flush_ms);
    kvb_bus_retire_link(bus);
    make_current(bus, link, login_print);
}

/* Dials another server before it leaves this one.  When no other answers, this one is used until it
 * stops. */
static void change_server(struct kvb_bus *bus)
{
    struct kvb_link *link = NULL;

    note_left_server(bus, kvb_clock_monotonic_ns());
    const uint64_t print = take_login(bus);
    /* The list has this server last, and in lame duck mode it accepts nobody: another answers. */
    const bool has_other = kvb_link_dial(bus, &link) == KVB_OK;
    say_leaving(bus, has_other);
    /* Counted from the end of the dial, which may last longer than the pause. */
    bus->leave_at_ns = kvb_clock_monotonic_ns() + leave_retry_ns;
    if (has_other) {
        use_instead(bus, link, print);
    }
}

/* ---- Another login ---- */

/* Dials with a login that has changed, or whose files have, before it leaves the connection: one
 * that the server refuses leaves it as it is. */
static void check_for_new_login(struct kvb_bus *bus)
{
    struct kvb_link *link = NULL;
    /* It is in use from here on even if it is refused now: a dial after a loss tries it again. */
    const uint64_t print = take_login(bus);

    if (print == bus->login_print) {
        return;
    }
    if (kvb_link_dial(bus, &link) == KVB_OK) {
        kvb_log_write(
            bus->log, KVB_LOG_INFO, "bus", "the login has changed: connecting with the new one",
            "url", bus->shown_url, NULL);
        bus->said_failure.text[0] = '\0';
        use_instead(bus, link, print);
    } else if (
        strcmp(bus->dial_failure.text, bus->said_failure.text) != 0 ||
        kvb_log_backoff_due(&bus->dial_log, kvb_clock_monotonic_ns())) {
        bus->said_failure = bus->dial_failure;
        kvb_log_write(
            bus->log, KVB_LOG_WARNING, "bus",
            "the changed login cannot be used: the connection made before stays", "url",
            bus->shown_url, "reason", bus->dial_failure.text, NULL);
    }
}

/* ---- The steps of the manager ----
 *
 *     control thread: a look twice a second --- a step is due ---> thread kvb-nats: steps
 *            ^                                                      |
 *            +----------------- no step is left: the thread ends ---+
 *
 * A step may wait for a server, so it runs on a thread, which lasts as long as there are steps. */

enum manager_step {
    manager_rest,
    manager_dial,
    manager_change,
    manager_renew,
    manager_report,
};

/* lock is held, as in the next four. */
static bool is_served(const struct kvb_bus *bus)
{
    return bus->link && !bus->link->is_broken;
}

static bool must_leave(const struct kvb_bus *bus)
{
    return is_served(bus) && bus->link->is_lame && kvb_clock_monotonic_ns() >= bus->leave_at_ns;
}

static bool must_check_login(const struct kvb_bus *bus)
{
    return is_served(bus) && kvb_clock_monotonic_ns() >= bus->check_login_at_ns;
}

static void look_at_watch(struct kvb_bus *bus)
{
    switch (kvb_bus_watch_look(&bus->watch, kvb_clock_monotonic_ns())) {
    case KVB_BUS_WATCH_REST:
        break;
    case KVB_BUS_WATCH_PING:
        /* The flusher sends the PING, and waits for the PONG in place of this thread. */
        kvb_flusher_request(bus);
        break;
    case KVB_BUS_WATCH_CLOSE:
        /* Not kvb_link_break(), which takes the lock; the caller then starts the manager. */
        bus->link->is_broken = true;
        bus->is_silent = true;
        atomic_store_explicit(&bus->is_connected, false, memory_order_release);
        break;
    }
}

static enum manager_step next_step(const struct kvb_bus *bus)
{
    /* Reports come before dials: on_change() learns of a loss before a dial waits for a server. */
    return bus->is_stopping        ? manager_rest
           : has_update(bus)       ? manager_report
           : !is_served(bus)       ? manager_dial
           : must_leave(bus)       ? manager_change
           : must_check_login(bus) ? manager_renew
                                   : manager_rest;
}

static void say_silence(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    const bool is_silent = bus->is_silent;
    bus->is_silent = false;
    pthread_mutex_unlock(&bus->lock);
    if (is_silent) {
        kvb_log_write(
            bus->log, KVB_LOG_WARNING, "bus", "no answer for 2 s, reconnecting", "url",
            bus->shown_url, NULL);
    }
}

/* The next step; manager_rest: none is left, and the thread counts as ended. */
static enum manager_step take_step(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    const enum manager_step step = next_step(bus);
    /* Decided under the same lock: for what changes later, the next look starts another manager. */
    bus->is_manager_running = step != manager_rest;
    if (step == manager_rest) {
        pthread_cond_broadcast(&bus->changed); /* a closer waits for it */
        kvb_bus_wake_manager(bus);
    }
    pthread_mutex_unlock(&bus->lock);
    return step;
}

static void *keep_connected(void *argument)
{
    struct kvb_bus *bus = argument;

    (void)pthread_setname_np(pthread_self(), "kvb-nats"); /* for top -H; may fail */
    for (;;) {
        switch (take_step(bus)) {
        case manager_rest:
            return NULL;
        case manager_report:
            /* The reason first, then the loss. */
            say_silence(bus);
            publish_changes(bus);
            break;
        case manager_change:
            change_server(bus);
            break;
        case manager_renew:
            check_for_new_login(bus);
            break;
        case manager_dial:
            kvb_bus_retire_link(bus);
            dial_link(bus);
            break;
        }
    }
}

uint64_t kvb_bus_look(void *context, uint64_t now_ns)
{
    struct kvb_bus *bus = context;
    /* Without the lock, which the callbacks of nats.c take in there. */
    const uint64_t tend_ns = kvb_sockets_tend(bus, now_ns);

    pthread_mutex_lock(&bus->lock);
    uint64_t due_ns = now_ns + kvb_bus_look_ms * KVB_NS_PER_MS;
    if (is_served(bus)) {
        look_at_watch(bus);
        due_ns = kvb_bus_watch_due_ns(&bus->watch);
    }
    due_ns = tend_ns < due_ns ? tend_ns : due_ns;
    /* The flag is set before the thread runs, so that stop_manager() waits for it. */
    const bool must_start = !bus->is_manager_running && next_step(bus) != manager_rest;
    bus->is_manager_running |= must_start;
    pthread_mutex_unlock(&bus->lock);
    if (must_start) {
        kvb_thread_join(&bus->manager); /* it has ended, if there was one */
        if (kvb_thread_start(&bus->manager, keep_connected, bus) != KVB_OK) {
            pthread_mutex_lock(&bus->lock);
            bus->is_manager_running = false; /* the next look tries again */
            pthread_cond_broadcast(&bus->changed);
            pthread_mutex_unlock(&bus->lock);
        }
    }
    return due_ns;
}
