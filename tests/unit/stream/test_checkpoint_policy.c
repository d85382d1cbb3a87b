#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/random.h"
#include "stream/checkpoint/policy.h"
#include "stream_world.h"

#include <string.h>

static const uint64_t s = KVB_NS_PER_S;
static const uint64_t period_ns = 30 * KVB_NS_PER_S;

enum { all_items = kvb_checkpoint_step_items };

/* One stream of a process that has a disk, and the file on that disk. */
struct scene {
    struct stream_world world;
    struct kvb_checkpoint_policy policy;
    struct kvb_checkpoint_maker maker;
    struct kvb_buf bytes;
    uint64_t now_ns;
};

static void begin(struct scene *scene)
{
    memset(scene, 0, sizeof *scene);
    begin_exact(&scene->world, 5);
    kvb_buf_init(&scene->bytes, 1 << 20);
    scene->now_ns = 100 * s;
}

static void end(struct scene *scene)
{
    kvb_checkpoint_forget(&scene->maker, &scene->policy);
    kvb_buf_done(&scene->bytes);
    stream_world_end(&scene->world);
}

static kvb_status begin_making(struct scene *scene)
{
    return kvb_checkpoint_begin(
        &scene->maker, &scene->policy, scene->world.stream, scene->now_ns, period_ns);
}

static kvb_status make(struct scene *scene, size_t items, struct kvb_checkpoint_progress *made)
{
    return kvb_checkpoint_step(&scene->maker, items, &scene->bytes, scene->now_ns, made);
}

static void make_whole(struct scene *scene)
{
    struct kvb_checkpoint_progress made;

    assert_ok(begin_making(scene));
    assert_ok(make(scene, all_items, &made));
    assert_true(made.is_first && made.is_last);
    assert_int_equal(scene->maker.stage, KVB_CHECKPOINT_STORING);
}

static void begin_on_disk(struct scene *scene)
{
    begin(scene);
    make_whole(scene);
    kvb_checkpoint_written(&scene->maker, KVB_OK);
    assert_true(scene->policy.is_on_disk);
    assert_false(scene->policy.is_being_written);
    scene->now_ns += period_ns;
}

/* ---- When a checkpoint is made ---- */

static void a_checkpoint_is_made_when_it_is_due_and_the_stream_has_changed(void **state)
{
    (void)state;
    struct scene scene;

    begin_on_disk(&scene);
    assert_int_equal(begin_making(&scene), KVB_NOT_FOUND);
    live(&scene.world, 5, first_incarnation, 6);
    scene.now_ns -= 1;
    assert_int_equal(begin_making(&scene), KVB_NOT_FOUND);
    scene.now_ns += 1;
    make_whole(&scene);
    assert_true(scene.policy.is_on_disk);
    assert_true(scene.policy.is_being_written);
    end(&scene);
}

static void another_epoch_is_a_change(void **state)
{
    (void)state;
    struct scene scene;

    begin_on_disk(&scene);
    kvb_stream_open_epoch(scene.world.stream, 1, false);
    assert_ok(begin_making(&scene));
    end(&scene);
}

static void a_base_that_was_found_is_a_change(void **state)
{
    (void)state;
    struct scene scene;

    begin_on_disk(&scene);
    scene.policy.has_base = !scene.policy.has_base;
    assert_ok(begin_making(&scene));
    end(&scene);
}

/* A thousand streams without a batch must not be checked in every turn. */
static void a_stream_that_cannot_be_saved_waits_a_period(void **state)
{
    (void)state;
    struct scene scene;

    begin(&scene);
    stream_world_end(&scene.world);
    begin_exact(&scene.world, 0);
    assert_int_equal(begin_making(&scene), KVB_NOT_FOUND);
    assert_int_equal(scene.maker.stage, KVB_CHECKPOINT_IDLE);
    stream_world_end(&scene.world);
    /* without a replay nothing can prove a restored list */
    stream_world_begin(&scene.world, false);
    give(&scene.world, KVB_INPUT_UP);
    live(&scene.world, 0, first_incarnation, 1);
    assert_int_equal(begin_making(&scene), KVB_NOT_FOUND);
    assert_true(scene.policy.next_ns == scene.now_ns + period_ns);
    end(&scene);
}

