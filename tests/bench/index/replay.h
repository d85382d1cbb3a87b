#pragma once

#include "index/index.h"
#include "parts/corpus.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An index with a slot for each worker, of the same number, and the replay of a corpus through it
 * by index/index.h alone.
 *
 * Every answer is read to its end, slot by slot, as a router would read it, and goes into
 * the checksum:
 *
 *     S = sum of depth * (2 * worker + 1) over the answer       whatever its order
 *     checksum = checksum * 1099511628211 + S                   mod 2^64, query by query
 *
 * Two contenders that replayed the same corpus and have the same checksum gave the same
 * answers, worker by worker.
 *
 * Threads: the caller locks. */
struct replay {
    struct kvb_prefix_index *index; /* owned */
    kvb_slot_ref *slots;            /* owned; of each worker */
    uint32_t workers;
    uint32_t *depths; /* owned; of each worker, from the last answer that named it */
    struct kvb_match match;
    uint64_t checksum;
    uint64_t block_operations; /* replayed */
};

/* Both end the program on an error. */
void replay_init(struct replay *replay, uint32_t workers);
void replay_done(struct replay *replay);

/* Populates the memory that the index needs for workers that keep 16,384 blocks each. */
void replay_prepare(struct replay *replay);

/* Replays one record of any kind. */
void replay_record(struct replay *replay, const struct bench_record *record);

/* Answers the query of a record, and adds the answer to the checksum. */
void replay_query(struct replay *replay, const kvb_tokens_hash *tokens, size_t count);

/* Replays the whole corpus, however long that takes, because a part has more stores and fewer
 * removals. With is_events_only, without queries. Returns the seconds. */
double replay_corpus(struct replay *replay, const struct bench_corpus *corpus, bool is_events_only);
