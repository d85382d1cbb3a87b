#include "load/audit.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"

#include <math.h>
#include <stdlib.h>

enum { streams_a_call = 64, kept_extra_promises = 4 };

static const uint64_t idle_stream_ns = 600 * KVB_NS_PER_S;
static const double clean_goal = 100; /* a false acquittal has a probability of at most 1 in this */

struct audited_stream {
    struct kvb_audit_stats stats; /* without evidence and clean, which are computed */
    double evidence;              /* natural logarithm, like clean */
    double clean;
    uint64_t used_ns;
    uint64_t reported_ns;  /* of the newest report of a request; 0: there was none */
    uint64_t extra_tokens; /* of earlier periods, not yet set off against a loss */
};

/* A bet: 1 + stake * (loss - mean).  Its mean is at most 1 while the mean loss is on the side of
 * `mean` that the bet is against. */
struct bet {
    double mean;
    double stake;
};

struct kvb_audit {
    struct kvb_audit_options options;
    struct bet against;   /* wins when more than p0 is lost */
    struct bet in_favour; /* wins when less than p1 is lost */
    double alarm_goal;    /* natural logarithms */
    double clean_goal;
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
        [KVB_AUDIT_PROBATION] = "probation",
    };

    return (unsigned)verdict < KVB_AUDIT_VERDICT_COUNT ? names[verdict] : "";
}

const char *kvb_audit_mode_name(enum kvb_audit_mode mode)
{
    static const char *const names[KVB_AUDIT_MODE_COUNT] = {
        [KVB_AUDIT_REQUESTS] = "requests",
        [KVB_AUDIT_SUM] = "sum",
    };

    return (unsigned)mode < KVB_AUDIT_MODE_COUNT ? names[mode] : "";
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
    audit->against = (struct bet){ .mean = p0, .stake = (p1 - p0) / (p0 * (1 - p0)) };
    audit->in_favour = (struct bet){ .mean = p1, .stake = (p0 - p1) / (p1 * (1 - p1)) };
    audit->alarm_goal = log(options->false_alarm_requests);
    audit->clean_goal = log(clean_goal);
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

/* ---- The test ---- */

static double log_factor(const struct bet *bet, double loss)
{
    return log1p(bet->stake * (loss - bet->mean));
}

static void
set_verdict(struct kvb_audit *audit, struct audited_stream *stream, enum kvb_audit_verdict verdict)
{
    const bool was_doubted = stream->stats.verdict != KVB_AUDIT_KEPT;
    const bool is_doubted = verdict != KVB_AUDIT_KEPT;

    audit->counters.doubted += (uint64_t)is_doubted - (uint64_t)was_doubted;
    stream->stats.verdict = verdict;
    stream->clean = 0;
}

/* against, in_favour: logarithms of the factors. */
static void take_evidence(
    struct kvb_audit *audit, struct audited_stream *stream, double against, double in_favour)
{
    const double before = stream->evidence > 0 ? stream->evidence : 0;

    stream->evidence = before + against;
    stream->clean += in_favour;
    if (stream->evidence >= audit->alarm_goal) {
        audit->counters.alarms += stream->stats.verdict != KVB_AUDIT_BROKEN;
        stream->evidence = audit->alarm_goal; /* so that it does not grow */
        set_verdict(audit, stream, KVB_AUDIT_BROKEN);
    } else if (stream->stats.verdict == KVB_AUDIT_PROBATION && stream->clean >= audit->clean_goal) {
        audit->counters.returns++;
        set_verdict(audit, stream, KVB_AUDIT_KEPT);
    }
}

static void test_loss(struct kvb_audit *audit, struct audited_stream *stream, double loss)
{
    take_evidence(
        audit, stream, log_factor(&audit->against, loss), log_factor(&audit->in_favour, loss));
}

/* The smallest logarithm of a bet's factors, if losses with this weight are spread over requests
 * with the weight m. */
static double least_factors(const struct bet *bet, double losses, double m)
{
    return (losses * log_factor(bet, 1)) + ((m - losses) * log_factor(bet, 0));
}

/* What the period lost beyond the extra tokens of earlier ones; its own are kept. */
static uint64_t set_off_extra(struct audited_stream *stream, const struct kvb_audit_period *period)
{
    const uint64_t given = period->cached_tokens + stream->extra_tokens;
    const uint64_t promised = period->promised_tokens;
    const uint64_t extra = given > promised ? given - promised : 0;
    const uint64_t max_extra = kept_extra_promises * period->max_promise;

    stream->extra_tokens = extra < max_extra ? extra : max_extra;
    return given < promised ? promised - given : 0;
}

/* For a stream: extra tokens hide losses, so that a period with some says nothing. */
static double sum_in_favour(const struct kvb_audit *audit, const struct kvb_audit_period *period)
{
    if (period->cached_tokens > period->promised_tokens) {
        return 0;
    }
    const double lost = (double)(period->promised_tokens - period->cached_tokens);
    const double losses = fmin(period->weight, lost / (double)period->first_promise);
    return least_factors(&audit->in_favour, losses, period->weight);
}

static void test_sum(
    struct kvb_audit *audit, struct audited_stream *stream, const struct kvb_audit_period *period)
{
    const double lost = (double)set_off_extra(stream, period);
    const double losses = fmin(period->weight, lost / (double)period->max_promise);

    take_evidence(
        audit, stream, least_factors(&audit->against, losses, period->weight),
        sum_in_favour(audit, period));
}

/* ---- Requests ---- */

static kvb_status find_or_add_audited(
    struct kvb_audit *audit, const struct kvb_stream_id *id, struct audited_stream **out_stream)
{
    uint32_t number = 0;

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

static void
set_mode(struct kvb_audit *audit, struct audited_stream *stream, enum kvb_audit_mode mode)
{
    audit->counters.sums +=
        (uint64_t)(mode == KVB_AUDIT_SUM) - (uint64_t)(stream->stats.mode == KVB_AUDIT_SUM);
    stream->stats.mode = mode;
}

/* The stream, which is being tested now. */
static kvb_status use_audited(
    struct kvb_audit *audit, const struct kvb_stream_id *id, uint64_t now_ns,
    struct audited_stream **out_stream)
{
    const kvb_status status = find_or_add_audited(audit, id, out_stream);

    if (status != KVB_OK) {
        audit->counters.refused++;
        return status;
    }
    (*out_stream)->used_ns = now_ns;
    return KVB_OK;
}

kvb_status kvb_audit_add(
    struct kvb_audit *audit, const struct kvb_stream_id *id, uint64_t promised_tokens,
    uint64_t cached_tokens, uint64_t now_ns)
{
    struct audited_stream *stream = NULL;

    if (promised_tokens == 0) {
        return KVB_OK;
    }
    KVB_TRY(use_audited(audit, id, now_ns, &stream));
    const uint64_t lost = cached_tokens < promised_tokens ? promised_tokens - cached_tokens : 0;
    stream->reported_ns = now_ns;
    set_mode(audit, stream, KVB_AUDIT_REQUESTS);
    stream->stats.requests++;
    stream->stats.short_requests += lost > 0;
    audit->counters.requests++;
    audit->counters.short_requests += lost > 0;
    count_tokens(audit, &stream->stats, promised_tokens, cached_tokens);
    test_loss(audit, stream, (double)lost / (double)promised_tokens);
    return KVB_OK;
}

kvb_status kvb_audit_add_period(
    struct kvb_audit *audit, const struct kvb_stream_id *id, const struct kvb_audit_period *period,
    uint64_t now_ns)
{
    const bool is_short = period->cached_tokens < period->promised_tokens;
    struct audited_stream *stream = NULL;

    if (period->promised_tokens == 0) {
        return KVB_OK;
    }
    KVB_TRY(use_audited(audit, id, now_ns, &stream));
    if (stream->reported_ns > 0 && now_ns < stream->reported_ns + idle_stream_ns) {
        return KVB_AGAIN; /* the same requests twice would double the false-alarm rate */
    }
    set_mode(audit, stream, KVB_AUDIT_SUM);
    stream->stats.requests += period->requests;
    stream->stats.periods++;
    stream->stats.short_periods += is_short;
    audit->counters.sum_requests += period->requests;
    audit->counters.periods++;
    audit->counters.short_periods += is_short;
    count_tokens(audit, &stream->stats, period->promised_tokens, period->cached_tokens);
    test_sum(audit, stream, period);
    return KVB_OK;
}

void kvb_audit_cleared(struct kvb_audit *audit, const struct kvb_stream_id *id)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&audit->names, id, &number) != KVB_OK) {
        return;
    }
    struct audited_stream *stream = &audit->streams[number];
    stream->evidence = 0;
    stream->clean = 0;
    stream->extra_tokens = 0;
    if (stream->stats.verdict == KVB_AUDIT_BROKEN) {
        set_verdict(audit, stream, KVB_AUDIT_PROBATION);
    }
}

