#include "wire/router/books.h"

#include "core/limits.h"
#include "core/own.h"
#include "core/utf8.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <stdlib.h>
#include <string.h>

enum { max_depth = 8, max_containers = 64, max_values = 256 };

/* ---- Encoding ---- */

static void write_sender(struct kvb_json_writer *json, const struct kvb_books_sender *sender)
{
    kvb_json_write_pair_u64(json, "version", kvb_books_version);
    kvb_json_write_pair_text(json, "aggregator", sender->id);
    kvb_json_write_pair_u64(json, "start", sender->start);
}

static kvb_status write_names(
    struct kvb_json_writer *json, const struct kvb_shared_decision *decision, struct kvb_buf *out)
{
    char text[kvb_hex_digits];

    kvb_json_write_key(json, "names");
    KVB_TRY(json->status);
    /* Digits need no escapes, so they bypass the writer. */
    KVB_TRY(kvb_buf_append(out, "\"", 1));
    for (size_t i = 0; i < decision->name_count; i++) {
        kvb_hex_write(text, decision->names[i].value);
        KVB_TRY(kvb_buf_append(out, text, sizeof text));
    }
    /* The writer has not seen this value, after which the next key needs a comma. */
    json->is_after_value = true;
    return kvb_buf_append(out, "\"", 1);
}

