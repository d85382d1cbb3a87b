#pragma once

#include "core/metric.h"
#include "daemon/http.h"
#include "daemon/metrics.h"
#include "daemon/service.h"

/* What a bridge counts: one row a metric, the enum made from the same table.
 *     X(id, type, name, labels, help)                                          */
/* clang-format off */
#define KVB_BRIDGE_METRICS(X) \
    KVB_DAEMON_METRICS(X) \
    X(batches_received, COUNTER, "kvb_batches_received_total", "", "Messages received from engines' event sockets") \
    X(batches_applied, COUNTER, "kvb_batches_applied_total", "", "Batches applied, live and replayed") \
    X(events_applied, COUNTER, "kvb_events_applied_total", "", "Events of engines applied") \
    X(frames_refused, COUNTER, "kvb_batches_refused_total", "reason=\"frames\"", "Messages that could not be used, by reason") \
    X(strangers_refused, COUNTER, "kvb_batches_refused_total", "reason=\"stranger\"", "Messages that could not be used, by reason") \
    X(payloads_refused, COUNTER, "kvb_batches_refused_total", "reason=\"payload\"", "Messages that could not be used, by reason") \
    X(skipped_bad_stored, COUNTER, "kvb_events_skipped_total", "reason=\"bad_stored\"", "Events passed over, by reason") \
    X(skipped_bad_removed, COUNTER, "kvb_events_skipped_total", "reason=\"bad_removed\"", "Events passed over, by reason") \
    X(skipped_unknown_event, COUNTER, "kvb_events_skipped_total", "reason=\"unknown_event\"", "Events passed over, by reason") \
    X(skipped_no_tokens, COUNTER, "kvb_events_skipped_total", "reason=\"no_tokens\"", "Events passed over, by reason") \
    X(skipped_not_prefix, COUNTER, "kvb_events_skipped_total", "reason=\"not_prefix\"", "Events passed over, by reason") \
    X(skipped_remote, COUNTER, "kvb_events_skipped_total", "reason=\"remote\"", "Events passed over, by reason") \
    X(skipped_unmatchable, COUNTER, "kvb_events_skipped_total", "reason=\"unmatchable\"", "Events passed over, by reason") \
    X(skipped_other_model, COUNTER, "kvb_events_skipped_total", "reason=\"other_model\"", "Events passed over, by reason") \
    X(skipped_self_parent, COUNTER, "kvb_events_skipped_total", "reason=\"self_parent\"", "Events passed over, by reason") \
    X(skipped_shape, COUNTER, "kvb_events_skipped_total", "reason=\"shape\"", "Events passed over, by reason") \
    X(skipped_group, COUNTER, "kvb_events_skipped_total", "reason=\"group\"", "Events passed over, by reason") \
    X(skipped_name, COUNTER, "kvb_events_skipped_total", "reason=\"name\"", "Events passed over, by reason") \
    X(unknown_media, COUNTER, "kvb_events_unknown_medium_total", "", "Events of blocks in a medium that is on no list: workers.unknown_medium says which tier that is") \
    X(blocks_window_elsewhere, COUNTER, "kvb_blocks_window_elsewhere_total", "", "Blocks of sliding-window groups in tiers other than the device; they are not listed") \
    X(blocks_unmatchable, COUNTER, "kvb_blocks_unmatchable_total", "", "Blocks stored that no query can name: keyed by bytes of unknown meaning") \
    X(reorder_overflows, COUNTER, "kvb_held_overflows_total", "", "Times that more batches waited for a replay than limits.max_held_bytes holds: the stream began again") \
    X(duplicates, COUNTER, "kvb_batches_duplicate_total", "", "Batches received twice") \
    X(gaps, COUNTER, "kvb_gaps_total", "", "Jumps in an engine's sequence numbers") \
    X(batches_missed, COUNTER, "kvb_batches_missed_total", "", "Batches missing between two sequence numbers received") \
    X(replays_requested, COUNTER, "kvb_replays_total", "step=\"requested\"", "Replays requested of engines") \
    X(replays_completed, COUNTER, "kvb_replays_total", "step=\"completed\"", "Replays requested of engines") \
    X(replays_failed, COUNTER, "kvb_replays_total", "step=\"failed\"", "Replays requested of engines") \
    X(replays_cut, COUNTER, "kvb_replays_total", "step=\"cut\"", "Replays requested of engines") \
    X(replays_no_files, COUNTER, "kvb_replays_total", "step=\"no_files\"", "Replays requested of engines") \
    X(replays_running_max, GAUGE, "kvb_replays_running_most", "", "The most replays that ran at once; 8 is the ceiling") \
    X(batches_replayed, COUNTER, "kvb_batches_replayed_total", "", "Batches that came by replay") \
    X(replies_refused, COUNTER, "kvb_replies_refused_total", "", "Replay replies that were neither batch nor end") \
    X(restarts, COUNTER, "kvb_engine_restarts_total", "", "Engine restarts detected") \
    X(clears, COUNTER, "kvb_streams_cleared_total", "", "Streams whose list was restarted because something could not be repaired") \
    X(rank_mismatches, COUNTER, "kvb_rank_mismatches_total", "", "Batches that name another rank than their connection") \
    X(events_published, COUNTER, "kvb_events_published_total", "", "Router events published") \
    X(messages_published, COUNTER, "kvb_messages_published_total", "", "NATS messages published") \
    X(publish_failures, COUNTER, "kvb_publish_failures_total", "", "Publishes that NATS did not take") \
    X(refresh_streams, COUNTER, "kvb_refresh_streams_total", "", "Streams whose blocks were all stored again, for routers of plain JSON that came late") \
    X(refresh_given_up, COUNTER, "kvb_refresh_given_up_total", "", "Streams whose blocks were not all stored again: they were cleared or went away meanwhile, or memory was out") \
    X(refresh_blocks, COUNTER, "kvb_refresh_blocks_total", "", "Blocks stored again") \
    X(refresh_bytes, COUNTER, "kvb_refresh_bytes_total", "", "Bytes of the events that stored blocks again") \
    X(refresh_seconds, REAL_COUNTER, "kvb_refresh_seconds_total", "", "Processor time used to store blocks again, seconds") \
    X(refresh_round, REAL_GAUGE, "kvb_refresh_round_seconds", "", "How long it took to store the blocks of all streams again, the newest time, seconds") \
    X(refresh_granted, COUNTER, "kvb_refresh_requests_total", "outcome=\"granted\"", "Streams requested on P.kv_refresh, by outcome; refused: requests that could not be read, or not be met") \
    X(refresh_rationed, COUNTER, "kvb_refresh_requests_total", "outcome=\"rationed\"", "Streams requested on P.kv_refresh, by outcome; refused: requests that could not be read, or not be met") \
    X(refresh_away, COUNTER, "kvb_refresh_requests_total", "outcome=\"away\"", "Streams requested on P.kv_refresh, by outcome; refused: requests that could not be read, or not be met") \
    X(refresh_refused, COUNTER, "kvb_refresh_requests_total", "outcome=\"refused\"", "Streams requested on P.kv_refresh, by outcome; refused: requests that could not be read, or not be met") \
    X(sync_requests, COUNTER, "kvb_sync_requests_total", "", "Requests of aggregators that missed events") \
    X(sync_busy, COUNTER, "kvb_sync_refused_total", "reason=\"busy\"", "Requests of aggregators that were not answered, by reason") \
    X(sync_refused, COUNTER, "kvb_sync_refused_total", "reason=\"bad_input\"", "Requests of aggregators that were not answered, by reason") \
    X(sync_failures, COUNTER, "kvb_sync_refused_total", "reason=\"failed\"", "Requests of aggregators that were not answered, by reason") \
    X(sync_chunks, COUNTER, "kvb_sync_chunks_total", "", "Messages sent to aggregators in answer to their requests") \
    X(quarantines, COUNTER, "kvb_quarantines_total", "", "Times that a stream was quarantined: its events took more than half of the ingest thread's time for seconds") \
    X(streams_quarantined, GAUGE, "kvb_streams_quarantined", "", "Streams in quarantine: PARTIAL(overload)") \
    X(batches_unread, COUNTER, "kvb_batches_unread_total", "", "Batches dropped unread during a quarantine; a replay brings them back") \
    X(announcements, COUNTER, "kvb_announcements_total", "", "Streams announced as a whole") \
    X(retellings, COUNTER, "kvb_retellings_total", "", "Streams republished because a rank of the same worker was cleared") \
    X(checkpoints_written, COUNTER, "kvb_checkpoints_written_total", "", "Checkpoints of streams written") \
    X(checkpoint_bytes, COUNTER, "kvb_checkpoint_bytes_total", "", "Bytes of checkpoints written") \
    X(checkpoint_failures, COUNTER, "kvb_checkpoint_failures_total", "", "Checkpoints that could not be written: no room, no permission, a failing disk") \
    X(checkpoints_void, COUNTER, "kvb_checkpoints_void_total", "", "Checkpoints made void because another epoch was published") \
    X(standby_watching, GAUGE, "kvb_standby_streams", "role=\"standby\"", "Streams of a bridge with publish.standby, by role: standby = left to another bridge, active = published by this one; both 0 without publish.standby") \
    X(standby_active, GAUGE, "kvb_standby_streams", "role=\"active\"", "Streams of a bridge with publish.standby, by role: standby = left to another bridge, active = published by this one; both 0 without publish.standby") \
    X(standby_take_overs, COUNTER, "kvb_standby_take_overs_total", "", "Streams that this standby has begun to publish, because no other bridge did") \
    X(standby_yields, COUNTER, "kvb_standby_yields_total", "", "Streams that this standby has handed over to another bridge that publishes them") \
    X(standby_lost, COUNTER, "kvb_standby_messages_lost_total", "", "Heartbeats, statuses and handovers of other bridges for which there was no room; the silence of other bridges is counted anew") \
    X(handovers, COUNTER, "kvb_handovers_total", "", "Streams announced again because a standby has handed them over to this bridge") \
    X(checkpoints_restored, COUNTER, "kvb_checkpoints_restored_total", "", "Streams restored from a checkpoint") \
    X(checkpoints_unreadable, COUNTER, "kvb_checkpoints_refused_total", "reason=\"unreadable\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoints_torn, COUNTER, "kvb_checkpoints_refused_total", "reason=\"torn\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoints_corrupt, COUNTER, "kvb_checkpoints_refused_total", "reason=\"corrupt\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoints_format, COUNTER, "kvb_checkpoints_refused_total", "reason=\"format\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoints_foreign, COUNTER, "kvb_checkpoints_refused_total", "reason=\"foreign\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoints_inconsistent, COUNTER, "kvb_checkpoints_refused_total", "reason=\"inconsistent\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoints_too_large, COUNTER, "kvb_checkpoints_refused_total", "reason=\"too_large\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoints_no_memory, COUNTER, "kvb_checkpoints_refused_total", "reason=\"no_memory\"", "Checkpoints found at the start and not used, by reason") \
    X(checkpoint_pause, REAL_GAUGE, "kvb_checkpoint_pause_seconds", "", "Longest time that engines waited for a part of a checkpoint, seconds") \
    X(load_samples_zmq, COUNTER, "kvb_load_samples_total", "source=\"zmq\"", "Load samples received, each of one rank") \
    X(load_samples_prometheus, COUNTER, "kvb_load_samples_total", "source=\"prometheus\"", "Load samples received, each of one rank") \
    X(load_samples_coordinator, COUNTER, "kvb_load_samples_total", "source=\"coordinator\"", "Load samples received, each of one rank") \
    X(load_refused_message, COUNTER, "kvb_load_samples_refused_total", "reason=\"message\"", "Load messages, samples and single values refused, by reason; protocol: connections that libzmq ended, for a message above 64 KiB or bytes that are not ZMTP") \
    X(load_refused_protocol, COUNTER, "kvb_load_samples_refused_total", "reason=\"protocol\"", "Load messages, samples and single values refused, by reason; protocol: connections that libzmq ended, for a message above 64 KiB or bytes that are not ZMTP") \
    X(load_refused_rank, COUNTER, "kvb_load_samples_refused_total", "reason=\"rank\"", "Load messages, samples and single values refused, by reason; protocol: connections that libzmq ended, for a message above 64 KiB or bytes that are not ZMTP") \
    X(load_refused_figure, COUNTER, "kvb_load_samples_refused_total", "reason=\"figure\"", "Load messages, samples and single values refused, by reason; protocol: connections that libzmq ended, for a message above 64 KiB or bytes that are not ZMTP") \
    X(load_scheduler_samples, COUNTER, "kvb_load_scheduler_samples_total", "", "Load samples of the scheduler's struct (version 1), which has only the numbers of active and waiting requests") \
    X(load_counter_resets, COUNTER, "kvb_load_counter_resets_total", "", "Counters on engines' metrics pages that were reset") \
    X(load_sources_waiting, GAUGE, "kvb_load_sources", "state=\"waiting\"", "Sources of load figures, by state") \
    X(load_sources_fresh, GAUGE, "kvb_load_sources", "state=\"fresh\"", "Sources of load figures, by state") \
    X(load_sources_stale, GAUGE, "kvb_load_sources", "state=\"stale\"", "Sources of load figures, by state") \
    X(scrapes_ok, COUNTER, "kvb_scrapes_total", "outcome=\"ok\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_unreachable, COUNTER, "kvb_scrapes_total", "outcome=\"unreachable\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_late, COUNTER, "kvb_scrapes_total", "outcome=\"late\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_code, COUNTER, "kvb_scrapes_total", "outcome=\"code\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_too_large, COUNTER, "kvb_scrapes_total", "outcome=\"too_large\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_stopped, COUNTER, "kvb_scrapes_total", "outcome=\"stopped\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_foreign, COUNTER, "kvb_scrapes_total", "outcome=\"foreign\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_lost, COUNTER, "kvb_scrape_results_lost_total", "", "Pages that were read and dropped: no memory, or the bridge was too slow") \
    X(dns_list_members, GAUGE, "kvb_dns_list_members", "", "Members of the name whose members are workers") \
    X(dns_list_ok, COUNTER, "kvb_dns_list_lookups_total", "result=\"ok\"", "Look-ups of the name whose members are workers, by result") \
    X(dns_list_no_name, COUNTER, "kvb_dns_list_lookups_total", "result=\"no_name\"", "Look-ups of the name whose members are workers, by result") \
    X(dns_list_timeout, COUNTER, "kvb_dns_list_lookups_total", "result=\"timeout\"", "Look-ups of the name whose members are workers, by result") \
    X(dns_list_failure, COUNTER, "kvb_dns_list_lookups_total", "result=\"failure\"", "Look-ups of the name whose members are workers, by result") \
    X(addresses_refused, COUNTER, "kvb_addresses_refused_total", "", "Attempts to connect to an engine, none of whose addresses register.networks or discover.networks allows") \
    X(dns_questions, COUNTER, "kvb_dns_questions_total", "", "DNS queries for host names of engines") \
    X(dns_no_name, COUNTER, "kvb_dns_failures_total", "reason=\"no_name\"", "DNS queries for host names of engines that gave no address, by reason") \
    X(dns_timeout, COUNTER, "kvb_dns_failures_total", "reason=\"timeout\"", "DNS queries for host names of engines that gave no address, by reason") \
    X(dns_failure, COUNTER, "kvb_dns_failures_total", "reason=\"failure\"", "DNS queries for host names of engines that gave no address, by reason") \
    X(kubernetes_lists, COUNTER, "kvb_kubernetes_requests_total", "verb=\"list\"", "Requests to the Kubernetes API, by verb; a list has one for each 500 pods") \
    X(kubernetes_watches, COUNTER, "kvb_kubernetes_requests_total", "verb=\"watch\"", "Requests to the Kubernetes API, by verb; a list has one for each 500 pods") \
    X(kubernetes_relists, COUNTER, "kvb_kubernetes_relists_total", "", "Lists of pods after the first, because the API server had forgotten the version that was seen last") \
    X(kubernetes_added, COUNTER, "kvb_kubernetes_events_total", "kind=\"added\"", "Events of pods received, by kind") \
    X(kubernetes_modified, COUNTER, "kvb_kubernetes_events_total", "kind=\"modified\"", "Events of pods received, by kind") \
    X(kubernetes_deleted, COUNTER, "kvb_kubernetes_events_total", "kind=\"deleted\"", "Events of pods received, by kind") \
    X(kubernetes_bookmark, COUNTER, "kvb_kubernetes_events_total", "kind=\"bookmark\"", "Events of pods received, by kind") \
    X(kubernetes_error, COUNTER, "kvb_kubernetes_events_total", "kind=\"error\"", "Events of pods received, by kind") \
    X(kubernetes_unknown, COUNTER, "kvb_kubernetes_events_total", "kind=\"unknown\"", "Events of pods received, by kind") \
    X(kubernetes_too_large, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"too_large\"", "Objects of the Kubernetes API that were not looked at, by reason") \
    X(kubernetes_invalid, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"invalid\"", "Objects of the Kubernetes API that were not looked at, by reason") \
    X(kubernetes_other_kind, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"other_kind\"", "Objects of the Kubernetes API that were not looked at, by reason") \
    X(kubernetes_ceiling, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"ceiling\"", "Objects of the Kubernetes API that were not looked at, by reason") \
    X(kubernetes_ports_beyond, COUNTER, "kvb_kubernetes_ports_beyond_total", "", "Container ports above 64 of a pod, which are not looked at") \
    X(kubernetes_restarts, COUNTER, "kvb_kubernetes_restarts_total", "", "Container restarts seen in pods") \
    X(kubernetes_pods_taken, GAUGE, "kvb_kubernetes_pods", "state=\"taken\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_phase, GAUGE, "kvb_kubernetes_pods", "state=\"phase\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_no_ip, GAUGE, "kvb_kubernetes_pods", "state=\"no_ip\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_no_port, GAUGE, "kvb_kubernetes_pods", "state=\"no_port\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_no_model, GAUGE, "kvb_kubernetes_pods", "state=\"no_model\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_no_id, GAUGE, "kvb_kubernetes_pods", "state=\"no_id\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_relabelled, GAUGE, "kvb_kubernetes_pods", "state=\"relabelled\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_id_taken, GAUGE, "kvb_kubernetes_pods", "state=\"id_taken\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_address_taken, GAUGE, "kvb_kubernetes_pods", "state=\"address_taken\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_other_list, GAUGE, "kvb_kubernetes_pods", "state=\"other_list\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_pods_full, GAUGE, "kvb_kubernetes_pods", "state=\"full\"", "Pods listed, by whether they are workers and, if not, why not") \
    X(kubernetes_connected, GAUGE, "kvb_kubernetes_connected", "", "1 while the Kubernetes API answers; 0 without it: all workers stay as they were") \
    KVB_SERVICE_METRICS(X) \
    KVB_HTTP_METRICS(X) \
    X(wait_failures, COUNTER, "kvb_wait_failures_total", "", "Times that the kernel refused to wait for sockets: they were polled instead") \
    X(turns, COUNTER, "kvb_turns_total", "", "Turns of the ingest thread: when it stands still, so does the bridge") \
    X(publishing, GAUGE, "kvb_publishing", "", "1 while events are published; 0 without NATS, or while another bridge of the component speaks another profile") \
    X(streams_syncing, GAUGE, "kvb_streams", "state=\"syncing\"", "Streams served, by state of their lists of blocks") \
    X(streams_exact, GAUGE, "kvb_streams", "state=\"exact\"", "Streams served, by state of their lists of blocks") \
    X(streams_partial, GAUGE, "kvb_streams", "state=\"partial\"", "Streams served, by state of their lists of blocks") \
    X(streams_unverified, GAUGE, "kvb_streams", "state=\"unverified\"", "Streams served, by state of their lists of blocks") \
    X(streams_down, GAUGE, "kvb_streams", "state=\"down\"", "Streams served, by state of their lists of blocks") \
    X(streams_unlisted, GAUGE, "kvb_streams_unlisted", "", "Streams without lines of their own on this page, because of its ceiling") \
    X(blocks_held, GAUGE, "kvb_blocks_held", "", "Blocks listed") \
    X(blocks_doubtful, GAUGE, "kvb_blocks_doubtful", "", "Blocks that may or may not be held") \
    X(blocks_unrooted, GAUGE, "kvb_blocks_unrooted", "", "Blocks whose parents are unknown") \
    X(blocks_unplaced, GAUGE, "kvb_blocks_unplaced", "", "Blocks of sliding-window groups that no full-attention group has") \
    X(blocks_limit, GAUGE, "kvb_stream_blocks_limit", "", "Blocks that one stream may hold: limits.max_stream_blocks")
/* clang-format on */

enum kvb_bridge_metric {
#define KVB_BRIDGE_METRIC_ID(id, type, name, labels, help) kvb_bridge_##id,
    KVB_BRIDGE_METRICS(KVB_BRIDGE_METRIC_ID)
#undef KVB_BRIDGE_METRIC_ID
        kvb_bridge_metric_count
};

/* The rows, in the order of the enum. */
extern const struct kvb_metric_row kvb_bridge_metric_rows[kvb_bridge_metric_count];
