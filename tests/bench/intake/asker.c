#include "intake/asker.h"

#include "core/clock.h"
#include "core/own.h"
#include "index/block_hash.h"
#include "intake/caller.h"

#include <endian.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { askers = 4, max_samples = 1 << 20 };

/* ---- Requests ---- */

/* A MatchExternalKvPrefixRequest: the names of the prompt's blocks, packed. */
static void make_call(struct kvb_buf *out, const uint32_t tokens[fleet_query_tokens])
{
    static kvb_tokens_hash hashes[fleet_query_blocks];
    static const uint8_t head[] = { 0x0a, 0x80 | (fleet_query_blocks * 8 & 0x7f),
                                    fleet_query_blocks * 8 >> 7 };
    const struct kvb_block_shape shape = { .block_size = fleet_block_tokens };
    const kvb_span none = { 0 };
    kvb_block_hash name = { 0 };

    INTAKE_MUST(kvb_buf_append(out, head, sizeof head));
    const size_t count = kvb_tokens_hash_prompt(
        tokens, fleet_query_tokens, shape, kvb_block_seed(none, none), hashes);
    for (size_t i = 0; i < count; i++) {
        name = i == 0 ? kvb_block_hash_root(hashes[i]) : kvb_block_hash_next(name, hashes[i]);
        const uint64_t bytes = htole64(name.value);
        INTAKE_MUST(kvb_buf_append(out, &bytes, sizeof bytes));
    }
}

/* The body of POST /query and of kv_match. */
static void make_body(struct kvb_buf *out, const uint32_t tokens[fleet_query_tokens])
{
    INTAKE_MUST(kvb_buf_append_text(out, "{\"model_name\":\"" FLEET_MODEL "\",\"token_ids\":["));
    for (size_t n = 0; n < fleet_query_tokens; n++) {
        INTAKE_MUST(kvb_buf_append_format(out, "%s%u", n > 0 ? "," : "", tokens[n]));
    }
    INTAKE_MUST(kvb_buf_append_text(out, "]}"));
}

void questions_make(struct questions *questions, struct fleet *fleet)
{
    static uint32_t tokens[fleet_query_tokens];

    *questions = (struct questions){ 0 };
    for (size_t i = 0; i < question_prompts; i++) {
        struct kvb_buf *body = &questions->bodies[i];
        kvb_buf_init(body, 1U << 20U);
        kvb_buf_init(&questions->posts[i], 1U << 20U);
        kvb_buf_init(&questions->calls[i], 1U << 20U);
        fleet_query(fleet, tokens);
        make_body(body, tokens);
        web_make_post(&questions->posts[i], "/query", kvb_buf_span(body));
        make_call(&questions->calls[i], tokens);
    }
}

void questions_drop(struct questions *questions)
{
    for (size_t i = 0; i < question_prompts; i++) {
        kvb_buf_done(&questions->bodies[i]);
        kvb_buf_done(&questions->posts[i]);
        kvb_buf_done(&questions->calls[i]);
    }
}

/* ---- Senders ---- */

/* One of several senders, each with a part of the rate. */
struct asker {
    const struct asking *asking;
    uint32_t number;
    uint64_t begin_ns;
    uint64_t end_ns;
    uint32_t *samples_ns; /* owned */
    size_t count;
    uint64_t answer_bytes;
    pthread_t thread;
};

static bool is_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

static void ask_http(struct asker *asker, struct web *web, size_t i)
{
    const unsigned status = web_ask(web, kvb_buf_span(&asker->asking->questions->posts[i]));

    INTAKE_MUST(status == 200 ? KVB_OK : KVB_IO);
    asker->answer_bytes += web->text.len - web->body_at;
}

static void take_answer(void *context, const struct kvb_bus_message *message)
{
    struct asker *asker = context;

    asker->answer_bytes += message->payload.len;
}

static void ask_nats(struct asker *asker, struct kvb_bus *bus, size_t i)
{
    const kvb_span body = kvb_buf_span(&asker->asking->questions->bodies[i]);
    struct kvb_detail detail = { { 0 } };

    INTAKE_MUST(kvb_bus_request(
        bus, asker->asking->subject, body, question_timeout_ms, take_answer, asker, &detail));
}

static void ask_grpc(struct asker *asker, struct caller *caller, size_t i)
{
    const size_t bytes = caller_ask(caller, kvb_buf_span(&asker->asking->questions->calls[i]));

    INTAKE_MUST(bytes > 0 ? KVB_OK : KVB_IO);
    asker->answer_bytes += bytes;
}

/* The connection of a sender. */
struct line {
    struct kvb_bus *bus;
    struct web web;
    struct caller caller;
};

static void ask_on_line(struct asker *asker, struct line *line, size_t i)
{
    switch (asker->asking->way) {
    case ASK_HTTP:
        ask_http(asker, &line->web, i);
        break;
    case ASK_NATS:
        ask_nats(asker, line->bus, i);
        break;
    case ASK_GRPC:
        ask_grpc(asker, &line->caller, i);
        break;
    }
}

