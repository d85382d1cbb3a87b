#include "kvbridge/rival_table.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A bridge that publishes a rival's stream sends its list each second: kvbridge/rivals.c. */
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
        *rival = table->rivals[--table->count];
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
