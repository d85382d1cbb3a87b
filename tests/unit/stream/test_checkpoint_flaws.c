#include "kvb_test.h"

#include "batch_maker.h"
#include "checkpoint_bytes.h"
#include "core/own.h"
#include "stream_world.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Checkpoints with every kind of flaw, which must be rejected. */

enum { header = 16, hash = 16, record = 64, keys = 17 * 8, head_end = header + keys + hash };

struct sample {
    uint8_t *bytes; /* owned */
    size_t len;
    size_t state_at; /* offset of the last section */
};

static size_t section_end(const struct sample *sample, size_t at)
{
    uint32_t payload = 0;

    memcpy(&payload, sample->bytes + at + 12, sizeof payload);
    return at + header + payload + hash;
}

/* 20 blocks, with some free entries and some doubtful ones. */
static struct sample make_sample(uint64_t extra)
{
    struct stream_world world;
    struct kvb_buf bytes;
    struct sample sample = { 0 };

    begin_exact(&world, 20 + extra);
    for (uint64_t i = 0; i < 6; i++) {
        add_stored(&world.batch, NULL, &(uint64_t){ 901 + i }, &(uint32_t){ 1 + (uint32_t)i }, 1);
        add_removed(&world.batch, &(uint64_t){ 901 + i }, 1);
        add_removed(&world.batch, &(uint64_t){ 910 + i }, 1);
        give_batch(&world, KVB_INPUT_LIVE, 20 + extra + i, first_incarnation, false);
    }
    save_whole(world.stream, &bytes);
    sample.bytes = bytes.data;
    sample.len = bytes.len;
    sample.state_at = section_end(&sample, head_end);
    assert_int_equal(section_end(&sample, sample.state_at), sample.len);
    stream_world_end(&world);
    return sample;
}

/* ---- Kinds of damage ---- */

enum damage {
    cut,     /* the file ends at this place */
    zero,    /* it is zero from this place on */
    flip,    /* a bit is another one there */
    write,   /* this value stands there */
    foreign, /* bytes of another file stand there */
    older,   /* a record of an older save stands there */
    without, /* the section there is missing */
    twice    /* the file, so many bytes of it, follows once more */
};

/* Places: from the beginning, or from the beginning of the last section, or from the end. */
enum base { of_file, of_state, of_end };

/* clang-format off */
static const struct kind {
    const char *name;
    enum damage damage;
    enum base base;
    long at;
    uint8_t value;
    enum kvb_checkpoint_rejection cause;
} kinds[] = {
    { "nothing",                 cut,     of_file, 0, 0, KVB_CHECKPOINT_TORN },
    { "half a header",           cut,     of_file, header / 2, 0, KVB_CHECKPOINT_TORN },
    { "cut in the entries",      cut,     of_file, head_end + header + 3 * record + 11, 0, KVB_CHECKPOINT_TORN },
    { "cut between sections",    cut,     of_state, 0, 0, KVB_CHECKPOINT_TORN },
    { "cut at the last byte",    cut,     of_end, -1, 0, KVB_CHECKPOINT_TORN },
    { "one byte more",           twice,   of_file, 1, 0, KVB_CHECKPOINT_TORN },
    { "twice in a row",          twice,   of_end, 0, 0, KVB_CHECKPOINT_TORN },
    /* as some file systems leave a file after a power failure */
    { "zeros at the end",        zero,    of_state, 100, 0, KVB_CHECKPOINT_CORRUPT },
    { "all zeros",               zero,    of_file, 0, 0, KVB_CHECKPOINT_CORRUPT },
    { "another kind of file",    foreign,   of_file, 0, 0, KVB_CHECKPOINT_CORRUPT },
    { "flip in the head",        flip,    of_file, header + 3, 0x10, KVB_CHECKPOINT_CORRUPT },
    { "flip in an entry",        flip,    of_file, head_end + header + 2 * record + 40, 1, KVB_CHECKPOINT_CORRUPT },
    { "flip in the state",       flip,    of_state, header, 1, KVB_CHECKPOINT_CORRUPT },
    { "flip in a hash",          flip,    of_end, -1, 0x80, KVB_CHECKPOINT_CORRUPT },
    { "without its entries",     without, of_file, head_end, 0, KVB_CHECKPOINT_CORRUPT },
    /* the length is the same, so only the chain of hashes shows it */
    { "entries of another save", older,   of_file, head_end, 0, KVB_CHECKPOINT_CORRUPT },
    { "an older format",         write,   of_file, 4, 0, KVB_CHECKPOINT_FORMAT },
    { "a newer format",          write,   of_file, 4, kvb_checkpoint_format + 1, KVB_CHECKPOINT_FORMAT },
};
/* clang-format on */