kvb_status
kvb_books_decision_encode(const struct kvb_shared_decision *decision, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    write_sender(&json, &decision->sender);
    kvb_json_write_pair_u64(&json, "sequence", decision->sequence);
    kvb_json_write_pair_text(&json, "request_id", decision->request_id);
    kvb_json_write_pair_text(&json, "namespace", decision->stream.name_space);
    kvb_json_write_pair_text(&json, "component", decision->stream.component);
    kvb_json_write_pair_u64(&json, "worker_id", decision->stream.worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", decision->stream.dp_rank);
    kvb_json_write_pair_u64(&json, "isl_blocks", decision->isl_blocks);
    kvb_json_write_pair_u64(&json, "overlap_blocks", decision->overlap_blocks);
    kvb_json_write_pair_u64(&json, "blocks", decision->blocks);
    kvb_json_write_pair_u64(&json, "prefill_blocks", decision->prefill_blocks);
    kvb_json_write_pair_u64(&json, "ttl_ms", decision->ttl_ms);
    /* Both or neither: a reader that finds the tokens requires the block. */
    if (decision->promised_tokens > 0) {
        char block[kvb_hex_digits + 1] = "";
        kvb_hex_write(block, decision->promised_block.value);
        kvb_json_write_pair_u64(&json, "promised_tokens", decision->promised_tokens);
        kvb_json_write_pair_text(&json, "promised_block", block);
    }
    if (decision->name_count > 0) { /* for people, who compare prompts by them */
        kvb_json_write_pair_u64(&json, "first_hash", decision->names[0].value);
        kvb_json_write_pair_u64(
            &json, "last_hash", decision->names[decision->name_count - 1].value);
    }
    KVB_TRY(write_names(&json, decision, out));
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status kvb_books_report_encode(const struct kvb_shared_report *report, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    /* A router's report names no sender, and then has no version either. */
    if (report->sender.id[0]) {
        write_sender(&json, &report->sender);
    }
    kvb_json_write_pair_text(&json, "request_id", report->request_id);
    if (report->has_cached_tokens) {
        kvb_json_write_pair_u64(&json, "cached_tokens", report->cached_tokens);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status kvb_books_status_encode(const struct kvb_aggregator_status *status, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    write_sender(&json, &status->sender);
    kvb_json_write_pair_u64(&json, "sequence", status->sequence);
    kvb_json_write_pair_bool(&json, "ready", status->is_ready);
    kvb_json_write_pair_bool(&json, "bye", status->is_bye);
    kvb_json_write_pair_u64(&json, "requests_in_flight", status->requests_in_flight);
    kvb_json_write_pair_u64(&json, "predicted_blocks", status->predicted_blocks);
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- Decoding ---- */

static kvb_status
read_books_u64(struct json_object *root, const char *name, uint64_t max, uint64_t *out)
{
    return kvb_json_number(kvb_json_member(root, name), max, out);
}

static kvb_status read_books_bool(struct json_object *root, const char *name, bool *out)
{
    struct json_object *value = kvb_json_member(root, name);

    if (!json_object_is_type(value, json_type_boolean)) {
        return KVB_BAD_INPUT;
    }
    *out = json_object_get_boolean(value);
    return KVB_OK;
}

static kvb_status
read_books_text(struct json_object *root, const char *name, char *out, size_t bytes)
{
    return kvb_json_text(kvb_json_member(root, name), out, bytes);
}

static kvb_status read_books_request_id(struct json_object *root, char *out)
{
    char request_id[kvb_request_id_bytes + 1] = "";

    KVB_TRY(read_books_text(root, "request_id", request_id, sizeof request_id));
    if (!kvb_request_id_is_valid(request_id)) {
        return KVB_BAD_INPUT;
    }
    memcpy(out, request_id, sizeof request_id);
    return KVB_OK;
}

/* Called first, because the other fields of another version may have another meaning. */
static kvb_status read_sender(struct json_object *root, struct kvb_books_sender *out_sender)
{
    struct kvb_books_sender sender = { .start = 0 };
    uint64_t version = 0;

    KVB_TRY(read_books_u64(root, "version", UINT64_MAX, &version));
    /* Not bad input: the caller counts senders of another version apart. */
    if (version != kvb_books_version) {
        return KVB_NOT_FOUND;
    }
    KVB_TRY(read_books_text(root, "aggregator", sender.id, sizeof sender.id));
    if (!sender.id[0] || !kvb_utf8_is_plain(sender.id)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_books_u64(root, "start", UINT64_MAX, &sender.start));
    *out_sender = sender;
    return KVB_OK;
}

static int digit_value(char digit)
{
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static kvb_status read_name(const char *text, kvb_block_hash *out_name)
{
    uint64_t name = 0;

    for (int i = 0; i < kvb_hex_digits; i++) {
        const int digit = digit_value(text[i]);
        if (digit < 0) {
            return KVB_BAD_INPUT;
        }
        name = (name << 4) | (uint64_t)digit;
    }
    *out_name = (kvb_block_hash){ name };
    return KVB_OK;
}

static kvb_status read_name_list(const char *text, size_t count, kvb_block_hash *names)
{
    for (size_t i = 0; i < count; i++) {
        KVB_TRY(read_name(text + (i * kvb_hex_digits), &names[i]));
    }
    return KVB_OK;
}

static kvb_status
read_predicted_names(struct json_object *root, struct kvb_shared_decision *decision)
{
    struct json_object *value = kvb_json_member(root, "names");

    if (!json_object_is_type(value, json_type_string)) {
        return KVB_BAD_INPUT;
    }
    const size_t len = (size_t)json_object_get_string_len(value);
    const char *text = json_object_get_string(value);
    if (len % kvb_hex_digits != 0) {
        return KVB_BAD_INPUT;
    }
    /* The text is bounded by the message; the blocks of one decision are fewer. */
    if (len / kvb_hex_digits > kvb_max_decision_blocks) {
        return KVB_TOO_LARGE;
    }
    /* One more, because calloc() may return NULL for none. */
    kvb_block_hash *names = calloc((len / kvb_hex_digits) + 1, sizeof *names);
    if (!names) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = read_name_list(text, len / kvb_hex_digits, names);
    if (status != KVB_OK) {
        free(names);
        return status;
    }
    decision->storage = names;
    decision->names = names;
    decision->name_count = len / kvb_hex_digits;
    return KVB_OK;
}

static kvb_status read_chosen_stream(struct json_object *root, struct kvb_stream_id *stream)
{
    uint64_t rank = 0;

    KVB_TRY(read_books_text(root, "namespace", stream->name_space, sizeof stream->name_space));
    KVB_TRY(read_books_text(root, "component", stream->component, sizeof stream->component));
    KVB_TRY(read_books_u64(root, "worker_id", UINT64_MAX, &stream->worker_id));
    KVB_TRY(read_books_u64(root, "dp_rank", UINT32_MAX, &rank));
    stream->dp_rank = (uint32_t)rank;
    return KVB_OK;
}

/* Aggregators without an audit send neither of the two. */
static kvb_status read_promise(struct json_object *root, struct kvb_shared_decision *decision)
{
    char block[kvb_hex_digits + 1] = "";

    if (!kvb_json_member(root, "promised_tokens")) {
        return KVB_OK;
    }
    KVB_TRY(
        read_books_u64(root, "promised_tokens", kvb_max_query_tokens, &decision->promised_tokens));
    KVB_TRY(read_books_text(root, "promised_block", block, sizeof block));
    return read_name(block, &decision->promised_block);
}

static kvb_status read_decision(struct json_object *root, struct kvb_shared_decision *decision)
{
    const uint64_t max = kvb_max_query_tokens;

    KVB_TRY(read_sender(root, &decision->sender));
    KVB_TRY(read_books_u64(root, "sequence", UINT64_MAX, &decision->sequence));
    KVB_TRY(read_books_request_id(root, decision->request_id));
    KVB_TRY(read_chosen_stream(root, &decision->stream));
    KVB_TRY(read_books_u64(root, "isl_blocks", max, &decision->isl_blocks));
    KVB_TRY(read_books_u64(root, "overlap_blocks", max, &decision->overlap_blocks));
    KVB_TRY(read_books_u64(root, "blocks", max, &decision->blocks));
    KVB_TRY(read_books_u64(root, "prefill_blocks", max, &decision->prefill_blocks));
    KVB_TRY(read_books_u64(root, "ttl_ms", kvb_max_request_ttl_ms, &decision->ttl_ms));
    /* A request in the books for no time would be none. */
    if (decision->ttl_ms == 0) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_promise(root, decision));
    return read_predicted_names(root, decision); /* called last, because it allocates */
}

static kvb_status parse_books(kvb_span json, struct json_object **out_root)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };

    if (json.len > kvb_max_nats_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_json_parse(json, &budget, out_root));
    /* A number that json-c has cut to 64 bits would be another worker. */
    const bool is_usable =
        json_object_is_type(*out_root, json_type_object) && !budget.has_wide_integer;
    return is_usable ? KVB_OK : KVB_BAD_INPUT;
}

void kvb_shared_decision_done(struct kvb_shared_decision *decision)
{
    free(decision->storage);
    *decision = (struct kvb_shared_decision){ 0 };
}

kvb_status kvb_books_decision_decode(kvb_span json, struct kvb_shared_decision *out_decision)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    KVB_OWN(kvb_shared_decision_done) struct kvb_shared_decision decision = { .sequence = 0 };

    KVB_TRY(parse_books(json, &root));
    KVB_TRY(read_decision(root, &decision));
    *out_decision = decision;
    decision = (struct kvb_shared_decision){ .sequence = 0 }; /* now the caller's */
    return KVB_OK;
}

kvb_status kvb_books_report_decode(kvb_span json, struct kvb_shared_report *out_report)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_shared_report report = { .request_id = "" };

    KVB_TRY(parse_books(json, &root));
    /* A router's report has neither; one that an aggregator passes on has both. */
    if (kvb_json_member(root, "aggregator") || kvb_json_member(root, "version")) {
        KVB_TRY(read_sender(root, &report.sender));
    }
    KVB_TRY(read_books_request_id(root, report.request_id));
    report.has_cached_tokens = kvb_json_member(root, "cached_tokens") != NULL;
    if (report.has_cached_tokens) {
        KVB_TRY(read_books_u64(root, "cached_tokens", kvb_max_query_tokens, &report.cached_tokens));
    }
    *out_report = report;
    return KVB_OK;
}

static kvb_status read_status(struct json_object *root, struct kvb_aggregator_status *status)
{
    KVB_TRY(read_sender(root, &status->sender));
    KVB_TRY(read_books_u64(root, "sequence", UINT64_MAX, &status->sequence));
    KVB_TRY(read_books_bool(root, "ready", &status->is_ready));
    KVB_TRY(read_books_bool(root, "bye", &status->is_bye));
    KVB_TRY(read_books_u64(root, "requests_in_flight", UINT64_MAX, &status->requests_in_flight));
    return read_books_u64(root, "predicted_blocks", UINT64_MAX, &status->predicted_blocks);
}

kvb_status kvb_books_status_decode(kvb_span json, struct kvb_aggregator_status *out_status)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_aggregator_status status = { .sequence = 0 };

    KVB_TRY(parse_books(json, &root));
    KVB_TRY(read_status(root, &status));
    *out_status = status;
    return KVB_OK;
}
