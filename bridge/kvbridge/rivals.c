#include "kvbridge/rivals.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/http.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"
#include "wire/router/bridge_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A bridge that publishes a rival's stream sends its list each second. */
static const uint64_t found_ns = 5 * KVB_NS_PER_S;
static const uint64_t gone_ns = 10 * KVB_NS_PER_S;

void kvb_rival_table_init(struct kvb_rival_table *table, const char *bridge_id)
{
    (void)pthread_mutex_init(&table->lock, NULL); /* cannot fail without attributes */
    (void)snprintf(table->bridge_id, sizeof table->bridge_id, "%s", bridge_id);
}

void kvb_rival_table_done(struct kvb_rival_table *table)
{
    (void)pthread_mutex_destroy(&table->lock);
    free(table->own);
    table->own = NULL;
}

/* ---- The own streams ---- */

static int compare_streams(const void *left, const void *right)
{
    const struct kvb_bridge_stream *a = left;
    const struct kvb_bridge_stream *b = right;

    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

kvb_status kvb_rival_table_set_own(
    struct kvb_rival_table *table, kvb_rival_own_fill fill, const void *context, size_t count)
{
    (void)pthread_mutex_lock(&table->lock);
    const kvb_status status = kvb_array_reserve(
        &table->own, &table->own_capacity, count, sizeof *table->own, kvb_max_streams);
    if (status == KVB_OK) {
        for (size_t i = 0; i < count; i++) {
            table->own[i] = fill(context, i);
        }
        /* qsort() must not be given NULL, as an empty array may be. */
        if (count > 0) {
            qsort(table->own, count, sizeof *table->own, compare_streams);
        }
        table->own_count = count;
    }
    (void)pthread_mutex_unlock(&table->lock);
    return status;
}

const struct kvb_bridge_stream *
kvb_rival_table_own(const struct kvb_rival_table *table, size_t *out_count)
{
    *out_count = table->own_count; /* only the caller's thread replaces them */
    return table->own;
}

static bool is_own(const struct kvb_rival_table *table, const struct kvb_bridge_stream *stream)
{
    return table->own_count > 0 &&
           bsearch(stream, table->own, table->own_count, sizeof *table->own, compare_streams) !=
               NULL;
}

/* ---- On nats.c's thread ---- */

/* Finds the rival with this id, or else a free place; NULL: there is none. */
static struct kvb_rival *find_rival(struct kvb_rival_table *table, const char *bridge_id)
{
    for (size_t i = 0; i < table->count; i++) {
        if (strcmp(table->rivals[i].bridge_id, bridge_id) == 0) {
            return &table->rivals[i];
        }
    }
    if (table->count == kvb_rivals_most) {
        return NULL;
    }
    struct kvb_rival *rival = &table->rivals[table->count++];
    *rival = (struct kvb_rival){ .first_ns = 0 };
    (void)snprintf(rival->bridge_id, sizeof rival->bridge_id, "%s", bridge_id);
    return rival;
}

/* The caller holds the lock. */
static void compare(struct kvb_rival_table *table, uint64_t now_ns)
{
    const struct kvb_bridge_streams *heard = &table->heard;
    const struct kvb_bridge_stream *first = NULL;
    size_t shared = 0;

    if (strcmp(heard->bridge_id, table->bridge_id) == 0) {
        return; /* our own message */
    }
    for (size_t i = 0; i < heard->count; i++) {
        if (is_own(table, &heard->streams[i])) {
            first = first ? first : &heard->streams[i];
            shared++;
        }
    }
    /* Most messages end here: the other bridges of the component have other workers. */
    if (!first) {
        return;
    }
    struct kvb_rival *rival = find_rival(table, heard->bridge_id);
    if (!rival) {
        table->refused++;
        return;
    }
    rival->first_ns = rival->first_ns ? rival->first_ns : now_ns;
    rival->newest_ns = now_ns;
    rival->stream = *first;
    rival->streams = shared;
}

void kvb_rival_table_hear(struct kvb_rival_table *table, kvb_span json, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&table->lock);
    if (kvb_bridge_streams_decode(json, &table->heard) == KVB_OK) {
        compare(table, now_ns);
    } else {
        table->refused++;
    }
    (void)pthread_mutex_unlock(&table->lock);
}

void kvb_rival_table_receive(void *context, const struct kvb_bus_message *message)
{
    kvb_rival_table_hear(context, message->payload, kvb_clock_monotonic_ns());
}

/* ---- On the owner's thread ---- */

static bool find_change(
    struct kvb_rival_table *table, uint64_t now_ns, enum kvb_rival_change *out_change,
    struct kvb_rival *out_rival)
{
    for (size_t i = 0; i < table->count;) {
        struct kvb_rival *rival = &table->rivals[i];
        /* The time between its messages, not the time since the first: who ends soon is none. */
        if (!rival->is_found && rival->newest_ns - rival->first_ns >= found_ns) {
            rival->is_found = true;
            *out_change = KVB_RIVAL_FOUND;
            *out_rival = *rival;
            return true;
        }
        if (now_ns < rival->newest_ns + gone_ns) {
            i++;
            continue;
        }
        *out_change = KVB_RIVAL_GONE;
        *out_rival = *rival;
        /* The last one takes this place, and is looked at next. */
        *rival = table->rivals[--table->count];
        /* One that was never reported goes without a word. */
        if (out_rival->is_found) {
            return true;
        }
    }
    return false;
}

bool kvb_rival_table_next(
    struct kvb_rival_table *table, uint64_t now_ns, enum kvb_rival_change *out_change,
    struct kvb_rival *out_rival)
{
    (void)pthread_mutex_lock(&table->lock);
    const bool is_there = find_change(table, now_ns, out_change, out_rival);
    (void)pthread_mutex_unlock(&table->lock);
    return is_there;
}