static void append_again(struct sample *sample, size_t bytes)
{
    sample->bytes = realloc(sample->bytes, sample->len + bytes);
    memcpy(sample->bytes + sample->len, sample->bytes, bytes);
    sample->len += bytes;
}

static void write_older(struct sample *sample, size_t at)
{
    const struct sample before = make_sample(0);

    memcpy(sample->bytes + at, before.bytes + at, header + record);
    free(before.bytes);
}

static void spoil(struct sample *sample, const struct kind *kind)
{
    const size_t from = kind->base == of_file    ? 0
                        : kind->base == of_state ? sample->state_at
                                                 : sample->len;
    const size_t at = from + (size_t)kind->at;

    switch (kind->damage) {
    case cut:
        sample->len = at;
        break;
    case zero:
        memset(sample->bytes + at, 0, sample->len - at);
        break;
    case flip:
        sample->bytes[at] ^= kind->value;
        break;
    case write:
        sample->bytes[at] = kind->value;
        break;
    case foreign:
        memcpy(sample->bytes + at, "SQLite format 3", header);
        break;
    case older:
        write_older(sample, at);
        break;
    case without:
        memmove(
            sample->bytes + at, sample->bytes + sample->state_at, sample->len - sample->state_at);
        sample->len -= sample->state_at - at;
        break;
    case twice:
        append_again(sample, at);
        break;
    }
}

static void assert_fresh(const struct kvb_stream *stream, const struct kvb_stream_options *options)
{
    struct kvb_stream *fresh = NULL;
    struct kvb_heartbeat one;
    struct kvb_heartbeat other;
    uint64_t seq = 0;

    assert_ok(kvb_stream_new(options, &fresh));
    memset(&one, 0, sizeof one);
    memset(&other, 0, sizeof other);
    kvb_stream_heartbeat(stream, &one);
    kvb_stream_heartbeat(fresh, &other);
    assert_memory_equal(&one, &other, sizeof one);
    assert_false(kvb_stream_last_seq(stream, &seq));
    kvb_stream_free(fresh);
}

static enum kvb_checkpoint_rejection
refused(const struct sample *sample, const struct kvb_stream_options *options)
{
    struct kvb_stream *stream = NULL;
    bool needs_epoch = false;
    enum kvb_checkpoint_rejection cause = KVB_CHECKPOINT_FLAW_COUNT;

    assert_ok(kvb_stream_new(options, &stream));
    assert_int_equal(
        restore_from(stream, sample->bytes, sample->len, &needs_epoch, &cause), KVB_BAD_INPUT);
    assert_fresh(stream, options);
    kvb_stream_free(stream);
    return cause;
}

static void each_kind_is_refused_with_its_reason(void **state)
{
    (void)state;
    const struct kvb_stream_options options = stream_world_options(true);

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct sample sample = make_sample(3);
        spoil(&sample, &kinds[i]);
        const enum kvb_checkpoint_rejection cause = refused(&sample, &options);
        print_message("%s: %s\n", kinds[i].name, kvb_checkpoint_rejection_name(cause));
        assert_int_equal(cause, kinds[i].cause);
        free(sample.bytes);
    }
}

