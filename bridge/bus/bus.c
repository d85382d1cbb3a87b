#include "bus/bus.h"

#include "bus/link.h"
#include "bus/subject.h"
#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/url_show.h"
#include "wire/json/tree.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Characters of the URL in a sentence; the rest of the buffer is for the reason. */
enum { shown_url_chars = 100 };

enum { max_acknowledgement_bytes = 512, max_unwritten_bytes = 32 << 10 };

enum { close_flush_ms = 500, close_wait_ms = 5000, close_dial_wait_ms = 1500, close_look_ms = 50 };

/* Copies text into *out; leaves *out as it is for NULL and "". */
static kvb_status copy_option_text(const char *text, char **out)
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
    (void)sem_destroy(&bus->flush_requested);
    free(bus->url);
    free(bus->name);
    for (size_t i = 0; i < bus->discovered_count; i++) {
        free(bus->discovered[i]);
    }
    free(bus->next_login);
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
    /* Its deadlines come from kvb_bus_deadline(): setting the realtime clock moves none. */
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&bus->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&bus->lock, NULL);
    pthread_mutex_init(&bus->subscribing, NULL);
    (void)sem_init(&bus->flush_requested, 0, 0); /* cannot fail: 0 is a valid value */
    return bus;
}

static kvb_status copy_options(struct kvb_bus *bus, const struct kvb_bus_options *options)
{
    bus->sends_at_once = options->sends_at_once;
    bus->log = options->log;
    bus->on_change = options->on_change;
    bus->context = options->context;
    /* Until a server has said what it takes. */
    atomic_init(&bus->max_payload, kvb_max_nats_payload_bytes);
    (void)kvb_urls_show(options->url, bus->shown_url, sizeof bus->shown_url);
    KVB_TRY(copy_option_text(options->url, &bus->url));
    if (options->login) {
        bus->login = *options->login;
    }
    /* Apart from the login, which the manager may replace: requests read it on any thread. */
    (void)snprintf(
        bus->inbox_prefix, sizeof bus->inbox_prefix, "%s", kvb_bus_login_inbox(&bus->login));
    return copy_option_text(options->name ? options->name : "kvbridge", &bus->name);
}

/* ---- Opening and closing ---------------------------------------------------------- */

static void remove_bus_job(struct kvb_bus *bus)
{
    kvb_job_remove(bus->job);
    kvb_control_free(bus->own_control);
    bus->job = NULL;
    bus->own_control = NULL;
}

static kvb_status add_bus_job(struct kvb_bus *bus, struct kvb_control *control)
{
    const struct kvb_job_options options = { .turn = kvb_bus_look,
                                             .end = kvb_sockets_end,
                                             .context = bus };

    if (!control) {
        KVB_TRY(kvb_control_new(&bus->own_control));
        KVB_TRY(kvb_control_start(bus->own_control));
    }
    return kvb_job_add(control ? control : bus->own_control, &options, &bus->job);
}

kvb_status kvb_bus_open(
    const struct kvb_bus_options *options, struct kvb_bus **out_bus, struct kvb_detail *detail)
{
    KVB_TRY(kvb_bus_check_options(options, detail));
    struct kvb_bus *bus = new_bus();
    if (!bus) {
        return KVB_NO_MEMORY;
    }
    kvb_status status = copy_options(bus, options);
    if (status == KVB_OK) {
        status = add_bus_job(bus, options->control);
    }
    if (status == KVB_OK) {
        /* The flusher comes last: nothing fails after it, so it need not be stopped here. */
        status = kvb_flusher_start(bus);
    }
    if (status != KVB_OK) {
        if (status == KVB_IO) {
            kvb_detail_set(detail, "cannot start a thread for the connection to NATS");
        }
        /* The job has had no turn, since nobody has woken it: no dial is under way. */
        remove_bus_job(bus);
        free_bus(bus);
        return status;
    }
    /* Set before the first dial, whose on_change may already use it. */
    *out_bus = bus;
    kvb_job_wake(bus->job); /* dials */
    return KVB_OK;
}

/* Afterwards the job is gone, which kvb_bus_wake_manager() knows by is_stopping. */
static void stop_manager(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    bus->is_stopping = true;
    pthread_cond_broadcast(&bus->changed);
    /* A dial and the pause before it end at is_stopping, so no name server is waited for here. */
    while (bus->is_manager_running) {
        pthread_cond_wait(&bus->changed, &bus->lock);
    }
    pthread_mutex_unlock(&bus->lock);
    remove_bus_job(bus);            /* first: its turn may have just started the manager */
    kvb_thread_join(&bus->manager); /* it touches no job any more */
}

