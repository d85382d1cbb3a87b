#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/metrics.h"
#include "ingest/dns/entry.h"
#include "kvbridge/dns_list.h"
#include "kvbridge/ingest.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/refresh.h"
#include "kvbridge/republish.h"
#include "kvbridge/rivals.h"
#include "kvbridge/shown.h"
#include "stream/mirror/mirror.h"
#include "stream/share.h"
#include "stream/stream.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t update_every_ns = 100 * KVB_NS_PER_MS;

/* The values of more ranks than these are updated with the status, once a second: cache misses are
 * what costs, and the status reads the same memory. */
enum { max_ranks_an_update = 100 };

static const uint64_t process_every_ns = KVB_NS_PER_S;

/* ---- The tables ---- */

const struct kvb_metric_row kvb_bridge_metric_rows[kvb_bridge_metric_count] = {
#define KVB_BRIDGE_METRIC_ROW(id, kind, title, label, text)                                        \
    [kvb_bridge_##                                                                                 \
        id] = { .name = (title), .labels = (label), .help = (text), .type = KVB_METRIC_##kind },
    KVB_BRIDGE_METRICS(KVB_BRIDGE_METRIC_ROW)
#undef KVB_BRIDGE_METRIC_ROW
};

const struct kvb_metric_row kvb_rank_metric_rows[kvb_rank_metric_count] = {
#define KVB_RANK_METRIC_ROW(id, kind, title, label, text)                                          \
    [kvb_rank_##                                                                                   \
        id] = { .name = (title), .labels = (label), .help = (text), .type = KVB_METRIC_##kind },
    KVB_RANK_METRICS(KVB_RANK_METRIC_ROW)
#undef KVB_RANK_METRIC_ROW
};

/* ---- The sets of values, one a rank ---- */

/* Names of Kubernetes; a label's value needs no escaping then. */
static bool is_label_text(const char *text)
{
    static const char bytes[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_";

    return text[0] != '\0' && text[strspn(text, bytes)] == '\0';
}

void kvb_bridge_begin_stats(struct bridge_rank *rank)
{
    rank->metrics = (struct kvb_metrics){ .rows = kvb_rank_metric_rows,
                                          .values = rank->values,
                                          .count = kvb_rank_metric_count };
    const struct kvb_worker_facts *facts = &rank->facts;
    const bool is_pod = is_label_text(facts->pod) && is_label_text(facts->pod_namespace);

    if (is_pod) {
        (void)snprintf(
            rank->labels, sizeof rank->labels, "pod_key=\"%s/%s\",dp_rank=\"%u\"",
            facts->pod_namespace, facts->pod, rank->dp_rank);
        return;
    }
    (void)snprintf(
        rank->labels, sizeof rank->labels, "pod_key=\"%llu\",dp_rank=\"%u\"",
        (unsigned long long)rank->worker_id, rank->dp_rank);
}

void kvb_bridge_list_stats(struct kvb_bridge *bridge, size_t at)
{
    const size_t ranks = bridge->membership->rank_count;
    struct bridge_shown *shown = bridge->shown;

    /* Ranks beyond the limit are counted, but not listed. */
    shown->rank_set_count = ranks < kvb_max_metric_ranks ? ranks : kvb_max_metric_ranks;
    if (at < shown->rank_set_count) {
        shown->rank_sets[at] =
            (struct kvb_prometheus_set){ .labels = bridge->membership->ranks[at]->labels,
                                         .metrics = bridge->membership->ranks[at]->metrics };
    }
    kvb_metric_set(&shown->metrics, kvb_bridge_streams_unlisted, ranks - shown->rank_set_count);
}

kvb_status kvb_bridge_open_stats(struct kvb_bridge *bridge)
{
    bridge->shown->rank_sets = calloc(kvb_max_metric_ranks, sizeof *bridge->shown->rank_sets);
    if (!bridge->shown->rank_sets) {
        return KVB_NO_MEMORY;
    }
    pthread_rwlockattr_t attributes;
    (void)pthread_rwlockattr_init(&attributes); /* none of these can fail with glibc */
    /* Its usual locks let in readers who follow each other without a gap for as long as they like,
     * and the ingest thread would wait for all of them. */
    (void)pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    (void)pthread_rwlock_init(&bridge->shown->sets_lock, &attributes);
    (void)pthread_rwlockattr_destroy(&attributes);
    kvb_daemon_metrics_begin(&bridge->shown->metrics, kvb_bridge_build);
    kvb_metric_set(
        &bridge->shown->metrics, kvb_bridge_blocks_limit, bridge->config->limits.max_stream_blocks);
    return KVB_OK;
}

void kvb_bridge_close_stats(struct bridge_shown *shown)
{
    if (shown->rank_sets) { /* else they were not opened */
        (void)pthread_rwlock_destroy(&shown->sets_lock);
    }
    free(shown->rank_sets);
}

kvb_status kvb_bridge_metrics_page(struct bridge_shown *shown, struct kvb_buf *out)
{
    KVB_TRY(kvb_prometheus_table(&shown->metrics, out));
    (void)pthread_rwlock_rdlock(&shown->sets_lock); /* no rank is removed meanwhile */
    const kvb_status status = kvb_prometheus_sets(shown->rank_sets, shown->rank_set_count, out);
    (void)pthread_rwlock_unlock(&shown->sets_lock);
    return status;
}

/* ---- One rank ---- */

void kvb_bridge_count_run(struct bridge_rank *rank, const struct bridge_run *run, uint64_t took_ns)
{
    struct kvb_metrics *metrics = &rank->metrics;
    static const enum kvb_rank_metric received[] = {
        [KVB_EVENT_STORED] = kvb_rank_received_stored,
        [KVB_EVENT_REMOVED] = kvb_rank_received_removed,
        [KVB_EVENT_CLEARED] = kvb_rank_received_cleared,
        [KVB_EVENT_SKIPPED] = kvb_rank_received_skipped,
    };
    const double lag_s = (double)run->wall_us / 1e6 - run->timestamp_s;

    if (run->unreadable > 0) {
        kvb_metric_add(metrics, kvb_rank_error_decode, run->unreadable);
    }
    kvb_metric_observe(metrics, kvb_rank_duration, took_ns, run->events);
    for (size_t kind = 0; kind < KVB_COUNT_OF(received); kind++) {
        if (run->live_events[kind] > 0) {
            kvb_metric_add(metrics, received[kind], run->live_events[kind]);
        }
    }
    /* timestamp_s is the engine's, and may be no number. */
    if (run->has_live && isfinite(lag_s)) {
        kvb_metric_set_real(metrics, kvb_rank_lag, lag_s);
    }
}

struct state_row {
    enum kvb_stream_state state;
    enum kvb_rank_metric of_rank;
    enum kvb_bridge_metric of_all;
};

/* clang-format off */
static const struct state_row states[] = {
    { KVB_STREAM_SYNCING, kvb_rank_state_syncing, kvb_bridge_streams_syncing },
    { KVB_STREAM_EXACT, kvb_rank_state_exact, kvb_bridge_streams_exact },
    { KVB_STREAM_PARTIAL, kvb_rank_state_partial, kvb_bridge_streams_partial },
    { KVB_STREAM_UNVERIFIED, kvb_rank_state_unverified, kvb_bridge_streams_unverified },
    { KVB_STREAM_DOWN, kvb_rank_state_down, kvb_bridge_streams_down },
};
/* clang-format on */

struct counted {
    size_t metric;
    size_t offset; /* offset of a uint64_t in the struct of the table */
};

static uint64_t value_at(const void *counters, size_t offset)
{
    uint64_t value = 0;

    memcpy(&value, (const uint8_t *)counters + offset, sizeof value);
    return value;
}

/* Counts events that were not understood.  Events skipped on purpose, such as those about another
 * worker's blocks, are no errors. */
static uint64_t not_understood(const struct bridge_rank *rank)
{
    const struct kvb_stream_counters *counters = kvb_stream_count(rank->served.stream);
    const struct kvb_mirror_counts *counts = kvb_stream_mirror_count(rank->served.stream);

    return counters->skipped[KVB_SKIP_BAD_STORED] + counters->skipped[KVB_SKIP_BAD_REMOVED] +
           counters->skipped[KVB_SKIP_UNKNOWN_EVENT] + counts->no_tokens + counts->self_parents +
           counts->shapes_refused + counts->groups_refused + counts->names_refused;
}

static uint64_t rank_blocks(const struct bridge_rank *rank)
{
    const struct kvb_mirror_counts *counts = kvb_stream_mirror_count(rank->served.stream);
    uint64_t held = 0;

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) { /* includes the window list */
        held += counts->held[tier];
    }
    return held;
}

static void update_link(struct bridge_rank *rank)
{
    const struct kvb_source_counters *link = kvb_source_count(rank->source);

    kvb_metric_set(&rank->metrics, kvb_rank_connections, link->connects);
    kvb_metric_set(&rank->metrics, kvb_rank_disconnections, link->disconnects);
    kvb_metric_set(&rank->metrics, kvb_rank_reconnects, link->retries);
    kvb_metric_set(&rank->metrics, kvb_rank_error_reconnect, link->failures);
    kvb_metric_set(&rank->metrics, kvb_rank_error_protocol, link->protocol_errors);
    kvb_metric_set(&rank->metrics, kvb_rank_error_flood, link->floods);
    kvb_metric_set(
        &rank->metrics, kvb_rank_connected, kvb_stream_is_connected(rank->served.stream));
}

static void update_rank(struct bridge_rank *rank, enum kvb_stream_state state)
{
    /* clang-format off */
    static const struct counted rows[] = {
        { kvb_rank_processed_stored, offsetof(struct kvb_stream_counters, events_of[KVB_EVENT_STORED]) },
        { kvb_rank_processed_removed, offsetof(struct kvb_stream_counters, events_of[KVB_EVENT_REMOVED]) },
        { kvb_rank_processed_cleared, offsetof(struct kvb_stream_counters, events_of[KVB_EVENT_CLEARED]) },
        { kvb_rank_missed, offsetof(struct kvb_stream_counters, batches_missed) },
        { kvb_rank_replay_requests, offsetof(struct kvb_stream_counters, replays_requested) },
        { kvb_rank_replay_success, offsetof(struct kvb_stream_counters, replays_completed) },
        { kvb_rank_replay_failures, offsetof(struct kvb_stream_counters, replays_failed) },
    };
    /* clang-format on */
    const struct kvb_stream_counters *counters = kvb_stream_count(rank->served.stream);
    uint64_t last_seq = 0;

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        kvb_metric_set(&rank->metrics, rows[i].metric, value_at(counters, rows[i].offset));
    }
    for (size_t i = 0; i < KVB_COUNT_OF(states); i++) {
        kvb_metric_set(&rank->metrics, states[i].of_rank, states[i].state == state);
    }
    if (kvb_stream_last_seq(rank->served.stream, &last_seq)) {
        kvb_metric_set(&rank->metrics, kvb_rank_last_sequence, last_seq);
    }
    kvb_metric_set(&rank->metrics, kvb_rank_error_handle, not_understood(rank));
    kvb_metric_set(&rank->metrics, kvb_rank_blocks, rank_blocks(rank));
    update_link(rank);
}

/* ---- The whole bridge ---- */

/* clang-format off */
static const struct counted stream_sums[] = {
    { kvb_bridge_batches_applied, offsetof(struct kvb_stream_counters, batches_applied) },
    { kvb_bridge_events_applied, offsetof(struct kvb_stream_counters, events_applied) },
    { kvb_bridge_reorder_overflows, offsetof(struct kvb_stream_counters, buffer_refused) },
    { kvb_bridge_duplicates, offsetof(struct kvb_stream_counters, duplicates) },
    { kvb_bridge_gaps, offsetof(struct kvb_stream_counters, gaps) },
    { kvb_bridge_batches_missed, offsetof(struct kvb_stream_counters, batches_missed) },
    { kvb_bridge_replays_requested, offsetof(struct kvb_stream_counters, replays_requested) },
    { kvb_bridge_replays_completed, offsetof(struct kvb_stream_counters, replays_completed) },
    { kvb_bridge_replays_failed, offsetof(struct kvb_stream_counters, replays_failed) },
    { kvb_bridge_batches_replayed, offsetof(struct kvb_stream_counters, batches_replayed) },
    { kvb_bridge_restarts, offsetof(struct kvb_stream_counters, restarts) },
    { kvb_bridge_clears, offsetof(struct kvb_stream_counters, clears) },
    { kvb_bridge_skipped_bad_stored, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_BAD_STORED]) },
    { kvb_bridge_skipped_bad_removed, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_BAD_REMOVED]) },
    { kvb_bridge_skipped_unknown_event, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_UNKNOWN_EVENT]) },
    { kvb_bridge_skipped_not_prefix, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_NOT_PREFIX]) },
    { kvb_bridge_skipped_remote, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_REMOTE]) },
    { kvb_bridge_skipped_unmatchable, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_UNMATCHABLE]) },
    { kvb_bridge_skipped_other_model, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_OTHER_MODEL]) },
    { kvb_bridge_skipped_unknown_key, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_UNKNOWN_KEY]) },
    { kvb_bridge_skipped_bad_replica, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_BAD_REPLICA]) },
};

