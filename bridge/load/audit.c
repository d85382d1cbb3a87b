#include "load/audit.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"

#include <math.h>
#include <stdlib.h>

enum { streams_a_call = 64 };

static const uint64_t idle_stream_ns = 600 * KVB_NS_PER_S;

struct audited_stream {
    struct kvb_audit_stats stats; /* without evidence, which is computed */
    double evidence;              /* natural logarithm */
    uint64_t used_ns;
    bool is_block_short_said; /* kvb_audit_take_block_short(), since the run began */
};

struct kvb_audit {
    struct kvb_audit_options options;
    double stake; /* of the bet 1 + stake * (loss - p0), which wins when more than p0 is lost */
    double alarm_goal; /* natural logarithm */
    struct kvb_stream_table names;
    struct audited_stream *streams; /* owned; by the number of the name */
    size_t stream_capacity;
    size_t swept_stream;
    struct kvb_audit_counters counters;
};

const char *kvb_audit_verdict_name(enum kvb_audit_verdict verdict)
{
    static const char *const names[KVB_AUDIT_VERDICT_COUNT] = {
        [KVB_AUDIT_KEPT] = "kept",
        [KVB_AUDIT_BROKEN] = "broken",
    };

    return (unsigned)verdict < KVB_AUDIT_VERDICT_COUNT ? names[verdict] : "";
}

static bool are_options_valid(const struct kvb_audit_options *options)
{
    return options->honest_loss > 0 && options->lie > 0 &&
           options->honest_loss + options->lie < 1 && options->false_alarm_requests > 1;
}

kvb_status kvb_audit_new(const struct kvb_audit_options *options, struct kvb_audit **out_audit)
{
    if (!are_options_valid(options)) {
        return KVB_BAD_CONFIG;
    }
    struct kvb_audit *audit = calloc(1, sizeof *audit);
    if (!audit) {
        return KVB_NO_MEMORY;
    }
    const double p0 = options->honest_loss;
    const double p1 = options->honest_loss + options->lie;
    audit->options = *options;
    /* The bet that is worth 1 on average while p0 is lost, and grows fastest when p1 is. */
    audit->stake = (p1 - p0) / (p0 * (1 - p0));
    audit->alarm_goal = log(options->false_alarm_requests);
    kvb_stream_table_init(&audit->names, options->max_streams, options->hash_key);
    *out_audit = audit;
    return KVB_OK;
}

void kvb_audit_free(struct kvb_audit *audit)
{
    if (!audit) {
        return;
    }
    kvb_stream_table_done(&audit->names);
    free(audit->streams);
    free(audit);
}

/* ---- Requests ---- */

static kvb_status find_or_add_audited(
    struct kvb_audit *audit, const struct kvb_stream_id *id, struct audited_stream **out_stream)
{
    uint32_t number = 0;

    /* The row first: whatever fails, no name is in the table without one. */
    KVB_TRY(kvb_array_reserve(
        &audit->streams, &audit->stream_capacity, audit->names.limit + 1, sizeof *audit->streams,
        kvb_max_streams + 1));
    const size_t before = audit->names.count;
    KVB_TRY(kvb_stream_table_add(&audit->names, id, &number));
    if (audit->names.count > before) {
        audit->streams[number] = (struct audited_stream){ 0 };
    }
    *out_stream = &audit->streams[number];
    return KVB_OK;
}

static void count_tokens(
    struct kvb_audit *audit, struct kvb_audit_stats *stats, uint64_t promised, uint64_t cached)
{
    const uint64_t delivered = cached < promised ? cached : promised;
    struct kvb_audit_counters *counters = &audit->counters;

    stats->promised_tokens += promised;
    stats->delivered_tokens += delivered;
    stats->extra_tokens += cached - delivered;
    counters->promised_tokens += promised;
    counters->delivered_tokens += delivered;
    counters->extra_tokens += cached - delivered;
}

