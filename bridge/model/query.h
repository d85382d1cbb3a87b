#pragma once

#include "core/ref.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A router's query: who holds how much of this prompt? */

enum kvb_query_form {
    KVB_QUERY_TOKENS,        /* token ids; hashed once per block size in use */
    KVB_QUERY_TOKENS_HASHES, /* tokens_hash per block */
    KVB_QUERY_BLOCK_HASHES   /* rolling (canonical) hash per block */
};

enum { kvb_request_id_bytes = 64 };

/* 1 to kvb_request_id_bytes bytes of UTF-8 without control characters. */
bool kvb_request_id_is_valid(const char *request_id);

struct kvb_query {
    enum kvb_query_form form;
    bool has_model; /* optional when there is only one model */
    bool has_instance_id;
    uint64_t instance_id; /* only this worker */
    char model[kvb_model_bytes + 1];
    char lora_name[kvb_model_bytes + 1];  /* "" = base model */
    char cache_salt[kvb_model_bytes + 1]; /* "" = none */
    /* Of a request to be routed, or of one that was. */
    char request_id[kvb_request_id_bytes + 1]; /* "" = none given */
    uint64_t ttl_ms;                           /* 0 = the aggregator's */
    uint32_t *tokens;                          /* owned; NULL in the hash forms */
    uint64_t *hashes;                          /* owned; NULL in the token form */
    size_t count;                              /* tokens or hashes */
};

/* Frees what the query owns; {0} is fine. */
void kvb_query_done(struct kvb_query *query);
