#pragma once

#include "core/metric.h"

/* What a bridge counts: one row a metric, the enum made from the same table.
 *     X(id, type, name, labels, help)                                          */
/* clang-format off */
#define KVB_BRIDGE_METRICS(X) \
    X(batches_received, COUNTER, "kvb_batches_received_total", "", "Messages received from engines' event sockets") \
    X(batches_applied, COUNTER, "kvb_batches_applied_total", "", "Batches applied, live and replayed") \
    X(events_applied, COUNTER, "kvb_events_applied_total", "", "Events of engines applied") \
    X(frames_refused, COUNTER, "kvb_batches_refused_total", "reason=\"frames\"", "Messages that could not be used, by reason") \
    X(payloads_refused, COUNTER, "kvb_batches_refused_total", "reason=\"payload\"", "Messages that could not be used, by reason") \
    X(skipped_bad_stored, COUNTER, "kvb_events_skipped_total", "reason=\"bad_stored\"", "Events passed over, by reason") \
    X(skipped_bad_removed, COUNTER, "kvb_events_skipped_total", "reason=\"bad_removed\"", "Events passed over, by reason") \
    X(skipped_unknown_event, COUNTER, "kvb_events_skipped_total", "reason=\"unknown_event\"", "Events passed over, by reason") \
    X(skipped_no_tokens, COUNTER, "kvb_events_skipped_total", "reason=\"no_tokens\"", "Events passed over, by reason") \
    X(skipped_not_prefix, COUNTER, "kvb_events_skipped_total", "reason=\"not_prefix\"", "Events passed over, by reason") \
    X(skipped_remote, COUNTER, "kvb_events_skipped_total", "reason=\"remote\"", "Events passed over, by reason") \
    X(skipped_self_parent, COUNTER, "kvb_events_skipped_total", "reason=\"self_parent\"", "Events passed over, by reason") \
    X(duplicates, COUNTER, "kvb_batches_duplicate_total", "", "Batches that came twice") \
    X(gaps, COUNTER, "kvb_gaps_total", "", "Jumps in an engine's sequence numbers") \
    X(batches_missed, COUNTER, "kvb_batches_missed_total", "", "Sequence numbers jumped over") \
    X(replays_requested, COUNTER, "kvb_replays_total", "step=\"requested\"", "Replays asked of engines") \
    X(replays_completed, COUNTER, "kvb_replays_total", "step=\"completed\"", "Replays asked of engines") \
    X(replays_failed, COUNTER, "kvb_replays_total", "step=\"failed\"", "Replays asked of engines") \
    X(batches_replayed, COUNTER, "kvb_batches_replayed_total", "", "Batches that came by replay") \
    X(replies_refused, COUNTER, "kvb_replies_refused_total", "", "Replay replies that were neither batch nor end") \
    X(restarts, COUNTER, "kvb_engine_restarts_total", "", "Engines found to live another life") \
    X(clears, COUNTER, "kvb_streams_cleared_total", "", "Streams begun again because something could not be repaired") \
    X(rank_mismatches, COUNTER, "kvb_rank_mismatches_total", "", "Batches that name another rank than their connection") \
    X(events_published, COUNTER, "kvb_events_published_total", "", "Router events published") \
    X(messages_published, COUNTER, "kvb_messages_published_total", "", "NATS messages published") \
    X(publish_failures, COUNTER, "kvb_publish_failures_total", "", "Publishes that NATS did not take") \
    X(announcements, COUNTER, "kvb_announcements_total", "", "Streams told anew as a whole") \
    X(load_samples, COUNTER, "kvb_load_samples_total", "", "Load samples received") \
    X(load_refused, COUNTER, "kvb_load_samples_refused_total", "", "Load messages that were no sample") \
    X(nats_connects, COUNTER, "kvb_nats_connects_total", "", "Connections made to NATS") \
    X(nats_connected, GAUGE, "kvb_nats_connected", "", "1 while connected to NATS") \
    X(streams, GAUGE, "kvb_streams", "", "Streams served") \
    X(streams_exact, GAUGE, "kvb_streams_exact", "", "Streams whose list is EXACT") \
    X(blocks_held, GAUGE, "kvb_blocks_held", "", "Blocks listed") \
    X(blocks_doubtful, GAUGE, "kvb_blocks_doubtful", "", "Blocks that may or may not be held") \
    X(blocks_unrooted, GAUGE, "kvb_blocks_unrooted", "", "Blocks whose parents are unknown")
/* clang-format on */

enum kvb_bridge_metric {
#define KVB_BRIDGE_METRIC_ID(id, type, name, labels, help) kvb_bridge_##id,
    KVB_BRIDGE_METRICS(KVB_BRIDGE_METRIC_ID)
#undef KVB_BRIDGE_METRIC_ID
        kvb_bridge_metric_count
};

/* The rows, in the order of the enum. */
extern const struct kvb_metric_row kvb_bridge_metric_rows[kvb_bridge_metric_count];
