#include "core/clock.h"
#include "core/own.h"
#include "ingest/http/fetch.h"
#include "kvbridge/ingest.h"
#include "kvbridge/loads.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/shown.h"
#include "stream/stream.h"
#include "wire/load/engine_message.h"

#include <stdlib.h>

/* An idle vLLM coordinator repeats unchanged values every 5 s. */
static const uint64_t coordinator_period_ns = 5 * KVB_NS_PER_S;

/* The coordinator's list may change before the engines themselves report it. */
static const uint64_t list_settles_ns = 30 * KVB_NS_PER_S;

/* Of the socket of a source from which nothing comes. */
static const struct kvb_backoff_range between_renewals = { .first_ns = 10 * KVB_NS_PER_S,
                                                           .longest_ns = 600 * KVB_NS_PER_S };

/* How many periods may pass before a source counts as silent. */
enum { periods_of_a_life = 3 };

/* Adapters are loaded and unloaded while an engine runs, and seldom. */
enum { models_period_ms = 5000 };

/* The metric that counts samples of each kind of source. */
static const enum kvb_bridge_metric samples_of[KVB_LOAD_SOURCE_KIND_COUNT] = {
    [KVB_LOAD_OF_ZMQ] = kvb_bridge_load_samples_zmq,
    [KVB_LOAD_OF_PROMETHEUS] = kvb_bridge_load_samples_prometheus,
    [KVB_LOAD_OF_COORDINATOR] = kvb_bridge_load_samples_coordinator,
};

static const uint64_t usual_life_ns = kvb_load_life_ms * KVB_NS_PER_MS;

/* How long figures of a source that sends once a period stay valid. */
static uint64_t lifetime_ns(uint64_t period_ns)
{
    const uint64_t life_ns = periods_of_a_life * period_ns;

    return life_ns > usual_life_ns ? life_ns : usual_life_ns;
}

/* ---- The state of a source ---- */

/* The address for logs and /state, without the password that a URL may contain. */
static const char *address_of(const struct bridge_load *load, enum kvb_load_source_kind kind)
{
    switch (kind) {
    case KVB_LOAD_OF_PROMETHEUS:
        return load->shown_url;
    case KVB_LOAD_OF_COORDINATOR:
        return load->part->worker->load.coordinator;
    default:
        return load->part->worker->load.zmq;
    }
}

static void log_load_source(
    struct kvb_bridge *bridge, const struct bridge_load *load, enum kvb_load_source_kind kind,
    enum kvb_log_level level, const char *what, const char *why)
{
    kvb_log_write(
        bridge->log, level, "bridge", what, "source", kvb_load_source_kind_name(kind), "address",
        address_of(load, kind), "worker", KVB_LOG_U64(load->part->id), "why", why, NULL);
}

/* Logs a failing source at once, then at growing intervals. */
static void warn(
    struct kvb_bridge *bridge, struct bridge_load *load, enum kvb_load_source_kind kind,
    const char *what, uint64_t now_ns)
{
    struct bridge_feed *feed = &load->feeds[kind];

    if (kvb_log_backoff_due(&feed->backoff, now_ns)) {
        /* The end of the trouble is said only if its beginning was. */
        feed->was_said = true;
        log_load_source(
            bridge, load, kind, KVB_LOG_WARNING, what,
            feed->why.text[0] ? feed->why.text : "nothing comes");
    }
}

/* Figures have come: the source is fresh until so much time has passed. */
static void note_fresh(
    struct kvb_bridge *bridge, struct bridge_load *load, enum kvb_load_source_kind kind,
    uint64_t now_ns, uint64_t life_ns)
{
    struct bridge_feed *feed = &load->feeds[kind];

    if (feed->was_said) {
        feed->was_said = false;
        kvb_log_backoff_end(&feed->backoff);
        log_load_source(bridge, load, kind, KVB_LOG_INFO, "a load source sends again", "");
    }
    kvb_backoff_end(&feed->renewals, &between_renewals);
    feed->state = KVB_LOAD_SOURCE_FRESH;
    feed->received_ns = now_ns;
    feed->until_ns = now_ns + life_ns;
    feed->why.text[0] = '\0';
}

