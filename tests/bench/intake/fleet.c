#include "intake/fleet.h"

#include "core/array.h"
#include "core/limits.h"
#include "index/block_hash.h"
#include "parts/bench.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { chunk_blocks = 4096, max_round_bytes = 1 << 30 };

static uint32_t draw(struct fleet *fleet, uint32_t below)
{
    return (uint32_t)(bench_random(&fleet->random) >> 33U) % below;
}

void fleet_init(struct fleet *fleet, const struct fleet_options *options)
{
    *fleet = (struct fleet){ .options = *options, .random = 1 };
    fleet->workers = bench_memory(options->workers, sizeof *fleet->workers);
    for (uint32_t i = 0; i < options->workers; i++) {
        fleet->workers[i].prompts = bench_memory(options->held, sizeof(uint32_t));
    }
}

void fleet_done(struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->options.workers; i++) {
        free(fleet->workers[i].prompts);
    }
    free(fleet->workers);
    kvb_router_batch_done(&fleet->batch);
    *fleet = (struct fleet){ 0 };
}

void fleet_round_init(struct fleet_round *round)
{
    *round = (struct fleet_round){ 0 };
    kvb_buf_init(&round->bytes, max_round_bytes);
}

void fleet_round_done(struct fleet_round *round)
{
    kvb_buf_done(&round->bytes);
    free(round->ends);
    *round = (struct fleet_round){ 0 };
}

kvb_span fleet_message(const struct fleet_round *round, size_t at)
{
    const size_t begin = at > 0 ? round->ends[at - 1] : 0;

    return (kvb_span){ .data = round->bytes.data + begin, .len = round->ends[at] - begin };
}

/* ---- Prompts ---- */

static uint32_t group_of(uint32_t prompt)
{
    return prompt % fleet_max_groups;
}

static uint32_t decoded_of(const struct fleet *fleet, uint32_t prompt)
{
    return (uint32_t)(bench_mix(prompt) % (fleet->options.decoded + 1));
}

/* Of a block: those of prefixes are the group's, all others the prompt's. */
static void tokens_of(uint32_t prompt, uint32_t block, uint32_t tokens[fleet_block_tokens])
{
    const bool is_shared = block < fleet_prefix_blocks;
    const uint64_t owner = is_shared ? group_of(prompt) : (UINT64_C(1) << 32U) + prompt;
    uint64_t state = bench_mix((owner ^ (uint64_t)block << 40U) + 1);

    for (uint32_t i = 0; i < fleet_block_tokens; i += 2) {
        state = bench_mix(state + i + 1);
        tokens[i] = (uint32_t)state % fleet_max_token;
        tokens[i + 1] = (uint32_t)(state >> 32U) % fleet_max_token;
    }
}

/* All blocks of a prompt, by their canonical names. */
struct chain {
    kvb_tokens_hash tokens[fleet_query_blocks + fleet_max_decoded];
    kvb_block_hash blocks[fleet_query_blocks + fleet_max_decoded];
    uint32_t count;
};

static void make_chain(const struct fleet *fleet, uint32_t prompt, struct chain *chain)
{
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, (kvb_span){ 0 });

    chain->count = fleet_query_blocks + decoded_of(fleet, prompt);
    for (uint32_t i = 0; i < chain->count; i++) {
        uint32_t tokens[fleet_block_tokens];
        tokens_of(prompt, i, tokens);
        chain->tokens[i] = kvb_tokens_hash_of(tokens, fleet_block_tokens, NULL, 0, seed);
        chain->blocks[i] = i == 0 ? kvb_block_hash_root(chain->tokens[i])
                                  : kvb_block_hash_next(chain->blocks[i - 1], chain->tokens[i]);
    }
}

/* ---- Events ---- */

static struct kvb_digest_key key_of(uint32_t worker)
{
    return (struct kvb_digest_key){ .worker_id = worker, .seed = fleet_digest_seed };
}

