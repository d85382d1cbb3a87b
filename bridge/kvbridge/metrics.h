#pragma once

#include "core/metric.h"
#include "daemon/http.h"
#include "daemon/metrics.h"
#include "daemon/service.h"

/* The metrics of a bridge: one row for each, from which the enum is made too.
 *     X(id, type, name, labels, help)                                          */
/* clang-format off */
#define KVB_BRIDGE_METRICS(X) \
    KVB_DAEMON_METRICS(X) \
    X(batches_received, COUNTER, "kvb_batches_received_total", "", "Messages received from engines' event sockets") \
    X(batches_applied, COUNTER, "kvb_batches_applied_total", "", "Batches applied to the lists of blocks, live and replayed") \
    X(events_applied, COUNTER, "kvb_events_applied_total", "", "Events of engines applied to the lists of blocks") \
    X(frames_refused, COUNTER, "kvb_batches_refused_total", "reason=\"frames\"", "Messages that could not be used, by reason: frames = wrong number or size of frames, payload = not decodable, stranger = not from the engine. A rise means a wrong port, topic or engine version") \
    X(strangers_refused, COUNTER, "kvb_batches_refused_total", "reason=\"stranger\"", "Messages that could not be used, by reason: frames = wrong number or size of frames, payload = not decodable, stranger = not from the engine. A rise means a wrong port, topic or engine version") \
    X(payloads_refused, COUNTER, "kvb_batches_refused_total", "reason=\"payload\"", "Messages that could not be used, by reason: frames = wrong number or size of frames, payload = not decodable, stranger = not from the engine. A rise means a wrong port, topic or engine version") \
    X(skipped_bad_stored, COUNTER, "kvb_events_skipped_total", "reason=\"bad_stored\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_bad_removed, COUNTER, "kvb_events_skipped_total", "reason=\"bad_removed\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_unknown_event, COUNTER, "kvb_events_skipped_total", "reason=\"unknown_event\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_no_tokens, COUNTER, "kvb_events_skipped_total", "reason=\"no_tokens\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_not_prefix, COUNTER, "kvb_events_skipped_total", "reason=\"not_prefix\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_remote, COUNTER, "kvb_events_skipped_total", "reason=\"remote\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_unmatchable, COUNTER, "kvb_events_skipped_total", "reason=\"unmatchable\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_other_model, COUNTER, "kvb_events_skipped_total", "reason=\"other_model\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_unknown_key, COUNTER, "kvb_events_skipped_total", "reason=\"unknown_key\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_bad_replica, COUNTER, "kvb_events_skipped_total", "reason=\"bad_replica\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_self_parent, COUNTER, "kvb_events_skipped_total", "reason=\"self_parent\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_shape, COUNTER, "kvb_events_skipped_total", "reason=\"shape\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_group, COUNTER, "kvb_events_skipped_total", "reason=\"group\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(skipped_name, COUNTER, "kvb_events_skipped_total", "reason=\"name\"", "Events of engines that were skipped, by reason. A rise of a bad_ reason means an engine version that is not supported") \
    X(unknown_media, COUNTER, "kvb_events_unknown_medium_total", "", "Events with a storage medium of unknown name. Their blocks count in the tier of workers.unknown_medium") \
    X(blocks_window_elsewhere, COUNTER, "kvb_blocks_window_elsewhere_total", "", "Blocks of sliding-window groups in tiers other than the device, which are not listed") \
    X(blocks_unmatchable, COUNTER, "kvb_blocks_unmatchable_total", "", "Stored blocks that no query can name, because their keys contain bytes of unknown meaning") \
    X(reorder_overflows, COUNTER, "kvb_held_overflows_total", "", "Streams restarted because batches that waited for a replay exceeded 64 MiB") \
    X(duplicates, COUNTER, "kvb_batches_duplicate_total", "", "Batches received twice and dropped") \
    X(gaps, COUNTER, "kvb_gaps_total", "", "Gaps in engines' sequence numbers. A rise means that messages are lost between engine and bridge") \
    X(batches_missed, COUNTER, "kvb_batches_missed_total", "", "Batches missing in gaps of the sequence numbers; a replay may still bring them") \
    X(replays_requested, COUNTER, "kvb_replays_total", "step=\"requested\"", "Replays requested from engines, by step: requested, completed, failed = no answer in time, cut = larger than 64 MiB, no_files = too few open files") \
    X(replays_completed, COUNTER, "kvb_replays_total", "step=\"completed\"", "Replays requested from engines, by step: requested, completed, failed = no answer in time, cut = larger than 64 MiB, no_files = too few open files") \
    X(replays_failed, COUNTER, "kvb_replays_total", "step=\"failed\"", "Replays requested from engines, by step: requested, completed, failed = no answer in time, cut = larger than 64 MiB, no_files = too few open files") \
    X(replays_cut, COUNTER, "kvb_replays_total", "step=\"cut\"", "Replays requested from engines, by step: requested, completed, failed = no answer in time, cut = larger than 64 MiB, no_files = too few open files") \
    X(replays_no_files, COUNTER, "kvb_replays_total", "step=\"no_files\"", "Replays requested from engines, by step: requested, completed, failed = no answer in time, cut = larger than 64 MiB, no_files = too few open files") \
    X(replays_running_max, GAUGE, "kvb_replays_running_most", "", "The most replays that ran at once since the start; the limit is 8") \
    X(batches_replayed, COUNTER, "kvb_batches_replayed_total", "", "Batches received by replay") \
    X(replies_refused, COUNTER, "kvb_replies_refused_total", "", "Replies to replay requests that were neither a batch nor the end marker") \
    X(restarts, COUNTER, "kvb_engine_restarts_total", "", "Engine restarts detected") \
    X(clears, COUNTER, "kvb_streams_cleared_total", "", "Streams published as empty and begun again, because their list could not be repaired. A rise means lost cache knowledge") \
    X(rank_mismatches, COUNTER, "kvb_rank_mismatches_total", "", "Batches that name another data-parallel rank than their connection. A rise means a wrong port or first_rank") \
    X(events_published, COUNTER, "kvb_events_published_total", "", "Router events published on NATS") \
    X(messages_published, COUNTER, "kvb_messages_published_total", "", "NATS messages published") \
    X(publish_failures, COUNTER, "kvb_publish_failures_total", "", "Messages that could not be published on NATS") \
    X(refresh_streams, COUNTER, "kvb_refresh_streams_total", "", "Streams of which all blocks were stored again, for routers of plain JSON that start late") \
    X(refresh_given_up, COUNTER, "kvb_refresh_given_up_total", "", "Refreshes that were given up: the stream was cleared or removed meanwhile, or memory ran out") \
    X(refresh_blocks, COUNTER, "kvb_refresh_blocks_total", "", "Blocks stored again by refreshes") \
    X(refresh_bytes, COUNTER, "kvb_refresh_bytes_total", "", "Bytes of the events that refreshes published") \
    X(refresh_seconds, REAL_COUNTER, "kvb_refresh_seconds_total", "", "Processor time used by refreshes, in seconds") \
    X(refresh_round, REAL_GAUGE, "kvb_refresh_round_seconds", "", "How long the last refresh of all streams took, in seconds") \
    X(refresh_granted, COUNTER, "kvb_refresh_requests_total", "outcome=\"granted\"", "Streams requested on P.kv_refresh, by outcome: granted, rationed = requested again too soon, away = not announced, or its engine is unreachable, refused = the request could not be read or granted") \
    X(refresh_rationed, COUNTER, "kvb_refresh_requests_total", "outcome=\"rationed\"", "Streams requested on P.kv_refresh, by outcome: granted, rationed = requested again too soon, away = not announced, or its engine is unreachable, refused = the request could not be read or granted") \
    X(refresh_away, COUNTER, "kvb_refresh_requests_total", "outcome=\"away\"", "Streams requested on P.kv_refresh, by outcome: granted, rationed = requested again too soon, away = not announced, or its engine is unreachable, refused = the request could not be read or granted") \
    X(refresh_refused, COUNTER, "kvb_refresh_requests_total", "outcome=\"refused\"", "Streams requested on P.kv_refresh, by outcome: granted, rationed = requested again too soon, away = not announced, or its engine is unreachable, refused = the request could not be read or granted") \
    X(sync_requests, COUNTER, "kvb_sync_requests_total", "", "Requests of aggregators that missed events") \
    X(sync_busy, COUNTER, "kvb_sync_refused_total", "reason=\"busy\"", "Requests of aggregators that were not answered, by reason: busy, bad_input, failed") \
    X(sync_refused, COUNTER, "kvb_sync_refused_total", "reason=\"bad_input\"", "Requests of aggregators that were not answered, by reason: busy, bad_input, failed") \
    X(sync_failures, COUNTER, "kvb_sync_refused_total", "reason=\"failed\"", "Requests of aggregators that were not answered, by reason: busy, bad_input, failed") \
    X(sync_chunks, COUNTER, "kvb_sync_chunks_total", "", "Messages sent in answer to requests of aggregators") \
    X(rivals, GAUGE, "kvb_rival_bridges", "", "Other bridges that publish streams of this one now. Above 0 means a misconfiguration; the log names both") \
    X(rivals_refused, COUNTER, "kvb_rival_messages_refused_total", "", "Messages of other bridges about their streams that could not be read, or of more than 16 rivals") \
    X(quarantines, COUNTER, "kvb_quarantines_total", "", "Quarantines begun: the events of one stream took more than half of the ingest thread's time for seconds. A rise means an overload by one engine") \
    X(streams_quarantined, GAUGE, "kvb_streams_quarantined", "", "Streams in quarantine now; their state is DOWN(engine_away)") \
    X(batches_unread, COUNTER, "kvb_batches_unread_total", "", "Batches dropped unread during a quarantine; a replay brings them back") \
    X(announcements, COUNTER, "kvb_announcements_total", "", "Streams announced as a whole") \
    X(retellings, COUNTER, "kvb_retellings_total", "", "Streams republished because another rank of the same worker was cleared") \
    X(checkpoints_written, COUNTER, "kvb_checkpoints_written_total", "", "Checkpoints of streams written") \
    X(checkpoint_bytes, COUNTER, "kvb_checkpoint_bytes_total", "", "Bytes of checkpoints written") \
    X(checkpoint_failures, COUNTER, "kvb_checkpoint_failures_total", "", "Checkpoints that could not be written: disk full, no permission or I/O error") \
    X(checkpoints_void, COUNTER, "kvb_checkpoints_void_total", "", "Checkpoints invalidated because a new epoch was published") \
    X(checkpoints_restored, COUNTER, "kvb_checkpoints_restored_total", "", "Streams restored from a checkpoint") \
    X(checkpoints_unreadable, COUNTER, "kvb_checkpoints_refused_total", "reason=\"unreadable\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoints_torn, COUNTER, "kvb_checkpoints_refused_total", "reason=\"torn\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoints_corrupt, COUNTER, "kvb_checkpoints_refused_total", "reason=\"corrupt\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoints_format, COUNTER, "kvb_checkpoints_refused_total", "reason=\"format\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoints_foreign, COUNTER, "kvb_checkpoints_refused_total", "reason=\"foreign\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoints_inconsistent, COUNTER, "kvb_checkpoints_refused_total", "reason=\"inconsistent\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoints_too_large, COUNTER, "kvb_checkpoints_refused_total", "reason=\"too_large\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoints_no_memory, COUNTER, "kvb_checkpoints_refused_total", "reason=\"no_memory\"", "Checkpoints found at the start but not used, by reason") \
    X(checkpoint_pause, REAL_GAUGE, "kvb_checkpoint_pause_seconds", "", "The longest time that ingest stopped for a part of a checkpoint, in seconds") \
    X(republish_batches, COUNTER, "kvb_republish_batches_total", "", "Batches republished for readers of engines, announcements and empty ones too") \
    X(republish_bytes, COUNTER, "kvb_republish_bytes_total", "", "Bytes of their payloads; each reader receives as many") \
    X(republish_announcements, COUNTER, "kvb_republish_announcements_total", "", "Times that all blocks of a rank were republished once more, for readers that knew nothing") \
    X(republish_announced_bytes, COUNTER, "kvb_republish_announced_bytes_total", "", "Bytes of payloads of these") \
    X(republish_requests, COUNTER, "kvb_republish_requests_total", "", "Replays that readers of republished events requested") \
    X(republish_snapshots, COUNTER, "kvb_republish_snapshots_total", "", "Requests answered with what is held now, because the batches are not kept any more") \
    X(republish_replies, COUNTER, "kvb_republish_replies_total", "", "Batches sent as replies to requests") \
    X(republish_refused, COUNTER, "kvb_republish_requests_refused_total", "", "Requests without an answer: more than 64 readers of one rank wait for one") \
    X(republish_dropped, COUNTER, "kvb_republish_replies_dropped_total", "", "Answers given up: the reader is gone, or took nothing for 30 s") \
    X(republish_lost, COUNTER, "kvb_republish_batches_lost_total", "", "Batches that could not be made for want of memory; readers get all blocks once more") \
    X(republish_no_room, COUNTER, "kvb_republish_no_room_total", "", "Blocks left out because limits.max_stream_blocks, names of 1,024 adapters, or memory was used up") \
    X(republish_blocks, GAUGE, "kvb_republish_blocks", "", "Blocks that readers of republished events know") \
    X(republish_left_out, GAUGE, "kvb_republish_blocks_left_out", "", "Blocks held and not republished: salted, multimodal, of another block size, without tokens, or below such a block") \
    X(republish_token_bytes, GAUGE, "kvb_republish_token_bytes", "", "Memory for token ids and nodes of republished blocks") \
    X(republish_clients, GAUGE, "kvb_republish_answers", "", "Answers to readers of republished events under way") \
    X(republish_snapshot_bytes, GAUGE, "kvb_republish_answer_bytes", "", "Memory for snapshots in these") \
    X(republish_readers_ended, COUNTER, "kvb_republish_readers_ended_total", "", "Readers of republished events that were disconnected, because they sent more than readers do: above 32 KiB of subscriptions and 1 KiB a second, 1,000 subscriptions and one a second, 1 MiB of requests and 64 KiB a second, or more than 256 connections to one address") \
    X(republish_deaf, GAUGE, "kvb_republish_not_listening", "", "Ranks whose events cannot be republished because an address is in use or not of this host") \
    X(load_samples_zmq, COUNTER, "kvb_load_samples_total", "source=\"zmq\"", "Load samples received, one for each rank, by source") \
    X(load_samples_prometheus, COUNTER, "kvb_load_samples_total", "source=\"prometheus\"", "Load samples received, one for each rank, by source") \
    X(load_samples_coordinator, COUNTER, "kvb_load_samples_total", "source=\"coordinator\"", "Load samples received, one for each rank, by source") \
    X(load_refused_message, COUNTER, "kvb_load_samples_refused_total", "reason=\"message\"", "Load messages, samples and single values refused, by reason; protocol = connections that libzmq closed because of a message above 64 KiB or bytes that are not ZMTP, or that ended with 4 MiB waiting") \
    X(load_refused_protocol, COUNTER, "kvb_load_samples_refused_total", "reason=\"protocol\"", "Load messages, samples and single values refused, by reason; protocol = connections that libzmq closed because of a message above 64 KiB or bytes that are not ZMTP, or that ended with 4 MiB waiting") \
    X(load_refused_rank, COUNTER, "kvb_load_samples_refused_total", "reason=\"rank\"", "Load messages, samples and single values refused, by reason; protocol = connections that libzmq closed because of a message above 64 KiB or bytes that are not ZMTP, or that ended with 4 MiB waiting") \
    X(load_refused_figure, COUNTER, "kvb_load_samples_refused_total", "reason=\"figure\"", "Load messages, samples and single values refused, by reason; protocol = connections that libzmq closed because of a message above 64 KiB or bytes that are not ZMTP, or that ended with 4 MiB waiting") \
    X(load_scheduler_samples, COUNTER, "kvb_load_scheduler_samples_total", "", "Load samples in the scheduler's format (version 1), which has only the numbers of active and waiting requests") \
    X(load_counter_resets, COUNTER, "kvb_load_resets_total", "", "Resets of counters on engines' metrics pages. A rise means that engines restart") \
    X(load_sources_waiting, GAUGE, "kvb_load_sources", "state=\"waiting\"", "Load sources by state: waiting = no value yet, fresh, stale = silent for 3 s, or three periods") \
    X(load_sources_fresh, GAUGE, "kvb_load_sources", "state=\"fresh\"", "Load sources by state: waiting = no value yet, fresh, stale = silent for 3 s, or three periods") \
    X(load_sources_stale, GAUGE, "kvb_load_sources", "state=\"stale\"", "Load sources by state: waiting = no value yet, fresh, stale = silent for 3 s, or three periods") \
    X(scrapes_ok, COUNTER, "kvb_scrapes_total", "outcome=\"ok\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_unreachable, COUNTER, "kvb_scrapes_total", "outcome=\"unreachable\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_late, COUNTER, "kvb_scrapes_total", "outcome=\"late\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_code, COUNTER, "kvb_scrapes_total", "outcome=\"code\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_too_large, COUNTER, "kvb_scrapes_total", "outcome=\"too_large\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_stopped, COUNTER, "kvb_scrapes_total", "outcome=\"stopped\"", "Reads of engines' metrics pages, by outcome") \
    X(scrapes_foreign, COUNTER, "kvb_scrapes_total", "outcome=\"foreign\"", "Reads of engines' metrics pages, by outcome") \
    X(model_lists_ok, COUNTER, "kvb_model_lists_total", "outcome=\"ok\"", "Reads of engines' lists of models (/v1/models), by outcome: code = another HTTP status than 200, refused = no list of the worker's model, or too large") \
    X(model_lists_unreachable, COUNTER, "kvb_model_lists_total", "outcome=\"unreachable\"", "Reads of engines' lists of models (/v1/models), by outcome: code = another HTTP status than 200, refused = no list of the worker's model, or too large") \
    X(model_lists_code, COUNTER, "kvb_model_lists_total", "outcome=\"code\"", "Reads of engines' lists of models (/v1/models), by outcome: code = another HTTP status than 200, refused = no list of the worker's model, or too large") \
    X(model_lists_refused, COUNTER, "kvb_model_lists_total", "outcome=\"refused\"", "Reads of engines' lists of models (/v1/models), by outcome: code = another HTTP status than 200, refused = no list of the worker's model, or too large") \
    X(served_names_left_out, GAUGE, "kvb_served_names_left_out", "", "Names of models and adapters that workers serve and heartbeats do not carry, because there are more than 64 or 1,024 bytes of a worker; of adapters in events, their events") \
    X(silent_asleep, COUNTER, "kvb_engine_silent_changes_total", "sign=\"asleep\"", "Changes of an engine's cache without an event, found on its metrics page: asleep = it sleeps and has discarded its cache, restart = another process answers, reset = it has answered a request that may empty its cache, occupancy = its memory contradicts the list. A rise of occupancy means that the engine loses events") \
    X(silent_restart, COUNTER, "kvb_engine_silent_changes_total", "sign=\"restart\"", "Changes of an engine's cache without an event, found on its metrics page: asleep = it sleeps and has discarded its cache, restart = another process answers, reset = it has answered a request that may empty its cache, occupancy = its memory contradicts the list. A rise of occupancy means that the engine loses events") \
    X(silent_reset, COUNTER, "kvb_engine_silent_changes_total", "sign=\"reset\"", "Changes of an engine's cache without an event, found on its metrics page: asleep = it sleeps and has discarded its cache, restart = another process answers, reset = it has answered a request that may empty its cache, occupancy = its memory contradicts the list. A rise of occupancy means that the engine loses events") \
    X(silent_occupancy, COUNTER, "kvb_engine_silent_changes_total", "sign=\"occupancy\"", "Changes of an engine's cache without an event, found on its metrics page: asleep = it sleeps and has discarded its cache, restart = another process answers, reset = it has answered a request that may empty its cache, occupancy = its memory contradicts the list. A rise of occupancy means that the engine loses events") \
    X(scrapes_lost, COUNTER, "kvb_scrape_results_lost_total", "", "Metrics pages that were read but dropped: out of memory, or the ingest thread was too slow") \
    X(dns_list_members, GAUGE, "kvb_dns_list_members", "", "Members of the DNS name whose members are workers") \
    X(dns_list_ok, COUNTER, "kvb_dns_list_lookups_total", "result=\"ok\"", "Look-ups of the DNS name whose members are workers, by result") \
    X(dns_list_no_name, COUNTER, "kvb_dns_list_lookups_total", "result=\"no_name\"", "Look-ups of the DNS name whose members are workers, by result") \
    X(dns_list_failure, COUNTER, "kvb_dns_list_lookups_total", "result=\"failure\"", "Look-ups of the DNS name whose members are workers, by result") \
    X(addresses_refused, COUNTER, "kvb_addresses_refused_total", "", "Attempts to connect to an engine that were refused because others gave its address, and it is link-local or a metadata service of a cloud") \
    X(dns_questions, COUNTER, "kvb_dns_questions_total", "", "Look-ups of host names of engines") \
    X(dns_no_name, COUNTER, "kvb_dns_failures_total", "reason=\"no_name\"", "Look-ups of host names of engines that gave no address, by reason") \
    X(dns_failure, COUNTER, "kvb_dns_failures_total", "reason=\"failure\"", "Look-ups of host names of engines that gave no address, by reason") \
    X(kubernetes_lists, COUNTER, "kvb_kubernetes_requests_total", "verb=\"list\"", "Requests to the Kubernetes API, by verb; a list takes one request for each 500 pods") \
    X(kubernetes_watches, COUNTER, "kvb_kubernetes_requests_total", "verb=\"watch\"", "Requests to the Kubernetes API, by verb; a list takes one request for each 500 pods") \
    X(kubernetes_relists, COUNTER, "kvb_kubernetes_relists_total", "", "Lists of pods after the first one of a namespace. A rise means that the API server forgets versions or refuses watches") \
    X(kubernetes_added, COUNTER, "kvb_kubernetes_events_total", "kind=\"added\"", "Events of pods received, by kind") \
    X(kubernetes_modified, COUNTER, "kvb_kubernetes_events_total", "kind=\"modified\"", "Events of pods received, by kind") \
    X(kubernetes_deleted, COUNTER, "kvb_kubernetes_events_total", "kind=\"deleted\"", "Events of pods received, by kind") \
    X(kubernetes_bookmark, COUNTER, "kvb_kubernetes_events_total", "kind=\"bookmark\"", "Events of pods received, by kind") \
    X(kubernetes_error, COUNTER, "kvb_kubernetes_events_total", "kind=\"error\"", "Events of pods received, by kind") \
    X(kubernetes_unknown, COUNTER, "kvb_kubernetes_events_total", "kind=\"unknown\"", "Events of pods received, by kind") \
    X(kubernetes_too_large, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"too_large\"", "Objects of the Kubernetes API that were skipped, by reason") \
    X(kubernetes_invalid, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"invalid\"", "Objects of the Kubernetes API that were skipped, by reason") \
    X(kubernetes_other_kind, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"other_kind\"", "Objects of the Kubernetes API that were skipped, by reason") \
    X(kubernetes_ceiling, COUNTER, "kvb_kubernetes_objects_refused_total", "reason=\"ceiling\"", "Objects of the Kubernetes API that were skipped, by reason") \
    X(kubernetes_ports_beyond, COUNTER, "kvb_kubernetes_ports_beyond_total", "", "Container ports beyond the first 64 of a pod, which are ignored") \
    X(kubernetes_labels_refused, COUNTER, "kvb_kubernetes_labels_refused_total", "", "Labels of pods that are not published, because their value is not text or too long") \
    X(kubernetes_restarts, COUNTER, "kvb_kubernetes_restarts_total", "", "Container restarts seen in pods") \
    X(kubernetes_pods_taken, GAUGE, "kvb_kubernetes_pods", "state=\"taken\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_phase, GAUGE, "kvb_kubernetes_pods", "state=\"phase\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_no_ip, GAUGE, "kvb_kubernetes_pods", "state=\"no_ip\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_no_port, GAUGE, "kvb_kubernetes_pods", "state=\"no_port\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_no_model, GAUGE, "kvb_kubernetes_pods", "state=\"no_model\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_no_id, GAUGE, "kvb_kubernetes_pods", "state=\"no_id\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_relabelled, GAUGE, "kvb_kubernetes_pods", "state=\"relabelled\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_id_taken, GAUGE, "kvb_kubernetes_pods", "state=\"id_taken\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_address_taken, GAUGE, "kvb_kubernetes_pods", "state=\"address_taken\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_other_list, GAUGE, "kvb_kubernetes_pods", "state=\"other_list\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_pods_full, GAUGE, "kvb_kubernetes_pods", "state=\"full\"", "Pods listed, by state: taken = a worker, else the reason why the pod is not a worker") \
    X(kubernetes_connected, GAUGE, "kvb_kubernetes_connected", "", "1 while the Kubernetes API answers, else 0; while it is 0, all workers stay") \
    KVB_SERVICE_METRICS(X) \
    KVB_HTTP_METRICS(X) \
    X(wait_failures, COUNTER, "kvb_wait_failures_total", "", "Times that waiting for sockets failed in the kernel and the sockets were polled instead") \
    X(turns, COUNTER, "kvb_turns_total", "", "Turns of the ingest thread. If it does not rise, the bridge hangs") \
    X(publishing, GAUGE, "kvb_publishing", "", "1 while the bridge may publish events; 0 without NATS") \
    X(streams_syncing, GAUGE, "kvb_streams", "state=\"syncing\"", "Streams read by this bridge, by state of their lists of blocks") \
    X(streams_exact, GAUGE, "kvb_streams", "state=\"exact\"", "Streams read by this bridge, by state of their lists of blocks") \
    X(streams_partial, GAUGE, "kvb_streams", "state=\"partial\"", "Streams read by this bridge, by state of their lists of blocks") \
    X(streams_unverified, GAUGE, "kvb_streams", "state=\"unverified\"", "Streams read by this bridge, by state of their lists of blocks") \
    X(streams_down, GAUGE, "kvb_streams", "state=\"down\"", "Streams read by this bridge, by state of their lists of blocks") \
    X(streams_unlisted, GAUGE, "kvb_streams_unlisted", "", "Streams without lines of their own on this page, because the page has a maximum size") \
    X(blocks_held, GAUGE, "kvb_blocks_held", "", "Blocks listed as held, over all streams") \
    X(blocks_doubtful, GAUGE, "kvb_blocks_doubtful", "", "Blocks of which it is unknown whether the engine still holds them") \
    X(blocks_unrooted, GAUGE, "kvb_blocks_unrooted", "", "Blocks that are not published because their parents are unknown") \
    X(blocks_unplaced, GAUGE, "kvb_blocks_unplaced", "", "Blocks of sliding-window groups that no full-attention group has") \
    X(blocks_limit, GAUGE, "kvb_stream_blocks_limit", "", "The most blocks of one stream: limits.max_stream_blocks")
/* clang-format on */

enum kvb_bridge_metric {
#define KVB_BRIDGE_METRIC_ID(id, type, name, labels, help) kvb_bridge_##id,
    KVB_BRIDGE_METRICS(KVB_BRIDGE_METRIC_ID)
#undef KVB_BRIDGE_METRIC_ID
        kvb_bridge_metric_count
};

/* The rows, in the order of the enum. */
extern const struct kvb_metric_row kvb_bridge_metric_rows[kvb_bridge_metric_count];
