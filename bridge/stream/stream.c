#include "stream/stream.h"

#include "stream/inside.h"

#include <stdlib.h>
#include <string.h>

kvb_status kvb_stream_new(const struct kvb_stream_options *options, struct kvb_stream **out_stream)
{
    struct kvb_stream *stream = calloc(1, sizeof *stream);

    if (!stream) {
        return KVB_NO_MEMORY;
    }
    kvb_status status = kvb_mirror_new(&options->mirror, &stream->mirror);
    if (status == KVB_OK && options->max_log_blocks > 0) {
        status = kvb_event_log_new(options->max_log_blocks, &stream->log);
    }
    if (status != KVB_OK) {
        kvb_stream_free(stream);
        return status;
    }
    stream->options = *options;
    stream->options.mirror.lora_name = NULL; /* the mirror has its own copy */
    stream->reorder_buffer.max_bytes = options->max_buffered_bytes;
    stream->cause = KVB_REASON_CONNECTING;
    kvb_stream_next_epoch(stream, 1);
    (void)kvb_stream_describe(stream);
    *out_stream = stream;
    return KVB_OK;
}

kvb_status kvb_stream_show(struct kvb_stream *stream, uint32_t block_size)
{
    return kvb_mirror_show(stream->mirror, block_size);
}

struct kvb_shown *kvb_stream_shown(const struct kvb_stream *stream)
{
    return kvb_mirror_shown(stream->mirror);
}

void kvb_stream_free(struct kvb_stream *stream)
{
    if (!stream) {
        return;
    }
    kvb_picture_end(&stream->refresh); /* before the mirror, which knows it */
    kvb_stream_list_end(stream);       /* likewise */
    kvb_mirror_free(stream->mirror);
    kvb_event_log_free(stream->log);
    kvb_reorder_buffer_done(&stream->reorder_buffer);
    kvb_fingerprints_clear(&stream->fingerprints);
    kvb_stream_drop_unfinished(stream);
    free(stream);
}

void kvb_stream_output_done(struct kvb_stream_output *output)
{
    kvb_router_batch_done(&output->events);
}

void kvb_stream_open_epoch(struct kvb_stream *stream, uint64_t wall_us, bool is_withdrawn)
{
    kvb_stream_next_epoch(stream, wall_us);
    stream->is_withdrawn = is_withdrawn;
    (void)kvb_stream_describe(stream); /* the caller that opens it announces it */
}

void kvb_stream_sign(struct kvb_stream *stream, struct kvb_router_batch *events)
{
    events->worker_id = stream->options.worker_id;
    events->dp_rank = stream->options.dp_rank;
    events->has_epoch = true;
    events->epoch = stream->epoch;
    for (size_t i = 0; i < events->event_count; i++) {
        events->events[i].event_id = ++stream->last_id;
    }
    if (stream->log) {
        kvb_event_log_add(stream->log, events);
    }
}

[[gnu::hot]] void
kvb_stream_expect(const struct kvb_stream *stream, const struct kvb_event_batch *batch)
{
    kvb_mirror_expect_batch(stream->mirror, batch);
}

/* ---- State ---- */

/* Rows of the table of states; the first whose condition holds gives the stream's state. */
enum verdict_row {
    row_connecting,
    row_away,
    row_life_unproven,
    row_asleep,
    row_withdrawn,
    row_unknown_event,
    row_groups,
    row_misfit,
    row_silent,
    row_store,
    row_reset,
    row_ambiguous,
    row_salts,
    row_speculation,
    row_no_replay,
    row_syncing,
    row_unproven_suffix,
    row_unproven,
    row_no_base,
    row_counted_whole,
    row_flawed,
    row_skipped,
    row_unannounced,
    row_unrooted,
    row_exact
};

