#include "model/query.h"

#include "core/hash.h"
#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

uint64_t kvb_selection_address(const char *address)
{
    return kvb_hash64((kvb_span){ (const uint8_t *)address, strlen(address) }, 0);
}

/* Binary search. */
static bool is_number_there(const uint64_t *sorted, size_t count, uint64_t number)
{
    size_t low = 0;

    while (count > 0) {
        const size_t half = count / 2;
        if (sorted[low + half] < number) {
            low += half + 1;
            count -= half + 1;
        } else if (sorted[low + half] == number) {
            return true;
        } else {
            count = half;
        }
    }
    return false;
}

bool kvb_selection_has_candidate(
    const struct kvb_selection *selection, uint64_t worker_id, const char *address)
{
    if (selection->worker_id_count == 0 && selection->address_count == 0) {
        return true;
    }
    if (is_number_there(selection->worker_ids, selection->worker_id_count, worker_id)) {
        return true;
    }
    return address && selection->address_count > 0 &&
           is_number_there(
               selection->addresses, selection->address_count, kvb_selection_address(address));
}

void kvb_query_done(struct kvb_query *query)
{
    free(query->tokens);
    free(query->hashes);
    free(query->selection.worker_ids);
    free(query->selection.addresses);
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
