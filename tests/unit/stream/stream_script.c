#include "stream_script.h"

#include "kvb_test.h"

#include "batch_maker.h"
#include "checkpoint_bytes.h"
#include "core/clock.h"
#include "core/own.h"
#include "event_bytes.h"
#include "event_words.h"
#include "stream/page_watch.h"
#include "stream_world.h"
#include "wire/batch_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { tick_ms = 50, sliced_work = 10, large_batch = 20, max_path = 4 };

static struct {
    struct stream_world world;
    struct kvb_stream_options options;
    struct kvb_page_watch watch;
    struct kvb_load_sample page;
    unsigned signs;   /* of the newest reading of the page */
    bool was_cleared; /* in the newest event */
    bool has_dropped; /* the same: the replay */
    kvb_epoch epoch;  /* before the restart */
    uint32_t path[max_path];
    size_t depth;
} play;

static struct kvb_stream *stream(void)
{
    return play.world.stream;
}

/* An event begins. */
static void forget(void)
{
    play.was_cleared = false;
    play.has_dropped = false;
}

static void note(void)
{
    play.was_cleared |= play.world.saw_cleared;
    play.has_dropped |= play.world.output.drops_replay;
}

static uint64_t life_of(bool is_marked)
{
    return is_marked ? second_incarnation : first_incarnation;
}

/* Of the prompt that the batch stores. */
static uint32_t token_of(uint64_t seq, bool is_marked)
{
    return (uint32_t)seq + (is_marked ? 11 : 1);
}

/* UINT64_MAX: none */
static uint64_t newest(void)
{
    uint64_t seq = 0;

    return kvb_stream_last_seq(stream(), &seq) ? seq : UINT64_MAX;
}

static bool wants_replay(void)
{
    uint64_t from = 0;

    return kvb_stream_wants_replay(stream(), play.world.now_ns, &from);
}

/* ---- Beginnings ---- */

static void begin_of(const struct kvb_stream_options *options)
{
    play.world = (struct stream_world){ .now_ns = KVB_NS_PER_S };
    play.options = *options;
    assert_ok(kvb_stream_new(options, &play.world.stream));
}

static void do_begin(void)
{
    static const char *const removals[] = { "detect", "complete", "incomplete" };
    struct kvb_stream_options options = stream_world_options(!script_says(0, "alone"));

    options.is_without_salts = true;
    for (size_t at = 1; at < script_words(); at += 2) {
        if (script_says(at, "drop")) {
            options.speculative_drop = (uint32_t)script_number(at + 1);
        } else if (script_says(at, "total")) {
            options.total_blocks = script_number(at + 1);
        } else if (script_says(at, "store")) {
            options.is_store = script_says(at + 1, "yes");
        } else {
            assert_true(script_says(at, "removals"));
            options.offload_removals =
                (enum kvb_offload_removals)script_index(at + 1, removals, KVB_COUNT_OF(removals));
            options.mirror.tiers = (1U << KVB_LIST_COUNT) - 1;
        }
    }
    begin_of(&options);
}

static void do_exact(void)
{
    begin_exact(&play.world, script_number(1));
}