static void a_stream_that_is_cleared_meanwhile_begins_again_in_a_second(void **state)
{
    (void)state;
    struct scene scene;
    struct kvb_checkpoint_progress made;

    begin(&scene);
    assert_ok(begin_making(&scene));
    assert_ok(make(&scene, 1, &made));
    add_cleared(&scene.world.batch);
    give_batch(&scene.world, KVB_INPUT_LIVE, 5, first_incarnation, false);
    assert_int_equal(make(&scene, all_items, &made), KVB_CLOSED);
    assert_int_equal(scene.maker.stage, KVB_CHECKPOINT_IDLE);
    assert_false(scene.policy.is_on_disk);
    assert_false(scene.policy.is_being_written);
    assert_int_equal(begin_making(&scene), KVB_NOT_FOUND);
    scene.now_ns += s;
    assert_ok(begin_making(&scene));
    end(&scene);
}

/* The file on the disk is older than the checkpoint that was made. */
static void a_checkpoint_that_could_not_be_written_is_made_again_in_a_period(void **state)
{
    (void)state;
    struct scene scene;

    begin_on_disk(&scene);
    live(&scene.world, 5, first_incarnation, 6);
    make_whole(&scene);
    kvb_checkpoint_written(&scene.maker, KVB_IO);
    assert_int_equal(begin_making(&scene), KVB_NOT_FOUND);
    scene.now_ns += period_ns;
    assert_ok(begin_making(&scene));
    end(&scene);
}

/* ---- Void ---- */

static void a_restored_checkpoint_is_on_the_disk(void **state)
{
    (void)state;
    struct scene scene;

    begin(&scene);
    kvb_checkpoint_restored(&scene.policy, scene.world.stream);
    assert_true(scene.policy.is_on_disk);
    assert_false(scene.policy.is_being_written);
    assert_int_equal(begin_making(&scene), KVB_NOT_FOUND); /* nothing has changed */
    end(&scene);
}

/* ---- Random ---- */

struct disk {
    bool is_there;
    kvb_epoch epoch;
    unsigned repeats; /* version of the list when the checkpoint was made */
};

struct model {
    struct scene scene;
    struct disk disk;
    struct disk coming; /* is_there: there is a file and it is not void */
    unsigned repeats;
    uint64_t random;
};

static void remove_when(struct model *model, bool is_void)
{
    if (is_void) {
        model->disk.is_there = false;
        model->coming.is_there = false;
    }
}

static void write_one(struct model *model)
{
    struct kvb_checkpoint_maker *maker = &model->scene.maker;
    const bool fails = kvb_random_below(&model->random, 3) == 0;

    if (!model->coming.is_there) {
        kvb_checkpoint_written(maker, fails ? KVB_CLOSED : KVB_OK); /* too late: it is void */
    } else if (fails) {
        kvb_checkpoint_written(maker, KVB_IO);
    } else {
        model->disk = model->coming;
        kvb_checkpoint_written(maker, KVB_OK);
    }
    model->coming.is_there = false;
}

static void make_some(struct model *model)
{
    struct scene *scene = &model->scene;
    struct kvb_checkpoint_progress made = { .is_last = false };

    if (scene->maker.stage == KVB_CHECKPOINT_STORING) {
        write_one(model);
    } else if (scene->maker.stage == KVB_CHECKPOINT_IDLE) {
        kvb_buf_reset(&scene->bytes);
        (void)begin_making(scene);
    } else if (make(scene, 2, &made) == KVB_OK && made.is_last) {
        model->coming = (struct disk){ .is_there = true,
                                       .epoch = kvb_stream_epoch(scene->world.stream),
                                       .repeats = model->repeats };
    }
}

static void publish_some(struct model *model, uint64_t *seq)
{
    struct scene *scene = &model->scene;
    struct kvb_heartbeat beat;

    switch (kvb_random_below(&model->random, 8)) {
    case 0:
        kvb_stream_open_epoch(scene->world.stream, scene->now_ns / 1000, false);
        kvb_stream_heartbeat(scene->world.stream, &beat);
        scene->world.last_id = beat.last_id;
        break;
    case 1:
        remove_when(model, kvb_checkpoint_becomes_void(&scene->policy));
        model->repeats++;
        break;
    default:
        live(&scene->world, *seq, first_incarnation, (uint32_t)*seq + 1);
        (*seq)++;
    }
    const kvb_epoch epoch = kvb_stream_epoch(scene->world.stream);
    remove_when(model, kvb_checkpoint_enters_epoch(&scene->policy, &epoch));
}

