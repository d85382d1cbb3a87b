#include "ingest/zmq/reply_queue.h"

#include "core/array.h"

#include <stdlib.h>
#include <string.h>

enum { max_replies = 1 << 22, fewest_kept = 2 };

static size_t bytes_of(const zmq_msg_t *payload)
{
    return sizeof(struct kvb_reply) + zmq_msg_size(payload);
}

static void close_replies(struct kvb_reply_queue *queue)
{
    struct kvb_reply reply;

    while (kvb_reply_queue_take(queue, &reply) == KVB_OK) {
        (void)zmq_msg_close(&reply.payload);
    }
}

/* Also frees the memory, because most streams never have a large replay again. */
void kvb_reply_queue_done(struct kvb_reply_queue *queue)
{
    close_replies(queue);
    free(queue->items);
    *queue = (struct kvb_reply_queue){ .max_bytes = queue->max_bytes };
}

size_t kvb_reply_queue_count(const struct kvb_reply_queue *queue)
{
    return queue->end - queue->first;
}

static void read_reply_kind(const struct kvb_zmq_message *message, struct kvb_reply *reply)
{
    enum kvb_replay_frame kind = KVB_REPLAY_END;
    kvb_span payload;

    /* A bad one is kept, too: it is counted in its turn. */
    if (kvb_frames_read_replay(&message->frames, &kind, &reply->seq, &payload) != KVB_OK) {
        reply->kind = kvb_reply_bad;
    } else {
        reply->kind = kind == KVB_REPLAY_END ? kvb_reply_end : kvb_reply_batch;
        reply->has_topic = kvb_frames_has_topic(&message->frames);
    }
}

/* Moves the remaining entries to the front when at least half of the array was taken. */
static void compact_reply_queue(struct kvb_reply_queue *queue)
{
    if (queue->first > 0 && queue->first >= queue->end - queue->first) {
        memmove(
            queue->items, queue->items + queue->first,
            kvb_reply_queue_count(queue) * sizeof *queue->items);
        queue->end -= queue->first;
        queue->first = 0;
    }
}

kvb_status kvb_reply_queue_put(struct kvb_reply_queue *queue, struct kvb_zmq_message *message)
{
    struct kvb_reply reply = { .seq = 0 };
    zmq_msg_t *payload = &message->parts[message->part_count - 1];
    const size_t bytes = bytes_of(payload);

    /* A few are kept whatever their size, or a replay of large ones would never end. */
    if (queue->bytes + bytes > queue->max_bytes && kvb_reply_queue_count(queue) >= fewest_kept) {
        return KVB_TOO_LARGE;
    }
    /* Before room is reserved, so that places of taken replies are used again. */
    compact_reply_queue(queue);
    KVB_TRY(kvb_array_reserve(
        &queue->items, &queue->capacity, queue->end + 1, sizeof *queue->items, max_replies));
    read_reply_kind(message, &reply);
    queue->items[queue->end] = reply;
    (void)zmq_msg_init(&queue->items[queue->end].payload); /* cannot fail */
    (void)zmq_msg_move(&queue->items[queue->end].payload, payload);
    queue->end++;
    queue->bytes += bytes;
    kvb_zmq_message_close(message);
    return KVB_OK;
}

kvb_status kvb_reply_queue_take(struct kvb_reply_queue *queue, struct kvb_reply *out_reply)
{
    if (queue->first == queue->end) {
        return KVB_AGAIN;
    }
    struct kvb_reply *oldest = &queue->items[queue->first++];
    out_reply->kind = oldest->kind;
    out_reply->has_topic = oldest->has_topic;
    out_reply->seq = oldest->seq;
    (void)zmq_msg_init(&out_reply->payload);
    /* The place keeps an empty message, which needs no close. */
    (void)zmq_msg_move(&out_reply->payload, &oldest->payload);
    queue->bytes -= bytes_of(&out_reply->payload);
    return KVB_OK;
}