size_t kvb_rival_table_count(struct kvb_rival_table *table, size_t *out_found)
{
    size_t found = 0;

    (void)pthread_mutex_lock(&table->lock);
    const size_t count = table->count;
    for (size_t i = 0; i < count; i++) {
        found += table->rivals[i].is_found;
    }
    (void)pthread_mutex_unlock(&table->lock);
    *out_found = found;
    return count;
}

/* ---- What is published and logged ----
 *
 * Publishes which streams this bridge has, and logs other bridges that have one of them.
 *
 * With a thousand bridges some 30 lists a second arrive: 0.1 % of a core.  To compare one of 8
 * streams takes 0.4 us, and to deliver it some 40 us, for two wake-ups of nats.c.  Once a rival is
 * heard, both publish each second, so that both find each other. */

static const uint64_t look_ns = KVB_NS_PER_S;
static const uint64_t changed_ns = 5 * KVB_NS_PER_S; /* workers may come and go all the time */
static const uint64_t quiet_ns = 30 * KVB_NS_PER_S;  /* a message may have been lost */

static struct kvb_bridge_stream own_stream(const void *context, size_t at)
{
    const struct bridge_membership *membership = context;

    return (struct kvb_bridge_stream){ .worker_id = membership->ranks[at]->worker_id,
                                       .dp_rank = membership->ranks[at]->dp_rank };
}

/* KVB_AGAIN: not connected. */
static kvb_status publish_streams(struct kvb_bridge *bridge)
{
    const struct bridge_membership *membership = bridge->membership;
    struct bridge_rivals *rivals = bridge->rivals;
    struct kvb_buf *buf = &bridge->publisher->buf;
    size_t count = 0;

    /* Sorting all streams is worth it only after a change. */
    if (rivals->listed_changes != membership->changes) {
        KVB_TRY(kvb_rival_table_set_own(
            &rivals->table, own_stream, membership, membership->rank_count));
        rivals->listed_changes = membership->changes;
    }
    const struct kvb_bridge_stream *own = kvb_rival_table_own(&rivals->table, &count);
    for (size_t at = 0; at < count; at += kvb_bridge_streams_most) {
        const size_t left = count - at;
        const size_t some = left < kvb_bridge_streams_most ? left : kvb_bridge_streams_most;
        kvb_buf_reset(buf);
        KVB_TRY(kvb_bridge_streams_encode(bridge->bridge_id, own + at, some, buf));
        KVB_TRY(kvb_bus_publish(bridge->publisher->bus, rivals->subject, kvb_buf_span(buf)));
        bridge->publisher->events.messages++;
    }
    return KVB_OK;
}

static void
log_rival(struct kvb_bridge *bridge, enum kvb_rival_change change, const struct kvb_rival *rival)
{
    if (change == KVB_RIVAL_GONE) {
        kvb_log_write(
            bridge->log, KVB_LOG_INFO, "bridge",
            "the other bridge publishes workers of this one no more", "bridge", bridge->bridge_id,
            "other", rival->bridge_id, NULL);
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "another bridge publishes workers of this one, so their lists are unverified: remove them "
        "from the configuration of one of the two, or stop the other bridge",
        "bridge", bridge->bridge_id, "other", rival->bridge_id, "streams",
        KVB_LOG_U64(rival->streams), "worker", KVB_LOG_U64(rival->stream.worker_id), "dp_rank",
        KVB_LOG_U64(rival->stream.dp_rank), NULL);
}

static bool is_list_due(const struct kvb_bridge *bridge, bool is_heard, uint64_t now_ns)
{
    const struct bridge_rivals *rivals = bridge->rivals;
    const uint64_t since_ns = now_ns - rivals->listed_ns;
    /* Spread, because bridges that lost the same server have begun at once. */
    const uint64_t pause_ns = quiet_ns + (bridge->publisher->id % 8) * KVB_NS_PER_S;

    return rivals->listed_ns == 0 || is_heard || since_ns >= pause_ns ||
           (since_ns >= changed_ns && rivals->listed_changes != bridge->membership->changes);
}

void kvb_bridge_watch_rivals(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_rivals *rivals = bridge->rivals;
    enum kvb_rival_change change;
    struct kvb_rival rival;
    size_t found = 0;

    if (now_ns < rivals->next_look_ns) {
        return;
    }
    rivals->next_look_ns = now_ns + look_ns;
    while (kvb_rival_table_next(&rivals->table, now_ns, &change, &rival)) {
        log_rival(bridge, change, &rival);
    }
    const bool is_heard = kvb_rival_table_count(&rivals->table, &found) > 0;
    kvb_metric_set(&bridge->shown->metrics, kvb_bridge_rivals, found);
    /* After a failure the next look tries again. */
    if (is_list_due(bridge, is_heard, now_ns) && publish_streams(bridge) == KVB_OK) {
        rivals->listed_ns = now_ns;
    }
}

void kvb_bridge_list_streams_soon(struct kvb_bridge *bridge)
{
    bridge->rivals->listed_ns = 0;
    bridge->rivals->next_look_ns = 0;
}

kvb_status kvb_bridge_open_rivals(struct kvb_bridge *bridge)
{
    struct bridge_rivals *rivals = bridge->rivals;

    rivals->listed_changes = UINT64_MAX; /* none */
    KVB_TRY(kvb_contract_subject_make(
        KVB_SUBJECT_BRIDGE_STREAMS, &bridge->publisher->names, rivals->subject));
    return kvb_bus_subscribe(
        bridge->publisher->bus, rivals->subject, kvb_rival_table_receive, &rivals->table,
        &rivals->incoming);
}
