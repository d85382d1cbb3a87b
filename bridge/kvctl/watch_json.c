#include "kvctl/watch_json.h"

#include "core/own.h"
#include "wire/json/tree.h"
#include "wire/query/refresh.h"
#include "wire/router/heartbeat.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <string.h>

/* Limits of one message: the status of a bridge with 65,536 ranks has 2 million values. */
enum { max_containers = 1 << 20, max_values = 1 << 22, max_depth = 31 };

const char *kvb_watch_kind_name(enum kvb_router_kind kind)
{
    static const char *const names[] = { "stored", "removed", "cleared" };

    return names[kind];
}

/* ---- The parts of a line ---------------------------------------------------------- */

static void begin_line(struct kvb_json_writer *json, const struct kvb_bus_message *message)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "subject", message->subject);
    if (message->reply) {
        kvb_json_write_pair_text(json, "reply", message->reply);
    }
}

static kvb_status end_json_line(struct kvb_json_writer *json)
{
    kvb_json_write_end(json, '}');
    KVB_TRY(json->status);
    return kvb_buf_append_text(json->out, "\n");
}

/* Copies valid JSON; its line ends, which can only be between values, become spaces. */
static void write_checked(struct kvb_json_writer *json, kvb_span text)
{
    char *at = kvb_json_write_open(json, text.len);

    if (!at) {
        return;
    }
    for (size_t i = 0; i < text.len; i++) {
        *at++ = (char)(text.data[i] < ' ' ? ' ' : text.data[i]);
    }
    kvb_json_write_close(json, at);
}

static void write_event_blocks(
    const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    struct kvb_json_writer *json)
{
    kvb_json_write_pair_begin(json, "blocks", '[');
    for (uint32_t i = event->block_at; i < event->block_at + event->block_count; i++) {
        kvb_json_write_begin(json, '{');
        kvb_json_write_pair_u64(json, "block_hash", batch->blocks[i].value);
        if (event->kind == KVB_ROUTER_STORED) {
            kvb_json_write_pair_u64(json, "tokens_hash", batch->tokens[i].value);
        }
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, ']');
}

void kvb_watch_event_json(
    const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    struct kvb_json_writer *json)
{
    kvb_json_write_pair_u64(json, "worker_id", batch->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", batch->dp_rank);
    kvb_json_write_pair_u64(json, "event_id", event->event_id);
    kvb_json_write_pair_text(json, "kind", kvb_watch_kind_name(event->kind));
    if (event->kind != KVB_ROUTER_CLEARED) {
        kvb_json_write_pair_text(json, "tier", kvb_tier_name(event->tier));
    }
    if (event->kind == KVB_ROUTER_STORED && event->has_parent) {
        kvb_json_write_pair_u64(json, "parent_hash", event->parent.value);
    }
    write_event_blocks(batch, event, json);
}

/* ---- Each form of message --------------------------------------------------------- */

/* The message to print, and the lines made from it. */
struct lines {
    const struct kvb_bus_message *message;
    uint64_t max;
    uint64_t count;
    struct kvb_router_batch *batch;
    struct kvb_buf *out;
};

static kvb_status add_event_lines(struct lines *lines)
{
    KVB_TRY(kvb_router_payload_decode(lines->message->payload, lines->batch));
    for (size_t i = 0; i < lines->batch->event_count && lines->count < lines->max; i++) {
        struct kvb_json_writer json = kvb_json_writer_of(lines->out);
        begin_line(&json, lines->message);
        kvb_json_write_pair_begin(&json, "data", '{');
        kvb_watch_event_json(lines->batch, &lines->batch->events[i], &json);
        kvb_json_write_end(&json, '}');
        KVB_TRY(end_json_line(&json));
        lines->count++;
    }
    return KVB_OK;
}

static kvb_status add_heartbeat(struct lines *lines)
{
    struct kvb_json_writer json = kvb_json_writer_of(lines->out);
    struct kvb_heartbeat heartbeat;

    KVB_TRY(kvb_heartbeat_decode(lines->message->payload, &heartbeat));
    begin_line(&json, lines->message);
    kvb_json_write_key(&json, "data");
    kvb_heartbeat_json_write(&heartbeat, &json);
    lines->count++;
    return end_json_line(&json);
}

static kvb_status add_sync(struct lines *lines)
{
    static const char *const kinds[KVB_SYNC_KIND_COUNT] = {
        [KVB_SYNC_RANGE] = "range", [KVB_SYNC_SNAPSHOT] = "snapshot", [KVB_SYNC_DIGEST] = "digest"
    };
    struct kvb_json_writer json = kvb_json_writer_of(lines->out);
    struct kvb_sync_request request;

    KVB_TRY(kvb_sync_request_decode(lines->message->payload, &request));
    begin_line(&json, lines->message);
    kvb_json_write_pair_begin(&json, "data", '{');
    kvb_json_write_pair_text(&json, "kind", kinds[request.kind]);
    if (request.kind == KVB_SYNC_RANGE) {
        kvb_json_write_pair_u64(&json, "from_id", request.from_id);
        kvb_json_write_pair_u64(&json, "to_id", request.to_id);
    }
    kvb_json_write_end(&json, '}');
    lines->count++;
    return end_json_line(&json);
}

static kvb_status add_refresh(struct lines *lines)
{
    struct kvb_json_writer json = kvb_json_writer_of(lines->out);
    struct kvb_refresh_request request;
    struct kvb_detail why; /* the bridge answers with it */

    KVB_TRY(kvb_refresh_json_decode(lines->message->payload, &request, &why));
    begin_line(&json, lines->message);
    kvb_json_write_pair_begin(&json, "data", '{');
    if (request.has_worker_id) {
        kvb_json_write_pair_u64(&json, "worker_id", request.worker_id);
    }
    if (request.has_rank) {
        kvb_json_write_pair_u64(&json, "dp_rank", request.dp_rank);
    }
    kvb_json_write_end(&json, '}');
    lines->count++;
    return end_json_line(&json);
}

/* An empty message is valid: some requests have no query. */
static kvb_status add_text_line(struct lines *lines)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };
    struct kvb_json_writer json = kvb_json_writer_of(lines->out);
    const kvb_span payload = lines->message->payload;
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    if (payload.len > 0) {
        KVB_TRY(kvb_json_parse(payload, &budget, &root)); /* looks at UTF-8 too */
    }
    begin_line(&json, lines->message);
    kvb_json_write_key(&json, "data");
    if (payload.len > 0) {
        write_checked(&json, payload);
    } else {
        kvb_json_write_null(&json);
    }
    lines->count++;
    return end_json_line(&json);
}

