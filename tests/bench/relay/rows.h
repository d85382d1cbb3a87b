#pragma once

#include "core/status.h"
#include "field.h"

/* The groups of rows: each runs those of its rows that are wanted, on this stage.
 * KVB_IO, KVB_NO_MEMORY, KVB_AGAIN, KVB_CLOSED: as the parts they are made of */

/* relay.{protobuf,json}.{1,8}block: batches a second of which all arrive.
 *     .cpu        processor time of the relay's process for one batch
 *     .vs_python  against the Python relay, the rest against the one that passes through */
kvb_status rows_rate(struct relay_bench *bench);

/* relay.latency.{p50,p99}: from the engine's send to the subscriber, at 10,000 batches/s. */
kvb_status rows_latency(struct relay_bench *bench);

/* scale.publishers.{idle,intake}: a bridge that reads 2,048 publishers, 1,024 workers of two ranks
 * each, while they are silent and while each sends 5 batches a second.  KVB_AGAIN: one was lost. */
kvb_status rows_publishers(struct relay_bench *bench);

/* relay.memory.block: bytes resident for one held block; relay.memory.connection: for
 * each further engine. */
kvb_status rows_memory(struct relay_bench *bench);

/* republish.*: the same engines' batches to a reader of republished events.
 *     .{1,8}block              batches a second, against the relay that passes through
 *     .{1,8}block.vs_protobuf  against the bridge that publishes on NATS alone
 *     .memory.block            bytes resident for one held block, with its tokens
 *     .snapshot                s until a reader that knows nothing has a million blocks */
kvb_status rows_republish(struct relay_bench *bench);
