#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/event_batch.h"

/* Reads one message of an engine (the payload frame of its PUB socket).
 *
 *     [ts, [event...], rank?]     each event [tag, fields...] or {"type": tag, ...}
 *                                 or {"event_type": ...}; the batch may be a map too
 *
 * Tolerant: unknown keys, trailing fields and unknown tags cost that event or
 * key, never the batch; such an event stands in the batch as KVB_EVENT_SKIPPED
 * with its reason.  Bounded: ceilings of core/limits.h, nothing is allocated
 * from a length that the bytes do not back.
 * Sources of the formats: vLLM's distributed/kv_events.py, 0.9 to 0.33; what SGLang (to 0.5.23),
 * TensorRT-LLM and llm-d make of it; Mooncake's subscriber guide and its store's publisher.
 * What salts, adapters, media and lookahead tokens look like: engine_extra_keys.c.
 * A Stored of a sliding-window group comes with its group_kind, and is_sparse where it leaves
 * blocks out: it is no prefix by itself.  Groups of unknown kinds are KVB_SKIP_NOT_PREFIX.
 * An object of Mooncake's store that lies in several tiers is an event for each of them.
 *
 * Replaces what *batch held.  On any error the batch is empty.
 * KVB_BAD_INPUT  no msgpack, cut short, not the shape of a batch, bytes after it
 * KVB_TOO_LARGE  a ceiling: bytes, depth, events, hashes, tokens
 * KVB_NO_MEMORY */
kvb_status kvb_engine_batch_decode(kvb_span payload, struct kvb_event_batch *batch);
