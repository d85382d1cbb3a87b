#include "kvb_test.h"

#include "batch_maker.h"
#include "core/own.h"
#include "stream_script.h"
#include "stream_world.h"
#include "wire/engine/batch.h"
#include "wire/json_pack.h"

#include <stdio.h>
#include <string.h>

/* From an engine's bytes to the list: repeated, wrong and dialect-specific events, each followed to
 * its effect. Blocks have one token. */

static void begin_new(struct stream_world *world)
{
    struct kvb_stream_options options = stream_world_options(true);

    options.is_without_salts = true;
    *world = (struct stream_world){ .now_ns = 1000000000 };
    assert_ok(kvb_stream_new(&options, &world->stream));
    give(world, KVB_INPUT_UP);
    (void)start_wanted_replay(world);
    give(world, KVB_INPUT_REPLAY_END);
}

static bool holds(const struct stream_world *world, uint32_t token)
{
    return router_holds(world, name_of(&token, 1));
}

/* ---- Blocks of several models ---- */

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
    assert_true(holds(&world, 1));
    assert_false(holds(&world, 2));
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

/* ---- A pool whose keys name blocks ---- */

/* The ranks of vLLM's keys between model and hash. */
#define RANK(number) "@tp_rank:" number "@pcp0@dcp0@pp_rank:0@group:0@"

