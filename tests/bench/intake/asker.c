#include "intake/asker.h"

#include "bus/bus.h"
#include "core/clock.h"
#include "index/block_hash.h"
#include "intake/bridges.h"
#include "intake/web.h"
#include "parts/bench.h"

#include <endian.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>

enum { askers = 4, max_samples = 1 << 20, answer_ms = 5000, in_flight = 32 };

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

    BENCH_MUST(kvb_buf_append(out, head, sizeof head));
    const size_t count = kvb_tokens_hash_prompt(
        tokens, fleet_query_tokens, shape, kvb_block_seed(none, none), hashes);
    for (size_t i = 0; i < count; i++) {
        name = i == 0 ? kvb_block_hash_root(hashes[i]) : kvb_block_hash_next(name, hashes[i]);
        const uint64_t bytes = htole64(name.value);
        BENCH_MUST(kvb_buf_append(out, &bytes, sizeof bytes));
    }
}

/* The body of POST /query and of kv_match. */
static void make_body(struct kvb_buf *out, const uint32_t tokens[fleet_query_tokens])
{
    BENCH_MUST(kvb_buf_append_text(out, "{\"model_name\":\"" FLEET_MODEL "\",\"token_ids\":["));
    for (size_t n = 0; n < fleet_query_tokens; n++) {
        BENCH_MUST(kvb_buf_append_format(out, "%s%u", n > 0 ? "," : "", tokens[n]));
    }
    BENCH_MUST(kvb_buf_append_text(out, "]}"));
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
        web_make_query(&questions->posts[i], kvb_buf_span(body));
        make_call(&questions->calls[i], tokens);
    }
}

/* ---- At a rate ---- */

/* One of several senders, each with a part of the rate. */
struct asker {
    const struct asking *asking;
    uint64_t questions_a_second; /* of all */
    uint32_t number;
    uint64_t begin_ns;
    uint64_t end_ns;
    uint32_t *samples_ns; /* owned */
    size_t count;
    uint64_t answer_bytes;
    pthread_t thread;
    /* its connection */
    struct kvb_bus *bus;
    struct web web;
    struct caller caller;
};

static void take_answer(void *context, const struct kvb_bus_message *message)
{
    struct asker *asker = context;

    asker->answer_bytes += message->payload.len;
}

static void ask(struct asker *asker, size_t i)
{
    const struct questions *questions = asker->asking->questions;
    struct kvb_detail detail = { { 0 } };

    switch (asker->asking->way) {
    case ASK_HTTP:
        web_send(&asker->web, kvb_buf_span(&questions->posts[i]));
        while (!web_read(&asker->web)) {
        }
        asker->answer_bytes += asker->web.text.len - asker->web.body_at;
        break;
    case ASK_NATS:
        BENCH_MUST(kvb_bus_request(
            asker->bus, asker->asking->subject, kvb_buf_span(&questions->bodies[i]), answer_ms,
            take_answer, asker, &detail));
        break;
    case ASK_GRPC: {
        const size_t bytes = caller_ask(&asker->caller, kvb_buf_span(&questions->calls[i]));
        BENCH_MUST_BE(bytes > 0);
        asker->answer_bytes += bytes;
        break;
    }
    }
}

static void *ask_all(void *context)
{
    struct asker *asker = context;
    const struct asking *asking = asker->asking;
    const uint64_t every_ns = KVB_NS_PER_S * askers / asker->questions_a_second;
    uint64_t due_ns = asker->begin_ns + (asker->number * every_ns / askers);
    uint64_t free_ns = 0; /* since when */

    (void)prctl(PR_SET_TIMERSLACK, 1); /* else 50 us late */
    asker->web.fd = asker->caller.fd = -1;
    if (asking->way == ASK_NATS) {
        asker->bus = connect_to_nats(asking->url, "router", false);
    } else if (asking->way == ASK_HTTP) {
        BENCH_MUST_BE(web_open(&asker->web, asking->port));
    } else {
        BENCH_MUST_BE(caller_open(&asker->caller, asking->port));
    }
    for (; due_ns < asker->end_ns && asker->count < max_samples; due_ns += every_ns) {
        const size_t i = ((asker->count * askers) + asker->number) % question_prompts;
        wait_until_ns(due_ns);
        const uint64_t from_ns = free_ns > due_ns ? due_ns : kvb_clock_monotonic_ns();
        ask(asker, i);
        free_ns = kvb_clock_monotonic_ns();
        asker->samples_ns[asker->count++] = (uint32_t)(free_ns - from_ns);
    }
    web_close(&asker->web);
    kvb_bus_close(asker->bus);
    caller_close(&asker->caller);
    return NULL;
}

