#pragma once

#include "core/metric.h"

/* What a bridge counts of each rank of each worker, one set of values a rank.
 *
 * The kvcache_zmq_* names are those of AIBrix (there with aibrix_ before them), with its
 * labels and their values, and mean the same where it writes them; pod_key is the worker
 * here, and dp_rank tells its ranks apart.  A message is what the engine calls a batch: one
 * sequence number, any number of events. X(id, type, name, labels, help) */
/* clang-format off */
#define KVB_RANK_LABELS "pod_key: worker id, dp_rank: data-parallel rank of it"
#define KVB_RANK_TYPES ", by event_type: BLOCK_STORED, BLOCK_REMOVED, ALL_BLOCKS_CLEARED"
#define KVB_RANK_RECEIVED \
    "Events in messages that came live and could be read; a message has one or many" KVB_RANK_TYPES ", SKIPPED = passed over, see kvb_events_skipped_total. " KVB_RANK_LABELS
#define KVB_RANK_PROCESSED \
    "Events applied to the list of blocks, replayed ones too: may be above those received" KVB_RANK_TYPES ". " KVB_RANK_LABELS
#define KVB_RANK_ERRORS \
    "What went wrong, by error_type: reconnect = an attempt to connect to the engine that failed, protocol = a connection that ended with a message above 16 MiB or with bytes or a socket type that are not an engine's, security = a handshake that failed because of CURVE keys, or may have; input that could not be used: consume_events = a message whose frames are no batch, decode = a payload that cannot be read, " \
    "handle_event = an event in it that was not understood, replay_reply = a reply to a replay request that is neither batch nor end. " KVB_RANK_LABELS
#define KVB_RANK_STATES \
    "1 for the state that the stream's list of blocks is in, 0 for the others; /state says the reason. " KVB_RANK_LABELS
#define KVB_RANK_METRICS(X) \
    X(connections, COUNTER, "kvcache_zmq_connections_total", "", "Connections made to the engine's event socket (ZMQ handshakes completed). " KVB_RANK_LABELS) \
    X(disconnections, COUNTER, "kvcache_zmq_disconnections_total", "", "Connections to the engine's event socket that were lost. " KVB_RANK_LABELS) \
    X(reconnects, COUNTER, "kvcache_zmq_reconnect_attempts_total", "", "Attempts to connect to the engine's event socket after one that failed or a connection that was lost. " KVB_RANK_LABELS) \
    X(connected, GAUGE, "kvcache_zmq_connection_status", "", "1 while connected to the engine's event socket, else 0. " KVB_RANK_LABELS) \
    X(received_stored, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"BLOCK_STORED\"", KVB_RANK_RECEIVED) \
    X(received_removed, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"BLOCK_REMOVED\"", KVB_RANK_RECEIVED) \
    X(received_cleared, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"ALL_BLOCKS_CLEARED\"", KVB_RANK_RECEIVED) \
    X(received_skipped, COUNTER, "kvcache_zmq_events_received_total", "event_type=\"SKIPPED\"", KVB_RANK_RECEIVED) \
    X(processed_stored, COUNTER, "kvcache_zmq_events_processed_total", "event_type=\"BLOCK_STORED\"", KVB_RANK_PROCESSED) \
    X(processed_removed, COUNTER, "kvcache_zmq_events_processed_total", "event_type=\"BLOCK_REMOVED\"", KVB_RANK_PROCESSED) \
    X(processed_cleared, COUNTER, "kvcache_zmq_events_processed_total", "event_type=\"ALL_BLOCKS_CLEARED\"", KVB_RANK_PROCESSED) \
    X(duration, HISTOGRAM, "kvcache_zmq_event_processing_duration_seconds", "", "Seconds to take in one event: decode, apply, publish. Measured by run of messages, live or replayed, and shared among its events. " KVB_RANK_LABELS) \
    X(missed, COUNTER, "kvcache_zmq_missed_events_total", "", "Messages that the engine's sequence numbers jumped over, found while no replay was under way; what a replay brings back is counted too. " KVB_RANK_LABELS) \
    X(replay_requests, COUNTER, "kvcache_zmq_replay_requests_total", "", "Replays asked of the engine: after a connect, after a gap, and once a second of an idle engine. " KVB_RANK_LABELS) \
    X(replay_success, COUNTER, "kvcache_zmq_replay_success_total", "", "Replays that the engine answered to their end. " KVB_RANK_LABELS) \
    X(replay_failures, COUNTER, "kvcache_zmq_replay_failures_total", "", "Replays that the engine did not answer in time; one cut off by a lost connection is neither success nor failure. " KVB_RANK_LABELS) \
    X(error_reconnect, COUNTER, "kvcache_zmq_errors_total", "error_type=\"reconnect\"", KVB_RANK_ERRORS) \
    X(error_protocol, COUNTER, "kvcache_zmq_errors_total", "error_type=\"protocol\"", KVB_RANK_ERRORS) \
    X(error_security, COUNTER, "kvcache_zmq_errors_total", "error_type=\"security\"", KVB_RANK_ERRORS) \
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
    X(blocks, GAUGE, "kvb_stream_blocks", "", "Blocks that the stream lists, all tiers. " KVB_RANK_LABELS) \
    X(lag, REAL_GAUGE, "kvb_stream_lag_seconds", "", "Seconds from the engine's time stamp on the newest live message until it was taken in; both clocks are read, so they must agree. " KVB_RANK_LABELS)
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
