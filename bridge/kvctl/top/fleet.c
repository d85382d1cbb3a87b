#include "kvctl/top/fleet.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "kvctl/top/json.h"
#include "wire/json/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bridges speak every second: three missing words are silence; after so long a
 * bridge, and a stream that no aggregator lists, is forgotten. */
static const uint64_t silent_ns = 3500 * KVB_NS_PER_MS;
static const uint64_t forget_ns = 10 * KVB_NS_PER_S;
/* Two readings closer than this say nothing of a rate. */
static const uint64_t shortest_ns = 200 * KVB_NS_PER_MS;
/* An event id that grows faster began a new epoch. */
static const double max_per_s = 1e6;

void kvctl_top_fleet_init(struct kvctl_top_fleet *fleet)
{
    *fleet = (struct kvctl_top_fleet){ .link.trouble = "asking" };
    kvb_stream_table_init(
        &fleet->table, kvb_max_streams, 0); /* nobody waits for it but who asked */
}

void kvctl_top_fleet_done(struct kvctl_top_fleet *fleet)
{
    kvb_stream_table_done(&fleet->table);
    free(fleet->streams);
    free(fleet->bridges);
}

static uint64_t since(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* ---- Counters ---- */

static void count(struct kvctl_top_counter *counter, uint64_t value, uint64_t now_ns)
{
    const bool is_second = counter->is_known && value >= counter->value;

    if (is_second && since(counter->at_ns, now_ns) < shortest_ns) {
        return;
    }
    counter->per_s = (struct kvctl_top_figure){ .is_known = false };
    if (is_second) {
        const double seconds = (double)(now_ns - counter->at_ns) / (double)KVB_NS_PER_S;
        const double per_s = (double)(value - counter->value) / seconds;
        counter->per_s.is_known = per_s < max_per_s;
        counter->per_s.value = per_s;
    }
    counter->is_known = true;
    counter->value = value;
    counter->at_ns = now_ns;
}

/* ---- Streams ---- */

/* For what names worker and rank alone. */
static void note_component(struct kvctl_top_fleet *fleet, const struct kvb_stream_id *id)
{
    size_t i = 0;

    while (i < fleet->component_count &&
           (strcmp(fleet->components[i].component, id->component) != 0 ||
            strcmp(fleet->components[i].name_space, id->name_space) != 0)) {
        i++;
    }
    if (i == fleet->component_count && i < kvctl_top_max_components) {
        fleet->components[fleet->component_count++] = *id;
    }
}

static kvb_status find_or_add(
    struct kvctl_top_fleet *fleet, const struct kvb_stream_id *id, struct kvctl_top_stream **out)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&fleet->table, id, &number) != KVB_OK) {
        KVB_TRY(kvb_stream_table_add(&fleet->table, id, &number));
        const kvb_status status = kvb_array_reserve(
            (void *)&fleet->streams, &fleet->stream_capacity, (size_t)number + 1,
            sizeof *fleet->streams, kvb_max_streams);
        if (status != KVB_OK) {
            kvb_stream_table_remove(&fleet->table, number);
            return status;
        }
        fleet->streams[number] = (struct kvctl_top_stream){ .row = { .id = *id } };
        note_component(fleet, id);
    }
    *out = &fleet->streams[number];
    return KVB_OK;
}

static struct kvctl_top_stream *stream_at(const struct kvctl_top_fleet *fleet, uint32_t number)
{
    return kvb_stream_table_id(&fleet->table, number) ? &fleet->streams[number] : NULL;
}

static bool read_rank(struct json_object *object, struct kvb_stream_id *id)
{
    uint64_t rank = 0;

    if (!kvctl_top_u64(object, "worker_id", &id->worker_id) ||
        !kvctl_top_u64(object, "dp_rank", &rank) || rank > UINT32_MAX) {
        return false;
    }
    id->dp_rank = (uint32_t)rank;
    return true;
}

/* The sum over the tiers. */
static struct kvctl_top_figure read_blocks(struct json_object *object)
{
    struct json_object *blocks = kvb_json_member(object, "blocks");
    struct kvctl_top_figure sum = { .is_known = false };

    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct kvctl_top_figure one =
            kvctl_top_number(blocks, kvb_tier_name((enum kvb_tier)tier));
        sum.is_known = sum.is_known || one.is_known;
        sum.value += one.value;
    }
    return sum;
}

static void read_tier_reasons(struct json_object *object, struct kvctl_top_row *row)
{
    struct json_object *tiers = kvb_json_member(object, "unverified_tiers");

    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        kvctl_top_word(
            tiers, kvb_tier_name((enum kvb_tier)tier), row->tier_reasons[tier],
            sizeof row->tier_reasons[tier]);
    }
}