static void ask_at_rate(struct asker *asker, struct line *line)
{
    const uint64_t every_ns = KVB_NS_PER_S * askers / asker->asking->questions_a_second;
    uint64_t due_ns = asker->begin_ns + (asker->number * every_ns / askers);
    uint64_t free_ns = 0; /* since when */

    for (; due_ns < asker->end_ns && asker->count < max_samples; due_ns += every_ns) {
        const size_t i = ((asker->count * askers) + asker->number) % question_prompts;
        wait_until_ns(due_ns);
        const uint64_t from_ns = free_ns > due_ns ? due_ns : kvb_clock_monotonic_ns();
        ask_on_line(asker, line, i);
        free_ns = kvb_clock_monotonic_ns();
        asker->samples_ns[asker->count++] = (uint32_t)(free_ns - from_ns);
    }
}

static void open_line(const struct asking *asking, struct line *line)
{
    const struct scene *scene = asking->scene;
    const struct kvb_bus_options options = { .url = scene->server.url, .name = "router" };
    struct kvb_detail detail = { { 0 } };

    switch (asking->way) {
    case ASK_HTTP:
        INTAKE_MUST(web_open(&line->web, scene->port) ? KVB_OK : KVB_IO);
        break;
    case ASK_NATS:
        INTAKE_MUST(kvb_bus_open(&options, &line->bus, &detail));
        INTAKE_MUST(wait_until(is_connected, line->bus, question_timeout_ms) ? KVB_OK : KVB_IO);
        break;
    case ASK_GRPC:
        INTAKE_MUST(caller_open(&line->caller, scene->grpc_port) ? KVB_OK : KVB_IO);
        break;
    }
}

static void *ask_all(void *context)
{
    struct asker *asker = context;
    struct line line = { .web.fd = -1, .caller.fd = -1 };

    (void)prctl(PR_SET_TIMERSLACK, 1); /* else 50 us late */
    open_line(asker->asking, &line);
    ask_at_rate(asker, &line);
    web_close(&line.web);
    kvb_bus_close(line.bus);
    caller_close(&line.caller);
    return NULL;
}

static void begin_askers(const struct asking *asking, struct asker group[askers])
{
    const uint64_t begin_ns = kvb_clock_monotonic_ns() + KVB_NS_PER_S / 4;

    for (uint32_t i = 0; i < askers; i++) {
        group[i] = (struct asker){
            .asking = asking,
            .number = i,
            .begin_ns = begin_ns,
            .end_ns = begin_ns + (uint64_t)(asking->seconds * (double)KVB_NS_PER_S),
            .samples_ns = calloc(max_samples, sizeof(uint32_t)),
        };
        INTAKE_MUST(group[i].samples_ns ? KVB_OK : KVB_NO_MEMORY);
        INTAKE_MUST(
            pthread_create(&group[i].thread, NULL, ask_all, &group[i]) == 0 ? KVB_OK : KVB_IO);
    }
}

/* All samples of all askers, in one array; about in the order of their time. */
static void gather(struct asker group[askers], struct asked *out_asked)
{
    struct asked asked = { .samples_ns = calloc((size_t)askers * max_samples, sizeof(uint32_t)) };

    INTAKE_MUST(asked.samples_ns ? KVB_OK : KVB_NO_MEMORY);
    for (size_t at = 0; at < max_samples; at++) {
        for (size_t i = 0; i < askers; i++) {
            if (at < group[i].count) {
                asked.samples_ns[asked.count++] = group[i].samples_ns[at];
            }
        }
    }
    for (size_t i = 0; i < askers; i++) {
        asked.answer_bytes += (double)group[i].answer_bytes;
        free(group[i].samples_ns);
    }
    asked.answer_bytes /= asked.count > 0 ? (double)asked.count : 1;
    *out_asked = asked;
}

void ask(const struct asking *asking, struct asked *out_asked)
{
    struct asker group[askers] = { 0 };

    begin_askers(asking, group);
    for (uint32_t i = 0; i < askers; i++) {
        (void)pthread_join(group[i].thread, NULL);
    }
    gather(group, out_asked);
}

void asked_done(struct asked *asked)
{
    free(asked->samples_ns);
    *asked = (struct asked){ 0 };
}

void asked_say(struct asked *asked, const char *name)
{
    uint32_t *samples_ns = asked->samples_ns;
    char figure[64];

    (void)snprintf(figure, sizeof figure, "%s.p50", name);
    bench_figure_percentile(figure, samples_ns, asked->count, 500);
    (void)snprintf(figure, sizeof figure, "%s.p99", name);
    bench_figure_percentile(figure, samples_ns, asked->count, 990);
    bench_progress(
        "%s: p50 %.0f us, p99 %.0f us, p99.9 %.0f us, most %.0f us of %zu; an answer has %.0f "
        "bytes",
        name, bench_percentile(samples_ns, asked->count, 500) / 1e3,
        bench_percentile(samples_ns, asked->count, 990) / 1e3,
        bench_percentile(samples_ns, asked->count, 999) / 1e3,
        bench_percentile(samples_ns, asked->count, 1000) / 1e3, asked->count, asked->answer_bytes);
}
