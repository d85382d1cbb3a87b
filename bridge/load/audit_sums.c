#include "load/audit_sums.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

enum {
    max_unexecuted = 64, /* decisions of a stream since its last balanced page */
    max_past = 63,       /* decisions before it that are kept; a bit of `shifts` each */
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

/* Which decisions were executed between two pages can be seen from their lengths alone:
 *
 *     decisions    p  q | r  s  t  u     q waited when the comparison began, at |; equal lengths
 *     executed        q   r  s           as many tokens as r, s and t: one of both is the truth
 *
 * An engine looks requests up in their order, so each number of past requests that waited at |
 * gives one candidate.  The candidate with the smallest promise is tested; a candidate whose
 * lengths do not match a balanced page, or whose oldest request would wait too long, is dropped. */
struct summed_stream {
    bool is_begun;                   /* base is valid */
    struct kvb_prefix_counters base; /* of the last balanced page */
    uint64_t page_ns;                /* when the newest page came */
    uint64_t known_ns;               /* decisions are known from then on */
    struct routed *routed;           /* owned; the oldest first */
    size_t routed_count;
    size_t routed_capacity;
    size_t past;     /* so many of routed were decided before base */
    uint64_t shifts; /* bit k: the newest k of the past may have waited at base, in balance */
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

/* The decisions up to now cannot be compared, and the next page begins again.  They may be executed
 * after it. */
static void
reset_sums(struct kvb_audit_sums *sums, struct summed_stream *stream, enum kvb_audit_sums_reset why)
{
    sums->counters.resets[why] += stream->is_begun;
    stream->is_begun = false;
    stream->past = stream->routed_count;
    memset(stream->waiting, 0, sizeof stream->waiting);
}

/* ---- Decisions ---- */

static void forget_old(struct summed_stream *stream)
{
    const size_t old = stream->past > max_past ? stream->past - max_past : 0;

    if (old > 0) {
        stream->past -= old;
        stream->routed_count -= old;
        memmove(
            stream->routed, stream->routed + old, stream->routed_count * sizeof *stream->routed);
    }
}

static kvb_status append_routed(struct summed_stream *stream, const struct routed *routed)
{
    KVB_TRY(kvb_array_reserve(
        &stream->routed, &stream->routed_capacity, stream->routed_count + 1, sizeof *stream->routed,
        max_past + max_unexecuted + 1));
    stream->routed[stream->routed_count++] = *routed;
    return KVB_OK;
}

void kvb_audit_sums_decided(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, uint64_t prompt_tokens,
    const struct kvb_promise *promise, uint64_t now_ns)
{
    struct summed_stream *stream = find_summed(sums, id);
    const struct routed routed = { prompt_tokens, *promise, now_ns };

    if (!stream) {
        return;
    }
    if (prompt_tokens == 0) {
        reset_sums(sums, stream, KVB_SUMS_NO_LENGTH);
        stream->known_ns = now_ns;
        return;
    }
    if (stream->is_begun && stream->routed_count - stream->past == max_unexecuted) {
        reset_sums(sums, stream, KVB_SUMS_TOO_MANY);
    }
    if (append_routed(stream, &routed) != KVB_OK) {
        reset_sums(sums, stream, KVB_SUMS_TOO_MANY);
        stream->known_ns = now_ns;
    }
    if (!stream->is_begun) {
        stream->past = stream->routed_count;
        forget_old(stream);
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
    size_t end = stream->past;

    while (end < stream->routed_count && routed < queried) {
        routed += stream->routed[end++].prompt_tokens;
    }
    if (routed < queried) {
        return exceeds;
    }
    const bool is_rest_on_the_way =
        end == stream->routed_count || stream->routed[end].at_ns + on_the_way_ns >= page->asked_ns;
    *out_count = end - stream->past;
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

/* A request that was decided at that time may wait in the engine or be on its way. */
static bool may_wait(uint64_t at_ns, const struct kvb_audit_page *page)
{
    return at_ns + (page->is_queue_empty ? on_the_way_ns : never_executed_ns) > page->asked_ns;
}

/* KVB_AGAIN: requests that are not known may wait. */
static kvb_status begin_sums(struct summed_stream *stream, const struct kvb_audit_page *page)
{
    size_t waiting = 0;

    while (waiting < stream->past &&
           may_wait(stream->routed[stream->past - waiting - 1].at_ns, page)) {
        waiting++;
    }
    if (may_wait(stream->known_ns, page) || waiting == max_past) {
        return KVB_AGAIN;
    }
    stream->is_begun = true;
    stream->base = page->counters;
    stream->shifts = (UINT64_C(2) << waiting) - 1;
    return KVB_OK;
}

/* The period of the requests that were executed, if `shift` of the past waited at base.
 * KVB_NOT_FOUND: they have other lengths, or waited too long. */
static kvb_status sum_shifted(
    const struct summed_stream *stream, const struct kvb_audit_page *page, size_t count,
    size_t shift, struct kvb_audit_period *out_period)
{
    const struct routed *routed = stream->routed + stream->past - shift;
    uint64_t tokens = page->counters.queried_tokens - stream->base.queried_tokens;
    struct kvb_audit_period period = { .cached_tokens = page->counters.cached_tokens -
                                                        stream->base.cached_tokens };

    if (shift > 0 && !may_wait(routed[count].at_ns, page)) {
        return KVB_NOT_FOUND;
    }
    for (size_t i = 0; i < count; i++) {
        const struct kvb_promise *promise = &routed[i].promise;
        tokens -= routed[i].prompt_tokens;
        if (promise->tokens > 0 && promise->claim == page->claim) {
            add_promise(&period, promise->tokens);
        }
    }
    if (tokens != 0) {
        return KVB_NOT_FOUND;
    }
    *out_period = period;
    return KVB_OK;
}

/* Ends the period after `count` decisions. */
static struct kvb_audit_period
end_period(struct summed_stream *stream, const struct kvb_audit_page *page, size_t count)
{
    struct kvb_audit_period smallest = { .promised_tokens = UINT64_MAX };
    struct kvb_audit_period period;

    for (size_t shift = 0; shift <= max_past; shift++) {
        if (!(stream->shifts & UINT64_C(1) << shift)) {
            continue;
        }
        if (sum_shifted(stream, page, count, shift, &period) != KVB_OK) {
            stream->shifts &= ~(UINT64_C(1) << shift);
        } else if (period.promised_tokens < smallest.promised_tokens) {
            smallest = period;
        }
    }
    stream->past += count;
    stream->base = page->counters;
    forget_old(stream);
    return smallest;
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
        balance == waits && stream->routed_count > stream->past &&
        now_ns >= stream->routed[stream->past].at_ns + never_executed_ns) {
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
    if (stream->page_ns == 0) {
        stream->known_ns = now_ns;
    }
    stream->page_ns = now_ns;
    if (stream->is_begun) {
        status = take_page_counters(sums, stream, page, now_ns, &period);
    }
    if (!stream->is_begun) {
        (void)begin_sums(stream, page);
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
