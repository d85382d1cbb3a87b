#pragma once

#include "core/ref.h"

#include <stddef.h>
#include <stdint.h>

/* What is sent to a simulated fleet: chains of requests.
 *
 *     chain 0   at 0.00   [turn] -> pause -> [turn] -> pause -> [turn]
 *     chain 1   at 0.01   [turn]
 *     ...       .. 1      in order of their beginnings
 *
 * A chain begins at its share of the run.  Each further turn is sent pause_us after the turn before
 * it is finished, and its prompt begins with that turn's prompt and answer.
 *
 * Workloads:
 *
 * - conversation: the rows of a chat trace (Mooncake's format), one chain each, at the trace's
 *   times; `fleets` copies of it, which share nothing but the first block of all prompts
 * - heads, generated: each prompt is a shared head (system prompt) and a short question
 * - agents, generated: chains of calls; each prompt is the previous prompt, its answer, and the
 *   result of a tool
 *
 * Threads: the caller locks.  Memory: 16 bytes a block, 40 a turn.  No memory ends the program. */
struct worth_turn {
    size_t block_at; /* of prompt and answer, in the workload's blocks */
    uint32_t input_tokens, output_tokens;
    uint64_t pause_us; /* before it */
};

struct worth_chain {
    double at; /* 0 .. 1 */
    uint32_t turn_at, turn_count;
};

struct worth_workload {
    const char *name;
    struct worth_chain *chains;
    size_t chain_count, chain_capacity;
    struct worth_turn *turns;
    size_t turn_count, turn_capacity;
    kvb_tokens_hash *tokens;
    kvb_block_hash *blocks; /* parallel to tokens; the name of a block covers its whole prefix */
    size_t block_count, block_capacity;
};

struct worth_plan {
    const char *trace; /* of workload conversation */
    uint32_t fleets;   /* copies: the size of the fleet in eights of workers */
    size_t max_chains; /* of one copy */
    uint64_t seed;
};

/* "conversation", "heads" or "agents".  Ends the program where the trace cannot be read. */
void worth_workload_make(
    struct worth_workload *workload, const char *name, const struct worth_plan *plan);
void worth_workload_done(struct worth_workload *workload);