/* A process killed at any moment must leave no file from which the next one must not continue. */
static void the_file_on_the_disk_has_the_published_epoch_and_list(void **state)
{
    (void)state;
    uint64_t written = 0;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct model model = { .random = seed };
        uint64_t seq = 5;
        begin(&model.scene);
        for (int i = 0; i < 150; i++) {
            const kvb_epoch epoch = kvb_stream_epoch(model.scene.world.stream);
            model.scene.now_ns += kvb_random_below(&model.random, period_ns);
            kvb_random_below(&model.random, 4) == 0 ? publish_some(&model, &seq)
                                                    : make_some(&model);
            assert_int_equal(model.disk.is_there, model.scene.policy.is_on_disk);
            if (model.disk.is_there) {
                const kvb_epoch after = kvb_stream_epoch(model.scene.world.stream);
                assert_memory_equal(&model.disk.epoch, &after, sizeof after);
                assert_int_equal(model.disk.repeats, model.repeats);
                written += memcmp(&epoch, &after, sizeof after) == 0;
            }
        }
        end(&model.scene);
    }
    assert_true(written > 1000);
}

/* ---- Tokens, which follow the state ---- */

/* The state is written, and the tokens are not. */
static void begin_tokens(struct scene *scene)
{
    struct kvb_checkpoint_progress made;

    begin(scene);
    assert_ok(kvb_stream_show(scene->world.stream, 1));
    live(&scene->world, 5, first_incarnation, 6);
    assert_ok(begin_making(scene));
    assert_ok(make(scene, all_items, &made));
    assert_true(made.is_first && !made.is_last);
    assert_int_equal(scene->maker.stage, KVB_CHECKPOINT_MAKING);
    assert_false(scene->policy.is_on_disk);
    assert_true(scene->policy.is_being_written);
}

static void what_comes_while_tokens_are_written_is_of_the_next_checkpoint(void **state)
{
    (void)state;
    struct kvb_checkpoint_progress made;
    struct scene scene;

    begin_tokens(&scene);
    live(&scene.world, 6, first_incarnation, 7);
    assert_ok(make(&scene, all_items, &made));
    assert_true(made.is_last);
    kvb_checkpoint_written(&scene.maker, KVB_OK);
    assert_true(scene.policy.is_on_disk);
    assert_false(scene.policy.is_being_written);
    scene.now_ns += period_ns;
    assert_ok(begin_making(&scene));
    end(&scene);
}

static void a_checkpoint_given_up_within_its_tokens_is_made_again(void **state)
{
    (void)state;
    struct scene scene;

    begin_tokens(&scene);
    kvb_checkpoint_give_up(&scene.maker, scene.now_ns);
    assert_false(scene.policy.is_on_disk);
    assert_false(scene.policy.is_being_written);
    scene.now_ns += s;
    assert_ok(begin_making(&scene));
    end(&scene);
}

SUITE(checkpoint_policy)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_while_tokens_are_written_is_of_the_next_checkpoint),
        cmocka_unit_test(a_checkpoint_given_up_within_its_tokens_is_made_again),
        cmocka_unit_test(a_checkpoint_is_made_when_it_is_due_and_the_stream_has_changed),
        cmocka_unit_test(another_epoch_is_a_change),
        cmocka_unit_test(a_base_that_was_found_is_a_change),
        cmocka_unit_test(a_stream_that_cannot_be_saved_waits_a_period),
        cmocka_unit_test(a_stream_that_is_cleared_meanwhile_begins_again_in_a_second),
        cmocka_unit_test(a_checkpoint_that_could_not_be_written_is_made_again_in_a_period),
        cmocka_unit_test(a_restored_checkpoint_is_on_the_disk),
        cmocka_unit_test(the_file_on_the_disk_has_the_published_epoch_and_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
