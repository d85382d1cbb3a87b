#include "wire/query/refresh.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"

static kvb_status read_refresh_worker(struct kvb_json_scan *scan, void *context)
{
    struct kvb_refresh_request *request = context;

    request->has_worker_id = !kvb_json_take_word(scan, "null");
    return request->has_worker_id ? kvb_json_u64(scan, &request->worker_id) : KVB_OK;
}

static kvb_status read_refresh_rank(struct kvb_json_scan *scan, void *context)
{
    struct kvb_refresh_request *request = context;

    request->has_rank = !kvb_json_take_word(scan, "null");
    return request->has_rank ? kvb_json_u32(scan, &request->dp_rank) : KVB_OK;
}

static kvb_status read(kvb_span json, struct kvb_refresh_request *request)
{
    static const struct kvb_json_field fields[] = {
        { .name = "worker_id", .read = read_refresh_worker },
        { .name = "dp_rank", .read = read_refresh_rank },
    };
    struct kvb_json_scan scan = kvb_json_scan_of(json);

    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), request));
    KVB_TRY(kvb_json_finish(&scan));
    return request->has_rank && !request->has_worker_id ? KVB_BAD_INPUT : KVB_OK;
}

kvb_status kvb_refresh_json_decode(
    kvb_span json, struct kvb_refresh_request *out_request, struct kvb_detail *detail)
{
    struct kvb_refresh_request request = { 0 };

    if (json.len > kvb_max_refresh_request_bytes) {
        kvb_detail_set(detail, "has more than %d bytes", kvb_max_refresh_request_bytes);
        return KVB_TOO_LARGE;
    }
    /* Nothing at all means all streams. */
    if (json.len > 0 && read(json, &request) != KVB_OK) {
        kvb_detail_set(
            detail, "expected nothing, {\"worker_id\":W} or {\"worker_id\":W,\"dp_rank\":R}, both "
                    "whole numbers");
        return KVB_BAD_INPUT;
    }
    *out_request = request;
    return KVB_OK;
}