static void add_stored(
    struct kvb_router_batch *batch, const struct kvb_router_event *event, const struct chain *chain,
    uint32_t from, uint32_t to)
{
    BENCH_MUST(kvb_router_batch_add_event(batch, event));
    for (uint32_t i = from; i < to; i++) {
        BENCH_MUST(kvb_router_batch_add_block(batch, chain->blocks[i], chain->tokens[i]));
    }
}

/* The expected state. */
static void note_stored(
    struct fleet *fleet, uint32_t number, const struct chain *chain, uint32_t from, uint32_t to)
{
    struct fleet_worker *worker = &fleet->workers[number];
    const struct kvb_digest_key key = key_of(number);

    for (uint32_t i = from; i < to; i++) {
        kvb_digest_add(&worker->digest, &key, KVB_TIER_DEVICE, chain->blocks[i]);
    }
    worker->blocks += to - from;
}

static void publish_stored(
    struct fleet *fleet, uint32_t number, const struct chain *chain, uint32_t from, uint32_t to)
{
    const struct kvb_router_event event = {
        .kind = KVB_ROUTER_STORED,
        .event_id = ++fleet->workers[number].last_id,
        .has_parent = from > 0,
        .parent = from > 0 ? chain->blocks[from - 1] : (kvb_block_hash){ 0 },
    };

    note_stored(fleet, number, chain, from, to);
    add_stored(&fleet->batch, &event, chain, from, to);
}

static void publish_removed(struct fleet *fleet, uint32_t number, const struct chain *chain)
{
    struct fleet_worker *worker = &fleet->workers[number];
    const struct kvb_digest_key key = key_of(number);
    const struct kvb_router_event event = { .kind = KVB_ROUTER_REMOVED,
                                            .event_id = ++worker->last_id };

    BENCH_MUST(kvb_router_batch_add_event(&fleet->batch, &event));
    for (uint32_t i = chain->count; i-- > fleet_prefix_blocks;) {
        kvb_digest_subtract(&worker->digest, &key, KVB_TIER_DEVICE, chain->blocks[i]);
        BENCH_MUST(
            kvb_router_batch_add_block(&fleet->batch, chain->blocks[i], (kvb_tokens_hash){ 0 }));
    }
    worker->blocks -= chain->count - fleet_prefix_blocks;
}

static bool holds(const struct fleet *fleet, const struct fleet_worker *worker, uint32_t prompt)
{
    for (uint32_t i = 0; i < worker->count; i++) {
        if (worker->prompts[(worker->oldest + i) % fleet->options.held] == prompt) {
            return true;
        }
    }
    return false;
}

static void
publish_prompt(struct fleet *fleet, uint32_t number, uint32_t prompt, const struct chain *chain)
{
    struct fleet_worker *worker = &fleet->workers[number];
    const uint64_t group = UINT64_C(1) << group_of(prompt);

    if (!(worker->groups & group)) {
        worker->groups |= group;
        publish_stored(fleet, number, chain, 0, fleet_prefix_blocks);
    }
    publish_stored(fleet, number, chain, fleet_prefix_blocks, fleet_query_blocks);
    for (uint32_t i = fleet_query_blocks; i < chain->count; i++) {
        publish_stored(fleet, number, chain, i, i + 1);
    }
    worker->prompts[(worker->oldest + worker->count++) % fleet->options.held] = prompt;
}

/* A random prompt of one of the worker's groups. */
static uint32_t draw_prompt(struct fleet *fleet, uint32_t number)
{
    const uint32_t prompt = draw(fleet, fleet->options.pool);
    const uint32_t group = (number + draw(fleet, fleet->options.groups)) % fleet_max_groups;

    return prompt - group_of(prompt) + group;
}

