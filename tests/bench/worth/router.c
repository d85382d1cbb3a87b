#include "worth/router.h"

#include "core/limits.h"
#include "core/random.h"
#include "index/index.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "load/tracker.h"
#include "parts/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ns_per_us = 1000, max_in_flight = 1 << 16, ttl_ms = 3600000 };

enum message_kind { message_stored, message_removed, message_load };

struct message {
    uint64_t due_us;
    uint32_t worker;
    enum message_kind kind;
    union {
        struct worth_stored stored;
        kvb_block_hash removed;
        struct kvb_load load;
    };
};

/* Messages on their way, in the order in which they were sent: all take the same time. */
struct messages {
    struct message *items; /* owned */
    size_t first, end, capacity;
};

struct worth_router {
    struct worth_router_options options;
    struct kvb_route_options route;
    struct kvb_prefix_index *index;
    struct kvb_match match;
    struct kvb_load_tracker *tracker;
    struct kvb_requests *requests;
    struct kvb_predictions *predictions;
    struct messages messages;
    struct kvb_stream_id *ids; /* by worker, as the others */
    struct kvb_stream_key *keys;
    kvb_slot_ref *slots;
    uint32_t *worker_of; /* by slot */
    struct kvb_route_candidate *candidates;
    uint64_t decisions;
    uint64_t *last_turns; /* by worker */
    uint64_t losses;      /* of events: its own sequence, so that policies lose the same share */
};

struct worth_router *worth_router_new(const struct worth_router_options *options)
{
    const uint32_t workers = options->workers;
    struct worth_router *router = bench_memory(1, sizeof *router);

    router->options = *options;
    router->route = (struct kvb_route_options){ .policy = options->policy,
                                                .overlap_weight = options->overlap_weight };
    router->losses = ~options->seed;
    router->ids = bench_memory(workers, sizeof *router->ids);
    router->keys = bench_memory(workers, sizeof *router->keys);
    router->slots = bench_memory(workers, sizeof *router->slots);
    router->worker_of = bench_memory(workers, sizeof *router->worker_of);
    router->candidates = bench_memory(workers, sizeof *router->candidates);
    router->last_turns = bench_memory(workers, sizeof *router->last_turns);
    const struct kvb_prefix_index_options index = { .max_nodes = 1 << 24, .max_slots = workers };
    bench_must(kvb_prefix_index_new(&index, &router->index), "an index");
    const struct kvb_load_options load = { .max_endpoints = workers,
                                           .expire_ms = ttl_ms,
                                           .forget_ms = ttl_ms };
    bench_must(kvb_load_tracker_new(&load, &router->tracker), "a load tracker");
    const struct kvb_requests_options requests = { .max_requests = max_in_flight,
                                                   .max_streams = workers };
    bench_must(kvb_requests_new(&requests, &router->requests), "the requests in flight");
    const struct kvb_predictions_options predictions = {
        .max_blocks = kvb_max_predicted_blocks,
        .max_streams = workers,
        .ttl_ns = options->predict_ms * 1000 * ns_per_us,
    };
    bench_must(kvb_predictions_new(&predictions, &router->predictions), "predicted blocks");
    for (uint32_t worker = 0; worker < workers; worker++) {
        router->ids[worker] =
            (struct kvb_stream_id){ .name_space = "n", .component = "c", .worker_id = worker + 1 };
        router->keys[worker] = kvb_stream_key_of(&router->ids[worker], 0);
        bench_must(kvb_prefix_index_slot_new(router->index, &router->slots[worker]), "a slot");
        router->worker_of[router->slots[worker].value] = worker;
    }
    return router;
}

void worth_router_free(struct worth_router *router)
{
    kvb_predictions_free(router->predictions);
    kvb_requests_free(router->requests);
    kvb_load_tracker_free(router->tracker);
    kvb_match_done(&router->match);
    kvb_prefix_index_free(router->index);
    free(router->messages.items);
    free(router->candidates);
    free(router->last_turns);
    free(router->worker_of);
    free(router->slots);
    free(router->ids);
    free(router->keys);
    free(router);
}

/* ---- What arrives ---- */