static void do_idle(void)
{
    const struct kvb_stream_options options = stream_world_options(true);

    begin_of(&options);
    give(&play.world, KVB_INPUT_UP);
    (void)start_wanted_replay(&play.world);
    for (uint64_t seq = 0; seq < script_number(1); seq++) {
        replayed(&play.world, seq, first_incarnation, token_of(seq, false));
    }
    end_replay(&play.world, first_incarnation);
    assert_state(&play.world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
}

static void do_new(void)
{
    struct kvb_stream_options options = stream_world_options(true);

    options.is_without_salts = !script_says(1, "salts");
    begin_of(&options);
    give(&play.world, KVB_INPUT_UP);
    (void)start_wanted_replay(&play.world);
    give(&play.world, KVB_INPUT_REPLAY_END);
    assert_state(&play.world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
}

static void do_pool(void)
{
    struct kvb_stream_options options = stream_world_options(false);

    options.is_without_salts = true;
    options.mirror.tiers = 1U << tier_of_word(1);
    options.mirror.pool_block_size = script_words() > 2 ? (uint32_t)script_number(2) : 0;
    begin_of(&options);
    give(&play.world, KVB_INPUT_UP);
}

static void do_sliced(void)
{
    struct kvb_stream_options options = stream_world_options(!script_says(1, "alone"));

    options.slice_work = sliced_work;
    begin_of(&options);
    give(&play.world, KVB_INPUT_UP);
    if (options.has_replay) {
        (void)start_wanted_replay(&play.world);
    }
}

/* ---- Events ---- */

static void do_input(void)
{
    static const char *const names[] = {
        [KVB_INPUT_UP] = "up",       [KVB_INPUT_DOWN] = "down",      [KVB_INPUT_LIVE] = "",
        [KVB_INPUT_REPLAY] = "",     [KVB_INPUT_REPLAY_END] = "end", [KVB_INPUT_REPLAY_CUT] = "cut",
        [KVB_INPUT_PAUSE] = "pause", [KVB_INPUT_TICK] = "tick",
    };

    forget();
    give(&play.world, (enum kvb_stream_input_kind)script_index(0, names, KVB_COUNT_OF(names)));
    note();
}

static void give_live(uint64_t seq, bool is_marked)
{
    live(&play.world, seq, life_of(is_marked), token_of(seq, is_marked));
    note();
}

static void give_reply(uint64_t seq, bool is_marked)
{
    replayed(&play.world, seq, life_of(is_marked), token_of(seq, is_marked));
    note();
}

static void do_live(void)
{
    forget();
    script_each(1, give_live);
}

static void do_reply(void)
{
    forget();
    script_each(1, give_reply);
}

/* Of a batch of another content: its verb ends with -reply. */
static enum kvb_stream_input_kind kind_of_verb(void)
{
    return strstr(script_word(0), "-reply") ? KVB_INPUT_REPLAY : KVB_INPUT_LIVE;
}

static void give_other(uint64_t seq, bool is_marked)
{
    const char *verb = script_word(0);
    struct kvb_event_batch *batch = &play.world.batch;

    if (strncmp(verb, "clear", 5) == 0) {
        add_cleared(batch);
    } else if (strcmp(verb, "orphan") == 0) {
        add_stored(batch, &(uint64_t){ 555 }, &(uint64_t){ 556 }, &(uint32_t){ 9 }, 1);
    } else if (strcmp(verb, "orphan-gone") == 0) {
        add_removed(batch, &(uint64_t){ 556 }, 1);
    } else if (strncmp(verb, "large", 5) == 0) {
        for (uint32_t token = 1001; token <= 1000 + large_batch; token++) {
            add_stored(batch, NULL, &(uint64_t){ 900 + token }, &token, 1);
        }
    }
    give_batch(
        &play.world, kind_of_verb(), seq, life_of(is_marked), strncmp(verb, "garbled", 7) == 0);
    note();
}

static void do_other_batch(void)
{
    forget();
    script_each(1, give_other);
}

static void do_next(void)
{
    add_events_of_words(&play.world.batch, 1);
    give_batch(&play.world, KVB_INPUT_LIVE, newest() + 1, first_incarnation, false);
}

static void do_batch(void)
{
    add_events_of_words(&play.world.batch, 2);
    forget();
    give_batch(&play.world, kind_of_verb(), script_number(1), first_incarnation, false);
    note();
}

static void do_bytes(void)
{
    const bool is_poison = decode_hex(event_bytes_of_words(2), &play.world.batch) != KVB_OK;
    struct kvb_heartbeat beat;

    forget();
    give_batch(&play.world, kind_of_verb(), script_number(1), first_incarnation, is_poison);
    note();
    kvb_stream_heartbeat(stream(), &beat);
    if (kind_of_verb() == KVB_INPUT_LIVE && beat.reason == KVB_REASON_NO_BASE &&
        newest() != UINT64_MAX) {
        find_live(&play.world, newest(), first_incarnation);
    }
}

/* ---- Time ---- */

static void do_ms(void)
{
    forget();
    pass_ms(&play.world, script_number(1));
    note();
}

static void do_leap(void)
{
    play.world.now_ns += script_number(1) * KVB_NS_PER_MS;
    forget();
    give(&play.world, KVB_INPUT_TICK);
    note();
}

static void do_wait(void)
{
    for (uint64_t ms = 0; ms < script_number(1) && !wants_replay(); ms += tick_ms) {
        pass_ms(&play.world, tick_ms);
    }
    assert_true(wants_replay());
}

/* The batch under way takes so many steps, or one more, of a slice each. */
static void do_parts(void)
{
    const uint64_t seq_before = newest();
    uint64_t steps = 1;

    for (; play.world.output.has_more; steps++) {
        assert_in_range(play.world.output.events.block_count, 1, sliced_work);
        assert_true(newest() == seq_before);
        give(&play.world, KVB_INPUT_TICK);
    }
    assert_in_range(steps, script_number(1), script_number(1) + 1);
    assert_true(newest() == seq_before + 1);
}

static void do_finish(void)
{
    for (int steps = 0; play.world.output.has_more; steps++) {
        assert_true(steps < 1000);
        give(&play.world, KVB_INPUT_TICK);
    }
}

/* ---- Replays ---- */

static void do_ask(void)
{
    const uint64_t from = start_wanted_replay(&play.world);

    if (script_words() > 1) {
        assert_int_equal(from, script_number(1));
    }
}

static void do_no_ask(void)
{
    assert_false(wants_replay());
}

static void do_need(void)
{
    static const char *const names[] = { "probe", "history", "missing", "proof" };

    assert_int_equal(kvb_stream_replay_need(stream()), script_index(1, names, KVB_COUNT_OF(names)));
}

static void do_confirm(void)
{
    forget();
    end_replay(&play.world, life_of(script_says(0, "confirm'")));
    note();
}

static void do_find(void)
{
    find_live(&play.world, script_number(1), first_incarnation);
}

static void do_topics(void)
{
    kvb_stream_note_reply_form(stream(), script_says(1, "yes"));
}

static void do_suspect(void)
{
    kvb_stream_suspect_restart(stream());
}

/* ---- Processes ---- */

static void do_restart(void)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };
    enum kvb_checkpoint_rejection cause = KVB_CHECKPOINT_FLAW_COUNT;
    bool needs_epoch = false;

    play.watch = (struct kvb_page_watch){ .restarts = 0 };
    play.options.seed[0] = 'n'; /* random, and never that of the last process */
    play.epoch = kvb_stream_epoch(stream());
    save_whole(stream(), &bytes);
    kvb_stream_free(stream());
    assert_ok(kvb_stream_new(&play.options, &play.world.stream));
    assert_ok(restore_from(stream(), bytes.data, bytes.len, &needs_epoch, &cause));
    assert_int_equal(needs_epoch, script_says(1, "anew"));
}

