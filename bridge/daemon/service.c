#include "daemon/service.h"

#include "core/own.h"
#include "wire/json/writer.h"
#include "wire/load/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { closing_bytes = 64 }; /* ],"more":18446744073709551615} */

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

const char *kvb_service_verb_name(enum kvb_service_verb verb)
{
    return verbs[verb].name;
}

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

void kvb_service_name_of(
    const char *name_space, const char *component, char out[kvb_service_name_bytes])
{
    char joined[kvb_service_name_bytes];

    (void)snprintf(joined, sizeof joined, "%s_%s", name_space, component); /* fits */
    const size_t skip = strspn(joined, "_");
    const char *from = joined[skip] ? joined + skip : joined; /* a name is not empty */
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
    kvb_json_write_key(json, "metadata");
    kvb_json_write_begin(json, '{');
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
    if (json->status == KVB_OK) { /* written by another writer, so note the comma here */
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
        kvb_json_write_key(json, "metadata");
        kvb_json_write_begin(json, '{');
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, '}');
}

/* Writes the endpoints from `first` on that fit before `end` of the buffer, at least one.
 * Returns the number of the next one. */
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
        kvb_json_write_key(&json, "endpoints");
        kvb_json_write_begin(&json, '[');
        after = write_service_endpoints(&json, list, request.verb, *next, end);
        kvb_json_write_end(&json, ']');
        if (after < list->count) {
            kvb_json_write_pair_u64(&json, "more", list->count - after);
        }
    }
    kvb_json_write_end(&json, '}');
    KVB_TRY(json.status);
    *next = after;
    return KVB_OK;
}
