#include "bus/link.h"
#include "bus/subject.h"
#include "core/clock.h"
#include "core/own.h"

#include <stdlib.h>
#include <string.h>

enum {
    max_pending_messages = 1 << 20,
    max_pending_bytes = 256 << 20,
    max_read_messages = 64,
    max_read_bytes = 256 << 10,
    /* passed to nats.c, which uses the realtime clock; our own waits for a drain end earlier */
    longest_drain_ms = 60000,
};

/* A subscription as it is made on one link. */
struct delivery {
    struct kvb_bus_subscription *subscription; /* borrowed */
    natsSubscription *nats;                    /* on `link` */
    struct kvb_link *link;                     /* holds one use */
    bool is_over;     /* nats.c calls the handler no more; under the lock */
    uint64_t dropped; /* as nats.c said last; under the lock */

    /* Messages that were handled and wait to be freed; used by the delivery thread only. */
    natsMsg *read[max_read_messages]; /* owned */
    size_t read_count;
    size_t read_bytes;
};

struct kvb_bus_subscription {
    struct kvb_bus *bus; /* borrowed; NULL once the bus is closed */
    char *subject;       /* owned */
    char *group;         /* owned; NULL: none */
    bool is_drained;     /* not made again; under bus->subscribing */
    kvb_bus_handler handler;
    void *context;
    struct kvb_bus_subscription *next; /* in the bus's list; under bus->subscribing */

    pthread_mutex_t lock;
    pthread_cond_t finished;
    struct delivery *current; /* owned; NULL between links */
    uint64_t dropped_before;  /* number dropped on earlier links */
};

/* ---- On the delivery thread of nats.c ----------------------------------------------- */

static void free_read(struct delivery *delivery)
{
    for (size_t i = 0; i < delivery->read_count; i++) {
        natsMsg_Destroy(delivery->read[i]);
    }
    delivery->read_count = 0;
    delivery->read_bytes = 0;
}

/* Frees messages in batches. */
static void put_read(struct delivery *delivery, natsMsg *msg, size_t bytes)
{
    /* nats.c frees messages on a thread of its own, and wakes it for the first one: two context
     * switches for each, if it were freed at once. */
    delivery->read[delivery->read_count++] = msg;
    delivery->read_bytes += bytes;
    /* The bytes are limited, too: a few large messages would hold much memory. */
    if (delivery->read_count == max_read_messages || delivery->read_bytes > max_read_bytes) {
        free_read(delivery);
    }
}

static void
on_nats_message(natsConnection *nats, natsSubscription *sub, natsMsg *msg, void *closure)
{
    struct delivery *delivery = closure;
    struct kvb_bus_subscription *subscription = delivery->subscription;
    const char *reply = natsMsg_GetReply(msg);
    const int len = natsMsg_GetDataLength(msg);
    void *native = msg;
    const struct kvb_bus_message message = {
        .subject = natsMsg_GetSubject(msg),
        .reply = reply && reply[0] ? reply : NULL,
        .payload = { (const uint8_t *)natsMsg_GetData(msg), len > 0 ? (size_t)len : 0 },
        .subscription = subscription,
        .native = &native,
    };

    (void)nats;
    (void)sub;
    subscription->handler(subscription->context, &message);
    if (native) { /* else the handler has kept it */
        put_read(delivery, msg, message.payload.len);
    }
}

/* Not as a natsMsg: nats.c can free one only while it is in use. */
static kvb_status copy_payload(const struct kvb_bus_message *message, struct kvb_bus_kept *out_kept)
{
    const size_t len = message->payload.len;
    uint8_t *copy = malloc(len > 0 ? len : 1);

    if (!copy) {
        return KVB_NO_MEMORY;
    }
    if (len > 0) {
        memcpy(copy, message->payload.data, len);
    }
    *out_kept = (struct kvb_bus_kept){ .copy = copy, .payload = { copy, len } };
    return KVB_OK;
}