/* What bridges and aggregators call by the same names. */
static void read_state(struct json_object *object, struct kvctl_top_row *row)
{
    kvctl_top_word(object, "state", row->state, sizeof row->state);
    kvctl_top_word(object, "reason", row->reason, sizeof row->reason);
    read_tier_reasons(object, row);
    row->blocks = read_blocks(object);
}

/* ---- Bridges ---- */

static kvb_status
receive_bridge(struct kvctl_top_fleet *fleet, struct json_object *status, uint64_t now_ns)
{
    struct kvctl_top_bridge received = { .received_ns = now_ns };
    size_t i = 0;

    kvctl_top_word(status, "bridge_id", received.id, sizeof received.id);
    if (received.id[0] == '\0') {
        return KVB_BAD_INPUT;
    }
    (void)kvctl_top_u64(status, "nats_reconnects", &received.nats_reconnects); /* else 0 */
    while (i < fleet->bridge_count && strcmp(fleet->bridges[i].id, received.id) != 0) {
        i++;
    }
    received.is_listed_twice = i < fleet->bridge_count;
    if (i == fleet->bridge_count) {
        KVB_TRY(kvb_array_reserve(
            (void *)&fleet->bridges, &fleet->bridge_capacity, fleet->bridge_count + 1,
            sizeof *fleet->bridges, kvb_max_workers));
        fleet->bridge_count++;
    }
    fleet->bridges[i] = received;
    return KVB_OK;
}

/* An aggregator that answers knows better than the bridge what routers see. */
static bool is_listed(const struct kvctl_top_fleet *fleet, const struct kvctl_top_stream *stream)
{
    return fleet->link.is_answering && stream->listed_round > 0 &&
           stream->listed_round + 1 >= fleet->round;
}

static kvb_status receive_stream(
    struct kvctl_top_fleet *fleet, const struct kvb_stream_id *component,
    struct json_object *object, uint64_t now_ns)
{
    struct kvb_stream_id id = *component;
    struct kvctl_top_stream *stream = NULL;
    uint64_t events = 0;
    uint64_t lag_ms = 0;

    if (!read_rank(object, &id)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(find_or_add(fleet, &id, &stream));
    stream->received_ns = now_ns;
    stream->row.lag_s.is_known = kvctl_top_u64(object, "lag_ms", &lag_ms);
    stream->lag_ms = lag_ms;
    stream->row.reconnects = kvctl_top_number(object, "reconnects");
    if (kvctl_top_u64(object, "events", &events)) {
        count(&stream->events, events, now_ns);
    }
    if (!is_listed(fleet, stream)) {
        read_state(object, &stream->row);
    }
    return KVB_OK;
}

kvb_status kvctl_top_take_status(
    struct kvctl_top_fleet *fleet, const struct kvb_stream_id *component,
    struct json_object *status, uint64_t now_ns)
{
    struct json_object *list = NULL;
    kvb_status result = receive_bridge(fleet, status, now_ns);

    const size_t list_count = kvctl_top_list(status, "streams", &list);
    for (size_t i = 0; i < list_count; i++) {
        const kvb_status one =
            receive_stream(fleet, component, json_object_array_get_idx(list, i), now_ns);
        result = result == KVB_OK ? one : result;
    }
    return result;
}

void kvctl_top_take_hit(struct kvctl_top_fleet *fleet, struct json_object *hit)
{
    uint64_t prompt = 0;
    uint64_t hits = 0;

    if (kvctl_top_u64(hit, "isl_tokens", &prompt) && kvctl_top_u64(hit, "hit_tokens", &hits)) {
        fleet->hits.prompt_tokens += prompt;
        fleet->hits.hit_tokens += hits < prompt ? hits : prompt;
        fleet->hits.routed++;
    }
}

/* ---- Rounds ---- */

void kvctl_top_begin_round(struct kvctl_top_fleet *fleet)
{
    fleet->round++;
}

static struct kvctl_top_figure kept_of(struct json_object *audit)
{
    const struct kvctl_top_figure promised = kvctl_top_number(audit, "promised_tokens");
    const struct kvctl_top_figure delivered = kvctl_top_number(audit, "delivered_tokens");
    const bool is_known = promised.is_known && delivered.is_known && promised.value > 0;

