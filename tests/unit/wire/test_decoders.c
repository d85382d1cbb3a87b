#include "fail_alloc.h"
#include "kvb_test.h"

#include "case_file.h"
#include "core/limits.h"
#include "core/own.h"
#include "json_pack.h"
#include "say.h"
#include "vector_file.h"
#include "wire/engine/answers.h"
#include "wire/engine/batch.h"
#include "wire/gateway/body_scan.h"
#include "wire/gateway/messages.h"
#include "wire/load/engine_message.h"
#include "wire/load/json.h"
#include "wire/load/prometheus_text.h"
#include "wire/query/indexer.h"
#include "wire/query/json.h"
#include "wire/query/refresh.h"
#include "wire/query/registration.h"
#include "wire/query/text.h"
#include "wire/router/books.h"
#include "wire/router/bridge_status.h"
#include "wire/router/heartbeat.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What all decoders promise: they refuse what is no such message and say why, read nothing behind
 * its end, keep their ceiling, survive the failure of each allocation, and on failure leave what
 * they fill as it was. */

static void assert_filled(const void *bytes, size_t len)
{
    static const uint8_t filling[1 << 16] = { [0 ...(1 << 16) - 1] = 0x5a };

    for (size_t at = 0; at < len; at += sizeof filling) {
        const size_t left = len - at;
        assert_memory_equal(
            (const uint8_t *)bytes + at, filling, left < sizeof filling ? left : sizeof filling);
    }
}

/* ---- What was read, in words ---- */

static void say_sample(const struct kvb_load_sample *sample)
{
    say_number(sample->has_rank, "rank", sample->dp_rank);
    say("%s", sample->is_of_scheduler ? " scheduler:" : "");
    say_figures(&sample->load, sample->stats);
}

static void say_update(const struct kvb_coordinator_update *update)
{
    say_number(update->has_ranks, "ranks", update->rank_count);
    say_number(update->refused > 0, "refused", update->refused);
    for (size_t i = 0; i < update->count; i++) {
        say(";");
        say_sample(&update->samples[i]);
    }
}

static void say_load(const struct kvb_load_report *report)
{
    say_number(true, "worker", report->worker_id);
    say_number(true, "rank", report->dp_rank);
    say_text("of", report->endpoint_name);
    say_number(report->block_size > 0, "size", report->block_size);
    say_figures(&report->load, (1U << KVB_FIGURE_COUNT) - 1);
}

static void say_labels(const struct kvb_labels *labels)
{
    struct kvb_label label;

    for (size_t at = 0; kvb_labels_next(labels, &at, &label);) {
        say(" %s", label.pair);
    }
}

static void say_query(const struct kvb_query *query)
{
    static const char *const forms[] = { "tokens", "tokens_hashes", "block_hashes", "text" };
    const struct kvb_selection *selection = &query->selection;

    say(" %s", forms[query->form]);
    for (size_t i = 0; i < query->count && i < 20; i++) {
        say(" %llu", (unsigned long long)(query->tokens ? query->tokens[i] : query->hashes[i]));
    }
    say("%.*s", (int)query->text.bytes, query->text.members ? query->text.members : "");
    say_number(query->has_instance_id, "worker", query->instance_id);
    say_number(query->has_dp_rank, "rank", query->dp_rank);
    say_text("model", query->has_model ? query->model : "");
    say_text("lora", query->lora_name);
    say_text("salt", query->cache_salt);
    say_text("request", query->request_id);
    say_number(query->ttl_ms > 0, "ttl", query->ttl_ms);
    say_number(query->has_cached_tokens, "cached", query->cached_tokens);
    say_text("policy", selection->policy);
    say("%s", selection->is_dry_run ? " dry" : "");
    say_labels(&selection->labels);
    say_text("first", selection->first_candidate);
}

