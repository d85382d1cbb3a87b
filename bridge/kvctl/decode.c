#include "core/limits.h"
#include "core/own.h"
#include "kvctl/decode_lines.h"
#include "kvctl/kvctl.h"
#include "wire/engine/batch.h"

#include <string.h>

/* `decode`: prints an engine's messages as JSON lines on stdout, and a summary on
 * stderr. */

struct decoding {
    struct kvb_event_batch batch;
    struct kvb_buf line;
    size_t messages;
    size_t unreadable;
    size_t events;
    size_t kinds[KVB_EVENT_SKIPPED + 1];
    size_t skips[KVB_SKIP_COUNT];
};

static void drop_decoding(struct decoding *decoding)
{
    kvb_event_batch_done(&decoding->batch);
    kvb_buf_done(&decoding->line);
}

static kvb_status show_event(struct decoding *decoding, size_t at)
{
    const struct kvb_engine_event *event = &decoding->batch.events[at];

    decoding->events++;
    decoding->kinds[event->kind]++;
    decoding->skips[event->skip]++;
    kvb_buf_reset(&decoding->line);
    KVB_TRY(kvb_event_write_json(&decoding->batch, at, &decoding->line));
    kvctl_print(stdout, "%.*s\n", (int)decoding->line.len, (const char *)decoding->line.data);
    return KVB_OK;
}

static kvb_status show_message(struct decoding *decoding, kvb_span payload)
{
    KVB_TRY(kvb_engine_batch_decode(payload, &decoding->batch));
    for (size_t at = 0; at < decoding->batch.event_count; at++) {
        KVB_TRY(show_event(decoding, at));
    }
    return KVB_OK;
}

/* label names the message when there are several; NULL: it is the only one. */
static void
count_message(struct decoding *decoding, kvb_status status, size_t number, kvb_span label)
{
    decoding->messages++;
    if (status == KVB_OK) {
        return;
    }
    decoding->unreadable++;
    if (number == 0) {
        kvctl_say("the message cannot be read: %s", kvb_status_name(status));
    } else {
        kvctl_say(
            "message %zu%s%.*s%s cannot be read: %s", number, label.len ? " (" : "",
            (int)(label.len < 64 ? label.len : 64), label.len ? (const char *)label.data : "",
            label.len ? ")" : "", kvb_status_name(status));
    }
}

static void show_lines(struct decoding *decoding, kvb_span text)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf payload = { 0 };
    struct kvb_hex_line line = { 0 };
    kvb_status status = KVB_OK;

    kvb_buf_init(&payload, kvb_max_payload_bytes + 1); /* so that the decoder refuses it */
    while ((status = kvb_hex_line_take(&text, &line, &payload)) != KVB_NOT_FOUND) {
        /* A line that is no hex counts as a message that cannot be read. */
        if (status == KVB_OK) {
            status = show_message(decoding, kvb_buf_span(&payload));
        }
        count_message(decoding, status, decoding->messages + 1, line.name);
    }
}

static void add_skips(const struct decoding *decoding, struct kvb_detail *detail)
{
    size_t len = 0;

    detail->text[0] = '\0';
    for (size_t skip = KVB_SKIP_NONE + 1; skip < KVB_SKIP_COUNT; skip++) {
        if (decoding->skips[skip] > 0 && len < sizeof detail->text) {
            len += (size_t)snprintf(
                detail->text + len, sizeof detail->text - len, "%s%s %zu", len ? ", " : " (",
                kvb_skip_name((enum kvb_skip)skip), decoding->skips[skip]);
        }
    }
    if (len > 0 && len + 1 < sizeof detail->text) {
        memcpy(detail->text + len, ")", 2);
    }
}

static void say_summary(const struct decoding *decoding)
{
    struct kvb_detail skips;

    add_skips(decoding, &skips);
    kvctl_say(
        "%zu messages, %zu of them unreadable, %zu events: %zu stored, %zu removed, "
        "%zu cleared, %zu skipped%s",
        decoding->messages, decoding->unreadable, decoding->events,
        decoding->kinds[KVB_EVENT_STORED], decoding->kinds[KVB_EVENT_REMOVED],
        decoding->kinds[KVB_EVENT_CLEARED], decoding->kinds[KVB_EVENT_SKIPPED], skips.text);
}

enum kvctl_exit kvctl_decode(const struct kvctl_options *options)
{
    KVB_OWN(drop_decoding) struct decoding decoding = { .messages = 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf file = { 0 };
    struct kvb_detail detail = { .text = "" };
    const kvb_span no_label = { 0 };

    kvb_buf_init(&decoding.line, kvb_max_answer_bytes);
    kvb_buf_init(&file, kvb_max_answer_bytes);
    const char *path = options->file ? options->file : "-";
    if (kvctl_read_file("decode", path, &file, &detail) != KVB_OK) {
        kvctl_say("%s", detail.text);
        return kvctl_failed;
    }
    /* Hex may have many messages, one a line; a binary file is one message. */
    if (options->is_hex) {
        show_lines(&decoding, kvb_buf_span(&file));
    } else {
        count_message(&decoding, show_message(&decoding, kvb_buf_span(&file)), 0, no_label);
    }
    say_summary(&decoding);
    return decoding.unreadable == 0 ? kvctl_ok : kvctl_failed;
}
