#include "core/limits.h"
#include "core/own.h"
#include "target.h"
#include "wire/engine/answers.h"
#include "wire/json/writer.h"

#include <stdlib.h>
#include <string.h>

static const char model[] = "m";

static void
write_entry(struct kvb_json_writer *json, const char *id, const char *root, const char *parent)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "id", id);
    kvb_json_write_pair_text(json, "root", root);
    if (parent) {
        kvb_json_write_pair_text(json, "parent", parent);
    }
    kvb_json_write_end(json, '}');
}

/* The names as vLLM would list them. */
static kvb_span write_list(const struct kvb_served_names *names, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);
    struct kvb_served_name one;

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_begin(&json, "data", '[');
    write_entry(&json, model, "/r", NULL);
    for (size_t at = 0; kvb_served_names_next(names, &at, &one);) {
        const bool is_adapter = one.kind == KVB_SERVED_ADAPTER;
        write_entry(&json, one.name, is_adapter ? "/l" : "/r", is_adapter ? model : NULL);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    check(json.status == KVB_OK);
    return kvb_buf_span(out);
}

/* An accepted list lacks the model itself, is written as vLLM would, and reads as the same; for a
 * refused one there is a sentence, and nothing changes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_served_names names = { 0 };
    struct kvb_served_names again = { 0 };
    struct kvb_detail why = { "" };
    enum kvb_served_kind kind = KVB_SERVED_NAME;

    if (kvb_model_list_decode((kvb_span){ data, size }, model, &names, &why) != KVB_OK) {
        check(why.text[0] != '\0' && !names.is_listed && names.count == 0);
        return 0;
    }
    kvb_buf_init(&buf, kvb_max_model_list_bytes);
    check(
        names.is_listed && names.count <= kvb_max_served_names &&
        !kvb_served_names_find(&names, kvb_span_of(model), &kind) &&
        kvb_model_list_decode(write_list(&names, &buf), model, &again, &why) == KVB_OK);
    again.left_out = names.left_out; /* what there was no room for is not written */
    check(kvb_served_names_are_same(&names, &again));
    return 0;
}
