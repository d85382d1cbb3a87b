#include "fleet/truth_format.h"

static kvb_status append_tokens(const uint32_t *tokens, uint32_t count, struct kvb_buf *out)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) {
            KVB_TRY(kvb_buf_append(out, ",", 1));
        }
        KVB_TRY(kvb_buf_append_u64(out, tokens[i]));
    }
    return KVB_OK;
}

static kvb_status
append_block(const struct kvb_truth_block *block, uint32_t block_size, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_append_text(out, "{\"tokens\":["));
    KVB_TRY(append_tokens(block->tokens, block_size, out));
    KVB_TRY(kvb_buf_append_text(out, "],\"parent\":"));
    if (block->parent == kvb_no_parent) {
        KVB_TRY(kvb_buf_append_text(out, "-1"));
    } else {
        KVB_TRY(kvb_buf_append_u64(out, block->parent));
    }
    KVB_TRY(kvb_buf_append_text(out, ",\"copies\":"));
    KVB_TRY(kvb_buf_append_u64(out, block->copies));
    return kvb_buf_append(out, "}", 1);
}

static kvb_status append_head(const struct kvb_truth *truth, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_append_text(out, "{\"worker_id\":"));
    KVB_TRY(kvb_buf_append_u64(out, truth->worker_id));
    KVB_TRY(kvb_buf_append_text(out, ",\"dp_rank\":"));
    KVB_TRY(kvb_buf_append_u64(out, truth->rank));
    KVB_TRY(kvb_buf_append_text(out, ",\"seq\":"));
    if (truth->has_seq) {
        KVB_TRY(kvb_buf_append_u64(out, truth->seq));
    } else {
        KVB_TRY(kvb_buf_append_text(out, "-1"));
    }
    KVB_TRY(kvb_buf_append_text(out, ",\"unsent\":"));
    KVB_TRY(kvb_buf_append_u64(out, truth->unsent));
    KVB_TRY(kvb_buf_append_text(out, ",\"block_size\":"));
    KVB_TRY(kvb_buf_append_u64(out, truth->block_size));
    return kvb_buf_append_text(out, ",\"blocks\":[");
}

kvb_status kvb_truth_format(const struct kvb_truth *truth, struct kvb_buf *out)
{
    KVB_TRY(append_head(truth, out));
    for (uint32_t i = 0; i < truth->count; i++) {
        if (i > 0) {
            KVB_TRY(kvb_buf_append(out, ",", 1));
        }
        KVB_TRY(append_block(&truth->blocks[i], truth->block_size, out));
    }
    return kvb_buf_append_text(out, "]}\n");
}