static const struct counted mirror_sums[] = {
    { kvb_bridge_skipped_no_tokens, offsetof(struct kvb_mirror_counts, no_tokens) },
    { kvb_bridge_skipped_self_parent, offsetof(struct kvb_mirror_counts, self_parents) },
    { kvb_bridge_skipped_shape, offsetof(struct kvb_mirror_counts, shapes_refused) },
    { kvb_bridge_skipped_group, offsetof(struct kvb_mirror_counts, groups_refused) },
    { kvb_bridge_skipped_name, offsetof(struct kvb_mirror_counts, names_refused) },
    { kvb_bridge_blocks_window_elsewhere, offsetof(struct kvb_mirror_counts, window_elsewhere) },
    { kvb_bridge_blocks_unmatchable, offsetof(struct kvb_mirror_counts, unmatchable) },
    { kvb_bridge_blocks_doubtful, offsetof(struct kvb_mirror_counts, doubtful) },
    { kvb_bridge_blocks_unrooted, offsetof(struct kvb_mirror_counts, unrooted) },
    { kvb_bridge_blocks_unplaced, offsetof(struct kvb_mirror_counts, unplaced) },
};

static const struct counted republish_sums[] = {
    { kvb_bridge_republish_batches, offsetof(struct kvb_republish_counts, batches) },
    { kvb_bridge_republish_bytes, offsetof(struct kvb_republish_counts, bytes) },
    { kvb_bridge_republish_announcements, offsetof(struct kvb_republish_counts, announcements) },
    { kvb_bridge_republish_announced_bytes, offsetof(struct kvb_republish_counts, announced_bytes) },
    { kvb_bridge_republish_requests, offsetof(struct kvb_republish_counts, requests) },
    { kvb_bridge_republish_snapshots, offsetof(struct kvb_republish_counts, snapshots) },
    { kvb_bridge_republish_replies, offsetof(struct kvb_republish_counts, replies) },
    { kvb_bridge_republish_refused, offsetof(struct kvb_republish_counts, refused) },
    { kvb_bridge_republish_dropped, offsetof(struct kvb_republish_counts, dropped) },
    { kvb_bridge_republish_lost, offsetof(struct kvb_republish_counts, lost) },
    { kvb_bridge_republish_clients, offsetof(struct kvb_republish_counts, clients) },
    { kvb_bridge_republish_snapshot_bytes, offsetof(struct kvb_republish_counts, snapshot_bytes) },
};