/* clang-format off */
static const struct verdict {
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
} verdicts[] = {
    [row_connecting]      = { KVB_STREAM_DOWN, KVB_REASON_CONNECTING },
    [row_away]            = { KVB_STREAM_DOWN, KVB_REASON_ENGINE_AWAY },
    [row_life_unproven]   = { KVB_STREAM_DOWN, KVB_REASON_CONNECTING },
    [row_asleep]          = { KVB_STREAM_UNVERIFIED, KVB_REASON_ASLEEP },
    [row_withdrawn]       = { KVB_STREAM_SYNCING, KVB_REASON_REPLAYING },
    [row_unknown_event]   = { KVB_STREAM_UNVERIFIED, KVB_REASON_UNKNOWN_EVENT },
    [row_groups]          = { KVB_STREAM_UNVERIFIED, KVB_REASON_GROUPS },
    [row_misfit]          = { KVB_STREAM_UNVERIFIED, KVB_REASON_OCCUPANCY },
    [row_silent]          = { KVB_STREAM_UNVERIFIED, KVB_REASON_NONE }, /* or the silence's */
    [row_store]           = { KVB_STREAM_UNVERIFIED, KVB_REASON_NO_REMOVALS },
    [row_reset]           = { KVB_STREAM_UNVERIFIED, KVB_REASON_RESET },
    [row_ambiguous]       = { KVB_STREAM_UNVERIFIED, KVB_REASON_AMBIGUOUS },
    [row_salts]           = { KVB_STREAM_UNVERIFIED, KVB_REASON_SALTS },
    [row_speculation]     = { KVB_STREAM_UNVERIFIED, KVB_REASON_SPECULATION },
    [row_no_replay]       = { KVB_STREAM_UNVERIFIED, KVB_REASON_NO_REPLAY },
    [row_syncing]         = { KVB_STREAM_SYNCING, KVB_REASON_REPLAYING },
    [row_unproven_suffix] = { KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED },
    [row_unproven]        = { KVB_STREAM_UNVERIFIED, KVB_REASON_REPLAY_FAILED },
    [row_no_base]         = { KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE },
    [row_counted_whole]   = { KVB_STREAM_EXACT, KVB_REASON_NONE },
    [row_flawed]          = { KVB_STREAM_PARTIAL, KVB_REASON_NONE }, /* or the cause */
    [row_skipped]         = { KVB_STREAM_PARTIAL, KVB_REASON_SKIPPED },
    [row_unannounced]     = { KVB_STREAM_PARTIAL, KVB_REASON_UNANNOUNCED },
    [row_unrooted]        = { KVB_STREAM_PARTIAL, KVB_REASON_UNROOTED },
    [row_exact]           = { KVB_STREAM_EXACT, KVB_REASON_NONE },
};
/* clang-format on */

/* The largest number of blocks that the engine may hold and the list may lack, computed from the
 * engine's total.  False: the total is unknown, or the engine was seen to hold more, so the total
 * is wrong.  Unrooted and unplaced blocks are proven, but not listed. */
static bool missing_at_most(const struct kvb_stream *stream, uint64_t *out_blocks)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);
    const uint64_t total = stream->options.total_blocks;

    *out_blocks = total > counts->proven_copies ? total - counts->proven_copies : 0;
    *out_blocks += counts->unrooted + counts->unplaced;
    return total > 0 && counts->max_proven <= total;
}

/* The engine's total is of device blocks: it proves nothing about other tiers. */
static bool lists_device_only(const struct kvb_stream *stream)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);
    uint64_t others = 0;

    for (size_t tier = KVB_TIER_DEVICE + 1; tier < KVB_TIER_COUNT; tier++) {
        others += counts->held[tier];
    }
    return others == 0;
}

static bool is_store(const struct kvb_stream *stream)
{
    return stream->options.is_store || stream->has_objects;
}

static unsigned when(bool holds, enum verdict_row row)
{
    return (unsigned)holds << row;
}

/* A replay is wanted or under way for something that is known to be missing. */
static bool is_syncing_now(const struct kvb_stream *stream)
{
    const struct replay *replay = &stream->replay;

    return (replay->phase == replay_wanted || replay_is_in_flight(replay)) && !replay->keeps_state;
}

/* True when nothing proves that replayed batches are this engine's.  Batches that came live are
 * right in any case, but if another engine replies, no replay shows a loss of the newest ones. */