static void note_refused(
    struct kvb_bridge *bridge, struct bridge_load *load, enum kvb_load_source_kind kind,
    const char *why, uint64_t now_ns)
{
    struct bridge_feed *feed = &load->feeds[kind];

    feed->refused++;
    kvb_detail_set(&feed->why, "%s", why);
    warn(bridge, load, kind, "a load source sends no usable figures", now_ns);
}

/* The socket of a source; NULL: the source has no socket. */
static struct kvb_load_source *
source_of(const struct bridge_load *load, enum kvb_load_source_kind kind)
{
    switch (kind) {
    case KVB_LOAD_OF_ZMQ:
        return load->zmq;
    case KVB_LOAD_OF_COORDINATOR:
        return load->coordinator;
    default:
        return NULL;
    }
}

/* Opens the socket of a source when its host name is resolved. */
static void
connect_source(struct bridge_load *load, enum kvb_load_source_kind kind, uint64_t now_ns)
{
    struct kvb_load_source *source = source_of(load, kind);
    /* Untouched while the socket is open: then the reason in /state stays. */
    const char *why = NULL; /* why its host name is not resolved */

    if (source) {
        /* On failure it is tried again later. */
        (void)kvb_load_source_connect(source, now_ns, &why);
    }
    if (why) {
        kvb_detail_set(&load->feeds[kind].why, "%s", why);
    }
}

/* Opens a socket again, also a silent one: libzmq may have given it up. */
static void renew(struct bridge_load *load, enum kvb_load_source_kind kind, uint64_t now_ns)
{
    struct bridge_feed *feed = &load->feeds[kind];
    struct kvb_load_source *source = source_of(load, kind);

    if (source && kvb_backoff_is_due(&feed->renewals, now_ns)) {
        /* Until a sample comes, which ends the back-off. */
        (void)kvb_backoff_fail(&feed->renewals, &between_renewals, now_ns);
        (void)kvb_load_source_renew(source, now_ns);
    }
}

/* Checks whether libzmq closed a connection because of what the peer sent. */
static void look_for_cut(
    struct kvb_bridge *bridge, struct bridge_load *load, enum kvb_load_source_kind kind,
    uint64_t now_ns)
{
    struct kvb_load_source *source = source_of(load, kind);

    /* libzmq does not connect again by itself. */
    if (source && kvb_load_source_is_cut(source, now_ns)) {
        kvb_bridge_count(bridge->shown, kvb_bridge_load_refused_protocol, 1);
        note_refused(
            bridge, load, kind,
            "protocol error: a message above 64 KiB, bytes that are not ZMTP, or 4 MiB that wait",
            now_ns);
        renew(load, kind, now_ns);
    }
}

void kvb_bridge_watch_loads(struct kvb_bridge *bridge, uint64_t now_ns)
{
    uint64_t states[KVB_LOAD_SOURCE_STATE_COUNT] = { 0 };

    for (size_t i = 0; i < bridge->membership->load_count; i++) {
        struct bridge_load *load = bridge->membership->loads[i];
        for (enum kvb_load_source_kind kind = 0; kind < KVB_LOAD_SOURCE_KIND_COUNT; kind++) {
            struct bridge_feed *feed = &load->feeds[kind];
            if (!feed->is_there) {
                continue;
            }
            connect_source(load, kind, now_ns);
            look_for_cut(bridge, load, kind, now_ns);
            /* Its figures stay valid until they expire by themselves; only the source is stale. */
            if (feed->state != KVB_LOAD_SOURCE_STALE && now_ns >= feed->until_ns) {
                feed->state = KVB_LOAD_SOURCE_STALE;
                warn(bridge, load, kind, "a load source is silent", now_ns);
            }
            if (feed->state == KVB_LOAD_SOURCE_STALE) {
                renew(load, kind, now_ns);
            }
            states[feed->state]++;
        }
    }
    kvb_metric_set(
        &bridge->shown->metrics, kvb_bridge_load_sources_waiting, states[KVB_LOAD_SOURCE_WAITING]);
    kvb_metric_set(
        &bridge->shown->metrics, kvb_bridge_load_sources_fresh, states[KVB_LOAD_SOURCE_FRESH]);
    kvb_metric_set(
        &bridge->shown->metrics, kvb_bridge_load_sources_stale, states[KVB_LOAD_SOURCE_STALE]);
}

