#pragma once

#include "core/status.h"
#include "field.h"

/* The groups of rows: each runs those of its rows that are wanted, on this stage.
 * KVB_IO, KVB_NO_MEMORY, KVB_AGAIN, KVB_CLOSED: as the parts they are made of */

/* relay.{protobuf,json}.{1,8}block: batches a second of which all arrive.
 *     .cpu        processor time of the relay's process for one batch
 *     .vs_python  against the Python relay, the rest against the one that passes through */
kvb_status rows_rate(struct relay_bench *bench);

/* relay.latency.{p50,p99} at 10,000 batches/s, relay.latency.RATE.{p50,p99} at others:
 * from the engine's send to the subscriber, protobuf. */
kvb_status rows_latency(struct relay_bench *bench);

/* relay.workers.{10,100,1000}: processor time for one batch at so many engines, which
 * together send the same rate at each number; against that of 10.  .rest: processor time while
 * they are silent. */
kvb_status rows_workers(struct relay_bench *bench);

/* scale.publishers.{files,resident,idle,intake,lost}: a bridge that reads 2,048 publishers, 1,024
 * workers of two ranks each, while they are silent and while each sends 5 batches a second; the
 * latter against a program that receives and drops the same (plain_sub.c). */
kvb_status rows_publishers(struct relay_bench *bench);

/* relay.memory.block: bytes resident for one held block; relay.memory.connection: for
 * each further engine. */
kvb_status rows_memory(struct relay_bench *bench);

/* relay.beside_hostile.{tierclear,waiting,collide}.p99: from one engine's send to the
 * subscriber while another engine of the bridge behaves as hostile.h describes.
 *     .max          the worst sample
 *     .applied      the share of the hostile engine's events that was applied, 0 .. 1
 *     .quarantines  how often the bridge quarantined it */
kvb_status rows_beside_hostile(struct relay_bench *bench);

/* republish.*: the same engines' batches to a reader of republished events.
 *     .{1,8}block              batches a second, against the relay that passes through
 *     .{1,8}block.vs_protobuf  against the bridge that publishes on NATS alone
 *     .memory.block            bytes resident for one held block, with its tokens
 *     .snapshot                s until a reader that knows nothing has a million blocks
 *     .snapshot.beside_p99     ms of another engine's batches to NATS meanwhile */
kvb_status rows_republish(struct relay_bench *bench);
