#include "bus/bus.h"

#include "bus/link.h"
#include "bus/subject.h"
#include "core/clock.h"
#include "core/url_show.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { close_flush_ms = 500, close_wait_ms = 5000, soon_flush_ms = 100 };

/* A copy, or NULL for NULL and "". */
static kvb_status copy_text(const char *text, char **out)
{
    if (!text || !text[0]) {
        return KVB_OK;
    }
    *out = strdup(text);
    return *out ? KVB_OK : KVB_NO_MEMORY;
}

static void free_bus(struct kvb_bus *bus)
{
    pthread_cond_destroy(&bus->changed);
    pthread_mutex_destroy(&bus->lock);
    pthread_mutex_destroy(&bus->subscribing);
    (void)sem_destroy(&bus->flush_asked);
    free(bus->url);
    free(bus->name);
    free(bus->credentials);
    free(bus->ca_file);
    free(bus);
}

static struct kvb_bus *new_bus(void)
{
    struct kvb_bus *bus = calloc(1, sizeof *bus);
    pthread_condattr_t monotonic;

    if (!bus) {
        return NULL;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&bus->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&bus->lock, NULL);
    pthread_mutex_init(&bus->subscribing, NULL);
    (void)sem_init(&bus->flush_asked, 0, 0); /* cannot fail: 0 is no overflow */
    return bus;
}

static kvb_status copy_options(struct kvb_bus *bus, const struct kvb_bus_options *options)
{
    bus->sends_at_once = options->sends_at_once;
    bus->log = options->log;
    bus->on_change = options->on_change;
    bus->context = options->context;
    (void)kvb_urls_show(options->url, bus->shown_url, sizeof bus->shown_url);
    KVB_TRY(copy_text(options->url, &bus->url));
    KVB_TRY(copy_text(options->name ? options->name : "kvbridge", &bus->name));
    KVB_TRY(copy_text(options->credentials, &bus->credentials));
    return copy_text(options->ca_file, &bus->ca_file);
}

/* ---- The keeper: dials, reports changes, dials anew ------------------------------ */

/* What on_change was told last; the keeper's own. */
struct told {
    bool is_connected;
    uint64_t connects;
};

static void tell(struct kvb_bus *bus, bool is_connected)
{
    kvb_log_write(
        bus->log, is_connected ? KVB_LOG_INFO : KVB_LOG_WARNING, "bus",
        is_connected ? "connected" : "connection lost", "url", bus->shown_url, NULL);
    if (bus->on_change) {
        bus->on_change(bus->context, is_connected);
    }
}

/* Says each change once, a loss too that was over before we woke. */
static void tell_changes(struct kvb_bus *bus, struct told *told)
{
    const struct told now = {
        .is_connected = kvb_bus_is_connected(bus),
        .connects = kvb_bus_connects(bus),
    };
    const bool was_replaced = now.connects != told->connects;

    if (told->is_connected && (!now.is_connected || was_replaced)) {
        tell(bus, false);
    }
    if (now.is_connected && (!told->is_connected || was_replaced)) {
        tell(bus, true);
    }
    *told = now;
}

static bool has_news(const struct kvb_bus *bus, const struct told *told)
{
    return kvb_bus_is_connected(bus) != told->is_connected ||
           kvb_bus_connects(bus) != told->connects;
}

static struct timespec deadline_after(uint32_t wait_ms)
{
    const uint64_t at_ns = kvb_clock_monotonic_ns() + wait_ms * KVB_NS_PER_MS;

    return (struct timespec){ .tv_sec = (time_t)(at_ns / KVB_NS_PER_S),
                              .tv_nsec = (long)(at_ns % KVB_NS_PER_S) };
}

static void wait_before_dialing(struct kvb_bus *bus)
{
    const struct timespec deadline = deadline_after(kvb_bus_retry_ms(bus, bus->failed_dials));

    pthread_mutex_lock(&bus->lock);
    while (!bus->is_stopping && pthread_cond_timedwait(&bus->changed, &bus->lock, &deadline) == 0) {
    }
    pthread_mutex_unlock(&bus->lock);
}

/* Takes the broken link off; its subscriptions end before new ones begin, so
 * that no handler runs twice at once. */
static void retire_link(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    struct kvb_link *link = bus->link;
    bus->link = NULL;
    atomic_store_explicit(&bus->is_connected, false, memory_order_release);
    pthread_mutex_unlock(&bus->lock);
    if (link) {
        natsConnection_Close(link->nats);
        kvb_link_release(link);
    }
    pthread_mutex_lock(&bus->subscribing);
    kvb_subscriptions_retire(bus);
    pthread_mutex_unlock(&bus->subscribing);
}

