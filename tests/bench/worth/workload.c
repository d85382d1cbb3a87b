#include "worth/workload.h"

#include "core/random.h"
#include "parts/bench.h"
#include "parts/trace.h"
#include "worth/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Chains, turns and blocks ---- */

static void *grow(void *items, size_t count, size_t *capacity, size_t needed, size_t item_bytes)
{
    if (count + needed <= *capacity) {
        return items;
    }
    *capacity = (count + needed) * 2;
    void *grown = realloc(items, *capacity * item_bytes);
    if (!grown) {
        bench_fail("no memory for a workload");
    }
    return grown;
}

static void begin_chain(struct worth_workload *workload, double at)
{
    workload->chains = grow(
        workload->chains, workload->chain_count, &workload->chain_capacity, 1,
        sizeof *workload->chains);
    workload->chains[workload->chain_count++] =
        (struct worth_chain){ .at = at, .turn_at = (uint32_t)workload->turn_count };
}

/* Of the last chain; its blocks are added behind it. */
static struct worth_turn *
add_turn(struct worth_workload *workload, uint32_t input_tokens, uint32_t output_tokens)
{
    workload->turns = grow(
        workload->turns, workload->turn_count, &workload->turn_capacity, 1,
        sizeof *workload->turns);
    struct worth_turn *turn = &workload->turns[workload->turn_count++];
    *turn = (struct worth_turn){ .block_at = workload->block_count,
                                 .input_tokens = input_tokens,
                                 .output_tokens = output_tokens > 0 ? output_tokens : 1 };
    workload->chains[workload->chain_count - 1].turn_count++;
    return turn;
}

static size_t all_blocks(const struct worth_turn *turn)
{
    return (turn->input_tokens + turn->output_tokens + worth_block_tokens - 1) / worth_block_tokens;
}

/* The next block of the last turn. */
static void add_block(struct worth_workload *workload, uint64_t content)
{
    const size_t at = workload->block_count;
    const size_t first = workload->turns[workload->turn_count - 1].block_at;

    if (at == workload->block_capacity) {
        size_t capacity = at;
        workload->tokens = grow(workload->tokens, at, &capacity, 1, sizeof *workload->tokens);
        workload->blocks =
            grow(workload->blocks, at, &workload->block_capacity, 1, sizeof *workload->blocks);
    }
    const uint64_t before = at > first ? workload->blocks[at - 1].value : 0;
    workload->tokens[at].value = bench_mix(content);
    workload->blocks[at].value = bench_mix(before ^ content * UINT64_C(0x9e3779b97f4a7c15));
    workload->block_count++;
}

static uint64_t content_of(uint64_t kind, uint64_t owner, uint64_t block)
{
    return bench_mix(bench_mix(kind << 60 | owner) + block);
}

enum content_kind { content_trace, content_answer, content_head, content_own };

/* Gives the rest of the last turn content of its own. */
static void add_own_blocks(struct worth_workload *workload)
{
    const struct worth_turn *turn = &workload->turns[workload->turn_count - 1];
    const size_t end = turn->block_at + all_blocks(turn);

    while (workload->block_count < end) {
        add_block(
            workload, content_of(content_answer, workload->turn_count, workload->block_count));
    }
}

static double draw_exponential(uint64_t *random, double mean)
{
    return -log(1 - kvb_random_unit(random)) * mean;
}

static uint32_t draw_tokens(uint64_t *random, uint32_t min, uint32_t max)
{
    return min + (uint32_t)kvb_random_below(random, max - min + 1);
}

/* ---- conversation ---- */

/* Copies follow each other at intervals, so that they are not sent in lockstep. */
static void
add_row(struct worth_workload *workload, const struct kvb_trace_line *row, uint32_t copy, double at)
{
    begin_chain(workload, at);
    const struct worth_turn *turn = add_turn(workload, row->input_length, row->output_length);
    const uint32_t whole = turn->input_tokens / worth_block_tokens;

    for (uint32_t i = 0; i < whole && i < row->id_count; i++) {
        add_block(workload, content_of(content_trace, i > 0 ? copy : 0, row->ids[i]));
    }
    add_own_blocks(workload);
}

static int by_time(const void *left, const void *right)
{
    const struct worth_chain *a = left;
    const struct worth_chain *b = right;

    if (a->at != b->at) {
        return a->at < b->at ? -1 : 1;
    }
    return (a->turn_at > b->turn_at) - (a->turn_at < b->turn_at);
}

static size_t read_rows(
    struct worth_workload *workload, const struct worth_plan *plan, uint32_t copy, double shift_ms,
    double *last_ms)
{
    static struct bench_trace trace;
    const struct kvb_trace_line *row = NULL;

    bench_trace_open(&trace, plan->trace);
    while (trace.rows < plan->max_chains && (row = bench_trace_next(&trace))) {
        add_row(workload, row, copy, (double)row->timestamp_ms + shift_ms);
        *last_ms = fmax(*last_ms, (double)row->timestamp_ms);
    }
    bench_trace_close(&trace);
    return trace.rows;
}

/* A trace gives its times in steps of some seconds.  Rows of one time come evenly until the next.
 */
