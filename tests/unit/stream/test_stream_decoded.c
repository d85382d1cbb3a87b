#include "kvb_test.h"

#include "batch_maker.h"
#include "core/own.h"
#include "stream_world.h"
#include "wire/batch_line.h"
#include "wire/engine/batch.h"
#include "wire/json_pack.h"

#include <stdio.h>
#include <string.h>

/* From an engine's bytes to the list: repeated, wrong and dialect-specific events, each followed to
 * its effect. Blocks have one token. */

#define BATCH "92 01 "
#define ARRAY(parent, hash, token) "95 " STORED "91 " hash " " parent " 91 " token " 01 "
#define ROOT(hash, token) ARRAY("c0", hash, token)
#define GONE(hash) "92 " REMOVED "91 " hash " "
#define CLEARED "91 b0 416c6c426c6f636b73436c6561726564 "

struct scene {
    unsigned tiers; /* tiers that are published to routers; 0: device */
    uint32_t pool_block_size;
    bool has_no_replay;
    enum kvb_hashes hashes;
    bool has_salts; /* requests may have salts that the older arrays do not name */
};

static void begin_scene(struct stream_world *world, const struct scene *scene)
{
    struct kvb_stream_options options = stream_world_options(!scene->has_no_replay);

    options.mirror.tiers = scene->tiers ? scene->tiers : options.mirror.tiers;
    options.mirror.pool_block_size = scene->pool_block_size;
    options.mirror.hashes = scene->hashes;
    options.is_without_salts = !scene->has_salts;
    *world = (struct stream_world){ .now_ns = 1000000000 };
    assert_ok(kvb_stream_new(&options, &world->stream));
    give(world, KVB_INPUT_UP);
}

/* An engine that has published nothing yet. */
static void begin_new_of(struct stream_world *world, const struct scene *scene)
{
    begin_scene(world, scene);
    (void)start_wanted_replay(world);
    give(world, KVB_INPUT_REPLAY_END);
    assert_state(world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
}

static void begin_new(struct stream_world *world)
{
    begin_new_of(world, &(struct scene){ .tiers = 0 });
}

static void
give_hex(struct stream_world *world, enum kvb_stream_input_kind kind, uint64_t seq, const char *hex)
{
    const bool is_poison = decode_hex(hex, &world->batch) != KVB_OK;

    give_batch(world, kind, seq, first_incarnation, is_poison);
}

/* The first batch is looked for in the replay. */
static void live_hex(struct stream_world *world, uint64_t seq, const char *hex)
{
    struct kvb_heartbeat beat;
    uint64_t last = 0;

    give_hex(world, KVB_INPUT_LIVE, seq, hex);
    kvb_stream_heartbeat(world->stream, &beat);
    if (beat.reason == KVB_REASON_NO_BASE && kvb_stream_last_seq(world->stream, &last)) {
        find_live(world, last, first_incarnation);
    }
}

static bool holds(const struct stream_world *world, uint32_t first, uint32_t second)
{
    const uint32_t path[] = { first, second };

    return router_holds(world, name_of(path, second ? 2 : 1));
}

static const struct kvb_mirror_counts *counts(const struct stream_world *world)
{
    return kvb_stream_mirror_count(world->stream);
}

/* ---- Repeated events ---- */

static void a_second_copy_is_gone_with_the_second_removal(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "92 " ROOT("05", "01") ROOT("05", "01"));
    assert_int_equal(world.held_count, 1);
    live_hex(&world, 1, BATCH "91 " GONE("05"));
    /* an engine that writes arrays announces each copy once */
    assert_int_equal(world.held_count, 1);
    live_hex(&world, 2, BATCH "91 " GONE("05"));
    assert_int_equal(world.held_count, 0);
    assert_int_equal(counts(&world)->doubtful, 0);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
 * "block_size": 1} */
#define MAPPED(hashes, parent, tokens)                                                             \
    "85 a474797065 ab426c6f636b53746f726564 ac626c6f636b5f686173686573 " hashes                    \
    " b1706172656e745f626c6f636b5f68617368 " parent " a9746f6b656e5f696473 " tokens                \
    " aa626c6f636b5f73697a65 01 "

