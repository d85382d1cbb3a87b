#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
#include "stream/explain.h"
#include "stream_world.h"

#include <stdlib.h>
#include <string.h>

/* What is said of each block of a prompt, and when and by which event it came or went.  Blocks have
 * one token; the engine's hash of token t at depth d of a chain is 1000 * d + t. */

enum { many = 1 << 14, all_rows = 1000 };

static void begin_with(struct stream_world *world, const struct kvb_stream_options *options)
{
    *world = (struct stream_world){ .now_ns = KVB_NS_PER_S };
    assert_ok(kvb_stream_new(options, &world->stream));
    give(world, KVB_INPUT_UP);
    (void)start_wanted_replay(world);
}

/* Connected, nothing stored yet; the replay has to be ended. */
static void begin(struct stream_world *world, size_t log_blocks)
{
    struct kvb_stream_options options = stream_world_options(true);

    options.max_log_blocks = log_blocks;
    options.mirror.tiers = (1U << KVB_TIER_COUNT) - 1;
    begin_with(world, &options);
}

static uint64_t engine_hash(size_t depth, uint32_t token)
{
    return 1000 * (depth + 1) + token;
}

/* One Stored of the tokens `from` .. `to` - 1 of the chain. */
static void add_chain(struct stream_world *world, const uint32_t *tokens, size_t from, size_t to)
{
    uint64_t hashes[16];
    const uint64_t parent = from > 0 ? engine_hash(from - 1, tokens[from - 1]) : 0;

    for (size_t i = from; i < to; i++) {
        hashes[i - from] = engine_hash(i, tokens[i]);
    }
    add_stored(&world->batch, from > 0 ? &parent : NULL, hashes, tokens + from, to - from);
}

static void name_lora(struct stream_world *world, const char *name)
{
    assert_ok(kvb_event_batch_add_text(
        &world->batch, kvb_span_of(name), &last_event(&world->batch)->lora_name));
}

static void give_live(struct stream_world *world, uint64_t seq)
{
    world->now_ns += KVB_NS_PER_MS;
    give_batch(world, KVB_INPUT_LIVE, seq, first_incarnation, false);
}

static void remove_live(struct stream_world *world, uint64_t seq, size_t depth, uint32_t token)
{
    add_removed(&world->batch, &(uint64_t){ engine_hash(depth, token) }, 1);
    give_live(world, seq);
}

static uint64_t wall_us(const struct stream_world *world)
{
    return 1000 + world->now_ns / 1000;
}

static struct kvb_query query_of(uint32_t *tokens, size_t count)
{
    return (struct kvb_query){ .form = KVB_QUERY_TOKENS, .tokens = tokens, .count = count };
}

static struct kvb_explanation
explain(const struct stream_world *world, const struct kvb_query *query)
{
    struct kvb_explanation explanation = { 0 };

    assert_ok(kvb_stream_explain(world->stream, query, 0, all_rows, &explanation));
    return explanation;
}

static void
assert_reason(const struct kvb_explanation *got, size_t row, enum kvb_explain_reason reason)
{
    assert_true(row < got->row_count);
    assert_string_equal(
        kvb_explain_reason_name(got->rows[row].reason), kvb_explain_reason_name(reason));
}

static void assert_trace(
    const struct kvb_explanation *got, size_t row, enum kvb_trace_verdict verdict,
    uint64_t event_id, enum kvb_event_origin origin)
{
    const struct kvb_explained_trace *trace = &got->rows[row].traces[KVB_TIER_DEVICE];

    assert_int_equal(trace->verdict, verdict);
    assert_int_equal(trace->event_id, event_id);
    assert_string_equal(kvb_event_origin_name(trace->note.origin), kvb_event_origin_name(origin));
}

static uint32_t prompt[] = { 1, 2, 3, 4 };

/* ---- Held and gone ---- */

