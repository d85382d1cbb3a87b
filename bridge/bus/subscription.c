#include "bus/link.h"
#include "bus/subject.h"

#include <stdlib.h>
#include <string.h>

enum {
    max_pending_messages = 1 << 20,
    max_pending_bytes = 256 << 20,
    max_read_messages = 64,
    max_read_bytes = 256 << 10,
    /* nats.c's own limit of a drain, on the realtime clock: the watch ends a wait earlier. */
    longest_drain_ms = 60000,
};

struct kvb_bus_subscription {
    struct kvb_bus *bus; /* borrowed; NULL once the bus is closed */
    char *subject;       /* owned */
    char *group;         /* owned; NULL: none */
    bool is_drained;     /* never made again; subscribing */
    kvb_bus_handler handler;
    void *context;
    struct kvb_bus_subscription *next; /* bus->subscribing */

    pthread_mutex_t lock;
    pthread_cond_t finished;
    natsSubscription *nats;  /* on `link`; both NULL between links */
    struct kvb_link *link;   /* one use of it */
    unsigned running;        /* delivery threads of nats.c that may call the handler */
    uint64_t dropped_before; /* on earlier links */

    /* The delivery thread's own: messages that were handled and wait to be freed. */
    natsMsg *read[max_read_messages]; /* owned */
    size_t read_count;
    size_t read_bytes;
};

/* ---- On threads of nats.c ------------------------------------------------------ */

static void free_read(struct kvb_bus_subscription *subscription)
{
    for (size_t i = 0; i < subscription->read_count; i++) {
        natsMsg_Destroy(subscription->read[i]);
    }
    subscription->read_count = 0;
    subscription->read_bytes = 0;
}

/* nats.c frees messages on a thread of its own and wakes it for each message: two context
 * switches, while the reader of the message needs the processor.  So messages are collected
 * here and given to it many at a time. */
static void put_read(struct kvb_bus_subscription *subscription, natsMsg *msg, size_t bytes)
{
    subscription->read[subscription->read_count++] = msg;
    subscription->read_bytes += bytes;
    if (subscription->read_count == max_read_messages ||
        subscription->read_bytes > max_read_bytes) {
        free_read(subscription);
    }
}

static void
on_nats_message(natsConnection *nats, natsSubscription *sub, natsMsg *msg, void *closure)
{
    struct kvb_bus_subscription *subscription = closure;
    const char *reply = natsMsg_GetReply(msg);
    const int len = natsMsg_GetDataLength(msg);
    const struct kvb_bus_message message = {
        .subject = natsMsg_GetSubject(msg),
        .reply = reply && reply[0] ? reply : NULL,
        .payload = { (const uint8_t *)natsMsg_GetData(msg), len > 0 ? (size_t)len : 0 },
        .subscription = subscription,
    };

    (void)nats;
    (void)sub;
    subscription->handler(subscription->context, &message);
    put_read(subscription, msg, message.payload.len);
}

static void on_finished(void *closure)
{
    struct kvb_bus_subscription *subscription = closure;

    free_read(subscription);
    pthread_mutex_lock(&subscription->lock);
    subscription->running--;
    pthread_cond_broadcast(&subscription->finished);
    pthread_mutex_unlock(&subscription->lock);
}

/* ---- On one link ---------------------------------------------------------------- */

static void count_running(struct kvb_bus_subscription *subscription, int more)
{
    pthread_mutex_lock(&subscription->lock);
    subscription->running += (unsigned)more;
    pthread_mutex_unlock(&subscription->lock);
}

static void keep_native(
    struct kvb_bus_subscription *subscription, struct kvb_link *link, natsSubscription *nats)
{
    kvb_link_retain(link);
    pthread_mutex_lock(&subscription->lock);
    subscription->nats = nats;
    subscription->link = link;
    pthread_mutex_unlock(&subscription->lock);
}

static kvb_status subscribe_native(
    struct kvb_bus_subscription *subscription, const struct kvb_link *link,
    natsSubscription **out_nats)
{
    const char *subject = subscription->subject;

    return kvb_bus_from_nats(
        subscription->group
            ? natsConnection_QueueSubscribe(
                  out_nats, link->nats, subject, subscription->group, on_nats_message, subscription)
            : natsConnection_Subscribe(
                  out_nats, link->nats, subject, on_nats_message, subscription));
}

