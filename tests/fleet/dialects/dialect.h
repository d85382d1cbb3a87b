#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The message format of each engine and version: one row each.  The encoder and the simulated
 * fleet use the rows.  The decoder does not: it accepts every dialect from every engine.  A new
 * dialect needs a row and an enum constant.
 *
 * Sources: vLLM's distributed/kv_events.py, SGLang's disaggregation/kv_events.py,
 * TensorRT-LLM's and Mooncake's publishers and their documents.
 * Threads: any thread; the rows never change. */
enum kvb_dialect {
    KVB_DIALECT_VLLM_0_9,
    KVB_DIALECT_VLLM_0_11,
    KVB_DIALECT_VLLM_0_22,
    KVB_DIALECT_VLLM_0_31,
    KVB_DIALECT_SGLANG_2025,
    KVB_DIALECT_SGLANG_MID,
    KVB_DIALECT_SGLANG_MAP,
    KVB_DIALECT_TRTLLM,
    KVB_DIALECT_MOONCAKE_A,
    KVB_DIALECT_MOONCAKE_B,
    KVB_DIALECT_MOONCAKE_C,
    KVB_DIALECT_COUNT
};

/* The form of one event. */
enum kvb_event_form {
    KVB_EVENTS_ARRAYS,   /* [tag, fields...] */
    KVB_EVENTS_MAPS,     /* {"type": tag, key: field, ...} without unset fields */
    KVB_EVENTS_REPLICAS, /* [tag, key, [[type, location]...], ...], one for each block */
    KVB_EVENTS_OBJECTS   /* {"event_type": ...} with unset fields, one for each block */
};

enum kvb_hash_form {
    KVB_HASH_U64,
    KVB_HASH_I64,   /* the same bits, signed */
    KVB_HASH_BYTES, /* 32 bytes; the last 8 are the hash, big-endian */
    KVB_HASH_TEXT   /* "0x..." */
};

/* Fields beyond block_hashes; bits of kvb_dialect_row.fields. */
enum kvb_dialect_field {
    KVB_FIELD_TOKENS = 1 << 0, /* with parent_block_hash and block_size */
    KVB_FIELD_MEDIUM = 1 << 1,
    KVB_FIELD_LORA_NAME = 1 << 2,
    KVB_FIELD_EXTRA_KEYS = 1 << 3,
    KVB_FIELD_GROUP = 1 << 4,          /* with its kind and window */
    KVB_FIELD_SALT_MAP = 1 << 5,       /* {"cache_salt": text} in place of lora_name */
    KVB_FIELD_CLEARED_MEDIUM = 1 << 6, /* a Cleared may name one tier */
    KVB_FIELD_NAMESPACE = 1 << 7,      /* cache_salt, session_id, lora_name, each if set */
    KVB_FIELD_LOOKAHEAD = 1 << 8,      /* a list of tokens for each block */
    KVB_FIELD_MM_KEYS = 1 << 9,        /* a list of maps for each block */
};

/* The frames of a replay, as a DEALER receives them. */
enum kvb_replay_layout {
    KVB_REPLAY_WITHOUT_TOPIC, /* ["", seq, payload]         END ["", ff*8, ""] */
    KVB_REPLAY_WITH_TOPIC,    /* ["", topic, seq, payload]  END ["", "", ff*8, ""] */
    KVB_REPLAY_MOONCAKE,      /* ["", seq, payload]         END ["", "", ff*8] */
    KVB_REPLAY_NEVER          /* no replay socket */
};

enum kvb_first_seq { KVB_SEQ_FROM_0, KVB_SEQ_FROM_1, KVB_SEQ_FROM_CLOCK /* wall time in ns */ };

struct kvb_dialect_row {
    const char *name;
    enum kvb_event_form events;
    enum kvb_hash_form hashes;
    unsigned fields;
    bool has_rank;            /* [ts, events, rank], else [ts, events] */
    bool has_integer_time;    /* ts in ms, else seconds as a float */
    const char *const *media; /* of each tier */
    kvb_span topic;
    enum kvb_replay_layout replay;
    enum kvb_first_seq first_seq;
    bool clears_first;     /* its first event is a Cleared */
    uint32_t heartbeat_ms; /* period of empty batches without events; 0: never */
};

/* dialect < KVB_DIALECT_COUNT. */
const struct kvb_dialect_row *kvb_dialect_row_of(enum kvb_dialect dialect);

/* Finds a dialect by name; "vllm-" may be omitted.  KVB_NOT_FOUND: there is no such dialect. */
kvb_status kvb_dialect_find(const char *name, enum kvb_dialect *out_dialect);
