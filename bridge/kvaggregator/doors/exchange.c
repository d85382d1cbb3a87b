#include "kvaggregator/doors/exchange.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/endpoint.h"
#include "model/query.h"

#include <stdlib.h>
#include <string.h>

static const char destination[] = "x-gateway-destination-endpoint";

void kvb_exchange_done(struct kvb_exchange *exchange)
{
    for (size_t i = 0; i < exchange->chunk_count; i++) {
        kvb_buf_done(&exchange->chunks[i].message);
    }
    free(exchange->chunks);
    free(exchange->hint);
    kvb_buf_done(&exchange->answer);
    kvb_body_scan_done(&exchange->scan);
    *exchange = (struct kvb_exchange){ .options = exchange->options, .state = KVB_EXCHANGE_OVER };
}

/* ---- The request's headers ---- */

static bool ends_with(kvb_span text, const char *end)
{
    const size_t len = strlen(end);

    return text.len >= len && memcmp(text.data + text.len - len, end, len) == 0;
}

static enum kvb_exchange_path path_of(kvb_span path)
{
    const uint8_t *query = path.len > 0 ? memchr(path.data, '?', path.len) : NULL;

    if (query) {
        path.len = (size_t)(query - path.data);
    }
    if (ends_with(path, "/chat/completions")) {
        return KVB_PATH_CHAT;
    }
    if (ends_with(path, "/completions")) {
        return KVB_PATH_COMPLETIONS;
    }
    return ends_with(path, "/responses") ? KVB_PATH_RESPONSES : KVB_PATH_OTHER;
}

static void take_request_id(struct kvb_exchange *exchange, kvb_span id)
{
    if (id.len == 0 || id.len > kvb_exchange_id_bytes) {
        return;
    }
    for (size_t i = 0; i < id.len; i++) {
        if (id.data[i] <= ' ' || id.data[i] >= 0x7f) {
            return;
        }
    }
    memcpy(exchange->request_id, id.data, id.len);
}

