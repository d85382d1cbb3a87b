#include "wire/query/text.h"

#include "core/buf.h"
#include "core/own.h"
#include "target.h"

#include <stdlib.h>
#include <string.h>

static void drop_tokens(uint32_t **tokens)
{
    free(*tokens);
}

static void write_answer(const uint32_t *tokens, size_t count, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_begin(&json, "tokens", '[');
    for (size_t i = 0; i < count; i++) {
        kvb_json_write_u64(&json, tokens[i]);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_pair_u64(&json, "count", count);
    kvb_json_write_end(&json, '}');
    check(json.status == KVB_OK);
}

/* Whatever is accepted has tokens, and is read as the same when it is written down. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(drop_tokens) uint32_t *tokens = NULL;
    KVB_OWN(drop_tokens) uint32_t *again = NULL;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    size_t count = 0;
    size_t again_count = 0;

    if (kvb_tokenize_answer_decode((kvb_span){ data, size }, &tokens, &count) != KVB_OK) {
        check(!tokens);
        return 0;
    }
    kvb_buf_init(&out, 64 << 20);
    write_answer(tokens, count, &out);
    check(
        count != 0 &&
        kvb_tokenize_answer_decode(kvb_buf_span(&out), &again, &again_count) == KVB_OK &&
        again_count == count && memcmp(tokens, again, count * sizeof *tokens) == 0);
    return 0;
}