static kvb_status make_on(struct kvb_bus_subscription *subscription, struct kvb_link *link)
{
    natsSubscription *nats = NULL;

    KVB_TRY(subscribe_native(subscription, link, &nats));
    count_running(subscription, 1);
    keep_native(subscription, link, nats);
    if (natsSubscription_SetOnCompleteCB(nats, on_finished, subscription) != NATS_OK) {
        /* Only when the server hung up between these calls: the delivery thread,
         * without a message yet, ends by itself. */
        count_running(subscription, -1);
        return KVB_AGAIN;
    }
    return kvb_bus_from_nats(
        natsSubscription_SetPendingLimits(nats, max_pending_messages, max_pending_bytes));
}

static uint64_t dropped_on(natsSubscription *nats)
{
    int64_t dropped = 0;

    return nats && natsSubscription_GetDropped(nats, &dropped) == NATS_OK ? (uint64_t)dropped : 0;
}

/* Ends it on its link and waits until no handler runs. */
static void retire(struct kvb_bus_subscription *subscription)
{
    pthread_mutex_lock(&subscription->lock);
    natsSubscription *nats = subscription->nats;
    struct kvb_link *link = subscription->link;
    subscription->nats = NULL;
    subscription->link = NULL;
    pthread_mutex_unlock(&subscription->lock);
    if (!nats) {
        return;
    }
    (void)natsSubscription_Unsubscribe(nats); /* may be over already: its link closed */
    pthread_mutex_lock(&subscription->lock);
    while (subscription->running > 0) {
        pthread_cond_wait(&subscription->finished, &subscription->lock);
    }
    subscription->dropped_before += dropped_on(nats);
    pthread_mutex_unlock(&subscription->lock);
    kvb_link_bury(link, nats);
    kvb_link_release(link);
}

kvb_status kvb_subscriptions_make(struct kvb_bus *bus, struct kvb_link *link)
{
    for (struct kvb_bus_subscription *each = bus->subscriptions; each; each = each->next) {
        if (!each->is_drained) {
            KVB_TRY(make_on(each, link));
        }
    }
    return KVB_OK;
}

void kvb_subscriptions_retire(struct kvb_bus *bus)
{
    for (struct kvb_bus_subscription *each = bus->subscriptions; each; each = each->next) {
        retire(each);
    }
}

void kvb_subscriptions_orphan(struct kvb_bus *bus)
{
    for (struct kvb_bus_subscription *each = bus->subscriptions; each; each = each->next) {
        each->bus = NULL;
    }
}

/* ---- In the bus's list ------------------------------------------------------------ */

static void free_subscription(struct kvb_bus_subscription *subscription)
{
    pthread_mutex_destroy(&subscription->lock);
    pthread_cond_destroy(&subscription->finished);
    free(subscription->subject);
    free(subscription->group);
    free(subscription);
}

/* Waits for `finished` have limits of the monotonic clock. */
static void init_subscription_lock(struct kvb_bus_subscription *subscription)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&subscription->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&subscription->finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* group: NULL for none. */
static struct kvb_bus_subscription *
new_subscription(struct kvb_bus *bus, const char *subject, const char *group)
{
    struct kvb_bus_subscription *made = calloc(1, sizeof *made);

    if (!made) {
        return NULL;
    }
    init_subscription_lock(made);
    made->bus = bus;
    made->subject = strdup(subject);
    made->group = group ? strdup(group) : NULL;
    if (!made->subject || (group && !made->group)) {
        free_subscription(made);
        return NULL;
    }
    return made;
}

/* The current link whether connected or not; NULL before the first dial. */
static struct kvb_link *use_any(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    struct kvb_link *link = bus->link;
    if (link) {
        link->uses++;
    }
    pthread_mutex_unlock(&bus->lock);
    return link;
}

/* Without a connected link the subscription is made when a link connects. */
static kvb_status make_if_there(struct kvb_bus *bus, struct kvb_bus_subscription *subscription)
{
    struct kvb_link *link = use_any(bus);

    if (!link) {
        return KVB_OK;
    }
    const kvb_status status = make_on(subscription, link);
    kvb_link_release(link);
    return status == KVB_AGAIN ? KVB_OK : status;
}