/* True when all links, dials and the flusher have ended, so that nats.c calls back no more.  False
 * after the time limit: a dial still waits for a name server, or nats.c had no memory to call a
 * closed callback. */
static bool wait_for_ends(struct kvb_bus *bus)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    bool is_late = false;

    pthread_mutex_lock(&bus->lock);
    while ((bus->links > 0 || bus->is_flusher_running || bus->dials > 0) && !is_late) {
        /* A link may still call back, so it gets more time; a dial alone is waiting for a name
         * server. */
        const bool is_dial_alone = bus->links == 0 && !bus->is_flusher_running;
        const uint64_t wait_ms = is_dial_alone ? close_dial_wait_ms : close_wait_ms;
        const struct timespec look = kvb_bus_deadline(close_look_ms);
        /* Again at each look: a dial that was in no system call just then has not noticed. */
        kvb_dials_interrupt(bus);
        (void)pthread_cond_timedwait(&bus->changed, &bus->lock, &look);
        is_late = kvb_clock_monotonic_ns() - began_ns >= wait_ms * KVB_NS_PER_MS;
    }
    const bool is_done = bus->links == 0 && !bus->is_flusher_running && bus->dials == 0;
    pthread_mutex_unlock(&bus->lock);
    return is_done;
}

void kvb_bus_close(struct kvb_bus *bus)
{
    if (!bus) {
        return;
    }
    (void)kvb_bus_flush(bus, close_flush_ms); /* not connected: nothing is buffered */
    stop_manager(bus);
    kvb_bus_retire_link(bus); /* ends the wait of a flusher for a PONG */
    kvb_flusher_stop(bus);
    /* Their owners unsubscribe later, and must not touch the bus then. */
    kvb_subscriptions_orphan(bus);
    if (wait_for_ends(bus)) {
        pthread_join(bus->flusher, NULL);
        free_bus(bus);
    } /* else leak the bus: a late callback would read freed memory */
}

kvb_status
kvb_bus_renew(struct kvb_bus *bus, const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    struct kvb_bus_login *copy = NULL;
    const char *key = NULL;
    struct kvb_detail why = { 0 };

    /* The files are read on the caller's thread: what cannot be used is never handed over. */
    if (login && kvb_bus_login_check(login, bus->url, &key, &why) != KVB_OK) {
        kvb_detail_set(detail, "nats.%s: %s", key, why.text);
        return KVB_BAD_CONFIG;
    }
    if (login) {
        copy = malloc(sizeof *copy);
        if (!copy) {
            return KVB_NO_MEMORY;
        }
        *copy = *login;
    }
    pthread_mutex_lock(&bus->lock);
    if (copy) {
        /* Only the newest counts; the manager may not have taken the one before. */
        free(bus->next_login);
        bus->next_login = copy;
    }
    /* Without another login, too: the files of the one in use may have changed. */
    bus->check_login_at_ns = 0;
    kvb_bus_wake_manager(bus);
    pthread_mutex_unlock(&bus->lock);
    return KVB_OK;
}

void kvb_bus_dial_failure(struct kvb_bus *bus, struct kvb_detail *out)
{
    pthread_mutex_lock(&bus->lock);
    *out = bus->shown_failure;
    pthread_mutex_unlock(&bus->lock);
}