static const struct counted shown_sums[] = {
    { kvb_bridge_republish_no_room, offsetof(struct kvb_shown_counts, no_room) },
    { kvb_bridge_republish_blocks, offsetof(struct kvb_shown_counts, shown) },
    { kvb_bridge_republish_token_bytes, offsetof(struct kvb_shown_counts, bytes) },
};
/* clang-format on */

static void
add_counters(uint64_t *totals, const void *counters, const struct counted *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        totals[rows[i].metric] += value_at(counters, rows[i].offset);
    }
}

static void add_republish(uint64_t *totals, const struct bridge_rank *rank)
{
    const struct kvb_shown *shown = kvb_bridge_shown_of(rank);

    add_counters(
        totals, kvb_bridge_count_republish(rank), republish_sums, KVB_COUNT_OF(republish_sums));
    add_counters(totals, kvb_shown_count(shown), shown_sums, KVB_COUNT_OF(shown_sums));
    totals[kvb_bridge_republish_left_out] += kvb_shown_left_out(shown);
    totals[kvb_bridge_republish_deaf] += kvb_bridge_republish_trouble(rank)[0] != '\0';
}

static void add_rank(uint64_t *totals, const struct bridge_rank *rank, enum kvb_stream_state state)
{
    add_counters(
        totals, kvb_stream_count(rank->served.stream), stream_sums, KVB_COUNT_OF(stream_sums));
    add_counters(
        totals, kvb_stream_mirror_count(rank->served.stream), mirror_sums,
        KVB_COUNT_OF(mirror_sums));
    for (size_t i = 0; i < KVB_COUNT_OF(states); i++) {
        totals[states[i].of_all] += states[i].state == state;
    }
    if (rank->republish) {
        add_republish(totals, rank);
    }
    /* As heartbeats say: adapters of events count where the engine's own list is not whole. */
    totals[kvb_bridge_served_names_left_out] +=
        rank->names.left_out + (kvb_served_names_are_all(&rank->names)
                                    ? 0
                                    : kvb_stream_adapters(rank->served.stream)->left_out);
    totals[kvb_bridge_blocks_held] += rank_blocks(rank);
    totals[kvb_bridge_streams_quarantined] += kvb_share_is_quarantined(&rank->served.share);
}