/* SGLang's hashes are signed; with a host tier it leaves out events. */
static void an_engine_that_leaves_out_events_is_partial(void **state)
{
    static const struct {
        bool is_signed;
        const char *medium;
        enum kvb_stream_state state;
    } rows[] = {
        { true, "a3 475055", KVB_STREAM_EXACT },
        { false, "a3 435055", KVB_STREAM_EXACT },
        { true, "a3 435055", KVB_STREAM_PARTIAL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct stream_world world;
        char hex[512];
        (void)snprintf(
            hex, sizeof hex, BATCH "91 97 " STORED "91 %s c0 91 01 01 c0 %s",
            rows[i].is_signed ? "d3 fffffffffffffff0" : "05", rows[i].medium);
        begin_new(&world);
        live_hex(&world, 0, hex);
        assert_state(
            &world, rows[i].state,
            rows[i].state == KVB_STREAM_PARTIAL ? KVB_REASON_UNANNOUNCED : KVB_REASON_NONE);
        stream_world_end(&world);
    }
}

/* An engine whose replies have no topic cannot repeat what it holds. */
static void what_an_engine_repeats_depends_on_its_replies(void **state)
{
    (void)state;

    for (int has_topic = 0; has_topic < 2; has_topic++) {
        struct stream_world world;
        begin_new(&world);
        kvb_stream_note_reply_form(world.stream, has_topic);
        live_hex(&world, 0, BATCH "91 " MAPPED("91 05", "c0", "91 01"));
        live_hex(&world, 1, BATCH "91 " MAPPED("91 05", "c0", "91 01"));
        live_hex(&world, 2, BATCH "91 " GONE("05"));
        assert_int_equal(world.held_count, !has_topic);
        assert_int_equal(counts(&world)->doubtful, has_topic); /* neither listed nor forgotten */
        stream_world_end(&world);
    }
}

static void a_reannouncement_leaves_no_phantom(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    /* 5 <- 6 are both stored again from the root; then each is removed once, the child first */
    live_hex(&world, 0, BATCH "92 " MAPPED("91 05", "c0", "91 01") MAPPED("91 06", "05", "91 02"));
    live_hex(&world, 1, BATCH "91 " MAPPED("92 05 06", "c0", "92 01 02"));
    live_hex(&world, 2, BATCH "92 " GONE("06") GONE("05"));
    assert_int_equal(world.held_count, 0);
    assert_int_equal(counts(&world)->doubtful, 2);
    live_hex(&world, 3, BATCH "91 " MAPPED("91 05", "c0", "91 01")); /* one is stored again */
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 1, 0));
    stream_world_end(&world);
}

static void one_hash_twice_in_a_removal_affects_no_other_block(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "92 " ROOT("05", "01") ROOT("06", "02"));
    live_hex(&world, 1, BATCH "91 92 " REMOVED "92 05 05");
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 2, 0));
    assert_int_equal(counts(&world)->unknown_removed, 1);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* Two contents with one name: the engine can only mean the later one. */
static void one_hash_twice_in_a_store_is_one_block(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "91 95 " STORED "92 05 05 c0 92 01 02 01");
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 1, 2));
    assert_int_equal(counts(&world)->aliases, 1);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_AMBIGUOUS);
    live_hex(&world, 1, BATCH "91 " GONE("05"));
    assert_int_equal(world.held_count, 0);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_AMBIGUOUS);
    stream_world_end(&world);
}

/* A salt, an adapter or an image that the events do not name: the engine has two blocks. */
static void two_hashes_of_one_content_are_ambiguous(void **state)
{
    (void)state;
    static const struct {
        const char *hex;
        enum kvb_stream_state state;
    } rows[] = {
        { BATCH "92 " ROOT("05", "01") ROOT("06", "02"), KVB_STREAM_EXACT },
        { BATCH "92 " ROOT("05", "01") ROOT("05", "01"), KVB_STREAM_EXACT }, /* a copy */
        { BATCH "93 " ROOT("05", "01") GONE("05") ROOT("06", "01"), KVB_STREAM_EXACT },
        { BATCH "92 " ROOT("05", "01") ROOT("06", "01"), KVB_STREAM_UNVERIFIED },
        /* the names of the children of unknown parents follow later */
        { BATCH "93 " ROOT("05", "01") ARRAY("07", "06", "02") ARRAY("05", "08", "02"),
          KVB_STREAM_PARTIAL },
        { BATCH "94 " ARRAY("07", "06", "02") ROOT("07", "01") ROOT("05", "03")
              ARRAY("05", "08", "02"),
          KVB_STREAM_EXACT },
        { BATCH "93 " ARRAY("07", "06", "02") ARRAY("07", "08", "02") ROOT("07", "01"),
          KVB_STREAM_UNVERIFIED },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct stream_world world;
        begin_new(&world);
        live_hex(&world, 0, rows[i].hex);
        assert_state(
            &world, rows[i].state,
            rows[i].state == KVB_STREAM_UNVERIFIED ? KVB_REASON_AMBIGUOUS
            : rows[i].state == KVB_STREAM_PARTIAL  ? KVB_REASON_UNROOTED
                                                   : KVB_REASON_NONE);
        stream_world_end(&world);
    }
}

/* ---- What a version of an engine does not publish ---- */

