#include "fleet/engine/block_pool.h"
#include "parts/bench.h"
#include "parts/corpus.h"
#include "parts/trace.h"

#include <stdio.h>
#include <stdlib.h>

/* Makes a corpus of a chat trace: a simulated fleet of workers, each with a cache, serves the
 * trace's requests. The queries and events that an index would receive are written down.
 *
 *     for each lap, each row, each copy:
 *         a worker is drawn
 *         query   the prompt's blocks
 *         remove  what the worker's cache evicts for them
 *         store   those of them that it lacked
 *         remove, store  for each block of the answer, singly
 *
 * Copies share no block, so a row of the trace is in `copies` prompt trees at once.  Laps repeat
 * the trace with other ids, except the first id of each prompt (the system prompt), so a short
 * trace becomes a long one of the same shape. */
struct plan {
    const char *trace;
    const char *out;
    uint64_t workers, laps;
};

enum {
    copies = 20,
    length = 4,           /* blocks for each hash id of the trace */
    cache_blocks = 16384, /* that each worker keeps */
    seed = 42,            /* of the random numbers that choose workers */
    max_request_blocks = 1 << 18
};

/* The current request: place[i] is where the worker keeps blocks[i]. */
struct request {
    kvb_tokens_hash *tokens; /* owned, as the others; max_request_blocks each */
    kvb_block_hash *blocks;
    uint32_t *places;
    kvb_block_hash *evicted;
    size_t count;
    size_t evicted_count;
    struct kvb_event_batch eviction; /* of the place being taken */
};

struct fleet {
    const struct plan *plan;
    struct kvb_block_pool **caches; /* owned; one a worker */
    struct request request;
    struct bench_corpus_writer writer;
    uint64_t rng;
    uint64_t answers; /* number of answer blocks so far; each has its own content */
    uint64_t requests;
};

/* ---- Content ---- */

static const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);

static void add_block(struct request *request, uint64_t tokens)
{
    const size_t i = request->count;

    if (i == max_request_blocks) {
        bench_fail("a request of more than %d blocks", max_request_blocks);
    }
    const uint64_t before = i > 0 ? request->blocks[i - 1].value : 0;
    request->tokens[i].value = tokens;
    request->blocks[i].value = bench_mix(before ^ tokens * golden);
    request->count++;
}

static void
make_prompt(struct fleet *fleet, const struct kvb_trace_line *row, uint64_t lap, uint64_t copy)
{
    fleet->request.count = 0;
    for (uint32_t i = 0; i < row->id_count; i++) {
        const uint64_t id = row->ids[i] + (i > 0 ? lap << 40 : 0);
        for (uint64_t part = 0; part < length; part++) {
            add_block(&fleet->request, bench_mix((id * length + part + 1) ^ bench_mix(copy + 1)));
        }
    }
}

/* ---- Serving ---- */

static void write_evicted(struct fleet *fleet, uint32_t worker)
{
    struct request *request = &fleet->request;

    if (request->evicted_count > 0) {
        bench_corpus_write(
            &fleet->writer, &(struct bench_record){ .kind = bench_remove,
                                                    .worker = worker,
                                                    .count = request->evicted_count,
                                                    .blocks = request->evicted });
    }
    request->evicted_count = 0;
}

/* Records that the worker stored blocks first .. end-1 of the request. */
static void write_stored(struct fleet *fleet, uint32_t worker, size_t first, size_t end)
{
    const struct request *request = &fleet->request;

    if (first == end) {
        return;
    }
    bench_corpus_write(
        &fleet->writer,
        &(struct bench_record){
            .kind = bench_store,
            .worker = worker,
            .count = end - first,
            .has_parent = first > 0,
            .parent = first > 0 ? request->blocks[first - 1] : (kvb_block_hash){ 0 },
            .blocks = request->blocks + first,
            .tokens = request->tokens + first,
        });
}

/* Puts one block into use. False when all places are in use. */
static bool place_block(struct fleet *fleet, struct kvb_block_pool *cache, size_t i)
{
    struct request *request = &fleet->request;
    const struct kvb_block_content content = { .hash = { request->blocks[i].value } };
    uint32_t *place = &request->places[i];

    *place = kvb_block_pool_find(cache, content.hash);
    if (*place != kvb_no_block) {
        kvb_block_pool_hold(cache, *place);
        return true;
    }
    kvb_event_batch_reset(&request->eviction);
    const kvb_status status = kvb_block_pool_take(cache, &request->eviction, place);
    if (status == KVB_AGAIN) {
        return false;
    }
    bench_must(status, "a worker's cache");
    if (request->eviction.hash_count > 0) {
        request->evicted[request->evicted_count++].value = request->eviction.hashes[0].value;
    }
    bench_must(
        kvb_block_pool_fill(cache, *place, i > 0 ? request->places[i - 1] : kvb_no_block, &content),
        "a worker's cache");
    return true;
}

/* Returns how many of the prompt's blocks are in use afterwards: all, if one request fits the
 * cache. */