    return (struct kvctl_top_figure){ .is_known = is_known,
                                      .value = is_known ? delivered.value / promised.value : 0 };
}

static kvb_status
list_stream(struct kvctl_top_fleet *fleet, struct json_object *object, uint64_t now_ns)
{
    struct kvb_stream_id id = { .worker_id = 0 };
    struct kvctl_top_stream *stream = NULL;
    uint64_t event_id = 0;

    KVB_TRY(
        kvb_json_text(kvb_json_member(object, "namespace"), id.name_space, sizeof id.name_space));
    KVB_TRY(kvb_json_text(kvb_json_member(object, "component"), id.component, sizeof id.component));
    if (!read_rank(object, &id)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(find_or_add(fleet, &id, &stream));
    stream->listed_round = fleet->round;
    read_state(object, &stream->row);
    stream->row.kept = kept_of(kvb_json_member(object, "audit"));
    stream->row.load = kvctl_top_number(object, "load");
    if (!stream->row.load.is_known) { /* and its requests are as unknown */
        stream->row.active.is_known = false;
        stream->row.waiting.is_known = false;
    }
    if (kvctl_top_u64(object, "last_event_id", &event_id)) {
        count(&stream->event_id, event_id, now_ns);
    }
    return KVB_OK;
}

kvb_status
kvctl_top_take_streams(struct kvctl_top_fleet *fleet, struct json_object *answer, uint64_t now_ns)
{
    struct json_object *list = NULL;
    kvb_status result = KVB_OK;

    const size_t list_count = kvctl_top_list(answer, "streams", &list);
    for (size_t i = 0; i < list_count; i++) {
        const kvb_status one = list_stream(fleet, json_object_array_get_idx(list, i), now_ns);
        result = result == KVB_OK ? one : result;
    }
    return result;
}

/* The load answer names worker and rank alone; a stream of another component with
 * the same two is recognised by having no load of its own. */
static void take_endpoint(struct kvctl_top_fleet *fleet, struct json_object *endpoint)
{
    struct json_object *data = kvb_json_member(endpoint, "data");
    uint32_t number = 0;

    for (size_t i = 0; i < fleet->component_count; i++) {
        struct kvb_stream_id id = fleet->components[i];
        if (read_rank(endpoint, &id) &&
            kvb_stream_table_find(&fleet->table, &id, &number) == KVB_OK &&
            fleet->streams[number].row.load.is_known) {
            fleet->streams[number].row.active = kvctl_top_number(data, "request_active_slots");
            fleet->streams[number].row.waiting = kvctl_top_number(data, "num_requests_waiting");
        }
    }
}

void kvctl_top_take_load(struct kvctl_top_fleet *fleet, struct json_object *answer)
{
    struct json_object *list = NULL;
    struct kvctl_top_figure hit_rate = { .is_known = false };

    const size_t list_count = kvctl_top_list(answer, "endpoints", &list);
    for (size_t i = 0; i < list_count; i++) {
        struct json_object *endpoint = json_object_array_get_idx(list, i);
        const struct kvctl_top_figure one =
            kvctl_top_number(kvb_json_member(endpoint, "data"), "gpu_prefix_cache_hit_rate");
        take_endpoint(fleet, endpoint);
        hit_rate.is_known = hit_rate.is_known || one.is_known;
        hit_rate.value += one.value / (double)list_count;
    }
    fleet->engine_hit_rate = hit_rate;
    fleet->load_avg = kvctl_top_number(answer, "load_avg");
    fleet->load_std = kvctl_top_number(answer, "load_std");
}

void kvctl_top_take_state(struct kvctl_top_fleet *fleet, struct json_object *answer)
{
    kvctl_top_word(answer, "version", fleet->link.version, sizeof fleet->link.version);
}

static void forget(struct kvctl_top_fleet *fleet, uint64_t now_ns)
{
    size_t kept = 0;

    /* Who was silent because NATS was away gets as long to speak again. */
    if (!fleet->link.is_connected || since(fleet->link.connected_ns, now_ns) <= forget_ns) {
        return;
    }
    for (size_t i = 0; i < fleet->table.limit; i++) {
        const struct kvctl_top_stream *stream = stream_at(fleet, (uint32_t)i);
        const bool is_silent = stream && since(stream->received_ns, now_ns) > forget_ns;
        if (is_silent && fleet->link.is_answering && stream->listed_round != fleet->round) {
            kvb_stream_table_remove(&fleet->table, (uint32_t)i);
        }
    }
    for (size_t i = 0; i < fleet->bridge_count; i++) {
        if (since(fleet->bridges[i].received_ns, now_ns) <= forget_ns) {
            fleet->bridges[kept++] = fleet->bridges[i];
        }
    }
    fleet->bridge_count = kept;
}

void kvctl_top_end_round(struct kvctl_top_fleet *fleet, const char *trouble, uint64_t now_ns)
{
    struct kvctl_top_link *link = &fleet->link;

    link->is_answering = trouble == NULL;
    (void)snprintf(link->trouble, sizeof link->trouble, "%s", trouble ? trouble : "");
    if (link->is_answering) {
        link->has_answer = true;
        link->answered_ns = now_ns;
    }
    fleet->hit_ring[fleet->round % kvctl_top_hit_rounds] = fleet->hits;
    forget(fleet, now_ns);
}

void kvctl_top_set_connected(struct kvctl_top_fleet *fleet, bool is_connected, uint64_t now_ns)
{
    if (fleet->link.is_connected && !is_connected) {
        fleet->link.lost_ns = now_ns;
    }
    if (!fleet->link.is_connected && is_connected) {
        fleet->link.connected_ns = now_ns;
    }
    fleet->link.is_connected = is_connected;
}

/* ---- Out ---- */

static void
fill_row(const struct kvctl_top_stream *stream, uint64_t now_ns, struct kvctl_top_row *row)
{
    const uint64_t age_ns = since(stream->received_ns, now_ns);
    const bool is_silent = age_ns > silent_ns;
    const struct kvctl_top_counter *counter =
        stream->received_ns > 0 ? &stream->events : &stream->event_id;

    *row = stream->row;
    row->events_per_s = counter->per_s;
    row->events_per_s.is_known =
        counter->per_s.is_known && since(counter->at_ns, now_ns) <= silent_ns;
    row->lag_s.value = (double)stream->lag_ms / 1000;
    if (is_silent) { /* nobody has said that it is less by now */
        row->lag_s.value += (double)age_ns / (double)KVB_NS_PER_S;
    }
}

static void add(struct kvctl_top_figure *sum, const struct kvctl_top_figure *one)
{
    sum->is_known = sum->is_known || one->is_known;
    sum->value += one->is_known ? one->value : 0;
}

static void count_state(struct kvctl_top_totals *totals, const char *name)
{
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        if (strcmp(name, kvb_stream_state_name((enum kvb_stream_state)state)) == 0) {
            totals->states[state]++;
            return;
        }
    }
    totals->other_states++;
}

static void sum_rows(const struct kvctl_top_model *model, struct kvctl_top_totals *totals)
{
    for (size_t i = 0; i < model->count; i++) {
        const struct kvctl_top_row *row = &model->rows[i];
        count_state(totals, row->state);
        add(&totals->events_per_s, &row->events_per_s);
        add(&totals->blocks, &row->blocks);
        add(&totals->active, &row->active);
        add(&totals->waiting, &row->waiting);
        totals->engine_reconnects += row->reconnects.is_known ? (uint64_t)row->reconnects.value : 0;
    }
}

/* Over the rounds in the ring, the sums of its oldest taken off. */
static void sum_hits(const struct kvctl_top_fleet *fleet, struct kvctl_top_totals *totals)
{
    const struct kvctl_top_hits *oldest =
        &fleet->hit_ring[(fleet->round + 1) % kvctl_top_hit_rounds]; /* zero until it is full */
    const uint64_t prompt = fleet->hits.prompt_tokens - oldest->prompt_tokens;
    const uint64_t hits = fleet->hits.hit_tokens - oldest->hit_tokens;

    totals->routed = fleet->hits.routed - oldest->routed;
    totals->hit_rate.is_known = prompt > 0;
    totals->hit_rate.value = prompt > 0 ? (double)hits / (double)prompt : 0;
}

static void fill_totals(
    const struct kvctl_top_fleet *fleet, const struct kvctl_top_model *model,
    struct kvctl_top_totals *totals)
{
    *totals = (struct kvctl_top_totals){
        .bridges = fleet->bridge_count,
        .load_avg = fleet->load_avg,
        .load_std = fleet->load_std,
        .engine_hit_rate = fleet->engine_hit_rate,
    };
    for (size_t i = 0; i < fleet->bridge_count; i++) {
        totals->nats_reconnects += fleet->bridges[i].nats_reconnects;
        totals->new_bridges += !fleet->bridges[i].is_listed_twice;
    }
    sum_rows(model, totals);
    sum_hits(fleet, totals);
}

kvb_status kvctl_top_fleet_show(
    const struct kvctl_top_fleet *fleet, uint64_t now_ns, struct kvctl_top_model *model)
{
    /* While NATS is away the picture stands still, as it was. */
    const uint64_t shown_ns = fleet->link.is_connected ? now_ns : fleet->link.lost_ns;

    KVB_TRY(kvb_array_reserve(
        (void *)&model->rows, &model->capacity, fleet->table.count, sizeof *model->rows,
        kvb_max_streams));
    model->count = 0;
    model->shown_count = 0;
    for (size_t i = 0; i < fleet->table.limit; i++) {
        const struct kvctl_top_stream *stream = stream_at(fleet, (uint32_t)i);
        if (stream) {
            fill_row(stream, shown_ns, &model->rows[model->count++]);
        }
    }
    model->link = fleet->link;
    fill_totals(fleet, model, &model->totals);
    return KVB_OK;
}