/* All samples of all askers, in one array; about in the order of their time. */
static struct asked gather(struct asker group[askers])
{
    struct asked asked = { .samples_ns =
                               bench_memory((size_t)askers * max_samples, sizeof(uint32_t)) };

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
    return asked;
}

struct asked ask_at_rate(const struct asking *asking, uint64_t questions_a_second)
{
    const uint64_t begin_ns = kvb_clock_monotonic_ns() + KVB_NS_PER_S / 4;
    static struct asker group[askers];

    for (uint32_t i = 0; i < askers; i++) {
        group[i] = (struct asker){
            .asking = asking,
            .questions_a_second = questions_a_second,
            .number = i,
            .begin_ns = begin_ns,
            .end_ns = begin_ns + (uint64_t)(asking->seconds * (double)KVB_NS_PER_S),
            .samples_ns = bench_memory(max_samples, sizeof(uint32_t)),
        };
        BENCH_MUST_BE(pthread_create(&group[i].thread, NULL, ask_all, &group[i]) == 0);
    }
    for (uint32_t i = 0; i < askers; i++) {
        (void)pthread_join(group[i].thread, NULL);
    }
    return gather(group);
}

/* ---- As fast as they are answered ---- */

struct load {
    const struct asking *asking;
    uint64_t end_ns;
    _Atomic uint64_t asked;
    _Atomic unsigned under_way;
    struct kvb_bus *bus; /* over NATS */
};

static bool is_over(const struct load *load)
{
    return kvb_clock_monotonic_ns() >= load->end_ns;
}

static size_t next_question(struct load *load)
{
    load->under_way++;
    return load->asked++ % question_prompts;
}

static void load_http(struct load *load)
{
    static struct web lines[in_flight]; /* one request under way on each */
    struct pollfd fds[in_flight];

    for (size_t i = 0; i < in_flight; i++) {
        BENCH_MUST_BE(web_open(&lines[i], load->asking->port));
        fds[i] = (struct pollfd){ .fd = lines[i].fd, .events = POLLIN };
        web_send(&lines[i], kvb_buf_span(&load->asking->questions->posts[next_question(load)]));
    }
    while (load->under_way > 0) { /* terminates: each answer arrives, or the program fails */
        BENCH_MUST_BE(poll(fds, in_flight, answer_ms) > 0);
        for (size_t i = 0; i < in_flight; i++) {
            if (!fds[i].revents || !web_read(&lines[i])) {
                continue;
            }
            load->under_way--;
            if (is_over(load)) {
                fds[i].fd = -1;
            } else {
                web_send(
                    &lines[i], kvb_buf_span(&load->asking->questions->posts[next_question(load)]));
            }
        }
    }
    for (size_t i = 0; i < in_flight; i++) {
        web_close(&lines[i]);
    }
}

#define ANSWERS "bench.rate.answers"

static void ask_over_nats(struct load *load)
{
    const kvb_span body = kvb_buf_span(&load->asking->questions->bodies[next_question(load)]);

    BENCH_MUST(kvb_bus_publish_request(load->bus, load->asking->subject, ANSWERS, body));
}

static void take_rate_answer(void *context, const struct kvb_bus_message *message)
{
    struct load *load = context;

    BENCH_MUST_BE(message->payload.len > 0);
    load->under_way--;
    if (!is_over(load)) {
        ask_over_nats(load);
    }
    if (kvb_bus_waiting(message) == 0) {
        kvb_bus_write(load->bus);
    }
}

static void load_nats(struct load *load)
{
    struct kvb_bus_subscription *answers = NULL;

    load->bus = connect_to_nats(load->asking->url, "router", false);
    BENCH_MUST(kvb_bus_subscribe(load->bus, ANSWERS, take_rate_answer, load, &answers));
    BENCH_MUST(kvb_bus_flush(load->bus, answer_ms)); /* now it is subscribed */
    for (size_t i = 0; i < in_flight; i++) {
        ask_over_nats(load);
    }
    kvb_bus_write(load->bus);
    while (!is_over(load) || load->under_way > 0) {
        wait_until_ns(kvb_clock_monotonic_ns() + 2 * KVB_NS_PER_MS);
        BENCH_MUST_BE(kvb_clock_monotonic_ns() < load->end_ns + answer_ms * KVB_NS_PER_MS);
    }
    kvb_bus_unsubscribe(answers);
    kvb_bus_close(load->bus);
}

uint64_t ask_at_most(const struct asking *asking)
{
    struct load load = { .asking = asking,
                         .end_ns = kvb_clock_monotonic_ns() +
                                   (uint64_t)(asking->seconds * (double)KVB_NS_PER_S) };

    (asking->way == ASK_HTTP ? load_http : load_nats)(&load);
    return load.asked;
}