/* A hint that cannot be read, or kept, names nobody: then no endpoint is allowed. */
static void take_hint(struct kvb_exchange *exchange, kvb_span metadata)
{
    struct kvb_endpoint_hint hint;
    struct kvb_endpoint endpoint;
    kvb_span value;
    kvb_span text;
    size_t capacity = exchange->hint_count;

    if (exchange->has_hint || metadata.len == 0 ||
        kvb_ext_proc_metadata_find(
            metadata, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", &value) !=
            KVB_OK) {
        return;
    }
    exchange->has_hint = true;
    if (kvb_endpoint_hint_of(value, &hint) != KVB_OK) {
        return;
    }
    while (kvb_endpoint_hint_next(&hint, &text) == KVB_OK) { /* ends: it is limited */
        if (kvb_endpoint_read(text, &endpoint) != KVB_OK) {
            continue; /* no engine of ours */
        }
        if (kvb_array_reserve(
                &exchange->hint, &capacity, exchange->hint_count + 1, sizeof *exchange->hint,
                kvb_max_gateway_hint_endpoints) != KVB_OK) {
            break;
        }
        exchange->hint[exchange->hint_count++] = kvb_endpoint_hash(&endpoint);
    }
    if (exchange->hint_count > 0) {
        qsort(exchange->hint, exchange->hint_count, sizeof *exchange->hint, kvb_selection_compare);
    }
}

static void want_pick(struct kvb_exchange *exchange, const char *by_load)
{
    exchange->state = KVB_EXCHANGE_PICK;
    exchange->by_load = by_load;
    exchange->events |= KVB_EXCHANGE_WANTS_PICK;
}

static void
take_request_headers(struct kvb_exchange *exchange, const struct kvb_ext_proc_request *request)
{
    enum { id, path, pick, affinity, name_count };
    const char *const names[name_count] = { "x-request-id", ":path", destination,
                                            exchange->options->affinity_header };
    kvb_span values[name_count];
    bool has_more = false;

    if (kvb_ext_proc_headers_find(request->headers, names, name_count, values, &has_more) !=
        KVB_OK) {
        exchange->events |= KVB_EXCHANGE_BROKEN;
        return;
    }
    take_request_id(exchange, values[id]);
    exchange->path = path_of(values[path]);
    if (exchange->options->affinity_header[0] != '\0' && values[affinity].len > 0) {
        exchange->affinity = kvb_hash64(values[affinity], 0) | 1; /* not 0 */
    }
    take_hint(exchange, request->metadata);
    if (request->is_observed) {
        /* The filter before this one has asked, and its pick is in the headers. */
        const kvb_span first = values[pick];
        size_t len = 0;
        while (len < first.len && len + 1 < sizeof exchange->picked && first.data[len] != ',') {
            exchange->picked[len] = (char)first.data[len];
            len++;
        }
        exchange->state = KVB_EXCHANGE_WATCH;
        exchange->is_booked = exchange->request_id[0] != '\0';
        return;
    }
    if (request->end_of_stream) {
        exchange->has_body_end = true;
        want_pick(exchange, "no_body");
        return;
    }
    switch (exchange->request_mode) {
    case KVB_MODE_DUPLEX:
        exchange->state = KVB_EXCHANGE_GATHER;
        break;
    case KVB_MODE_BUFFERED:
    case KVB_MODE_BUFFERED_PARTIAL:
        /* Envoy holds the body back until its headers are answered. */
        exchange->state = KVB_EXCHANGE_GATHER;
        exchange->owed[KVB_PART_REQUEST_HEADERS]++;
        break;
    case KVB_MODE_NONE:
    case KVB_MODE_STREAMED:
    case KVB_MODE_GRPC:
    case KVB_MODE_UNKNOWN:
        want_pick(exchange, "headers_only");
        break;
    }
}

/* ---- The request's body ---- */

/* KVB_TOO_LARGE: too many chunks. */
static kvb_status keep_chunk(struct kvb_exchange *exchange, struct kvb_buf *message, kvb_span body)
{
    KVB_TRY(kvb_array_reserve(
        &exchange->chunks, &exchange->chunk_capacity, exchange->chunk_count + 1,
        sizeof *exchange->chunks, kvb_max_gateway_chunks));
    exchange->chunks[exchange->chunk_count++] =
        (struct kvb_exchange_chunk){ .message = *message, .body = body };
    *message = (struct kvb_buf){ 0 };
    return KVB_OK;
}

static void end_body(struct kvb_exchange *exchange, const struct kvb_ext_proc_request *request)
{
    exchange->has_body_end = true;
    exchange->is_end_due = request->part == KVB_PART_REQUEST_BODY;
    exchange->has_trailers = request->part == KVB_PART_REQUEST_TRAILERS;
}

static void take_duplex_body(
    struct kvb_exchange *exchange, const struct kvb_ext_proc_request *request,
    struct kvb_buf *message, bool is_crowded)
{
    exchange->echoes = KVB_PART_REQUEST_BODY;
    if (request->body.len > 0) {
        if (keep_chunk(exchange, message, request->body) != KVB_OK) {
            /* Without it the engine would get another body than the client has sent. */
            exchange->events |= KVB_EXCHANGE_BROKEN;
            return;
        }
        exchange->body_bytes += request->body.len;
    }
    if (request->end_of_stream) {
        end_body(exchange, request);
    }
    if (exchange->state == KVB_EXCHANGE_GATHER) {
        kvb_body_scan_feed(&exchange->scan, request->body);
        const bool is_large = exchange->body_bytes > exchange->options->max_body_bytes ||
                              exchange->chunk_count > kvb_max_gateway_chunks / 2;
        if (request->end_of_stream && !is_large) {
            want_pick(exchange, NULL);
        } else if (is_large || is_crowded) {
            exchange->is_passed_on = true;
            want_pick(exchange, is_large ? "too_large" : "busy");
        }
    } else if (exchange->state == KVB_EXCHANGE_PASS && request->end_of_stream) {
        exchange->state = KVB_EXCHANGE_DONE;
    }
}

/* After the last answer that the request gets. */
static void note_answered(struct kvb_exchange *exchange)
{
    if (exchange->state == KVB_EXCHANGE_DONE && exchange->options->skips_response) {
        exchange->events |= KVB_EXCHANGE_ENDS;
    }
}

static void take_request_body(
    struct kvb_exchange *exchange, const struct kvb_ext_proc_request *request,
    struct kvb_buf *message, bool is_crowded)
{
    const bool is_late = exchange->has_body_end || exchange->has_response_headers;

    /* Envoy has sent ends of bodies twice (its issue 46237): a second answer would be a 500. */
    if (is_late) {
        exchange->events |= KVB_EXCHANGE_AFTER_END;
        return;
    }
    switch (exchange->request_mode) {
    case KVB_MODE_DUPLEX:
        take_duplex_body(exchange, request, message, is_crowded);
        break;
    case KVB_MODE_BUFFERED:
    case KVB_MODE_BUFFERED_PARTIAL:
        /* One message, whole or cut; it needs no chunk that goes back, but the pick reads it. */
        exchange->has_body_end = true;
        kvb_body_scan_feed(&exchange->scan, request->body);
        exchange->body_bytes = request->body.len;
        if (keep_chunk(exchange, message, request->body) != KVB_OK) {
            exchange->events |= KVB_EXCHANGE_BROKEN;
            return;
        }
        want_pick(exchange, NULL);
        break;
    case KVB_MODE_STREAMED:
    case KVB_MODE_GRPC:
    case KVB_MODE_NONE:
    case KVB_MODE_UNKNOWN:
        exchange->has_body_end = request->end_of_stream;
        exchange->owed[KVB_PART_REQUEST_BODY]++;
        if (request->end_of_stream) {
            note_answered(exchange);
        }
        break;
    }
}

static void
take_request_trailers(struct kvb_exchange *exchange, const struct kvb_ext_proc_request *request)
{
    exchange->owed[KVB_PART_REQUEST_TRAILERS]++;
    if (exchange->request_mode == KVB_MODE_DUPLEX && !exchange->has_body_end) {
        end_body(exchange, request);
        if (exchange->state == KVB_EXCHANGE_GATHER) {
            want_pick(exchange, NULL);
        } else if (exchange->state == KVB_EXCHANGE_PASS) {
            exchange->state = KVB_EXCHANGE_DONE;
        }
    } else if (exchange->state == KVB_EXCHANGE_GATHER) {
        exchange->state = KVB_EXCHANGE_DONE; /* BUFFERED, and no body: no answer takes a pick */
    }
    exchange->has_body_end = true;
    note_answered(exchange);
}

/* ---- The response ---- */

static void finish(struct kvb_exchange *exchange, bool is_whole)
{
    if (!exchange->is_booked || exchange->is_finished) {
        return;
    }
    exchange->is_finished = true;
    exchange->events |= KVB_EXCHANGE_FINISHED;
    /* What another engine had cached says nothing about the pick. */
    const bool is_pick =
        exchange->served[0] == '\0' || strcmp(exchange->served, exchange->picked) == 0;
    exchange->has_cached = is_whole && is_pick && !exchange->has_encoding &&
                           kvb_usage_cached_tokens(&exchange->usage, &exchange->cached_tokens);
}

/* The response has ended, or its headers say that it is none.  A client that leaves ends nothing.
 */
static void end_response(struct kvb_exchange *exchange, bool is_whole)
{
    exchange->has_response_end = true;
    finish(exchange, is_whole);
}

static void take_served(struct kvb_exchange *exchange, kvb_span metadata)
{
    struct kvb_endpoint_hint hint;
    kvb_span value;
    kvb_span text;

    if (exchange->served[0] != '\0' || metadata.len == 0 ||
        kvb_ext_proc_metadata_find(
            metadata, "envoy.lb", "x-gateway-destination-endpoint-served", &value) != KVB_OK ||
        kvb_endpoint_hint_of(value, &hint) != KVB_OK ||
        kvb_endpoint_hint_next(&hint, &text) != KVB_OK || text.len >= sizeof exchange->served) {
        return;
    }
    memcpy(exchange->served, text.data, text.len);
    exchange->served[text.len] = '\0';
    if (exchange->is_booked && !exchange->is_finished && exchange->picked[0] != '\0' &&
        exchange->state != KVB_EXCHANGE_WATCH && strcmp(exchange->served, exchange->picked) != 0) {
        exchange->events |= KVB_EXCHANGE_MOVED;
    }
}

static void
take_response_headers(struct kvb_exchange *exchange, const struct kvb_ext_proc_request *request)
{
    enum { status, encoding, name_count };
    static const char *const names[name_count] = { ":status", "content-encoding" };
    kvb_span values[name_count] = { { 0 } };
    bool has_more = false;

    exchange->has_response_headers = true;
    exchange->owed[KVB_PART_RESPONSE_HEADERS]++;
    /* Envoy itself answers, and will not send the request anywhere. */
    if (exchange->state == KVB_EXCHANGE_PICK || exchange->state == KVB_EXCHANGE_GATHER ||
        exchange->state == KVB_EXCHANGE_PASS) {
        if (exchange->state == KVB_EXCHANGE_PICK) {
            exchange->events |= KVB_EXCHANGE_LOST_PICK;
            exchange->events &= ~(unsigned)KVB_EXCHANGE_WANTS_PICK;
        }
        exchange->state = KVB_EXCHANGE_DONE;
        exchange->owed[KVB_PART_REQUEST_HEADERS] = exchange->owed[KVB_PART_REQUEST_BODY] =
            exchange->owed[KVB_PART_REQUEST_TRAILERS] = 0;
        exchange->chunk_at = exchange->chunk_count;
        exchange->byte_at = 0;
        exchange->is_end_due = false;
    }
    if (kvb_ext_proc_headers_find(request->headers, names, name_count, values, &has_more) !=
        KVB_OK) {
        values[status] = (kvb_span){ 0 };
    }
    exchange->has_encoding = values[encoding].len > 0 && !kvb_span_is(values[encoding], "identity");
    if (request->end_of_stream || !kvb_span_is(values[status], "200")) {
        end_response(exchange, false);
    }
}

static void take_response_body(
    struct kvb_exchange *exchange, const struct kvb_ext_proc_request *request,
    struct kvb_buf *message)
{
    if (request->body.len > 0 && !exchange->had_first_token) {
        exchange->had_first_token = true;
        if (exchange->is_booked && !exchange->is_finished) {
            exchange->events |= KVB_EXCHANGE_FIRST_TOKEN;
        }
    }
    kvb_usage_feed(&exchange->usage, request->body);
    if (exchange->response_mode == KVB_MODE_DUPLEX && exchange->state != KVB_EXCHANGE_WATCH) {
        exchange->echoes = KVB_PART_RESPONSE_BODY;
        exchange->is_end_due = request->end_of_stream;
        if (keep_chunk(exchange, message, request->body) != KVB_OK) {
            exchange->events |= KVB_EXCHANGE_BROKEN;
        }
    } else {
        exchange->owed[KVB_PART_RESPONSE_BODY]++;
    }
    if (request->end_of_stream) {
        end_response(exchange, true);
    }
}

/* ---- A message ---- */

void kvb_exchange_take(struct kvb_exchange *exchange, struct kvb_buf *message, bool is_crowded)
{
    struct kvb_ext_proc_request request;

    if (exchange->state == KVB_EXCHANGE_OVER) {
        return;
    }
    if (kvb_ext_proc_request_decode(kvb_buf_span(message), &request) != KVB_OK) {
        exchange->events |= KVB_EXCHANGE_BROKEN;
        return;
    }
    const bool is_first = exchange->state == KVB_EXCHANGE_NEW;
    if (is_first) {
        exchange->request_mode =
            request.has_modes ? request.request_body_mode : exchange->options->assume;
        exchange->response_mode =
            request.has_modes ? request.response_body_mode : exchange->options->assume;
    }
    /* A stream begins with the request's headers, or with the response's, where a filter before
     * this one has answered. */
    if (is_first && request.part >= KVB_PART_RESPONSE_HEADERS) {
        exchange->state = request.is_observed ? KVB_EXCHANGE_WATCH : KVB_EXCHANGE_DONE;
    } else if (is_first != (request.part == KVB_PART_REQUEST_HEADERS)) {
        exchange->events |= KVB_EXCHANGE_BROKEN;
        return;
    }
    take_served(exchange, request.metadata);
    switch (request.part) {
    case KVB_PART_REQUEST_HEADERS:
        take_request_headers(exchange, &request);
        break;
    case KVB_PART_REQUEST_BODY:
        if (exchange->state != KVB_EXCHANGE_WATCH) {
            take_request_body(exchange, &request, message, is_crowded);
        }
        break;
    case KVB_PART_REQUEST_TRAILERS:
        take_request_trailers(exchange, &request);
        break;
    case KVB_PART_RESPONSE_HEADERS:
        take_response_headers(exchange, &request);
        break;
    case KVB_PART_RESPONSE_BODY:
        take_response_body(exchange, &request, message);
        break;
    case KVB_PART_RESPONSE_TRAILERS:
        exchange->owed[KVB_PART_RESPONSE_TRAILERS]++;
        end_response(exchange, true);
        break;
    case KVB_PART_UNKNOWN:
    case KVB_PART_COUNT:
        break;
    }
    if (exchange->state == KVB_EXCHANGE_WATCH) {
        memset(exchange->owed, 0, sizeof exchange->owed);
    }
}

/* ---- The pick ---- */

kvb_status kvb_exchange_picked(struct kvb_exchange *exchange, struct kvb_gateway_pick *pick)
{
    if (exchange->state != KVB_EXCHANGE_PICK) {
        return KVB_OK;
    }
    const bool is_buffered = exchange->chunk_count > 0 && exchange->has_body_end &&
                             exchange->request_mode != KVB_MODE_DUPLEX;
    pick->answers = is_buffered ? KVB_PART_REQUEST_BODY : KVB_PART_REQUEST_HEADERS;
    kvb_buf_init(&exchange->answer, kvb_max_gateway_answer_bytes); /* there is one in a stream */
    KVB_TRY(kvb_ext_proc_pick_encode(pick, &exchange->answer));
    exchange->has_answer = true;
    exchange->is_booked = true;
    const size_t first = strcspn(pick->endpoints, ",");
    if (first < sizeof exchange->picked) {
        memcpy(exchange->picked, pick->endpoints, first);
        exchange->picked[first] = '\0';
    }
    if (is_buffered) { /* Envoy has the bytes */
        exchange->chunk_at = exchange->chunk_count;
    }
    exchange->state = exchange->request_mode == KVB_MODE_DUPLEX && !exchange->has_body_end
                          ? KVB_EXCHANGE_PASS
                          : KVB_EXCHANGE_DONE;
    if (exchange->has_body_end || exchange->request_mode == KVB_MODE_NONE) {
        note_answered(exchange);
    }
    return KVB_OK;
}

kvb_status kvb_exchange_refused(
    struct kvb_exchange *exchange, unsigned http_status, const char *reason, const char *message)
{
    if (exchange->state != KVB_EXCHANGE_PICK) {
        return KVB_OK;
    }
    kvb_buf_init(&exchange->answer, kvb_max_gateway_answer_bytes); /* there is one in a stream */
    KVB_TRY(kvb_ext_proc_immediate_encode(http_status, reason, message, &exchange->answer));
    exchange->has_answer = true;
    /* It is the only answer. */
    exchange->chunk_at = exchange->chunk_count;
    exchange->is_end_due = false;
    memset(exchange->owed, 0, sizeof exchange->owed);
    exchange->state = KVB_EXCHANGE_OVER;
    exchange->events |= KVB_EXCHANGE_ENDS;
    return KVB_OK;
}

/* ---- The end ---- */

void kvb_exchange_left(struct kvb_exchange *exchange)
{
    if (exchange->state == KVB_EXCHANGE_PICK) {
        exchange->events |= KVB_EXCHANGE_LOST_PICK;
    }
    /* Where Envoy does not show the response, the end of the stream says nothing about it. */
    const bool is_seen =
        exchange->state == KVB_EXCHANGE_WATCH ||
        (exchange->response_mode != KVB_MODE_NONE && !exchange->options->skips_response);
    if (is_seen) {
        finish(exchange, false);
    }
    exchange->state = KVB_EXCHANGE_OVER;
}

void kvb_exchange_drain(struct kvb_exchange *exchange)
{
    /* Of a duplex response the chunk that Envoy has just sent would be lost. */
    if (exchange->state == KVB_EXCHANGE_DONE && exchange->has_body_end &&
        exchange->response_mode != KVB_MODE_DUPLEX) {
        exchange->events |= KVB_EXCHANGE_ENDS;
    }
}

/* ---- Answers ---- */

static bool is_echo_due(const struct kvb_exchange *exchange)
{
    return exchange->state == KVB_EXCHANGE_PASS || exchange->state == KVB_EXCHANGE_DONE;
}

static void give_echo(struct kvb_exchange *exchange, struct kvb_exchange_answer *out)
{
    struct kvb_exchange_chunk *chunk =
        exchange->chunk_at < exchange->chunk_count ? &exchange->chunks[exchange->chunk_at] : NULL;
    const size_t left = chunk ? chunk->body.len - exchange->byte_at : 0;
    const size_t part = left < kvb_max_gateway_echo_bytes ? left : kvb_max_gateway_echo_bytes;
    bool is_last = !chunk;

    if (chunk) {
        out->bytes = (kvb_span){ chunk->body.data + exchange->byte_at, part };
        exchange->byte_at += part;
        if (exchange->byte_at == chunk->body.len) {
            out->memory = &chunk->message;
            exchange->byte_at = 0;
            exchange->chunk_at++;
            is_last = exchange->chunk_at == exchange->chunk_count;
        }
    }
    const bool is_end = is_last && exchange->is_end_due;
    exchange->is_end_due = exchange->is_end_due && !is_end;
    out->head_len = kvb_ext_proc_echo_head_write(exchange->echoes, part, is_end, out->head);
}

bool kvb_exchange_next(struct kvb_exchange *exchange, struct kvb_exchange_answer *out_answer)
{
    *out_answer = (struct kvb_exchange_answer){ .head_len = 0 };
    if (exchange->owed[KVB_PART_REQUEST_HEADERS] > 0) { /* BUFFERED: before the pick */
        exchange->owed[KVB_PART_REQUEST_HEADERS]--;
        out_answer->bytes = kvb_ext_proc_empty_answer(KVB_PART_REQUEST_HEADERS);
        return true;
    }
    if (exchange->has_answer) {
        exchange->has_answer = false;
        out_answer->bytes = kvb_buf_span(&exchange->answer);
        out_answer->is_copied = true;
        /* A body that does not go back is of no use any more. */
        if (exchange->request_mode != KVB_MODE_DUPLEX && exchange->chunk_count > 0) {
            out_answer->memory = &exchange->chunks[0].message;
        }
        return true;
    }
    if (!is_echo_due(exchange)) {
        return false; /* all else is behind the pick */
    }
    if (exchange->chunk_at < exchange->chunk_count || exchange->is_end_due) {
        give_echo(exchange, out_answer);
        return true;
    }
    /* The list is free for what comes next, once the last one was taken. */
    for (size_t i = 0; i < exchange->chunk_count; i++) {
        kvb_buf_done(&exchange->chunks[i].message); /* those of BUFFERED */
    }
    exchange->chunk_count = exchange->chunk_at = 0;
    for (enum kvb_ext_proc_part part = KVB_PART_REQUEST_BODY; part < KVB_PART_COUNT; part++) {
        if (exchange->owed[part] > 0) {
            exchange->owed[part]--;
            out_answer->bytes = kvb_ext_proc_empty_answer(part);
            return true;
        }
    }
    return false;
}

kvb_status
kvb_exchange_read(const struct kvb_exchange *exchange, size_t at, size_t len, struct kvb_buf *out)
{
    for (size_t i = 0; i < exchange->chunk_count && len > 0; i++) {
        const kvb_span body = exchange->chunks[i].body;
        if (at >= body.len) {
            at -= body.len;
            continue;
        }
        const size_t part = len < body.len - at ? len : body.len - at;
        KVB_TRY(kvb_buf_append(out, body.data + at, part));
        at = 0;
        len -= part;
    }
    return len == 0 ? KVB_OK : KVB_BAD_INPUT;
}
