#include "batch_line.h"

#include "kvb_test.h"

#include "core/buf.h"
#include "vector_file.h"
#include "wire/engine/batch.h"

#include <stdlib.h>

static void say_text(
    struct kvb_buf *line, const char *label, const struct kvb_event_batch *batch,
    struct kvb_text_ref ref)
{
    const kvb_span text = kvb_event_batch_text(batch, ref);

    if (text.len > 0) {
        assert_ok(
            kvb_buf_append_format(line, " %s %.*s", label, (int)text.len, (const char *)text.data));
    }
}

static void say_hashes(
    struct kvb_buf *line, const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    for (uint32_t i = 0; i < event->hash_count; i++) {
        assert_ok(kvb_buf_append_format(
            line, "%s%llx", i ? "," : " ",
            (unsigned long long)batch->hashes[event->hash_at + i].value));
    }
}

/* " media 5+6,-,?": the keys of each block; ? stands for a key that no query can name. */
static void say_extras(
    struct kvb_buf *line, const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    bool is_any = false;

    for (uint32_t i = 0; i < event->extra_count; i++) {
        const struct kvb_block_extra *extra = &batch->extras[event->extra_at + i];
        is_any |= extra->key_count > 0 || extra->unmatchable;
    }
    for (uint32_t i = 0; is_any && i < event->extra_count; i++) {
        const struct kvb_block_extra *extra = &batch->extras[event->extra_at + i];
        assert_ok(kvb_buf_append_format(line, i ? "," : " media "));
        for (uint32_t k = 0; k < extra->key_count; k++) {
            assert_ok(kvb_buf_append_format(
                line, "%s%llx", k ? "+" : "", (unsigned long long)batch->keys[extra->key_at + k]));
        }
        assert_ok(kvb_buf_append_format(
            line, "%s",
            extra->unmatchable ? "?"
            : extra->key_count ? ""
                               : "-"));
    }
}

static void say_group(struct kvb_buf *line, const struct kvb_engine_event *event)
{
    if (event->family) {
        assert_ok(kvb_buf_append_format(line, " shard"));
    } else if (event->has_group) {
        assert_ok(kvb_buf_append_format(line, " group %u", event->group));
    }
    if (event->group_kind == KVB_GROUP_WINDOW) {
        assert_ok(kvb_buf_append_format(
            line, " window %u%s", event->window_tokens, event->is_sparse ? " sparse" : ""));
    }
    if (!kvb_group_kind_has_rule(event->group_kind)) {
        assert_ok(kvb_buf_append_format(line, " %s kind", kvb_group_kind_name(event->group_kind)));
    }
}

static void say_stored(
    struct kvb_buf *line, const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    assert_ok(kvb_buf_append_format(line, "stored %s", kvb_tier_name(event->tier)));
    if (event->has_parent) {
        assert_ok(
            kvb_buf_append_format(line, " after %llx", (unsigned long long)event->parent.value));
    } else {
        assert_ok(kvb_buf_append_format(line, " root"));
    }
    say_hashes(line, batch, event);
    assert_ok(kvb_buf_append_format(line, " size %u tokens", event->block_size));
    for (uint32_t i = 0; i < event->token_count; i++) {
        assert_ok(kvb_buf_append_format(line, " %u", batch->tokens[event->token_at + i]));
    }
    for (uint32_t i = 0; i < event->lookahead * event->hash_count; i++) {
        assert_ok(kvb_buf_append_format(
            line, "%s %u", i ? "" : " behind", batch->tokens[event->lookahead_at + i]));
    }
    say_text(line, "lora", batch, event->lora_name);
    say_text(line, "salt", batch, event->salt);
    say_extras(line, batch, event);
}

static void say_event(
    struct kvb_buf *line, const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    switch (event->kind) {
    case KVB_EVENT_STORED:
        say_stored(line, batch, event);
        break;
    case KVB_EVENT_REMOVED:
        assert_ok(kvb_buf_append_format(line, "removed %s", kvb_tier_name(event->tier)));
        say_hashes(line, batch, event);
        break;
    case KVB_EVENT_CLEARED:
        assert_ok(kvb_buf_append_format(
            line, "cleared %s", event->all_tiers ? "all" : kvb_tier_name(event->tier)));
        break;
    case KVB_EVENT_SKIPPED:
        assert_ok(kvb_buf_append_format(line, "skipped %s", kvb_skip_name(event->skip)));
        break;
    }
    if (event->key) {
        assert_ok(kvb_buf_append_format(line, " by key"));
    }
    say_group(line, event);
    say_text(line, "model", batch, event->model_name);
    assert_ok(kvb_buf_append_format(line, ";"));
}

const char *line_of(const struct kvb_event_batch *batch)
{
    static struct kvb_buf line;

    kvb_buf_done(&line);
    kvb_buf_init(&line, 1 << 16);
    for (size_t i = 0; i < batch->event_count; i++) {
        assert_ok(kvb_buf_append_format(&line, "%s", i ? " " : ""));
        say_event(&line, batch, &batch->events[i]);
    }
    if (batch->has_rank) {
        assert_ok(kvb_buf_append_format(&line, " rank %u", batch->rank));
    }
    assert_ok(kvb_buf_append(&line, "", 1));
    return (const char *)line.data;
}

kvb_status decode_hex(const char *spaced, struct kvb_event_batch *batch)
{
    char hex[2048];
    size_t at = 0;
    size_t len = 0;

    for (const char *c = spaced; *c; c++) {
        if (*c != ' ') {
            hex[at++] = *c;
        }
    }
    hex[at] = '\0';
    uint8_t *bytes = bytes_of_hex(hex, &len);
    const kvb_status status = kvb_engine_batch_decode((kvb_span){ bytes, len }, batch);
    free(bytes);
    return status;
}
