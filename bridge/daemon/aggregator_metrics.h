#pragma once

#include "core/metric.h"

/* What an aggregator counts: one row a metric, the enum made from the same table.
 *     X(id, type, name, labels, help)                                              */
/* clang-format off */
#define KVB_AGGREGATOR_METRICS(X) \
    X(messages_events, COUNTER, "kvb_messages_received_total", "kind=\"kv_events\"", "NATS messages received, by kind") \
    X(messages_load, COUNTER, "kvb_messages_received_total", "kind=\"load_metrics\"", "NATS messages received, by kind") \
    X(messages_heartbeat, COUNTER, "kvb_messages_received_total", "kind=\"kv_heartbeat\"", "NATS messages received, by kind") \
    X(refused_bad_input, COUNTER, "kvb_messages_refused_total", "reason=\"bad_input\"", "NATS messages that could not be used, by reason") \
    X(refused_too_large, COUNTER, "kvb_messages_refused_total", "reason=\"too_large\"", "NATS messages that could not be used, by reason") \
    X(refused_no_memory, COUNTER, "kvb_messages_refused_total", "reason=\"no_memory\"", "NATS messages that could not be used, by reason") \
    X(refused_stream, COUNTER, "kvb_messages_refused_total", "reason=\"too_many_streams\"", "NATS messages that could not be used, by reason") \
    X(refused_dropped, COUNTER, "kvb_messages_refused_total", "reason=\"dropped_by_client\"", "NATS messages that could not be used, by reason") \
    X(events_applied, COUNTER, "kvb_events_applied_total", "", "Router events applied to the index") \
    X(events_old, COUNTER, "kvb_events_old_total", "", "Router events that came twice or late: dropped") \
    X(event_holes, COUNTER, "kvb_event_holes_total", "", "Jumps in a stream's event ids") \
    X(heartbeats_late, COUNTER, "kvb_heartbeats_ahead_total", "", "Heartbeats that spoke of events that had not come") \
    X(streams_differ, COUNTER, "kvb_streams_differ_total", "", "Streams found to list another number of blocks than their bridge") \
    X(epochs_missed, COUNTER, "kvb_epochs_missed_total", "", "Epochs whose beginning was not seen") \
    X(streams_silent, COUNTER, "kvb_streams_silent_total", "", "Streams that missed three heartbeats") \
    X(streams_forgotten, COUNTER, "kvb_streams_forgotten_total", "", "Streams removed after a long silence") \
    X(stored_refused, COUNTER, "kvb_index_refused_total", "", "Stored events for which the index had no room") \
    X(questions_match, COUNTER, "kvb_questions_total", "kind=\"kv_match\"", "Questions answered, by kind") \
    X(questions_route, COUNTER, "kvb_questions_total", "kind=\"kv_route\"", "Questions answered, by kind") \
    X(questions_get, COUNTER, "kvb_questions_total", "kind=\"kv_get\"", "Questions answered, by kind") \
    X(questions_http, COUNTER, "kvb_questions_total", "kind=\"http\"", "Questions answered, by kind") \
    X(questions_refused, COUNTER, "kvb_questions_refused_total", "reason=\"busy\"", "Questions not answered, by reason") \
    X(questions_late, COUNTER, "kvb_questions_refused_total", "reason=\"timeout\"", "Questions not answered, by reason") \
    X(questions_failed, COUNTER, "kvb_questions_refused_total", "reason=\"error\"", "Questions not answered, by reason") \
    X(questions_mute, COUNTER, "kvb_questions_refused_total", "reason=\"no_reply\"", "Questions not answered, by reason") \
    X(routed, COUNTER, "kvb_route_decisions_total", "", "Requests sent to a worker") \
    X(routed_blocks, COUNTER, "kvb_route_blocks_total", "", "Blocks of the requests routed") \
    X(routed_overlap, COUNTER, "kvb_route_overlap_blocks_total", "", "Blocks of the requests routed that were cached where they went") \
    X(load_published, COUNTER, "kvb_load_stats_published_total", "", "Load statistics published") \
    X(publish_failures, COUNTER, "kvb_publish_failures_total", "", "Publishes that NATS did not take") \
    X(nats_connects, COUNTER, "kvb_nats_connects_total", "", "Connections made to NATS") \
    X(nats_connected, GAUGE, "kvb_nats_connected", "", "1 while connected to NATS") \
    X(event_ring, GAUGE, "kvb_event_ring_messages", "", "Messages that wait for the index thread") \
    X(streams_syncing, GAUGE, "kvb_streams", "state=\"syncing\"", "Streams followed, by state") \
    X(streams_exact, GAUGE, "kvb_streams", "state=\"exact\"", "Streams followed, by state") \
    X(streams_partial, GAUGE, "kvb_streams", "state=\"partial\"", "Streams followed, by state") \
    X(streams_unverified, GAUGE, "kvb_streams", "state=\"unverified\"", "Streams followed, by state") \
    X(streams_stale, GAUGE, "kvb_streams", "state=\"stale\"", "Streams followed, by state") \
    X(streams_down, GAUGE, "kvb_streams", "state=\"down\"", "Streams followed, by state") \
    X(index_nodes, GAUGE, "kvb_index_nodes", "", "Distinct blocks in the index") \
    X(index_memberships, GAUGE, "kvb_index_blocks", "", "Blocks held, each worker, rank and tier counted") \
    X(index_orphans, GAUGE, "kvb_index_orphans", "", "Blocks whose parents are unknown") \
    X(endpoints, GAUGE, "kvb_load_endpoints", "", "Endpoints in the load statistics")
/* clang-format on */

enum kvb_aggregator_metric {
#define KVB_AGGREGATOR_METRIC_ID(id, type, name, labels, help) kvb_aggregator_##id,
    KVB_AGGREGATOR_METRICS(KVB_AGGREGATOR_METRIC_ID)
#undef KVB_AGGREGATOR_METRIC_ID
        kvb_aggregator_metric_count
};

/* The rows, in the order of the enum. */
extern const struct kvb_metric_row kvb_aggregator_metric_rows[kvb_aggregator_metric_count];