static void apply_stored(struct worth_router *router, const struct message *message)
{
    const struct worth_stored *stored = &message->stored;
    const kvb_block_hash *blocks = stored->request->blocks + stored->first;
    struct kvb_index_run run = {
        .has_parent = stored->first > 0,
        .blocks = blocks,
        .tokens = stored->request->tokens + stored->first,
        .count = stored->count,
    };

    if (run.has_parent) {
        run.parent = blocks[-1];
    }
    bench_must(
        kvb_prefix_index_store(router->index, router->slots[message->worker], &run, NULL),
        "storing");
    kvb_predictions_stored(
        router->predictions, &router->ids[message->worker], blocks, stored->count);
}

static void apply_load(struct worth_router *router, const struct message *message)
{
    const struct kvb_stream_id *id = &router->ids[message->worker];
    const struct kvb_load_report report = { .worker_id = id->worker_id, .load = message->load };
    const uint64_t now_ns = message->due_us * ns_per_us;

    bench_must(kvb_load_tracker_report(router->tracker, id, &report, now_ns), "a load");
    kvb_requests_load_reported(router->requests, id, now_ns);
}

static void apply(struct worth_router *router, const struct message *message)
{
    switch (message->kind) {
    case message_stored:
        apply_stored(router, message);
        break;
    case message_removed:
        bench_must(
            kvb_prefix_index_remove(
                router->index, router->slots[message->worker], &message->removed, 1, NULL),
            "removing");
        break;
    case message_load:
        apply_load(router, message);
        break;
    }
}

static void receive(struct worth_router *router, uint64_t now_us)
{
    struct messages *messages = &router->messages;

    while (messages->first < messages->end && messages->items[messages->first].due_us <= now_us) {
        apply(router, &messages->items[messages->first++]);
    }
    if (messages->first == messages->end) {
        messages->first = messages->end = 0;
    }
}

static void make_room(struct messages *messages)
{
    if (messages->end < messages->capacity) {
        return;
    }
    if (messages->first > messages->capacity / 2) {
        messages->end -= messages->first;
        memmove(
            messages->items, messages->items + messages->first,
            messages->end * sizeof *messages->items);
        messages->first = 0;
        return;
    }
    const size_t capacity = messages->capacity ? messages->capacity * 2 : 1024;
    struct message *grown = realloc(messages->items, capacity * sizeof *grown);
    if (!grown) {
        bench_fail("no memory for messages");
    }
    messages->items = grown;
    messages->capacity = capacity;
}

static void send(struct worth_router *router, struct message message, uint64_t now_us)
{
    struct messages *messages = &router->messages;

    if (message.kind != message_load &&
        kvb_random_chance(&router->losses, router->options.picture.lost_events)) {
        return;
    }
    receive(router, now_us);
    make_room(messages);
    message.due_us = now_us + router->options.picture.delay_us;
    messages->items[messages->end++] = message;
    receive(router, now_us);
}

void worth_router_stored(
    struct worth_router *router, uint32_t worker, const struct worth_stored *stored,
    uint64_t now_us)
{
    send(
        router, (struct message){ .worker = worker, .kind = message_stored, .stored = *stored },
        now_us);
}

void worth_router_removed(
    struct worth_router *router, uint32_t worker, kvb_block_hash block, uint64_t now_us)
{
    send(
        router, (struct message){ .worker = worker, .kind = message_removed, .removed = block },
        now_us);
}

void worth_router_load(
    struct worth_router *router, uint32_t worker, const struct kvb_load *load, uint64_t now_us)
{
    send(router, (struct message){ .worker = worker, .kind = message_load, .load = *load }, now_us);
}

/* ---- A decision ---- */

static void note_depth(void *context, kvb_slot_ref slot, uint32_t depth)
{
    struct worth_router *router = context;

    router->candidates[router->worker_of[slot.value]].overlap_blocks = depth;
}