static size_t serve_prompt(struct fleet *fleet, uint32_t worker)
{
    struct kvb_block_pool *cache = fleet->caches[worker];
    struct request *request = &fleet->request;
    size_t hit = 0;

    while (hit < request->count &&
           kvb_block_pool_find(cache, (kvb_engine_hash){ request->blocks[hit].value }) !=
               kvb_no_block) {
        (void)place_block(fleet, cache, hit); /* it is there */
        hit++;
    }
    size_t end = hit;
    while (end < request->count && place_block(fleet, cache, end)) {
        end++;
    }
    write_evicted(fleet, worker);
    write_stored(fleet, worker, hit, end);
    return end;
}

/* Stores the answer block by block. Returns the blocks in use afterwards. */
static size_t serve_answer(struct fleet *fleet, uint32_t worker, uint32_t tokens)
{
    const uint64_t tokens_a_block = kvb_trace_tokens_per_id / length;
    const uint64_t blocks = (tokens + tokens_a_block - 1) / tokens_a_block;
    struct request *request = &fleet->request;

    for (uint64_t i = 0; i < blocks; i++) {
        add_block(request, bench_mix(~fleet->answers++));
        if (!place_block(fleet, fleet->caches[worker], request->count - 1)) {
            return request->count - 1;
        }
        write_evicted(fleet, worker);
        write_stored(fleet, worker, request->count - 1, request->count);
    }
    return request->count;
}

static void serve(struct fleet *fleet, const struct kvb_trace_line *row)
{
    struct request *request = &fleet->request;
    const uint32_t worker = (uint32_t)(bench_random(&fleet->rng) % fleet->plan->workers);

    bench_corpus_write(
        &fleet->writer, &(struct bench_record){ .kind = bench_query,
                                                .worker = worker,
                                                .count = request->count,
                                                .tokens = request->tokens });
    size_t used = serve_prompt(fleet, worker);
    if (used == request->count) {
        used = serve_answer(fleet, worker, row->output_length);
    }
    /* Releases the end first, so that it is evicted before the blocks in front of it. */
    while (used-- > 0) {
        kvb_block_pool_release(fleet->caches[worker], request->places[used]);
    }
    fleet->requests++;
}

/* ---- The trace ---- */

static void serve_lap(struct fleet *fleet, uint64_t lap)
{
    static struct bench_trace trace;

    bench_trace_open(&trace, fleet->plan->trace);
    for (const struct kvb_trace_line *row = NULL; (row = bench_trace_next(&trace));) {
        for (uint64_t copy = 0; copy < copies; copy++) {
            make_prompt(fleet, row, lap, copy);
            serve(fleet, row);
        }
        bench_progress_now_and_then(
            "corpus: lap %llu of %llu, row %zu, %.1f million block operations",
            (unsigned long long)lap + 1, (unsigned long long)fleet->plan->laps, trace.rows,
            (double)fleet->writer.block_operations / 1e6);
    }
    bench_trace_close(&trace);
}

static void make_corpus(const struct plan *plan)
{
    struct fleet fleet = { .plan = plan, .rng = seed };
    struct request *request = &fleet.request;

    request->tokens = bench_memory(max_request_blocks, sizeof *request->tokens);
    request->blocks = bench_memory(max_request_blocks, sizeof *request->blocks);
    request->places = bench_memory(max_request_blocks, sizeof *request->places);
    request->evicted = bench_memory(max_request_blocks, sizeof *request->evicted);
    fleet.caches = bench_memory(plan->workers, sizeof(struct kvb_block_pool *));
    for (uint64_t i = 0; i < plan->workers; i++) {
        /* one block more than can be used */
        bench_must(kvb_block_pool_new(cache_blocks + 1, 0, &fleet.caches[i]), "a worker's cache");
    }

    bench_corpus_open(&fleet.writer, plan->out, (uint32_t)plan->workers);
    for (uint64_t lap = 0; lap < plan->laps; lap++) {
        serve_lap(&fleet, lap);
    }
    bench_corpus_close(&fleet.writer);
    bench_progress(
        "corpus: %llu requests, %llu records, %.1f million block operations",
        (unsigned long long)fleet.requests, (unsigned long long)fleet.writer.records,
        (double)fleet.writer.block_operations / 1e6);

    for (uint64_t i = 0; i < plan->workers; i++) {
        kvb_block_pool_free(fleet.caches[i]);
    }
    free((void *)fleet.caches);
    free(request->tokens);
    free(request->blocks);
    free(request->places);
    free(request->evicted);
    kvb_event_batch_done(&request->eviction);
}

int main(int argc, char **argv)
{
    if (argc != 5 || strtoul(argv[2], NULL, 10) == 0 || strtoul(argv[3], NULL, 10) == 0) {
        (void)fprintf(stderr, "usage: %s TRACE WORKERS LAPS OUT\n", argv[0]);
        return 64;
    }
    make_corpus(&(struct plan){ .trace = argv[1],
                                .workers = strtoul(argv[2], NULL, 10),
                                .laps = strtoul(argv[3], NULL, 10),
                                .out = argv[4] });
    return 0;
}
