#include "daemon/service.h"

#include "bus/contract.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/writer.h"
#include "wire/load/json.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    closing_bytes = 64,    /* ],"more":18446744073709551615} */
    min_cost_bytes = 4096, /* each answer counts for at least this, for the cost of a message */
    min_part_bytes = 4096, /* parts are not made smaller; every max_payload is larger */
    prefix_bytes = sizeof "$SRV." - 1
};

/* ---- Names ---- */

/* clang-format off */
static const struct {
    const char *name;
    const char *type;
} verbs[KVB_SERVICE_VERB_COUNT] = {
    [KVB_SERVICE_PING]  = { "PING",  "io.nats.micro.v1.ping_response" },
    [KVB_SERVICE_INFO]  = { "INFO",  "io.nats.micro.v1.info_response" },
    [KVB_SERVICE_STATS] = { "STATS", "io.nats.micro.v1.stats_response" },
};
/* clang-format on */

kvb_status kvb_service_verb_find(const char *text, enum kvb_service_verb *out_verb)
{
    const size_t len = strcspn(text, ".");

    for (size_t i = 0; i < KVB_COUNT_OF(verbs); i++) {
        if (strlen(verbs[i].name) == len && memcmp(text, verbs[i].name, len) == 0) {
            *out_verb = (enum kvb_service_verb)i;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
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

void kvb_service_name_of(
    const char *name_space, const char *component, char out[kvb_service_name_bytes])
{
    char joined[kvb_service_name_bytes];

    (void)snprintf(joined, sizeof joined, "%s_%s", name_space, component); /* fits */
    const size_t skip = strspn(joined, "_");
    const char *from = joined[skip] ? joined + skip : joined; /* a name must not be empty */
    size_t len = 0;
    for (; from[len]; len++) {
        const char c = from[len];
        out[len] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    out[len] = '\0';
}

void kvb_service_name_worker(
    const char *service_name, uint64_t worker_id, struct kvb_service_endpoint *endpoint)
{
    (void)snprintf(
        endpoint->name, sizeof endpoint->name, "%s-load_metrics-%" PRIx64, service_name, worker_id);
    (void)snprintf(
        endpoint->subject, sizeof endpoint->subject, "%s.load_metrics-%" PRIx64, service_name,
        worker_id);
    endpoint->queue_group = "q";
}

/* ---- Answers ---- */

static void write_metadata(struct kvb_json_writer *json, const struct kvb_service *service)
{
    kvb_json_write_pair_begin(json, "metadata", '{');
    for (size_t i = 0; i < KVB_COUNT_OF(service->facts) && service->facts[i].key; i++) {
        kvb_json_write_pair_text(json, service->facts[i].key, service->facts[i].value);
    }
    kvb_json_write_end(json, '}');
}

static void write_service_head(
    struct kvb_json_writer *json, const struct kvb_service *service, enum kvb_service_verb verb)
{
    kvb_json_write_pair_text(json, "type", verbs[verb].type);
    kvb_json_write_pair_text(json, "name", service->name);
    kvb_json_write_pair_text(json, "id", service->id);
    kvb_json_write_pair_text(json, "version", service->version);
    write_metadata(json, service);
    if (verb == KVB_SERVICE_INFO) {
        kvb_json_write_pair_text(json, "description", service->description);
    }
    if (verb == KVB_SERVICE_STATS) {
        kvb_json_write_pair_text(json, "started", service->started);
    }
}

static void write_worker_data(struct kvb_json_writer *json, const struct kvb_worker_load *worker)
{
    kvb_json_write_key(json, "data");
    if (!worker->has_load) {
        kvb_json_write_null(json);
        return;
    }
    if (json->status == KVB_OK) { /* another writer writes it, so set is_after_value here */
        json->status = kvb_load_json_encode_stats(
            &worker->load, worker->has_rank ? &worker->dp_rank : NULL, json->out);
    }
    json->is_after_value = true;
}

static void write_stats(struct kvb_json_writer *json, const struct kvb_service_endpoint *endpoint)
{
    const uint64_t requests = endpoint->num_requests;

    kvb_json_write_pair_u64(json, "num_requests", requests);
    kvb_json_write_pair_u64(json, "num_errors", endpoint->num_errors);
    kvb_json_write_pair_text(json, "last_error", endpoint->last_error);
    kvb_json_write_pair_u64(json, "processing_time", endpoint->processing_ns);
    kvb_json_write_pair_u64(
        json, "average_processing_time", requests > 0 ? endpoint->processing_ns / requests : 0);
    write_worker_data(json, &endpoint->worker);
}

static void write_service_endpoint(
    struct kvb_json_writer *json, const struct kvb_service_endpoint *endpoint,
    enum kvb_service_verb verb)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "name", endpoint->name);
    kvb_json_write_pair_text(json, "subject", endpoint->subject);
    kvb_json_write_pair_text(json, "queue_group", endpoint->queue_group);
    if (verb == KVB_SERVICE_STATS) {
        write_stats(json, endpoint);
    } else {
        kvb_json_write_pair_begin(json, "metadata", '{');
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, '}');
}

/* Writes endpoints from `first` on until the buffer is filled up to `end`, but at least one.
 * Returns the index of the next endpoint. */
static size_t write_service_endpoints(
    struct kvb_json_writer *json, const struct kvb_service_endpoints *list,
    enum kvb_service_verb verb, size_t first, size_t end)
{
    size_t i = first;

    for (; i < list->count && json->status == KVB_OK; i++) {
        struct kvb_service_endpoint endpoint = { .queue_group = "" };
        const struct kvb_json_writer before = *json;
        const size_t len = json->out->len;
        list->fill(list->context, i, &endpoint);
        write_service_endpoint(json, &endpoint, verb);
        /* Taken back: it begins the next part.  The first one stays however large it is, else the
         * parts would never end. */
        if (i > first && (json->status == KVB_TOO_LARGE || json->out->len > end)) {
            *json = before;
            json->out->len = len;
            break;
        }
    }
    return i;
}

kvb_status kvb_service_answer(
    const struct kvb_service *service, const struct kvb_service_endpoints *list,
    struct kvb_service_request request, size_t *next, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);
    const size_t room = request.max_bytes > closing_bytes ? request.max_bytes - closing_bytes : 0;
    const size_t end = out->len + room;
    size_t after = *next;

    kvb_json_write_begin(&json, '{');
    write_service_head(&json, service, request.verb);
    if (request.verb != KVB_SERVICE_PING) {
        kvb_json_write_pair_begin(&json, "endpoints", '[');
        after = write_service_endpoints(&json, list, request.verb, *next, end);
        kvb_json_write_end(&json, ']');
        if (after < list->count) {
            kvb_json_write_pair_u64(&json, "more", list->count - after);
        }
    }
    kvb_json_write_end(&json, '}');
    /* After KVB_TOO_LARGE *next has not moved, and the caller asks for the same part again. */
    KVB_TRY(json.status);
    *next = after;
    return KVB_OK;
}

/* ---- The responder ---- */

/* In the order of KVB_SERVICE_METRICS. */
enum responder_metric {
#define SERVICE_METRIC_ID(id, type, name, labels, help) count_##id,
    KVB_SERVICE_METRICS(SERVICE_METRIC_ID)
#undef SERVICE_METRIC_ID
};
_Static_assert((int)count_service_stats == (int)KVB_SERVICE_STATS, "verbs are counted by number");

struct kvb_service_responder {
    struct kvb_service_responder_options options;
    struct kvb_bus_subscription *requests_to_all; /* owned, like the two below */
    struct kvb_bus_subscription *requests_to_kind;
    struct kvb_bus_subscription *requests_to_one;

    /* Only handlers take this lock, and no other thread waits for them.  So it may be held while
     * an answer is written to NATS. */
    pthread_mutex_t lock;
    struct kvb_buf buf;
    size_t part_bytes;     /* of one message; halved when it is too large for the server */
    uint64_t budget_bytes; /* bytes that may be sent now */
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

/* Halves the size of parts for good when the server's max_payload is smaller. */
static kvb_status send_service_parts(
    struct kvb_service_responder *responder, const struct kvb_service_endpoints *list,
    enum kvb_service_verb verb, const char *reply)
{
    size_t next = 0;

    for (;;) {
        const kvb_status status = send_part(responder, list, verb, reply, &next);
        /* The next answers begin with the smaller size at once. */
        if (status == KVB_TOO_LARGE && responder->part_bytes > min_part_bytes) {
            responder->part_bytes /= 2;
            continue;
        }
        KVB_TRY(status);
        /* An answer without endpoints is one part, too. */
        if (next >= list->count) {
            return KVB_OK;
        }
    }
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
    /* The requester chooses this subject, and the answer has the permissions of this program. */
    if (kvb_reply_is_refused(message->reply)) {
        count_responder(responder, count_service_bad_reply);
        return;
    }
    if (kvb_service_verb_find(message->subject + prefix_bytes, &verb) != KVB_OK) {
        count_responder(responder, count_service_unknown);
        return;
    }
    /* One after the other: all requests share one budget and one buffer. */
    (void)pthread_mutex_lock(&responder->lock);
    if (!has_budget(responder)) {
        count_responder(responder, count_service_busy);
    } else if (answer_verb(responder, verb, message->reply) == KVB_OK) {
        count_responder(responder, (enum responder_metric)verb);
    } else {
        count_responder(responder, count_service_failed);
    }
    kvb_bus_write(responder->options.bus);
    (void)pthread_mutex_unlock(&responder->lock);
}

/* ---- Opening and closing ---- */

static kvb_status subscribe_verbs(struct kvb_service_responder *responder)
{
    const struct kvb_service *service = responder->options.service;
    struct kvb_bus *bus = responder->options.bus;
    const struct {
        enum kvb_contract_subject subject;
        struct kvb_bus_subscription **subscription;
    } rows[] = {
        { KVB_SUBJECT_SERVICES, &responder->requests_to_all },
        { KVB_SUBJECT_SERVICE_KIND, &responder->requests_to_kind },
        { KVB_SUBJECT_SERVICE_ONE, &responder->requests_to_one },
    };
    struct kvb_subject_names names = { .id = service->id };

    _Static_assert(sizeof names.service == sizeof service->name, "one name of a service");
    memcpy(names.service, service->name, sizeof names.service);
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char subject[kvb_subject_bytes];
        KVB_TRY(kvb_contract_subject_make(rows[i].subject, &names, subject));
        KVB_TRY(
            kvb_bus_subscribe(bus, subject, on_service_request, responder, rows[i].subscription));
    }
    return KVB_OK;
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
    /* First: no handler runs any more when these return, and none finds the lock destroyed. */
    kvb_bus_unsubscribe(responder->requests_to_one);
    kvb_bus_unsubscribe(responder->requests_to_kind);
    kvb_bus_unsubscribe(responder->requests_to_all);
    (void)pthread_mutex_destroy(&responder->lock);
    kvb_buf_done(&responder->buf);
    free(responder);
}
