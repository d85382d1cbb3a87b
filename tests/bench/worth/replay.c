#include "worth/replay.h"

#include "parts/bench.h"

#include <math.h>
#include <stdlib.h>

enum { load_period_us = 100000, warm_up_share = 5 };

/* ---- Events to come: a binary heap ---- */

enum event_kind { event_send, event_step_ends, event_load };

struct event {
    uint64_t at_us;
    uint64_t order; /* of equal times, the one that was added first */
    enum event_kind kind;
    uint32_t number; /* of the turn, or of the worker */
};

struct heap {
    struct event *items; /* owned */
    size_t count;
    uint64_t added;
};

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void add_event(struct heap *heap, uint64_t at_us, enum event_kind kind, uint32_t number)
{
    const struct event event = {
        .at_us = at_us, .order = heap->added++, .kind = kind, .number = number
    };
    size_t at = heap->count++;

    for (; at > 0 && is_before(&event, &heap->items[(at - 1) / 2]); at = (at - 1) / 2) {
        heap->items[at] = heap->items[(at - 1) / 2];
    }
    heap->items[at] = event;
}

static struct event take_event(struct heap *heap)
{
    const struct event first = heap->items[0];
    const struct event last = heap->items[--heap->count];
    size_t at = 0;

    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && is_before(&heap->items[child + 1], &heap->items[child])) {
            child++;
        }
        if (!is_before(&heap->items[child], &last)) {
            break;
        }
        heap->items[at] = heap->items[child];
    }
    heap->items[at] = last;
    return first;
}

/* ---- The run ---- */

struct replay {
    const struct worth_replay_options *options;
    const struct worth_workload *workload;
    struct worth_engine *engines; /* owned, by worker */
    struct worth_router *router;
    struct worth_request *requests; /* owned, by turn */
    uint32_t *chain_of;             /* owned, by turn */
    struct heap heap;
    uint64_t now_us;
    size_t next_chain; /* closed: the next to begin */
    size_t finished_count, sent_count;
    /* sums of what is measured */
    uint64_t hit_blocks, prompt_blocks;
    uint32_t *ttfts_us; /* owned */
    size_t ttft_count;
    double load_std_sum;
    size_t load_std_count;
    uint64_t measured_from_us;
    struct worth_result result;
};

static uint32_t workers_of(const struct replay *replay)
{
    return replay->options->router.workers;
}

static bool is_measured(const struct replay *replay, size_t turn)
{
    return replay->chain_of[turn] >= replay->workload->chain_count / warm_up_share;
}

static void init_requests(struct replay *replay)
{
    const struct worth_workload *workload = replay->workload;

    for (uint32_t i = 0; i < workload->chain_count; i++) {
        const struct worth_chain *chain = &workload->chains[i];
        for (uint32_t j = 0; j < chain->turn_count; j++) {
            const struct worth_turn *turn = &workload->turns[chain->turn_at + j];
            replay->chain_of[chain->turn_at + j] = i;
            replay->requests[chain->turn_at + j] = (struct worth_request){
                .tokens = workload->tokens + turn->block_at,
                .blocks = workload->blocks + turn->block_at,
                .input_tokens = turn->input_tokens,
                .output_tokens = turn->output_tokens,
            };
        }
    }
}

static void begin_next_chain(struct replay *replay, uint64_t at_us)
{
    if (replay->next_chain < replay->workload->chain_count) {
        const struct worth_chain *chain = &replay->workload->chains[replay->next_chain++];
        add_event(&replay->heap, at_us, event_send, chain->turn_at);
    }
}

/* Clients begin within a second, one after the other. */
static void begin_chains(struct replay *replay)
{
    const struct worth_replay_options *options = replay->options;
    const size_t chains = replay->workload->chain_count;
    const size_t count =
        options->loop == WORTH_CLOSED && options->clients < chains ? options->clients : chains;

    for (size_t i = 0; i < count; i++) {
        const double at = options->loop == WORTH_OPEN
                              ? replay->workload->chains[i].at * (double)options->span_us
                          : options->loop == WORTH_CLOSED ? (double)i / (double)count * 1e6
                                                          : 0;
        begin_next_chain(replay, (uint64_t)at);
    }
}

