#include "wire/engine/pack.h"

#include <assert.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "put_token() swaps bytes");

static int append_bytes(void *data, const char *bytes, size_t len)
{
    struct kvb_pack_sink *sink = data;

    if (sink->status == KVB_OK) {
        sink->status = kvb_buf_append(sink->out, bytes, len);
    }
    return sink->status == KVB_OK ? 0 : -1;
}

void kvb_pack_begin(msgpack_packer *packer, struct kvb_pack_sink *sink)
{
    sink->status = KVB_OK;
    msgpack_packer_init(packer, sink, append_bytes);
}

void kvb_pack_text(msgpack_packer *packer, const char *text)
{
    (void)msgpack_pack_str_with_body(packer, text, strlen(text));
}

void kvb_pack_span(msgpack_packer *packer, kvb_span text)
{
    if (text.len == 0) {
        (void)msgpack_pack_nil(packer);
    } else {
        (void)msgpack_pack_str_with_body(packer, text.data, text.len);
    }
}

enum { token_bytes = 5 }; /* at most */

/* In the shortest form, as msgpack-c does, in token_bytes of room.  Returns the length.  Half of a
 * tokenizer's ids take 3 bytes and half take 5, in no order that a processor could predict: the two
 * forms share their instructions. */
static size_t put_token(uint8_t *at, uint32_t token)
{
    if (token < 1U << 8) {
        const bool is_short = token < 1U << 7;
        at[0] = is_short ? (uint8_t)token : 0xcc;
        at[1] = (uint8_t)token;
        return is_short ? 1 : 2;
    }
    const uint32_t is_long = token >= 1U << 16;
    const uint32_t bytes = __builtin_bswap32(token << (16 - 16 * is_long));
    at[0] = (uint8_t)(0xcd + is_long);
    memcpy(at + 1, &bytes, sizeof bytes);
    return 3 + 2 * (size_t)is_long;
}

/* Most bytes of a batch are tokens: a call of msgpack-c for each takes four times as long. */
void kvb_pack_tokens(
    msgpack_packer *packer, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    enum { tokens_at_once = 64 };
    struct kvb_pack_sink *sink = packer->data;
    const uint32_t count = event->token_count;

    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count;) {
        const uint32_t end = count - i < tokens_at_once ? count : i + tokens_at_once;
        if (sink->status == KVB_OK) {
            sink->status = kvb_buf_reserve(sink->out, (size_t)(end - i) * token_bytes);
        }
        if (sink->status != KVB_OK) {
            return;
        }
        uint8_t *at = sink->out->data + sink->out->len;
        for (; i < end; i++) {
            at += put_token(at, batch->tokens[event->token_at + i]);
        }
        sink->out->len = (size_t)(at - sink->out->data);
    }
}
