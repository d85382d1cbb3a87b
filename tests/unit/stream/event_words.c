#include "event_words.h"

#include "kvb_test.h"

#include "batch_maker.h"
#include "core/own.h"

#include <stdlib.h>

enum { max_tokens = 128 };

enum kvb_tier tier_of_word(size_t at)
{
    static const char *const names[] = { [KVB_TIER_DEVICE] = "device",
                                         [KVB_TIER_HOST] = "host",
                                         [KVB_TIER_DISK] = "disk",
                                         [KVB_TIER_EXTERNAL] = "external" };

    return (enum kvb_tier)script_index(at, names, KVB_COUNT_OF(names));
}

static bool is_end_of_event(size_t at)
{
    return at >= script_words() || script_says(at, ";") || script_says(at, "&");
}

static bool is_number(size_t at)
{
    return script_word(at)[0] >= '0' && script_word(at)[0] <= '9';
}

static void place_in(struct kvb_engine_event *event, enum kvb_tier tier)
{
    event->tier = tier;
    event->all_tiers = false;
}

/* One word that needs no number; false: it is another one. */
static bool mark_event(struct kvb_engine_event *event, size_t at)
{
    if (script_says(at, "sparse")) {
        event->is_sparse = true;
        event->token_count = 0;
    } else if (script_says(at, "no-tokens")) {
        event->token_count = 0;
    } else if (script_says(at, "connector")) {
        event->is_of_connector = true;
    } else if (script_says(at, "paired")) {
        event->is_paired = true;
    } else if (script_says(at, "chunked")) {
        event->group_kind = KVB_GROUP_CHUNKED;
    } else if (script_says(at, "odd-kind")) {
        event->group_kind = KVB_GROUP_OTHER;
    } else {
        return false;
    }
    return true;
}

/* One word and its number; false: it is another one. */
static bool set_number(struct kvb_engine_event *event, size_t at)
{
    if (script_says(at, "parent")) {
        event->has_parent = true;
        event->parent.value = script_number(at + 1);
    } else if (script_says(at, "group")) {
        event->has_group = true;
        event->group = (uint32_t)script_number(at + 1);
    } else if (script_says(at, "window")) {
        event->group_kind = KVB_GROUP_WINDOW;
        event->window_tokens = (uint32_t)script_number(at + 1);
    } else if (script_says(at, "sized")) {
        event->block_size = (uint32_t)script_number(at + 1);
        event->token_count = 0;
    } else if (script_says(at, "lookahead")) {
        event->lookahead = (uint32_t)script_number(at + 1);
        event->lookahead_at = event->token_at;
    } else if (script_says(at, "key")) {
        event->key = script_number(at + 1);
    } else {
        return false;
    }
    return true;
}

/* The words behind an event that change it; returns their end. */
static size_t change_event(struct kvb_engine_event *event, size_t at)
{
    for (; !is_end_of_event(at); at++) {
        if (set_number(event, at)) {
            at++;
        } else if (!mark_event(event, at)) {
            place_in(event, tier_of_word(at));
        }
    }
    return at;
}

/* The number behind the word `name`, if that is there; moves `at` behind both. */
static uint64_t option(size_t *at, const char *name, uint64_t without)
{
    if (!script_says(*at, name)) {
        return without;
    }
    *at += 2;
    return script_number(*at - 1);
}

static size_t add_stored_words(struct kvb_event_batch *batch, size_t at)
{
    uint64_t hashes[max_tokens] = { 0 };
    uint32_t tokens[max_tokens];
    const uint64_t first = script_number(at++);
    const size_t count = is_number(at) ? script_number(at++) : 1;
    const size_t size = option(&at, "size", 1);
    const uint64_t token = option(&at, "tokens", first);

    assert_in_range(count * size, 1, max_tokens);
    for (size_t i = 0; i < count * size; i++) {
        hashes[i] = first + i;
        tokens[i] = (uint32_t)(token + i);
    }
    add_stored(batch, NULL, hashes, tokens, count * size);
    last_event(batch)->hash_count = (uint32_t)count;
    last_event(batch)->block_size = (uint32_t)size;
    return at;
}

static size_t add_removed_words(struct kvb_event_batch *batch, size_t at)
{
    uint64_t hashes[max_tokens];
    size_t count = 0;

    for (; is_number(at); at++) {
        char *end = NULL;
        const uint64_t first = strtoull(script_word(at), &end, 10);
        const uint64_t last = *end == '-' ? strtoull(end + 1, NULL, 10) : first;
        for (uint64_t hash = first; hash <= last; hash++) {
            assert_true(count < max_tokens);
            hashes[count++] = hash;
        }
    }
    add_removed(batch, hashes, count);
    return at;
}

static size_t add_event_of_words(struct kvb_event_batch *batch, size_t at)
{
    static const char *const skips[] = { [KVB_SKIP_NONE] = "",
                                         [KVB_SKIP_BAD_STORED] = "bad-stored",
                                         [KVB_SKIP_BAD_REMOVED] = "bad-removed",
                                         [KVB_SKIP_UNKNOWN_EVENT] = "unknown",
                                         [KVB_SKIP_NO_TOKENS] = "no-tokens",
                                         [KVB_SKIP_NOT_PREFIX] = "not-prefix",
                                         [KVB_SKIP_REMOTE] = "remote",
                                         [KVB_SKIP_UNMATCHABLE] = "unmatchable" };

    if (script_says(at, "stored")) {
        at = add_stored_words(batch, at + 1);
    } else if (script_says(at, "removed")) {
        at = add_removed_words(batch, at + 1);
    } else if (script_says(at, "cleared")) {
        add_cleared(batch);
        at++;
    } else {
        assert_true(script_says(at, "skipped"));
        add_skipped(batch, (enum kvb_skip)script_index(at + 1, skips, KVB_COUNT_OF(skips)));
        at += 2;
    }
    return change_event(last_event(batch), at);
}

void add_events_of_words(struct kvb_event_batch *batch, size_t at)
{
    while (at < script_words() && !script_says(at, "&")) {
        at = add_event_of_words(batch, at);
        at += script_says(at, ";");
    }
}