size_t kvb_bridge_report_loads(
    const struct bridge_membership *membership, uint64_t now_ns, struct kvb_load_source_report *out)
{
    size_t reports = 0;

    for (size_t i = 0; i < membership->load_count; i++) {
        const struct bridge_load *load = membership->loads[i];
        for (enum kvb_load_source_kind kind = 0; kind < KVB_LOAD_SOURCE_KIND_COUNT; kind++) {
            const struct bridge_feed *feed = &load->feeds[kind];
            if (!feed->is_there) {
                continue;
            }
            /* Figures of this turn may be newer than now_ns, which was read at its beginning. */
            const uint64_t age_ns = now_ns > feed->received_ns ? now_ns - feed->received_ns : 0;
            out[reports++] = (struct kvb_load_source_report){
                .worker_id = load->part->id,
                .kind = kind,
                .state = feed->state,
                .was_received = feed->received_ns > 0,
                .age_ms = age_ns / KVB_NS_PER_MS,
                .refused = feed->refused,
                .ranks = kind == KVB_LOAD_OF_COORDINATOR ? load->listed : 0,
                .address = address_of(load, kind),
                .why = feed->why.text,
            };
        }
    }
    return reports;
}

/* ---- Figures ---- */

static struct bridge_rank *
load_rank(const struct kvb_bridge *bridge, const struct bridge_load *load, uint32_t dp_rank)
{
    const struct kvb_part *part = load->part;

    if (dp_rank < part->dp_rank || dp_rank - part->dp_rank >= part->ranks) {
        return NULL;
    }
    return kvb_bridge_find_rank(
        bridge, kvb_worker_id_of_rank(part->worker, dp_rank - part->dp_rank), dp_rank);
}

/* A sample without a rank belongs to the first rank. */
static struct bridge_rank *rank_of_sample(
    const struct kvb_bridge *bridge, const struct bridge_load *load,
    const struct kvb_load_sample *sample)
{
    return load_rank(bridge, load, sample->has_rank ? sample->dp_rank : load->part->dp_rank);
}

/* ---- What a page says about the cache ---- */

static const struct sign_row {
    enum kvb_page_sign sign;
    enum kvb_log_level level;
    enum kvb_bridge_metric metric; /* kvb_bridge_metric_count: none */
    const char *what;
} sign_rows[] = {
    { KVB_SIGN_RESTART, KVB_LOG_INFO, kvb_bridge_silent_restart,
      "another process makes an engine's metrics page: looking whether the engine has restarted" },
    { KVB_SIGN_ASLEEP, KVB_LOG_INFO, kvb_bridge_silent_asleep,
      "an engine sleeps and has discarded its cache: its list is withdrawn" },
    { KVB_SIGN_AWAKE, KVB_LOG_INFO, kvb_bridge_metric_count,
      "an engine is awake: its list follows with its next events" },
    { KVB_SIGN_OCCUPANCY, KVB_LOG_WARNING, kvb_bridge_silent_occupancy,
      "the memory of an engine contradicts its list: it has lost events before it numbered them; "
      "unverified until it clears its cache (vLLM: POST /reset_prefix_cache) or restarts" },
    { KVB_SIGN_RESET, KVB_LOG_INFO, kvb_bridge_silent_reset,
      "an engine has answered a request that may empty its cache, and published nothing yet: its "
      "list is unverified until its next step" },
    { KVB_SIGN_HIDDEN_POOLS, KVB_LOG_WARNING, kvb_bridge_metric_count,
      "an SGLang model has a sliding-window or Mamba pool, of which its events say nothing: its "
      "list is unverified" },
};

