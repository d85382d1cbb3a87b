#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "fleet/engine/content_log.h"
#include "model/event_batch.h"
#include "model/load.h"

#include <stdbool.h>
#include <stdint.h>

/* One rank of a simulated vLLM: scheduler, paged cache, prefix reuse, events.
 * It behaves as vLLM 0.11 to 0.32 does where a reader of its events could tell:
 *
 *     admit -> [ waiting ] -> step: prefill -> [ running ] -> step: decode -> finish
 *                  ^                                |                           |
 *                  +------- preempted --------------+        blocks freed, tail first
 *
 * - whole blocks are announced when they are scheduled; those that had to go for
 *   them are announced as removed first, one hash an event;
 * - a prompt of whole blocks is computed again in its last block, which then has a
 *   second physical copy: stored twice, later removed twice;
 * - a request in report mode announces the prefix that it reuses once more from
 *   the root, without a second copy, at each step that tries to schedule it;
 * - an event of an idle engine waits for the engine's next step.
 *
 * Pure: no clock, no socket; what is random comes from the seed.
 * Threads: the caller locks.
 * Memory:  72 + 4 * block_size bytes a block, the requests (bounded by
 *          max_waiting and max_running), and one batch of events. */
struct kvb_engine;

enum { kvb_fleet_vocabulary = 128000 }; /* token ids are below */

struct kvb_engine_options {
    uint32_t rank;
    uint32_t blocks;     /* physical; one of them is never used */
    uint32_t block_size; /* tokens */
    uint32_t max_running;
    uint32_t max_waiting;
    uint32_t step_tokens;      /* scheduled in one step at most: vLLM's max_num_batched_tokens */
    double report_probability; /* of a request in report mode, 0 .. 1 */
    double bypass_probability; /* of a request that computes its whole prompt again */
    uint32_t log_changes;      /* of contents that are remembered with their times */
    uint64_t seed;             /* of hashes and random draws: differs for each process */
    uint64_t first_seq;        /* of its first batch */
    bool clears_first;         /* AllBlocksCleared stands before everything else */
};

/* KVB_BAD_INPUT  an option is out of range (blocks 2 .., all counts 1 ..)
 * KVB_NO_MEMORY */
kvb_status kvb_engine_new(const struct kvb_engine_options *options, struct kvb_engine **out_engine);

/* NULL is fine. */
void kvb_engine_free(struct kvb_engine *engine);

/* Queues a request that makes output_length (1 ..) tokens.  Copies the tokens.
 * KVB_AGAIN      the queue is full
 * KVB_BAD_INPUT  no tokens, or no output
 * KVB_TOO_LARGE  the cache could never hold it
 * KVB_NO_MEMORY */
kvb_status kvb_engine_admit(
    struct kvb_engine *engine, const uint32_t *tokens, uint32_t count, uint32_t output_length);

/* How far a request is.  Written by the engine whenever it steps, restarts or ends, so whoever made
 * it keeps it until is_over. */
struct kvb_request_progress {
    uint32_t *output;       /* borrowed; room for output_length tokens */
    uint32_t output_count;  /* tokens made so far */
    uint32_t cached_tokens; /* of the prompt, that were in the cache when it first started */
    bool is_started;
    bool is_over;      /* finished, abandoned, or the process is gone */
    bool is_abandoned; /* set by the caller, who waits no longer: the next step ends it */
};

/* The same for somebody who waits for the answer.  progress is {0} but for output. */
kvb_status kvb_engine_admit_watched(
    struct kvb_engine *engine, const uint32_t *tokens, uint32_t count, uint32_t output_length,
    struct kvb_request_progress *progress);

/* The salt of requests that are admitted from now on; NULL, as at first: none.  Prefixes are not
 * shared across salts.  Borrowed until the engine ends. */
void kvb_engine_set_salt(struct kvb_engine *engine, const char *salt);

