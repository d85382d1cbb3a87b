#pragma once

#include "core/detail.h"
#include "core/span.h"
#include "core/status.h"
#include "model/event_source.h"

/* What vLLM answers to GET /kv_event_sources: an array, or an object around it.
 *
 *     [{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:5557",
 *       "replay_endpoint":null,"topic":"","buffer_steps":10000}, ...]
 *     {"sources":[...]}
 *
 * The addresses are those of each rank itself.  Unknown fields are passed over; no rank
 * means rank 0.  Source: vllm/entrypoints/serve/kv_events of vLLM 0.32.
 * Threads: any thread.
 *
 * KVB_BAD_INPUT  not that, or a rank twice; detail says where
 * KVB_TOO_LARGE  more than kvb_max_event_sources_bytes or kvb_max_ranks
 * KVB_NO_MEMORY */
kvb_status kvb_event_sources_decode(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail);
