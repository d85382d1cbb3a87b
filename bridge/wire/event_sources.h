#pragma once

#include "core/detail.h"
#include "core/span.h"
#include "core/status.h"
#include "model/event_source.h"

/* What engines answer over HTTP about where the events of their ranks are.
 *
 * vLLM, GET /kv_event_sources: an object keyed by rank, as vLLM 0.32 has it, an array, or
 * an object around an array.
 *
 *     {"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.0.0.1:5557",
 *           "replay_endpoint":null,"buffer_steps":10000,"topic":""}, "1":...}
 *     [{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:5557",...}, ...]
 *     {"sources":[...]}
 *
 * SGLang, GET /server_info: a large object, of which one key tells (0.5.23).
 *
 *     {"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,
 *                   "topic":"kv-events","dp_size":2,"replay_endpoint_port_base":5657},...}
 *
 * What comes out names each rank's own addresses: nothing is to be added.  A host that
 * means every address of the engine (* and 0.0.0.0) is left as it is.  Unknown fields are
 * passed over; a rank without a number is rank 0; a rank that publishes nothing
 * ("enable_kv_cache_events":false, "publisher":"null") is left out, and so is all of it
 * for {} and "kv_events":null.
 * Source: vllm/entrypoints/serve of vLLM 0.32; describe_kv_events_publisher of SGLang.
 * Threads: any thread.
 *
 * KVB_BAD_INPUT  not that, a rank twice, or a publisher that is not zmq; detail says where
 * KVB_TOO_LARGE  more than kvb_max_event_sources_bytes or kvb_max_ranks
 * KVB_NO_MEMORY
 * In each case *out_sources is untouched. */
kvb_status kvb_event_sources_decode(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail);
kvb_status kvb_event_sources_decode_server_info(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail);