static void spread_rows(struct worth_chain *chains, size_t count)
{
    double step_ms = 0;

    for (size_t first = 0, end = 0; first < count; first = end) {
        const double at = chains[first].at;
        for (end = first; end < count && chains[end].at == at; end++) {
        }
        step_ms = end < count ? fmax(0, chains[end].at - at) : step_ms;
        for (size_t i = first; i < end; i++) {
            chains[i].at += step_ms * (double)(i - first) / (double)(end - first);
        }
    }
}

static void make_conversation(struct worth_workload *workload, const struct worth_plan *plan)
{
    enum { shift_ms = 377 };
    double last_ms = 1;

    for (uint32_t copy = 0; copy < plan->fleets; copy++) {
        const size_t first = workload->chain_count;
        const size_t count = read_rows(workload, plan, copy, copy * shift_ms, &last_ms);
        spread_rows(&workload->chains[first], count);
    }
    for (size_t i = 0; i < workload->chain_count; i++) {
        workload->chains[i].at = fmin(1, workload->chains[i].at / last_ms);
    }
    qsort(workload->chains, workload->chain_count, sizeof *workload->chains, by_time);
}

/* ---- heads ---- */

/* Number 0 .. count-1 with probability proportional to 1 / (number + 1). */
static uint32_t draw_zipf(uint64_t *random, uint32_t count)
{
    double total = 0;

    for (uint32_t i = 0; i < count; i++) {
        total += 1.0 / (i + 1);
    }
    double left = kvb_random_unit(random) * total;
    for (uint32_t i = 0; i < count; i++) {
        left -= 1.0 / (i + 1);
        if (left < 0) {
            return i;
        }
    }
    return count - 1;
}

static uint32_t head_blocks(uint64_t kind, uint32_t head, uint32_t min, uint32_t max)
{
    return min + (uint32_t)(bench_mix(kind << 32 | head) % (max - min + 1));
}

static void make_heads(struct worth_workload *workload, const struct worth_plan *plan)
{
    enum { heads = 256, min_head_blocks = 4, max_head_blocks = 24 };
    const size_t count = plan->max_chains * plan->fleets;
    uint64_t random = plan->seed;

    for (size_t i = 0; i < count; i++) {
        begin_chain(workload, (double)i / (double)count);
        const uint32_t head = draw_zipf(&random, heads);
        const uint32_t blocks = head_blocks(1, head, min_head_blocks, max_head_blocks);
        (void)add_turn(
            workload, blocks * worth_block_tokens + draw_tokens(&random, 64, 1500),
            draw_tokens(&random, 50, 400));
        for (uint32_t block = 0; block < blocks; block++) {
            add_block(workload, content_of(content_head, head, block));
        }
        add_own_blocks(workload);
    }
}

/* ---- agents ---- */

static void add_call(
    struct worth_workload *workload, uint32_t session, uint32_t head, uint32_t head_size,
    uint32_t input_tokens, uint32_t output_tokens)
{
    const struct worth_turn *turn = add_turn(workload, input_tokens, output_tokens);
    const size_t blocks = all_blocks(turn);

    for (uint32_t i = 0; i < blocks; i++) {
        add_block(
            workload, i < head_size ? content_of(content_head, 1000 + head, i)
                                    : content_of(content_own, session, i));
    }
}

static void add_session(struct worth_workload *workload, uint32_t session, uint64_t *random)
{
    enum { heads = 8, min_head_blocks = 6, max_head_blocks = 14, min_calls = 4, max_calls = 24 };
    const uint32_t head = draw_zipf(random, heads);
    const uint32_t size = head_blocks(2, head, min_head_blocks, max_head_blocks);
    const uint32_t calls = draw_tokens(random, min_calls, max_calls);
    uint32_t input_tokens = size * worth_block_tokens + draw_tokens(random, 100, 2000);

    for (uint32_t call = 0; call < calls; call++) {
        const uint32_t output_tokens = draw_tokens(random, 30, 250);
        add_call(workload, session, head, size, input_tokens, output_tokens);
        const double pause_s = 0.2 + draw_exponential(random, 3);
        workload->turns[workload->turn_count - 1].pause_us = (uint64_t)(pause_s * 1e6);
        input_tokens += output_tokens + (uint32_t)fmin(8000, draw_exponential(random, 800));
    }
}

static void make_agents(struct worth_workload *workload, const struct worth_plan *plan)
{
    enum { calls_a_session = 14 };
    const size_t wanted = plan->max_chains * plan->fleets / calls_a_session;
    const size_t count = wanted > 0 ? wanted : 1;
    uint64_t random = plan->seed;

    for (uint32_t i = 0; i < count; i++) {
        begin_chain(workload, (double)i / (double)count);
        add_session(workload, i, &random);
    }
}

void worth_workload_make(
    struct worth_workload *workload, const char *name, const struct worth_plan *plan)
{
    static const struct {
        const char *name;
        void (*make)(struct worth_workload *workload, const struct worth_plan *plan);
    } kinds[] = {
        { "conversation", make_conversation },
        { "heads", make_heads },
        { "agents", make_agents },
    };

    *workload = (struct worth_workload){ .name = name };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(name, kinds[i].name) == 0) {
            kinds[i].make(workload, plan);
        }
    }
}

void worth_workload_done(struct worth_workload *workload)
{
    free(workload->chains);
    free(workload->turns);
    free(workload->tokens);
    free(workload->blocks);
}