static bool is_without_base(const struct kvb_stream *stream)
{
    const bool is_live_part = stream->history != history_whole && !stream->list.lists_replayed &&
                              stream->cause != KVB_REASON_NO_BASE;

    return stream->origin == origin_foreign || (stream->origin == origin_unknown && !is_live_part);
}

static bool has_hidden_pools(const struct kvb_stream *stream)
{
    return stream->has_hidden_pools || stream->options.has_hidden_pools;
}

/* ---- Speculation ---- */

/* The shape of the device's blocks; before the first of them, the shape that came first. */
static struct kvb_block_shape main_shape(const struct kvb_stream *stream)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);

    for (size_t i = 0; i < counts->shape_count; i++) {
        if (counts->shapes[i].tier == KVB_TIER_DEVICE) {
            return counts->shapes[i].shape;
        }
    }
    return counts->shape_count > 0
               ? counts->shapes[0].shape
               : (struct kvb_block_shape){ .block_size = stream->options.block_size };
}

/* What is configured, else the first source that decides, else what leaves it open. */
static enum kvb_speculation
speculation_of(const struct kvb_stream *stream, enum kvb_speculation_source *out_source)
{
    enum kvb_speculation_source open = KVB_SPECULATION_OF_NOTHING;

    /* Who configures it knows it. */
    if (stream->options.speculative_drop != KVB_DROP_DETECT) {
        *out_source = KVB_SPECULATION_OF_CONFIG;
        return stream->options.speculative_drop > 0 ? KVB_SPECULATION_DROPS : KVB_SPECULATION_KEEPS;
    }
    for (unsigned at = 0; at < KVB_SPECULATION_SOURCE_COUNT; at++) {
        const enum kvb_speculation found = stream->speculation[at];
        *out_source = (enum kvb_speculation_source)at;
        if (found == KVB_SPECULATION_KEEPS || found == KVB_SPECULATION_DROPS) {
            return found;
        }
        open = found == KVB_SPECULATION_UNDECIDED && open == KVB_SPECULATION_OF_NOTHING
                   ? *out_source
                   : open;
    }
    *out_source = open;
    return stream->speculation[open];
}

static bool has_lookahead(const struct kvb_stream *stream)
{
    return main_shape(stream).lookahead > 0;
}

/* A list without blocks promises nothing, and its engine's first block may show lookahead. */
static bool is_speculation_open(const struct kvb_stream *stream)
{
    enum kvb_speculation_source source = KVB_SPECULATION_OF_NOTHING;

    return kvb_mirror_count(stream->mirror)->shape_count > 0 && !has_lookahead(stream) &&
           speculation_of(stream, &source) == KVB_SPECULATION_UNDECIDED;
}

static uint32_t drop_in_blocks(const struct kvb_stream *stream)
{
    enum kvb_speculation_source source = KVB_SPECULATION_OF_NOTHING;
    const enum kvb_speculation speculation = speculation_of(stream, &source);

    if (has_lookahead(stream)) {
        return 0; /* there the last block is the one without a name */
    }
    return source == KVB_SPECULATION_OF_CONFIG ? stream->options.speculative_drop
                                               : speculation == KVB_SPECULATION_DROPS;
}

void kvb_stream_note_speculation(
    struct kvb_stream *stream, enum kvb_speculation_source source, enum kvb_speculation found)
{
    stream->speculation[source] = found;
}