/* 9 elements with extra_keys, which vLLM has from 0.17 on. */
#define WITH_KEYS "99 " STORED "91 05 c0 91 01 01 c0 a3 47 50 55 c0 91 c0 "
#define WITH_NAME "98 " STORED "91 05 c0 91 01 01 c0 a3 47 50 55 c0 "
#define ON_HOST "98 " STORED "91 05 c0 91 01 01 c0 a3 43 50 55 c0 "

static void a_version_without_salts_is_exact_only_where_there_are_none(void **state)
{
    (void)state;
    static const struct {
        const char *hex;
        bool has_salts;
        enum kvb_stream_state state;
    } rows[] = {
        { BATCH "91 " ROOT("05", "01"), true, KVB_STREAM_UNVERIFIED },
        { BATCH "91 " ROOT("05", "01"), false, KVB_STREAM_EXACT },
        { BATCH "91 " WITH_NAME, true, KVB_STREAM_UNVERIFIED },
        { BATCH "91 " WITH_NAME, false, KVB_STREAM_EXACT },
        { BATCH "91 " WITH_KEYS, true, KVB_STREAM_EXACT },
        { BATCH "91 " ON_HOST, true, KVB_STREAM_EXACT }, /* of the device's blocks */
        { BATCH "91 " GONE("05"), true, KVB_STREAM_EXACT },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct stream_world world;
        begin_new_of(&world, &(struct scene){ .has_salts = rows[i].has_salts });
        live_hex(&world, 0, rows[i].hex);
        const bool is_exact = rows[i].state == KVB_STREAM_EXACT;
        assert_state(&world, rows[i].state, is_exact ? KVB_REASON_NONE : KVB_REASON_SALTS);
        live_hex(&world, 1, BATCH "91 " CLEARED);
        assert_state(&world, rows[i].state, is_exact ? KVB_REASON_NONE : KVB_REASON_SALTS);
        stream_world_end(&world);
    }
}

/* SGLang up to 0.5.5: the hash is Python's hash((1,)) = -6644214454873602895, and says nothing of
 * the parent.  No promise of the operator helps. */
static void a_hash_of_the_page_alone_is_ambiguous(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "91 96 " STORED "91 d3 a3 ca e8 f7 6f 09 9c 31 c0 91 02 01 c0 ");
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    live_hex(&world, 1, BATCH "91 96 " STORED "91 d3 a3 cb 02 27 e5 be 44 b1 07 91 01 01 c0 ");
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_AMBIGUOUS);
    assert_non_null(strstr(kvb_stream_why(world.stream, KVB_REASON_AMBIGUOUS), "SGLang"));
    stream_world_end(&world);
}

/* vLLM 0.20 and 0.21: arrays of 10 elements, up to group_idx. */
static void groups_that_do_not_state_their_kinds_are_odd(void **state)
{
    (void)state;
    static const struct {
        const char *group;
        enum kvb_stream_state state;
    } rows[] = { { "00 ", KVB_STREAM_EXACT }, { "01 ", KVB_STREAM_UNVERIFIED } };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct stream_world world;
        char hex[512];
        (void)snprintf(
            hex, sizeof hex, BATCH "91 9a " STORED "91 05 c0 91 01 01 c0 a3 47 50 55 c0 91 c0 %s",
            rows[i].group);
        begin_new(&world);
        live_hex(&world, 0, hex);
        assert_state(
            &world, rows[i].state,
            rows[i].state == KVB_STREAM_EXACT ? KVB_REASON_NONE : KVB_REASON_GROUPS);
        stream_world_end(&world);
    }
}

/* Stored and removed, and removed and stored, within one batch. */
static void events_of_a_batch_apply_in_their_order(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "93 " ROOT("05", "01") ROOT("06", "02") GONE("05"));
    assert_int_equal(world.held_count, 1);
    live_hex(&world, 1, BATCH "92 " GONE("06") ROOT("06", "02"));
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 2, 0));
    stream_world_end(&world);
}

/* ---- Parents ---- */

static void a_block_that_is_its_own_parent_affects_no_other(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "92 " ARRAY("05", "05", "01") ROOT("06", "02"));
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 2, 0));
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_SKIPPED);
    live_hex(&world, 1, BATCH "92 " CLEARED ROOT("05", "01"));
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 1, 0));
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

static void a_block_of_an_unknown_parent_waits_for_it(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "91 " ARRAY("05", "06", "02"));
    assert_int_equal(world.held_count, 0);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_UNROOTED);
    live_hex(&world, 1, BATCH "91 " ROOT("05", "01"));
    assert_int_equal(world.held_count, 2);
    assert_true(holds(&world, 1, 2));
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* ---- Tiers ---- */

/* In SGLang's order: stored on GPU, stored in CPU_PINNED, removed from GPU, stored on GPU at the
 * load-back. */
