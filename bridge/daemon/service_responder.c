#include "daemon/service_responder.h"

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
    min_cost_bytes = 4096, /* each answer counts for at least this: a message costs time too */
    min_part_bytes = 4096, /* parts are not made smaller: no max_payload is below this */
    subject_bytes = 256,
    prefix_bytes = sizeof "$SRV." - 1
};

/* In the order of KVB_SERVICE_METRICS. */
enum responder_metric {
#define DESK_METRIC_ID(id, type, name, labels, help) count_##id,
    KVB_SERVICE_METRICS(DESK_METRIC_ID)
#undef DESK_METRIC_ID
};
_Static_assert((int)count_service_stats == (int)KVB_SERVICE_STATS, "verbs are counted by number");

struct kvb_service_responder {
    struct kvb_service_responder_options options;
    struct kvb_bus_subscription *requests_to_all; /* owned, like the two below */
    struct kvb_bus_subscription *requests_to_kind;
    struct kvb_bus_subscription *requests_to_one;

    /* Only handlers take it, and no other thread waits for them, so it may be held while an
     * answer is written to NATS. */
    pthread_mutex_t lock;
    struct kvb_buf buf;
    size_t part_bytes;     /* of one message; halved when the server refuses it */
    uint64_t budget_bytes; /* left to answer with */
    uint64_t budget_ns;    /* when the budget was updated */
};

static void count_responder(struct kvb_service_responder *responder, enum responder_metric metric)
{
    kvb_metric_add(responder->options.metrics, responder->options.first_metric + metric, 1);
}

/* ---- The limit of answers: a token bucket ---- */

static bool has_budget(struct kvb_service_responder *responder)
{
    const uint64_t max = kvb_max_service_bytes_a_second;
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const uint64_t waited_ns = now_ns - responder->budget_ns;
    const uint64_t more = waited_ns >= KVB_NS_PER_S ? max : waited_ns * max / KVB_NS_PER_S;

    responder->budget_ns = now_ns;
    responder->budget_bytes =
        responder->budget_bytes + more < max ? responder->budget_bytes + more : max;
    return responder->budget_bytes >= min_cost_bytes;
}

static void spend_responder_bytes(struct kvb_service_responder *responder, size_t bytes)
{
    const uint64_t cost = bytes > min_cost_bytes ? bytes : min_cost_bytes;

    responder->budget_bytes -= cost < responder->budget_bytes ? cost : responder->budget_bytes;
}

/* ---- Answering, on threads of nats.c ---- */

static kvb_status send_part(
    struct kvb_service_responder *responder, const struct kvb_service_endpoints *list,
    enum kvb_service_verb verb, const char *reply, size_t *next)
{
    const struct kvb_service_request request = { .verb = verb, .max_bytes = responder->part_bytes };
    size_t after = *next;

    kvb_buf_reset(&responder->buf);
    KVB_TRY(kvb_service_answer(responder->options.service, list, request, &after, &responder->buf));
    KVB_TRY(kvb_bus_publish(responder->options.bus, reply, kvb_buf_span(&responder->buf)));
    spend_responder_bytes(responder, responder->buf.len);
    *next = after;
    return KVB_OK;
}

/* A server with a smaller max_payload gets smaller parts, from now on. */
static kvb_status send_service_parts(
    struct kvb_service_responder *responder, const struct kvb_service_endpoints *list,
    enum kvb_service_verb verb, const char *reply)
{
    size_t next = 0;

    do {
        const kvb_status status = send_part(responder, list, verb, reply, &next);
        if (status == KVB_TOO_LARGE && responder->part_bytes > min_part_bytes) {
            responder->part_bytes /= 2;
            continue;
        }
        KVB_TRY(status);
    } while (next < list->count);
    return KVB_OK;
}

static kvb_status
answer_verb(struct kvb_service_responder *responder, enum kvb_service_verb verb, const char *reply)
{
    struct kvb_service_endpoints list = { 0 };

    if (verb != KVB_SERVICE_PING) {
        KVB_TRY(responder->options.list(responder->options.context, &list));
    }
    return send_service_parts(responder, &list, verb, reply);
}

static void on_service_request(void *context, const struct kvb_bus_message *message)
{
    struct kvb_service_responder *responder = context;
    enum kvb_service_verb verb = KVB_SERVICE_PING;

    if (!message->reply) {
        count_responder(responder, count_service_mute);
        return;
    }
    if (kvb_subject_is_of_contract(message->reply)) {
        count_responder(responder, count_service_bad_reply);
        return;
    }
    if (kvb_service_verb_find(message->subject + prefix_bytes, &verb) != KVB_OK) {
        count_responder(responder, count_service_unknown);
        return;
    }
    (void)pthread_mutex_lock(&responder->lock);
    if (!has_budget(responder)) {
        count_responder(responder, count_service_busy);
    } else if (answer_verb(responder, verb, message->reply) == KVB_OK) {
        count_responder(responder, (enum responder_metric)verb);
    } else {
        count_responder(responder, count_service_failed);
    }
    (void)pthread_mutex_unlock(&responder->lock);
}

/* ---- Opening and closing ---- */

static kvb_status subscribe_verbs(struct kvb_service_responder *responder)
{
    const struct kvb_service *service = responder->options.service;
    struct kvb_bus *bus = responder->options.bus;
    char kind[subject_bytes];
    char one[subject_bytes];

    (void)snprintf(kind, sizeof kind, "$SRV.*.%s", service->name); /* both fit */
    (void)snprintf(one, sizeof one, "$SRV.*.%s.%s", service->name, service->id);
    KVB_TRY(kvb_bus_subscribe(
        bus, "$SRV.*", on_service_request, responder, &responder->requests_to_all));
    KVB_TRY(
        kvb_bus_subscribe(bus, kind, on_service_request, responder, &responder->requests_to_kind));
    return kvb_bus_subscribe(bus, one, on_service_request, responder, &responder->requests_to_one);
}

kvb_status kvb_service_responder_open(
    const struct kvb_service_responder_options *options,
    struct kvb_service_responder **out_responder)
{
    struct kvb_service_responder *responder = calloc(1, sizeof *responder);

    if (!responder) {
        return KVB_NO_MEMORY;
    }
    responder->options = *options;
    responder->part_bytes = kvb_max_service_bytes;
    (void)pthread_mutex_init(&responder->lock, NULL); /* cannot fail without attributes */
    kvb_buf_init(&responder->buf, kvb_max_nats_payload_bytes);
    const kvb_status status = subscribe_verbs(responder);
    if (status != KVB_OK) {
        kvb_service_responder_close(responder);
        return status;
    }
    *out_responder = responder;
    return KVB_OK;
}

void kvb_service_responder_close(struct kvb_service_responder *responder)
{
    if (!responder) {
        return;
    }
    kvb_bus_unsubscribe(responder->requests_to_one);
    kvb_bus_unsubscribe(responder->requests_to_kind);
    kvb_bus_unsubscribe(responder->requests_to_all);
    (void)pthread_mutex_destroy(&responder->lock);
    kvb_buf_done(&responder->buf);
    free(responder);
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