/* What the page of one rank says beside its load. */
static void read_signs(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_page_reading *reading)
{
    const unsigned signs = kvb_page_watch_read(&rank->page_watch, rank->served.stream, reading);

    kvb_silence_read_page(
        &rank->trouble.page, &reading->sample->signs,
        kvb_stream_count(rank->served.stream)->batches_applied, rank->part->worker->block_size,
        reading->at_ns);
    rank->page_block_size = reading->sample->signs.block_size;
    /* What was noted may have changed the stream's state, and no step follows to show it. */
    kvb_serve_wake(&rank->served);
    for (size_t i = 0; i < KVB_COUNT_OF(sign_rows); i++) {
        const struct sign_row *row = &sign_rows[i];
        if (!(signs & row->sign)) {
            continue;
        }
        if (row->metric != kvb_bridge_metric_count) {
            kvb_bridge_count(bridge->shown, row->metric, 1);
        }
        kvb_log_write(
            bridge->log, row->level, "bridge", row->what, "worker", KVB_LOG_U64(rank->worker_id),
            "dp_rank", KVB_LOG_U64(rank->dp_rank), NULL);
    }
}

/* Keeps samples of ranks that this bridge reads; returns how many.  Another bridge may read the
 * others. */
static size_t keep_samples(
    struct kvb_bridge *bridge, struct bridge_load *load, enum kvb_load_source_kind kind,
    const struct kvb_load_sample *samples, size_t sample_count, uint64_t now_ns, uint64_t life_ns)
{
    uint64_t *load_until_ns = &bridge->publisher->load_until_ns;
    size_t kept = 0;

    for (size_t i = 0; i < sample_count; i++) {
        struct bridge_rank *rank = rank_of_sample(bridge, load, &samples[i]);
        if (rank) {
            kvb_newest_load_take(&rank->load, &samples[i], kind, now_ns, life_ns);
            kept++;
        }
    }
    kvb_bridge_count(bridge->shown, samples_of[kind], kept);
    kvb_bridge_count(bridge->shown, kvb_bridge_load_refused_rank, sample_count - kept);
    if (kept > 0) {
        *load_until_ns = now_ns + life_ns > *load_until_ns ? now_ns + life_ns : *load_until_ns;
        note_fresh(bridge, load, kind, now_ns, life_ns);
    }
    return kept;
}

/* ---- The worker's own socket ---- */

static void take_messages(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns)
{
    const enum kvb_load_source_kind kind = KVB_LOAD_OF_ZMQ;
    struct kvb_load_sample sample;

    /* Not until it is empty: a source that sends without end must not keep engines waiting. */
    for (int i = 0; i < kvb_source_run; i++) {
        const kvb_status status = kvb_load_source_receive(load->zmq, &sample);
        if (status == KVB_BAD_INPUT) {
            kvb_bridge_count(bridge->shown, kvb_bridge_load_refused_message, 1);
            note_refused(bridge, load, kind, "a message is not ForwardPassMetrics", now_ns);
        } else if (status != KVB_OK) {
            return;
        } else {
            kvb_bridge_count(
                bridge->shown, kvb_bridge_load_scheduler_samples, sample.is_of_scheduler);
            (void)keep_samples(bridge, load, kind, &sample, 1, now_ns, usual_life_ns);
        }
    }
}

/* ---- The coordinator ---- */

/* Drops the load of ranks that are no longer listed. */
static void drop_ranks(struct kvb_bridge *bridge, const struct bridge_load *load, uint32_t there)
{
    const uint32_t first = load->part->dp_rank;

    /* The engine has been scaled down: figures of ranks that are gone would attract requests. */
    for (uint32_t at = there > first ? there - first : 0; at < load->part->ranks; at++) {
        struct bridge_rank *rank = load_rank(bridge, load, first + at);
        if (rank) {
            kvb_newest_load_forget(&rank->load, KVB_LOAD_OF_COORDINATOR);
        }
    }
}

/* Handles a changed list of ranks: the engine is queried, so that ranks are opened or closed
 * soon. */
static void
follow_list(struct kvb_bridge *bridge, struct bridge_load *load, uint32_t there, uint64_t now_ns)
{
    const enum kvb_load_source_kind kind = KVB_LOAD_OF_COORDINATOR;
    uint64_t times = 0;

    /* Not at the first list, which nothing was there to differ from. */
    if (there != load->listed && load->feeds[kind].received_ns > 0) {
        struct kvb_detail ranks;
        kvb_detail_set(&ranks, "%u ranks, not %u", there, load->listed);
        load->list_until_ns = now_ns + list_settles_ns;
        if (kvb_log_limit_due(&load->list_limit, now_ns, &times)) {
            log_load_source(
                bridge, load, kind, KVB_LOG_INFO, "a coordinator lists other ranks", ranks.text);
        }
    }
    load->listed = there;
    if (now_ns < load->list_until_ns) {
        kvb_bridge_rediscover(bridge, load->source_number, load->part->worker);
    }
}

