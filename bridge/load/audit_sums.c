#include "load/audit_sums.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

enum {
    max_unexecuted = 64, /* decisions of a stream since its last balanced page */
    unconfirmed_periods = 2,
    streams_swept_a_call = 64
};

static const uint64_t on_the_way_ns = 250 * KVB_NS_PER_MS;
static const uint64_t never_executed_ns = 60 * KVB_NS_PER_S;
static const uint64_t no_page_ns = 60 * KVB_NS_PER_S;

struct routed {
    uint64_t prompt_tokens;
    struct kvb_promise promise; /* 0 tokens: none, or taken back */
    uint64_t at_ns;
};

struct summed_stream {
    bool is_begun;                   /* base is valid: decisions since then are known */
    struct kvb_prefix_counters base; /* of the last balanced page */
    uint64_t page_ns;                /* when the newest page came */
    struct routed *routed;           /* owned; since base, the oldest first */
    size_t routed_count;
    size_t routed_capacity;
    struct kvb_audit_period waiting[unconfirmed_periods]; /* the newest first */
};

struct kvb_audit_sums {
    struct kvb_stream_table names;
    struct summed_stream *streams; /* owned; by the number of the name */
    size_t stream_capacity;
    size_t swept_stream;
    struct kvb_audit_sums_counters counters;
};

kvb_status
kvb_audit_sums_new(size_t max_streams, uint64_t hash_key, struct kvb_audit_sums **out_sums)
{
    struct kvb_audit_sums *sums = calloc(1, sizeof *sums);

    if (!sums) {
        return KVB_NO_MEMORY;
    }
    kvb_stream_table_init(&sums->names, max_streams, hash_key);
    *out_sums = sums;
    return KVB_OK;
}

void kvb_audit_sums_free(struct kvb_audit_sums *sums)
{
    if (!sums) {
        return;
    }
    for (size_t i = 0; i < sums->names.limit; i++) {
        free(sums->streams[i].routed);
    }
    kvb_stream_table_done(&sums->names);
    free(sums->streams);
    free(sums);
}

static struct summed_stream *
find_summed(const struct kvb_audit_sums *sums, const struct kvb_stream_id *id)
{
    uint32_t number = 0;

    return kvb_stream_table_find(&sums->names, id, &number) == KVB_OK ? &sums->streams[number]
                                                                      : NULL;
}

static kvb_status find_or_add_summed(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, struct summed_stream **out_stream)
{
    const size_t before = sums->names.count;
    uint32_t number = 0;

    KVB_TRY(kvb_array_reserve(
        &sums->streams, &sums->stream_capacity, sums->names.limit + 1, sizeof *sums->streams,
        kvb_max_streams + 1));
    KVB_TRY(kvb_stream_table_add(&sums->names, id, &number));
    if (sums->names.count > before) {
        sums->streams[number] = (struct summed_stream){ 0 };
    }
    *out_stream = &sums->streams[number];
    return KVB_OK;
}

/* Nothing is known of the requests up to now; the next page begins again. */
static void
reset_sums(struct kvb_audit_sums *sums, struct summed_stream *stream, enum kvb_audit_sums_reset why)
{
    sums->counters.resets[why] += stream->is_begun;
    stream->is_begun = false;
    stream->routed_count = 0;
    memset(stream->waiting, 0, sizeof stream->waiting);
}

/* ---- Decisions ---- */

void kvb_audit_sums_decided(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, uint64_t prompt_tokens,
    const struct kvb_promise *promise, uint64_t now_ns)
{
    struct summed_stream *stream = find_summed(sums, id);

    if (!stream || !stream->is_begun) {
        return;
    }
    if (prompt_tokens == 0) {
        reset_sums(sums, stream, KVB_SUMS_NO_LENGTH);
    } else if (
        kvb_array_reserve(
            &stream->routed, &stream->routed_capacity, stream->routed_count + 1,
            sizeof *stream->routed, max_unexecuted) != KVB_OK) {
        reset_sums(sums, stream, KVB_SUMS_TOO_MANY);
    } else {
        stream->routed[stream->routed_count++] =
            (struct routed){ .prompt_tokens = prompt_tokens, .promise = *promise, .at_ns = now_ns };
    }
}

/* The name of its deepest block may be unknown; then any removal may be of it. */
static bool is_promised(const struct routed *routed, const kvb_block_hash *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (routed->promise.block.value == 0 || routed->promise.block.value == blocks[i].value) {
            return true;
        }
    }
    return false;
}

void kvb_audit_sums_removed(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, const kvb_block_hash *blocks,
    size_t count)
{
    struct summed_stream *stream = find_summed(sums, id);

    for (size_t i = 0; stream && i < stream->routed_count; i++) {
        struct routed *routed = &stream->routed[i];
        if (routed->promise.tokens > 0 && is_promised(routed, blocks, count)) {
            routed->promise.tokens = 0;
        }
    }
}

void kvb_audit_sums_cleared(struct kvb_audit_sums *sums, const struct kvb_stream_id *id)
{
    struct summed_stream *stream = find_summed(sums, id);

    if (!stream) {
        return;
    }
    for (size_t i = 0; i < stream->routed_count; i++) {
        stream->routed[i].promise.tokens = 0;
    }
    memset(stream->waiting, 0, sizeof stream->waiting);
}

/* ---- Pages ---- */