static void a_block_in_two_tiers_is_counted_in_each(void **state)
{
    (void)state;
#define IN_GPU "97 " STORED "91 05 c0 91 01 01 c0 a3 475055 "
#define IN_CPU "97 " STORED "91 05 c0 91 01 01 c0 aa 4350555f50494e4e4544 "
#define NOT_IN_GPU "93 " REMOVED "91 05 a3 475055 "
    const struct {
        enum kvb_tier tier;
        size_t held[4]; /* expected after each step */
    } views[] = {
        { KVB_TIER_DEVICE, { 1, 1, 0, 1 } },
        { KVB_TIER_HOST, { 0, 1, 1, 1 } },
        { KVB_TIER_DISK, { 0, 0, 0, 0 } },
    };
    const char *const steps[] = { BATCH "91 " IN_GPU, BATCH "91 " IN_CPU, BATCH "91 " NOT_IN_GPU,
                                  BATCH "91 " IN_GPU };

    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        struct stream_world world;
        begin_scene(&world, &(struct scene){ .tiers = 1U << views[i].tier, .has_no_replay = true });
        for (size_t at = 0; at < sizeof steps / sizeof steps[0]; at++) {
            live_hex(&world, at, steps[at]);
            assert_int_equal(world.held_count, views[i].held[at]);
        }
        stream_world_end(&world);
    }
}

/* ---- What cannot be read ---- */

static void undecodable_events_cost_what_they_may_hide(void **state)
{
    (void)state;
    /* each between two good BlockStored events */
    const struct {
        const char *odd;
        enum kvb_skip skip;
        enum kvb_stream_state state;
        enum kvb_stream_reason reason;
        bool keeps_the_first;
    } cases[] = {
        { "95 " STORED "91 08 c0 91 ff 01 ", KVB_SKIP_BAD_STORED, KVB_STREAM_PARTIAL,
          KVB_REASON_SKIPPED, true },
        { "92 " REMOVED "91 a1 78 ", KVB_SKIP_BAD_REMOVED, KVB_STREAM_PARTIAL, KVB_REASON_POISON,
          false },
        { "92 b0 416c6c426c6f636b73436c6561726564 05 ", KVB_SKIP_BAD_REMOVED, KVB_STREAM_PARTIAL,
          KVB_REASON_POISON, false }, /* a clear whose tier is a number */
        { "92 b0 426c6f636b5570646174654576656e74 05 ", KVB_SKIP_BAD_REMOVED, KVB_STREAM_PARTIAL,
          KVB_REASON_POISON, false }, /* an update whose key is a number */
        { "92 a3 4e6577 05 ", KVB_SKIP_UNKNOWN_EVENT, KVB_STREAM_UNVERIFIED,
          KVB_REASON_UNKNOWN_EVENT, true },
    };
    char hex[512];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stream_world world;
        begin_new(&world);
        (void)snprintf(
            hex, sizeof hex, BATCH "93 " ROOT("05", "01") "%s" ROOT("06", "02"), cases[i].odd);
        live_hex(&world, 0, hex);
        assert_int_equal(kvb_stream_count(world.stream)->skipped[cases[i].skip], 1);
        assert_state(&world, cases[i].state, cases[i].reason);
        assert_int_equal(holds(&world, 1, 0), cases[i].keeps_the_first);
        assert_true(holds(&world, 2, 0));
        live_hex(&world, 1, BATCH "92 " CLEARED ROOT("06", "02")); /* complete again */
        assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
        assert_int_equal(world.held_count, 1);
        stream_world_end(&world);
    }
}

static void live_json(struct stream_world *world, uint64_t seq, const char *json)
{
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 1 << 12);
    pack_json(json, &bytes);
    assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &world->batch));
    kvb_buf_done(&bytes);
    give_batch(world, KVB_INPUT_LIVE, seq, first_incarnation, false);
}

#define MODEL_STORED(hash, token, model)                                                           \
    "{\"type\": \"BlockStored\", \"block_hashes\": [" hash "], \"parent_block_hash\": null, "      \
    "\"token_ids\": [" token "], \"block_size\": 1, \"model_name\": " model "}"