/* One step of the scheduler.  On KVB_OK *out_batch holds what changed, numbered
 * *out_seq; it is borrowed until the engine is used again.
 * KVB_AGAIN      nothing to tell; an engine without requests does not even step
 * KVB_NO_MEMORY, KVB_TOO_LARGE  the step was cut short; what it did is in a
 *                later step, nothing is lost */
kvb_status kvb_engine_step(
    struct kvb_engine *engine, double now_s, const struct kvb_event_batch **out_batch,
    uint64_t *out_seq);

/* Empties the cache; running requests begin again.  The AllBlocksCleared goes out
 * with the next step.  KVB_NO_MEMORY, KVB_TOO_LARGE: nothing changed. */
kvb_status kvb_engine_reset_cache(struct kvb_engine *engine);

/* vLLM's sleep mode.  While it is not awake the engine does not step, so nothing is published;
 * KVB_SLEEP_DISCARDED also empties the cache, as kvb_engine_reset_cache().  A restart wakes it.
 * KVB_NO_MEMORY, KVB_TOO_LARGE: nothing changed. */
kvb_status kvb_engine_set_sleep(struct kvb_engine *engine, enum kvb_engine_sleep sleep);

/* The events of the next batches are lost before they are numbered. */
void kvb_engine_lose_events(struct kvb_engine *engine, uint64_t batches);

/* The process is gone and another one runs: nothing cached, no requests, seq from
 * the first one on.  With the same seed the same prompts get the same hashes. */
void kvb_engine_restart(struct kvb_engine *engine, uint64_t seed);

/* The first sequence number after the next restart. */
void kvb_engine_set_first_seq(struct kvb_engine *engine, uint64_t first_seq);

/* Numbers a batch that the caller makes himself: a heartbeat, garbage. */
uint64_t kvb_engine_take_seq(struct kvb_engine *engine);

/* The time that is written beside what changes from now on. */
void kvb_engine_set_time(struct kvb_engine *engine, uint64_t now_ns);

/* The changes of the held contents, across all restarts of the process.
 * Borrowed until the engine is used again. */
const struct kvb_content_log *kvb_engine_log(const struct kvb_engine *engine);

struct kvb_engine_stats {
    struct kvb_load load;
    uint64_t queried_tokens; /* vllm:prefix_cache_queries_total */
    uint64_t hit_tokens;     /* vllm:prefix_cache_hits_total */
    uint64_t requests_finished;
    uint64_t preemptions;
    uint64_t batches;     /* numbered since the process began */
    uint64_t lost;        /* batches that were lost before they were numbered */
    bool is_asleep;       /* its cache is discarded: KVB_SLEEP_DISCARDED */
    uint64_t held_blocks; /* physical, copies included */
};

void kvb_engine_stats(const struct kvb_engine *engine, struct kvb_engine_stats *out_stats);

/* One block content that is held, or that lies on the way to one. */
struct kvb_truth_block {
    kvb_engine_hash hash;
    const uint32_t *tokens; /* block_size of its own; borrowed from the engine */
    const char *salt;       /* borrowed; NULL: none */
    uint32_t parent;        /* an earlier position; kvb_no_parent at the root */
    uint32_t copies;        /* physical; 0: an ancestor that is no longer there */
};

enum { kvb_no_parent = 0x7fffffff };

/* What the engine holds after the batch `seq`; events that no batch carries yet
 * are counted in unsent. */
struct kvb_truth {
    uint64_t worker_id; /* not known here: set by the caller */
    uint32_t rank;
    bool has_seq; /* false: nothing was numbered yet */
    bool by_hash; /* its events hold no tokens: set by the caller */
    uint64_t seq;
    uint64_t unsent;
    uint32_t block_size;
    uint32_t count;
    struct kvb_truth_block *blocks; /* owned; parents before children */
};

/* Valid until the engine is used again.  On KVB_OK the caller ends it with
 * kvb_truth_done().  KVB_NO_MEMORY */
kvb_status kvb_engine_truth(const struct kvb_engine *engine, struct kvb_truth *out_truth);
void kvb_truth_done(struct kvb_truth *truth);