static void set_totals(
    struct kvb_metrics *metrics, const uint64_t *totals, const struct counted *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kvb_metric_set(metrics, rows[i].metric, totals[rows[i].metric]);
    }
}

void kvb_bridge_update_rank(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns, struct bridge_totals *totals)
{
    update_rank(rank, beat->state);
    /* First, because silence is judged by how long the state has lasted. */
    kvb_bridge_watch_state(bridge, rank, beat, now_ns);
    kvb_bridge_watch_silence(bridge, rank, beat, now_ns);
    add_rank(totals->of, rank, beat->state);
}

void kvb_bridge_show_totals(struct kvb_bridge *bridge, const struct bridge_totals *sums)
{
    struct kvb_metrics *metrics = &bridge->shown->metrics;
    const uint64_t *totals = sums->of;

    set_totals(metrics, totals, stream_sums, KVB_COUNT_OF(stream_sums));
    set_totals(metrics, totals, mirror_sums, KVB_COUNT_OF(mirror_sums));
    for (size_t i = 0; i < KVB_COUNT_OF(states); i++) {
        kvb_metric_set(metrics, states[i].of_all, totals[states[i].of_all]);
    }
    set_totals(metrics, totals, republish_sums, KVB_COUNT_OF(republish_sums));
    set_totals(metrics, totals, shown_sums, KVB_COUNT_OF(shown_sums));
    kvb_metric_set(metrics, kvb_bridge_republish_left_out, totals[kvb_bridge_republish_left_out]);
    kvb_metric_set(metrics, kvb_bridge_republish_deaf, totals[kvb_bridge_republish_deaf]);
    kvb_metric_set(metrics, kvb_bridge_blocks_held, totals[kvb_bridge_blocks_held]);
    kvb_metric_set(
        metrics, kvb_bridge_served_names_left_out, totals[kvb_bridge_served_names_left_out]);
    kvb_metric_set(metrics, kvb_bridge_streams_quarantined, totals[kvb_bridge_streams_quarantined]);
}