static void say_registration(const struct kvb_registration *who)
{
    say_number(who->has_worker_id, "worker", who->worker_id);
    say_text(who->is_instance_text ? "text" : "id", who->instance);
    say_number(who->has_rank, "rank", who->dp_rank);
    say_text("at", who->endpoint);
    say_text("replay", who->replay_endpoint);
    say_text("topic", who->topic);
    say_text("model", who->model);
    say_text("lora", who->lora);
    say_number(who->block_size > 0, "size", who->block_size);
    say_number(who->speculative_drop != KVB_DROP_DETECT, "drop", who->speculative_drop);
    say_text("address", who->facts.address);
    say_text("tokenize", who->facts.tokenize);
    say_text("role", kvb_worker_role_name(who->facts.role));
    say_labels(&who->facts.labels);
}

static void say_sources(const struct kvb_event_sources *sources)
{
    for (size_t i = 0; i < sources->count; i++) {
        const struct kvb_event_source *source = &sources->sources[i];
        say("%s %u %s", i > 0 ? ";" : "", source->dp_rank, source->endpoint);
        say_text("replay", source->replay_endpoint);
        say_text("topic", source->topic);
        say_number(source->buffer_steps > 0, "steps", source->buffer_steps);
    }
}

/* Adapters with a plus. */
static void say_names(const struct kvb_served_names *names)
{
    struct kvb_served_name one;

    assert_true(names->is_listed);
    for (size_t at = 0; kvb_served_names_next(names, &at, &one);) {
        say(" %s%s", one.kind == KVB_SERVED_ADAPTER ? "+" : "", one.name);
    }
    say_number(names->left_out > 0, "left out", names->left_out);
}

static void say_speculation(enum kvb_speculation found)
{
    say(" %s", found == KVB_SPECULATION_KEEPS       ? "keeps"
               : found == KVB_SPECULATION_DROPS     ? "drops"
               : found == KVB_SPECULATION_UNDECIDED ? "undecided"
                                                    : "unknown");
}

static void say_prompt(const struct kvb_prompt_event *event)
{
    say(" %s", event->is_removed ? "removed" : "stored");
    say_number(true, "worker", event->worker_id);
    say_number(true, "rank", event->dp_rank);
    say_number(event->has_lora, "lora", event->lora_id);
    for (size_t i = 0; i < event->block_count; i++) {
        say_number(true, "block", event->blocks[i].value);
    }
    for (size_t i = 0; i < event->token_count; i++) {
        say_number(true, "token", event->tokens[i]);
    }
}

static void say_streams(const struct kvb_bridge_streams *streams)
{
    say(" %s", streams->bridge_id);
    for (size_t i = 0; i < streams->count && i < 4; i++) {
        say(" %llu/%u", (unsigned long long)streams->streams[i].worker_id,
            streams->streams[i].dp_rank);
    }
}

static void say_batch(const struct kvb_router_batch *batch)
{
    static const char *const kinds[] = { "stored", "removed", "cleared" };

    say_number(true, "worker", batch->worker_id);
    say_number(true, "rank", batch->dp_rank);
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_router_event *event = &batch->events[i];
        say("; %llu %s", (unsigned long long)event->event_id, kinds[event->kind]);
        say_text("in", event->kind == KVB_ROUTER_CLEARED ? "" : kvb_router_json_tier(event->tier));
        say_number(event->has_parent, "after", event->parent.value);
        for (uint32_t k = event->block_at; k < event->block_at + event->block_count; k++) {
            say(" %llu", (unsigned long long)batch->blocks[k].value);
            if (event->kind == KVB_ROUTER_STORED) {
                say("/%llu", (unsigned long long)batch->tokens[k].value);
            }
        }
    }
}

struct stream {
    uint64_t worker_id;
    uint32_t dp_rank;
};

struct tokens {
    uint32_t *tokens; /* owned */
    size_t count;
};

static void say_tokens(const struct tokens *tokens)
{
    for (size_t i = 0; i < tokens->count; i++) {
        say(" %u", tokens->tokens[i]);
    }
}

/* ---- The decoders ---- */

/* Decodes into memory that must be untouched on failure, says what was read, and encodes it again
 * where there is an encoder, to `buf`. */
