#include "kvfleet/truth_format.h"

#include <inttypes.h>

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

/* The fleet's own salts need no escapes. */
static kvb_status append_salt(const char *before, const char *salt, struct kvb_buf *out)
{
    return salt ? kvb_buf_append_format(out, "%s\"%s\"", before, salt) : KVB_OK;
}

static kvb_status append_block(
    const struct kvb_truth *truth, const struct kvb_truth_block *block, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_append(out, "{", 1));
    if (truth->by_hash) {
        KVB_TRY(kvb_buf_append_text(out, "\"hash\":"));
        KVB_TRY(kvb_buf_append_u64(out, block->hash.value));
        KVB_TRY(kvb_buf_append(out, ",", 1));
    }
    KVB_TRY(kvb_buf_append_text(out, "\"tokens\":["));
    KVB_TRY(append_tokens(block->tokens, truth->block_size, out));
    KVB_TRY(kvb_buf_append_text(out, "],\"parent\":"));
    if (block->parent == kvb_no_parent) {
        KVB_TRY(kvb_buf_append_text(out, "-1"));
    } else {
        KVB_TRY(kvb_buf_append_u64(out, block->parent));
    }
    KVB_TRY(kvb_buf_append_text(out, ",\"copies\":"));
    KVB_TRY(kvb_buf_append_u64(out, block->copies));
    KVB_TRY(append_salt(",\"salt\":", block->salt, out));
    return kvb_buf_append(out, "}", 1);
}

static kvb_status append_truth_head(const struct kvb_truth *truth, struct kvb_buf *out)
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
    if (truth->by_hash) {
        KVB_TRY(kvb_buf_append_text(out, ",\"by_hash\":true"));
    }
    return kvb_buf_append_text(out, ",\"blocks\":[");
}

kvb_status kvb_truth_format(const struct kvb_truth *truth, struct kvb_buf *out)
{
    KVB_TRY(append_truth_head(truth, out));
    for (uint32_t i = 0; i < truth->count; i++) {
        if (i > 0) {
            KVB_TRY(kvb_buf_append(out, ",", 1));
        }
        KVB_TRY(append_block(truth, &truth->blocks[i], out));
    }
    return kvb_buf_append_text(out, "]}\n");
}

static kvb_status
append_change(const struct kvb_content_log *log, uint64_t number, struct kvb_buf *out)
{
    static const char *const names[] = {
        [KVB_CONTENT_STORED] = "[\"stored\",",
        [KVB_CONTENT_REMOVED] = "[\"removed\",",
        [KVB_CONTENT_CLEARED] = "[\"cleared\",",
    };
    const struct kvb_content_change *change = kvb_content_log_at(log, number);

    KVB_TRY(kvb_buf_append_text(out, names[change->kind]));
    KVB_TRY(kvb_buf_append_u64(out, change->at_ns));
    if (change->kind != KVB_CONTENT_CLEARED) {
        KVB_TRY(kvb_buf_append(out, ",", 1));
        KVB_TRY(kvb_buf_append_u64(out, change->hash.value));
    }
    if (change->kind == KVB_CONTENT_STORED) {
        KVB_TRY(kvb_buf_append(out, ",", 1));
        KVB_TRY(kvb_buf_append_u64(out, change->parent.value));
        KVB_TRY(kvb_buf_append_text(out, ",["));
        KVB_TRY(append_tokens(kvb_content_log_tokens(log, number), log->block_size, out));
        KVB_TRY(kvb_buf_append(out, "]", 1));
        KVB_TRY(append_salt(",", change->salt, out));
    }
    return kvb_buf_append(out, "]", 1);
}

kvb_status kvb_changes_format(
    const struct kvb_changes_head *head, const struct kvb_content_log *log, struct kvb_buf *out)
{
    const uint64_t first = kvb_content_log_first(log);
    const uint64_t from = head->since < first ? first : head->since;
    const uint64_t left = log->next > from ? log->next - from : 0;
    const uint64_t to = from + (left < kvb_max_changes_shown ? left : kvb_max_changes_shown);

    KVB_TRY(kvb_buf_append_format(
        out,
        "{\"worker_id\":%" PRIu64 ",\"dp_rank\":%" PRIu32 ",\"now_ns\":%" PRIu64
        ",\"lost\":%" PRIu64 ",\"next\":%" PRIu64 ",\"changes\":[",
        head->worker_id, head->rank, head->now_ns, from - head->since, to));
    for (uint64_t number = from; number < to; number++) {
        KVB_TRY(number > from ? kvb_buf_append(out, ",", 1) : KVB_OK);
        KVB_TRY(append_change(log, number, out));
    }
    return kvb_buf_append_text(out, "]}\n");
}