kvb_status
kvb_bus_message_keep(const struct kvb_bus_message *message, struct kvb_bus_kept *out_kept)
{
    if (!message->native) {
        return copy_payload(message, out_kept);
    }
    *out_kept = (struct kvb_bus_kept){ .native = *message->native, .payload = message->payload };
    *message->native = NULL;
    return KVB_OK;
}

void kvb_bus_kept_drop(struct kvb_bus_kept *kept)
{
    natsMsg_Destroy(kept->native); /* NULL is fine */
    free(kept->copy);
    *kept = (struct kvb_bus_kept){ 0 };
}

static void note_over(struct delivery *delivery)
{
    struct kvb_bus_subscription *subscription = delivery->subscription;

    pthread_mutex_lock(&subscription->lock);
    delivery->is_over = true;
    pthread_cond_broadcast(&subscription->finished);
    pthread_mutex_unlock(&subscription->lock);
}

static void on_finished(void *closure)
{
    free_read(closure);
    note_over(closure);
}

/* ---- On one link ---------------------------------------------------------------- */

static kvb_status subscribe_native(struct delivery *delivery)
{
    const struct kvb_bus_subscription *subscription = delivery->subscription;
    const char *subject = subscription->subject;
    natsConnection *nats = delivery->link->nats;

    return kvb_bus_from_nats(
        subscription->group
            ? natsConnection_QueueSubscribe(
                  &delivery->nats, nats, subject, subscription->group, on_nats_message, delivery)
            : natsConnection_Subscribe(&delivery->nats, nats, subject, on_nats_message, delivery));
}

/* When *out_delivery is set in spite of a failure, the caller ends it as any other. */
static kvb_status make_on(
    struct kvb_bus_subscription *subscription, struct kvb_link *link,
    struct delivery **out_delivery)
{
    struct delivery *made = calloc(1, sizeof *made);

    if (!made) {
        return KVB_NO_MEMORY;
    }
    *made = (struct delivery){ .subscription = subscription, .link = link };
    const kvb_status status = subscribe_native(made);
    if (status != KVB_OK) {
        free(made);
        return status;
    }
    /* A handler may run already: kvb_bus_waiting() finds no current delivery, and returns 0. */
    kvb_link_retain(link);
    pthread_mutex_lock(&subscription->lock);
    *out_delivery = made;
    pthread_mutex_unlock(&subscription->lock);
    if (natsSubscription_SetOnCompleteCB(made->nats, on_finished, made) != NATS_OK) {
        /* Fails only when the connection ended between these calls, too soon for a message. */
        note_over(made);
        return KVB_AGAIN;
    }
    return kvb_bus_from_nats(
        natsSubscription_SetPendingLimits(made->nats, max_pending_messages, max_pending_bytes));
}

/* lock is held. */
static uint64_t dropped_on(struct delivery *delivery)
{
    int64_t dropped = 0;

    if (!delivery) {
        return 0;
    }
    /* nats.c does not say it of a subscription that has ended, as one does with its connection. */
    if (natsSubscription_GetDropped(delivery->nats, &dropped) == NATS_OK) {
        delivery->dropped = (uint64_t)dropped;
    }
    return delivery->dropped;
}

/* Waits until nats.c calls its handler no more.  lock is held. */
static void wait_until_over(struct delivery *delivery)
{
    struct kvb_bus_subscription *subscription = delivery->subscription;

    while (!delivery->is_over) {
        (void)pthread_cond_wait(&subscription->finished, &subscription->lock);
    }
}

/* Unsubscribes on the link, waits until no handler runs, and frees the delivery.  The caller has
 * removed it from the subscription. */
static void end_delivery(struct delivery *delivery)
{
    struct kvb_bus_subscription *subscription = delivery->subscription;

    (void)natsSubscription_Unsubscribe(delivery->nats); /* fails when the link has closed */
    pthread_mutex_lock(&subscription->lock);
    wait_until_over(delivery);
    pthread_mutex_unlock(&subscription->lock);
    /* No lock is held: it may wait for a PONG. */
    kvb_link_bury(delivery->link, delivery->nats);
    kvb_link_release(delivery->link);
    free(delivery);
}