static void make_current(struct kvb_bus *bus, struct kvb_link *link)
{
    pthread_mutex_lock(&bus->subscribing);
    const kvb_status status = kvb_subscriptions_make(bus, link);
    pthread_mutex_lock(&bus->lock);
    bus->link = link;
    link->is_broken |= status != KVB_OK;
    if (link->is_up && !link->is_broken) {
        atomic_fetch_add_explicit(&bus->connects, 1, memory_order_relaxed);
        atomic_store_explicit(&bus->is_connected, true, memory_order_release);
    }
    pthread_mutex_unlock(&bus->lock);
    pthread_mutex_unlock(&bus->subscribing);
}

/* At once when the reason is another, and again in pauses that grow. */
static void say_failure(struct kvb_bus *bus)
{
    const bool is_other = strcmp(bus->dial_failure.text, bus->said_failure.text) != 0;

    if (!kvb_log_backoff_due(&bus->dial_log, kvb_clock_monotonic_ns()) && !is_other) {
        return;
    }
    bus->said_failure = bus->dial_failure;
    kvb_log_write(
        bus->log, KVB_LOG_WARNING, "bus", "not connected, trying again", "url", bus->shown_url,
        "reason", bus->dial_failure.text, NULL);
}

static void dial(struct kvb_bus *bus)
{
    struct kvb_link *link = NULL;

    if (bus->failed_dials > 0) {
        wait_before_dialing(bus);
    }
    bus->failed_dials++;
    if (kvb_link_dial(bus, &link) == KVB_OK) {
        make_current(bus, link);
        bus->said_failure.text[0] = '\0';
        kvb_log_backoff_end(&bus->dial_log);
    } else {
        say_failure(bus);
    }
}

enum keeper_step { keeper_stop, keeper_dial, keeper_tell };

static enum keeper_step next_step(struct kvb_bus *bus, const struct told *told)
{
    enum keeper_step step = keeper_stop;

    pthread_mutex_lock(&bus->lock);
    while (!bus->is_stopping && bus->link && !bus->link->is_broken && !has_news(bus, told)) {
        pthread_cond_wait(&bus->changed, &bus->lock);
    }
    if (!bus->is_stopping) {
        step = has_news(bus, told) ? keeper_tell : keeper_dial;
    }
    pthread_mutex_unlock(&bus->lock);
    return step;
}

static void *keep(void *argument)
{
    struct kvb_bus *bus = argument;
    struct told told = { 0 };

    for (;;) {
        switch (next_step(bus, &told)) {
        case keeper_stop:
            return NULL;
        case keeper_tell:
            tell_changes(bus, &told);
            bus->failed_dials = told.is_connected ? 1 : bus->failed_dials;
            break;
        case keeper_dial:
            retire_link(bus);
            dial(bus);
            break;
        }
    }
}

/* ---- The flusher: writes out what waits in nats.c ---------------------------------- */

/* nats.c has no call that writes out and does not wait for a PONG, and its own thread sleeps
 * for a millisecond first: so another thread of ours waits for the PONG. */
static void *flush_when_asked(void *argument)
{
    struct kvb_bus *bus = argument;

    for (;;) {
        while (sem_wait(&bus->flush_asked) != 0) { /* a signal */
        }
        if (atomic_load(&bus->is_flusher_stopping)) {
            return NULL;
        }
        atomic_store(&bus->is_flush_asked, false); /* before: what comes now asks again */
        (void)kvb_bus_flush(bus, soon_flush_ms);   /* a loss is told by other ways */
    }
}

void kvb_bus_flush_soon(struct kvb_bus *bus)
{
    if (!atomic_load_explicit(&bus->has_unwritten, memory_order_relaxed)) {
        return;
    }
    atomic_store_explicit(&bus->has_unwritten, false, memory_order_relaxed);
    if (!atomic_exchange(&bus->is_flush_asked, true)) {
        (void)sem_post(&bus->flush_asked); /* cannot overflow: one at a time */
    }
}

static void stop_flusher(struct kvb_bus *bus)
{
    atomic_store(&bus->is_flusher_stopping, true);
    (void)sem_post(&bus->flush_asked);
    pthread_join(bus->flusher, NULL);
}

/* ---- Life ------------------------------------------------------------------------- */

static kvb_status no_thread(struct kvb_bus *bus, struct kvb_detail *detail)
{
    kvb_detail_set(detail, "no thread for the bus");
    free_bus(bus);
    return KVB_IO;
}