const char *kvb_nats_remedy(const char *failure)
{
    static const struct {
        const char *words;
        const char *remedy;
    } rows[] = {
        { "Authorization Violation", "the server knows no such user or refuses the secret: compare "
                                     "the login in `nats` with the server's users" },
        { "Authentication Expired", "the credentials have ended: issue new ones" },
        /* nats.c names the certificate where it does not accept that of the server */
        { ":cert=", "nats.ca_file must have the authority of the server's "
                    "certificate, which must be valid and "
                    "name the host of nats.url" },
        { "Secure Connection not available", "the server has no TLS: write nats:// in nats.url" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (strcasestr(failure, rows[i].words)) {
            return rows[i].remedy;
        }
    }
    return "";
}

void kvb_bus_explain_absence(struct kvb_bus *bus, struct kvb_detail *out)
{
    struct kvb_detail failure;

    kvb_bus_dial_failure(bus, &failure);
    const char *remedy = kvb_nats_remedy(failure.text);
    kvb_detail_set(
        out, "not connected to NATS at %.*s: %s%s%s", shown_url_chars, bus->shown_url,
        failure.text[0] != '\0' ? failure.text : "is nats-server running?", remedy[0] ? "; " : "",
        remedy);
}

size_t kvb_bus_max_payload(const struct kvb_bus *bus)
{
    return atomic_load_explicit(&bus->max_payload, memory_order_relaxed);
}

bool kvb_bus_is_denied(
    struct kvb_bus *bus, kvb_denial_is_vital is_vital, const void *context,
    struct kvb_detail *out_why)
{
    pthread_mutex_lock(&bus->lock);
    /* Another connection may have other permissions, so denials go with their link. */
    const struct kvb_denial *denial =
        bus->link
            ? kvb_denials_find(&bus->link->denials, kvb_clock_monotonic_ns(), is_vital, context)
            : NULL;
    const bool is_denied = denial != NULL;
    if (is_denied) {
        kvb_denial_explain(denial, out_why);
    }
    pthread_mutex_unlock(&bus->lock);
    return is_denied;
}

void kvb_bus_denials(struct kvb_bus *bus, uint64_t *out_publishes, uint64_t *out_subscriptions)
{
    pthread_mutex_lock(&bus->lock);
    *out_publishes = bus->denied_publishes;
    *out_subscriptions = bus->denied_subscriptions;
    pthread_mutex_unlock(&bus->lock);
}

/* ---- Sending ------------------------------------------------------------------------ */

static kvb_status finish_write(struct kvb_link *link, natsStatus answer)
{
    const kvb_status status = kvb_bus_from_nats(answer);

    /* The failed write may have sent half a message: nothing may follow it on this link. */
    if (status == KVB_IO) {
        kvb_link_break(link);
    }
    kvb_link_release(link);
    return status;
}

/* Sends all payloads over the same link. */
static kvb_status publish_payloads(
    struct kvb_bus *bus, const char *subject, const char *reply, const kvb_span *payloads,
    size_t count, size_t *out_sent)
{
    natsStatus answer = NATS_OK;

    /* A blank or a line end in a subject would break the line of the protocol. */
    if (!kvb_subject_is_valid(subject, false) || (reply && !kvb_subject_is_valid(reply, false))) {
        return KVB_BAD_INPUT;
    }
    struct kvb_link *link = kvb_link_use(bus);
    if (!link) {
        return KVB_AGAIN;
    }
    for (*out_sent = 0; *out_sent < count && answer == NATS_OK; *out_sent += answer == NATS_OK) {
        const kvb_span payload = payloads[*out_sent];
        /* nats.c takes lengths as int. */
        answer = payload.len > INT_MAX ? NATS_MAX_PAYLOAD
                                       : kvb_socket_publish(link, subject, reply, payload);
    }
    /* After a failure, too: the messages before it are in the buffer. */
    if (*out_sent > 0 && !bus->sends_at_once) {
        atomic_store_explicit(&bus->has_unwritten, true, memory_order_relaxed);
    }
    /* The buffer of an attached link has no end of its own. */
    if (kvb_socket_is_attached(link) &&
        natsConnection_Buffered(link->nats) >= max_unwritten_bytes &&
        kvb_socket_write(link) != KVB_OK) {
        answer = NATS_IO_ERROR;
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
    return publish_payloads(bus, subject, reply, &payload, 1, &sent);
}

kvb_status kvb_bus_publish_many(
    struct kvb_bus *bus, const char *subject, const kvb_span *payloads, size_t count,
    size_t *out_sent)
{
    *out_sent = 0;
    return publish_payloads(bus, subject, NULL, payloads, count, out_sent);
}

/* ---- Requests ---- */

static void drop_message(natsMsg **message)
{
    natsMsg_Destroy(*message); /* NULL is fine */
}

static void explain_request(
    struct kvb_detail *detail, const char *subject, uint32_t timeout_ms, natsStatus status)
{
    switch (status) {
    case NATS_NO_RESPONDERS:
        kvb_detail_set(detail, "nobody answers %s", subject);
        break;
    case NATS_TIMEOUT:
        kvb_detail_set(detail, "no answer to %s within %u ms", subject, timeout_ms);
        break;
    default:
        kvb_detail_set(detail, "%s: %s", subject, natsStatus_GetText(status));
        break;
    }
}

/* {"stream":"S","seq":7}: a stream of JetStream captures the subject, and acknowledges the request
 * before a responder answers it, or without one. */
static bool is_acknowledgement(const natsMsg *message)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = { .depth = 4, .containers = 8, .values = 16 };
    const int len = natsMsg_GetDataLength(message);
    const kvb_span text = { (const uint8_t *)natsMsg_GetData(message), len > 0 ? (size_t)len : 0 };

    return text.len <= max_acknowledgement_bytes &&
           kvb_json_parse(text, &budget, &root) == KVB_OK &&
           kvb_json_member_text(root, "stream")[0] != '\0' && kvb_json_member(root, "seq");
}

/* The first answer that is no acknowledgement. */
static natsStatus
next_answer(natsSubscription *inbox, uint32_t timeout_ms, natsMsg **out_answer, bool *out_was_kept)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + timeout_ms * KVB_NS_PER_MS;

    for (;;) {
        KVB_OWN(drop_message) natsMsg *message = NULL;
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        /* The time is that of the whole request: an acknowledgement does not begin it anew. */
        const int64_t left_ms = now_ns < end_ns ? (int64_t)((end_ns - now_ns) / KVB_NS_PER_MS) : 0;
        const natsStatus status =
            left_ms > 0 ? natsSubscription_NextMsg(&message, inbox, left_ms) : NATS_TIMEOUT;
        if (status != NATS_OK) {
            return status;
        }
        /* The server itself says so, at once, when nobody has subscribed to the subject. */
        if (natsMsg_IsNoResponders(message)) {
            return NATS_NO_RESPONDERS;
        }
        if (!is_acknowledgement(message)) {
            *out_answer = message;
            message = NULL;
            return NATS_OK;
        }
        *out_was_kept = true;
    }
}