static void init_replay(struct replay *replay)
{
    const struct worth_workload *workload = replay->workload;
    const uint32_t workers = workers_of(replay);

    replay->requests = bench_memory(workload->turn_count, sizeof *replay->requests);
    replay->chain_of = bench_memory(workload->turn_count, sizeof *replay->chain_of);
    replay->ttfts_us = bench_memory(workload->turn_count, sizeof *replay->ttfts_us);
    /* A chain has one event at a time, an engine two, and the loads one. */
    replay->heap.items =
        bench_memory(workload->chain_count + 2 * (size_t)workers + 1, sizeof *replay->heap.items);
    replay->engines = bench_memory(workers, sizeof *replay->engines);
    for (uint32_t worker = 0; worker < workers; worker++) {
        worth_engine_init(&replay->engines[worker], &replay->options->rates);
    }
    replay->router = worth_router_new(&replay->options->router);
    init_requests(replay);
    add_event(&replay->heap, 0, event_load, 0);
    begin_chains(replay);
}

static void done_replay(struct replay *replay)
{
    worth_router_free(replay->router);
    for (uint32_t worker = 0; worker < workers_of(replay); worker++) {
        worth_engine_done(&replay->engines[worker]);
    }
    free(replay->engines);
    free(replay->heap.items);
    free(replay->ttfts_us);
    free(replay->chain_of);
    free(replay->requests);
}

static void begin_step(struct replay *replay, uint32_t worker)
{
    struct worth_engine *engine = &replay->engines[worker];

    if (worth_engine_begin_step(engine, replay->now_us)) {
        add_event(&replay->heap, engine->step.end_us, event_step_ends, worker);
    }
}

static void send_turn(struct replay *replay, uint32_t turn)
{
    struct worth_request *request = &replay->requests[turn];

    if (replay->measured_from_us == 0 && is_measured(replay, turn)) {
        replay->measured_from_us = replay->now_us + 1;
    }
    request->sent_us = replay->now_us;
    const uint32_t worker = worth_router_choose(replay->router, request, turn, replay->now_us);
    replay->result.checksum = bench_mix(replay->result.checksum ^ ((uint64_t)turn << 32 | worker));
    if (!worth_engine_send(&replay->engines[worker], request)) {
        bench_fail("a request of %u tokens does not fit an engine", request->input_tokens);
    }
    replay->sent_count++;
    begin_step(replay, worker);
}

static void note_first_token(struct replay *replay, const struct worth_request *request)
{
    const size_t turn = (size_t)(request - replay->requests);

    worth_router_first_token(replay->router, turn, replay->now_us);
    if (is_measured(replay, turn)) {
        const uint64_t took_us = replay->now_us - request->sent_us;
        replay->ttfts_us[replay->ttft_count++] =
            took_us < UINT32_MAX ? (uint32_t)took_us : UINT32_MAX;
        replay->hit_blocks += request->hit_blocks;
        replay->prompt_blocks += worth_prompt_blocks(request);
    }
}

static void note_finished(struct replay *replay, const struct worth_request *request)
{
    const uint32_t turn = (uint32_t)(request - replay->requests);
    const struct worth_chain *chain = &replay->workload->chains[replay->chain_of[turn]];

    worth_router_finished(replay->router, turn, replay->now_us);
    replay->finished_count++;
    if (turn + 1 < chain->turn_at + chain->turn_count) {
        const uint64_t pause_us = replay->workload->turns[turn + 1].pause_us;
        add_event(&replay->heap, replay->now_us + pause_us, event_send, turn + 1);
    } else {
        begin_next_chain(replay, replay->now_us);
    }
}

