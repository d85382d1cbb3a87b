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
    kvb_max_batch_text_bytes = 1 << 20,
    kvb_max_string_bytes = 1024,          /* a LoRA name, a salt, a tag */
    kvb_max_load_payload_bytes = 1 << 16, /* of load figures, some 30 times that decoded */

    /* one page of metrics of an engine: vLLM's has some 32 KiB a rank */
    kvb_max_page_bytes = 8 << 20,
    kvb_max_page_line_bytes = 16 << 10, /* the longest of vLLM 0.32 has 1.4 KiB */
    kvb_max_page_url_bytes = 1024,

    /* one message on NATS */
    kvb_max_router_events = 1 << 16,
    kvb_max_router_blocks = 1 << 20,
    kvb_max_nats_payload_bytes = 1 << 20, /* nats-server's own default */
    kvb_max_answer_bytes = 64 << 20,
    kvb_max_service_bytes = 960 << 10,         /* of $SRV answers: the rest in a further one */
    kvb_max_service_bytes_a_second = 16 << 20, /* answered to $SRV requests; more are dropped */

    /* storing all again for readers of plain JSON */
    kvb_max_refresh_bytes_a_second = 8 << 20, /* some 100,000 blocks */
    kvb_max_refresh_cpu_percent = 5,          /* of one core */
    kvb_max_refresh_request_bytes = 1024,     /* of a request for it */

    /* one stream */
    kvb_max_block_tokens = 1 << 16,
    kvb_max_lookahead_tokens = 64, /* behind a block, that its name covers too */
    kvb_max_stream_blocks = 1 << 24,
    kvb_max_held_bytes = 64 << 20, /* live batches that wait for a replay */
    kvb_max_held_batches = 1 << 16,
    kvb_max_replay_bytes = 1 << 30, /* of one replay, received and not applied */

    kvb_max_checkpoint_section_bytes = 2 << 20,

    kvb_max_waiting_blocks = 1 << 16, /* of live events that wait for a repair */

    /* a query */
    kvb_max_register_bytes = 1 << 14,      /* of a worker that wants to be read */
    kvb_max_event_sources_bytes = 4 << 20, /* an engine that says where its events are */
    kvb_max_query_body_bytes = 16 << 20,
    kvb_max_query_tokens = 1 << 21,
    kvb_max_asked_bytes = 256 << 20, /* of queries that wait for their answer; more: 503 */
    kvb_max_filter_bytes = 512,      /* as sent, with what stands beside it */
    kvb_max_overview_rows = 1000,

    /* a process */
    kvb_max_workers = 1024,
    kvb_max_ranks = 128,
    kvb_max_streams = 1 << 16,
    kvb_max_replays_at_once = 8,    /* each holds up its engine */
    kvb_max_metric_ranks = 1 << 13, /* with lines of their own on a bridge's /metrics: 40 MB */
    kvb_max_index_blocks = 1 << 26,
    kvb_max_config_bytes = 4 << 20,
    kvb_max_http_connections = 512, /* above: 503 */
    kvb_max_board_bytes = 64 << 20, /* of streams listed for the status page */
    kvb_max_history_samples = 900,  /* one a second: 15 minutes */
};
