#include "core/limits.h"
#include "target.h"
#include "wire/query/refresh.h"

#include <stdio.h>
#include <stdlib.h>

static kvb_span write(const struct kvb_refresh_request *request, char *out, size_t room)
{
    int len = 0;

    if (request->has_rank) {
        len = snprintf(
            out, room, "{\"dp_rank\":%u,\"worker_id\":%llu}", request->dp_rank,
            (unsigned long long)request->worker_id);
    } else if (request->has_worker_id) {
        len = snprintf(out, room, "{\"worker_id\":%llu}", (unsigned long long)request->worker_id);
    }
    return (kvb_span){ .data = (const uint8_t *)out, .len = (size_t)len };
}

/* An accepted request is written and reads as the same; for a refused one there is a sentence. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_refresh_request request = { 0 };
    struct kvb_refresh_request again = { 0 };
    struct kvb_detail why = { "" };
    char text[128];

    if (kvb_refresh_json_decode((kvb_span){ data, size }, &request, &why) != KVB_OK) {
        check(why.text[0] != '\0');
        return 0;
    }
    check(
        size <= kvb_max_refresh_request_bytes && (!request.has_rank || request.has_worker_id) &&
        kvb_refresh_json_decode(write(&request, text, sizeof text), &again, &why) == KVB_OK &&
        again.has_worker_id == request.has_worker_id && again.has_rank == request.has_rank &&
        (!request.has_worker_id || again.worker_id == request.worker_id) &&
        (!request.has_rank || again.dp_rank == request.dp_rank));
    return 0;
}