#define DECODER(name, type, decode_it, say_it, encode_it, free_it)                                 \
    static kvb_status name(kvb_span in, [[maybe_unused]] struct kvb_detail *why)                   \
    {                                                                                              \
        static type out;                                                                           \
        struct kvb_buf buf;                                                                        \
        memset(&out, 0x5a, sizeof out);                                                            \
        kvb_status status = (decode_it);                                                           \
        if (status != KVB_OK) {                                                                    \
            assert_filled(&out, sizeof out);                                                       \
            return status;                                                                         \
        }                                                                                          \
        kvb_buf_init(&buf, 1 << 16);                                                               \
        say_it;                                                                                    \
        status = (encode_it);                                                                      \
        kvb_buf_done(&buf);                                                                        \
        free_it;                                                                                   \
        return status;                                                                             \
    }

/* Replaces the contents of something; its count must be 0 on failure. */
#define REPLACER(name, type, decode_it, count, say_it, encode_it, free_it)                         \
    static kvb_status name(kvb_span in, [[maybe_unused]] struct kvb_detail *why)                   \
    {                                                                                              \
        static type out;                                                                           \
        struct kvb_buf buf;                                                                        \
        kvb_status status = (decode_it);                                                           \
        if (status != KVB_OK) {                                                                    \
            assert_int_equal(count, 0);                                                            \
            free_it;                                                                               \
            return status;                                                                         \
        }                                                                                          \
        kvb_buf_init(&buf, 1 << 16);                                                               \
        say_it;                                                                                    \
        status = (encode_it);                                                                      \
        kvb_buf_done(&buf);                                                                        \
        free_it;                                                                                   \
        return status;                                                                             \
    }

static kvb_status scan_body(kvb_span in)
{
    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan scan = { 0 };

    kvb_body_scan_feed(&scan, in);
    return kvb_body_scan_end(&scan);
}

static kvb_status decode_sync_reply(kvb_span in, struct kvb_sync_reply *out)
{
    struct kvb_sync_reply_parts *parts = calloc(1, sizeof *parts);

    if (!parts) {
        return KVB_NO_MEMORY;
    }
    struct kvb_sync_reply got;
    memcpy(&got, out, sizeof got);
    kvb_status status = kvb_sync_reply_decode(in, parts, &got);
    if (status == KVB_OK) { /* before its parts are gone */
        KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
        kvb_buf_init(&buf, 1 << 16);
        status = kvb_sync_reply_encode(&got, &buf);
    } else {
        memcpy(out, &got, sizeof got);
    }
    kvb_sync_reply_parts_done(parts);
    free(parts);
    return status;
}

static kvb_status read_hint(kvb_span in)
{
    struct kvb_endpoint_hint hint;
    kvb_span endpoint;

    KVB_TRY(kvb_endpoint_hint_of(in, &hint));
    while (kvb_endpoint_hint_next(&hint, &endpoint) == KVB_OK) {
        say(" %.*s", (int)endpoint.len, (const char *)endpoint.data);
    }
    assert_int_equal(kvb_endpoint_hint_next(&hint, &endpoint), KVB_NOT_FOUND);
    return KVB_OK;
}

/* clang-format off */
#define NO_ENCODER ((void)buf, KVB_OK)
DECODER(query, struct kvb_query, kvb_query_json_decode(in, &out, why), say_query(&out), NO_ENCODER, kvb_query_done(&out))
DECODER(finished, struct kvb_query, kvb_request_json_decode(in, &out, why), say_query(&out), NO_ENCODER, kvb_query_done(&out))
DECODER(refresh, struct kvb_refresh_request, kvb_refresh_json_decode(in, &out, why),
    (say_number(out.has_worker_id, "worker", out.worker_id), say_number(out.has_rank, "rank", out.dp_rank)), NO_ENCODER, )