/* ---- The metrics page ---- */

static void set_figure(size_t at)
{
    static const struct {
        const char *name;
        enum kvb_load_figure figure;
    } rows[] = { { "total", KVB_FIGURE_TOTAL_BLOCKS },
                 { "waiting", KVB_FIGURE_WAITING },
                 { "running", KVB_FIGURE_ACTIVE_SLOTS },
                 { "used", KVB_FIGURE_ACTIVE_BLOCKS } };
    size_t found = 0;

    while (found < KVB_COUNT_OF(rows) && !script_says(at, rows[found].name)) {
        found++;
    }
    if (found == KVB_COUNT_OF(rows)) {
        fail_msg("unknown: \"%s\"", script_word(at));
    }
    kvb_load_sample_set(&play.page, rows[found].figure, (double)script_number(at + 1));
}

/* Word `at` names a sign, and the next one its value. */
static void set_sign(size_t at)
{
    static const char *const sleeps[] = { [KVB_SLEEP_UNKNOWN] = "unknown",
                                          [KVB_SLEEP_AWAKE] = "awake",
                                          [KVB_SLEEP_PAUSED] = "paused",
                                          [KVB_SLEEP_DISCARDED] = "discarded" };
    static const char *const speculations[] = { "unknown", "keeps", "drops", "undecided" };
    struct kvb_cache_signs *signs = &play.page.signs;

    if (script_says(at, "sleep")) {
        signs->sleep = (enum kvb_engine_sleep)script_index(at + 1, sleeps, KVB_COUNT_OF(sleeps));
    } else if (script_says(at, "speculation")) {
        signs->speculation =
            (enum kvb_speculation)script_index(at + 1, speculations, KVB_COUNT_OF(speculations));
    } else if (script_says(at, "started")) {
        signs->started_s = (double)script_number(at + 1);
    } else if (script_says(at, "resets")) {
        signs->reset_requests = script_number(at + 1);
    } else if (script_says(at, "smaller")) {
        signs->is_counter_reset = script_says(at + 1, "yes");
    } else if (script_says(at, "hidden")) {
        signs->has_hidden_pools = script_says(at + 1, "yes");
    } else if (script_says(at, "caching")) {
        signs->is_prefix_caching_off = script_says(at + 1, "no");
    } else if (script_says(at, "counts-running")) {
        signs->counts_running = script_says(at + 1, "yes");
    } else if (script_says(at, "sure")) {
        signs->is_total_sure = script_says(at + 1, "yes");
    } else if (script_says(at, "locked")) {
        signs->has_occupancy = true;
        signs->used_tokens = script_number(at + 1);
    } else if (script_says(at, "evictable")) {
        signs->has_occupancy = true;
        signs->evictable_tokens = script_number(at + 1);
    } else {
        set_figure(at);
    }
}