static const char *why_speculates(enum kvb_speculation_source source, enum kvb_speculation found)
{
    const bool keeps = found == KVB_SPECULATION_KEEPS;
    const bool drops = found == KVB_SPECULATION_DROPS;

    switch (source) {
    case KVB_SPECULATION_OF_CONFIG:
        return keeps ? "speculative_drop is configured as 0" : "speculative_drop is configured";
    case KVB_SPECULATION_OF_SERVER_INFO:
        return keeps ? "the engine's /server_info names no method that drops a block"
               : drops
                   ? "the engine's /server_info names a method of EAGLE or MTP"
                   : "the engine speculates, and its /server_info names a method of which it is "
                     "not known whether it drops a block: set speculative_drop";
    case KVB_SPECULATION_OF_ARGUMENTS:
        return keeps   ? "the pod's arguments name a method that drops no block"
               : drops ? "the pod's arguments name a method of EAGLE or MTP"
                       : "the engine speculates, and the pod's arguments do not say whether its "
                         "method drops a block: set speculative_drop";
    case KVB_SPECULATION_OF_PAGE:
        return keeps ? "the metrics page shows no speculation"
                     : "the engine speculates, and the method is not on its metrics page: set "
                       "speculative_drop (1 for EAGLE and MTP, 0 for n-grams and draft models)";
    case KVB_SPECULATION_OF_NOTHING:
    case KVB_SPECULATION_SOURCE_COUNT:
        break;
    }
    return "nothing shows whether the engine speculates";
}

struct kvb_speculation_finding kvb_stream_speculation(const struct kvb_stream *stream)
{
    struct kvb_speculation_finding finding = { .drop = drop_in_blocks(stream) };

    finding.speculation = speculation_of(stream, &finding.source);
    finding.why = why_speculates(finding.source, finding.speculation);
    if (has_lookahead(stream) && finding.speculation != KVB_SPECULATION_KEEPS) {
        finding.speculation = KVB_SPECULATION_KEEPS;
        finding.why = "the hashes of its blocks have lookahead: no block is dropped";
    }
    return finding;
}

/* ---- Verdict ---- */

/* Called once in each step.  A row that holds sets one bit; the lowest bit is the first row. */
void kvb_stream_state(
    const struct kvb_stream *stream, enum kvb_stream_state *out_state,
    enum kvb_stream_reason *out_reason)
{
    uint64_t missing = 0;
    const bool is_counted_whole = stream->origin == origin_found &&
                                  missing_at_most(stream, &missing) && missing == 0 &&
                                  lists_device_only(stream);
    const bool is_behind = stream->is_tail_unseen && !stream->is_unproven;
    /* A half-applied batch is a state that the engine never had. */
    const bool is_syncing = is_syncing_now(stream) || stream->drain != drain_nothing ||
                            stream->unfinished.is_there || is_behind;
    /* The list grows from live batches alone: it may lack blocks, but has no wrong ones. */
    const bool is_suffix =
        stream->history != history_whole && stream->cause == KVB_REASON_REPLAY_FAILED;
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);
    const bool is_unrooted = counts->unrooted + counts->unplaced > 0;
    /* Mooncake's master evicts objects, and loses those of a client that went away, without an
     * event. The removals that it publishes are those that somebody requested, so they prove
     * nothing. */
    const bool is_unproven_store =
        is_store(stream) && stream->options.offload_removals != KVB_OFFLOAD_COMPLETE;
    const unsigned holds =
        when(stream->link == link_new || stream->link == link_restored, row_connecting) |
        when(stream->link == link_away, row_away) |
        when(stream->link == link_proving, row_life_unproven) |
        when(kvb_stream_is_cache_discarded(stream), row_asleep) |
        when(stream->is_withdrawn, row_withdrawn) |
        when(stream->list.has_unknown_event, row_unknown_event) |
        when(kvb_mirror_has_odd_groups(stream->mirror) || has_hidden_pools(stream), row_groups) |
        when(stream->life.has_misfit, row_misfit) |
        when(stream->silence != KVB_REASON_NONE, row_silent) | when(is_unproven_store, row_store) |
        when(stream->life.has_reset, row_reset) |
        when(stream->life.is_ambiguous || stream->life.has_hashes_of_pages, row_ambiguous) |
        when(stream->life.lacks_salts && !stream->options.is_without_salts, row_salts) |
        when(is_speculation_open(stream), row_speculation) |
        when(!stream->options.has_replay, row_no_replay) | when(is_syncing, row_syncing) |
        when(stream->is_unproven && is_suffix, row_unproven_suffix) |
        when(stream->is_unproven, row_unproven) | when(is_without_base(stream), row_no_base) |
        when(is_counted_whole, row_counted_whole) |
        when(stream->history != history_whole, row_flawed) |
        when(stream->list.has_skipped, row_skipped) |
        when(kvb_mirror_has_unannounced(stream->mirror), row_unannounced) |
        when(is_unrooted, row_unrooted) | when(true, row_exact);
    const int row = __builtin_ctz(holds);

    *out_state = verdicts[row].state;
    *out_reason = row == row_flawed   ? stream->cause
                  : row == row_silent ? stream->silence
                                      : verdicts[row].reason;
}

