#include "wire/router/json.h"

#include "core/limits.h"
#include "core/own.h"
#include "router_same.h"
#include "target.h"

#include <json-c/json.h>
#include <stdlib.h>

static void json_c_must_accept(const uint8_t *data, size_t size)
{
    struct json_tokener *tokener = json_tokener_new();
    check(tokener);
    struct json_object *root = json_tokener_parse_ex(tokener, (const char *)data, (int)size);
    check(root && json_tokener_get_error(tokener) == json_tokener_success);
    (void)json_object_put(root);
    json_tokener_free(tokener);
}

/* Events with whole prompts, the other form on the same subject. */
static void check_prompt(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_prompt_event_done) struct kvb_prompt_event event = { 0 };

    if (kvb_prompt_json_decode((kvb_span){ data, size }, &event) == KVB_OK) {
        json_c_must_accept(data, size);
    } else if (event.block_count != 0 || event.token_count != 0) {
        abort();
    }
}

/* What our decoders accept, json-c accepts too, and the canonical text of an event decodes to the
 * same event. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch again = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    if (kvb_router_json_decode((kvb_span){ data, size }, &batch) != KVB_OK) {
        check(batch.event_count == 0 && batch.block_count == 0);
        check_prompt(data, size);
        return 0;
    }
    json_c_must_accept(data, size);
    kvb_buf_init(&text, kvb_max_payload_bytes);
    check(
        kvb_router_json_encode(&batch, 0, &text) == KVB_OK &&
        kvb_router_json_decode(kvb_buf_span(&text), &again) == KVB_OK &&
        is_same_batch(&batch, &again));
    json_c_must_accept(text.data, text.len);
    return 0;
}