static void do_shows(void)
{
    for (size_t at = 1; at < script_words(); at += 2) {
        set_sign(at);
    }
}

/* The page is requested now and arrives 10 ms later. */
static unsigned read_page(void)
{
    const uint64_t asked_ns = play.world.now_ns;
    const struct kvb_page_reading reading = { .sample = &play.page,
                                              .asked_ns = asked_ns,
                                              .at_ns = asked_ns + 10 * KVB_NS_PER_MS };

    return kvb_page_watch_read(&play.watch, stream(), &reading);
}

static void do_page(void)
{
    do_shows();
    play.signs = read_page();
    forget();
    give(&play.world, KVB_INPUT_TICK);
    note();
}

static void do_answer(void)
{
    if (wants_replay() && newest() != UINT64_MAX) {
        (void)start_wanted_replay(&play.world);
        give_batch(&play.world, KVB_INPUT_REPLAY, newest(), first_incarnation, false);
        end_replay(&play.world, first_incarnation);
    }
}

static void do_second(void)
{
    pass_ms(&play.world, 1000);
    do_answer();
}

static void must_have_shown(size_t at)
{
    static const char *const names[] = { "restart",   "asleep", "awake",
                                         "occupancy", "reset",  "hidden" };
    unsigned expected = 0;

    for (; at < script_words() && !script_says(at, "none"); at++) {
        expected |= 1U << script_index(at, names, KVB_COUNT_OF(names));
    }
    assert_int_equal(play.signs, expected);
}

static void do_signs(void)
{
    must_have_shown(1);
}

static void do_watch(void)
{
    play.signs = 0;
    for (uint64_t seconds = script_number(1); seconds > 0; seconds--) {
        play.signs |= read_page();
        do_second();
    }
    must_have_shown(2);
}

/* ---- What holds ---- */

static void must_hold(uint64_t seq, bool is_marked)
{
    assert_true(router_holds(&play.world, root(token_of(seq, is_marked))));
}

