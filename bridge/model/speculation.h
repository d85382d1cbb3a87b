#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Whether an engine gives a request one block less than it holds.
 *
 * vLLM with a drafter that reads the target's hidden states (EAGLE, MTP) recomputes the last block
 * of a hit, unless the hashes of its blocks have lookahead (0.33).  No event says so.  What does:
 *
 *     /server_info   the method that the engine uses (vLLM with VLLM_SERVER_DEV_MODE=1)
 *     arguments      --speculative-config and --spec-method in a pod's command line
 *     page           vllm:spec_decode_* on /metrics: that it speculates, not by which method
 *
 * The first of these that decides counts.  A configured speculative_drop comes before all.
 *
 * Pure.  Threads: any thread. */
enum kvb_speculation {
    KVB_SPECULATION_UNKNOWN,   /* nothing was seen */
    KVB_SPECULATION_KEEPS,     /* it does not speculate, or by a method that drops no block */
    KVB_SPECULATION_DROPS,     /* one block less */
    KVB_SPECULATION_UNDECIDED, /* it speculates; what was seen does not say whether it drops */
    KVB_SPECULATION_COUNT
};

/* In the order in which they count. */
enum kvb_speculation_source {
    KVB_SPECULATION_OF_NOTHING,
    KVB_SPECULATION_OF_CONFIG,
    KVB_SPECULATION_OF_SERVER_INFO,
    KVB_SPECULATION_OF_ARGUMENTS,
    KVB_SPECULATION_OF_PAGE,
    KVB_SPECULATION_SOURCE_COUNT
};

/* The value of speculative_drop where it is not configured: it is to be found. */
#define KVB_DROP_DETECT UINT32_MAX /* a macro, because an enum constant must fit an int */

/* Fields of vLLM's SpeculativeConfig. */
struct kvb_speculative_config {
    const char *method; /* "": not given */
    const char *model;  /* of the drafter; "": not given */
    bool disables_drop; /* disable_eagle_block_drop */
    bool is_resolved;   /* the engine's own answer; else what it was given, of which it may make
                         * another method */
    bool has_lookahead_option; /* it knows disable_lookahead_block_hashes: vLLM 0.33 */
};

/* As use_eagle() and use_eagle_block_drop() of vLLM 0.9 to 0.33.  An unknown method is UNDECIDED,
 * as are dflash and dspark, which dropped a block before 0.33, and a drafter without a method: its
 * own config.json, which nobody shows, may say mtp. */
enum kvb_speculation kvb_speculation_of(const struct kvb_speculative_config *config);

/* "config", "server_info", "pod arguments", "page"; "" for nothing.  Never NULL. */
const char *kvb_speculation_source_name(enum kvb_speculation_source source);