kvb_status kvb_bus_subscribe(
    struct kvb_bus *bus, const char *subject, kvb_bus_handler handler, void *context,
    struct kvb_bus_subscription **out_subscription)
{
    return kvb_bus_subscribe_queue(bus, subject, NULL, handler, context, out_subscription);
}

kvb_status kvb_bus_subscribe_queue(
    struct kvb_bus *bus, const char *subject, const char *group, kvb_bus_handler handler,
    void *context, struct kvb_bus_subscription **out_subscription)
{
    const bool has_group = group && group[0];

    if (!kvb_subject_is_valid(subject, true) ||
        (has_group && !kvb_subject_is_valid(group, false))) {
        return KVB_BAD_INPUT;
    }
    struct kvb_bus_subscription *made = new_subscription(bus, subject, has_group ? group : NULL);
    if (!made) {
        return KVB_NO_MEMORY;
    }
    made->handler = handler;
    made->context = context;

    pthread_mutex_lock(&bus->subscribing);
    const kvb_status status = make_if_there(bus, made);
    if (status == KVB_OK) {
        made->next = bus->subscriptions;
        bus->subscriptions = made;
    }
    pthread_mutex_unlock(&bus->subscribing);
    if (status != KVB_OK) {
        retire(made);
        free_subscription(made);
        return status;
    }
    *out_subscription = made;
    return KVB_OK;
}

/* ---- Draining ---- */

/* True: nats.c drains it.  False: there is no link on which anything could come. */
static bool begin_drain(struct kvb_bus_subscription *subscription)
{
    bool has_begun = false;

    pthread_mutex_lock(&subscription->bus->subscribing); /* nobody ends it on its link meanwhile */
    subscription->is_drained = true;
    if (subscription->nats) {
        has_begun = natsSubscription_DrainTimeout(subscription->nats, longest_drain_ms) == NATS_OK;
    }
    pthread_mutex_unlock(&subscription->bus->subscribing);
    return has_begun;
}

kvb_status kvb_bus_drain(struct kvb_bus_subscription *subscription, uint32_t timeout_ms)
{
    const struct timespec deadline = kvb_bus_deadline(timeout_ms);
    bool is_late = false;

    if (!begin_drain(subscription)) {
        return KVB_AGAIN;
    }
    pthread_mutex_lock(&subscription->lock);
    while (subscription->running > 0 && !is_late) {
        is_late =
            pthread_cond_timedwait(&subscription->finished, &subscription->lock, &deadline) != 0;
    }
    const bool is_over = subscription->running == 0;
    pthread_mutex_unlock(&subscription->lock);
    return is_over ? KVB_OK : KVB_IO;
}

/* ---- Ending ---- */

static void unlink_from(struct kvb_bus *bus, struct kvb_bus_subscription *subscription)
{
    struct kvb_bus_subscription **at = &bus->subscriptions;

    while (*at && *at != subscription) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = subscription->next;
    }
}

void kvb_bus_unsubscribe(struct kvb_bus_subscription *subscription)
{
    if (!subscription) {
        return;
    }
    if (subscription->bus) {
        pthread_mutex_lock(&subscription->bus->subscribing);
        unlink_from(subscription->bus, subscription);
        pthread_mutex_unlock(&subscription->bus->subscribing);
    }
    retire(subscription);
    free_subscription(subscription);
}

uint64_t kvb_bus_dropped(struct kvb_bus_subscription *subscription)
{
    pthread_mutex_lock(&subscription->lock);
    const uint64_t dropped = subscription->dropped_before + dropped_on(subscription->nats);
    pthread_mutex_unlock(&subscription->lock);
    return dropped;
}

uint64_t kvb_bus_waiting(const struct kvb_bus_message *message)
{
    struct kvb_bus_subscription *subscription = message->subscription;
    int messages = 0;
    int bytes = 0;

    if (!subscription) {
        return 0;
    }
    pthread_mutex_lock(&subscription->lock);
    const bool is_known =
        subscription->nats &&
        natsSubscription_GetPending(subscription->nats, &messages, &bytes) == NATS_OK;
    pthread_mutex_unlock(&subscription->lock);
    return is_known ? (uint64_t)messages : 0;
}