static void must_lack(uint64_t seq, bool is_marked)
{
    assert_false(router_holds(&play.world, root(token_of(seq, is_marked))));
}

static void do_lists(void)
{
    assert_int_equal(play.world.held_count, script_number(1));
}

static void do_has(void)
{
    script_each(1, must_hold);
}

static void do_lacks(void)
{
    script_each(1, must_lack);
}

static void add_to_path(uint64_t token, bool is_marked)
{
    (void)is_marked;
    assert_true(play.depth < max_path);
    play.path[play.depth++] = (uint32_t)token;
}

static void do_holds(void)
{
    play.depth = 0;
    script_each(1, add_to_path);
    assert_true(router_holds(&play.world, name_of(play.path, play.depth)));
}

static void do_misses(void)
{
    play.depth = 0;
    script_each(1, add_to_path);
    assert_false(router_holds(&play.world, name_of(play.path, play.depth)));
}

/* Why nothing proves the list of a tier. */
static void do_tier(void)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(stream(), &beat);
    assert_string_equal(
        kvb_stream_reason_name(beat.tier_reasons[tier_of_word(1)]),
        script_says(2, "fine") ? "" : script_word(2));
}

/* What a heartbeat says. */
static void do_beat(void)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(stream(), &beat);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        { "paired", beat.is_paired },
        { "store", beat.is_store },
        { "drop", beat.speculative_drop },
        { "window", beat.window_tokens },
        { "in-window", beat.tiers[KVB_LIST_WINDOW].blocks },
        { "blocks", beat.tiers[KVB_TIER_DEVICE].blocks },
        { "block-size", beat.block_size },
        { "lookahead", beat.lookahead },
        { "shapes", beat.shape_count },
        { "missing", beat.has_missing_at_most ? beat.missing_at_most : UINT64_MAX },
    };

    for (size_t at = 1; at < script_words(); at += 2) {
        size_t row = 0;
        while (row < KVB_COUNT_OF(rows) && !script_says(at, rows[row].name)) {
            row++;
        }
        assert_true(row < KVB_COUNT_OF(rows));
        assert_int_equal(
            rows[row].value, script_says(at + 1, "unknown") ? UINT64_MAX : script_number(at + 1));
    }
}

static void do_newest(void)
{
    assert_true(newest() == (script_says(1, "none") ? UINT64_MAX : script_number(1)));
}

static void do_publishes(void)
{
    assert_int_equal(play.world.output.events.event_count, script_number(1));
}

static void do_kept_epoch(void)
{
    const kvb_epoch epoch = kvb_stream_epoch(stream());

    assert_memory_equal(epoch.bytes, play.epoch.bytes, sizeof epoch.bytes);
}

static void do_why(void)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(stream(), &beat);
    assert_int_equal(script_words(), 2);
    assert_non_null(strstr(kvb_stream_why(stream(), beat.reason), script_word(1)));
}

/* Whether word 0 is a count, which must be that of word 1. */
static bool is_count(void)
{
    const struct kvb_stream_counters *of_stream = kvb_stream_count(stream());
    const struct kvb_mirror_counts *of_mirror = kvb_stream_mirror_count(stream());
    const struct {
        const char *name;
        uint64_t count;
    } rows[] = {
        { "gaps", of_stream->gaps },
        { "missed", of_stream->batches_missed },
        { "clears", of_stream->clears },
        { "duplicates", of_stream->duplicates },
        { "restarts", of_stream->restarts },
        { "poison", of_stream->poison },
        { "aliases", of_mirror->aliases },
        { "doubtful", of_mirror->doubtful },
        { "no-tokens", of_mirror->no_tokens },
        { "names-refused", of_mirror->names_refused },
        { "proven", of_mirror->proven_copies },
        { "self-parents", of_mirror->self_parents },
        { "shapes", of_mirror->shape_count },
        { "unknown-removed", of_mirror->unknown_removed },
        { "unmatchable", of_mirror->unmatchable },
        { "unplaced", of_mirror->unplaced },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (script_says(0, rows[i].name)) {
            assert_int_equal(rows[i].count, script_number(1));
            return true;
        }
    }
    return false;
}

