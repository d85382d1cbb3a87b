#include "wire/router/bridge_streams.h"

#include "core/own.h"
#include "wire/json/scan.h"
#include "wire/json/writer.h"

#include <string.h>

kvb_status kvb_bridge_streams_encode(
    const char *bridge_id, const struct kvb_bridge_stream *streams, size_t count,
    struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "bridge_id", bridge_id);
    kvb_json_write_pair_begin(&json, "streams", '[');
    for (size_t i = 0; i < count; i++) {
        kvb_json_write_begin(&json, '[');
        kvb_json_write_u64(&json, streams[i].worker_id);
        kvb_json_write_u64(&json, streams[i].dp_rank);
        kvb_json_write_end(&json, ']');
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* No bridge has an id with an escape in it. */
static kvb_status read_bridge_id(struct kvb_json_scan *scan, void *context)
{
    struct kvb_bridge_streams *out = context;
    kvb_span raw = { 0 };

    KVB_TRY(kvb_json_string(scan, &raw));
    if (raw.len == 0 || raw.len > kvb_bridge_id_bytes || memchr(raw.data, '\\', raw.len)) {
        return KVB_BAD_INPUT;
    }
    memcpy(out->bridge_id, raw.data, raw.len);
    out->bridge_id[raw.len] = '\0';
    return KVB_OK;
}

static kvb_status read_stream(struct kvb_json_scan *scan, void *context)
{
    struct kvb_bridge_streams *out = context;

    if (out->count == kvb_bridge_streams_most) {
        return KVB_TOO_LARGE;
    }
    struct kvb_bridge_stream *stream = &out->streams[out->count++];
    KVB_TRY(kvb_json_expect(scan, '['));
    KVB_TRY(kvb_json_u64(scan, &stream->worker_id));
    KVB_TRY(kvb_json_expect(scan, ','));
    KVB_TRY(kvb_json_u32(scan, &stream->dp_rank));
    return kvb_json_expect(scan, ']');
}

static kvb_status read_streams(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_stream, context);
}

kvb_status kvb_bridge_streams_decode(kvb_span json, struct kvb_bridge_streams *out)
{
    static const struct kvb_json_field fields[] = {
        { .name = "bridge_id", .is_required = true, .read = read_bridge_id },
        { .name = "streams", .is_required = true, .read = read_streams },
    };
    struct kvb_json_scan scan = kvb_json_scan_of(json);

    out->count = 0;
    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), out));
    return kvb_json_finish(&scan);
}
