#pragma once

#include "core/ref.h"
#include "model/labels.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A router's query: which workers hold how much of this prompt. */

enum kvb_query_form {
    KVB_QUERY_TOKENS,        /* token ids; hashed once per block size in use */
    KVB_QUERY_TOKENS_HASHES, /* tokens_hash per block */
    KVB_QUERY_BLOCK_HASHES,  /* rolling (canonical) hash per block */
    KVB_QUERY_TEXT           /* text: becomes KVB_QUERY_TOKENS when an engine has said its tokens */
};

/* How many of a text's tokens are known. */
enum kvb_text_tokens {
    KVB_TEXT_TOKENS_NONE,
    KVB_TEXT_TOKENS_PREFIX, /* the first ones */
    KVB_TEXT_TOKENS_WHOLE
};

/* A prompt that is text: members of JSON, see wire/query/text.h.  A secret, like its tokens. */
struct kvb_query_text {
    char *members; /* owned, without a NUL; NULL: none */
    size_t bytes;
    uint32_t *ends; /* owned: where in the members each message ends; NULL: a prompt */
    size_t end_count;
};

enum { kvb_request_id_bytes = 64, kvb_tokens_reason_bytes = 191 };

/* 1 to kvb_request_id_bytes bytes of UTF-8 without control characters. */
bool kvb_request_id_is_valid(const char *request_id);

enum { kvb_policy_bytes = 31, kvb_shown_candidate_bytes = 63 };

/* The workers that a query covers or that a route request may choose, and the route policy.  {0}:
 * all workers, the configured policy. */
struct kvb_selection {
    char policy[kvb_policy_bytes + 1]; /* "": the configured one */
    bool is_dry_run;                   /* answer only; do not record the request */
    struct kvb_labels labels;          /* labels that a worker must have; a role counts as one */
    /* If either count is not 0, a worker must have one of these ids or addresses. */
    uint64_t *worker_ids; /* owned; sorted, like the next */
    uint64_t *addresses;  /* owned; kvb_selection_address() of each */
    size_t worker_id_count;
    size_t address_count;
    /* Of a gateway's request. */
    bool needs_endpoint;                                 /* only workers at a literal address */
    bool has_endpoints;                                  /* only those among the next */
    uint64_t *endpoints;                                 /* owned; sorted hashes of endpoints */
    size_t endpoint_count;                               /* 0: none of them is known */
    uint64_t affinity;                                   /* a hash of its session; 0: none */
    char first_candidate[kvb_shown_candidate_bytes + 1]; /* the first candidate, for error texts;
                                                            may be truncated */
};

/* A 64-bit hash of a worker's address. */
uint64_t kvb_selection_address(const char *address);

/* Compares two such hashes, or two worker ids, for qsort() and bsearch(). */
int kvb_selection_compare(const void *left, const void *right);

/* True when no candidates are given, or the worker is one of them.  address: "" for none. */
bool kvb_selection_has_candidate(
    const struct kvb_selection *selection, uint64_t worker_id, const char *address);

struct kvb_query {
    enum kvb_query_form form;
    bool has_model; /* a query needs no model if there is only one */
    bool has_instance_id;
    uint64_t instance_id; /* the query covers only this worker */
    bool has_dp_rank;
    uint64_t dp_rank; /* the query covers only this rank of each worker */
    char model[kvb_model_bytes + 1];
    /* Another name by which the query asked for `model`, as kvb_query_context_find_model() found
     * it: only workers that serve it are meant.  "" = none. */
    char served_name[kvb_model_bytes + 1];
    char lora_name[kvb_model_bytes + 1];  /* "" = base model */
    char cache_salt[kvb_model_bytes + 1]; /* "" = none */
    /* The next two belong to a request that is to be routed, or that was routed. */
    char request_id[kvb_request_id_bytes + 1]; /* "" = none given */
    uint64_t ttl_ms;                           /* 0 = the aggregator's default */
    bool has_cached_tokens;                    /* only a report about a finished request */
    uint64_t cached_tokens; /* tokens of its prompt that the engine took from its cache */
    struct kvb_selection selection;
    uint32_t *tokens; /* owned; NULL in the hash forms */
    uint64_t *hashes; /* owned; NULL in the token form */
    size_t count;     /* tokens or hashes; 0 in the text form */
    /* The hashes of the tokens in one shape, if they were made ahead: kvb_query_hash_ahead(). */
    kvb_tokens_hash *hashes_ahead; /* owned; NULL: none */
    size_t hashes_ahead_count;
    struct kvb_block_shape hashes_ahead_shape;
    struct kvb_query_text text; /* {0} in other forms */
    /* Once a query of text has become one of tokens: */
    bool was_text;
    enum kvb_text_tokens known;
    size_t unknown_tokens; /* an estimate of how many follow those that are known */
    char tokens_reason[kvb_tokens_reason_bytes + 1]; /* why not all: "tokenize_timeout: ..." */
};

/* "none", "prefix", "whole".  Never NULL. */
const char *kvb_text_tokens_name(enum kvb_text_tokens known);

/* Frees what it owns; {0} is fine. */
void kvb_query_text_done(struct kvb_query_text *text);

/* Frees what the query owns; {0} is fine. */
void kvb_query_done(struct kvb_query *query);
