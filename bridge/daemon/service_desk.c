#include "daemon/service_desk.h"

#include "bus/subject.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    least_cost_bytes = 4096, /* of an answer, however short: it is a message */
    least_part_bytes = 4096, /* no server has a max_payload below */
    subject_bytes = 256,
    prefix_bytes = sizeof "$SRV." - 1
};

/* In the order of KVB_SERVICE_METRICS. */
enum desk_metric {
#define DESK_METRIC_ID(id, type, name, labels, help) count_##id,
    KVB_SERVICE_METRICS(DESK_METRIC_ID)
#undef DESK_METRIC_ID
};
_Static_assert((int)count_service_stats == (int)KVB_SERVICE_STATS, "verbs are counted by number");

struct kvb_service_desk {
    struct kvb_service_desk_options options;
    struct kvb_bus_subscription *asked_all; /* owned, like the two below */
    struct kvb_bus_subscription *asked_kind;
    struct kvb_bus_subscription *asked_one;

    /* Taken by handlers alone, which wait for nothing but each other: so it is held
     * while NATS is written to. */
    pthread_mutex_t lock;
    struct kvb_buf buf;
    size_t part_bytes;     /* of one message; halved when the server refuses it */
    uint64_t budget_bytes; /* left to answer with */
    uint64_t budget_ns;    /* as of */
};

static void count(struct kvb_service_desk *desk, enum desk_metric metric)
{
    kvb_metric_add(desk->options.metrics, desk->options.first_metric + metric, 1);
}

/* ---- What a flood may cost ---- */

static bool has_budget(struct kvb_service_desk *desk)
{
    const uint64_t most = kvb_max_service_bytes_a_second;
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const uint64_t waited_ns = now_ns - desk->budget_ns;
    const uint64_t more = waited_ns >= KVB_NS_PER_S ? most : waited_ns * most / KVB_NS_PER_S;

    desk->budget_ns = now_ns;
    desk->budget_bytes = desk->budget_bytes + more < most ? desk->budget_bytes + more : most;
    return desk->budget_bytes >= least_cost_bytes;
}

static void spend(struct kvb_service_desk *desk, size_t bytes)
{
    const uint64_t cost = bytes > least_cost_bytes ? bytes : least_cost_bytes;

    desk->budget_bytes -= cost < desk->budget_bytes ? cost : desk->budget_bytes;
}

/* ---- Answering, on threads of nats.c ---- */

static kvb_status send_part(
    struct kvb_service_desk *desk, const struct kvb_service_endpoints *list,
    enum kvb_service_verb verb, const char *reply, size_t *next)
{
    const struct kvb_service_ask ask = { .verb = verb, .max_bytes = desk->part_bytes };
    size_t after = *next;

    kvb_buf_reset(&desk->buf);
    KVB_TRY(kvb_service_answer(desk->options.service, list, ask, &after, &desk->buf));
    KVB_TRY(kvb_bus_publish(desk->options.bus, reply, kvb_buf_span(&desk->buf)));
    spend(desk, desk->buf.len);
    *next = after;
    return KVB_OK;
}

/* A server with a smaller max_payload gets smaller parts, from now on. */
static kvb_status send_parts(
    struct kvb_service_desk *desk, const struct kvb_service_endpoints *list,
    enum kvb_service_verb verb, const char *reply)
{
    size_t next = 0;

    do {
        const kvb_status status = send_part(desk, list, verb, reply, &next);
        if (status == KVB_TOO_LARGE && desk->part_bytes > least_part_bytes) {
            desk->part_bytes /= 2;
            continue;
        }
        KVB_TRY(status);
    } while (next < list->count);
    return KVB_OK;
}

static kvb_status
answer(struct kvb_service_desk *desk, enum kvb_service_verb verb, const char *reply)
{
    struct kvb_service_endpoints list = { 0 };

    if (verb != KVB_SERVICE_PING) {
        KVB_TRY(desk->options.list(desk->options.context, &list));
    }
    return send_parts(desk, &list, verb, reply);
}

static void hear(void *context, const struct kvb_bus_message *message)
{
    struct kvb_service_desk *desk = context;
    enum kvb_service_verb verb = KVB_SERVICE_PING;

    if (!message->reply) {
        count(desk, count_service_mute);
        return;
    }
    if (kvb_subject_is_of_contract(message->reply)) {
        count(desk, count_service_bad_reply);
        return;
    }
    if (kvb_service_verb_find(message->subject + prefix_bytes, &verb) != KVB_OK) {
        count(desk, count_service_unknown);
        return;
    }
    (void)pthread_mutex_lock(&desk->lock);
    if (!has_budget(desk)) {
        count(desk, count_service_busy);
    } else if (answer(desk, verb, message->reply) == KVB_OK) {
        count(desk, (enum desk_metric)verb);
    } else {
        count(desk, count_service_failed);
    }
    (void)pthread_mutex_unlock(&desk->lock);
}

/* ---- Opening and closing ---- */

static kvb_status subscribe(struct kvb_service_desk *desk)
{
    const struct kvb_service *service = desk->options.service;
    struct kvb_bus *bus = desk->options.bus;
    char kind[subject_bytes];
    char one[subject_bytes];

    (void)snprintf(kind, sizeof kind, "$SRV.*.%s", service->name); /* both fit */
    (void)snprintf(one, sizeof one, "$SRV.*.%s.%s", service->name, service->id);
    KVB_TRY(kvb_bus_subscribe(bus, "$SRV.*", hear, desk, &desk->asked_all));
    KVB_TRY(kvb_bus_subscribe(bus, kind, hear, desk, &desk->asked_kind));
    return kvb_bus_subscribe(bus, one, hear, desk, &desk->asked_one);
}

kvb_status kvb_service_desk_open(
    const struct kvb_service_desk_options *options, struct kvb_service_desk **out_desk)
{
    struct kvb_service_desk *desk = calloc(1, sizeof *desk);

    if (!desk) {
        return KVB_NO_MEMORY;
    }
    desk->options = *options;
    desk->part_bytes = kvb_max_service_bytes;
    (void)pthread_mutex_init(&desk->lock, NULL); /* cannot fail without attributes */
    kvb_buf_init(&desk->buf, kvb_max_nats_payload_bytes);
    const kvb_status status = subscribe(desk);
    if (status != KVB_OK) {
        kvb_service_desk_close(desk);
        return status;
    }
    *out_desk = desk;
    return KVB_OK;
}

void kvb_service_desk_close(struct kvb_service_desk *desk)
{
    if (!desk) {
        return;
    }
    kvb_bus_unsubscribe(desk->asked_one);
    kvb_bus_unsubscribe(desk->asked_kind);
    kvb_bus_unsubscribe(desk->asked_all);
    (void)pthread_mutex_destroy(&desk->lock);
    kvb_buf_done(&desk->buf);
    free(desk);
}

kvb_status kvb_service_identify(struct kvb_service *service)
{
    uint64_t random[2] = { 0 };

    if (getrandom(random, sizeof random, 0) != sizeof random) {
        return KVB_IO;
    }
    (void)snprintf(
        service->id, sizeof service->id, "%016llx%016llx", (unsigned long long)random[0],
        (unsigned long long)random[1]);
    service->version = KVB_VERSION;
    kvb_clock_format_us(kvb_clock_wall_us(), service->started);
    return KVB_OK;
}
