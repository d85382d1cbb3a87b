#pragma once

/* Every ceiling in one place.  What would grow beyond is refused with
 * KVB_TOO_LARGE or dropped, and counted.  Enum constants that fit an int;
 * sizes in the unit of their name. */

enum {
    /* one message of an engine */
    kvb_max_payload_bytes = 16 << 20,
    kvb_max_depth = 8, /* nesting of msgpack values */
    kvb_max_batch_events = 1 << 16,
    kvb_max_batch_hashes = 1 << 20,
    kvb_max_batch_tokens = 1 << 22,
    kvb_max_batch_keys = 1 << 18,
    kvb_max_block_keys = 64, /* multimodal ids of one block */
    kvb_max_batch_text_bytes = 1 << 16,
    kvb_max_string_bytes = 1024,          /* a LoRA name, a salt, a tag */
    kvb_max_load_payload_bytes = 1 << 16, /* of load figures, some 30 times that decoded */

    /* one message on NATS */
    kvb_max_router_events = 1 << 16,
    kvb_max_router_blocks = 1 << 20,
    kvb_max_nats_payload_bytes = 1 << 20, /* nats-server's own default */
    kvb_max_answer_bytes = 64 << 20,

    /* one stream */
    kvb_max_block_tokens = 1 << 16,
    kvb_max_stream_blocks = 1 << 24,
    kvb_max_held_bytes = 64 << 20, /* live batches that wait for a replay */
    kvb_max_held_batches = 1 << 16,

    /* a query */
    kvb_max_query_body_bytes = 16 << 20,
    kvb_max_query_tokens = 1 << 21,

    /* a process */
    kvb_max_workers = 1024,
    kvb_max_ranks = 128,
    kvb_max_streams = 1 << 16,
    kvb_max_index_blocks = 1 << 26,
    kvb_max_config_bytes = 4 << 20,
    kvb_max_http_connections = 512, /* of each HTTP thread */
};