/* Removes the oldest prompt if the maximum is held, then adds one. */
static void publish_next(struct fleet *fleet, uint32_t number)
{
    struct fleet_worker *worker = &fleet->workers[number];
    struct chain chain;
    uint32_t prompt = draw_prompt(fleet, number);

    if (worker->count == fleet->options.held) {
        make_chain(fleet, worker->prompts[worker->oldest], &chain);
        publish_removed(fleet, number, &chain);
        worker->oldest = (worker->oldest + 1) % fleet->options.held;
        worker->count--;
    }
    while (holds(fleet, worker, prompt)) {
        prompt = draw_prompt(fleet, number);
    }
    make_chain(fleet, prompt, &chain);
    publish_prompt(fleet, number, prompt, &chain);
}

/* ---- Messages ---- */

static void begin_batch(struct fleet *fleet, uint32_t worker)
{
    kvb_router_batch_reset(&fleet->batch);
    fleet->batch.worker_id = worker;
    fleet->batch.has_epoch = true;
    fleet->batch.epoch = (kvb_epoch){ { 1, (uint8_t)worker, (uint8_t)(worker >> 8U) } };
}

static void make_message(struct fleet *fleet, uint32_t number, uint64_t blocks)
{
    begin_batch(fleet, number);
    if (fleet->workers[number].last_id == 0) {
        const struct kvb_router_event cleared = {
            .kind = KVB_ROUTER_CLEARED,
            .event_id = ++fleet->workers[number].last_id,
        };
        BENCH_MUST(kvb_router_batch_add_event(&fleet->batch, &cleared));
    }
    while (fleet->batch.block_count < fleet_message_blocks && fleet->batch.block_count < blocks) {
        publish_next(fleet, number);
    }
}

/* The batch, in one message or in several. */
static void add_messages(struct fleet *fleet, struct fleet_round *round)
{
    const size_t events = fleet->batch.event_count;
    const size_t max = fleet->options.message_events > 0 ? fleet->options.message_events : events;

    for (size_t at = 0; at < events; at += max) {
        const size_t count = events - at < max ? events - at : max;
        BENCH_MUST(kvb_array_reserve(
            &round->ends, &round->capacity, round->count + 1, sizeof *round->ends, 1U << 24U));
        BENCH_MUST(kvb_router_proto_encode(&fleet->batch, at, count, &round->bytes));
        round->ends[round->count++] = round->bytes.len;
    }
    round->blocks += fleet->batch.block_count;
    round->events += events;
}

void fleet_make(struct fleet *fleet, uint64_t blocks, struct fleet_round *round)
{
    kvb_buf_reset(&round->bytes);
    round->count = 0;
    round->blocks = 0;
    round->events = 0;
    while (round->blocks < blocks) {
        const uint32_t worker = fleet->next_worker;
        make_message(fleet, worker, blocks);
        add_messages(fleet, round);
        fleet->next_worker = (worker + 1) % fleet->options.workers;
    }
}

/* ---- Heartbeats and answers of bridges ---- */

void fleet_heartbeat(
    const struct fleet *fleet, uint32_t worker, struct kvb_heartbeat *out_heartbeat)
{
    const struct fleet_worker *here = &fleet->workers[worker];

    *out_heartbeat = (struct kvb_heartbeat){
        .worker_id = worker,
        .epoch = { { 1, (uint8_t)worker, (uint8_t)(worker >> 8U) } },
        .epoch_first_id = 1,
        .last_id = here->last_id,
        .state = KVB_STREAM_EXACT,
        .hashes = KVB_HASHES_CANONICAL,
        .formats = 1U << KVB_FORMAT_PROTOBUF,
        .model = FLEET_MODEL,
        .block_size = fleet_block_tokens,
        .digest_seed = fleet_digest_seed,
        .tiers = { [KVB_TIER_DEVICE] = { .blocks = here->blocks, .digest = here->digest.total } },
    };
    if (fleet->has_addresses) {
        out_heartbeat->hashes = KVB_HASHES_ENGINE;
        (void)snprintf(
            out_heartbeat->facts.address, sizeof out_heartbeat->facts.address,
            "http://10.%u.%u.1:30000", worker >> 8U, worker & 0xffU);
    }
}