/* The stream's own model is m. */
static void blocks_of_another_model_are_passed_over(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_json(
        &world, 0,
        "[1, [" MODEL_STORED("5", "1", "\"m\"") ", " MODEL_STORED(
            "6", "2",
            "\"mm\"") ", " MODEL_STORED("7", "3", "null") ", " MODEL_STORED("8", "4", "\"\"") "]]");
    assert_true(holds(&world, 1, 0));
    assert_false(holds(&world, 2, 0));
    assert_int_equal(world.held_count, 3);
    assert_int_equal(kvb_stream_count(world.stream)->skipped[KVB_SKIP_OTHER_MODEL], 1);
    assert_int_equal(kvb_stream_count(world.stream)->events_applied, 3);
    find_live(&world, 0, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    /* a removal or a clear for another model has no effect */
    live_json(
        &world, 1,
        "[1, [{\"type\": \"BlockRemoved\", \"block_hashes\": [5], \"model_name\": \"x\"}, "
        "{\"type\": \"AllBlocksCleared\", \"model\": \"x\"}]]");
    assert_int_equal(world.held_count, 3);
    live_json(&world, 2, "[1, [{\"type\": \"BlockRemoved\", \"block_hashes\": [5]}]]");
    assert_int_equal(world.held_count, 2);
    assert_int_equal(kvb_stream_count(world.stream)->skipped[KVB_SKIP_OTHER_MODEL], 3);
    stream_world_end(&world);
}

/* The batch may have been damaged in transit: it is requested once, and the engine sends the same
 * bytes. */
static void bytes_behind_a_batch_make_it_undecodable(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "91 " ROOT("05", "01"));
    live_hex(&world, 1, BATCH "91 " ROOT("06", "02") "00");
    (void)start_wanted_replay(&world);
    give_hex(&world, KVB_INPUT_REPLAY, 0, BATCH "91 " ROOT("05", "01"));
    give_hex(&world, KVB_INPUT_REPLAY, 1, BATCH "91 " ROOT("06", "02") "00");
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(world.held_count, 0);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_POISON);
    live_hex(&world, 2, BATCH "91 " ROOT("07", "03"));
    assert_int_equal(world.held_count, 1);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_POISON);
    live_hex(&world, 3, BATCH "92 " CLEARED ROOT("07", "03"));
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* ---- The first sequence number ---- */

static void a_first_number_from_a_clock_means_no_missed_batches(void **state)
{
    (void)state;
    const uint64_t clock = UINT64_C(1700000000000000000);
    struct stream_world world;

    begin_scene(&world, &(struct scene){ .tiers = 0 });
    (void)start_wanted_replay(&world);
    give_hex(&world, KVB_INPUT_REPLAY, clock, BATCH "91 " CLEARED);
    give_hex(&world, KVB_INPUT_REPLAY, clock + 1, BATCH "90"); /* a heartbeat */
    end_replay(&world, first_incarnation);
    live_hex(&world, clock + 2, BATCH "91 " ROOT("05", "01"));
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 1);
    assert_int_equal(kvb_stream_count(world.stream)->batches_missed, 0);
    stream_world_end(&world);

    begin_new(&world); /* the engine had published nothing before the request */
    live_hex(&world, clock, BATCH "91 " ROOT("05", "01"));
    assert_int_equal(kvb_stream_count(world.stream)->gaps, 1);
    assert_int_equal(kvb_stream_count(world.stream)->batches_missed, 0);
    stream_world_end(&world);

    begin_scene(&world, &(struct scene){ .has_no_replay = true }); /* and without replays */
    live_hex(&world, clock, BATCH "90");
    live_hex(&world, clock + 1, BATCH "91 " ROOT("05", "01"));
    assert_int_equal(world.held_count, 1);
    assert_int_equal(kvb_stream_count(world.stream)->gaps, 0);
    live_hex(&world, 2 * clock, BATCH "91 " ROOT("06", "02")); /* the engine restarted unnoticed */
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 2, 0));
    stream_world_end(&world);
}

#define TYPED(hash)                                                                                \
    "82 aa 6576656e745f74797065 a6 73746f726564 aa 7365715f686173686573 91 " hash " "

static void a_history_from_one_is_complete_in_dialects_that_count_from_one(void **state)
{
    (void)state;
    struct stream_world world;

    begin_scene(&world, &(struct scene){ .tiers = 0 });
    (void)start_wanted_replay(&world);
    give_hex(&world, KVB_INPUT_REPLAY, 1, BATCH "91 81 aa 6576656e745f74797065 a7 636c6561726564");
    end_replay(&world, first_incarnation);
    live_hex(&world, 1, "");
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);

    /* an event of this dialect that is no clear */
    begin_scene(&world, &(struct scene){ .tiers = 0 });
    (void)start_wanted_replay(&world);
    give_hex(&world, KVB_INPUT_REPLAY, 1, BATCH "92 " TYPED("05") ROOT("05", "01"));
    end_replay(&world, first_incarnation);
    assert_int_equal(counts(&world)->no_tokens, 1); /* a block without a name */
    live_hex(&world, 1, "");
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_SKIPPED);
    stream_world_end(&world);

    /* a dialect that counts from 0 lacks batch 0 */
    begin_scene(&world, &(struct scene){ .tiers = 0 });
    (void)start_wanted_replay(&world);
    give_hex(&world, KVB_INPUT_REPLAY, 1, BATCH "91 " ROOT("05", "01"));
    end_replay(&world, first_incarnation);
    live_hex(&world, 1, "");
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    stream_world_end(&world);
}

