#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/event_batch.h"

/* Reads one message of an engine (the payload frame of its PUB socket).
 *
 *     [ts, [event...], rank?]     each event [tag, fields...] or {"type": tag, ...}
 *                                 or {"event_type": ...}; the batch may be a map too
 *
 * Tolerant: unknown keys, trailing fields and unknown tags affect that key or event, never the
 * batch; the batch then contains a KVB_EVENT_SKIPPED with its reason.  Bounded: by
 * core/limits.h, and nothing is allocated for a length that exceeds the bytes left.  Sources of
 * the formats: vLLM's distributed/kv_events.py, 0.9 to 0.33; the variants of SGLang (to 0.5.23),
 * TensorRT-LLM and llm-d; Mooncake's subscriber guide and its store's publisher.  Salts,
 * adapters and multimodal ids: see wire/engine/extra_keys.c.  A Stored of a sliding-window group
 * has that group_kind; if it omits blocks, it has is_sparse and its blocks do not form a prefix.
 * Groups of unknown kinds become KVB_SKIP_NOT_PREFIX.  An object of Mooncake's store with replicas
 * in several tiers becomes one event for each tier.
 *
 * Replaces the contents of *batch.  On any error the batch is empty.
 * KVB_BAD_INPUT  not msgpack, truncated, not a batch, or more bytes after the batch
 * KVB_TOO_LARGE  a ceiling: bytes, depth, events, hashes, tokens
 * KVB_NO_MEMORY */
kvb_status kvb_engine_batch_decode(kvb_span payload, struct kvb_event_batch *batch);

/* The same for a further message of an engine.  habits: batch->habits of the one before. */
kvb_status kvb_engine_batch_decode_further(
    kvb_span payload, struct kvb_engine_habits habits, struct kvb_event_batch *batch);
