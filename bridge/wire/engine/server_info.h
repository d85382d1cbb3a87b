#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/speculation.h"

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