static void end_step(struct replay *replay, uint32_t worker)
{
    const struct worth_step *step = worth_engine_end_step(&replay->engines[worker]);

    for (size_t i = 0; i < step->removed_count; i++) {
        worth_router_removed(replay->router, worker, step->removed[i], replay->now_us);
    }
    for (size_t i = 0; i < step->stored_count; i++) {
        worth_router_stored(replay->router, worker, &step->stored[i], replay->now_us);
    }
    for (size_t i = 0; i < step->first_token_count; i++) {
        note_first_token(replay, step->first_tokens[i]);
    }
    for (size_t i = 0; i < step->finished_count; i++) {
        note_finished(replay, step->finished[i]);
    }
    begin_step(replay, worker);
}

static struct kvb_load load_of(const struct worth_engine *engine)
{
    const double usage = (double)worth_engine_blocks_in_use(engine) / engine->rates.pool_blocks;

    return (struct kvb_load){
        .request_active_slots = engine->running_count,
        .request_total_slots = engine->rates.slots,
        .kv_active_blocks = worth_engine_blocks_in_use(engine),
        .kv_total_blocks = engine->rates.pool_blocks,
        .num_requests_waiting = engine->waiting_count,
        .gpu_cache_usage_perc = (float)usage,
    };
}

/* Only while requests are still to be sent: a fleet that runs empty is balanced whatever was
 * decided. */
static void note_loads(struct replay *replay)
{
    const uint32_t workers = workers_of(replay);
    double sum = 0;
    double squares = 0;

    for (uint32_t worker = 0; worker < workers; worker++) {
        const struct kvb_load load = load_of(&replay->engines[worker]);
        worth_router_load(replay->router, worker, &load, replay->now_us);
        sum += load.gpu_cache_usage_perc;
        squares += (double)load.gpu_cache_usage_perc * load.gpu_cache_usage_perc;
    }
    if (replay->measured_from_us > 0 && replay->sent_count < replay->workload->turn_count) {
        const double mean = sum / workers;
        replay->load_std_sum += sqrt(fmax(0, (squares - mean * sum) / fmax(1, workers - 1.0)));
        replay->load_std_count++;
    }
    add_event(&replay->heap, replay->now_us + load_period_us, event_load, 0);
}

static void take_turn(struct replay *replay)
{
    const struct event event = take_event(&replay->heap);

    replay->now_us = event.at_us;
    switch (event.kind) {
    case event_send:
        send_turn(replay, event.number);
        break;
    case event_step_ends:
        end_step(replay, event.number);
        break;
    case event_load:
        note_loads(replay);
        break;
    }
}

static struct worth_result result_of(struct replay *replay)
{
    struct worth_result result = replay->result;
    const double measured_us = (double)(replay->now_us - replay->measured_from_us);

    result.hit_rate =
        replay->prompt_blocks ? (double)replay->hit_blocks / (double)replay->prompt_blocks : 0;
    result.ttft_p50_ms = bench_percentile(replay->ttfts_us, replay->ttft_count, 500) / 1e3;
    result.ttft_p99_ms = bench_percentile(replay->ttfts_us, replay->ttft_count, 990) / 1e3;
    result.load_std =
        replay->load_std_count ? replay->load_std_sum / (double)replay->load_std_count : 0;
    result.requests_per_s = measured_us > 0 ? (double)replay->ttft_count / measured_us * 1e6 : 0;
    for (uint32_t worker = 0; worker < workers_of(replay); worker++) {
        result.busy_us += replay->engines[worker].busy_us;
    }
    return result;
}

struct worth_result worth_replay(const struct worth_replay_options *options)
{
    struct replay replay = { .options = options, .workload = options->workload };

    init_replay(&replay);
    while (replay.finished_count < replay.workload->turn_count) {
        take_turn(&replay);
    }
    const struct worth_result result = result_of(&replay);
    done_replay(&replay);
    return result;
}
