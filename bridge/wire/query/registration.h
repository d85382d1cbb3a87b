#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/stream.h"
#include "model/worker_facts.h"

#include <stdbool.h>
#include <stdint.h>

/* A request to start or stop reading one rank of a worker. */

enum { kvb_registration_address_bytes = 256, kvb_registration_topic_bytes = 128 };

struct kvb_registration {
    bool has_worker_id;
    uint64_t worker_id;                 /* 0 .. 2^63-1; from a name such as "vllm-1": below 2^53 */
    char instance[kvb_model_bytes + 1]; /* the id as it was given; "": no id was given */
    bool is_instance_text;              /* the id was given as a JSON string */
    char endpoint[kvb_registration_address_bytes];
    char replay_endpoint[kvb_registration_address_bytes]; /* "" for none */
    char topic[kvb_registration_topic_bytes];
    char model[kvb_model_bytes + 1];
    char lora[kvb_model_bytes + 1];
    uint32_t block_size;
    uint32_t speculative_drop; /* as the worker's key; KVB_DROP_DETECT: not given */
    bool has_rank;
    uint32_t dp_rank;
    struct kvb_worker_facts facts; /* address, tokenize, role, labels */
};

/* The bodies of POST /register and /unregister, with the field names of both known clients:
 *
 *     Dynamo's stand-alone indexer   {"instance_id":1,"endpoint":"tcp://h:5557",
 *         "model_name":"m","block_size":16,"dp_rank":0,"replay_endpoint":...,"tenant_id":...}
 *     Mooncake's conductor           {"instance_id":"vllm-1","endpoint":...,"type":"vLLM",
 *         "replay_endpoint":...,"modelname":"m","block_size":16,"dp_rank":0,"lora_name":...}
 *
 * and "topic", "address", "tokenize", "role", "labels" and "speculative_drop", which kvbridge adds.
 * Labels with the names address and role mean these fields.  An id in quotes that is not a number
 * is replaced by its hash, below 2^53.  A tenant or a salt is not supported and is refused, because
 * queries would find blocks that cannot be used.  Unknown fields are skipped.  Sources:
 * ai-dynamo-runtime 1.6.1 as recorded; conductor-ctrl's API documentation. Threads: any thread.
 *
 * KVB_BAD_INPUT  not JSON                                                   (HTTP 400)
 * KVB_NOT_FOUND  JSON, but a field is missing or wrong; detail names it     (HTTP 422)
 * KVB_TOO_LARGE  larger than kvb_max_register_bytes, or nested too deep     (HTTP 413)
 * KVB_NO_MEMORY */
kvb_status kvb_register_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail);

/* Requires only instance_id; dp_rank and the model restrict the request further. */
kvb_status kvb_unregister_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail);

/* {"worker_id":n} or {"worker_id":n,"dp_rank":n}; errors as above. */
kvb_status kvb_drain_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail);
