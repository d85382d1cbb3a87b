#include "fake_bus.h"

#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

enum { max_subscriptions = 64 };

struct kvb_bus {
    bool is_connected;
    bool is_deaf;
    uint64_t connects;
    void (*on_change)(void *context, bool is_connected);
    void *context;
};

struct kvb_bus_subscription {
    char *subject; /* owned */
    kvb_bus_handler handler;
    void *context;
};

static struct fake_bus_options fake;
static struct kvb_bus the_bus;
static struct kvb_bus_subscription *subscriptions[max_subscriptions];

void fake_bus_reset(const struct fake_bus_options *new_options)
{
    fake = *new_options;
    the_bus = (struct kvb_bus){ .is_connected = true, .connects = 1 };
    memset((void *)subscriptions, 0, sizeof subscriptions);
}

static void set_connected(bool is_connected)
{
    if (the_bus.is_connected == is_connected) {
        return;
    }
    the_bus.is_connected = is_connected;
    the_bus.connects += is_connected;
    the_bus.is_deaf = false;
    if (the_bus.on_change) {
        the_bus.on_change(the_bus.context, is_connected);
    }
}

void fake_bus_go_deaf(void)
{
    the_bus.is_deaf = the_bus.is_connected;
}

void fake_bus_disconnect(void)
{
    set_connected(false);
}

/* A connection that has lost messages ends first. */
void fake_bus_connect(void)
{
    if (the_bus.is_deaf) {
        set_connected(false);
    }
    set_connected(true);
}

bool fake_bus_is_whole(void)
{
    return the_bus.is_connected && !the_bus.is_deaf;
}

/* ---- Delivery ---- */

static bool fits(const char *pattern, const char *subject)
{
    while (*pattern && *subject) {
        if (*pattern == '>') {
            return true;
        }
        if (*pattern == '*') {
            pattern++;
            subject += strcspn(subject, ".");
        } else if (*pattern++ != *subject++) {
            return false;
        }
    }
    return *pattern == '\0' && *subject == '\0';
}

void fake_bus_deliver(const char *subject, const char *reply, kvb_span payload)
{
    for (size_t i = 0; i < max_subscriptions; i++) {
        struct kvb_bus_subscription *to = subscriptions[i];
        if (to && fits(to->subject, subject)) {
            const struct kvb_bus_message message = {
                .subject = subject, .reply = reply, .payload = payload, .subscription = to
            };
            to->handler(to->context, &message);
        }
    }
}

/* ---- bus/bus.h ---- */

kvb_status kvb_bus_open(
    const struct kvb_bus_options *options, struct kvb_bus **out_bus, struct kvb_detail *detail)
{
    (void)detail;
    the_bus.on_change = options->on_change;
    the_bus.context = options->context;
    *out_bus = &the_bus;
    return KVB_OK;
}

void kvb_bus_close(struct kvb_bus *bus)
{
    if (bus) {
        bus->on_change = NULL;
    }
}

bool kvb_bus_is_connected(const struct kvb_bus *bus)
{
    return bus->is_connected;
}

uint64_t kvb_bus_connects(const struct kvb_bus *bus)
{
    return bus->connects;
}

uint64_t kvb_bus_lame_ducks(const struct kvb_bus *bus)
{
    (void)bus;
    return 0;
}

size_t kvb_bus_max_payload(const struct kvb_bus *bus)
{
    (void)bus;
    return kvb_max_nats_payload_bytes;
}

bool kvb_bus_is_denied(
    struct kvb_bus *bus, kvb_denial_is_vital is_vital, const void *context,
    struct kvb_detail *out_why)
{
    (void)bus;
    (void)is_vital;
    (void)context;
    (void)out_why;
    return false;
}

void kvb_bus_denials(struct kvb_bus *bus, uint64_t *out_publishes, uint64_t *out_subscriptions)
{
    (void)bus;
    *out_publishes = 0;
    *out_subscriptions = 0;
}

kvb_status kvb_bus_publish_request(
    struct kvb_bus *bus, const char *subject, const char *reply, kvb_span payload)
{
    if (!bus->is_connected) {
        return KVB_AGAIN;
    }
    if (!bus->is_deaf) {
        fake.published(subject, reply, payload);
    }
    return KVB_OK;
}