static void take_coordinator(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns)
{
    const enum kvb_load_source_kind kind = KVB_LOAD_OF_COORDINATOR;
    const uint64_t life_ns = lifetime_ns(coordinator_period_ns);
    struct kvb_coordinator_update *update = &bridge->ingest->coordinator_update;

    for (int i = 0; i < kvb_source_run; i++) {
        const kvb_status status = kvb_load_source_receive_coordinator(load->coordinator, update);
        if (status == KVB_BAD_INPUT) {
            kvb_bridge_count(bridge->shown, kvb_bridge_load_refused_message, 1);
            note_refused(bridge, load, kind, "a message is not one of vLLM's coordinator", now_ns);
        } else if (status != KVB_OK) {
            return;
        } else if (update->has_ranks) {
            kvb_bridge_count(bridge->shown, kvb_bridge_load_refused_figure, update->refused);
            follow_list(bridge, load, update->rank_count, now_ns);
            drop_ranks(bridge, load, update->rank_count);
            (void)keep_samples(bridge, load, kind, update->samples, update->count, now_ns, life_ns);
            /* Also when this bridge reads none of the listed ranks. */
            note_fresh(bridge, load, kind, now_ns, life_ns);
        }
    }
}

void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns)
{
    if (load->zmq) {
        take_messages(bridge, load, now_ns);
    }
    if (load->coordinator) {
        take_coordinator(bridge, load, now_ns);
    }
}

/* ---- Metrics pages ---- */

static enum kvb_bridge_metric scrape_metric(const struct kvb_scrape_result *result)
{
    static const enum kvb_bridge_metric metrics[KVB_FETCH_OUTCOME_COUNT] = {
        [KVB_FETCH_OK] = kvb_bridge_scrapes_ok,
        [KVB_FETCH_UNREACHABLE] = kvb_bridge_scrapes_unreachable,
        [KVB_FETCH_LATE] = kvb_bridge_scrapes_late,
        [KVB_FETCH_CODE] = kvb_bridge_scrapes_code,
        [KVB_FETCH_TOO_LARGE] = kvb_bridge_scrapes_too_large,
        [KVB_FETCH_STOPPED] = kvb_bridge_scrapes_stopped,
    };

    return result->is_foreign ? kvb_bridge_scrapes_foreign : metrics[result->outcome];
}

static void take_page(
    struct kvb_bridge *bridge, struct bridge_load *load, const struct kvb_scrape_result *result,
    uint64_t now_ns)
{
    const enum kvb_load_source_kind kind = KVB_LOAD_OF_PROMETHEUS;
    const uint64_t period_ns = load->part->worker->load.scrape_ms * KVB_NS_PER_MS;

    kvb_bridge_count(bridge->shown, scrape_metric(result), 1);
    kvb_bridge_count(bridge->shown, kvb_bridge_load_refused_figure, result->refused);
    kvb_bridge_count(bridge->shown, kvb_bridge_load_counter_resets, result->resets);
    if (result->count == 0) {
        note_refused(bridge, load, kind, result->why.text, now_ns);
        return;
    }
    /* The page shows the engine at some time between these two. */
    for (size_t i = 0; i < result->count; i++) {
        struct bridge_rank *rank = rank_of_sample(bridge, load, &result->samples[i]);
        if (rank) {
            read_signs(
                bridge, rank,
                &(struct kvb_page_reading){ .sample = &result->samples[i],
                                            .asked_ns = result->at_ns - result->took_ns,
                                            .at_ns = result->at_ns });
        }
    }
    /* A reading that takes longer than its period makes the next one late. */
    const uint64_t life_ns = lifetime_ns(result->took_ns > period_ns ? result->took_ns : period_ns);
    if (keep_samples(bridge, load, kind, result->samples, result->count, result->at_ns, life_ns) ==
        0) {
        note_refused(
            bridge, load, kind, "the metrics page has none of the configured ranks", now_ns);
    }
}