static void says_since_when_and_by_which_event_a_block_is_held(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 4);

    begin(&world, many);
    add_chain(&world, prompt, 0, 2);
    give_batch(&world, KVB_INPUT_REPLAY, 0, first_incarnation, false);
    end_replay(&world, first_incarnation);
    const uint64_t replayed_id = world.last_id;
    add_chain(&world, prompt, 2, 3);
    give_live(&world, 1);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.blocks, 4);
    assert_int_equal(got.held_blocks, 3);
    assert_int_equal(got.usable_blocks, 3);
    assert_reason(&got, 0, KVB_EXPLAIN_HELD);
    assert_trace(&got, 1, KVB_TRACE_HELD, replayed_id, KVB_ORIGIN_REPLAYED);
    assert_trace(&got, 2, KVB_TRACE_HELD, replayed_id + 1, KVB_ORIGIN_LIVE);
    assert_int_equal(got.rows[2].traces[KVB_TIER_DEVICE].note.wall_us, wall_us(&world));
    assert_int_equal(got.rows[2].min[KVB_TIER_DEVICE], 1);
    assert_true(got.rows[2].block.value == name_of(prompt, 3).value);
    assert_reason(&got, 3, KVB_EXPLAIN_NEVER_STORED);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void says_which_event_removed_a_block(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 3);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 3);
    give_live(&world, 0);
    remove_live(&world, 1, 1, 2);
    const uint64_t removed_id = world.last_id;
    const uint64_t removed_us = wall_us(&world);
    remove_live(&world, 2, 2, 3);
    add_chain(&world, prompt, 2, 3); /* comes again behind a parent that is gone */
    give_live(&world, 3);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.held_blocks, 1);
    assert_reason(&got, 1, KVB_EXPLAIN_REMOVED);
    assert_trace(&got, 1, KVB_TRACE_REMOVED, removed_id, KVB_ORIGIN_LIVE);
    assert_int_equal(got.rows[1].traces[KVB_TIER_DEVICE].note.wall_us, removed_us);
    assert_reason(&got, 2, KVB_EXPLAIN_PARENT_UNKNOWN);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void says_which_event_cleared_all_and_what_was_never_there(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 4);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 3);
    give_live(&world, 0);
    remove_live(&world, 1, 2, 3);
    const uint64_t removed_id = world.last_id;
    add_cleared(&world.batch);
    give_live(&world, 2);
    const uint64_t cleared_id = world.last_id;
    add_chain(&world, prompt, 0, 1);
    give_live(&world, 3);
    add_cleared(&world.batch);
    give_live(&world, 4);
    struct kvb_explanation got = explain(&world, &query);
    assert_reason(&got, 0, KVB_EXPLAIN_CLEARED);
    assert_trace(&got, 0, KVB_TRACE_CLEARED, world.last_id, KVB_ORIGIN_LIVE);
    assert_reason(&got, 1, KVB_EXPLAIN_CLEARED);
    assert_trace(&got, 1, KVB_TRACE_CLEARED, cleared_id, KVB_ORIGIN_LIVE);
    assert_reason(&got, 2, KVB_EXPLAIN_REMOVED);
    assert_trace(&got, 2, KVB_TRACE_REMOVED, removed_id, KVB_ORIGIN_LIVE);
    assert_reason(&got, 3, KVB_EXPLAIN_NEVER_STORED);
    assert_trace(&got, 3, KVB_TRACE_ABSENT, cleared_id, KVB_ORIGIN_LIVE);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void a_restart_of_the_engine_is_told_from_a_clear(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 3);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 3);
    give_live(&world, 0);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    pass_ms(&world, 50);
    (void)start_wanted_replay(&world);
    add_chain(&world, prompt, 0, 1);
    give_batch(&world, KVB_INPUT_REPLAY, 0, second_incarnation, false);
    assert_int_equal(kvb_stream_count(world.stream)->restarts, 1);
    struct kvb_explanation got = explain(&world, &query);
    assert_trace(&got, 1, KVB_TRACE_CLEARED, got.beat.epoch_first_id, KVB_ORIGIN_RESTARTED);
    assert_reason(&got, 1, KVB_EXPLAIN_CLEARED);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

