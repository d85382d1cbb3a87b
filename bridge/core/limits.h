#pragma once

/* All limits.  Input beyond a limit is refused with KVB_TOO_LARGE or dropped, and counted.  These
 * are enum constants that fit an int.  Their names contain their units. */

enum {
    /* one message of an engine */
    kvb_max_payload_bytes = 16 << 20,
    kvb_max_engine_backlog_bytes = 32 << 20, /* received and not read yet; above: disconnected */
    kvb_max_depth = 8,                       /* nesting of msgpack values */
    kvb_max_batch_events = 1 << 16,
    kvb_max_batch_hashes = 1 << 20,
    kvb_max_batch_tokens = 1 << 22,
    kvb_max_batch_keys = 1 << 18,
    kvb_max_block_keys = 64, /* multimodal ids per block */
    kvb_max_batch_text_bytes = 1 << 20,
    kvb_max_string_bytes = 1024,          /* a LoRA name, a salt, a tag */
    kvb_max_load_payload_bytes = 1 << 16, /* one message of load values; decoded: 30 times that */
    kvb_max_load_backlog_bytes = 4 << 20, /* received and not read yet; above: disconnected */

    /* one metrics page of an engine: vLLM's has some 32 KiB per rank */
    kvb_max_page_bytes = 8 << 20,
    kvb_max_page_line_bytes = 16 << 10, /* the longest line of vLLM 0.32 has 1.4 KiB */
    kvb_max_page_url_bytes = 1024,

    /* one message on NATS */
    kvb_max_router_events = 1 << 16,
    kvb_max_router_blocks = 1 << 20,
    kvb_max_nats_payload_bytes = 1 << 20,  /* nats-server's own default */
    kvb_max_state_bytes = 1 << 26,         /* /state of a bridge: 1 KB for each stream */
    kvb_max_event_blocks = 512,            /* in one published event: some 36 KiB of JSON */
    kvb_min_nats_payload_bytes = 48 << 10, /* a server with a smaller limit is of no use */
    kvb_max_answer_bytes = 64 << 20,
    kvb_max_service_bytes = 960 << 10, /* one $SRV answer; the rest goes into further ones */
    kvb_max_service_bytes_a_second = 16 << 20, /* $SRV answers; further requests are dropped */

    /* refresh: storing all blocks again for readers of plain JSON */
    kvb_max_refresh_bytes_a_second = 8 << 20, /* some 100,000 blocks */
    kvb_max_refresh_cpu_percent = 5,          /* of one core */
    kvb_max_refresh_request_bytes = 1024,     /* one refresh request */

    /* one stream */
    kvb_max_block_tokens = 1 << 16,
    kvb_max_lookahead_tokens = 64, /* tokens after a block that its hash also covers */
    kvb_max_chunk_blocks = 1024,   /* device blocks in a chunk of an offload connector */
    kvb_max_speculative_drop = 64, /* blocks that an engine gives less than it holds */
    kvb_max_drop_groups = 32,      /* cache groups that do */
    kvb_max_stream_blocks = 1 << 24,
    kvb_max_reorder_bytes = 64 << 20, /* live batches that wait for a replay */
    kvb_max_reorder_batches = 1 << 16,
    kvb_max_replay_bytes = 64 << 20, /* one replay: received and not applied yet */

    kvb_max_checkpoint_section_bytes = 2 << 20,

    kvb_max_waiting_blocks = 1 << 16, /* blocks of live events that wait for a repair */

    /* a query */
    kvb_max_register_bytes = 1 << 14,      /* body of a worker's registration */
    kvb_max_event_sources_bytes = 4 << 20, /* an engine's list of its event sockets */
    kvb_max_model_list_bytes = 1 << 20,    /* an engine's list of its models and adapters */
    kvb_max_query_body_bytes = 16 << 20,
    kvb_max_query_tokens = 1 << 21,
    kvb_max_indexer_bytes = 8 << 20,        /* one request over gRPC: a million hashes */
    kvb_max_query_candidates = 1024,        /* workers that one route request may name */
    kvb_max_waiting_query_bytes = 64 << 20, /* all queries that wait for an answer; above: 503 */
    kvb_max_requests_in_flight = 1 << 18,   /* 66 MB; above: drops the one that ends first */
    kvb_max_request_ttl_ms = 3600000,
    kvb_max_request_report_bytes = 4096, /* {"request_id":...} */
    kvb_max_predicted_blocks = 1 << 20,  /* 58 MB; above: drops the oldest */
    kvb_max_predict_ms = 60000,
    kvb_max_decision_blocks = 4096, /* blocks that one decision predicts */
    kvb_max_filter_bytes = 512,     /* the whole query string, as sent */
    kvb_max_overview_rows = 1000,