void fleet_list_chunk(
    struct fleet *fleet, uint32_t worker, uint32_t chunk, uint32_t *prompt, struct kvb_buf *out)
{
    const uint32_t held = fleet->options.held;
    struct kvb_sync_reply reply = { .answer = KVB_SYNC_BLOCKS,
                                    .worker_id = worker,
                                    .chunk = chunk,
                                    .barrier_id = 1,
                                    .last_id = 1,
                                    .digest_seed = fleet_digest_seed,
                                    .events = &fleet->batch };

    begin_batch(fleet, worker);
    reply.epoch = fleet->batch.epoch;
    for (; *prompt < held && fleet->batch.block_count < chunk_blocks; ++*prompt) {
        const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                                .event_id = fleet->batch.event_count + 1 };
        struct chain chain;
        make_chain(fleet, (worker * held) + *prompt, &chain);
        note_stored(fleet, worker, &chain, fleet_prefix_blocks, chain.count);
        add_stored(&fleet->batch, &event, &chain, fleet_prefix_blocks, chain.count);
    }
    fleet->workers[worker].last_id = 1;
    reply.is_last = *prompt == held;
    BENCH_MUST(kvb_sync_reply_encode(&reply, out));
}

static void list_prefixes(struct fleet *fleet, uint32_t number, struct chain *chain)
{
    const struct kvb_router_event root = { .kind = KVB_ROUTER_STORED };

    for (uint32_t group = 0; group < fleet_max_groups; group++) {
        if (fleet->workers[number].groups & UINT64_C(1) << group) {
            make_chain(fleet, group, chain); /* that prompt is of this group */
            add_stored(&fleet->batch, &root, chain, 0, fleet_prefix_blocks);
        }
    }
}

static void list_prompts(struct fleet *fleet, uint32_t number, struct chain *chain)
{
    const struct fleet_worker *worker = &fleet->workers[number];

    for (uint32_t i = 0; i < worker->count; i++) {
        make_chain(fleet, worker->prompts[(worker->oldest + i) % fleet->options.held], chain);
        const struct kvb_router_event body = { .kind = KVB_ROUTER_STORED,
                                               .has_parent = true,
                                               .parent = chain->blocks[fleet_prefix_blocks - 1] };
        add_stored(&fleet->batch, &body, chain, fleet_prefix_blocks, chain->count);
    }
}

void fleet_list(struct fleet *fleet, uint32_t worker, struct kvb_buf *out)
{
    const uint64_t last_id = fleet->workers[worker].last_id;
    struct kvb_sync_reply reply = { .answer = KVB_SYNC_BLOCKS,
                                    .worker_id = worker,
                                    .is_last = true,
                                    .barrier_id = last_id,
                                    .last_id = last_id,
                                    .digest_seed = fleet_digest_seed,
                                    .events = &fleet->batch };
    struct chain chain = { .count = 0 };

    begin_batch(fleet, worker);
    reply.epoch = fleet->batch.epoch;
    list_prefixes(fleet, worker, &chain);
    list_prompts(fleet, worker, &chain);
    for (size_t i = 0; i < fleet->batch.event_count; i++) {
        fleet->batch.events[i].event_id =
            i; /* has no meaning here, but the ids of a message must be consecutive */
    }
    BENCH_MUST(kvb_sync_reply_encode(&reply, out));
}

void fleet_query(struct fleet *fleet, uint32_t tokens[fleet_query_tokens])
{
    const struct fleet_worker *worker = &fleet->workers[draw(fleet, fleet->options.workers)];
    const uint32_t at = worker->count > 0 ? draw(fleet, worker->count) : 0;
    const uint32_t prompt = worker->prompts[(worker->oldest + at) % fleet->options.held];

    for (uint32_t i = 0; i < fleet_query_blocks; i++) {
        tokens_of(prompt, i, tokens + ((size_t)i * fleet_block_tokens));
    }
}