/* ---- Announcements ---- */

static kvb_status pass_over(void *context, const struct kvb_router_batch *chunk)
{
    *(uint64_t *)context = chunk->events[chunk->event_count - 1].event_id;
    return KVB_OK;
}

/* pass_over() writes to it.  NOLINTNEXTLINE(readability-non-const-parameter) */
static void announce(struct stream_world *world, uint64_t *out_last_id)
{
    const struct kvb_stream_telling telling = { .max_chunk_blocks = 100,
                                                .visit = pass_over,
                                                .context = out_last_id };

    kvb_stream_open_epoch(world->stream, 5000000, false);
    assert_ok(kvb_stream_publish(world->stream, &telling));
}

static void an_announcement_changes_neither_when_nor_why(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 3);
    uint64_t announced_id = 0;

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 3);
    give_live(&world, 0);
    const uint64_t stored_id = world.last_id;
    remove_live(&world, 1, 2, 3);
    const uint64_t removed_id = world.last_id;
    announce(&world, &announced_id);
    assert_true(announced_id > 5000000);
    struct kvb_explanation got = explain(&world, &query);
    assert_trace(&got, 0, KVB_TRACE_HELD, stored_id, KVB_ORIGIN_LIVE);
    assert_trace(&got, 2, KVB_TRACE_REMOVED, removed_id, KVB_ORIGIN_LIVE);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void says_held_before_when_the_trace_has_only_an_announcement(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 4);
    uint64_t announced_id = 0;

    begin(&world, 3); /* room for the announcement alone */
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 3);
    give_live(&world, 0);
    announce(&world, &announced_id);
    struct kvb_explanation got = explain(&world, &query);
    assert_false(got.is_trace_whole);
    assert_reason(&got, 0, KVB_EXPLAIN_HELD);
    assert_trace(&got, 0, KVB_TRACE_HELD_BEFORE, announced_id, KVB_ORIGIN_ANNOUNCED);
    assert_reason(&got, 3, KVB_EXPLAIN_OLDER);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

/* ---- What the trace does not know ---- */

static void admits_what_is_older_than_the_trace(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 2);

    begin(&world, 2);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 2);
    give_live(&world, 0);
    remove_live(&world, 1, 1, 2);
    add_chain(&world, (uint32_t[]){ 8, 9 }, 0, 2);
    give_live(&world, 2);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.trace_events, 1);
    assert_int_equal(got.trace_first_id, world.last_id);
    assert_reason(&got, 0, KVB_EXPLAIN_HELD);
    assert_int_equal(got.rows[0].traces[KVB_TIER_DEVICE].verdict, KVB_TRACE_NOTHING);
    assert_reason(&got, 1, KVB_EXPLAIN_OLDER);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void without_a_log_there_is_no_trace(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 2);

    begin(&world, 0);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 1);
    give_live(&world, 0);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.trace_events, 0);
    assert_false(got.is_trace_whole);
    assert_reason(&got, 0, KVB_EXPLAIN_HELD);
    assert_reason(&got, 1, KVB_EXPLAIN_OLDER);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void a_list_that_may_lack_blocks_proves_no_absence(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 2);

    begin(&world, many);
    add_chain(&world, (uint32_t[]){ 9 }, 0, 1);
    give_batch(&world, KVB_INPUT_REPLAY, 7, first_incarnation, false); /* 0 .. 6 are gone */
    end_replay(&world, first_incarnation);
    struct kvb_explanation got = explain(&world, &query);
    assert_reason(&got, 0, KVB_EXPLAIN_INCOMPLETE);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

/* ---- Held, but not as the query names it ---- */

