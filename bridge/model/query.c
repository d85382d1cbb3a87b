#include "model/query.h"

#include "core/hash.h"
#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

uint64_t kvb_selection_address(const char *address)
{
    return kvb_hash64(kvb_span_of(address), 0);
}

int kvb_selection_compare(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static bool is_number_there(const uint64_t *sorted, size_t count, uint64_t number)
{
    return count > 0 && bsearch(&number, sorted, count, sizeof number, kvb_selection_compare);
}

bool kvb_selection_has_candidate(
    const struct kvb_selection *selection, uint64_t worker_id, const char *address)
{
    /* A request that names no candidates lets all of them through. */
    if (selection->worker_id_count == 0 && selection->address_count == 0) {
        return true;
    }
    if (is_number_there(selection->worker_ids, selection->worker_id_count, worker_id)) {
        return true;
    }
    return address[0] != '\0' && selection->address_count > 0 &&
           is_number_there(
               selection->addresses, selection->address_count, kvb_selection_address(address));
}

const char *kvb_text_tokens_name(enum kvb_text_tokens known)
{
    switch (known) {
    case KVB_TEXT_TOKENS_NONE:
        return "none";
    case KVB_TEXT_TOKENS_PREFIX:
        return "prefix";
    case KVB_TEXT_TOKENS_WHOLE:
        return "whole";
    }
    return "unknown";
}

void kvb_query_text_done(struct kvb_query_text *text)
{
    free(text->members);
    free(text->ends);
    *text = (struct kvb_query_text){ 0 };
}

void kvb_query_done(struct kvb_query *query)
{
    free(query->tokens);
    free(query->hashes);
    free(query->hashes_ahead);
    kvb_query_text_done(&query->text);
    free(query->selection.worker_ids);
    free(query->selection.addresses);
    free(query->selection.endpoints);
    *query = (struct kvb_query){ 0 };
}

bool kvb_request_id_is_valid(const char *request_id)
{
    const size_t len = strnlen(request_id, kvb_request_id_bytes + 1);

    return len > 0 && len <= kvb_request_id_bytes && kvb_utf8_is_plain(request_id);
}