bool kvb_bridge_updates_with_status(const struct kvb_bridge *bridge)
{
    return bridge->membership->rank_count > max_ranks_an_update;
}

static void update_ranks(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_totals totals = { 0 };
    struct kvb_heartbeat beat;

    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        struct bridge_rank *rank = bridge->membership->ranks[i];
        kvb_stream_heartbeat(rank->served.stream, &beat);
        kvb_bridge_update_rank(bridge, rank, &beat, now_ns, &totals);
    }
    kvb_bridge_show_totals(bridge, &totals);
}

static void update_out(struct kvb_bridge *bridge)
{
    struct kvb_metrics *metrics = &bridge->shown->metrics;

    kvb_daemon_metrics_update(metrics, kvb_bridge_build, bridge->log, bridge->publisher->bus);
    kvb_metric_set(metrics, kvb_bridge_events_published, bridge->publisher->events.events);
    kvb_metric_set(metrics, kvb_bridge_messages_published, bridge->publisher->events.messages);
    kvb_metric_set(metrics, kvb_bridge_publish_failures, bridge->publisher->events.failures);
    kvb_metric_set(metrics, kvb_bridge_publishing, bridge->publisher->was_allowed);
    kvb_metric_set(metrics, kvb_bridge_refresh_refused, bridge->refresh->refused);
    kvb_metric_set(metrics, kvb_bridge_sync_requests, bridge->publisher->sync.requests);
    kvb_metric_set(metrics, kvb_bridge_sync_busy, bridge->publisher->sync.busy);
    kvb_metric_set(metrics, kvb_bridge_rivals_refused, bridge->rivals->table.refused);
    kvb_metric_set(metrics, kvb_bridge_sync_refused, bridge->publisher->sync.refused);
    kvb_metric_set(metrics, kvb_bridge_sync_failures, bridge->publisher->sync.failures);
    kvb_metric_set(metrics, kvb_bridge_sync_chunks, bridge->publisher->sync.chunks);
}