static void finds_the_same_tokens_under_another_lora_name_or_salt(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_query query = query_of(prompt, 3);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 2);
    name_lora(&world, "adapter");
    give_live(&world, 0);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.held_blocks, 0);
    assert_reason(&got, 0, KVB_EXPLAIN_OTHER_NAME);
    assert_reason(&got, 1, KVB_EXPLAIN_OTHER_NAME);
    assert_reason(&got, 2, KVB_EXPLAIN_NEVER_STORED);
    kvb_explanation_done(&got);
    memcpy(query.lora_name, "adapter", sizeof "adapter");
    got = explain(&world, &query);
    assert_int_equal(got.held_blocks, 2);
    kvb_explanation_done(&got);
    memcpy(query.cache_salt, "s", sizeof "s");
    got = explain(&world, &query);
    assert_reason(&got, 0, KVB_EXPLAIN_OTHER_NAME);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void add_unmatchable(struct stream_world *world)
{
    add_chain(world, prompt, 1, 2);
    assert_ok(kvb_event_batch_reserve_extras(&world->batch, 1));
    world->batch.extras[0] = (struct kvb_block_extra){ .unmatchable = true };
    world->batch.extra_count = 1;
    last_event(&world->batch)->extra_count = 1;
}

static void finds_blocks_that_no_query_can_name_where_the_prefix_breaks(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 3);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 1);
    give_live(&world, 0);
    add_unmatchable(&world);
    give_live(&world, 1);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.held_blocks, 1);
    assert_reason(&got, 1, KVB_EXPLAIN_UNMATCHABLE);
    assert_reason(&got, 2, KVB_EXPLAIN_NEVER_STORED);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void names_the_tiers_that_hold_a_block(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 2);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 1);
    give_live(&world, 0);
    add_chain(&world, prompt, 1, 2);
    last_event(&world.batch)->tier = KVB_TIER_HOST;
    give_live(&world, 1);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.held_blocks, 1);
    assert_int_equal(got.rows[0].lists, 1U << KVB_TIER_DEVICE);
    assert_reason(&got, 1, KVB_EXPLAIN_OTHER_TIER);
    assert_int_equal(got.rows[1].lists, 1U << KVB_TIER_HOST);
    assert_int_equal(got.rows[1].min[KVB_TIER_HOST], 1);
    assert_int_equal(got.rows[1].traces[KVB_TIER_HOST].verdict, KVB_TRACE_HELD);
    assert_int_equal(got.rows[1].traces[KVB_TIER_HOST].event_id, world.last_id);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void a_block_that_may_be_held_is_doubtful(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 1);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 1);
    give_live(&world, 0);
    add_chain(&world, prompt, 0, 1); /* a second copy, or the same again */
    give_live(&world, 1);
    remove_live(&world, 2, 0, 1);
    struct kvb_explanation got = explain(&world, &query);
    assert_reason(&got, 0, KVB_EXPLAIN_DOUBTFUL);
    assert_int_equal(got.rows[0].min[KVB_TIER_DEVICE], 0);
    assert_int_equal(got.rows[0].max[KVB_TIER_DEVICE], 1);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void says_how_much_a_sliding_window_leaves(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 3);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 3);
    add_chain(&world, prompt, 0, 2);
    last_event(&world.batch)->has_group = true;
    last_event(&world.batch)->group = 1;
    last_event(&world.batch)->group_kind = KVB_GROUP_WINDOW;
    last_event(&world.batch)->window_tokens = 3;
    give_live(&world, 0);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.beat.window_tokens, 3);
    assert_int_equal(got.held_blocks, 3);
    assert_int_equal(got.usable_blocks, 2);
    assert_int_equal(got.rows[1].lists >> KVB_LIST_WINDOW & 1, 1);
    assert_int_equal(got.rows[2].lists >> KVB_LIST_WINDOW & 1, 0);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void a_withdrawn_stream_lists_nothing(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 1);

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 1);
    give_live(&world, 0);
    kvb_stream_open_epoch(world.stream, 5000000, true);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.held_blocks, 0);
    assert_reason(&got, 0, KVB_EXPLAIN_WITHDRAWN);
    assert_int_equal(got.rows[0].lists, 0);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

