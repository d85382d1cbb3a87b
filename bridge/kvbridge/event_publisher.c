#include "kvbridge/event_publisher.h"

#include "bus/contract.h"
#include "model/event_log.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"

#include <string.h>

kvb_status kvb_event_publisher_init(
    struct kvb_event_publisher *publisher, struct kvb_bus *bus, unsigned formats,
    unsigned json_lists, const char *name_space, const char *component)
{
    const struct kvb_subject_names names = { .workers_namespace = name_space,
                                             .workers_component = component };

    *publisher =
        (struct kvb_event_publisher){ .bus = bus, .formats = formats, .json_lists = json_lists };
    kvb_buf_init(&publisher->message, kvb_max_nats_payload_bytes);
    kvb_buf_init(&publisher->texts, kvb_max_nats_payload_bytes);
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_EVENTS, &names, publisher->json_subject));
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_EVENTS_PB, &names, publisher->protobuf_subject));
    return kvb_contract_subject_make(KVB_SUBJECT_WINDOW_EVENTS, &names, publisher->window_subject);
}

void kvb_event_publisher_done(struct kvb_event_publisher *publisher)
{
    kvb_buf_done(&publisher->message);
    kvb_buf_done(&publisher->texts);
}

static bool has_json(const struct kvb_event_publisher *publisher)
{
    return kvb_formats_have(publisher->formats, KVB_FORMAT_JSON);
}

static bool has_protobuf(const struct kvb_event_publisher *publisher)
{
    return kvb_formats_have(publisher->formats, KVB_FORMAT_PROTOBUF);
}

/* ---- json ---- */

static kvb_status send_json(struct kvb_event_publisher *publisher)
{
    kvb_span messages[kvb_publisher_waiting_messages];
    size_t sent = 0;
    size_t at = 0;

    if (publisher->end_count == 0) {
        return KVB_OK;
    }
    for (size_t i = 0; i < publisher->end_count; i++) {
        messages[i] =
            (kvb_span){ .data = publisher->texts.data + at, .len = publisher->ends[i] - at };
        at = publisher->ends[i];
    }
    const kvb_status status = kvb_bus_publish_many(
        publisher->bus,
        publisher->is_window_waiting ? publisher->window_subject : publisher->json_subject,
        messages, publisher->end_count, &sent);
    publisher->events += has_protobuf(publisher) ? 0 : sent; /* counted there already */
    publisher->messages += sent;
    publisher->bytes += sent > 0 ? publisher->ends[sent - 1] : 0;
    /* Also after a failure: what was not sent is lost, and the ids show readers the gap. */
    publisher->end_count = 0;
    kvb_buf_reset(&publisher->texts);
    return status;
}

/* True: the event is about the window list.  A clear is about all lists, and for all readers. */
static bool is_of_window(const struct kvb_router_event *event)
{
    return event->tier == KVB_LIST_WINDOW && event->kind != KVB_ROUTER_CLEARED;
}

/* Events waiting for another subject are sent first, so that events leave in the order of their
 * ids. */
static kvb_status turn_to_subject(struct kvb_event_publisher *publisher, bool is_window)
{
    if (publisher->is_window_waiting != is_window) {
        KVB_TRY(send_json(publisher));
    }
    publisher->is_window_waiting = is_window;
    return KVB_OK;
}

static kvb_status
add_json(struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch)
{
    for (size_t at = 0; at < batch->event_count; at++) {
        const struct kvb_router_event *event = &batch->events[at];
        if (event->kind != KVB_ROUTER_CLEARED && (publisher->json_lists & 1U << event->tier) == 0) {
            continue; /* readers of JSON see a gap in the ids, as they do at events of the window */
        }
        KVB_TRY(turn_to_subject(publisher, is_of_window(event)));
        KVB_TRY(kvb_router_json_encode(batch, at, &publisher->texts));
        publisher->ends[publisher->end_count++] = publisher->texts.len;
        /* After the text was added: one event may exceed the limit by its own length. */
        if (publisher->end_count == kvb_publisher_waiting_messages ||
            publisher->texts.len >= kvb_publisher_waiting_bytes) {
            KVB_TRY(send_json(publisher));
        }
    }
    return KVB_OK;
}

/* ---- protobuf ---- */

/* The most blocks in one message, by the server's max_payload. */
static size_t message_blocks(const struct kvb_event_publisher *publisher)
{
    const size_t blocks = kvb_router_proto_room(kvb_bus_max_payload(publisher->bus));

    return blocks < kvb_publisher_message_blocks ? blocks : kvb_publisher_message_blocks;
}

/* How many events from `at` on fit one message of max_blocks blocks; at least one. */
static size_t events_that_fit(const struct kvb_router_batch *batch, size_t at, size_t max_blocks)
{
    size_t blocks = 0;
    size_t end = at;

    while (end < batch->event_count) {
        /* an event itself counts as a block: its id and kind need space in columns */
        blocks += batch->events[end].block_count + 1;
        /* An event above the limit goes alone: kvb_bus_publish() says whether the server takes it.
         */
        if (blocks > max_blocks && end > at) {
            break;
        }
        end++;
    }
    return end - at;
}