static void update_dns(struct kvb_bridge *bridge)
{
    static const size_t of_result[KVB_DNS_RESULT_COUNT] = {
        [KVB_DNS_OK] = kvb_bridge_dns_list_ok,
        [KVB_DNS_NO_NAME] = kvb_bridge_dns_list_no_name,
        [KVB_DNS_FAILURE] = kvb_bridge_dns_list_failure,
    };
    const struct kvb_resolver_counters hosts = kvb_resolver_count(bridge->ingest->resolver);
    const struct kvb_dns_list_counters list = kvb_dns_list_count(bridge->membership->dns_list);
    struct kvb_metrics *metrics = &bridge->shown->metrics;

    /* Host names of engines, and the name whose members are workers. */
    kvb_metric_set(metrics, kvb_bridge_dns_questions, hosts.questions);
    kvb_metric_set(metrics, kvb_bridge_dns_no_name, hosts.results[KVB_DNS_NO_NAME]);
    kvb_metric_set(metrics, kvb_bridge_dns_failure, hosts.results[KVB_DNS_FAILURE]);
    kvb_metric_set(metrics, kvb_bridge_dns_list_members, list.members);
    for (size_t i = 0; i < KVB_DNS_RESULT_COUNT; i++) {
        kvb_metric_set(metrics, of_result[i], list.results[i]);
    }
}

void kvb_bridge_update_metrics(struct kvb_bridge *bridge, uint64_t now_ns)
{
    if (now_ns >= bridge->shown->next_stats_ns) {
        bridge->shown->next_stats_ns = now_ns + update_every_ns;
        /* With many ranks the status does it, once a second. */
        if (!kvb_bridge_updates_with_status(bridge)) {
            update_ranks(bridge, now_ns);
        }
        update_out(bridge);
        update_dns(bridge);
    }
    if (now_ns >= bridge->shown->next_process_ns) {
        bridge->shown->next_process_ns = now_ns + process_every_ns;
        kvb_daemon_metrics_measure(&bridge->shown->metrics, kvb_bridge_build);
    }
}
