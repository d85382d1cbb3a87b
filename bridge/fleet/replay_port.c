#include "fleet/replay_port.h"

#include <stdbool.h>
#include <string.h>
#include <zmq.h>

enum { most_id_bytes = 256 };

struct request {
    uint8_t id[most_id_bytes];
    size_t id_len;
    uint64_t start;
    bool is_good;
};

void kvb_replay_port_write_seq(uint8_t out[8], uint64_t seq)
{
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(seq >> (56 - 8 * i));
    }
}

static uint64_t read_seq(const uint8_t bytes[8])
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
    if (at == 0 && len <= most_id_bytes) {
        memcpy(request->id, data, len);
        request->id_len = len;
        return true;
    }
    if (at == 1) {
        return len == 0;
    }
    if (at == 2 && len == 8) {
        request->start = read_seq(data);
        return true;
    }
    return false;
}

/* Reads all frames of one message, also those that do not fit. */
static kvb_status receive(void *router, struct request *out_request)
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
    out_request->is_good = is_good && at == 3;
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

/* A full pipe drops the message without a word: that is a ROUTER. */
static kvb_status send_reply(const struct reply *reply, kvb_span topic, uint64_t seq, kvb_span body)
{
    const kvb_span id = { reply->request->id, reply->request->id_len };
    const kvb_span empty = { (const uint8_t *)"", 0 };
    uint8_t seq_bytes[8];

    kvb_replay_port_write_seq(seq_bytes, seq);
    bool is_sent = send_frame(reply->router, id, false) && send_frame(reply->router, empty, false);
    if (reply->options->layout == KVB_REPLAY_WITH_TOPIC) {
        is_sent = is_sent && send_frame(reply->router, topic, false);
    }
    is_sent = is_sent && send_frame(reply->router, (kvb_span){ seq_bytes, 8 }, false) &&
              send_frame(reply->router, body, true);
    return is_sent ? KVB_OK : KVB_IO;
}

static kvb_status send_all(
    const struct reply *reply, const struct kvb_replay_buffer *buffer,
    struct kvb_replay_answer *answer)
{
    const kvb_span topic = { (const uint8_t *)reply->options->topic,
                             strlen(reply->options->topic) };
    const kvb_span empty = { (const uint8_t *)"", 0 };
    const size_t first = kvb_replay_buffer_find(buffer, reply->request->start);

    answer->is_full = first == 0 && kvb_replay_buffer_count(buffer) > 1;
    for (size_t at = first; at < kvb_replay_buffer_count(buffer); at++) {
        uint64_t seq = 0;
        const kvb_span payload = kvb_replay_buffer_at(buffer, at, &seq);
        KVB_TRY(send_reply(reply, topic, seq, payload));
        answer->replayed++;
    }
    return send_reply(reply, empty, UINT64_MAX, empty);
}

kvb_status kvb_replay_port_serve(
    void *router, const struct kvb_replay_buffer *buffer,
    const struct kvb_publisher_options *options, struct kvb_replay_answer *out_answer)
{
    struct request request = { 0 };
    const struct reply reply = { .router = router, .request = &request, .options = options };
    struct kvb_replay_answer answer = { 0 };

    KVB_TRY(receive(router, &request));
    answer.is_ignored = !request.is_good;
    if (request.is_good) {
        KVB_TRY(send_all(&reply, buffer, &answer));
    }
    *out_answer = answer;
    return KVB_OK;
}
