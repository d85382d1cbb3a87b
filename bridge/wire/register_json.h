#pragma once

#include "core/detail.h"
#include "core/span.h"
#include "core/status.h"
#include "model/registration.h"

/* The bodies of POST /register and /unregister, in the words of both who use them:
 *
 *     Dynamo's stand-alone indexer   {"instance_id":1,"endpoint":"tcp://h:5557",
 *         "model_name":"m","block_size":16,"dp_rank":0,"replay_endpoint":...,"tenant_id":...}
 *     Mooncake's conductor           {"instance_id":"vllm-1","endpoint":...,"type":"vLLM",
 *         "replay_endpoint":...,"modelname":"m","block_size":16,"dp_rank":0,"lora_name":...}
 *
 * and "topic", which is ours.  An id in quotes that is no number becomes one: a hash of it,
 * below 2^53.  A tenant or a salt of its own cannot be honoured here, and is refused: blocks
 * would be found that are none.  Unknown fields are passed over.
 * Sources: ai-dynamo-runtime 1.6.1 as recorded; conductor-ctrl's API documentation.
 * Threads: any thread.
 *
 * KVB_BAD_INPUT  not JSON                                                   (HTTP 400)
 * KVB_NOT_FOUND  JSON, but a field is missing or wrong; detail names it     (HTTP 422)
 * KVB_TOO_LARGE  larger than kvb_max_register_bytes, or nested too deep     (HTTP 413)
 * KVB_NO_MEMORY */
kvb_status kvb_register_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail);

/* Only instance_id is required here; dp_rank and the model narrow it down. */
kvb_status kvb_unregister_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail);