void kvb_audit_expire(struct kvb_audit *audit, uint64_t now_ns)
{
    for (size_t i = 0; i < streams_a_call && audit->names.limit > 0; i++) {
        const uint32_t number = (uint32_t)(audit->swept_stream++ % audit->names.limit);
        struct audited_stream *stream = &audit->streams[number];
        if (kvb_stream_table_id(&audit->names, number) &&
            stream->stats.verdict != KVB_AUDIT_BROKEN &&
            now_ns >= stream->used_ns + idle_stream_ns) {
            set_verdict(audit, stream, KVB_AUDIT_KEPT);
            set_mode(audit, stream, KVB_AUDIT_REQUESTS);
            kvb_stream_table_remove(&audit->names, number);
            audit->counters.expired++;
        }
    }
}

/* ---- Reading ---- */

bool kvb_audit_find(
    const struct kvb_audit *audit, const struct kvb_stream_id *id,
    struct kvb_audit_stats *out_stats)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&audit->names, id, &number) != KVB_OK) {
        return false;
    }
    const struct audited_stream *stream = &audit->streams[number];
    const double evidence = stream->evidence > 0 ? stream->evidence : 0;
    *out_stats = stream->stats;
    out_stats->evidence = evidence / audit->alarm_goal;
    out_stats->clean =
        stream->stats.verdict == KVB_AUDIT_PROBATION ? stream->clean / audit->clean_goal : 0;
    return true;
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
