#include "kvfleet/replay_port.h"

#include "core/own.h"

#include <stdbool.h>
#include <string.h>
#include <zmq.h>

enum { max_id_bytes = 256 };

struct request {
    uint8_t id[max_id_bytes];
    size_t id_len;
    uint64_t start;
    bool may_have_name; /* of the peer, before the empty frame */
    bool has_name;
    bool is_good;
};

void kvb_replay_port_write_seq(uint8_t out[8], uint64_t seq)
{
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(seq >> (56 - 8 * i));
    }
}

static uint64_t read_request_seq(const uint8_t bytes[8])
{
    uint64_t seq = 0;

    for (int i = 0; i < 8; i++) {
        seq = seq << 8 | bytes[i];
    }
    return seq;
}

/* Takes frame number `at` into the request; false when it does not belong there. */
static bool take_frame(struct request *request, unsigned at, const uint8_t *data, size_t len)
{
    if (at == 0 && len <= max_id_bytes) {
        memcpy(request->id, data, len);
        request->id_len = len;
        return true;
    }
    if (at == 1 && len > 0) {
        request->has_name = request->may_have_name;
        return request->may_have_name;
    }
    const unsigned place = at - (request->has_name ? 1 : 0);
    if (place == 1) {
        return len == 0;
    }
    if (place == 2 && len == 8) {
        request->start = read_request_seq(data);
        return true;
    }
    return false;
}

/* Reads all frames of one message, also those that do not fit. */
static kvb_status receive_replay_request(void *router, struct request *out_request)
{
    bool is_good = true;
    bool has_more = true;
    unsigned at = 0;

    for (; has_more; at++) {
        zmq_msg_t frame;
        (void)zmq_msg_init(&frame); /* cannot fail */
        if (zmq_msg_recv(&frame, router, ZMQ_DONTWAIT) < 0) {
            const int reason = zmq_errno();
            (void)zmq_msg_close(&frame);
            return reason == EAGAIN ? KVB_AGAIN : KVB_IO;
        }
        is_good =
            take_frame(out_request, at, zmq_msg_data(&frame), zmq_msg_size(&frame)) && is_good;
        has_more = zmq_msg_more(&frame);
        (void)zmq_msg_close(&frame);
    }
    out_request->is_good = is_good && at == (out_request->has_name ? 4 : 3);
    return KVB_OK;
}

struct reply {
    void *router;
    const struct request *request;
    const struct kvb_publisher_options *options;
};

static bool send_frame(void *router, kvb_span frame, bool is_last)
{
    return zmq_send(router, frame.data, frame.len, is_last ? 0 : ZMQ_SNDMORE) >= 0;
}

/* When the peer's pipe is full a ROUTER drops the message silently. */
static kvb_status send_frames(const struct reply *reply, const kvb_span *frames, size_t count)
{
    const kvb_span id = { reply->request->id, reply->request->id_len };
    bool is_sent = send_frame(reply->router, id, false);

    for (size_t i = 0; i < count && is_sent; i++) {
        is_sent = send_frame(reply->router, frames[i], i + 1 == count);
    }
    return is_sent ? KVB_OK : KVB_IO;
}

static const kvb_span no_bytes = { (const uint8_t *)"", 0 };

static kvb_status send_batch(const struct reply *reply, uint64_t seq, kvb_span payload)
{
    uint8_t bytes[8];
    const kvb_span seq_frame = { bytes, sizeof bytes };
    const kvb_span with_topic[] = { no_bytes, reply->options->topic, seq_frame, payload };
    const kvb_span without[] = { no_bytes, seq_frame, payload };

    kvb_replay_port_write_seq(bytes, seq);
    return reply->options->layout == KVB_REPLAY_WITH_TOPIC
               ? send_frames(reply, with_topic, KVB_COUNT_OF(with_topic))
               : send_frames(reply, without, KVB_COUNT_OF(without));
}

static kvb_status send_end(const struct reply *reply)
{
    static const uint8_t ones[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
    const kvb_span end = { ones, sizeof ones };
    const struct {
        kvb_span frames[4];
        size_t count;
    } ends[] = {
        [KVB_REPLAY_WITHOUT_TOPIC] = { { no_bytes, end, no_bytes }, 3 },
        [KVB_REPLAY_WITH_TOPIC] = { { no_bytes, no_bytes, end, no_bytes }, 4 },
        [KVB_REPLAY_MOONCAKE] = { { no_bytes, no_bytes, end }, 3 },
    };

    return send_frames(
        reply, ends[reply->options->layout].frames, ends[reply->options->layout].count);
}

static kvb_status send_all(
    const struct reply *reply, const struct kvb_replay_buffer *buffer,
    struct kvb_replay_answer *answer)
{
    const size_t first = kvb_replay_buffer_find(buffer, reply->request->start);

    answer->is_full = first == 0 && kvb_replay_buffer_count(buffer) > 1;
    for (size_t at = first; at < kvb_replay_buffer_count(buffer); at++) {
        uint64_t seq = 0;
        const kvb_span payload = kvb_replay_buffer_at(buffer, at, &seq);
        KVB_TRY(send_batch(reply, seq, payload));
        answer->replayed++;
    }
    return send_end(reply);
}

kvb_status kvb_replay_port_serve(
    void *router, const struct kvb_replay_buffer *buffer,
    const struct kvb_publisher_options *options, struct kvb_replay_answer *out_answer)
{
    struct request request = { .may_have_name = options->layout == KVB_REPLAY_MOONCAKE };
    const struct reply reply = { .router = router, .request = &request, .options = options };
    struct kvb_replay_answer answer = { 0 };

    KVB_TRY(receive_replay_request(router, &request));
    answer.is_ignored = !request.is_good;
    if (request.is_good) {
        KVB_TRY(send_all(&reply, buffer, &answer));
    }
    *out_answer = answer;
    return KVB_OK;
}