kvb_status kvb_bus_open(
    const struct kvb_bus_options *options, struct kvb_bus **out_bus, struct kvb_detail *detail)
{
    KVB_TRY(kvb_bus_check_options(options, detail));
    struct kvb_bus *bus = new_bus();
    if (!bus) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = copy_options(bus, options);
    if (status != KVB_OK) {
        free_bus(bus);
        return status;
    }
    if (pthread_create(&bus->flusher, NULL, flush_when_asked, bus) != 0) {
        return no_thread(bus, detail);
    }
    if (pthread_create(&bus->keeper, NULL, keep, bus) != 0) {
        stop_flusher(bus);
        return no_thread(bus, detail);
    }
    *out_bus = bus;
    return KVB_OK;
}

static void stop_keeper(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    bus->is_stopping = true;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->lock);
    pthread_join(bus->keeper, NULL);
}

/* True when no link is left.  False only if nats.c never ran a closed callback
 * (out of memory when posting it). */
static bool wait_for_links(struct kvb_bus *bus)
{
    const struct timespec deadline = deadline_after(close_wait_ms);
    bool is_late = false;

    pthread_mutex_lock(&bus->lock);
    while (bus->links > 0 && !is_late) {
        is_late = pthread_cond_timedwait(&bus->changed, &bus->lock, &deadline) != 0;
    }
    const bool is_done = bus->links == 0;
    pthread_mutex_unlock(&bus->lock);
    return is_done;
}

void kvb_bus_close(struct kvb_bus *bus)
{
    if (!bus) {
        return;
    }
    (void)kvb_bus_flush(bus, close_flush_ms); /* the connection may be away: nothing to save */
    stop_flusher(bus);
    stop_keeper(bus);
    retire_link(bus);
    kvb_subscriptions_orphan(bus);
    if (wait_for_links(bus)) {
        free_bus(bus);
    } /* else a callback may still come: rather leak than let it read freed memory */
}

bool kvb_bus_is_connected(const struct kvb_bus *bus)
{
    return atomic_load_explicit(&bus->is_connected, memory_order_acquire);
}

uint64_t kvb_bus_connects(const struct kvb_bus *bus)
{
    return atomic_load_explicit(&bus->connects, memory_order_relaxed);
}

/* ---- Sending ------------------------------------------------------------------------ */

/* A failed write may have left half a message on the wire. */
static kvb_status finish_write(struct kvb_link *link, natsStatus answer)
{
    const kvb_status status = kvb_bus_from_nats(answer);

    if (status == KVB_IO) {
        kvb_link_break(link);
    }
    kvb_link_release(link);
    return status;
}

static natsStatus
publish_one(struct kvb_link *link, const char *subject, const char *reply, kvb_span payload)
{
    const int len = (int)payload.len;

    return reply ? natsConnection_PublishRequest(link->nats, subject, reply, payload.data, len)
                 : natsConnection_Publish(link->nats, subject, payload.data, len);
}

/* One look at the subject, and one at the link, for all of them. */
static kvb_status publish(
    struct kvb_bus *bus, const char *subject, const char *reply, const kvb_span *payloads,
    size_t count, size_t *out_sent)
{
    natsStatus answer = NATS_OK;

    if (!kvb_subject_is_valid(subject, false) || (reply && !kvb_subject_is_valid(reply, false))) {
        return KVB_BAD_INPUT;
    }
    struct kvb_link *link = kvb_link_use(bus);
    if (!link) {
        return KVB_AGAIN;
    }
    for (*out_sent = 0; *out_sent < count && answer == NATS_OK; *out_sent += answer == NATS_OK) {
        const kvb_span payload = payloads[*out_sent];
        answer =
            payload.len > INT_MAX ? NATS_MAX_PAYLOAD : publish_one(link, subject, reply, payload);
    }
    if (*out_sent > 0) {
        atomic_store_explicit(&bus->has_unwritten, true, memory_order_relaxed);
    }
    return finish_write(link, answer);
}

kvb_status kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload)
{
    return kvb_bus_publish_request(bus, subject, NULL, payload);
}

kvb_status kvb_bus_publish_request(
    struct kvb_bus *bus, const char *subject, const char *reply, kvb_span payload)
{
    size_t sent = 0;
    return publish(bus, subject, reply, &payload, 1, &sent);
}

kvb_status kvb_bus_publish_many(
    struct kvb_bus *bus, const char *subject, const kvb_span *payloads, size_t count,
    size_t *out_sent)
{
    *out_sent = 0;
    return publish(bus, subject, NULL, payloads, count, out_sent);
}

kvb_status kvb_bus_flush(struct kvb_bus *bus, uint32_t timeout_ms)
{
    struct kvb_link *link = kvb_link_use(bus);

    if (!link) {
        return KVB_AGAIN;
    }
    /* A missing PONG tears nothing: pings will find out. */
    const kvb_status status =
        kvb_bus_from_nats(natsConnection_FlushTimeout(link->nats, timeout_ms));
    kvb_link_release(link);
    return status;
}