    kvb_max_tokenize_requests = 1024,    /* texts that wait for an engine; above: busy */
    kvb_max_tokenize_deadline_ms = 1000, /* an HTTP request waits 2 s for its answer */
    kvb_max_tokenize_cache_bytes = 1 << 30,
    kvb_max_tokenize_texts = 256, /* different texts that engines are asked for */
    kvb_max_text_messages = 8192, /* of one chat, at whose ends an earlier one may end */
    kvb_max_tokenize_answer_bytes = 16 << 20, /* an answer: 2 million tokens of 7 digits */
    kvb_max_tokenize_held_bytes = 64 << 20,   /* answers that arrive, together */
    kvb_max_tokenize_connections = 128,       /* to engines; further requests wait */

    /* a request that a gateway asks about */
    kvb_max_gateway_header_bytes = 96 << 10,
    kvb_max_gateway_hint_endpoints = 8192,
    kvb_max_gateway_chunks = 8192,   /* of a body that wait; half of it: the pick is made */
    kvb_max_gateway_body = 32 << 20, /* that is read for a pick; above: by load */
    kvb_max_gateways = 8,            /* listeners */
    kvb_max_gateway_streams = 16384, /* of one listener */
    kvb_max_gateway_connection_streams = 4096, /* Envoy's requests fail above it */
    kvb_max_gateway_held_bytes = 256 << 20,    /* of bodies; above: by load, passed on */
    kvb_gateway_grace_ms = 60000,              /* for a first request, and for reading */
    kvb_gateway_idle_ms = 3600000,             /* of a connection without streams */
    kvb_max_gateway_answer_bytes = 4096,       /* one message, without a body that goes back */
    kvb_max_gateway_echo_bytes = 62000,   /* of a body in one message: Envoy recommends 64 KiB */
    kvb_max_gateway_body_bytes = 1 << 30, /* that a scan can count */
    kvb_max_gateway_body_depth = 256,
    kvb_max_gateway_messages = 8192,        /* of one chat whose places are noted */
    kvb_max_gateway_usage_bytes = 64 << 10, /* the end of an answer, where usage is looked for */

    /* pods of Kubernetes */
    kvb_max_pod_bytes = 1 << 20,           /* one object; larger ones are ignored */
    kvb_max_pod_envelope_bytes = 64 << 10, /* a list without its items */
    kvb_max_pod_ports = 64,
    kvb_max_pod_list_pages = 512, /* pages of 500 pods; a longer list is given up */

    /* a process */
    kvb_max_workers = 8192,
    kvb_max_ranks = 128,
    kvb_max_streams = 1 << 16,
    kvb_max_republished_ranks = 1024, /* two listening sockets each */
    kvb_max_names = 1 << 14,          /* host names in a bridge's resolver: 13 MB */
    kvb_max_lookups = 32,             /* of names at once; a thread each */
    kvb_max_replays_at_once = 8,      /* a replay keeps its engine busy */
    kvb_max_metric_ranks = 1 << 13,   /* with their own lines on a bridge's /metrics: 41 MB */
    kvb_max_index_blocks = 1 << 26,
    kvb_max_config_bytes = 16 << 20,    /* 2 KiB for each worker */
    kvb_max_grpc_connections = 256,     /* above: closes the longest idle one, or the new one */
    kvb_max_grpc_extra = 32,            /* in addition: to say that there is no place */
    kvb_max_grpc_held_bytes = 64 << 20, /* bodies and answers together; above: RESOURCE_EXHAUSTED */
    kvb_max_grpc_under_way = 32,        /* requests being answered; above: RESOURCE_EXHAUSTED */
    kvb_max_http_connections = 512,     /* above: closes the longest waiting one, or 503 */
    kvb_max_large_dumps = 16,           /* concurrent dumps as RouterEvents, some MiB each */
    kvb_max_dump_blocks = 8 << 20,      /* one dump as RouterEvents; a peer waits 10 s for it */
    kvb_max_http_extra = 64,            /* in addition: to send 503, and for /livez and /readyz */
    kvb_max_http_held_bytes = 64 << 20, /* bodies and answers together; above: 503 */
    kvb_http_own_bytes = 64 << 10,      /* memory of one connection, in addition */
    kvb_max_dashboard_bytes = 64 << 20, /* list of streams for the status page */
    kvb_max_history_samples = 900,      /* one a second: 15 minutes */
};
