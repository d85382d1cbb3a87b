#pragma once

#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

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