/* ---- Forms of the query ---- */

static void the_engines_names_are_found_by_tokens_and_parent(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_stream_options options = stream_world_options(true);
    uint32_t repeated[] = { 5, 5, 5, 5 };
    const struct kvb_query query = query_of(repeated, 4);

    options.max_log_blocks = many;
    options.mirror.hashes = KVB_HASHES_ENGINE;
    begin_with(&world, &options);
    end_replay(&world, first_incarnation);
    add_chain(&world, repeated, 0, 3);
    give_live(&world, 0);
    remove_live(&world, 1, 2, 5);
    struct kvb_explanation got = explain(&world, &query);
    assert_int_equal(got.held_blocks, 2);
    assert_true(got.rows[1].block.value == engine_hash(1, 5));
    assert_true(got.rows[2].block.value == engine_hash(2, 5)); /* from the trace */
    assert_reason(&got, 2, KVB_EXPLAIN_REMOVED);
    assert_false(got.rows[3].has_name);
    assert_reason(&got, 3, KVB_EXPLAIN_NEVER_STORED);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void takes_hashes_and_answers_in_parts(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t names[3];
    const struct kvb_query query = { .form = KVB_QUERY_BLOCK_HASHES, .hashes = names, .count = 3 };
    struct kvb_explanation got = { 0 };

    begin(&world, many);
    end_replay(&world, first_incarnation);
    add_chain(&world, prompt, 0, 2);
    give_live(&world, 0);
    for (size_t i = 0; i < 3; i++) {
        names[i] = name_of(prompt, i + 1).value;
    }
    assert_ok(kvb_stream_explain(world.stream, &query, 1, 1, &got));
    assert_int_equal(got.blocks, 3);
    assert_int_equal(got.held_blocks, 2);
    assert_int_equal(got.from, 1);
    assert_int_equal(got.row_count, 1);
    assert_true(got.rows[0].block.value == names[1]);
    assert_reason(&got, 0, KVB_EXPLAIN_HELD);
    kvb_explanation_done(&got);
    assert_ok(kvb_stream_explain(world.stream, &query, 7, 1, &got));
    assert_int_equal(got.row_count, 0);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void refuses_a_text_and_a_prompt_that_is_too_long(void **state)
{
    (void)state;
    struct stream_world world;
    uint32_t *tokens = calloc(kvb_explain_blocks + 1, sizeof *tokens);
    struct kvb_query query = { .form = KVB_QUERY_TEXT };
    struct kvb_explanation got = { 0 };

    begin(&world, many);
    assert_int_equal(kvb_stream_explain(world.stream, &query, 0, 1, &got), KVB_BAD_INPUT);
    query = query_of(tokens, kvb_explain_blocks + 1);
    assert_int_equal(kvb_stream_explain(world.stream, &query, 0, 1, &got), KVB_TOO_LARGE);
    query.count--;
    assert_ok(kvb_stream_explain(world.stream, &query, 0, 1, &got));
    kvb_explanation_done(&got);
    free(tokens);
    stream_world_end(&world);
}

/* ---- Cost: equal keys would take minutes, and of a large list a part is looked at ---- */

enum { crowd = 1 << 13, looked_at = 1 << 16, part = 1 << 12 };

static void begin_large(struct stream_world *world, enum kvb_hashes hashes, size_t log_blocks)
{
    struct kvb_stream_options options = stream_world_options(true);

    options.max_log_blocks = log_blocks;
    options.mirror.hashes = hashes;
    options.mirror.max_blocks = 4 * (size_t)looked_at;
    begin_with(world, &options);
    end_replay(world, first_incarnation);
}

/* Past the router's list, which is a short one. */
static void give_large_batch(struct stream_world *world, uint64_t seq)
{
    const struct kvb_stream_input input = { .kind = KVB_INPUT_LIVE,
                                            .now_ns = world->now_ns,
                                            .wall_us = wall_us(world),
                                            .seq = seq,
                                            .fingerprint = { .low = seq,
                                                             .high = first_incarnation },
                                            .batch = &world->batch };

    assert_ok(kvb_stream_step(world->stream, &input, &world->output));
    kvb_event_batch_reset(&world->batch);
}

/* Blocks `from` .. `to` - 1 of a chain of equal tokens, behind block from - 1. */
static void add_equal(struct stream_world *world, uint64_t from, uint64_t to, uint32_t token)
{
    uint64_t hashes[part];
    uint32_t tokens[part];

    assert_true(to - from <= part);
    for (uint64_t i = from; i < to; i++) {
        hashes[i - from] = engine_hash(i, token);
        tokens[i - from] = token;
    }
    const uint64_t parent = from > 0 ? engine_hash(from - 1, token) : 0;
    add_stored(&world->batch, from > 0 ? &parent : NULL, hashes, tokens, to - from);
}

/* A chain, and blocks behind parents that nobody knows. */
static void explain_equal_tokens(const struct kvb_query *query, enum kvb_hashes hashes)
{
    struct stream_world world;
    struct kvb_explanation got = { 0 };

    begin_large(&world, hashes, many);
    for (uint64_t at = 0; at < crowd; at += part) {
        add_equal(&world, at, at + part, 0);
    }
    for (uint64_t i = 0; i < crowd; i++) {
        add_equal(&world, UINT64_C(2) * crowd + 2 * i, UINT64_C(2) * crowd + 2 * i + 1, 0);
    }
    give_large_batch(&world, 0);
    assert_ok(kvb_stream_explain(world.stream, query, crowd, 2, &got));
    assert_int_equal(got.held_blocks, crowd);
    assert_false(got.is_held_at_least);
    if (hashes == KVB_HASHES_CANONICAL) {
        assert_reason(&got, 0, KVB_EXPLAIN_PARENT_UNKNOWN);
        assert_reason(&got, 1, KVB_EXPLAIN_PARENT_UNKNOWN);
    }
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void equal_tokens_cost_no_more_than_others(void **state)
{
    (void)state;
    uint32_t *tokens = calloc(kvb_explain_blocks, sizeof *tokens);
    const struct kvb_query query = query_of(tokens, kvb_explain_blocks);

    assert_non_null(tokens);
    explain_equal_tokens(&query, KVB_HASHES_CANONICAL);
    explain_equal_tokens(&query, KVB_HASHES_ENGINE);
    free(tokens);
}

static void rows_of_one_name_have_one_history(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t *names = calloc(kvb_explain_blocks, sizeof *names);
    const struct kvb_query query = { .form = KVB_QUERY_BLOCK_HASHES,
                                     .hashes = names,
                                     .count = kvb_explain_blocks };
    uint64_t seq = 0;

    assert_non_null(names);
    begin(&world, many);
    end_replay(&world, first_incarnation);
    for (size_t i = 0; i < kvb_explain_blocks; i++) {
        names[i] = name_of(prompt, 1).value;
    }
    for (; seq < 100; seq += 2) {
        add_chain(&world, prompt, 0, 1);
        give_live(&world, seq);
        remove_live(&world, seq + 1, 0, prompt[0]);
    }
    struct kvb_explanation got = explain(&world, &query);
    for (size_t row = 0; row < got.row_count; row++) {
        assert_reason(&got, row, KVB_EXPLAIN_REMOVED);
        assert_trace(&got, row, KVB_TRACE_REMOVED, world.last_id, KVB_ORIGIN_LIVE);
    }
    kvb_explanation_done(&got);
    free(names);
    stream_world_end(&world);
}

static void admits_that_a_large_list_was_not_looked_at_as_a_whole(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 1);
    uint64_t seq = 0;

    begin_large(&world, KVB_HASHES_ENGINE, 1);
    for (uint64_t at = 0; at < looked_at; at += part) {
        add_equal(&world, at, at + part, 7);
        give_large_batch(&world, seq++);
    }
    add_chain(&world, prompt, 0, 1);
    give_large_batch(&world, seq++);
    add_chain(&world, (uint32_t[]){ 9 }, 0, 1); /* drives the block before out of the trace */
    give_large_batch(&world, seq++);
    struct kvb_explanation got = explain(&world, &query);
    assert_false(got.rows[0].has_name);
    assert_int_equal(got.held_blocks, 0);
    assert_true(got.is_held_at_least);
    assert_reason(&got, 0, KVB_EXPLAIN_OLDER);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

static void says_never_only_of_a_list_that_was_looked_at_as_a_whole(void **state)
{
    (void)state;
    struct stream_world world;
    const struct kvb_query query = query_of(prompt, 2);
    uint64_t seq = 0;

    begin_large(&world, KVB_HASHES_CANONICAL, many);
    add_chain(&world, prompt, 0, 1);
    give_large_batch(&world, seq++);
    for (uint64_t at = 1; at < looked_at; at += part) { /* behind a parent that nobody knows */
        add_equal(&world, at, at + part, 7);
        give_large_batch(&world, seq++);
    }
    add_unmatchable(&world);
    give_large_batch(&world, seq++);
    struct kvb_explanation got = explain(&world, &query);
    assert_reason(&got, 1, KVB_EXPLAIN_INCOMPLETE);
    kvb_explanation_done(&got);
    stream_world_end(&world);
}

/* ---- Against a reference model ---- */

/* Of one root block: how it came to be as it is, by a reader that sees every change. */
struct model_block {
    uint64_t event_id; /* 0: never stored */
    enum kvb_trace_verdict verdict;
    bool is_held;
};

enum { model_tokens = 24, model_steps = 3000 };

static void note_change(struct model_block *block, bool is_clear, uint64_t event_id)
{
    block->event_id = event_id;
    block->verdict = is_clear         ? KVB_TRACE_CLEARED
                     : block->is_held ? KVB_TRACE_REMOVED
                                      : KVB_TRACE_HELD;
    block->is_held = !is_clear && !block->is_held;
}

static void
model_step(struct stream_world *world, struct model_block *blocks, uint64_t seq, uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const uint32_t token = (uint32_t)(*seed >> 33) % model_tokens;
    const unsigned what = (unsigned)(*seed >> 59);
    uint64_t unused = 0;

    if (what == 0) {
        add_cleared(&world->batch);
    } else if (blocks[token].is_held) {
        add_removed(&world->batch, &(uint64_t){ engine_hash(0, token) }, 1);
    } else {
        add_chain(world, &token, 0, 1);
    }
    give_live(world, seq);
    for (uint32_t i = 0; i < model_tokens; i++) {
        if (what == 0 ? blocks[i].is_held : i == token) {
            note_change(&blocks[i], what == 0, world->last_id);
        }
    }
    if (what == 1) {
        announce(world, &unused);
        world->last_id = kvb_stream_last_id(world->stream);
    }
}

static void agrees_with_a_reader_of_every_event(void **state)
{
    (void)state;
    struct model_block blocks[model_tokens] = { { 0 } };
    struct stream_world world;
    uint64_t seed = 3;
    uint64_t clears = 0;

    begin(&world, (size_t)many * 4);
    end_replay(&world, first_incarnation);
    for (uint64_t seq = 0; seq < model_steps; seq++) {
        model_step(&world, blocks, seq, &seed);
        clears = kvb_stream_count(world.stream)->events_of[KVB_EVENT_CLEARED];
        for (uint32_t i = 0; i < model_tokens; i++) {
            const struct kvb_query query = query_of(&i, 1);
            struct kvb_explanation got = explain(&world, &query);
            const struct kvb_explained_trace *trace = &got.rows[0].traces[KVB_TIER_DEVICE];
            assert_true(got.is_trace_whole);
            assert_int_equal(got.rows[0].reason == KVB_EXPLAIN_HELD, blocks[i].is_held);
            if (blocks[i].event_id != 0) {
                assert_int_equal(trace->verdict, blocks[i].verdict);
                assert_int_equal(trace->event_id, blocks[i].event_id);
            } else {
                assert_reason(&got, 0, KVB_EXPLAIN_NEVER_STORED);
                assert_int_equal(trace->verdict, clears > 0 ? KVB_TRACE_ABSENT : KVB_TRACE_NOTHING);
            }
            kvb_explanation_done(&got);
        }
    }
    stream_world_end(&world);
}

static void survives_each_allocation_failing(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_stream_options options = stream_world_options(true);
    const struct kvb_query query = query_of(prompt, 4);
    struct kvb_explanation got = { 0 };

    for (unsigned hashes = 0; hashes < KVB_HASHES_COUNT; hashes++) {
        kvb_status status = KVB_NO_MEMORY;
        long n = 0;
        options.max_log_blocks = many;
        options.mirror.hashes = (enum kvb_hashes)hashes;
        begin_with(&world, &options);
        end_replay(&world, first_incarnation);
        add_chain(&world, prompt, 0, 2);
        name_lora(&world, hashes == KVB_HASHES_CANONICAL ? "a" : "");
        give_live(&world, 0);
        for (; status != KVB_OK; n++) {
            fail_alloc_after(n);
            status = kvb_stream_explain(world.stream, &query, 0, all_rows, &got);
            fail_alloc_after(-1);
            assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
            assert_true(n < 100);
        }
        assert_true(n > 3);
        kvb_explanation_done(&got);
        stream_world_end(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_since_when_and_by_which_event_a_block_is_held),
        cmocka_unit_test(says_which_event_removed_a_block),
        cmocka_unit_test(says_which_event_cleared_all_and_what_was_never_there),
        cmocka_unit_test(a_restart_of_the_engine_is_told_from_a_clear),
        cmocka_unit_test(an_announcement_changes_neither_when_nor_why),
        cmocka_unit_test(says_held_before_when_the_trace_has_only_an_announcement),
        cmocka_unit_test(admits_what_is_older_than_the_trace),
        cmocka_unit_test(without_a_log_there_is_no_trace),
        cmocka_unit_test(a_list_that_may_lack_blocks_proves_no_absence),
        cmocka_unit_test(finds_the_same_tokens_under_another_lora_name_or_salt),
        cmocka_unit_test(finds_blocks_that_no_query_can_name_where_the_prefix_breaks),
        cmocka_unit_test(names_the_tiers_that_hold_a_block),
        cmocka_unit_test(a_block_that_may_be_held_is_doubtful),
        cmocka_unit_test(says_how_much_a_sliding_window_leaves),
        cmocka_unit_test(a_withdrawn_stream_lists_nothing),
        cmocka_unit_test(the_engines_names_are_found_by_tokens_and_parent),
        cmocka_unit_test(takes_hashes_and_answers_in_parts),
        cmocka_unit_test(refuses_a_text_and_a_prompt_that_is_too_long),
        cmocka_unit_test(equal_tokens_cost_no_more_than_others),
        cmocka_unit_test(rows_of_one_name_have_one_history),
        cmocka_unit_test(admits_that_a_large_list_was_not_looked_at_as_a_whole),
        cmocka_unit_test(says_never_only_of_a_list_that_was_looked_at_as_a_whole),
        cmocka_unit_test(agrees_with_a_reader_of_every_event),
        cmocka_unit_test(survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
