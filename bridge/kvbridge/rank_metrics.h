#pragma once

#include "core/metric.h"

/* The metrics of each rank of each worker, one set of values for each rank.
 *
 * The kvcache_zmq_* names, their labels and their meaning are those of AIBrix, which writes them
 * with the prefix aibrix_.  Here pod_key is namespace/name
 * of a pod where both are known, else the worker id, and dp_rank is added.  A message is what
 * the engine calls a batch: one sequence number, any number of events.
 *     X(id, type, name, labels, help) */
/* clang-format off */
#define KVB_RANK_LABELS "pod_key = namespace/name of its pod, else worker id; dp_rank = its data-parallel rank"
#define KVB_RANK_TYPES ", by event_type: BLOCK_STORED, BLOCK_REMOVED, ALL_BLOCKS_CLEARED"
#define KVB_RANK_RECEIVED \
    "Events in live messages that could be decoded; a message has one or more events" KVB_RANK_TYPES ", SKIPPED = not applied, see kvb_events_skipped_total. " KVB_RANK_LABELS
#define KVB_RANK_PROCESSED \
    "Events applied to the list of blocks, replayed ones included, so the number may exceed that of received events" KVB_RANK_TYPES ". " KVB_RANK_LABELS
#define KVB_RANK_ERRORS \
    "Errors, by error_type: reconnect = a failed attempt to connect to the engine, protocol = a connection closed because of a message above 16 MiB, bytes that are not ZMTP or a wrong socket type, flood = a connection ended because 32 MiB of messages waited, consume_events = a message whose frames are not a batch, decode = a payload that cannot be decoded, " \
    "handle_event = an event that was not understood, replay_reply = a reply to a replay request that is neither a batch nor the end marker. " KVB_RANK_LABELS
#define KVB_RANK_STATES \
    "1 for the current state of the stream's list of blocks, 0 for the others; /state gives the reason. " KVB_RANK_LABELS
#define KVB_RANK_METRICS(X) \
    X(connections, COUNTER, "kvcache_zmq_connections_total", "", "Connections made to the engine's event socket (completed ZMQ handshakes). " KVB_RANK_LABELS) \
    X(disconnections, COUNTER, "kvcache_zmq_disconnections_total", "", "Connections to the engine's event socket that were lost. " KVB_RANK_LABELS) \
    X(reconnects, COUNTER, "kvcache_zmq_reconnect_attempts_total", "", "Attempts to connect to the engine's event socket after a failed attempt or a lost connection. A rise means that the engine is not reachable. " KVB_RANK_LABELS) \
    X(connected, GAUGE, "kvcache_zmq_connection_status", "", "1 while connected to the engine's event socket, else 0. " KVB_RANK_LABELS) \
    X(received_stored, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"BLOCK_STORED\"", KVB_RANK_RECEIVED) \
    X(received_removed, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"BLOCK_REMOVED\"", KVB_RANK_RECEIVED) \
    X(received_cleared, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"ALL_BLOCKS_CLEARED\"", KVB_RANK_RECEIVED) \
    X(received_skipped, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"SKIPPED\"", KVB_RANK_RECEIVED) \
    X(processed_stored, COUNTER, "kvcache_zmq_events_processed_total", "event_type=\"BLOCK_STORED\"", KVB_RANK_PROCESSED) \
    X(processed_removed, COUNTER, "kvcache_zmq_events_processed_total", "event_type=\"BLOCK_REMOVED\"", KVB_RANK_PROCESSED) \
    X(processed_cleared, COUNTER, "kvcache_zmq_events_processed_total", "event_type=\"ALL_BLOCKS_CLEARED\"", KVB_RANK_PROCESSED) \
    X(duration, HISTOGRAM, "kvcache_zmq_event_processing_duration_seconds", "", "Time to decode, apply and publish one event, in seconds. It is measured for a run of messages and divided by the number of its events. " KVB_RANK_LABELS) \
    X(missed, COUNTER, "kvcache_zmq_missed_events_total", "", "Messages missing in gaps of the engine's sequence numbers, counted while no replay was running, and newest ones that only a probe has brought; messages that a replay then brings count too. A rise means that messages are lost. " KVB_RANK_LABELS) \
    X(replay_requests, COUNTER, "kvcache_zmq_replay_requests_total", "", "Replays requested from the engine: after a connection, after a gap, and at growing pauses from a silent engine. " KVB_RANK_LABELS) \
    X(replay_success, COUNTER, "kvcache_zmq_replay_success_total", "", "Replays that the engine completed. " KVB_RANK_LABELS) \
    X(replay_failures, COUNTER, "kvcache_zmq_replay_failures_total", "", "Replays that the engine did not answer in time. A replay cut off by a lost connection counts neither as success nor as failure. " KVB_RANK_LABELS) \
    X(error_reconnect, COUNTER, "kvcache_zmq_errors_total", "error_type=\"reconnect\"", KVB_RANK_ERRORS) \
    X(error_protocol, COUNTER, "kvcache_zmq_errors_total", "error_type=\"protocol\"", KVB_RANK_ERRORS) \
    X(error_flood, COUNTER, "kvcache_zmq_errors_total", "error_type=\"flood\"", KVB_RANK_ERRORS) \
    X(error_consume, COUNTER, "kvcache_zmq_errors_total", "error_type=\"consume_events\"", KVB_RANK_ERRORS) \
    X(error_decode, COUNTER, "kvcache_zmq_errors_total", "error_type=\"decode\"", KVB_RANK_ERRORS) \
    X(error_handle, COUNTER, "kvcache_zmq_errors_total", "error_type=\"handle_event\"", KVB_RANK_ERRORS) \
    X(error_reply, COUNTER, "kvcache_zmq_errors_total", "error_type=\"replay_reply\"", KVB_RANK_ERRORS) \
    X(last_sequence, GAUGE, "kvcache_zmq_last_sequence_id", "", "Sequence number of the newest message applied; 0 before the first. " KVB_RANK_LABELS) \
    X(state_syncing, GAUGE, "kvb_stream_state", "state=\"syncing\"", KVB_RANK_STATES) \
    X(state_exact, GAUGE, "kvb_stream_state", "state=\"exact\"", KVB_RANK_STATES) \
    X(state_partial, GAUGE, "kvb_stream_state", "state=\"partial\"", KVB_RANK_STATES) \
    X(state_unverified, GAUGE, "kvb_stream_state", "state=\"unverified\"", KVB_RANK_STATES) \
    X(state_down, GAUGE, "kvb_stream_state", "state=\"down\"", KVB_RANK_STATES) \
    X(blocks, GAUGE, "kvb_stream_blocks", "", "Blocks that the stream lists, over all tiers. " KVB_RANK_LABELS) \
    X(lag, REAL_GAUGE, "kvb_stream_lag_seconds", "", "Time from the engine's time stamp on the newest live message until it was applied, in seconds. It compares two clocks, which must be synchronised. " KVB_RANK_LABELS)
/* clang-format on */

enum kvb_rank_metric {
#define KVB_RANK_METRIC_ID(id, type, name, labels, help)                                           \
    kvb_rank_##id, kvb_rank_##id##_end = kvb_rank_##id + kvb_metric_slots_##type - 1,
    KVB_RANK_METRICS(KVB_RANK_METRIC_ID)
#undef KVB_RANK_METRIC_ID
        kvb_rank_metric_count
};

/* The rows, in the order of the enum. */
extern const struct kvb_metric_row kvb_rank_metric_rows[kvb_rank_metric_count];