/* 0: blocks by themselves. */
static uint32_t chunk_blocks(const struct kvb_stream *stream)
{
    const uint32_t blocks = kvb_mirror_chunk_blocks(stream->mirror);

    return blocks > 1 ? blocks : 0;
}

/* What the groups with these numbers drop.  Unless it is configured which do, they are those of
 * full attention, where the draft model is, or all of a model without them.  With lookahead hashes
 * none does. */
static uint32_t drop_of(const struct kvb_stream *stream, uint32_t numbers, bool is_by_default)
{
    const uint32_t chosen = stream->options.speculative_drop_groups;
    const bool drops = chosen != 0 ? (chosen & numbers) != 0 : is_by_default;

    return drops ? drop_in_blocks(stream) : 0;
}

static void describe_windows(const struct kvb_stream *stream, struct kvb_heartbeat *beat)
{
    enum { mamba_tokens = 2 }; /* a draft model has no Mamba layers */
    const struct kvb_mirror *mirror = stream->mirror;
    struct kvb_window_rule *rules = beat->windows;
    const bool has_full = kvb_mirror_has_full(mirror);

    /* Each kind of window has its rule, and its own share of the drop. */
    beat->window_count = kvb_mirror_windows(mirror, rules);
    for (size_t i = 0; i < beat->window_count; i++) {
        const uint32_t numbers = kvb_mirror_window_groups(mirror, (unsigned)i);
        const bool may_drop = !rules[i].is_chunked && rules[i].tokens != mamba_tokens;
        rules[i].drop = may_drop ? drop_of(stream, numbers, !has_full) : 0;
        beat->window_tokens =
            rules[i].tokens > beat->window_tokens ? rules[i].tokens : beat->window_tokens;
    }
    beat->is_without_full = beat->window_count > 0 && !has_full;
    /* Before the first group: as if it were of full attention, and drops. */
    const uint32_t numbers = has_full ? kvb_mirror_full_groups(mirror) : UINT32_MAX;
    beat->speculative_drop = beat->is_without_full ? 0 : drop_of(stream, numbers, true);
    if (beat->window_count == 1 && has_full && !rules[0].is_chunked && rules[0].size == 1 &&
        rules[0].drop == 0) {
        beat->window_count = 0; /* window_tokens says it all */
        rules[0] = (struct kvb_window_rule){ 0 };
    }
}

static bool
is_same_description(const struct stream_description *a, const struct stream_description *b)
{
    return a->state == b->state && a->reason == b->reason && a->epochs == b->epochs &&
           a->has_objects == b->has_objects && a->chunk_blocks == b->chunk_blocks &&
           a->drop == b->drop &&
           memcmp(a->tier_reasons, b->tier_reasons, sizeof a->tier_reasons) == 0 &&
           a->windows == b->windows && a->has_full == b->has_full &&
           a->shape_count == b->shape_count && a->shape.block_size == b->shape.block_size &&
           a->shape.lookahead == b->shape.lookahead && a->is_paired == b->is_paired;
}

/* Why nothing proves the list of this tier right.  The device's is the stream's. */
static enum kvb_stream_reason tier_reason(const struct kvb_stream *stream, unsigned tier)
{
    const unsigned complete[KVB_OFFLOAD_COUNT] = {
        [KVB_OFFLOAD_DETECT] = is_store(stream) ? 0 : stream->life.removal_tiers,
        [KVB_OFFLOAD_COMPLETE] = ~0U
    };