DECODER(registration, struct kvb_registration, kvb_register_json_decode(in, &out, why), say_registration(&out), NO_ENCODER, )
DECODER(unregistration, struct kvb_registration, kvb_unregister_json_decode(in, &out, why), say_registration(&out), NO_ENCODER, )
DECODER(of_vllm, struct kvb_event_sources, kvb_event_sources_decode(in, &out, why), say_sources(&out), NO_ENCODER, )
DECODER(of_sglang, struct kvb_event_sources, kvb_event_sources_decode_server_info(in, &out, why), say_sources(&out), NO_ENCODER, )
DECODER(models, struct kvb_served_names, kvb_model_list_decode(in, "m", &out, why), say_names(&out), NO_ENCODER, )
DECODER(server_info, enum kvb_speculation, kvb_server_info_decode(in, &out), say_speculation(out), NO_ENCODER, )
DECODER(indexer, struct kvb_query, kvb_indexer_request_decode(in, &out, why), say_query(&out), NO_ENCODER, kvb_query_done(&out))
DECODER(load, struct kvb_load_report, kvb_load_json_decode(in, &out), say_load(&out), kvb_load_json_encode(&out, &buf), )
DECODER(forward_pass, struct kvb_load_sample, kvb_forward_pass_decode(in, &out), say_sample(&out), NO_ENCODER, )
DECODER(page_line, struct kvb_prometheus_sample, kvb_prometheus_read(in, &out), , NO_ENCODER, )
DECODER(heartbeat, struct kvb_heartbeat, kvb_heartbeat_decode(in, &out), , kvb_heartbeat_encode(&out, &buf), )
DECODER(sync_request, struct kvb_sync_request, kvb_sync_request_decode(in, &out), , kvb_sync_request_encode(&out, &buf), )
DECODER(sync_reply, struct kvb_sync_reply, decode_sync_reply(in, &out), , NO_ENCODER, )
DECODER(decision, struct kvb_shared_decision, kvb_books_decision_decode(in, &out), , kvb_books_decision_encode(&out, &buf), kvb_shared_decision_done(&out))
DECODER(report, struct kvb_shared_report, kvb_books_report_decode(in, &out), , kvb_books_report_encode(&out, &buf), )
DECODER(status_of_books, struct kvb_aggregator_status, kvb_books_status_decode(in, &out), , kvb_books_status_encode(&out, &buf), )
DECODER(tokenized, struct tokens, kvb_tokenize_answer_decode(in, &out.tokens, &out.count), say_tokens(&out), NO_ENCODER, free(out.tokens))
DECODER(of_gateway, struct kvb_ext_proc_request, kvb_ext_proc_request_decode(in, &out), , NO_ENCODER, )
DECODER(health, kvb_span, kvb_health_request_decode(in, &out), say(" %.*s", (int)out.len, (const char *)out.data), NO_ENCODER, )
REPLACER(stream_of_event, struct stream, kvb_router_json_peek(in, &out.worker_id, &out.dp_rank) ? KVB_OK : KVB_BAD_INPUT, 0,
    (say_number(true, "worker", out.worker_id), say_number(true, "rank", out.dp_rank)), NO_ENCODER, )
REPLACER(hint, char, ((void)out, read_hint(in)), 0, , NO_ENCODER, )
REPLACER(body, char, ((void)out, scan_body(in)), 0, , NO_ENCODER, )
REPLACER(coordinator, struct kvb_coordinator_update, kvb_coordinator_decode(in, &out), 0, say_update(&out), NO_ENCODER, )
REPLACER(streams, struct kvb_bridge_streams, kvb_bridge_streams_decode(in, &out), 0, say_streams(&out),
    kvb_bridge_streams_encode(out.bridge_id, out.streams, out.count, &buf), )
REPLACER(prompt, struct kvb_prompt_event, kvb_prompt_json_decode(in, &out), out.block_count + out.token_count, say_prompt(&out), NO_ENCODER, kvb_prompt_event_done(&out))
REPLACER(router_json, struct kvb_router_batch, kvb_router_json_decode(in, &out), out.event_count, say_batch(&out), kvb_router_json_encode(&out, 0, &buf), kvb_router_batch_done(&out))
REPLACER(router_proto, struct kvb_router_batch, kvb_router_proto_decode(in, &out), out.event_count, say_batch(&out), kvb_router_proto_encode(&out, 0, out.event_count, &buf), kvb_router_batch_done(&out))
REPLACER(engine_batch, struct kvb_event_batch, kvb_engine_batch_decode(in, &out), out.event_count, , NO_ENCODER, kvb_event_batch_done(&out))

