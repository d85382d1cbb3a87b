#include "kvfleet/trace_json.h"

#include "core/own.h"
#include "wire/json/scan.h"

static kvb_status read_u32(struct kvb_json_scan *scan, uint32_t *out_value)
{
    uint64_t value = 0;

    KVB_TRY(kvb_json_u64(scan, &value));
    if (value > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    *out_value = (uint32_t)value;
    return KVB_OK;
}

static kvb_status read_timestamp(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;
    return kvb_json_u64(scan, &line->timestamp_ms);
}

static kvb_status read_input(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;
    return read_u32(scan, &line->input_length);
}

static kvb_status read_output(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;
    return read_u32(scan, &line->output_length);
}

static kvb_status read_id(struct kvb_json_scan *scan, void *context)
{
    struct kvb_trace_line *line = context;

    if (line->id_count == kvb_trace_max_ids) {
        return KVB_BAD_INPUT;
    }
    return kvb_json_u64(scan, &line->ids[line->id_count++]);
}

static kvb_status read_ids(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_id, context);
}

kvb_status kvb_trace_line_decode(kvb_span text, struct kvb_trace_line *out_line)
{
    static const struct kvb_json_field fields[] = {
        { "timestamp", true, read_timestamp },
        { "input_length", true, read_input },
        { "output_length", true, read_output },
        { "hash_ids", true, read_ids },
    };
    struct kvb_json_scan scan = kvb_json_scan_of(text);

    out_line->id_count = 0;
    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), out_line));
    KVB_TRY(kvb_json_finish(&scan));

    const uint64_t max = (uint64_t)out_line->id_count * kvb_trace_tokens_per_id;
    const bool fits = out_line->input_length > 0 && out_line->input_length <= max &&
                      out_line->input_length + (uint64_t)kvb_trace_tokens_per_id > max;
    return fits ? KVB_OK : KVB_BAD_INPUT;
}
