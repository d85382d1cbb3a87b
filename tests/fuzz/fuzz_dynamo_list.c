#include "core/utf8.h"
#include "wire/query/dynamo_worker.h"

#include <stdlib.h>
#include <string.h>

/* A list of strange bytes names only ranks with texts, and a reason can be logged. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void visit(void *context, const struct kvb_dynamo_listed *listed)
{
    (void)context;
    if (!listed->events || !listed->model || !listed->why ||
        (listed->api != KVB_DYNAMO_SELECT_SERVICE && listed->api != KVB_DYNAMO_INDEXER)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const kvb_span json = { .data = data, .len = size };
    struct kvb_detail reason;

    (void)kvb_dynamo_list_decode(json, visit, NULL); /* any status */
    kvb_dynamo_reason_decode(json, &reason);
    if (!kvb_utf8_is_plain(reason.text)) {
        abort();
    }
    return 0;
}
