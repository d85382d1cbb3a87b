#pragma once

#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"
#include "model/served_names.h"
#include "model/speculation.h"

#include <stddef.h>
#include <stdint.h>

/* What engines answer over HTTP: the sockets of their events, the names of their models, how they
 * speculate. */

/* The sockets on which an engine publishes the events of one rank, as it reports them. */

enum { kvb_event_source_address_bytes = 256, kvb_event_source_topic_bytes = 128 };

struct kvb_event_source {
    uint32_t dp_rank;
    char endpoint[kvb_event_source_address_bytes];
    char replay_endpoint[kvb_event_source_address_bytes]; /* "": it has none */
    char topic[kvb_event_source_topic_bytes];
    uint64_t buffer_steps; /* number of batches that it can replay; 0: not given */
};

/* Sorted by rank, without duplicates. */
struct kvb_event_sources {
    struct kvb_event_source sources[kvb_max_ranks];
    size_t count;
};

/* Decodes the HTTP answers in which engines list the event sockets of their ranks.
 *
 * vLLM, GET /kv_event_sources: an object whose keys are ranks (vLLM 0.32), an array, or an object
 * that contains an array.
 *
 *     {"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.0.0.1:5557",
 *           "replay_endpoint":null,"buffer_steps":10000,"topic":""}, "1":...}
 *     [{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:5557",...}, ...]
 *     {"sources":[...]}
 *
 * SGLang, GET /server_info: a large object; one key of it is used (0.5.23).
 *
 *     {"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,
 *                   "topic":"kv-events","dp_size":2,"replay_endpoint_port_base":5657,
 *                   "publishers":[{"dp_rank":1,"endpoint":"tcp://10.0.0.2:5558"}]},...}
 *
 * publishers, which later versions add, has the ranks of other hosts; a rank that it does not list
 * has the host and the port above.
 *
 * The result has the addresses of each rank.  Wildcard hosts (* and 0.0.0.0) are not replaced.
 * Unknown fields are skipped.  A missing rank is rank 0.  A rank that publishes nothing
 * ("enable_kv_cache_events":false, "publisher":"null") is left out.  {} and "kv_events":null
 * give an empty list.  Source: vllm/entrypoints/serve of vLLM 0.32; describe_kv_events_publisher
 * of SGLang.
 * Threads: any thread.
 *
 * KVB_BAD_INPUT  another format, a duplicate rank, or a publisher that is not zmq;
 *                detail says where
 * KVB_TOO_LARGE  more than kvb_max_event_sources_bytes or kvb_max_ranks
 * KVB_NO_MEMORY
 * On failure *out_sources is unchanged. */
kvb_status kvb_event_sources_decode(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail);
kvb_status kvb_event_sources_decode_server_info(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail);

/* Decodes an engine's answer to GET /v1/models, the names by which requests may ask it.
 *
 *     {"object":"list","data":[
 *         {"id":"qwen",     "root":"Qwen/Qwen3-8B","parent":null},    the base model
 *         {"id":"chat",     "root":"Qwen/Qwen3-8B","parent":null},    a second name of it
 *         {"id":"sql-lora", "root":"/loras/sql",   "parent":"qwen"}]}  an adapter of it
 *
 * The base model is the entry without a parent whose id or root is `model`; where there is none,
 * the entries without a parent if all have one root.  vLLM and SGLang write these fields; an engine
 * without LoRA may leave out `root` and `parent`.  Unknown fields are skipped.
 *
 * names: `model` itself is not among them.  Those beyond the bounds of kvb_served_names, and those
 * that are no names there, are counted in left_out.
 * Threads: any thread.
 *
 * KVB_BAD_INPUT  not such a list, or one of several models of which none is `model`, as of a
 *                router; detail says which
 * KVB_TOO_LARGE  more than kvb_max_model_list_bytes
 * KVB_NO_MEMORY
 * On failure *out_names is unchanged. */
kvb_status kvb_model_list_decode(
    kvb_span json, const char *model, struct kvb_served_names *out_names,
    struct kvb_detail *detail);

/* Reads how an engine speculates from vLLM's answer to GET /server_info?config_format=json, which
 * it has with VLLM_SERVER_DEV_MODE=1:
 *
 *     {"vllm_config":{...,"speculative_config":{"method":"eagle3",...},...},"vllm_env":{...},...}
 *     {"vllm_config":"model='m', speculative_config=SpeculativeConfig(method='eagle3', model=...),
 *      ..."}     versions that know no config_format
 *
 * A speculative_config of null or None means that it does not speculate.  An answer without one is
 * UNKNOWN.  Source: vllm/entrypoints/serve/dev/server_info of vLLM 0.28 and 0.33.
 * Threads: any thread.
 *
 * KVB_NOT_FOUND  no vllm_config: another engine's answer
 * KVB_BAD_INPUT  no JSON object, or one that is nested too deep
 * KVB_TOO_LARGE  more than kvb_max_event_sources_bytes
 * On failure *out_speculation is unchanged. */
kvb_status kvb_server_info_decode(kvb_span json, enum kvb_speculation *out_speculation);
