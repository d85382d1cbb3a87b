#include "stream/page_watch.h"

#include "core/clock.h"

/* Start times of one process may differ by rounding, and by steps of the clock from which they are
 * computed. */
static const double same_start_s = 1.5;

/* Counters that fall again within this time step back and forth. */
static const uint64_t counters_rest_ns = 60 * KVB_NS_PER_S;

static const uint64_t misfit_lasts_ns = 6 * KVB_NS_PER_S;
static const uint64_t gauge_misfit_lasts_ns = 45 * KVB_NS_PER_S; /* an idle SGLang: every 30 s */

enum {
    min_full_readings = 3,
    min_misfit_readings = 3,
    slack_share = 8,           /* 1/8 of the total ... */
    slack_blocks = 8,          /* ... and some blocks more */
    unlisted_of_a_request = 4, /* its last block, and speculative ones */
    used_per_listed = 2        /* equal prompts at the same time may hold copies of one block */
};

/* ---- Restarts ---- */

static unsigned look_for_restart(
    struct kvb_page_watch *watch, struct kvb_stream *stream, const struct kvb_page_reading *reading)
{
    const struct kvb_cache_signs *signs = &reading->sample->signs;
    const double before_s = watch->started_s;
    bool is_restarted = false;

    /* A page that several processes answer in turn (a load balancer) shows older ones too: they are
     * no restart. */
    if (signs->started_s > before_s + same_start_s) {
        watch->started_s = signs->started_s;
        is_restarted = before_s > 0;
    }
    /* Without a start time such a page shows it by its counters alone: only the first fall counts.
     */
    if (signs->is_counter_reset && signs->started_s == 0) {
        is_restarted |= watch->fell_ns == 0 || reading->at_ns - watch->fell_ns >= counters_rest_ns;
        watch->fell_ns = reading->at_ns;
    }
    if (is_restarted) {
        kvb_stream_suspect_restart(stream);
    }
    return is_restarted ? KVB_SIGN_RESTART : 0;
}

/* ---- Sleep ---- */

static unsigned look_for_sleep(
    struct kvb_page_watch *watch, struct kvb_stream *stream, const struct kvb_page_reading *reading)
{
    const enum kvb_engine_sleep now = reading->sample->signs.sleep;
    const bool was_discarded = watch->sleep == KVB_SLEEP_DISCARDED;
    const bool is_discarded = now == KVB_SLEEP_DISCARDED;

    if (now == KVB_SLEEP_UNKNOWN) {
        return 0;
    }
    watch->sleep = now;
    kvb_stream_note_sleep(stream, now, reading->asked_ns);
    if (was_discarded == is_discarded) {
        return 0;
    }
    return is_discarded ? KVB_SIGN_ASLEEP : KVB_SIGN_AWAKE;
}

/* ---- Occupancy ---- */

/* What the list and the page say, in blocks of the device. */
struct occupancy {
    const struct kvb_mirror_counts *counts;
    const struct kvb_heartbeat *beat;
    const struct kvb_load_sample *sample;
    uint64_t total;
    uint64_t slack;
};

static bool has_figure(const struct kvb_load_sample *sample, enum kvb_load_figure figure)
{
    return (sample->stats >> figure & 1) != 0;
}

/* Blocks of different sizes on the device cannot be compared with tokens or with blocks. */
static uint32_t device_block_size(const struct kvb_mirror_counts *counts)
{
    uint32_t size = 0;

    for (size_t i = 0; i < counts->shape_count; i++) {
        if (counts->shapes[i].tier == KVB_TIER_DEVICE) {
            if (size != 0 && size != counts->shapes[i].shape.block_size) {
                return 0;
            }
            size = counts->shapes[i].shape.block_size;
        }
    }
    return size;
}

/* The largest number of copies that the list accounts for. */
static uint64_t accounted_blocks(const struct kvb_mirror_counts *counts)
{
    return counts->proven_copies + counts->doubtful + counts->unrooted + counts->unplaced;
}

/* False where an engine may use blocks that its events leave out. */
static bool are_used_blocks_listed(const struct occupancy *occupancy)
{
    const struct kvb_load_sample *sample = occupancy->sample;

    return sample->signs.counts_running && !sample->signs.is_prefix_caching_off &&
           sample->signs.sleep <= KVB_SLEEP_AWAKE && has_figure(sample, KVB_FIGURE_WAITING) &&
           sample->load.num_requests_waiting == 0 && occupancy->beat->window_tokens == 0 &&
           occupancy->beat->state == KVB_STREAM_EXACT && occupancy->counts->unmatchable == 0;
}

