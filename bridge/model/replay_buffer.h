#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* The newest batches of one engine, encoded, from which replay requests are answered.
 *
 *     [ seq 12 ][ seq 13 ][ seq 15 ] ... [ newest ]       oldest first
 *
 * At either ceiling the oldest batches are dropped without notice, as in an engine.
 * Threads: the caller locks.
 * Memory:  24 bytes for each of max_batches, and the payloads with one byte more each. */
struct kvb_replay_buffer;

/* KVB_TOO_LARGE  max_batches is 0 or above 2^20
 * KVB_NO_MEMORY */
kvb_status
kvb_replay_buffer_new(size_t max_batches, size_t max_bytes, struct kvb_replay_buffer **out_buffer);

/* NULL is fine. */
void kvb_replay_buffer_free(struct kvb_replay_buffer *buffer);

/* Copies the payload.  seq must be above those in the buffer.
 * KVB_TOO_LARGE  the payload alone is above max_bytes; nothing changed
 * KVB_NO_MEMORY  the payload was not added; the oldest batches may have been dropped */
kvb_status kvb_replay_buffer_put(struct kvb_replay_buffer *buffer, uint64_t seq, kvb_span payload);

void kvb_replay_buffer_clear(struct kvb_replay_buffer *buffer);

size_t kvb_replay_buffer_count(const struct kvb_replay_buffer *buffer);

/* The position of the first batch with seq >= start; the number of batches if there is none.
 * Binary search. */
size_t kvb_replay_buffer_find(const struct kvb_replay_buffer *buffer, uint64_t start);

/* The batch at a position < count; 0 is the oldest.  Its payload is borrowed until the buffer
 * changes. */
kvb_span kvb_replay_buffer_at(const struct kvb_replay_buffer *buffer, size_t at, uint64_t *out_seq);