static const struct decoder {
    const char *section; /* of tests/data/cases: accepted.txt has messages of each, refused.txt of most */
    kvb_status (*decode)(kvb_span in, struct kvb_detail *why);
    size_t ceiling;    /* in bytes; 0: the whole is bounded elsewhere */
    bool is_msgpack;   /* the cases are JSON, or hex */
    bool may_be_cut;   /* some beginnings of a message are messages too */
} decoders[] = {
    { "query", query, .ceiling = kvb_max_query_body_bytes },
    { "finished request", finished, .ceiling = kvb_max_request_report_bytes },
    { "refresh request", refresh, .ceiling = kvb_max_refresh_request_bytes, .may_be_cut = true },
    { "registration", registration, .ceiling = kvb_max_register_bytes },
    { "unregistration", unregistration, .ceiling = kvb_max_register_bytes },
    { "event sources of vllm", of_vllm, .ceiling = kvb_max_event_sources_bytes },
    { "event sources of sglang", of_sglang, .ceiling = kvb_max_event_sources_bytes },
    { "list of models", models, .ceiling = kvb_max_model_list_bytes },
    { "server info", server_info, .ceiling = kvb_max_event_sources_bytes },
    { "request of a router", indexer, .ceiling = kvb_max_indexer_bytes, .may_be_cut = true },
    { "load", load, .ceiling = 4096 },
    { "forward pass", forward_pass, .ceiling = kvb_max_load_payload_bytes, .is_msgpack = true },
    { "coordinator", coordinator, .ceiling = kvb_max_load_payload_bytes, .is_msgpack = true },
    { "line of a page", page_line, .may_be_cut = true },
    { "heartbeat", heartbeat, .ceiling = 4096, .may_be_cut = true },
    { "sync request", sync_request, .ceiling = 1024, .may_be_cut = true },
    { "sync reply", sync_reply, .ceiling = kvb_max_payload_bytes, .may_be_cut = true },
    { "streams of a bridge", streams, .ceiling = 0 },
    { "decision", decision, .ceiling = kvb_max_nats_payload_bytes },
    { "report of a router", report, .ceiling = kvb_max_nats_payload_bytes },
    { "status of an aggregator", status_of_books, .ceiling = kvb_max_nats_payload_bytes },
    { "tokenized text", tokenized, .ceiling = 0 },
    { "message of a gateway", of_gateway, .may_be_cut = true },
    { "hint of endpoints", hint, .may_be_cut = true },
    { "health check", health, .may_be_cut = true },
    { "body of a request", body, .ceiling = 0 },
    { "prompt", prompt, .ceiling = kvb_max_payload_bytes },
    { "router event", router_json, .ceiling = kvb_max_payload_bytes },
    { "stream of a router event", stream_of_event, .ceiling = 0 },
    { "router batch", router_proto, .ceiling = kvb_max_payload_bytes, .may_be_cut = true },
    { "batch of an engine", engine_batch, .ceiling = kvb_max_payload_bytes, .is_msgpack = true },
};
/* clang-format on */

static const struct decoder *now; /* that is tested */

/* JSON, or "hex" and hexadecimal digits, as MessagePack; other messages as they are. */
static struct kvb_buf bytes_of(kvb_span text, bool is_short)
{
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 20);
    if (now->is_msgpack && text.len >= 4 && memcmp(text.data, "hex ", 4) == 0) {
        char hex[1024];
        size_t len = 0;
        (void)snprintf(hex, sizeof hex, "%.*s", (int)text.len - 4, (const char *)text.data + 4);
        uint8_t *bytes = bytes_of_hex(hex, &len);
        assert_ok(kvb_buf_append(&out, bytes, len));
        free(bytes);
    } else if (now->is_msgpack) {
        char json[4096];
        (void)snprintf(json, sizeof json, "%.*s", (int)text.len, (const char *)text.data);
        (is_short ? pack_json_short : pack_json)(json, &out);
    } else {
        assert_ok(kvb_buf_append(&out, text.data, text.len));
    }
    return out;
}