static kvb_status
send_protobuf(struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch)
{
    const size_t max_blocks = message_blocks(publisher);

    for (size_t at = 0; at < batch->event_count;) {
        const size_t count = events_that_fit(batch, at, max_blocks);
        kvb_buf_reset(&publisher->message);
        KVB_TRY(kvb_router_proto_encode(batch, at, count, &publisher->message));
        KVB_TRY(kvb_bus_publish(
            publisher->bus, publisher->protobuf_subject, kvb_buf_span(&publisher->message)));
        /* After each message, because a later one may fail. */
        publisher->events += count;
        publisher->messages++;
        publisher->bytes += publisher->message.len;
        at += count;
    }
    return KVB_OK;
}

/* Nothing waits afterwards.  Events that the log had to drop are lost: memory was out, or a step
 * emptied a whole list. */
static kvb_status send_what_waits(struct kvb_event_publisher *publisher)
{
    struct kvb_waiting_events *waiting = &publisher->waiting;
    struct kvb_router_batch part = { .worker_id = waiting->worker_id,
                                     .dp_rank = waiting->dp_rank,
                                     .has_epoch = true,
                                     .epoch = waiting->epoch };

    while (waiting->count > 0) {
        const size_t lent =
            kvb_event_log_lend(waiting->log, waiting->number, waiting->count, &part);
        /* The log has dropped some of them: the caller makes the stream lost. */
        if (lent == 0) {
            return KVB_AGAIN;
        }
        waiting->number += lent;
        waiting->count -= lent;
        KVB_TRY(send_protobuf(publisher, &part));
    }
    return KVB_OK;
}

static size_t batch_weight(const struct kvb_router_batch *batch)
{
    return batch->event_count + batch->block_count;
}

static bool may_events_wait(const struct kvb_event_log *log, size_t weight)
{
    return weight <= kvb_publisher_waiting_blocks && log &&
           kvb_event_log_max_blocks(log) >= kvb_publisher_log_blocks;
}

/* True: the events continue directly after those that wait. */
static bool follows(
    const struct kvb_waiting_events *waiting, const struct kvb_router_batch *batch,
    const struct kvb_event_log *log)
{
    return waiting->log == log && waiting->next_id == batch->events[0].event_id &&
           kvb_epoch_is_same(&waiting->epoch, &batch->epoch);
}

static void wait_with(
    struct kvb_waiting_events *waiting, const struct kvb_router_batch *batch,
    const struct kvb_event_log *log)
{
    if (waiting->count == 0) {
        *waiting =
            (struct kvb_waiting_events){ .log = log,
                                         .number = kvb_event_log_end(log) - batch->event_count,
                                         .worker_id = batch->worker_id,
                                         .dp_rank = batch->dp_rank,
                                         .epoch = batch->epoch };
    }
    waiting->count += batch->event_count;
    waiting->weight += batch_weight(batch);
    waiting->next_id = batch->events[batch->event_count - 1].event_id + 1;
}

static kvb_status add_protobuf(
    struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch,
    const struct kvb_event_log *log)
{
    struct kvb_waiting_events *waiting = &publisher->waiting;
    const size_t weight = batch_weight(batch);

    /* First what waits, so that ids leave in their order. */
    if (waiting->count > 0 && (waiting->weight + weight > kvb_publisher_waiting_blocks ||
                               !follows(waiting, batch, log))) {
        KVB_TRY(send_what_waits(publisher));
    }
    if (!may_events_wait(log, weight)) {
        return send_protobuf(publisher, batch);
    }
    wait_with(waiting, batch, log);
    return KVB_OK;
}

/* ---- Both formats ---- */

static kvb_status drop_what_waits(struct kvb_event_publisher *publisher, kvb_status why)
{
    publisher->failures++;
    publisher->end_count = 0;
    publisher->waiting.count = 0;
    kvb_buf_reset(&publisher->texts);
    return why;
}

kvb_status kvb_event_publisher_add(
    struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch,
    const struct kvb_event_log *log)
{
    if (batch->event_count == 0) {
        return KVB_OK;
    }
    kvb_status status = KVB_OK;
    if (has_protobuf(publisher)) {
        status = add_protobuf(publisher, batch, log);
    }
    /* Not after a failure: the stream counts as lost in both formats. */
    if (status == KVB_OK && has_json(publisher)) {
        status = add_json(publisher, batch);
    }
    return status == KVB_OK ? KVB_OK : drop_what_waits(publisher, status);
}

kvb_status kvb_event_publisher_send(struct kvb_event_publisher *publisher)
{
    kvb_status status = send_what_waits(publisher); /* nothing, without protobuf */

    if (status == KVB_OK) {
        status = send_json(publisher);
    }
    return status == KVB_OK ? KVB_OK : drop_what_waits(publisher, status);
}