static void no_flipped_bit_and_no_truncation_passes(void **state)
{
    (void)state;
    const struct kvb_stream_options options = stream_world_options(true);
    struct sample sample = make_sample(0);
    const size_t len = sample.len;

    for (size_t at = 0; at < len; at++) {
        sample.bytes[at] ^= (uint8_t)(1U << (at % 8));
        (void)refused(&sample, &options);
        sample.bytes[at] ^= (uint8_t)(1U << (at % 8));
        sample.len = at;
        (void)refused(&sample, &options);
        sample.len = len;
    }
    free(sample.bytes);
}

/* ---- Of another stream or configuration ---- */

#define AT(member) offsetof(struct kvb_stream_options, member)

static void a_checkpoint_of_another_configuration_is_foreign_and_names_the_keys(void **state)
{
    (void)state;
    /* The low byte of each of these is another one. */
    static const struct {
        size_t at, and_at;
        const char *keys;
    } rows[] = {
        { AT(worker_id), 0, "workers.id" },
        { AT(dp_rank), 0, "dp_rank" },
        { AT(model), 0, "workers.model" },
        { AT(block_size), 0, "workers.block_size" },
        { AT(total_blocks), 0, "workers.total_blocks" },
        { AT(mirror.hashes), 0, "hashes" },
        { AT(formats), 0, "publish.formats" },
        { AT(mirror.tiers), 0, "tiers" },
        { AT(mirror.copies), 0, "publish.copies" },
        { AT(places[KVB_PLACE_COMPONENT]), 0, "publish.component" },
        { AT(places[KVB_PLACE_EVENTS]), AT(places[KVB_PLACE_TOPIC]),
          "workers.events, workers.topic" },
        { AT(places[KVB_PLACE_UNKNOWN_MEDIUM]), 0, "workers.unknown_medium" },
        { AT(places[KVB_PLACE_REANNOUNCE]), 0, "publish.reannounce" },
    };
    struct sample sample = make_sample(0);

    for (size_t i = 0; i <= KVB_COUNT_OF(rows); i++) { /* one more: a name */
        struct kvb_stream_options options = stream_world_options(true);
        struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_FLAW_COUNT };
        struct kvb_stream *stream = NULL;
        bool needs_epoch = false;
        if (i < KVB_COUNT_OF(rows)) {
            ((uint8_t *)&options)[rows[i].at] ^= 1;
            ((uint8_t *)&options)[rows[i].and_at] ^= rows[i].and_at > 0;
        } else {
            options.mirror.lora_name = "adapter";
        }
        assert_int_equal(refused(&sample, &options), KVB_CHECKPOINT_FOREIGN);
        assert_ok(kvb_stream_new(&options, &stream));
        assert_int_equal(
            restore_or_say_why(stream, sample.bytes, sample.len, &needs_epoch, &refusal),
            KVB_BAD_INPUT);
        assert_string_equal(
            refusal.keys.text, i < KVB_COUNT_OF(rows) ? rows[i].keys : "workers.lora");
        kvb_stream_free(stream);
    }
    free(sample.bytes);
}

static void more_blocks_than_the_stream_may_hold_are_refused(void **state)
{
    (void)state;
    struct kvb_stream_options options = stream_world_options(true);
    struct sample sample = make_sample(0);

    options.mirror.max_blocks = 10;
    assert_int_equal(refused(&sample, &options), KVB_CHECKPOINT_TOO_LARGE);
    free(sample.bytes);
}

SUITE(checkpoint_flaws)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_is_refused_with_its_reason),
        cmocka_unit_test(no_flipped_bit_and_no_truncation_passes),
        cmocka_unit_test(a_checkpoint_of_another_configuration_is_foreign_and_names_the_keys),
        cmocka_unit_test(more_blocks_than_the_stream_may_hold_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