/* ---- Lists of models ---- */

static enum kvb_bridge_metric models_metric(const struct kvb_scrape_result *result)
{
    static const enum kvb_bridge_metric metrics[KVB_FETCH_OUTCOME_COUNT] = {
        [KVB_FETCH_OK] = kvb_bridge_model_lists_ok,
        [KVB_FETCH_UNREACHABLE] = kvb_bridge_model_lists_unreachable,
        [KVB_FETCH_LATE] = kvb_bridge_model_lists_unreachable,
        [KVB_FETCH_CODE] = kvb_bridge_model_lists_code,
        [KVB_FETCH_TOO_LARGE] = kvb_bridge_model_lists_refused,
        [KVB_FETCH_STOPPED] = kvb_bridge_model_lists_refused,
    };

    return result->is_foreign ? kvb_bridge_model_lists_refused : metrics[result->outcome];
}

static void log_models(
    struct kvb_bridge *bridge, const struct bridge_load *load, enum kvb_log_level level,
    const char *what, const char *why)
{
    kvb_log_write(
        bridge->log, level, "bridge", what, "worker", KVB_LOG_U64(load->part->id), "why", why,
        NULL);
}

/* An engine that does not answer is said elsewhere, and one without the page is no fault. */
static bool is_list_refused(const struct kvb_scrape_result *result)
{
    enum { not_found = 404 };

    switch (result->outcome) {
    case KVB_FETCH_OK:
        return result->is_foreign;
    case KVB_FETCH_UNREACHABLE:
    case KVB_FETCH_LATE:
        return false;
    case KVB_FETCH_CODE:
        return result->code != not_found;
    default:
        return true;
    }
}

/* Says it at once and then at growing intervals, and its end. */
static void say_models_refused(
    struct kvb_bridge *bridge, struct bridge_load *load, const struct kvb_scrape_result *result,
    uint64_t now_ns)
{
    if (is_list_refused(result)) {
        if (kvb_log_backoff_due(&load->models_log, now_ns)) {
            load->were_models_refused = true;
            log_models(
                bridge, load, KVB_LOG_WARNING,
                "an engine's list of models cannot be read: requests may name only adapters that "
                "its events have named",
                result->why.text);
        }
    } else if (load->were_models_refused && result->outcome == KVB_FETCH_OK) {
        load->were_models_refused = false;
        kvb_log_backoff_end(&load->models_log);
        log_models(bridge, load, KVB_LOG_INFO, "an engine's list of models is read again", "");
    }
}

static void say_names_left_out(
    struct kvb_bridge *bridge, struct bridge_load *load, const struct kvb_served_names *names)
{
    if (names->left_out != load->names_left_out && names->left_out > 0) {
        struct kvb_detail why;
        kvb_detail_set(
            &why, "%u names are left out: at most %d, in %d bytes", names->left_out,
            kvb_max_served_names, kvb_served_names_bytes);
        log_models(
            bridge, load, KVB_LOG_WARNING,
            "an engine serves more names than a heartbeat carries: requests for the others are not "
            "found, unless events have named them",
            why.text);
    }
    load->names_left_out = names->left_out;
}

static void set_names(
    struct kvb_bridge *bridge, const struct bridge_load *load, const struct kvb_served_names *names)
{
    for (uint32_t at = 0; at < load->part->ranks; at++) {
        struct bridge_rank *rank = load_rank(bridge, load, load->part->dp_rank + at);
        if (rank && !kvb_served_names_are_same(&rank->names, names)) {
            rank->names = *names;
            kvb_bridge_beat_at_once(bridge, rank);
        }
    }
}

/* An engine that does not answer keeps its names: it may be busy, and one that is gone is DOWN. */
static void take_models(
    struct kvb_bridge *bridge, struct bridge_load *load, const struct kvb_scrape_result *result,
    uint64_t now_ns)
{
    const bool has_answered = result->outcome == KVB_FETCH_OK || result->code > 0;

    kvb_bridge_count(bridge->shown, models_metric(result), 1);
    say_models_refused(bridge, load, result, now_ns);
    /* Any answer counts, also an error: an engine without such a list has no names of its own. */
    if (has_answered) {
        say_names_left_out(bridge, load, &result->names);
        set_names(bridge, load, &result->names);
    }
}

