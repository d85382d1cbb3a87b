#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "stream_world.h"

#include <string.h>

struct kvb_stream_options stream_world_options(bool has_replay)
{
    return (struct kvb_stream_options){
        .formats = 1U << KVB_FORMAT_JSON,
        .worker_id = 7,
        .dp_rank = 1,
        .model = "m",
        .block_size = 1,
        .speculative_drop = KVB_DROP_DETECT,
        .has_replay = has_replay,
        .max_buffered_bytes = 1 << 20,
        .seed = "0123456789abcde",
        .mirror = { .max_blocks = 4096, .tiers = 1U << KVB_TIER_DEVICE },
    };
}

void stream_world_begin(struct stream_world *world, bool has_replay)
{
    stream_world_begin_holding(world, has_replay, 1 << 20);
}

void stream_world_begin_holding(
    struct stream_world *world, bool has_replay, size_t max_buffered_bytes)
{
    struct kvb_stream_options options = stream_world_options(has_replay);

    options.max_buffered_bytes = max_buffered_bytes;
    *world = (struct stream_world){ .now_ns = KVB_NS_PER_S };
    assert_ok(kvb_stream_new(&options, &world->stream));
}

void stream_world_end(struct stream_world *world)
{
    kvb_stream_free(world->stream);
    kvb_stream_output_done(&world->output);
    kvb_event_batch_done(&world->batch);
}

bool router_holds(const struct stream_world *world, kvb_block_hash block)
{
    for (size_t i = 0; i < world->held_count; i++) {
        if (world->held[i].value == block.value) {
            return true;
        }
    }
    return false;
}

static void router_adds(struct stream_world *world, kvb_block_hash block)
{
    assert_false(router_holds(world, block)); /* only changes are published */
    assert_true(world->held_count < sizeof world->held / sizeof world->held[0]);
    world->held[world->held_count++] = block;
}

static void router_drops(struct stream_world *world, kvb_block_hash block)
{
    for (size_t i = 0; i < world->held_count; i++) {
        if (world->held[i].value == block.value) {
            world->held[i] = world->held[--world->held_count];
            return;
        }
    }
    fail_msg("a removal of a block that is not listed");
}

static void router_reads(struct stream_world *world)
{
    const struct kvb_router_batch *events = &world->output.events;

    world->saw_cleared = false;
    for (size_t i = 0; i < events->event_count; i++) {
        const struct kvb_router_event *event = &events->events[i];
        const bool is_cleared = event->kind == KVB_ROUTER_CLEARED;
        assert_true(event->event_id > world->last_id);
        assert_true(is_cleared || world->last_id == 0 || event->event_id == world->last_id + 1);
        world->last_id = event->event_id;
        world->saw_cleared |= is_cleared;
        world->held_count = is_cleared ? 0 : world->held_count;
        if (event->tier == KVB_LIST_WINDOW) {
            continue; /* the window list is a list of its own */
        }
        for (size_t b = event->block_at; b < event->block_at + event->block_count; b++) {
            if (event->kind == KVB_ROUTER_STORED) {
                router_adds(world, events->blocks[b]);
            } else {
                router_drops(world, events->blocks[b]);
            }
        }
    }
}

static void step(struct stream_world *world, const struct kvb_stream_input *input)
{
    assert_ok(kvb_stream_step(world->stream, input, &world->output));
    router_reads(world);
}

void give_batch(
    struct stream_world *world, enum kvb_stream_input_kind kind, uint64_t seq, uint64_t salt,
    bool is_poison)
{
    const struct kvb_stream_input input = { .kind = kind,
                                            .now_ns = world->now_ns,
                                            .wall_us = 1000 + world->now_ns / 1000,
                                            .seq = seq,
                                            .fingerprint = { .low = seq, .high = salt },
                                            .batch = is_poison ? NULL : &world->batch };
    step(world, &input);
    kvb_event_batch_reset(&world->batch);
}

void give(struct stream_world *world, enum kvb_stream_input_kind kind)
{
    const struct kvb_stream_input input = { .kind = kind,
                                            .now_ns = world->now_ns,
                                            .wall_us = 1000 + world->now_ns / 1000 };
    step(world, &input);
}

void pass_ms(struct stream_world *world, uint64_t ms)
{
    for (uint64_t i = 0; i < ms; i += 50) {
        world->now_ns += 50 * KVB_NS_PER_MS;
        give(world, KVB_INPUT_TICK);
    }
}

uint64_t start_wanted_replay(struct stream_world *world)
{
    uint64_t from = 0;

    assert_true(kvb_stream_wants_replay(world->stream, world->now_ns, &from));
    kvb_stream_replay_started(world->stream, world->now_ns);
    return from;
}

void end_replay(struct stream_world *world, uint64_t salt)
{
    uint64_t from = 0;

    give(world, KVB_INPUT_REPLAY_END);
    if (!kvb_stream_wants_replay(world->stream, world->now_ns, &from)) {
        return;
    }
    kvb_stream_replay_started(world->stream, world->now_ns);
    give_batch(world, KVB_INPUT_REPLAY, from, salt, false);
    give(world, KVB_INPUT_REPLAY_END);
}

void find_live(struct stream_world *world, uint64_t seq, uint64_t salt)
{
    pass_ms(world, 50);
    assert_int_equal(start_wanted_replay(world), seq);
    give_batch(world, KVB_INPUT_REPLAY, seq, salt, false);
    give(world, KVB_INPUT_REPLAY_END);
}

void assert_state(
    const struct stream_world *world, enum kvb_stream_state state, enum kvb_stream_reason reason)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(world->stream, &beat);
    assert_string_equal(kvb_stream_state_name(beat.state), kvb_stream_state_name(state));
    assert_string_equal(kvb_stream_reason_name(beat.reason), kvb_stream_reason_name(reason));
}

/* A batch that stores one root block with this token and engine hash 900 + token. */
static void stored_root(struct stream_world *world, uint32_t token)
{
    add_stored(&world->batch, NULL, &(uint64_t){ 900 + token }, &token, 1);
}

kvb_block_hash root(uint32_t token)
{
    return name_of(&token, 1);
}

void live(struct stream_world *world, uint64_t seq, uint64_t life, uint32_t token)
{
    stored_root(world, token);
    give_batch(world, KVB_INPUT_LIVE, seq, life, false);
}

void replayed(struct stream_world *world, uint64_t seq, uint64_t life, uint32_t token)
{
    stored_root(world, token);
    give_batch(world, KVB_INPUT_REPLAY, seq, life, false);
}

void begin_exact(struct stream_world *world, uint64_t count)
{
    stream_world_begin(world, true);
    give(world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(world), 0);
    for (uint64_t seq = 0; seq < count; seq++) {
        replayed(world, seq, first_incarnation, (uint32_t)seq + 1);
    }
    end_replay(world, first_incarnation);
    /* the newest batch also comes live, which shows that the replay is this engine's */
    if (count > 0) {
        assert_state(world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
        live(world, count - 1, first_incarnation, (uint32_t)count);
        assert_state(world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    }
    assert_int_equal(world->held_count, count);
}
