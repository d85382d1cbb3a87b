#include "batch_line.h"

#include "kvb_test.h"

#include "vector_file.h"
#include "wire/engine_batch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct line {
    char text[1024];
    size_t len;
};

static void say(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct line *line, const char *format, ...)
{
    va_list values;

    va_start(values, format);
    line->len +=
        (size_t)vsnprintf(line->text + line->len, sizeof line->text - line->len, format, values);
    va_end(values);
    assert_true(line->len < sizeof line->text);
}

static void say_text(
    struct line *line, const char *label, const struct kvb_event_batch *batch,
    struct kvb_text_ref ref)
{
    const kvb_span text = kvb_event_batch_text(batch, ref);

    if (text.len > 0) {
        say(line, " %s %.*s", label, (int)text.len, (const char *)text.data);
    }
}

static void say_hashes(
    struct line *line, const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    for (uint32_t i = 0; i < event->hash_count; i++) {
        say(line, "%s%llx", i ? "," : " ",
            (unsigned long long)batch->hashes[event->hash_at + i].value);
    }
}

static void say_stored(
    struct line *line, const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    say(line, "stored %s", kvb_tier_name(event->tier));
    if (event->has_parent) {
        say(line, " after %llx", (unsigned long long)event->parent.value);
    } else {
        say(line, " root");
    }
    say_hashes(line, batch, event);
    say(line, " size %u tokens", event->block_size);
    for (uint32_t i = 0; i < event->token_count; i++) {
        say(line, " %u", batch->tokens[event->token_at + i]);
    }
    say_text(line, "lora", batch, event->lora_name);
    say_text(line, "salt", batch, event->salt);
}

static void say_event(
    struct line *line, const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    switch (event->kind) {
    case KVB_EVENT_STORED:
        say_stored(line, batch, event);
        break;
    case KVB_EVENT_REMOVED:
        say(line, "removed %s", kvb_tier_name(event->tier));
        say_hashes(line, batch, event);
        break;
    case KVB_EVENT_CLEARED:
        say(line, "cleared %s", event->all_tiers ? "all" : kvb_tier_name(event->tier));
        break;
    case KVB_EVENT_SKIPPED:
        say(line, "skipped %s", kvb_skip_name(event->skip));
        break;
    }
    if (event->key) {
        say(line, " by key");
    }
    if (event->has_group) {
        say(line, " group %u", event->group);
    }
    say(line, ";");
}

const char *line_of(const struct kvb_event_batch *batch)
{
    static struct line line;

    line = (struct line){ .len = 0 };
    for (size_t i = 0; i < batch->event_count; i++) {
        say(&line, "%s", i ? " " : "");
        say_event(&line, batch, &batch->events[i]);
    }
    if (batch->has_rank) {
        say(&line, " rank %u", batch->rank);
    }
    return line.text;
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

void check_cases(const struct case_of_hex *cases, size_t count)
{
    struct kvb_event_batch batch = { 0 };

    for (size_t i = 0; i < count; i++) {
        assert_ok(decode_hex(cases[i].hex, &batch));
        assert_string_equal(line_of(&batch), cases[i].want);
    }
    kvb_event_batch_done(&batch);
}