    /* An empty list needs no proof. */
    if (tier == KVB_TIER_DEVICE || stream->is_withdrawn ||
        kvb_mirror_count(stream->mirror)->held[tier] == 0) {
        return KVB_REASON_NONE;
    }
    if (!(complete[stream->options.offload_removals] >> tier & 1)) {
        return KVB_REASON_NO_REMOVALS;
    }
    if (kvb_mirror_dropped_tiers(stream->mirror) >> tier & 1) {
        return KVB_REASON_MEMORY;
    }
    if (!stream->options.is_without_salts && kvb_mirror_unsaid_tiers(stream->mirror) >> tier & 1) {
        return KVB_REASON_SALTS;
    }
    return kvb_mirror_reset_tiers(stream->mirror) >> tier & 1 ? KVB_REASON_RESET : KVB_REASON_NONE;
}

static void
tier_reasons(const struct kvb_stream *stream, enum kvb_stream_reason out[KVB_TIER_COUNT])
{
    for (unsigned tier = 0; tier < KVB_TIER_COUNT; tier++) {
        out[tier] = tier_reason(stream, tier);
    }
}

[[gnu::hot]] bool kvb_stream_describe(struct kvb_stream *stream)
{
    struct kvb_window_rule rules[kvb_max_windows];
    struct stream_description now = { .epochs = stream->epochs,
                                      .windows = kvb_mirror_windows(stream->mirror, rules),
                                      .has_full = kvb_mirror_has_full(stream->mirror),
                                      .shape_count = kvb_mirror_count(stream->mirror)->shape_count,
                                      .shape = main_shape(stream),
                                      .is_paired = kvb_mirror_is_paired(stream->mirror),
                                      .has_objects = stream->has_objects };

    now.chunk_blocks = chunk_blocks(stream);
    now.drop = drop_in_blocks(stream);
    tier_reasons(stream, now.tier_reasons);
    kvb_stream_state(stream, &now.state, &now.reason);
    const bool is_changed = !is_same_description(&now, &stream->described);
    if (is_changed) {
        stream->described = now;
    }
    return is_changed;
}

void kvb_stream_heartbeat(const struct kvb_stream *stream, struct kvb_heartbeat *out_heartbeat)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);
    struct kvb_heartbeat beat = {
        .worker_id = stream->options.worker_id,
        .dp_rank = stream->options.dp_rank,
        .epoch = stream->epoch,
        .epoch_first_id = stream->epoch_first_id,
        .last_id = stream->last_id,
        .hashes = stream->options.mirror.hashes,
        .formats = stream->options.formats,
        .shape_count = counts->shape_count,
        .is_paired = kvb_mirror_is_paired(stream->mirror),
        .chunk_blocks = chunk_blocks(stream),
        .is_store = is_store(stream),
        .doubtful = counts->doubtful,
        .digest_seed = stream->digest_seed,
    };

    /* A withdrawn list is empty for readers, whatever the mirror holds. */
    memcpy(beat.model, stream->options.model, sizeof beat.model);
    beat.names = *kvb_mirror_adapters(stream->mirror);
    memcpy(beat.shapes, counts->shapes, sizeof beat.shapes);
    beat.block_size = main_shape(stream).block_size;
    beat.lookahead = main_shape(stream).lookahead;
    describe_windows(stream, &beat);
    kvb_stream_state(stream, &beat.state, &beat.reason);
    beat.has_missing_at_most = missing_at_most(stream, &beat.missing_at_most);
    for (size_t tier = 0; tier < KVB_LIST_COUNT && !stream->is_withdrawn; tier++) {
        beat.tiers[tier].blocks = counts->held[tier];
        beat.tiers[tier].digest = kvb_mirror_digest(stream->mirror, (enum kvb_tier)tier)->total;
    }
    tier_reasons(stream, beat.tier_reasons);
    *out_heartbeat = beat;
}

const struct kvb_stream_counters *kvb_stream_count(const struct kvb_stream *stream)
{
    return &stream->counters;
}