/* ---- A pool ---- */

#define STORE(key, replicas, hash, parent, tokens)                                                 \
    "98 af 426c6f636b53746f72654576656e74 " key " " replicas " a1 6d 10 " hash " " parent          \
    " " tokens " "
#define UPDATE(key, replicas) "93 b0 426c6f636b5570646174654576656e74 " key " " replicas " "
#define IN_MEMORY "92 a6 6d656d6f7279 a0 "
#define ON_DISK "92 a4 6469736b a0 "
#define NOWHERE "90"

static void an_object_of_a_pool_is_where_its_last_event_says(void **state)
{
    (void)state;
    const struct {
        const char *hex;
        size_t on_host;
        size_t on_disk;
    } steps[] = {
        /* k1 = 5 in memory, k2 = 6 below it in memory and on disk */
        { BATCH "92 " STORE("a2 6b31", "91 " IN_MEMORY, "a1 35", "a0", "91 01")
              STORE("a2 6b32", "92 " IN_MEMORY ON_DISK, "a1 36", "a1 35", "91 02"),
          2, 1 },
        { BATCH "91 " UPDATE("a2 6b31", "92 " IN_MEMORY ON_DISK), 2, 2 },
        { BATCH "91 " UPDATE("a2 6b31", "92 " IN_MEMORY ON_DISK), 2, 2 }, /* no second copy */
        { BATCH "91 " UPDATE("a2 6b31", "91 " ON_DISK), 1, 2 },
        { BATCH "91 " UPDATE("a2 6b32", NOWHERE), 0, 1 },
        { BATCH "91 " UPDATE("a2 6b32", NOWHERE), 0, 1 },
        { BATCH "91 " UPDATE("a2 6b31", "91 " IN_MEMORY), 1, 0 },
        { BATCH "91 91 ae 52656d6f7665416c6c4576656e74", 0, 0 },
    };

    for (unsigned tier = KVB_TIER_HOST; tier <= KVB_TIER_DISK; tier++) {
        struct stream_world world;
        begin_scene(&world, &(struct scene){ .tiers = 1U << tier, .has_no_replay = true });
        for (size_t at = 0; at < sizeof steps / sizeof steps[0]; at++) {
            live_hex(&world, at, steps[at].hex);
            assert_int_equal(
                world.held_count, tier == KVB_TIER_HOST ? steps[at].on_host : steps[at].on_disk);
            assert_true(at != 0 || tier != KVB_TIER_HOST || holds(&world, 1, 2));
            assert_int_equal(counts(&world)->doubtful, 0);
        }
        assert_int_equal(counts(&world)->unknown_removed, 0);
        assert_int_equal(counts(&world)->no_tokens, 0);
        stream_world_end(&world);
    }
}

static void a_partial_block_is_kept_but_no_query_finds_it(void **state)
{
    (void)state;
    const struct scene scene = { .tiers = 1U << KVB_TIER_HOST,
                                 .pool_block_size = 2,
                                 .has_no_replay = true };
    struct stream_world world;

    begin_scene(&world, &scene);
    live_hex(&world, 0, BATCH "91 " STORE("a2 6b31", "91 " IN_MEMORY, "a1 35", "a0", "91 01"));
    live_hex(&world, 1, BATCH "91 " UPDATE("a2 6b31", "91 " ON_DISK));
    live_hex(&world, 2, BATCH "91 " UPDATE("a2 6b31", NOWHERE));
    assert_int_equal(world.held_count, 0);
    assert_int_equal(counts(&world)->no_tokens, 0);
    assert_int_equal(counts(&world)->unmatchable, 1);
    assert_int_equal(counts(&world)->shape_count, 0); /* the configured block size stays */
    live_hex(&world, 3, BATCH "91 " STORE("a2 6b31", "91 " IN_MEMORY, "a1 35", "a0", "92 01 02"));
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

static void a_key_reused_for_another_block_has_left_the_first(void **state)
{
    (void)state;
    struct stream_world world;

    begin_scene(&world, &(struct scene){ .tiers = 1U << KVB_TIER_HOST, .has_no_replay = true });
    live_hex(&world, 0, BATCH "91 " STORE("a2 6b31", "91 " IN_MEMORY, "a1 35", "a0", "91 01"));
    live_hex(&world, 1, BATCH "91 " STORE("a2 6b31", "91 " IN_MEMORY, "a1 36", "a0", "91 02"));
    assert_int_equal(world.held_count, 1);
    assert_true(holds(&world, 2, 0));
    live_hex(&world, 2, BATCH "91 " UPDATE("a2 6b31", NOWHERE));
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

/* An unknown key could stand for any block. */
static void an_update_of_an_unknown_object_is_counted(void **state)
{
    (void)state;
    struct stream_world world;

    begin_new(&world);
    live_hex(&world, 0, BATCH "91 " UPDATE("a2 6b31", "91 " IN_MEMORY));
    assert_int_equal(world.held_count, 0);
    assert_int_equal(counts(&world)->no_tokens, 1);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_REMOVALS);
    stream_world_end(&world);
}

/* ---- A pool whose keys name blocks ---- */

/* The ranks of vLLM's keys between model and hash. */
#define RANK(number) "@tp_rank:" number "@pcp0@dcp0@pp_rank:0@group:0@"

static void begin_objects(struct stream_world *world, enum kvb_tier tier)
{
    begin_scene(
        world,
        &(struct scene){ .tiers = 1U << tier, .has_no_replay = true, .hashes = KVB_HASHES_ENGINE });
}

static void live_object(
    struct stream_world *world, const char *kind, const char *tenant, const char *key,
    const char *medium)
{
    char json[512];
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };
    uint64_t last = 0;
    const bool has_last = kvb_stream_last_seq(world->stream, &last);

    kvb_buf_init(&bytes, 1 << 12);
    (void)snprintf(
        json, sizeof json,
        "[1700000000500, [{\"event_type\": \"%s\", \"tenant_id\": \"%s\", \"object_key\": \"%s\", "
        "\"medium\": \"%s\", \"seq_hashes\": [], \"block_hashes\": [], \"block_size\": null}], 0]",
        kind, tenant, key, medium);
    pack_json(json, &bytes);
    assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &world->batch));
    give_batch(world, KVB_INPUT_LIVE, has_last ? last + 1 : 1, first_incarnation, false);
    assert_state(world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_REMOVALS);
}