static void begin_objects(struct stream_world *world, enum kvb_tier tier)
{
    struct kvb_stream_options options = stream_world_options(false);

    options.mirror.tiers = 1U << tier;
    options.mirror.hashes = KVB_HASHES_ENGINE;
    options.is_without_salts = true;
    *world = (struct stream_world){ .now_ns = 1000000000 };
    assert_ok(kvb_stream_new(&options, &world->stream));
    give(world, KVB_INPUT_UP);
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
    assert_int_equal(kvb_stream_mirror_count(world.stream)->unknown_removed, 0);
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
        /* ---- Events between good ones that cannot be decoded ---- */

        SCRIPT(
            "a bad BlockStored is skipped",
            "new, bytes 0 root 05 01 ; 95 stored 9108 c0 91ff 01 ; root 06 02, PARTIAL(skipped),"
            "holds 1, holds 2, bytes 1 cleared ; root 06 02, EXACT, lists 1"),
        SCRIPT(
            "a bad BlockRemoved may be of any block",
            "new, bytes 0 root 05 01 ; 92 removed 91a178 ; root 06 02, PARTIAL(poison), misses 1,"
            "holds 2, bytes 1 cleared ; root 06 02, EXACT, lists 1"),
        SCRIPT(
            "a clear whose tier is a number may be of any block",
            "new, bytes 0 root 05 01 ; 92 b0416c6c426c6f636b73436c6561726564 05 ; root 06 02,"
            "PARTIAL(poison), misses 1, holds 2"),
        SCRIPT(
            "an update whose key is a number may be of any block",
            "new, bytes 0 root 05 01 ; 92 b0426c6f636b5570646174654576656e74 05 ; root 06 02,"
            "PARTIAL(poison), misses 1, holds 2"),
        SCRIPT(
            "an event of an unknown name is unverified",
            "new, bytes 0 root 05 01 ; 92 a34e6577 05 ; root 06 02, UNVERIFIED(unknown_event),"
            "holds 1, holds 2, bytes 1 cleared ; root 06 02, EXACT, lists 1"),

        /* ---- Repeated events ---- */

        /* An engine that writes arrays announces each copy once. */
        SCRIPT(
            "a second copy is gone with the second removal",
            "new, bytes 0 root 05 01 ; root 05 01, lists 1, bytes 1 gone 05, lists 1,"
            "bytes 2 gone 05, lists 0, doubtful 0, EXACT"),
        /* SGLang's hashes are signed; with a host tier it leaves out events. */
        SCRIPT(
            "a device alone leaves out no events", "new, bytes 0 in gpu d3fffffffffffffff0, EXACT"),
        SCRIPT(
            "an engine with another kind of hashes leaves out no events",
            "new, bytes 0 in cpu 05, EXACT"),
        SCRIPT(
            "an engine that leaves out events is partial",
            "new, bytes 0 in cpu d3fffffffffffffff0, PARTIAL(unannounced)"),
        SCRIPT(
            "an engine whose replies have no topic cannot repeat what it holds",
            "new, topics no, bytes 0 mapped c0 9105 9101, bytes 1 mapped c0 9105 9101,"
            "bytes 2 gone 05, lists 1, doubtful 0"),
        SCRIPT(
            "what an engine may have repeated is neither listed nor forgotten",
            "new, topics yes, bytes 0 mapped c0 9105 9101, bytes 1 mapped c0 9105 9101,"
            "bytes 2 gone 05, lists 0, doubtful 1"),
        /* 5 <- 6 are both stored again from the root; then each is removed once, the child first;
         * one is stored again. */
        SCRIPT(
            "a reannouncement leaves no phantom",
            "new, bytes 0 mapped c0 9105 9101 ; mapped 05 9106 9102,"
            "bytes 1 mapped c0 920506 920102, bytes 2 gone 06 ; gone 05, lists 0, doubtful 2,"
            "bytes 3 mapped c0 9105 9101, lists 1, holds 1"),
        SCRIPT(
            "one hash twice in a removal affects no other block",
            "new, bytes 0 root 05 01 ; root 06 02, bytes 1 92 removed 920505, lists 1, holds 2,"
            "unknown-removed 1, EXACT"),
        /* Two contents with one name: the engine can only mean the later one. */
        SCRIPT(
            "one hash twice in a store is one block",
            "new, bytes 0 95 stored 920505 c0 920102 01, lists 1, holds 1 2, aliases 1,"
            "UNVERIFIED(ambiguous), bytes 1 gone 05, lists 0, UNVERIFIED(ambiguous)"),

        /* ---- A salt, an adapter or an image that the events do not name ---- */

        SCRIPT(
            "two hashes of two contents are exact", "new, bytes 0 root 05 01 ; root 06 02, EXACT"),
        SCRIPT(
            "another hash after the removal of the first is exact",
            "new, bytes 0 root 05 01 ; gone 05 ; root 06 01, EXACT"),
        SCRIPT(
            "two hashes of one content are ambiguous",
            "new, bytes 0 root 05 01 ; root 06 01, UNVERIFIED(ambiguous)"),
        /* The names of the children of unknown parents follow later. */
        SCRIPT(
            "a content without a name is not ambiguous yet",
            "new, bytes 0 root 05 01 ; child 07 06 02 ; child 05 08 02, PARTIAL(unrooted)"),
        SCRIPT(
            "equal contents below different parents are exact",
            "new, bytes 0 child 07 06 02 ; root 07 01 ; root 05 03 ; child 05 08 02, EXACT"),
        SCRIPT(
            "equal contents below one parent that came later are ambiguous",
            "new, bytes 0 child 07 06 02 ; child 07 08 02 ; root 07 01, UNVERIFIED(ambiguous)"),
        /* SGLang up to 0.5.5: the hash is Python's hash((1,)) = -6644214454873602895, and says
         * nothing of the parent.  No promise of the operator helps. */
        SCRIPT(
            "a hash of the page alone is ambiguous",
            "new, bytes 0 96 stored 91 d3a3cae8f76f099c31 c0 9102 01 c0, EXACT,"
            "bytes 1 96 stored 91 d3a3cb0227e5be44b1 07 9101 01 c0, UNVERIFIED(ambiguous),"
            "why SGLang"),

        /* ---- What a version of an engine does not publish ---- */

        SCRIPT(
            "arrays without salts are unverified where there are some",
            "new salts, bytes 0 root 05 01, UNVERIFIED(salts), bytes 1 cleared, UNVERIFIED(salts)"),
        SCRIPT(
            "arrays with a name and without salts are unverified where there are some",
            "new salts, bytes 0 named gpu, UNVERIFIED(salts)"),
        SCRIPT(
            "arrays without salts are exact where there are none",
            "new, bytes 0 named gpu, EXACT, bytes 1 cleared, EXACT"),
        SCRIPT("arrays with extra keys are exact", "new salts, bytes 0 keyed, EXACT"),
        SCRIPT(
            "what is on the host alone says nothing of the device",
            "new salts, bytes 0 named cpu, EXACT"),
        SCRIPT("a removal says nothing of salts", "new salts, bytes 0 gone 05, EXACT"),
        /* vLLM 0.20 and 0.21. */
        SCRIPT(
            "a first group that does not state its kind is exact",
            "new, bytes 0 grouped 00, EXACT"),
        SCRIPT(
            "a second group that does not state its kind is odd",
            "new, bytes 0 grouped 01, UNVERIFIED(groups)"),

        /* ---- Order, parents, tiers ---- */

        SCRIPT(
            "events of a batch apply in their order",
            "new, bytes 0 root 05 01 ; root 06 02 ; gone 05, lists 1,"
            "bytes 1 gone 06 ; root 06 02, lists 1, holds 2"),
        SCRIPT(
            "a block that is its own parent affects no other",
            "new, bytes 0 child 05 05 01 ; root 06 02, lists 1, holds 2, PARTIAL(skipped),"
            "bytes 1 cleared ; root 05 01, lists 1, holds 1, EXACT"),
        SCRIPT(
            "a block of an unknown parent waits for it",
            "new, bytes 0 child 05 06 02, lists 0, PARTIAL(unrooted), bytes 1 root 05 01, lists 2,"
            "holds 1 2, EXACT"),
        /* In SGLang's order: stored on GPU, stored in CPU_PINNED, removed from GPU, stored on GPU
         * at the load-back. */
        SCRIPT(
            "a block in two tiers is counted on the device",
            "pool device, bytes 0 in gpu 05, lists 1, bytes 1 in pinned 05, lists 1,"
            "bytes 2 gone-from gpu 05, lists 0, bytes 3 in gpu 05, lists 1"),
        SCRIPT(
            "a block in two tiers is counted on the host",
            "pool host, bytes 0 in gpu 05, lists 0, bytes 1 in pinned 05, lists 1,"
            "bytes 2 gone-from gpu 05, lists 1, bytes 3 in gpu 05, lists 1"),
        SCRIPT(
            "a block in two tiers is counted in no third",
            "pool disk, bytes 0 in gpu 05, lists 0, bytes 1 in pinned 05, lists 0,"
            "bytes 2 gone-from gpu 05, lists 0, bytes 3 in gpu 05, lists 0"),

        /* ---- Numbers, and bytes behind a batch ---- */

        /* The batch may have been damaged in transit: it is requested once, and the engine sends
         * the same bytes. */
        SCRIPT(
            "bytes behind a batch make it undecodable",
            "new, bytes 0 root 05 01, bytes 1 root 06 02 then 00, ask, bytes-reply 0 root 05 01,"
            "bytes-reply 1 root 06 02 then 00, end, lists 0, PARTIAL(poison), bytes 2 root 07 03,"
            "lists 1, PARTIAL(poison), bytes 3 cleared ; root 07 03, EXACT"),
        SCRIPT(
            "a first number from a clock means no missed batches",
            "begin, up, ask, bytes-reply 1700000000000000000 cleared,"
            "bytes-reply 1700000000000000001, confirm, bytes 1700000000000000002 root 05 01,"
            "EXACT, lists 1, missed 0"),
        SCRIPT(
            "a number from a clock after an empty replay means no missed batches",
            "new, bytes 1700000000000000000 root 05 01, gaps 1, missed 0"),
        SCRIPT(
            "without replays a later number from a clock is that of another engine",
            "pool device, bytes 1700000000000000000, bytes 1700000000000000001 root 05 01,"
            "lists 1, gaps 0, bytes 3400000000000000000 root 06 02, lists 1, holds 2"),
        SCRIPT(
            "a history from 1 is complete in dialects that count from 1",
            "begin, up, ask, bytes-reply 1 typed-cleared, confirm, live 1, EXACT"),
        SCRIPT(
            "a block of such a dialect without a name is skipped",
            "begin, up, ask, bytes-reply 1 typed 05 ; root 05 01, confirm, no-tokens 1, live 1,"
            "PARTIAL(skipped)"),
        SCRIPT(
            "a history from 1 lacks batch 0 in dialects that count from 0",
            "begin, up, ask, bytes-reply 1 root 05 01, confirm, live 1, PARTIAL(gone)"),

        /* ---- An object of a pool is where its last event says ---- */

        SCRIPT(
            "objects in memory are listed",
            "pool host, bytes 0 put k1 memory a135 a0 9101 ; put k2 both a136 a135 9102, lists 2,"
            "bytes 1 moved k1 both, lists 2, bytes 2 moved k1 both, lists 2,"
            "bytes 3 moved k1 disk, lists 1, bytes 4 moved k2 nowhere, lists 0,"
            "bytes 5 moved k2 nowhere, lists 0, bytes 6 moved k1 memory, lists 1,"
            "bytes 7 remove-all, lists 0, doubtful 0, unknown-removed 0, no-tokens 0"),
        SCRIPT(
            "objects on disk are listed",
            "pool disk, bytes 0 put k1 memory a135 a0 9101 ; put k2 both a136 a135 9102, lists 1,"
            "bytes 1 moved k1 both, lists 2, bytes 2 moved k1 both, lists 2,"
            "bytes 3 moved k1 disk, lists 2, bytes 4 moved k2 nowhere, lists 1,"
            "bytes 5 moved k2 nowhere, lists 1, bytes 6 moved k1 memory, lists 0,"
            "bytes 7 remove-all, lists 0, doubtful 0, unknown-removed 0, no-tokens 0"),
        SCRIPT(
            "an object below another has the name of both",
            "pool host, bytes 0 put k1 memory a135 a0 9101 ; put k2 memory a136 a135 9102,"
            "holds 1 2"),
        /* The configured block size stays. */
        SCRIPT(
            "a partial block is kept but no query finds it",
            "pool host 2, bytes 0 put k1 memory a135 a0 9101, bytes 1 moved k1 disk,"
            "bytes 2 moved k1 nowhere, lists 0, no-tokens 0, unmatchable 1, shapes 0,"
            "bytes 3 put k1 memory a135 a0 920102, lists 1"),
        SCRIPT(
            "a key reused for another block has left the first",
            "pool host, bytes 0 put k1 memory a135 a0 9101, bytes 1 put k1 memory a136 a0 9102,"
            "lists 1, holds 2, bytes 2 moved k1 nowhere, lists 0"),
        /* An unknown key could stand for any block. */
        SCRIPT(
            "an update of an unknown object is counted",
            "new, bytes 0 moved k1 memory, lists 0, no-tokens 1, UNVERIFIED(no_removals)"),

        cmocka_unit_test(blocks_of_another_model_are_passed_over),
        cmocka_unit_test(a_block_is_held_while_all_its_shards_are),
        cmocka_unit_test(an_object_is_known_by_tenant_key_and_medium),
        cmocka_unit_test(a_key_that_names_no_block_is_counted),
        cmocka_unit_test(random_objects_are_listed_as_plain_tables_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
