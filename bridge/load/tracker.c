#include "load/tracker.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "model/stream_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kvb_load_tracker {
    struct kvb_load_options options;
    struct kvb_stream_table names;
    struct kvb_load_endpoint *endpoints; /* owned; by the number of the name */
    size_t capacity;
};

kvb_status
kvb_load_tracker_new(const struct kvb_load_options *options, struct kvb_load_tracker **out_tracker)
{
    struct kvb_load_tracker *tracker = calloc(1, sizeof *tracker);

    if (!tracker) {
        return KVB_NO_MEMORY;
    }
    tracker->options = *options;
    if (tracker->options.forget_ms < options->expire_ms) {
        tracker->options.forget_ms = options->expire_ms;
    }
    kvb_stream_table_init(&tracker->names, options->max_endpoints, options->hash_key);
    *out_tracker = tracker;
    return KVB_OK;
}

void kvb_load_tracker_free(struct kvb_load_tracker *tracker)
{
    if (!tracker) {
        return;
    }
    kvb_stream_table_done(&tracker->names);
    free(tracker->endpoints);
    free(tracker);
}

const char *kvb_load_statistic_name(enum kvb_load_statistic statistic)
{
    return statistic == KVB_LOAD_ACTIVE_BLOCKS ? "active_blocks" : "ratio";
}

static bool is_endpoint_known(const struct kvb_load_tracker *tracker, size_t number)
{
    return number < tracker->names.limit && tracker->names.entries[number].is_used;
}

kvb_status kvb_load_tracker_report(
    struct kvb_load_tracker *tracker, const struct kvb_stream_id *id,
    const struct kvb_load_report *report, uint64_t now_ns)
{
    uint32_t number = 0;

    /* Reserve first: the table must never contain a name without an endpoint. */
    KVB_TRY(kvb_array_reserve(
        &tracker->endpoints, &tracker->capacity, tracker->names.count + 1,
        sizeof *tracker->endpoints, kvb_max_streams + 1));
    KVB_TRY(kvb_stream_table_add(&tracker->names, id, &number));
    struct kvb_load_endpoint *endpoint = &tracker->endpoints[number];
    *endpoint = (struct kvb_load_endpoint){
        .id = *id, .load = report->load, .block_size = report->block_size, .seen_ns = now_ns
    };
    memcpy(endpoint->endpoint_name, report->endpoint_name, sizeof endpoint->endpoint_name);
    return KVB_OK;
}

static bool expire_one(struct kvb_load_tracker *tracker, size_t number, uint64_t now_ns)
{
    struct kvb_load_endpoint *endpoint = &tracker->endpoints[number];
    const uint64_t silent_ns = now_ns > endpoint->seen_ns ? now_ns - endpoint->seen_ns : 0;

    /* One step at a time, so that readers are told that it is stale before it is gone. */
    if (silent_ns >= tracker->options.expire_ms * KVB_NS_PER_MS && !endpoint->is_stale) {
        endpoint->is_stale = true;
        return true;
    }
    if (silent_ns >= tracker->options.forget_ms * KVB_NS_PER_MS && endpoint->is_stale) {
        kvb_stream_table_remove(&tracker->names, (uint32_t)number);
        return true;
    }
    return false;
}

bool kvb_load_tracker_expire(struct kvb_load_tracker *tracker, uint64_t now_ns)
{
    bool has_changed = false;

    for (size_t i = 0; i < tracker->names.limit; i++) {
        if (is_endpoint_known(tracker, i) && expire_one(tracker, i, now_ns)) {
            has_changed = true;
        }
    }
    return has_changed;
}

double
kvb_load_value(const struct kvb_load_tracker *tracker, const struct kvb_load_endpoint *endpoint)
{
    const struct kvb_load *load = &endpoint->load;

    if (tracker->options.statistic == KVB_LOAD_ACTIVE_BLOCKS) {
        return (double)load->kv_active_blocks;
    }
    return load->kv_total_blocks ? (double)load->kv_active_blocks / (double)load->kv_total_blocks
                                 : 0.0;
}

/* Sum of squared deviations from the mean, over the endpoints that are not stale.  The
 * two-pass algorithm: in one pass, large nearly equal numbers would cancel to rounding noise. */
static double spread(const struct kvb_load_tracker *tracker, double avg)
{
    double sum = 0;

    for (size_t i = 0; i < tracker->names.limit; i++) {
        if (is_endpoint_known(tracker, i) && !tracker->endpoints[i].is_stale) {
            const double off = kvb_load_value(tracker, &tracker->endpoints[i]) - avg;
            sum += off * off;
        }
    }
    return sum;
}

void kvb_load_tracker_stats(
    const struct kvb_load_tracker *tracker, struct kvb_load_stats *out_stats)
{
    const bool is_population = tracker->options.statistic == KVB_LOAD_ACTIVE_BLOCKS;
    struct kvb_load_stats stats = { 0 };
    double sum = 0;

    for (size_t i = 0; i < tracker->names.limit; i++) {
        if (!is_endpoint_known(tracker, i)) {
            continue;
        }
        if (tracker->endpoints[i].is_stale) {
            stats.stale_count++;
            continue;
        }
        stats.endpoint_count++;
        sum += kvb_load_value(tracker, &tracker->endpoints[i]);
    }
    if (stats.endpoint_count > 0) {
        stats.avg = sum / (double)stats.endpoint_count;
    }
    /* Of one value a sample has no deviation; that of a population is 0 then. */
    if (stats.endpoint_count > 1) {
        const size_t parts = is_population ? stats.endpoint_count : stats.endpoint_count - 1;
        stats.std = sqrt(spread(tracker, stats.avg) / (double)parts);
    }
    *out_stats = stats;
}

size_t kvb_load_tracker_limit(const struct kvb_load_tracker *tracker)
{
    return tracker->names.limit;
}

const struct kvb_load_endpoint *
kvb_load_tracker_at(const struct kvb_load_tracker *tracker, size_t number)
{
    return is_endpoint_known(tracker, number) ? &tracker->endpoints[number] : NULL;
}

const struct kvb_load_endpoint *
kvb_load_tracker_find(const struct kvb_load_tracker *tracker, const struct kvb_stream_id *id)
{
    const struct kvb_stream_key key = kvb_stream_key_of(id, tracker->options.hash_key);

    return kvb_load_tracker_find_key(tracker, &key);
}

const struct kvb_load_endpoint *
kvb_load_tracker_find_key(const struct kvb_load_tracker *tracker, const struct kvb_stream_key *key)
{
    uint32_t number = 0;
    const bool is_found = kvb_stream_table_find_key(&tracker->names, key, &number) == KVB_OK;

    return is_found ? &tracker->endpoints[number] : NULL;
}