/* ---- Refused ---- */

static void check_refused(kvb_span text)
{
    for (int is_short = 0; is_short <= now->is_msgpack; is_short++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf bytes = bytes_of(text, is_short);
        struct kvb_detail why = { "" };
        char answer[sizeof why.text + 32];
        const kvb_status status = now->decode(now->is_msgpack ? kvb_buf_span(&bytes) : text, &why);
        (void)snprintf(
            answer, sizeof answer, "%s%s%s", kvb_status_name(status), why.text[0] ? ": " : "",
            why.text);
        assert_answer(answer);
    }
}

static void each_refuses_what_is_listed_and_says_why(void **state)
{
    (void)state;
    for (now = decoders; now < decoders + KVB_COUNT_OF(decoders); now++) {
        each_case("refused.txt", now->section, check_refused);
    }
}

static void each_has_its_ceiling(void **state)
{
    uint8_t *blanks = malloc((size_t)kvb_max_payload_bytes + 1);

    (void)state;
    assert_non_null(blanks);
    memset(blanks, ' ', (size_t)kvb_max_payload_bytes + 1);
    for (now = decoders; now < decoders + KVB_COUNT_OF(decoders); now++) {
        if (now->ceiling > 0) {
            struct kvb_detail why = { "" };
            const kvb_span longer = { blanks, now->ceiling + 1 };
            if (now->decode(longer, &why) != KVB_TOO_LARGE) {
                fail_msg("%s", now->section);
            }
        }
    }
    free(blanks);
}

/* ---- Accepted ---- */

/* The message, and each of its beginnings in memory of exactly its size. */
static void check_accepted(kvb_span text)
{
    for (int is_short = 0; is_short <= now->is_msgpack; is_short++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf bytes = bytes_of(text, is_short);
        size_t end = bytes.len; /* of the message; blanks may follow */
        while (end > 0 && strchr(" \n", bytes.data[end - 1])) {
            end--;
        }
        for (size_t len = 0; len <= bytes.len; len++) {
            struct kvb_detail why = { "" };
            uint8_t *copy = malloc(len > 0 ? len : 1);
            assert_non_null(copy);
            if (len > 0) {
                memcpy(copy, bytes.data, len);
            }
            say_nothing();
            const kvb_status status = now->decode((kvb_span){ copy, len }, &why);
            free(copy);
            if (len == bytes.len) {
                assert_ok(status);
                assert_answer(what_was_said());
            } else if (len < end && !now->may_be_cut && status == KVB_OK) {
                fail_msg(
                    "%s: of %zu bytes %zu are taken: %s", now->section, bytes.len, len,
                    what_was_said());
            }
        }
    }
}

static void each_reads_a_whole_message_and_nothing_behind_its_end(void **state)
{
    (void)state;
    for (now = decoders; now < decoders + KVB_COUNT_OF(decoders); now++) {
        each_case("accepted.txt", now->section, check_accepted);
    }
}

/* Only this project's allocations: --wrap does not reach those inside other libraries. */
static void check_allocations(kvb_span text)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = bytes_of(text, false);
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_detail why = { "" };
        say_nothing();
        fail_alloc_after(n);
        status = now->decode(kvb_buf_span(&bytes), &why);
        fail_alloc_after(-1);
        assert_true(n < 100);
    }
    assert_ok(status);
    assert_answer(what_was_said());
}

static void each_survives_every_allocation_that_fails(void **state)
{
    (void)state;
    for (now = decoders; now < decoders + KVB_COUNT_OF(decoders); now++) {
        each_case("accepted.txt", now->section, check_allocations);
    }
}

SUITE(decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_refuses_what_is_listed_and_says_why),
        cmocka_unit_test(each_has_its_ceiling),
        cmocka_unit_test(each_reads_a_whole_message_and_nothing_behind_its_end),
        cmocka_unit_test(each_survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