const struct kvb_served_names *kvb_stream_adapters(const struct kvb_stream *stream)
{
    return kvb_mirror_adapters(stream->mirror);
}

const struct kvb_mirror_counts *kvb_stream_mirror_count(const struct kvb_stream *stream)
{
    return kvb_mirror_count(stream->mirror);
}

const char *kvb_stream_why(const struct kvb_stream *stream, enum kvb_stream_reason reason)
{
    switch (reason) {
    case KVB_REASON_GROUPS:
        return has_hidden_pools(stream)
                   ? "SGLang publishes the blocks of full attention alone, not those of its "
                     "sliding-window or Mamba pool, which limit what a request can use"
                   : kvb_mirror_odd_groups_why(stream->mirror);
    case KVB_REASON_SALTS:
        return "this version's events do not name cache salts, adapters and images; set salts = "
               "false of the worker if no request has any";
    case KVB_REASON_AMBIGUOUS:
        return stream->life.has_hashes_of_pages
                   ? "a hash names a page by its own tokens alone (SGLang up to 0.5.5): where in a "
                     "prompt the page is, is not published"
                   : "one hash names two contents, or two hashes name one: something that the "
                     "events do not say tells the blocks apart";
    case KVB_REASON_SPECULATION:
        return kvb_stream_speculation(stream).why;
    default:
        return NULL;
    }
}

bool kvb_stream_is_withdrawn(const struct kvb_stream *stream)
{
    return stream->is_withdrawn;
}

bool kvb_stream_is_cache_discarded(const struct kvb_stream *stream)
{
    return stream->life.cache != cache_published;
}

/* A page that was requested before all was cleared may be older than the clear. */
void kvb_stream_note_sleep(
    struct kvb_stream *stream, enum kvb_engine_sleep sleep, uint64_t asked_ns)
{
    const bool is_discarded = sleep == KVB_SLEEP_DISCARDED;

    if (is_discarded && (stream->cleared_ns == 0 || asked_ns > stream->cleared_ns)) {
        stream->life.cache = cache_discarded;
    } else if (!is_discarded && stream->life.cache == cache_discarded) {
        stream->life.cache = cache_waking;
    }
}

void kvb_stream_note_reply_form(struct kvb_stream *stream, bool has_topic)
{
    kvb_mirror_set_repeats(stream->mirror, has_topic);
}

bool kvb_stream_note_misfit(struct kvb_stream *stream)
{
    const bool is_new = !stream->life.has_misfit;

    stream->life.has_misfit = true;
    return is_new;
}

bool kvb_stream_note_silence(struct kvb_stream *stream, enum kvb_stream_reason reason)
{
    const bool is_new = stream->silence != reason;

    stream->silence = reason;
    return is_new;
}

bool kvb_stream_has_live(const struct kvb_stream *stream)
{
    return stream->list.is_received_live;
}

bool kvb_stream_is_replay_foreign(const struct kvb_stream *stream)
{
    return stream->origin == origin_foreign;
}

bool kvb_stream_note_resets(struct kvb_stream *stream, uint64_t resets, uint64_t asked_ns)
{
    const bool is_unpublished = resets > stream->life.unclaimed_clears;
    const bool is_new = is_unpublished && !stream->life.has_reset;

    /* Clears that came before the page was asked for are its resets'; a later one may belong to the
     * next page's. */
    if (stream->cleared_ns <= asked_ns) {
        stream->life.unclaimed_clears = 0;
    }
    if (is_unpublished) {
        stream->life.has_reset = true;
        stream->reset_ns = asked_ns;
    }
    return is_new;
}

bool kvb_stream_note_hidden_pools(struct kvb_stream *stream)
{
    const bool is_new = !has_hidden_pools(stream);

    stream->has_hidden_pools = true;
    return is_new;
}

bool kvb_stream_link_input(
    const struct kvb_stream *stream, struct kvb_link_report *report,
    enum kvb_stream_input_kind *out_kind)
{
    const bool is_connected = link_is_connected(stream->link);
    const bool is_lost = is_connected && (report->was_lost || !report->is_up);