static kvb_status add_unreadable(struct lines *lines, kvb_status why)
{
    struct kvb_json_writer json = kvb_json_writer_of(lines->out);

    begin_line(&json, lines->message);
    kvb_json_write_pair_u64(&json, "bytes", lines->message->payload.len);
    kvb_json_write_pair_text(&json, "error", kvb_status_name(why));
    lines->count++;
    return end_json_line(&json);
}

/* ---- Which form it is ------------------------------------------------------------- */

typedef kvb_status (*adder)(struct lines *lines);

/* The part after namespace.N.component.C. ; NULL for a shorter subject. */
static const char *tail_of(const char *subject)
{
    /* Four dots precede it. */
    for (int i = 0; i < 4 && subject; i++) {
        subject = strchr(subject, '.');
        subject = subject ? subject + 1 : NULL;
    }
    return subject;
}

static adder find_adder(const char *subject)
{
    static const struct {
        const char *tail; /* up to the first dot in it */
        adder add;
    } forms[] = {
        { "kv_events", add_event_lines },
        { "kv_events_pb", add_event_lines },
        { "kv_window_events", add_event_lines },
        { "kv_heartbeat", add_heartbeat },
        { "kv_sync", add_sync },
        { "kv_refresh", add_refresh },
    };
    const char *tail = tail_of(subject);

    for (size_t i = 0; i < KVB_COUNT_OF(forms) && tail; i++) {
        const size_t len = strlen(forms[i].tail);
        if (strcspn(tail, ".") == len && strncmp(tail, forms[i].tail, len) == 0) {
            return forms[i].add;
        }
    }
    return add_text_line;
}

kvb_status kvb_watch_message_json(
    const struct kvb_bus_message *message, uint64_t max_lines, struct kvb_router_batch *batch,
    struct kvb_buf *out, uint64_t *lines)
{
    struct lines all = { .message = message, .max = max_lines, .batch = batch, .out = out };
    const size_t at = out->len;

    /* The subject says the form; a peer may send anything on it. */
    kvb_status status = find_adder(message->subject)(&all);
    /* Nothing of the message is in the line yet: a line says that it came. */
    if (status == KVB_BAD_INPUT || (status == KVB_TOO_LARGE && out->len == at)) {
        status = add_unreadable(&all, status);
    }
    *lines += all.count;
    return status;
}
