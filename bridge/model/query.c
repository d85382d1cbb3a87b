#include "model/query.h"

#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

void kvb_query_done(struct kvb_query *query)
{
    free(query->tokens);
    free(query->hashes);
    *query = (struct kvb_query){ 0 };
}

bool kvb_request_id_is_valid(const char *request_id)
{
    const uint8_t *bytes = (const uint8_t *)request_id;
    const size_t len = strnlen(request_id, kvb_request_id_bytes + 1);

    for (size_t at = 0; at < len;) {
        const size_t character = kvb_utf8_len(bytes + at, len - at);
        if (character == 0 || bytes[at] < 0x20 || bytes[at] == 0x7f) {
            return false;
        }
        at += character;
    }
    return len > 0 && len <= kvb_request_id_bytes;
}