kvb_status kvb_audit_add(
    struct kvb_audit *audit, const struct kvb_stream_id *id, uint64_t promised_tokens,
    uint64_t cached_tokens, uint32_t block_tokens, uint64_t now_ns)
{
    struct audited_stream *stream = NULL;

    if (promised_tokens == 0) {
        return KVB_OK;
    }
    KVB_TRY(find_or_add_audited(audit, id, &stream));
    stream->used_ns = now_ns;
    /* More than was promised makes up for no loss: other requests may have stored it meanwhile. */
    const uint64_t lost = cached_tokens < promised_tokens ? promised_tokens - cached_tokens : 0;
    stream->stats.requests++;
    stream->stats.short_requests += lost > 0;
    audit->counters.requests++;
    audit->counters.short_requests += lost > 0;
    count_tokens(audit, &stream->stats, promised_tokens, cached_tokens);
    /* One report that is short by anything else begins the run anew. */
    const bool is_block_short = lost > 0 && lost == block_tokens;
    stream->stats.block_short = is_block_short ? stream->stats.block_short + 1 : 0;
    stream->is_block_short_said = stream->is_block_short_said && is_block_short;
    audit->counters.block_short += stream->stats.block_short == kvb_audit_block_reports;
    /* Evidence never falls below 1, so that honest requests build no credit for a later lie. */
    const double loss = (double)lost / (double)promised_tokens;
    stream->evidence =
        fmax(stream->evidence, 0) + log1p(audit->stake * (loss - audit->options.honest_loss));
    if (stream->evidence >= audit->alarm_goal) {
        stream->evidence = audit->alarm_goal; /* so that it does not grow */
        if (stream->stats.verdict == KVB_AUDIT_KEPT) {
            stream->stats.verdict = KVB_AUDIT_BROKEN;
            audit->counters.alarms++;
            audit->counters.broken++;
        }
    }
    return KVB_OK;
}

void kvb_audit_cleared(struct kvb_audit *audit, const struct kvb_stream_id *id)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&audit->names, id, &number) != KVB_OK) {
        return;
    }
    struct audited_stream *stream = &audit->streams[number];
    /* What was counted stays: that is of the stream, the evidence is of its list. */
    stream->evidence = 0;
    if (stream->stats.verdict == KVB_AUDIT_BROKEN) {
        stream->stats.verdict = KVB_AUDIT_KEPT;
        audit->counters.returns++;
        audit->counters.broken--;
    }
}

void kvb_audit_expire(struct kvb_audit *audit, uint64_t now_ns)
{
    for (size_t i = 0; i < streams_a_call && audit->names.limit > 0; i++) {
        const uint32_t number = (uint32_t)(audit->swept_stream++ % audit->names.limit);
        const struct audited_stream *stream = &audit->streams[number];
        /* A broken one stays, however idle: without its row it would count as kept. */
        if (kvb_stream_table_id(&audit->names, number) &&
            stream->stats.verdict != KVB_AUDIT_BROKEN &&
            now_ns >= stream->used_ns + idle_stream_ns) {
            kvb_stream_table_remove(&audit->names, number);
        }
    }
}

/* ---- Reading ---- */

const char *kvb_audit_why(const struct kvb_audit_stats *stats)
{
    return stats->block_short >= kvb_audit_block_reports
               ? "each request is given exactly one block less than promised, as by vLLM with "
                 "EAGLE "
                 "or MTP: set speculative_drop = 1 of the worker"
               : NULL;
}

bool kvb_audit_find(
    const struct kvb_audit *audit, const struct kvb_stream_id *id,
    struct kvb_audit_stats *out_stats)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&audit->names, id, &number) != KVB_OK) {
        return false;
    }
    const struct audited_stream *stream = &audit->streams[number];
    *out_stats = stream->stats;
    out_stats->evidence = fmax(stream->evidence, 0) / audit->alarm_goal;
    return true;
}

bool kvb_audit_take_block_short(struct kvb_audit *audit, size_t number)
{
    struct audited_stream *stream = &audit->streams[number];
    const bool is_new =
        stream->stats.block_short >= kvb_audit_block_reports && !stream->is_block_short_said;

    stream->is_block_short_said |= is_new;
    return is_new;
}

size_t kvb_audit_limit(const struct kvb_audit *audit)
{
    return audit->names.limit;
}

const struct kvb_stream_id *
kvb_audit_at(const struct kvb_audit *audit, size_t number, enum kvb_audit_verdict *out_verdict)
{
    const struct kvb_stream_id *id = kvb_stream_table_id(&audit->names, (uint32_t)number);

    if (id) {
        *out_verdict = audit->streams[number].stats.verdict;
    }
    return id;
}

void kvb_audit_count(const struct kvb_audit *audit, struct kvb_audit_counters *out_counters)
{
    *out_counters = audit->counters;
    out_counters->streams = audit->names.count;
}
