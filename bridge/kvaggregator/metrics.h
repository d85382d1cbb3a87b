#pragma once

#include "core/metric.h"
#include "daemon/http.h"
#include "daemon/metrics.h"
#include "daemon/service.h"
#include "grpc/server.h"
#include "tokenize/tokenizer.h"

/* The metrics of an aggregator: one row for each, from which the enum is made too.
 *     X(id, type, name, labels, help)                                              */
/* clang-format off */
#define KVB_AGGREGATOR_METRICS(X) \
    KVB_DAEMON_METRICS(X) \
    X(messages_events, COUNTER, "kvb_messages_received_total", "kind=\"kv_events\"", "NATS messages received, by kind") \
    X(messages_protobuf, COUNTER, "kvb_messages_received_total", "kind=\"kv_events_pb\"", "NATS messages received, by kind") \
    X(messages_window, COUNTER, "kvb_messages_received_total", "kind=\"kv_window_events\"", "NATS messages received, by kind") \
    X(messages_load, COUNTER, "kvb_messages_received_total", "kind=\"load_metrics\"", "NATS messages received, by kind") \
    X(messages_heartbeat, COUNTER, "kvb_messages_received_total", "kind=\"kv_heartbeat\"", "NATS messages received, by kind") \
    X(messages_answers, COUNTER, "kvb_messages_received_total", "kind=\"kv_sync\"", "NATS messages received, by kind") \
    X(messages_routed, COUNTER, "kvb_messages_received_total", "kind=\"kv_routed\"", "NATS messages received, by kind") \
    X(messages_finished, COUNTER, "kvb_messages_received_total", "kind=\"kv_finished\"", "NATS messages received, by kind") \
    X(messages_first_token, COUNTER, "kvb_messages_received_total", "kind=\"kv_first_token\"", "NATS messages received, by kind") \
    X(messages_status, COUNTER, "kvb_messages_received_total", "kind=\"aggregator_status\"", "NATS messages received, by kind") \
    X(refused_bad_input, COUNTER, "kvb_messages_refused_total", "reason=\"bad_input\"", "NATS messages that could not be used, by reason") \
    X(refused_too_large, COUNTER, "kvb_messages_refused_total", "reason=\"too_large\"", "NATS messages that could not be used, by reason") \
    X(refused_no_memory, COUNTER, "kvb_messages_refused_total", "reason=\"no_memory\"", "NATS messages that could not be used, by reason") \
    X(refused_stream, COUNTER, "kvb_messages_refused_total", "reason=\"too_many_streams\"", "NATS messages that could not be used, by reason") \
    X(refused_ring_full, COUNTER, "kvb_messages_refused_total", "reason=\"ring_full\"", "NATS messages that could not be used, by reason") \
    X(refused_dropped, COUNTER, "kvb_messages_refused_total", "reason=\"dropped_by_client\"", "NATS messages that could not be used, by reason") \
    X(events_applied, COUNTER, "kvb_events_applied_total", "", "Router events applied to the index") \
    X(events_unused, COUNTER, "kvb_events_unused_total", "", "Router events in JSON of streams whose bridge publishes protobuf too, and events in a format that the newest heartbeat does not name: dropped") \
    X(events_old, COUNTER, "kvb_events_old_total", "", "Router events received twice or too late, and dropped") \
    X(events_ahead, COUNTER, "kvb_events_ahead_total", "", "Router events refused because their ids are far beyond those that their bridge has published") \
    X(events_missed, COUNTER, "kvb_events_missed_total", "", "Router events found missing, by a gap in the ids or by a heartbeat, and requested from the bridge; late events count too. A rise means that messages are lost on NATS") \
    X(event_holes, COUNTER, "kvb_event_holes_total", "", "Gaps in the event ids of streams") \
    X(heartbeats_late, COUNTER, "kvb_heartbeats_ahead_total", "", "Heartbeats that name events which were not received yet") \
    X(streams_differ, COUNTER, "kvb_streams_differ_total", "", "Streams found to list another number of blocks than their bridge; they are repaired") \
    X(streams_contradicted, COUNTER, "kvb_streams_contradicted_total", "", "Streams in which an event was applied that their bridge never published. A rise means a second or forged publisher") \
    X(epochs_missed, COUNTER, "kvb_epochs_missed_total", "", "Epochs whose first event this aggregator did not receive") \
    X(rivals, COUNTER, "kvb_streams_two_bridges_total", "", "Streams found to be published by two bridges. A rise means a misconfiguration") \
    X(ranges_requested, COUNTER, "kvb_sync_requests_total", "kind=\"range\"", "Requests to bridges for missing events, by kind") \
    X(snapshots_requested, COUNTER, "kvb_sync_requests_total", "kind=\"snapshot\"", "Requests to bridges for missing events, by kind") \
    X(digests_requested, COUNTER, "kvb_sync_requests_total", "kind=\"digest\"", "Requests to bridges for missing events, by kind") \
    X(ranges_filled, COUNTER, "kvb_sync_repairs_total", "kind=\"range\"", "Streams repaired with data from their bridge, by kind") \
    X(snapshots_taken, COUNTER, "kvb_sync_repairs_total", "kind=\"snapshot\"", "Streams repaired with data from their bridge, by kind") \
    X(digests_repaired, COUNTER, "kvb_sync_repairs_total", "kind=\"digest\"", "Streams repaired with data from their bridge, by kind") \
    X(buckets_differ, COUNTER, "kvb_digest_buckets_differ_total", "", "Digest buckets that differed from the bridge's although no event was missing. A rise means a defect or forged events") \
    X(requests_failed, COUNTER, "kvb_sync_failures_total", "", "Requests to bridges that failed or were not answered") \
    X(streams_silent, COUNTER, "kvb_streams_silent_total", "", "Streams that missed three heartbeats. A rise means that bridges stop or NATS loses messages") \
    X(streams_forgotten, COUNTER, "kvb_streams_forgotten_total", "", "Streams removed after a long silence") \
    X(stored_refused, COUNTER, "kvb_index_refused_total", "", "Stored events refused because the index was full. Raise limits.max_index_blocks") \
    X(queries_match, COUNTER, "kvb_questions_total", "kind=\"kv_match\"", "Queries answered, by kind") \
    X(queries_route, COUNTER, "kvb_questions_total", "kind=\"kv_route\"", "Queries answered, by kind") \
    X(queries_get, COUNTER, "kvb_questions_total", "kind=\"kv_get\"", "Queries answered, by kind") \
    X(queries_http, COUNTER, "kvb_questions_total", "kind=\"http\"", "Queries answered, by kind") \
    X(queries_grpc, COUNTER, "kvb_questions_total", "kind=\"grpc\"", "Queries answered, by kind") \
    X(queries_at_once, COUNTER, "kvb_questions_at_once_total", "", "Queries answered by the thread that received them, because the index thread was idle") \
    X(queries_refused, COUNTER, "kvb_questions_refused_total", "reason=\"busy\"", "Queries not answered, by reason") \
    X(queries_memory, COUNTER, "kvb_questions_refused_total", "reason=\"memory\"", "Queries not answered, by reason") \
    X(queries_late, COUNTER, "kvb_questions_refused_total", "reason=\"timeout\"", "Queries not answered, by reason") \
    X(queries_failed, COUNTER, "kvb_questions_refused_total", "reason=\"error\"", "Queries not answered, by reason") \
    X(queries_mute, COUNTER, "kvb_questions_refused_total", "reason=\"no_reply\"", "Queries not answered, by reason") \
    X(dump_state, COUNTER, "kvb_dump_streams_left_out_total", "reason=\"state\"", "Streams that dumps as RouterEvents left out, by reason: neither EXACT nor PARTIAL, a store, a model name with a colon, another block size than the first stream of the model") \
    X(dump_store, COUNTER, "kvb_dump_streams_left_out_total", "reason=\"store\"", "Streams that dumps as RouterEvents left out, by reason: neither EXACT nor PARTIAL, a store, a model name with a colon, another block size than the first stream of the model") \
    X(dump_model_name, COUNTER, "kvb_dump_streams_left_out_total", "reason=\"model_name\"", "Streams that dumps as RouterEvents left out, by reason: neither EXACT nor PARTIAL, a store, a model name with a colon, another block size than the first stream of the model") \
    X(dump_block_size, COUNTER, "kvb_dump_streams_left_out_total", "reason=\"block_size\"", "Streams that dumps as RouterEvents left out, by reason: neither EXACT nor PARTIAL, a store, a model name with a colon, another block size than the first stream of the model") \
    X(query_duration, HISTOGRAM, "kvb_question_duration_seconds", "", "Seconds from a query's arrival at any door until its answer was sent, or handed to its connection") \
    X(routed, COUNTER, "kvb_route_decisions_total", "", "Requests sent to a worker") \
    X(routed_blocks, COUNTER, "kvb_route_blocks_total", "", "Blocks of the requests routed") \
    X(routed_overlap, COUNTER, "kvb_route_overlap_blocks_total", "", "Blocks of the requests routed that were cached where they went") \
    X(decisions_shared, COUNTER, "kvb_decisions_shared_total", "", "Decisions of other aggregators entered in the books of this one") \
    X(decisions_missing, COUNTER, "kvb_decisions_missing_total", "", "Decisions of other aggregators that never arrived: jumps of their sequence numbers") \
    X(decisions_late, COUNTER, "kvb_decisions_late_total", "", "Decisions of other aggregators that arrived after the end of their request, and were not entered") \
    X(books_version, COUNTER, "kvb_books_other_version_total", "", "Messages of aggregators whose books have another version: skipped") \
    X(peers_refused, COUNTER, "kvb_aggregators_refused_total", "", "Messages of aggregators beyond the 64 that are followed") \
    X(requests_repeated, COUNTER, "kvb_requests_repeated_total", "", "Route decisions that replaced one with the same request_id") \
    X(requests_finished, COUNTER, "kvb_requests_finished_total", "end=\"reported\"", "Requests removed from the books, by cause: reported = finished, ttl = its ttl_ms ran out, no_room = the books were full") \
    X(requests_expired, COUNTER, "kvb_requests_finished_total", "end=\"ttl\"", "Requests removed from the books, by cause: reported = finished, ttl = its ttl_ms ran out, no_room = the books were full") \
    X(requests_evicted, COUNTER, "kvb_requests_finished_total", "end=\"no_room\"", "Requests removed from the books, by cause: reported = finished, ttl = its ttl_ms ran out, no_room = the books were full") \
    X(first_tokens, COUNTER, "kvb_request_first_tokens_total", "", "Reports of the first token of a request in flight") \
    X(finished_unknown, COUNTER, "kvb_request_reports_unknown_total", "kind=\"finished\"", "Reports about requests that were not in flight, by kind") \
    X(first_tokens_unknown, COUNTER, "kvb_request_reports_unknown_total", "kind=\"first_token\"", "Reports about requests that were not in flight, by kind") \
    X(predicted, COUNTER, "kvb_predicted_blocks_total", "", "Blocks that workers were expected to store because a prompt was routed to them") \
    X(predictions_confirmed, COUNTER, "kvb_predictions_ended_total", "end=\"stored\"", "Predicted blocks removed, by cause") \
    X(predictions_expired, COUNTER, "kvb_predictions_ended_total", "end=\"expired\"", "Predicted blocks removed, by cause") \
    X(predictions_retired, COUNTER, "kvb_predictions_ended_total", "end=\"worker_gone\"", "Predicted blocks removed, by cause") \
    X(predictions_evicted, COUNTER, "kvb_predictions_ended_total", "end=\"no_room\"", "Predicted blocks removed, by cause") \
    X(audit_requests, COUNTER, "kvb_audit_requests_total", "", "Finished requests whose cached tokens, as routers report them, were compared with what the stream promised") \
    X(audit_short, COUNTER, "kvb_audit_short_requests_total", "", "Of kvb_audit_requests_total, requests that were given less than promised. A rise means that engines drop blocks without an event") \
    X(audit_promised, COUNTER, "kvb_audit_promised_tokens_total", "", "Cached tokens that streams promised to the requests compared") \
    X(audit_delivered, COUNTER, "kvb_audit_delivered_tokens_total", "", "Cached tokens that engines delivered to them, of each request at most what was promised") \
    X(audit_extra, COUNTER, "kvb_audit_extra_tokens_total", "", "Cached tokens that engines delivered beyond the promise: stored between decision and execution, or missing in the list") \
    X(audit_no_promise, COUNTER, "kvb_audit_left_out_total", "reason=\"no_promise\"", "Reports with cached tokens that were not compared, by reason: nothing was promised, promised blocks were removed in time, the list was emptied or doubted in between, no memory") \
    X(audit_evicted, COUNTER, "kvb_audit_left_out_total", "reason=\"evicted\"", "Reports with cached tokens that were not compared, by reason: nothing was promised, promised blocks were removed in time, the list was emptied or doubted in between, no memory") \
    X(audit_list_changed, COUNTER, "kvb_audit_left_out_total", "reason=\"list_changed\"", "Reports with cached tokens that were not compared, by reason: nothing was promised, promised blocks were removed in time, the list was emptied or doubted in between, no memory") \
    X(audit_no_room, COUNTER, "kvb_audit_left_out_total", "reason=\"no_room\"", "Reports with cached tokens that were not compared, by reason: nothing was promised, promised blocks were removed in time, the list was emptied or doubted in between, no memory") \
    X(audit_alarms, COUNTER, "kvb_audit_alarms_total", "", "Streams that became UNVERIFIED(audit), because their engines delivered fewer cached tokens than promised") \
    X(audit_returns, COUNTER, "kvb_audit_returns_total", "", "Streams that are no longer UNVERIFIED(audit), because their lists were cleared") \
    X(audit_streams, GAUGE, "kvb_audit_streams", "", "Streams that are audited: requests of theirs were compared in the last 10 minutes") \
    X(audit_doubted, GAUGE, "kvb_audit_doubted_streams", "", "Streams whose promises were broken, and whose lists were not cleared since") \
    X(group_member, GAUGE, "kvb_queue_group_member", "", "1 while nats-server gives requests to this aggregator: while it is in router.queue_group, and always without a group") \
    X(group_joins, COUNTER, "kvb_queue_group_joins_total", "", "Times that this aggregator joined the queue group of requests") \
    X(group_leaves, COUNTER, "kvb_queue_group_leaves_total", "", "Times that this aggregator left the queue group of requests") \
    X(group_failures, COUNTER, "kvb_queue_group_failures_total", "", "Attempts to join the queue group of requests that nats-server did not confirm; repeated after 1 s") \
    X(load_published, COUNTER, "kvb_load_stats_published_total", "", "Load statistics published") \
    X(publish_failures, COUNTER, "kvb_publish_failures_total", "", "Messages that could not be published on NATS") \
    KVB_SERVICE_METRICS(X) \
    KVB_HTTP_METRICS(X) \
    KVB_GRPC_METRICS(X) \
    X(grpc_without_address, COUNTER, "kvb_grpc_ranks_without_address_total", "", "Ranks left out of answers over gRPC because the address of their worker is not known: set `address` in the bridge's configuration") \
    X(grpc_several_models, COUNTER, "kvb_grpc_several_models_total", "", "Requests over gRPC answered with nothing because there are several models: set grpc.model") \
    KVB_TOKENIZE_METRICS(X) \
    X(turns, COUNTER, "kvb_turns_total", "", "Turns of the index thread. If it does not rise, the aggregator hangs") \
    X(echo_silences, COUNTER, "kvb_nats_echo_silences_total", "", "Times that NATS was connected but did not deliver our own messages back") \
    X(event_ring, GAUGE, "kvb_event_ring_messages", "", "Messages that wait for the index thread") \
    X(event_ring_limit, GAUGE, "kvb_event_ring_limit_messages", "", "The most messages that can wait for the index thread: limits.event_ring. Beyond it they are dropped, and their streams repaired") \
    X(event_lag, REAL_GAUGE, "kvb_event_lag_seconds", "", "How long the oldest message that is not applied has waited, in seconds; above 1 s all streams are STALE(lagging)") \
    X(events_behind, GAUGE, "kvb_stream_behind_events_max", "", "Events that are published, according to heartbeats, but not applied here: the largest number of all streams") \
    X(streams_syncing, GAUGE, "kvb_streams", "state=\"syncing\"", "Streams followed, by state") \
    X(streams_exact, GAUGE, "kvb_streams", "state=\"exact\"", "Streams followed, by state") \
    X(streams_partial, GAUGE, "kvb_streams", "state=\"partial\"", "Streams followed, by state") \
    X(streams_unverified, GAUGE, "kvb_streams", "state=\"unverified\"", "Streams followed, by state") \
    X(streams_stale, GAUGE, "kvb_streams", "state=\"stale\"", "Streams followed, by state") \
    X(streams_down, GAUGE, "kvb_streams", "state=\"down\"", "Streams followed, by state") \
    X(index_nodes, GAUGE, "kvb_index_nodes", "", "Distinct blocks in the index") \
    X(index_limit, GAUGE, "kvb_index_nodes_limit", "", "The most distinct blocks in the index: limits.max_index_blocks") \
    X(index_bytes, GAUGE, "kvb_index_bytes", "", "Memory allocated by the index, in bytes; it never shrinks") \
    X(index_memberships, GAUGE, "kvb_index_blocks", "", "Blocks held, counted once for each worker, rank and tier") \
    X(index_orphans, GAUGE, "kvb_index_orphans", "", "Blocks whose parents are unknown") \
    X(window_blocks, GAUGE, "kvb_window_blocks", "", "Blocks in the window lists of hybrid models, counted once for each worker and rank; at most limits.max_index_blocks") \
    X(other_aggregators, GAUGE, "kvb_other_aggregators", "", "Other aggregators of the same router component that sent a status within the last 3 s") \
    X(leads, GAUGE, "kvb_aggregator_leads", "", "1 in the one aggregator that publishes load_stats") \
    X(same_id, GAUGE, "kvb_aggregator_same_id", "", "1 while another aggregator has the id of this one: restart one of them") \
    X(requests_in_flight, GAUGE, "kvb_requests_in_flight", "", "Routed requests that nobody has reported as finished") \
    X(predicted_now, GAUGE, "kvb_predicted_blocks", "", "Blocks that workers are expected to store soon") \
    X(gateway_by_tokens, COUNTER, "kvb_gateway_requests_total", "by=\"tokens\"", "Requests that gateways asked about, by what the pick was made of: token ids; a text that was known; tokenize = a text whose tokens an engine has just said; the beginning of a text; load; none: nobody could be picked") \
    X(gateway_by_text, COUNTER, "kvb_gateway_requests_total", "by=\"text\"", "Requests that gateways asked about, by what the pick was made of: token ids; a text that was known; tokenize = a text whose tokens an engine has just said; the beginning of a text; load; none: nobody could be picked") \
    X(gateway_by_tokenize, COUNTER, "kvb_gateway_requests_total", "by=\"tokenize\"", "Requests that gateways asked about, by what the pick was made of: token ids; a text that was known; tokenize = a text whose tokens an engine has just said; the beginning of a text; load; none: nobody could be picked") \
    X(gateway_by_prefix, COUNTER, "kvb_gateway_requests_total", "by=\"prefix\"", "Requests that gateways asked about, by what the pick was made of: token ids; a text that was known; tokenize = a text whose tokens an engine has just said; the beginning of a text; load; none: nobody could be picked") \
    X(gateway_by_load, COUNTER, "kvb_gateway_requests_total", "by=\"load\"", "Requests that gateways asked about, by what the pick was made of: token ids; a text that was known; tokenize = a text whose tokens an engine has just said; the beginning of a text; load; none: nobody could be picked") \
    X(gateway_by_none, COUNTER, "kvb_gateway_requests_total", "by=\"none\"", "Requests that gateways asked about, by what the pick was made of: token ids; a text that was known; tokenize = a text whose tokens an engine has just said; the beginning of a text; load; none: nobody could be picked") \
    X(gateway_no_body, COUNTER, "kvb_gateway_reasons_total", "reason=\"no_body\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_headers_only, COUNTER, "kvb_gateway_reasons_total", "reason=\"headers_only\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_other_path, COUNTER, "kvb_gateway_reasons_total", "reason=\"other_path\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_not_json, COUNTER, "kvb_gateway_reasons_total", "reason=\"not_json\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_media, COUNTER, "kvb_gateway_reasons_total", "reason=\"media\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_too_large, COUNTER, "kvb_gateway_reasons_total", "reason=\"too_large\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_busy, COUNTER, "kvb_gateway_reasons_total", "reason=\"busy\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_no_prompt, COUNTER, "kvb_gateway_reasons_total", "reason=\"no_prompt\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_cache_salt, COUNTER, "kvb_gateway_reasons_total", "reason=\"cache_salt\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_unknown_model, COUNTER, "kvb_gateway_reasons_total", "reason=\"unknown_model\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_not_ready, COUNTER, "kvb_gateway_reasons_total", "reason=\"not_ready\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_no_endpoint, COUNTER, "kvb_gateway_reasons_total", "reason=\"no_endpoint\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_tokenize, COUNTER, "kvb_gateway_reasons_total", "reason=\"tokenize\"", "Picks that were not made of all tokens, by reason; tokenize: see kvb_tokenize_failures_total. no_endpoint: answered with 503") \
    X(gateway_pick, HISTOGRAM, "kvb_gateway_pick_seconds", "", "Seconds from the last byte of a body that a pick needs to the answer") \
    X(gateway_complete, COUNTER, "kvb_gateway_ended_total", "how=\"complete\"", "Streams of gateways that ended: complete; the client left; the picker has refused; early: ended by us for lack of memory, or because its messages are wrong") \
    X(gateway_client, COUNTER, "kvb_gateway_ended_total", "how=\"client\"", "Streams of gateways that ended: complete; the client left; the picker has refused; early: ended by us for lack of memory, or because its messages are wrong") \
    X(gateway_picker, COUNTER, "kvb_gateway_ended_total", "how=\"picker\"", "Streams of gateways that ended: complete; the client left; the picker has refused; early: ended by us for lack of memory, or because its messages are wrong") \
    X(gateway_early, COUNTER, "kvb_gateway_ended_total", "how=\"early\"", "Streams of gateways that ended: complete; the client left; the picker has refused; early: ended by us for lack of memory, or because its messages are wrong") \
    X(gateway_streams, GAUGE, "kvb_gateway_streams", "", "Streams of gateways that are open; at most 16384 of each listener") \
    X(gateway_held, GAUGE, "kvb_gateway_held_bytes", "", "Memory that bodies of gateways take; above 256 MiB of a listener, or half of it of a connection, picks are made by load") \
    X(gateway_passed_on, COUNTER, "kvb_gateway_passed_on_total", "", "Requests that were picked before their body was whole, because it is too large or there is no memory for it") \
    X(gateway_served_other, COUNTER, "kvb_gateway_served_other_total", "", "Requests that the gateway sent to another engine than the pick") \
    X(gateway_cached_tokens, COUNTER, "kvb_gateway_cached_tokens_total", "", "Tokens that engines took from their caches, as their answers say") \
    X(gateway_prompt_tokens, COUNTER, "kvb_gateway_prompt_tokens_total", "", "Tokens of prompts that picks were made of") \
    X(gateway_after_end, COUNTER, "kvb_gateway_after_end_total", "", "Parts of bodies that came after their end and were ignored") \
    X(gateway_endpoints, GAUGE, "kvb_gateway_endpoints", "", "Different endpoints of workers that can be picked") \
    X(gateway_without_endpoint, GAUGE, "kvb_gateway_without_endpoint", "", "Workers whose address is no literal IP address, and which no gateway gets") \
    X(endpoints, GAUGE, "kvb_load_endpoints", "", "Endpoints (ranks of workers) in the load statistics") \
    X(endpoints_stale, GAUGE, "kvb_load_endpoints_stale", "", "Endpoints silent for load.expire_ms, which are not in the load statistics") \
    X(load_avg, REAL_GAUGE, "kvb_load_avg", "", "Mean load of the endpoints; with load.statistic = ratio the share of KV blocks in use, 0 to 1") \
    X(load_std, REAL_GAUGE, "kvb_load_std", "", "Standard deviation of the load of the endpoints, in the unit of kvb_load_avg")
/* clang-format on */

enum kvb_aggregator_metric {
#define KVB_AGGREGATOR_METRIC_ID(id, type, name, labels, help)                                     \
    kvb_aggregator_##id,                                                                           \
        kvb_aggregator_##id##_end = kvb_aggregator_##id + kvb_metric_slots_##type - 1,
    KVB_AGGREGATOR_METRICS(KVB_AGGREGATOR_METRIC_ID)
#undef KVB_AGGREGATOR_METRIC_ID
        kvb_aggregator_metric_count
};

/* The rows, in the order of the enum. */
extern const struct kvb_metric_row kvb_aggregator_metric_rows[kvb_aggregator_metric_count];