static bool lists_hash(const struct stream_world *world, uint64_t hash)
{
    return router_holds(world, (kvb_block_hash){ hash });
}

static void a_block_is_held_while_all_its_shards_are(void **state)
{
    (void)state;
    struct stream_world world;

    begin_objects(&world, KVB_TIER_HOST);
    live_object(&world, "stored", "default", "m" RANK("0") "0000000000000005", "cpu");
    live_object(&world, "stored", "default", "m" RANK("0") "0000000000000006", "cpu");
    assert_int_equal(world.held_count, 2); /* one rank, as far as the keys show */
    live_object(&world, "stored", "default", "m" RANK("1") "0000000000000005", "cpu");
    assert_int_equal(world.held_count, 1); /* two: the other half of block 6 is missing */
    assert_true(lists_hash(&world, 5));
    live_object(&world, "stored", "default", "m" RANK("1") "0000000000000006", "cpu");
    assert_int_equal(world.held_count, 2);
    live_object(&world, "removed", "default", "m" RANK("0") "0000000000000005", "cpu");
    assert_int_equal(world.held_count, 1);
    /* an engine of another kind writes no ranks, and needs none */
    live_object(&world, "stored", "default", "0x5", "cpu");
    assert_int_equal(world.held_count, 2);
    live_object(&world, "removed", "default", "0x5", "cpu");
    assert_int_equal(world.held_count, 1);
    assert_true(lists_hash(&world, 6));
    stream_world_end(&world);
}

static void an_object_is_known_by_tenant_key_and_medium(void **state)
{
    (void)state;
    struct stream_world world;

    begin_objects(&world, KVB_TIER_HOST);
    live_object(&world, "stored", "a", "5", "cpu");
    live_object(&world, "stored", "a", "5", "cpu"); /* put again: still one object */
    live_object(&world, "stored", "b", "5", "cpu");
    live_object(&world, "stored", "a", "0x5", "cpu"); /* another key of the same block */
    assert_int_equal(world.held_count, 1);
    live_object(&world, "removed", "a", "5", "disk");
    live_object(&world, "removed", "a", "5", "cpu");
    live_object(&world, "removed", "a", "0x5", "cpu");
    assert_true(lists_hash(&world, 5));
    live_object(&world, "removed", "b", "5", "cpu");
    assert_int_equal(world.held_count, 0);
    assert_int_equal(counts(&world)->unknown_removed, 0);
    stream_world_end(&world);
}