/* A late answer does not break the link. */
static kvb_status send_bus_request(
    struct kvb_link *link, const char *subject, kvb_span payload, uint32_t timeout_ms,
    natsMsg **out_answer, struct kvb_detail *detail)
{
    natsSubscription *inbox = NULL;
    natsInbox *unique = NULL;
    char name[kvb_inbox_prefix_bytes + 64];
    bool was_kept = false;

    natsStatus status = natsInbox_Create(&unique); /* _INBOX. and what only this one has */
    if (status == NATS_OK) {
        (void)snprintf(
            name, sizeof name, "%s%s", link->bus->inbox_prefix, unique + strcspn(unique, "."));
        /* Before the request, so that no answer comes too early for its inbox. */
        status = natsConnection_SubscribeSync(&inbox, link->nats, name);
    }
    if (status == NATS_OK) {
        status = natsConnection_PublishRequest(
            link->nats, subject, name, payload.data, (int)payload.len);
        /* The failed write may have sent half a request: nothing may follow it on this link. */
        if (kvb_bus_from_nats(status) == KVB_IO) {
            kvb_link_break(link);
            status = NATS_IO_ERROR; /* a timeout would read as that of an answer */
        }
    }
    if (status == NATS_OK) {
        status = next_answer(inbox, timeout_ms, out_answer, &was_kept);
    }
    if (inbox) {
        (void)natsSubscription_Unsubscribe(inbox); /* fails when the link has closed */
        kvb_link_bury(link, inbox);                /* another answer may be on its way */
    }
    natsInbox_Destroy(unique);
    /* An acknowledgement looks to the server like a responder, so it does not say that there is
     * none. */
    if (status == NATS_TIMEOUT && was_kept) {
        kvb_detail_set(
            detail, "nobody answers %s: only a stream of JetStream acknowledges the request",
            subject);
    } else if (status != NATS_OK) {
        explain_request(detail, subject, timeout_ms, status);
    }
    return kvb_bus_from_nats(status);
}

kvb_status kvb_bus_request(
    struct kvb_bus *bus, const char *subject, kvb_span payload, uint32_t timeout_ms,
    kvb_bus_handler handler, void *context, struct kvb_detail *detail)
{
    KVB_OWN(drop_message) natsMsg *answer = NULL;

    if (!kvb_subject_is_valid(subject, false)) {
        kvb_detail_set(detail, "invalid subject");
        return KVB_BAD_INPUT;
    }
    if (payload.len > INT_MAX) {
        kvb_detail_set(detail, "the request is too large");
        return KVB_TOO_LARGE;
    }
    struct kvb_link *link = kvb_link_use(bus);
    if (!link) {
        kvb_detail_set(detail, "not connected to %s", bus->shown_url);
        return KVB_AGAIN;
    }
    const kvb_status status = send_bus_request(link, subject, payload, timeout_ms, &answer, detail);
    kvb_link_release(link);
    KVB_TRY(status);

    const int len = natsMsg_GetDataLength(answer);
    const struct kvb_bus_message message = {
        .subject = natsMsg_GetSubject(answer),
        .payload = { (const uint8_t *)natsMsg_GetData(answer), len > 0 ? (size_t)len : 0 },
    };
    handler(context, &message);
    return KVB_OK;
}