/* The key of a page: the number of its load among the owners, below a number that no other page
 * has had.  So a result that comes after its page was closed finds nothing. */
static uint64_t next_page_key(struct bridge_ingest *ingest, const struct bridge_load *load)
{
    return ++ingest->page_keys * kvb_bridge_owners + load->owner;
}

void kvb_bridge_take_pages(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct kvb_scrape_result *result = NULL;

    if (!bridge->ingest->scraper) {
        return;
    }
    while (kvb_scraper_take(bridge->ingest->scraper, &result) == KVB_OK) {
        struct bridge_load *load = bridge->ingest->owners[result->key % kvb_bridge_owners];
        /* The number of the owner may have been given to another load, the key was not. */
        if (load && load->models_key == result->key) {
            take_models(bridge, load, result, now_ns);
        } else if (load && load->scrape_key == result->key) {
            take_page(bridge, load, result, now_ns);
        } /* else its page was closed meanwhile */
        free(result);
    }
    kvb_metric_set(
        &bridge->shown->metrics, kvb_bridge_scrapes_lost,
        kvb_scraper_lost(bridge->ingest->scraper));
}

/* ---- Opening and closing ---- */

static kvb_status open_load_socket(
    struct bridge_ingest *ingest, const char *endpoint, size_t owner,
    struct kvb_load_source **out_source, struct kvb_detail *detail)
{
    const struct kvb_load_source_options options = {
        .endpoint = endpoint, .poller = ingest->poller, .owner = owner, .resolver = ingest->resolver
    };

    return endpoint[0] ? kvb_load_source_open(ingest->zmq, &options, out_source, detail) : KVB_OK;
}

static kvb_status start_scraper(struct kvb_bridge *bridge)
{
    struct bridge_ingest *ingest = bridge->ingest;
    struct kvb_scraper *scraper = NULL;

    KVB_TRY(kvb_scraper_start(bridge->control, ingest->resolver, &scraper));
    const kvb_status status =
        kvb_poller_add_fd(ingest->poller, kvb_pages_owner, kvb_scraper_fd(scraper));
    if (status != KVB_OK) {
        kvb_scraper_stop(scraper);
        return status;
    }
    /* Only a scraper that can wake this thread is kept. */
    ingest->scraper = scraper;
    return KVB_OK;
}

/* Starts the scraper with the first page.  Without a URL *out_key stays 0. */
static kvb_status open_page(
    struct kvb_bridge *bridge, const struct bridge_load *load, struct kvb_scrape_target target,
    uint64_t *out_key, struct kvb_detail *detail)
{
    struct bridge_ingest *ingest = bridge->ingest;

    if (target.url[0] == '\0') {
        return KVB_OK;
    }
    if (!ingest->scraper) {
        KVB_TRY(start_scraper(bridge));
    }
    target.key = next_page_key(ingest, load);
    KVB_TRY(kvb_scraper_add(ingest->scraper, &target, detail));
    *out_key = target.key;
    return KVB_OK;
}

static kvb_status
open_pages(struct kvb_bridge *bridge, struct bridge_load *load, struct kvb_detail *detail)
{
    const struct kvb_worker_spec *settings = load->part->worker;
    char models_url[kvb_max_page_url_bytes];
    const struct kvb_scrape_target metrics = { .page = KVB_SCRAPE_METRICS,
                                               .url = settings->load.prometheus,
                                               .period_ms = settings->load.scrape_ms,
                                               .timeout_ms = kvb_scrape_timeout_ms,
                                               .block_size = settings->block_size,
                                               .model = settings->model };
    const struct kvb_scrape_target models = { .page = KVB_SCRAPE_MODELS,
                                              .url = models_url,
                                              .key_file = settings->discover_token_file,
                                              .refuses_metadata = settings->discover[0] != '\0',
                                              .period_ms = models_period_ms,
                                              .timeout_ms = kvb_scrape_timeout_ms,
                                              .model = settings->model };

    kvb_worker_models_url(settings, models_url);
    KVB_TRY(open_page(bridge, load, metrics, &load->scrape_key, detail));
    return open_page(bridge, load, models, &load->models_key, detail);
}