/* Whether word 0 is a fact, which must hold. */
static bool is_fact(void)
{
    const struct {
        const char *name;
        bool holds;
    } rows[] = {
        { "cleared", play.was_cleared },
        { "uncleared", !play.was_cleared },
        { "drops", play.has_dropped },
        { "changed", play.world.output.is_changed },
        { "unchanged", !play.world.output.is_changed },
        { "more", play.world.output.has_more },
        { "no-more", !play.world.output.has_more },
        { "discarded", kvb_stream_is_cache_discarded(stream()) },
        { "kept", !kvb_stream_is_cache_discarded(stream()) },
        { "replaying", kvb_stream_is_replaying(stream()) },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (script_says(0, rows[i].name)) {
            assert_true(rows[i].holds);
            return true;
        }
    }
    return false;
}

/* EXACT, UNVERIFIED(no_base) ... */
static void must_be_state(void)
{
    struct kvb_heartbeat beat;
    char text[64];

    kvb_stream_heartbeat(stream(), &beat);
    (void)snprintf(
        text, sizeof text, beat.reason == KVB_REASON_NONE ? "%s" : "%s(%s)",
        kvb_stream_state_name(beat.state), kvb_stream_reason_name(beat.reason));
    assert_string_equal(text, script_word(0));
}

static void do_check(void)
{
    if (!is_fact() && !is_count()) {
        must_be_state();
    }
}

/* clang-format off */
static const struct script_verb verbs[] = {
    { "begin", do_begin },         { "alone", do_begin },     { "idle", do_idle },
    { "exact", do_exact },         { "new", do_new },         { "pool", do_pool },
    { "sliced", do_sliced },
    { "up", do_input },            { "down", do_input },      { "pause", do_input },
    { "end", do_input },           { "cut", do_input },       { "tick", do_input },
    { "live", do_live },           { "reply", do_reply },
    { "clear", do_other_batch },   { "clear-reply", do_other_batch },
    { "garbled", do_other_batch }, { "garbled-reply", do_other_batch },
    { "orphan", do_other_batch },  { "orphan-gone", do_other_batch },
    { "large", do_other_batch },   { "large-reply", do_other_batch },
    { "bytes", do_bytes },         { "bytes-reply", do_bytes },
    { "batch", do_batch },         { "batch-reply", do_batch }, { "next", do_next },
    { "ms", do_ms },               { "leap", do_leap },       { "wait", do_wait },
    { "finish", do_finish },       { "parts", do_parts },
    { "ask", do_ask },             { "no-ask", do_no_ask },   { "need", do_need },
    { "confirm", do_confirm },     { "confirm'", do_confirm }, { "find", do_find },
    { "topics", do_topics },       { "suspect", do_suspect },
    { "restart", do_restart },
    { "page", do_page },           { "second", do_second },   { "answer", do_answer },
    { "signs", do_signs },         { "shows", do_shows },     { "watch", do_watch },
    { "lists", do_lists },         { "has", do_has },         { "lacks", do_lacks },
    { "holds", do_holds },         { "misses", do_misses },
    { "beat", do_beat },           { "tier", do_tier },
    { "newest", do_newest },       { "publishes", do_publishes },
    { "kept-epoch", do_kept_epoch }, { "why", do_why },
};
/* clang-format on */

void play_stream_script(void **state)
{
    memset(&play, 0, sizeof play);
    play.options = stream_world_options(true);
    play.page.signs.sleep = KVB_SLEEP_AWAKE;
    script_play(*state, verbs, KVB_COUNT_OF(verbs), do_check);
}

int end_stream_script(void **state)
{
    (void)state;
    script_tell_failure();
    stream_world_end(&play.world);
    return 0;
}
