#include "daemon/event_publisher.h"

#include "core/limits.h"
#include "wire/router_json.h"
#include "wire/router_proto.h"

kvb_status kvb_event_publisher_init(
    struct kvb_event_publisher *publisher, struct kvb_bus *bus, enum kvb_profile profile,
    const char *name_space, const char *component)
{
    *publisher = (struct kvb_event_publisher){ .bus = bus, .profile = profile };
    kvb_buf_init(&publisher->buf, kvb_max_nats_payload_bytes);
    return kvb_subject_make(publisher->subject, name_space, component, "kv_events");
}

void kvb_event_publisher_done(struct kvb_event_publisher *publisher)
{
    kvb_buf_done(&publisher->buf);
}

static kvb_status send(struct kvb_event_publisher *publisher, size_t events)
{
    KVB_TRY(kvb_bus_publish(publisher->bus, publisher->subject, kvb_buf_span(&publisher->buf)));
    publisher->events += events;
    publisher->messages++;
    return KVB_OK;
}

static kvb_status
publish_json(struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch)
{
    for (size_t at = 0; at < batch->event_count; at++) {
        kvb_buf_reset(&publisher->buf);
        KVB_TRY(kvb_router_json_encode(batch, at, &publisher->buf));
        KVB_TRY(send(publisher, 1));
    }
    return KVB_OK;
}

/* How many events from `at` on share a message: one at least. */
static size_t events_that_fit(const struct kvb_router_batch *batch, size_t at)
{
    size_t blocks = 0;
    size_t end = at;

    while (end < batch->event_count) {
        /* an event without blocks weighs a block too: ids and kinds are columns */
        blocks += batch->events[end].block_count + 1;
        if (blocks > kvb_publisher_message_blocks && end > at) {
            break;
        }
        end++;
    }
    return end - at;
}

static kvb_status
publish_protobuf(struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch)
{
    for (size_t at = 0; at < batch->event_count;) {
        const size_t count = events_that_fit(batch, at);
        kvb_buf_reset(&publisher->buf);
        KVB_TRY(kvb_router_proto_encode(batch, at, count, &publisher->buf));
        KVB_TRY(send(publisher, count));
        at += count;
    }
    return KVB_OK;
}

kvb_status kvb_event_publisher_publish(
    struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch)
{
    const kvb_status status = publisher->profile == KVB_PROFILE_JSON
                                  ? publish_json(publisher, batch)
                                  : publish_protobuf(publisher, batch);

    publisher->failures += status != KVB_OK;
    return status;
}