static void a_key_that_names_no_block_is_counted(void **state)
{
    (void)state;
    struct stream_world world;

    begin_objects(&world, KVB_TIER_HOST);
    live_object(&world, "stored", "default", "weights", "cpu");
    live_object(&world, "removed", "default", "weights", "cpu");
    assert_int_equal(kvb_stream_count(world.stream)->skipped[KVB_SKIP_UNKNOWN_KEY], 2);
    live_object(&world, "stored", "default", "n" RANK("0") "0000000000000005", "cpu");
    assert_int_equal(kvb_stream_count(world.stream)->skipped[KVB_SKIP_OTHER_MODEL], 1);
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

/* Random puts and removals of two engines' objects of two tenants, compared with plain tables. */
enum { families = 2, shards = 3, tenants = 2, blocks = 6, media = 2 };

struct model {
    bool held[families][shards][tenants][blocks][media];
    bool is_seen[families][shards][media]; /* the shard has been stored there */
};

static bool model_lists(const struct model *model, size_t block, size_t medium)
{
    for (size_t family = 0; family < families; family++) {
        bool has_all = true;
        bool has_any = false;
        for (size_t shard = 0; shard < shards; shard++) {
            bool is_held = false;
            for (size_t tenant = 0; tenant < tenants; tenant++) {
                is_held |= model->held[family][shard][tenant][block][medium];
            }
            has_any |= is_held;
            has_all &= is_held || !model->is_seen[family][shard][medium];
        }
        if (has_any && has_all) {
            return true;
        }
    }
    return false;
}

static void random_objects_are_listed_as_plain_tables_say(void **state)
{
    (void)state;
    static const char *const names[media] = { "cpu", "disk" };
    uint64_t random = 88172645463325252U;

    for (size_t run = 0; run < 40; run++) {
        struct stream_world world;
        struct model model = { 0 };
        const size_t published = run % media;
        begin_objects(&world, published ? KVB_TIER_DISK : KVB_TIER_HOST);
        for (size_t step = 0; step < 300; step++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            const size_t family = random % families;
            const size_t shard = random / 8 % (1 + step / 60 < shards ? 1 + step / 60 : shards);
            const size_t tenant = random / 64 % tenants;
            const size_t block = random / 256 % blocks;
            const size_t medium = random / 4096 % media;
            const bool is_stored = random / 65536 % 3 > 0;
            char key[128];
            if (family == 0) {
                (void)snprintf(
                    key, sizeof key, "m@tp_rank:%zu@pcp0@dcp0@pp_rank:0@group:0@%016zx", shard,
                    block + 1);
            } else {
                (void)snprintf(key, sizeof key, "%016zx%048d_%zu_k", block + 1, 0, shard);
            }
            live_object(
                &world, is_stored ? "stored" : "removed", tenant ? "t" : "default", key,
                names[medium]);
            model.held[family][shard][tenant][block][medium] = is_stored;
            model.is_seen[family][shard][medium] |= is_stored;
            for (size_t at = 0; at < blocks; at++) {
                assert_int_equal(lists_hash(&world, at + 1), model_lists(&model, at, published));
            }
        }
        stream_world_end(&world);
    }
}

SUITE(stream_decoded)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_copy_is_gone_with_the_second_removal),
        cmocka_unit_test(an_engine_that_leaves_out_events_is_partial),
        cmocka_unit_test(what_an_engine_repeats_depends_on_its_replies),
        cmocka_unit_test(a_reannouncement_leaves_no_phantom),
        cmocka_unit_test(one_hash_twice_in_a_removal_affects_no_other_block),
        cmocka_unit_test(two_hashes_of_one_content_are_ambiguous),
        cmocka_unit_test(a_version_without_salts_is_exact_only_where_there_are_none),
        cmocka_unit_test(a_hash_of_the_page_alone_is_ambiguous),
        cmocka_unit_test(groups_that_do_not_state_their_kinds_are_odd),
        cmocka_unit_test(one_hash_twice_in_a_store_is_one_block),
        cmocka_unit_test(events_of_a_batch_apply_in_their_order),
        cmocka_unit_test(a_block_that_is_its_own_parent_affects_no_other),
        cmocka_unit_test(a_block_of_an_unknown_parent_waits_for_it),
        cmocka_unit_test(a_block_in_two_tiers_is_counted_in_each),
        cmocka_unit_test(undecodable_events_cost_what_they_may_hide),
        cmocka_unit_test(blocks_of_another_model_are_passed_over),
        cmocka_unit_test(bytes_behind_a_batch_make_it_undecodable),
        cmocka_unit_test(a_first_number_from_a_clock_means_no_missed_batches),
        cmocka_unit_test(a_history_from_one_is_complete_in_dialects_that_count_from_one),
        cmocka_unit_test(an_object_of_a_pool_is_where_its_last_event_says),
        cmocka_unit_test(a_partial_block_is_kept_but_no_query_finds_it),
        cmocka_unit_test(a_key_reused_for_another_block_has_left_the_first),
        cmocka_unit_test(an_update_of_an_unknown_object_is_counted),
        cmocka_unit_test(a_block_is_held_while_all_its_shards_are),
        cmocka_unit_test(an_object_is_known_by_tenant_key_and_medium),
        cmocka_unit_test(a_key_that_names_no_block_is_counted),
        cmocka_unit_test(random_objects_are_listed_as_plain_tables_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
