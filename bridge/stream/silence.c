#include "stream/silence.h"

#include "core/clock.h"

#include <inttypes.h>

/* An engine that listens accepts a connection at once. */
static const uint64_t connects_within_ns = 5 * KVB_NS_PER_S;

/* An engine publishes a block within the step that fills it. */
static const uint64_t publishes_within_ns = 5 * KVB_NS_PER_S;

/* Prompts shorter than a block fill none.  So many tokens are not all of such prompts. */
enum { blocks_to_fill = 16 };

/* ---- The metrics page ---- */

void kvb_silence_read_page(
    struct kvb_silence_page *page, const struct kvb_cache_signs *signs, uint64_t batches,
    uint32_t block_size, uint64_t now_ns)
{
    const bool was_read = page->is_read;
    /* vLLM counts the tokens of prompts that it did not find in its cache, and so stores; SGLang
     * has a gauge of what is cached. */
    const uint64_t tokens = signs->has_prefix
                                ? signs->prefix.queried_tokens - signs->prefix.cached_tokens
                            : signs->has_occupancy ? signs->evictable_tokens + signs->used_tokens
                                                   : 0;

    page->is_caching_off = signs->is_prefix_caching_off;
    page->is_read = signs->has_prefix || signs->has_occupancy;
    if (!was_read || !page->is_read || batches != page->batches || tokens < page->tokens) {
        page->batches = batches;
        page->tokens = tokens;
        page->grown = 0;
        page->grown_ns = 0;
        return;
    }
    page->grown = tokens - page->tokens;
    if (page->grown_ns == 0 && page->grown >= (uint64_t)blocks_to_fill * block_size) {
        page->grown_ns = now_ns;
    }
}

/* ---- The cause ---- */

/* clang-format off */
static const struct silence_row {
    enum kvb_stream_reason reason; /* NONE: the stream's own */
    bool is_fault;
} silence_rows[KVB_SILENCE_COUNT] = {
    [KVB_SILENCE_NONE]            = { KVB_REASON_NONE, false },
    [KVB_SILENCE_NOBODY_LISTENS]  = { KVB_REASON_NONE, true },
    [KVB_SILENCE_NOBODY_CONNECTS] = { KVB_REASON_NONE, true },
    [KVB_SILENCE_NO_NUMBER]       = { KVB_REASON_NO_NUMBER, true },
    [KVB_SILENCE_OTHER_TOPIC]     = { KVB_REASON_OTHER_TOPIC, true },
    [KVB_SILENCE_CACHING_OFF]     = { KVB_REASON_CACHING_OFF, true },
    [KVB_SILENCE_FOREIGN_REPLAY]  = { KVB_REASON_NONE, true },
    [KVB_SILENCE_NOT_FED]         = { KVB_REASON_NOT_FED, true },
    [KVB_SILENCE_UNPROVEN]        = { KVB_REASON_NONE, false },
    [KVB_SILENCE_IDLE]            = { KVB_REASON_NONE, false },
};
/* clang-format on */

enum kvb_silence kvb_silence_find(const struct kvb_silence_facts *facts, uint64_t now_ns)
{
    const struct kvb_silence_page *page = &facts->page;
    const bool is_late = !facts->was_connected && facts->waited_ns >= connects_within_ns;
    const bool is_silent = facts->is_connected && !facts->has_live;
    const bool has_grown = page->grown_ns > 0 && now_ns - page->grown_ns >= publishes_within_ns;
    /* clang-format off */
    const bool holds[KVB_SILENCE_COUNT] = {
        [KVB_SILENCE_NOBODY_LISTENS]  = !facts->is_connected && is_late && !facts->is_bound,
        [KVB_SILENCE_NOBODY_CONNECTS] = !facts->is_connected && is_late && facts->is_bound,
        [KVB_SILENCE_NO_NUMBER]       = is_silent && facts->unnumbered > 0,
        [KVB_SILENCE_OTHER_TOPIC]     = is_silent && facts->other_topics > 0,
        [KVB_SILENCE_CACHING_OFF]     = is_silent && !facts->has_list && page->is_caching_off,
        [KVB_SILENCE_FOREIGN_REPLAY]  = facts->is_connected && facts->is_replay_foreign,
        [KVB_SILENCE_NOT_FED]         = is_silent && has_grown,
        [KVB_SILENCE_UNPROVEN]        = is_silent && facts->is_unproven && facts->has_list,
        [KVB_SILENCE_IDLE]            = is_silent && facts->is_unproven,
    };
    /* clang-format on */

    for (unsigned i = KVB_SILENCE_NONE + 1; i < KVB_SILENCE_COUNT; i++) {
        if (holds[i]) {
            return (enum kvb_silence)i;
        }
    }
    return KVB_SILENCE_NONE;
}

enum kvb_stream_reason kvb_silence_reason(enum kvb_silence silence)
{
    return silence_rows[silence].reason;
}

bool kvb_silence_is_fault(enum kvb_silence silence)
{
    return silence_rows[silence].is_fault;
}

/* One sentence a cause. */
void kvb_silence_explain(
    enum kvb_silence silence, const struct kvb_silence_names *names, struct kvb_detail *out)
{
    switch (silence) {
    case KVB_SILENCE_NONE:
    case KVB_SILENCE_COUNT:
        out->text[0] = '\0';
        break;
    case KVB_SILENCE_NOBODY_LISTENS:
        kvb_detail_set(
            out,
            "nobody listens at %.80s: without a * in its endpoint the engine connects. Start the "
            "engine, give it tcp://*:PORT, or set bind = true and let it connect to this bridge",
            names->events);
        break;
    case KVB_SILENCE_NOBODY_CONNECTS:
        kvb_detail_set(
            out,
            "no engine has connected to %.80s, where this bridge listens (bind = true): with a * "
            "in "
            "its endpoint the engine listens itself, and bind must be false",
            names->events);
        break;
    case KVB_SILENCE_NO_NUMBER:
        kvb_detail_set(
            out,
            "the messages of %.80s are not batches of three frames (topic, number of 8 bytes, "
            "events): the newest has %zu frames. Without numbers no loss can be seen, so they are "
            "dropped",
            names->events, names->frames);
        break;
    case KVB_SILENCE_OTHER_TOPIC:
        kvb_detail_set(
            out,
            "%.80s publishes under the topic \"%.60s\", and `topic` of this worker is \"%.60s\": "
            "correct it, or leave it out",
            names->events, names->other_topic, names->topic);
        break;
    case KVB_SILENCE_CACHING_OFF:
        kvb_detail_set(
            out,
            "the metrics page says enable_prefix_caching=\"False\": with prefix caching off the "
            "engine of %.80s keeps no blocks and publishes no events",
            names->events);
        break;
    case KVB_SILENCE_FOREIGN_REPLAY:
        kvb_detail_set(
            out,
            "the replay of %.80s lacks what %.80s publishes: it is the port of another engine, or "
            "the engine keeps no batches (buffer_steps)",
            names->replay, names->events);
        break;
    case KVB_SILENCE_NOT_FED:
        kvb_detail_set(
            out,
            "the metrics page counts %" PRIu64 " new tokens, but no events come from %.80s: check "
            "enable_kv_cache_events of the engine, and that the page is of the same engine",
            names->tokens, names->events);
        break;
    case KVB_SILENCE_UNPROVEN:
        kvb_detail_set(
            out, "the list came by replay: the next batch from %.80s shows whether it is right",
            names->events);
        break;
    case KVB_SILENCE_IDLE:
        kvb_detail_set(
            out, "%.80s has published nothing yet: the engine is idle, as far as is known",
            names->events);
        break;
    }
}
