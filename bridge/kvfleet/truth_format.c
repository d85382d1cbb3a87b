#include "kvfleet/truth_format.h"

#include "wire/json/writer.h"

static void write_tokens(const uint32_t *tokens, uint32_t count, struct kvb_json_writer *json)
{
    kvb_json_write_begin(json, '[');
    for (uint32_t i = 0; i < count; i++) {
        kvb_json_write_u64(json, tokens[i]);
    }
    kvb_json_write_end(json, ']');
}

static void write_truth_block(
    const struct kvb_truth *truth, const struct kvb_truth_block *block,
    struct kvb_json_writer *json)
{
    kvb_json_write_begin(json, '{');
    if (truth->by_hash) {
        kvb_json_write_pair_u64(json, "hash", block->hash.value);
    }
    kvb_json_write_key(json, "tokens");
    write_tokens(block->tokens, truth->block_size, json);
    kvb_json_write_key(json, "parent");
    if (block->parent == kvb_no_parent) {
        kvb_json_write_number(json, -1);
    } else {
        kvb_json_write_u64(json, block->parent);
    }
    kvb_json_write_pair_u64(json, "copies", block->copies);
    if (block->salt) {
        kvb_json_write_pair_text(json, "salt", block->salt);
    }
    kvb_json_write_end(json, '}');
}

static kvb_status end_line(const struct kvb_json_writer *json)
{
    KVB_TRY(json->status);
    return kvb_buf_append(json->out, "\n", 1);
}

kvb_status kvb_truth_format(const struct kvb_truth *truth, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "worker_id", truth->worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", truth->rank);
    kvb_json_write_key(&json, "seq");
    if (truth->has_seq) {
        kvb_json_write_u64(&json, truth->seq);
    } else {
        kvb_json_write_number(&json, -1);
    }
    kvb_json_write_pair_u64(&json, "unsent", truth->unsent);
    kvb_json_write_pair_u64(&json, "block_size", truth->block_size);
    if (truth->by_hash) {
        kvb_json_write_pair_bool(&json, "by_hash", true);
    }
    kvb_json_write_key(&json, "blocks");
    kvb_json_write_begin(&json, '[');
    for (uint32_t i = 0; i < truth->count && json.status == KVB_OK; i++) {
        write_truth_block(truth, &truth->blocks[i], &json);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return end_line(&json);
}

/* ["stored",ns,hash,parent,[tokens],salt]  ["removed",ns,hash]  ["cleared",ns]; the salt when the
 * block has one. */
static void
write_change(const struct kvb_content_log *log, uint64_t number, struct kvb_json_writer *json)
{
    static const char *const names[] = {
        [KVB_CONTENT_STORED] = "stored",
        [KVB_CONTENT_REMOVED] = "removed",
        [KVB_CONTENT_CLEARED] = "cleared",
    };
    const struct kvb_content_change *change = kvb_content_log_at(log, number);

    kvb_json_write_begin(json, '[');
    kvb_json_write_text(json, names[change->kind]);
    kvb_json_write_u64(json, change->at_ns);
    if (change->kind != KVB_CONTENT_CLEARED) {
        kvb_json_write_u64(json, change->hash.value);
    }
    if (change->kind == KVB_CONTENT_STORED) {
        kvb_json_write_u64(json, change->parent.value);
        write_tokens(kvb_content_log_tokens(log, number), log->block_size, json);
        if (change->salt) {
            kvb_json_write_text(json, change->salt);
        }
    }
    kvb_json_write_end(json, ']');
}

kvb_status kvb_changes_format(
    const struct kvb_changes_head *head, const struct kvb_content_log *log, struct kvb_buf *out)
{
    const uint64_t first = kvb_content_log_first(log);
    const uint64_t from = head->since < first ? first : head->since;
    const uint64_t left = log->next > from ? log->next - from : 0;
    const uint64_t to = from + (left < kvb_max_changes_shown ? left : kvb_max_changes_shown);
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "worker_id", head->worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", head->rank);
    kvb_json_write_pair_u64(&json, "now_ns", head->now_ns);
    kvb_json_write_pair_u64(&json, "lost", from - head->since);
    kvb_json_write_pair_u64(&json, "next", to);
    kvb_json_write_key(&json, "changes");
    kvb_json_write_begin(&json, '[');
    for (uint64_t number = from; number < to && json.status == KVB_OK; number++) {
        write_change(log, number, &json);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return end_line(&json);
}