static void drop_load(struct bridge_ingest *ingest, struct bridge_load *load)
{
    kvb_load_source_close(load->zmq);
    kvb_load_source_close(load->coordinator);
    if (load->scrape_key != 0) {
        /* Without memory the page is still read, and its results find no load. */
        (void)kvb_scraper_remove(ingest->scraper, load->scrape_key);
    }
    if (load->models_key != 0) {
        (void)kvb_scraper_remove(ingest->scraper, load->models_key);
    }
    if (load->owner != 0) { /* 0 would be the number of a rank */
        kvb_bridge_give_back_owner(ingest, bridge_owner_load, load->owner);
    }
    kvb_part_unref(load->part);
    free(load);
}

static kvb_status
fill_load(struct kvb_bridge *bridge, struct bridge_load *load, struct kvb_detail *detail)
{
    const struct kvb_worker_spec *settings = load->part->worker;
    const size_t sources = kvb_worker_load_sources(settings);
    const uint64_t until_ns = kvb_clock_monotonic_ns() + lifetime_ns(0);

    /* First, because the sockets are entered in the poller under this number. */
    KVB_TRY(kvb_bridge_take_owner(bridge->ingest, bridge_owner_load, load, &load->owner));
    KVB_TRY(kvb_bridge_make_room(bridge, &(struct kvb_zmq_size){ .loads = sources }, detail));
    for (enum kvb_load_source_kind kind = 0; kind < KVB_LOAD_SOURCE_KIND_COUNT; kind++) {
        load->feeds[kind] = (struct bridge_feed){ .is_there = address_of(load, kind)[0] != '\0',
                                                  .until_ns = until_ns };
    }
    KVB_TRY(open_load_socket(bridge->ingest, settings->load.zmq, load->owner, &load->zmq, detail));
    KVB_TRY(open_load_socket(
        bridge->ingest, settings->load.coordinator, load->owner, &load->coordinator, detail));
    return open_pages(bridge, load, detail);
}

kvb_status kvb_bridge_open_load(
    struct kvb_bridge *bridge, struct kvb_part *part, uint32_t source, struct kvb_detail *detail)
{
    struct bridge_membership *membership = bridge->membership;
    struct bridge_load *load = calloc(1, sizeof *load);

    if (!load) {
        return KVB_NO_MEMORY;
    }
    load->part = kvb_part_ref(part);
    (void)kvb_url_show(part->worker->load.prometheus, load->shown_url, sizeof load->shown_url);
    kvb_status status = fill_load(bridge, load, detail);
    if (status == KVB_OK) {
        status = kvb_part_table_put(&membership->running, part, source, load, &load->number);
    }
    if (status != KVB_OK) {
        drop_load(bridge->ingest, load);
        return status;
    }
    load->source_number = source;
    /* Nothing can fail any more: a load in the list is whole. */
    load->at = membership->load_count++;
    membership->loads[load->at] = load;
    return KVB_OK;
}

void kvb_bridge_set_load_part(struct bridge_load *load, struct kvb_part *part)
{
    struct kvb_part *former = load->part;

    /* Before the other is given back: both may be the same. */
    load->part = kvb_part_ref(part);
    kvb_part_unref(former);
}

void kvb_bridge_close_load(struct kvb_bridge *bridge, struct bridge_load *load)
{
    struct bridge_membership *membership = bridge->membership;
    struct bridge_load *last = membership->loads[--membership->load_count];

    /* The last one takes its place; it may be this one itself. */
    membership->loads[load->at] = last;
    last->at = load->at;
    kvb_part_table_remove(&membership->running, load->number);
    drop_load(bridge->ingest, load);
}

void kvb_bridge_close_loads(struct kvb_bridge *bridge)
{
    for (size_t i = 0; i < bridge->membership->load_count; i++) {
        drop_load(bridge->ingest, bridge->membership->loads[i]);
    }
    kvb_scraper_stop(bridge->ingest->scraper);
    free((void *)bridge->membership->loads);
}
