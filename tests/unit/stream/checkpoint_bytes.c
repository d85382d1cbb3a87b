#include "kvb_test.h"

#include "bytes_reader.h"
#include "checkpoint_bytes.h"

#include <string.h>

enum { max_bytes = 64 << 20 };

void save_whole(struct kvb_stream *stream, struct kvb_buf *bytes)
{
    kvb_buf_init(bytes, max_bytes);
    assert_ok(save_stream(stream, bytes));
}

kvb_status restore_from(
    struct kvb_stream *stream, const uint8_t *bytes, size_t len, bool *out_needs_epoch,
    enum kvb_checkpoint_rejection *out_cause)
{
    struct kvb_checkpoint_refusal refusal = { .cause = *out_cause };
    const kvb_status status = restore_or_say_why(stream, bytes, len, out_needs_epoch, &refusal);

    *out_cause = refusal.cause;
    return status;
}

kvb_status restore_or_say_why(
    struct kvb_stream *stream, const uint8_t *bytes, size_t len, bool *out_needs_epoch,
    struct kvb_checkpoint_refusal *out_refusal)
{
    struct reader reader = { .bytes = bytes, .len = len };
    const struct kvb_checkpoint_source source = { .read = read_bytes, .context = &reader };

    return kvb_stream_restore(stream, &source, out_needs_epoch, out_refusal);
}