kvb_status kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload)
{
    return kvb_bus_publish_request(bus, subject, NULL, payload);
}

kvb_status kvb_bus_publish_many(
    struct kvb_bus *bus, const char *subject, const kvb_span *payloads, size_t count,
    size_t *out_sent)
{
    kvb_status status = KVB_OK;

    for (*out_sent = 0; *out_sent < count && status == KVB_OK; *out_sent += status == KVB_OK) {
        status = kvb_bus_publish(bus, subject, payloads[*out_sent]);
    }
    return status;
}

kvb_status kvb_bus_flush(struct kvb_bus *bus, uint32_t timeout_ms)
{
    (void)timeout_ms;
    return bus->is_connected ? KVB_OK : KVB_AGAIN;
}

void kvb_bus_write(struct kvb_bus *bus)
{
    (void)bus;
}

kvb_status kvb_bus_subscribe(
    struct kvb_bus *bus, const char *subject, kvb_bus_handler handler, void *context,
    struct kvb_bus_subscription **out_subscription)
{
    (void)bus;
    for (size_t i = 0; i < max_subscriptions; i++) {
        if (!subscriptions[i]) {
            subscriptions[i] = malloc(sizeof *subscriptions[i]);
            if (!subscriptions[i]) {
                return KVB_NO_MEMORY;
            }
            *subscriptions[i] = (struct kvb_bus_subscription){ strdup(subject), handler, context };
            *out_subscription = subscriptions[i];
            return KVB_OK;
        }
    }
    return KVB_IO;
}

kvb_status kvb_bus_subscribe_queue(
    struct kvb_bus *bus, const char *subject, const char *group, kvb_bus_handler handler,
    void *context, struct kvb_bus_subscription **out_subscription)
{
    (void)group;
    return kvb_bus_subscribe(bus, subject, handler, context, out_subscription);
}

kvb_status kvb_bus_drain(struct kvb_bus_subscription *subscription, uint32_t timeout_ms)
{
    (void)subscription;
    (void)timeout_ms;
    return KVB_OK;
}

void kvb_bus_unsubscribe(struct kvb_bus_subscription *subscription)
{
    for (size_t i = 0; subscription && i < max_subscriptions; i++) {
        if (subscriptions[i] == subscription) {
            subscriptions[i] = NULL;
            free(subscription->subject);
            free(subscription);
            return;
        }
    }
}

uint64_t kvb_bus_dropped(struct kvb_bus_subscription *subscription)
{
    (void)subscription;
    return 0;
}

kvb_status
kvb_bus_message_keep(const struct kvb_bus_message *message, struct kvb_bus_kept *out_kept)
{
    const size_t len = message->payload.len;
    uint8_t *copy = malloc(len > 0 ? len : 1); /* no more, for ASan */

    if (!copy) {
        return KVB_NO_MEMORY;
    }
    if (len > 0) {
        memcpy(copy, message->payload.data, len);
    }
    *out_kept = (struct kvb_bus_kept){ .copy = copy, .payload = { copy, len } };
    return KVB_OK;
}

void kvb_bus_kept_drop(struct kvb_bus_kept *kept)
{
    free(kept->copy);
}

uint64_t kvb_bus_waiting(const struct kvb_bus_message *message)
{
    (void)message;
    return 0;
}

kvb_status kvb_bus_login_check(
    const struct kvb_bus_login *login, const char *url, const char **out_key,
    struct kvb_detail *detail)
{
    (void)login;
    (void)url;
    (void)out_key;
    (void)detail;
    return KVB_OK;
}

const char *kvb_bus_login_inbox(const struct kvb_bus_login *login)
{
    return login->inbox_prefix[0] != '\0' ? login->inbox_prefix : "_INBOX";
}

kvb_status
kvb_bus_renew(struct kvb_bus *bus, const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    (void)bus;
    (void)login;
    (void)detail;
    return KVB_OK;
}

void kvb_bus_explain_absence(struct kvb_bus *bus, struct kvb_detail *out)
{
    (void)bus;
    kvb_detail_set(out, "not connected to NATS");
}