enum page_balance { balanced, waits, exceeds };

/* out_count: how many of the decisions were executed, if the page is balanced. */
static enum page_balance
weigh_page(const struct summed_stream *stream, const struct kvb_audit_page *page, size_t *out_count)
{
    const uint64_t queried = page->counters.queried_tokens - stream->base.queried_tokens;
    uint64_t routed = 0;
    size_t count = 0;

    while (count < stream->routed_count && routed < queried) {
        routed += stream->routed[count++].prompt_tokens;
    }
    if (routed < queried) {
        return exceeds;
    }
    const bool is_rest_on_the_way = count == stream->routed_count ||
                                    stream->routed[count].at_ns + on_the_way_ns >= page->asked_ns;
    *out_count = count;
    return routed == queried && is_rest_on_the_way ? balanced : waits;
}

static void add_promise(struct kvb_audit_period *period, uint64_t tokens)
{
    if (period->requests++ == 0) {
        period->first_promise = tokens;
    }
    if (tokens > period->max_promise) {
        period->max_promise = tokens;
    }
    period->promised_tokens += tokens;
    period->weight += (double)tokens / (double)period->max_promise;
}

/* Ends the period after the first `count` decisions. */
static struct kvb_audit_period
end_period(struct summed_stream *stream, const struct kvb_audit_page *page, size_t count)
{
    struct kvb_audit_period period = { .cached_tokens = page->counters.cached_tokens -
                                                        stream->base.cached_tokens };

    for (size_t i = 0; i < count; i++) {
        const struct kvb_promise *promise = &stream->routed[i].promise;
        if (promise->tokens > 0 && promise->claim == page->claim) {
            add_promise(&period, promise->tokens);
        }
    }
    stream->routed_count -= count;
    if (count > 0) {
        memmove(
            stream->routed, stream->routed + count, stream->routed_count * sizeof *stream->routed);
    }
    stream->base = page->counters;
    return period;
}

/* A shift register: each balanced page confirms the periods before it. */
static struct kvb_audit_period
confirm_period(struct summed_stream *stream, const struct kvb_audit_period *newest)
{
    const struct kvb_audit_period oldest = stream->waiting[unconfirmed_periods - 1];

    memmove(
        stream->waiting + 1, stream->waiting, (unconfirmed_periods - 1) * sizeof *stream->waiting);
    stream->waiting[0] = *newest;
    return oldest;
}

static bool
is_smaller(const struct kvb_prefix_counters *now, const struct kvb_prefix_counters *base)
{
    return now->queried_tokens < base->queried_tokens || now->cached_tokens < base->cached_tokens;
}

/* KVB_AGAIN: the page ends no period. */
static kvb_status take_page_counters(
    struct kvb_audit_sums *sums, struct summed_stream *stream, const struct kvb_audit_page *page,
    uint64_t now_ns, struct kvb_audit_period *out_period)
{
    size_t count = 0;

    if (is_smaller(&page->counters, &stream->base)) {
        reset_sums(sums, stream, KVB_SUMS_RESTARTED);
        return KVB_AGAIN;
    }
    const enum page_balance balance = weigh_page(stream, page, &count);
    if (balance == exceeds) {
        reset_sums(sums, stream, KVB_SUMS_OTHER_REQUESTS);
    } else if (
        balance == waits && stream->routed_count > 0 &&
        now_ns >= stream->routed[0].at_ns + never_executed_ns) {
        reset_sums(sums, stream, KVB_SUMS_NOT_EXECUTED);
    }
    if (balance != balanced) {
        return KVB_AGAIN;
    }
    sums->counters.balanced++;
    const struct kvb_audit_period newest = end_period(stream, page, count);
    *out_period = confirm_period(stream, &newest);
    return out_period->promised_tokens > 0 ? KVB_OK : KVB_AGAIN;
}

kvb_status kvb_audit_sums_page(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, const struct kvb_audit_page *page,
    uint64_t now_ns, struct kvb_audit_period *out_period)
{
    struct summed_stream *stream = NULL;
    struct kvb_audit_period period;
    kvb_status status = KVB_AGAIN;

    KVB_TRY(find_or_add_summed(sums, id, &stream));
    stream->page_ns = now_ns;
    if (stream->is_begun) {
        status = take_page_counters(sums, stream, page, now_ns, &period);
    }
    if (!stream->is_begun) {
        stream->is_begun = true;
        stream->base = page->counters;
    }
    if (status == KVB_OK) {
        *out_period = period;
    }
    return status;
}

void kvb_audit_sums_expire(struct kvb_audit_sums *sums, uint64_t now_ns)
{
    for (size_t i = 0; i < streams_swept_a_call && sums->names.limit > 0; i++) {
        const uint32_t number = (uint32_t)(sums->swept_stream++ % sums->names.limit);
        struct summed_stream *stream = &sums->streams[number];
        if (kvb_stream_table_id(&sums->names, number) && now_ns >= stream->page_ns + no_page_ns) {
            free(stream->routed);
            *stream = (struct summed_stream){ 0 };
            kvb_stream_table_remove(&sums->names, number);
        }
    }
}

void kvb_audit_sums_count(
    const struct kvb_audit_sums *sums, struct kvb_audit_sums_counters *out_counters)
{
    *out_counters = sums->counters;
    out_counters->streams = sums->names.count;
}
