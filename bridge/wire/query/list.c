#include "wire/query/list.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"

#include <stdbool.h>
#include <string.h>

enum { skipped_depth = 16 };

/* The state while the list is read. */
struct listing {
    bool is_found;
    struct kvb_query query; /* owned until it is the caller's */
    size_t capacity;
    const uint8_t *begin; /* the list's text, from bracket to bracket */
    const uint8_t *end;
};

static void drop_listing(struct listing *listing)
{
    kvb_query_done(&listing->query);
}

static kvb_status read_listed_token(struct kvb_json_scan *scan, void *context)
{
    struct listing *listing = context;
    struct kvb_query *query = &listing->query;
    uint64_t token = 0;

    KVB_TRY(kvb_json_u64(scan, &token));
    if (token > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_array_reserve(
        &query->tokens, &listing->capacity, query->count + 1, sizeof *query->tokens,
        kvb_max_query_tokens));
    query->tokens[query->count++] = (uint32_t)token;
    return KVB_OK;
}

static kvb_status read_listed_hash(struct kvb_json_scan *scan, void *context)
{
    struct listing *listing = context;
    struct kvb_query *query = &listing->query;
    uint64_t hash = 0;

    KVB_TRY(kvb_json_u64(scan, &hash));
    KVB_TRY(kvb_array_reserve(
        &query->hashes, &listing->capacity, query->count + 1, sizeof *query->hashes,
        kvb_max_query_tokens));
    query->hashes[query->count++] = hash;
    return KVB_OK;
}

/* clang-format off */
static const struct form {
    const char *name;
    enum kvb_query_form form;
    kvb_status (*read)(struct kvb_json_scan *scan, void *context);
} forms[] = {
    { "token_ids",    KVB_QUERY_TOKENS,        read_listed_token },
    { "block_hashes", KVB_QUERY_TOKENS_HASHES, read_listed_hash },
    { "seq_hashes",   KVB_QUERY_BLOCK_HASHES,  read_listed_hash },
};
/* clang-format on */

static const struct form *find_list_form(kvb_span key)
{
    for (size_t i = 0; i < KVB_COUNT_OF(forms); i++) {
        if (strlen(forms[i].name) == key.len && memcmp(forms[i].name, key.data, key.len) == 0) {
            return &forms[i];
        }
    }
    return NULL;
}

/* A second list, and a key with escapes, which may be any key, are left to json-c. */
static kvb_status read_list_member(struct kvb_json_scan *scan, struct listing *listing)
{
    struct kvb_json_budget budget = { .depth = skipped_depth,
                                      .containers = SIZE_MAX,
                                      .values = SIZE_MAX };
    kvb_span key = { 0 };

    KVB_TRY(kvb_json_string(scan, &key));
    KVB_TRY(kvb_json_expect(scan, ':'));
    const struct form *form = find_list_form(key);
    if (memchr(key.data, '\\', key.len) || (form && listing->is_found)) {
        return KVB_BAD_INPUT;
    }
    if (!form) {
        return kvb_json_skip(scan, &budget);
    }
    listing->is_found = true;
    listing->query.form = form->form;
    listing->begin = scan->at;
    const kvb_status status = kvb_json_array(scan, form->read, listing);
    listing->end = scan->at;
    return status;
}

static kvb_status read_object(struct kvb_json_scan *scan, struct listing *listing)
{
    KVB_TRY(kvb_json_expect(scan, '{'));
    do {
        KVB_TRY(read_list_member(scan, listing));
    } while (kvb_json_take(scan, ','));
    KVB_TRY(kvb_json_expect(scan, '}'));
    KVB_TRY(kvb_json_finish(scan));
    return listing->is_found && listing->query.count > 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status copy_rest(kvb_span json, const struct listing *listing, struct kvb_buf *rest)
{
    const uint8_t *past = json.data + json.len;

    KVB_TRY(kvb_buf_append(rest, json.data, (size_t)(listing->begin - json.data)));
    KVB_TRY(kvb_buf_append_text(rest, "[]"));
    return kvb_buf_append(rest, listing->end, (size_t)(past - listing->end));
}

kvb_status kvb_query_list_read(kvb_span json, struct kvb_query *query, struct kvb_buf *rest)
{
    KVB_OWN(drop_listing) struct listing listing = { 0 };
    struct kvb_json_scan scan = kvb_json_scan_of(json);
    const kvb_status status = read_object(&scan, &listing);

    if (status != KVB_OK) {
        return status == KVB_NO_MEMORY ? status : KVB_NOT_FOUND;
    }
    KVB_TRY(copy_rest(json, &listing, rest));
    query->form = listing.query.form;
    query->tokens = listing.query.tokens;
    query->hashes = listing.query.hashes;
    query->count = listing.query.count;
    listing.query = (struct kvb_query){ 0 }; /* now the caller's */
    return KVB_OK;
}