/* SGLang: evictable tokens are cached, and tokens that requests use may be. */
static bool is_cached_otherwise(const struct occupancy *occupancy)
{
    const struct kvb_cache_signs *signs = &occupancy->sample->signs;
    const uint64_t size = device_block_size(occupancy->counts);
    const uint64_t listed = occupancy->counts->held[KVB_TIER_DEVICE] * size;
    const uint64_t possible = accounted_blocks(occupancy->counts) * size;
    const uint64_t slack = occupancy->slack * size;

    return signs->has_occupancy && size > 0 &&
           (listed > signs->evictable_tokens + signs->used_tokens + slack ||
            signs->evictable_tokens > possible + slack);
}

/* How long the contradiction must last; 0: there is none. */
static uint64_t misfit_lasts(const struct kvb_page_watch *watch, const struct occupancy *occupancy)
{
    const struct kvb_load_sample *sample = occupancy->sample;
    const struct kvb_load *load = &sample->load;
    const uint64_t listed = occupancy->counts->held[KVB_TIER_DEVICE];
    const uint64_t accounted = accounted_blocks(occupancy->counts);
    const bool is_total_right =
        sample->signs.is_total_sure || watch->full_readings >= min_full_readings;
    const uint64_t unlisted = load->request_active_slots * unlisted_of_a_request + occupancy->slack;

    /* More is listed than fits; groups with a window share blocks. */
    if (is_total_right && occupancy->beat->window_tokens == 0 &&
        listed > occupancy->total + occupancy->slack) {
        return misfit_lasts_ns;
    }
    /* More is used than is listed. */
    if (load->kv_active_blocks > used_per_listed * accounted + unlisted &&
        are_used_blocks_listed(occupancy)) {
        return misfit_lasts_ns;
    }
    return is_cached_otherwise(occupancy) ? gauge_misfit_lasts_ns : 0;
}

static unsigned look_at_occupancy(
    struct kvb_page_watch *watch, struct kvb_stream *stream, const struct kvb_page_reading *reading)
{
    const uint64_t total = reading->sample->load.kv_total_blocks;
    const uint64_t listed = kvb_stream_mirror_count(stream)->held[KVB_TIER_DEVICE];
    const uint64_t removals = kvb_stream_count(stream)->events_of[KVB_EVENT_REMOVED];
    struct kvb_heartbeat beat;
    const struct occupancy occupancy = { .counts = kvb_stream_mirror_count(stream),
                                         .beat = &beat,
                                         .sample = reading->sample,
                                         .total = total,
                                         .slack = total / slack_share + slack_blocks };

    if (!has_figure(reading->sample, KVB_FIGURE_TOTAL_BLOCKS) || !kvb_stream_is_settled(stream) ||
        kvb_stream_is_withdrawn(stream)) {
        watch->misfit_readings = 0;
        return 0;
    }
    kvb_stream_heartbeat(stream, &beat);
    /* An engine that evicts is full: where its list fits into its total, the total is right. */
    if (removals > watch->removals && listed <= total && listed >= total / 2 &&
        watch->full_readings < min_full_readings) {
        watch->full_readings++;
    }
    watch->removals = removals;
    const uint64_t lasts_ns = misfit_lasts(watch, &occupancy);
    watch->misfit_readings = lasts_ns > 0 ? watch->misfit_readings + 1 : 0;
    if (watch->misfit_readings == 1) {
        watch->misfit_ns = reading->at_ns;
    }
    if (watch->misfit_readings < min_misfit_readings ||
        reading->at_ns - watch->misfit_ns < lasts_ns) {
        return 0;
    }
    return kvb_stream_note_misfit(stream) ? KVB_SIGN_OCCUPANCY : 0;
}

unsigned kvb_page_watch_read(
    struct kvb_page_watch *watch, struct kvb_stream *stream, const struct kvb_page_reading *reading)
{
    const struct kvb_cache_signs *signs = &reading->sample->signs;
    const uint64_t restarts = kvb_stream_count(stream)->restarts;
    unsigned found = 0;

    if (restarts != watch->restarts) { /* another incarnation may have another cache */
        watch->restarts = restarts;
        watch->full_readings = 0;
        watch->misfit_readings = 0;
    }
    found |= look_for_restart(watch, stream, reading);
    if (signs->speculation !=
        KVB_SPECULATION_UNKNOWN) { /* not another kind of engine, nor a part */
        kvb_stream_note_speculation(stream, KVB_SPECULATION_OF_PAGE, signs->speculation);
    }
    found |= look_for_sleep(watch, stream, reading);
    /* The counter of a new process begins again. */
    const bool begins = found & KVB_SIGN_RESTART || signs->reset_requests < watch->reset_requests;
    const uint64_t resets = signs->reset_requests - (begins ? 0 : watch->reset_requests);
    watch->reset_requests = signs->reset_requests;
    if (kvb_stream_note_resets(stream, resets, reading->asked_ns)) {
        found |= KVB_SIGN_RESET;
    }
    if (signs->has_hidden_pools && kvb_stream_note_hidden_pools(stream)) {
        found |= KVB_SIGN_HIDDEN_POOLS;
    }
    return found | look_at_occupancy(watch, stream, reading);
}