    report->was_lost = false;
    *out_kind = is_lost ? KVB_INPUT_DOWN : KVB_INPUT_UP;
    return is_lost || (!is_connected && report->is_up);
}

void kvb_stream_note_restored(struct kvb_stream *stream, uint64_t now_ns)
{
    stream->link = link_restored;
    stream->away_ns = now_ns;
}

bool kvb_stream_is_connected(const struct kvb_stream *stream)
{
    return link_is_connected(stream->link);
}

uint64_t kvb_stream_away_ns(const struct kvb_stream *stream)
{
    return stream->link == link_away || stream->link == link_restored ? stream->away_ns : 0;
}

bool kvb_stream_is_settled(const struct kvb_stream *stream)
{
    return link_is_connected(stream->link) && !is_syncing_now(stream);
}

bool kvb_stream_has_base(const struct kvb_stream *stream)
{
    return stream->origin == origin_found;
}

uint64_t kvb_stream_worker_id(const struct kvb_stream *stream)
{
    return stream->options.worker_id;
}

kvb_epoch kvb_stream_epoch(const struct kvb_stream *stream)
{
    return stream->epoch;
}

const struct kvb_event_log *kvb_stream_log(const struct kvb_stream *stream)
{
    return stream->log;
}

bool kvb_stream_last_seq(const struct kvb_stream *stream, uint64_t *out_seq)
{
    *out_seq = stream->last_seq;
    return stream->has_last;
}

/* ---- The whole list ---- */

kvb_status kvb_stream_list_begin(struct kvb_stream *stream, bool opens_epoch)
{
    stream->listing =
        (struct stream_listing){ .opens_epoch = opens_epoch, .is_done = stream->is_withdrawn };
    return stream->is_withdrawn ? KVB_OK
                                : kvb_picture_begin(
                                      &stream->listing.picture, stream->mirror,
                                      KVB_PICTURE_PARENTS_FIRST, kvb_picture_all_lists);
}

kvb_status
kvb_stream_list_next(struct kvb_stream *stream, size_t max_blocks, struct kvb_router_batch *out)
{
    const struct kvb_picture_part part = { .max_blocks = max_blocks, .max_looks = SIZE_MAX };
    struct stream_listing *listing = &stream->listing;

    kvb_router_batch_reset(out);
    if (listing->opens_epoch) { /* a chunk of its own: readers clear the list before they read on */
        listing->opens_epoch = false;
        KVB_TRY(kvb_router_batch_add_event(
            out, &(struct kvb_router_event){ .kind = KVB_ROUTER_CLEARED }));
    }
    while (out->event_count == 0 && !listing->is_done) {
        KVB_TRY(kvb_picture_step(&listing->picture, stream->mirror, &part, out, &listing->is_done));
    }
    kvb_stream_sign(stream, out);
    return KVB_OK;
}

void kvb_stream_list_end(struct kvb_stream *stream)
{
    kvb_picture_end(&stream->listing.picture);
    stream->listing = (struct stream_listing){ 0 };
}

/* ---- Refresh ---- */

/* About 0.2 ms when all of them miss the cache. */
enum { looks_a_step = 2048 };

kvb_status kvb_stream_refresh_begin(struct kvb_stream *stream)
{
    kvb_picture_end(&stream->refresh);
    return kvb_picture_begin(
        &stream->refresh, stream->mirror, KVB_PICTURE_FROM_ROOTS, 1U << KVB_TIER_DEVICE);
}

void kvb_stream_refresh_end(struct kvb_stream *stream)
{
    kvb_picture_end(&stream->refresh);
}

kvb_status kvb_stream_refresh_step(
    struct kvb_stream *stream, size_t max_blocks, struct kvb_router_batch *out, bool *out_is_done)
{
    const struct kvb_picture_part part = { .max_blocks = max_blocks, .max_looks = looks_a_step };

    kvb_router_batch_reset(out);
    KVB_TRY(kvb_picture_step(&stream->refresh, stream->mirror, &part, out, out_is_done));
    kvb_stream_sign(stream, out);
    return KVB_OK;
}