static void fill_candidate(
    struct worth_router *router, uint32_t worker, const struct worth_request *request,
    uint64_t now_ns)
{
    struct kvb_route_candidate *candidate = &router->candidates[worker];
    const struct kvb_load_endpoint *endpoint =
        kvb_load_tracker_find_key(router->tracker, &router->keys[worker]);
    struct kvb_request_sums sums = { 0 };

    kvb_requests_sums(router->requests, &router->keys[worker], endpoint != NULL, now_ns, &sums);
    if (endpoint) {
        candidate->has_load = true;
        candidate->load = endpoint->load;
    }
    candidate->routed_blocks = endpoint ? sums.routed_blocks : sums.in_flight_blocks;
    candidate->routed_requests = endpoint ? sums.routed_requests : sums.in_flight;
    candidate->ended_blocks = sums.ended_blocks;
    candidate->ended_requests = sums.ended_requests;
    candidate->pending_prefill_blocks = sums.pending_prefill_blocks;
    candidate->prefill_blocks_per_s = sums.prefill_blocks_per_s;
    candidate->predicted_blocks = kvb_predictions_beyond(
        router->predictions, &router->keys[worker], request->blocks, worth_prompt_blocks(request),
        candidate->overlap_blocks, now_ns);
}

static void
fill_candidates(struct worth_router *router, const struct worth_request *request, uint64_t now_ns)
{
    const uint32_t prompt_blocks = worth_prompt_blocks(request);

    for (uint32_t worker = 0; worker < router->options.workers; worker++) {
        router->candidates[worker] = (struct kvb_route_candidate){
            .key = &router->keys[worker],
            .state = KVB_STREAM_EXACT,
            .place = worker,
            .last_turn = router->last_turns[worker],
            .request_blocks = prompt_blocks,
        };
    }
    bench_must(
        kvb_prefix_index_match(router->index, request->tokens, prompt_blocks, &router->match),
        "a query");
    kvb_match_each(&router->match, note_depth, router);
    for (uint32_t worker = 0; worker < router->options.workers; worker++) {
        fill_candidate(router, worker, request, now_ns);
    }
}

static void name_request(char name[32], size_t number)
{
    (void)snprintf(name, 32, "r%zu", number);
}

static void note_decision(
    struct worth_router *router, const struct worth_request *request, size_t number,
    uint32_t worker, uint64_t now_ns)
{
    const struct kvb_route_candidate *chosen = &router->candidates[worker];
    const uint64_t held = chosen->overlap_blocks;
    char name[32];

    name_request(name, number);
    const struct kvb_request_decision decision = {
        .request_id = name,
        .id = chosen->key->id,
        .blocks = chosen->request_blocks,
        .prefill_blocks = kvb_route_prefill_blocks(chosen),
        .ttl_ms = ttl_ms,
    };
    bench_must(kvb_requests_add(router->requests, &decision, now_ns), "a decision");
    if (held < chosen->request_blocks) {
        bench_must(
            kvb_predictions_add(
                router->predictions, chosen->key->id, request->blocks + held,
                chosen->request_blocks - held, now_ns),
            "a prediction");
    }
}

uint32_t worth_router_choose(
    struct worth_router *router, const struct worth_request *request, size_t number,
    uint64_t now_us)
{
    const uint64_t now_ns = now_us * ns_per_us;
    size_t chosen = 0;

    receive(router, now_us);
    (void)kvb_predictions_expire(router->predictions, now_ns, SIZE_MAX);
    (void)kvb_requests_expire(router->requests, now_ns, SIZE_MAX);
    fill_candidates(router, request, now_ns);
    /* without a temperature nothing is drawn */
    bench_must(
        kvb_route_choose(&router->route, 0, router->candidates, router->options.workers, &chosen),
        "a route");
    router->decisions++;
    if (router->candidates[chosen].is_turn) {
        router->last_turns[chosen] = router->decisions;
    }
    note_decision(router, request, number, (uint32_t)chosen, now_ns);
    return (uint32_t)chosen;
}

void worth_router_first_token(struct worth_router *router, size_t number, uint64_t now_us)
{
    char name[32];

    name_request(name, number);
    (void)kvb_requests_first_token(router->requests, name, now_us * ns_per_us);
}

void worth_router_finished(struct worth_router *router, size_t number, uint64_t now_us)
{
    char name[32];

    name_request(name, number);
    (void)kvb_requests_finish(router->requests, name, now_us * ns_per_us);
}