static struct delivery *take_delivery(struct kvb_bus_subscription *subscription)
{
    pthread_mutex_lock(&subscription->lock);
    struct delivery *taken = subscription->current;
    /* Taken under the lock, so that only one thread ends it. */
    subscription->current = NULL;
    subscription->dropped_before += dropped_on(taken);
    pthread_mutex_unlock(&subscription->lock);
    return taken;
}

static void retire(struct kvb_bus_subscription *subscription)
{
    struct delivery *delivery = take_delivery(subscription);

    if (delivery) {
        end_delivery(delivery);
    }
}

kvb_status kvb_subscriptions_make(struct kvb_bus *bus, struct kvb_link *link)
{
    for (struct kvb_bus_subscription *each = bus->subscriptions; each; each = each->next) {
        if (!each->is_drained) {
            /* After a failure the others stay: the link counts as broken, its end retires them. */
            KVB_TRY(make_on(each, link, &each->current));
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

/* Makes `finished` use the monotonic clock. */
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

/* The current link, even a broken one; NULL when there is none. */
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

/* Makes the subscription on the current link.  Without a connected link it is made later, when a
 * link connects. */
static kvb_status make_if_there(struct kvb_bus *bus, struct kvb_bus_subscription *subscription)
{
    struct kvb_link *link = use_any(bus);

    if (!link) {
        return KVB_OK;
    }
    const kvb_status status = make_on(subscription, link, &subscription->current);
    kvb_link_release(link);
    /* The link has ended meanwhile, and the next one makes the subscription. */
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
        /* make_on() may have left a delivery in spite of its failure. */
        retire(made);
        free_subscription(made);
        return status;
    }
    *out_subscription = made;
    return KVB_OK;
}

/* ---- Draining ---- */

/* True: nats.c drains the subscription.  False: it is on no link that could deliver messages. */
static bool begin_drain(struct kvb_bus_subscription *subscription)
{
    bool has_begun = false;

    pthread_mutex_lock(&subscription->bus->subscribing); /* keeps current valid */
    /* Without a link, too: the next one must not make it again. */
    subscription->is_drained = true;
    if (subscription->current) {
        has_begun =
            natsSubscription_DrainTimeout(subscription->current->nats, longest_drain_ms) == NATS_OK;
    }
    pthread_mutex_unlock(&subscription->bus->subscribing);
    return has_begun;
}

/* KVB_AGAIN: the connection was lost first.  KVB_IO: it lasts.  lock is held. */
static kvb_status look_at_drain(const struct kvb_bus_subscription *subscription)
{
    const struct delivery *delivery = subscription->current;

    if (!delivery) {
        return KVB_AGAIN; /* the connection manager has taken it */
    }
    if (!delivery->is_over) {
        return KVB_IO;
    }
    /* nats.c drops the messages that wait when it loses the connection. */
    return natsSubscription_DrainCompletionStatus(delivery->nats) == NATS_OK ? KVB_OK : KVB_AGAIN;
}

kvb_status kvb_bus_drain(struct kvb_bus_subscription *subscription, uint32_t timeout_ms)
{
    const struct timespec deadline = kvb_bus_deadline(timeout_ms);
    bool is_late = false;

    if (!begin_drain(subscription)) {
        return KVB_AGAIN;
    }
    pthread_mutex_lock(&subscription->lock);
    kvb_status status = look_at_drain(subscription);
    /* A loss ends the delivery as well, and so the wait. */
    while (status == KVB_IO && !is_late) {
        is_late =
            pthread_cond_timedwait(&subscription->finished, &subscription->lock, &deadline) != 0;
        status = look_at_drain(subscription);
    }
    pthread_mutex_unlock(&subscription->lock);
    return status;
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
    /* Out of the list first: a new link would make it again while it is being ended. */
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
    const uint64_t dropped = subscription->dropped_before + dropped_on(subscription->current);
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
        subscription->current &&
        natsSubscription_GetPending(subscription->current->nats, &messages, &bytes) == NATS_OK;
    pthread_mutex_unlock(&subscription->lock);
    return is_known ? (uint64_t)messages : 0;
}
