#include "kvb_test.h"

#include "batch_maker.h"
#include "checkpoint_bytes.h"
#include "stream_world.h"

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

static void nothing(struct sample *sample)
{
    sample->len = 0;
}

static void half_a_header(struct sample *sample)
{
    sample->len = header / 2;
}

static void cut_in_the_entries(struct sample *sample)
{
    sample->len = head_end + header + 3 * record + 11;
}

static void cut_between_sections(struct sample *sample)
{
    sample->len = sample->state_at;
}

static void cut_at_the_last_byte(struct sample *sample)
{
    sample->len--;
}

static void one_byte_more(struct sample *sample)
{
    sample->bytes = realloc(sample->bytes, sample->len + 1);
    sample->bytes[sample->len++] = 0;
}

static void twice_in_a_row(struct sample *sample)
{
    sample->bytes = realloc(sample->bytes, 2 * sample->len);
    memcpy(sample->bytes + sample->len, sample->bytes, sample->len);
    sample->len *= 2;
}

/* As some file systems leave a file after a power failure. */
static void zeros_at_the_end(struct sample *sample)
{
    const size_t left = sample->len / 4 * 3; /* inside the state */

    memset(sample->bytes + left, 0, sample->len - left);
}

static void all_zeros(struct sample *sample)
{
    memset(sample->bytes, 0, sample->len);
}

static void another_kind_of_file(struct sample *sample)
{
    memcpy(sample->bytes, "SQLite format 3", header);
}

static void flip_in_the_head(struct sample *sample)
{
    sample->bytes[header + 3] ^= 0x10;
}

static void flip_in_an_entry(struct sample *sample)
{
    sample->bytes[head_end + header + 2 * record + 40] ^= 1;
}

static void flip_in_the_state(struct sample *sample)
{
    sample->bytes[sample->state_at + header] ^= 1; /* the field last_seq */
}

static void flip_in_a_hash(struct sample *sample)
{
    sample->bytes[sample->len - 1] ^= 0x80;
}

static void without_its_entries(struct sample *sample)
{
    memmove(
        sample->bytes + head_end, sample->bytes + sample->state_at, sample->len - sample->state_at);
    sample->len -= sample->state_at - head_end;
}

static void entries_of_another_save(struct sample *sample)
{
    struct sample older = make_sample(0);

    /* the length is the same, so only the chain of hashes shows it */
    older.bytes[head_end + header] ^= 0;
    memcpy(sample->bytes + head_end, older.bytes + head_end, header + record);
    free(older.bytes);
}

static void an_older_format(struct sample *sample)
{
    sample->bytes[4] = 0;
}

static void a_newer_format(struct sample *sample)
{
    sample->bytes[4] = kvb_checkpoint_format + 1;
}

struct kind {
    const char *name;
    void (*spoil)(struct sample *sample);
    enum kvb_checkpoint_rejection cause;
};

/* clang-format off */
static const struct kind kinds[] = {
    { "nothing", nothing, KVB_CHECKPOINT_TORN },
    { "half a header", half_a_header, KVB_CHECKPOINT_TORN },
    { "cut in the entries", cut_in_the_entries, KVB_CHECKPOINT_TORN },
    { "cut between sections", cut_between_sections, KVB_CHECKPOINT_TORN },
    { "cut at the last byte", cut_at_the_last_byte, KVB_CHECKPOINT_TORN },
    { "one byte more", one_byte_more, KVB_CHECKPOINT_TORN },
    { "twice in a row", twice_in_a_row, KVB_CHECKPOINT_TORN },
    { "zeros at the end", zeros_at_the_end, KVB_CHECKPOINT_CORRUPT },
    { "all zeros", all_zeros, KVB_CHECKPOINT_CORRUPT },
    { "another kind of file", another_kind_of_file, KVB_CHECKPOINT_CORRUPT },
    { "flip in the head", flip_in_the_head, KVB_CHECKPOINT_CORRUPT },
    { "flip in an entry", flip_in_an_entry, KVB_CHECKPOINT_CORRUPT },
    { "flip in the state", flip_in_the_state, KVB_CHECKPOINT_CORRUPT },
    { "flip in a hash", flip_in_a_hash, KVB_CHECKPOINT_CORRUPT },
    { "without its entries", without_its_entries, KVB_CHECKPOINT_CORRUPT },
    { "entries of another save", entries_of_another_save, KVB_CHECKPOINT_CORRUPT },
    { "an older format", an_older_format, KVB_CHECKPOINT_FORMAT },
    { "a newer format", a_newer_format, KVB_CHECKPOINT_FORMAT },
};
/* clang-format on */

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
        kinds[i].spoil(&sample);
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

static void other_worker(struct kvb_stream_options *options)
{
    options->worker_id++;
}

static void other_rank(struct kvb_stream_options *options)
{
    options->dp_rank++;
}

static void other_model(struct kvb_stream_options *options)
{
    options->model[0] = 'x';
}

static void other_block_size(struct kvb_stream_options *options)
{
    options->block_size = 16;
}

static void other_total(struct kvb_stream_options *options)
{
    options->total_blocks = 100;
}

static void other_hashes(struct kvb_stream_options *options)
{
    options->mirror.hashes = KVB_HASHES_ENGINE;
}

static void other_copies(struct kvb_stream_options *options)
{
    options->mirror.copies = KVB_COPIES_COUNTED;
}

static void other_formats(struct kvb_stream_options *options)
{
    options->formats = 1U << KVB_FORMAT_PROTOBUF;
}

static void other_tiers(struct kvb_stream_options *options)
{
    options->mirror.tiers = 3;
}

static void other_lora(struct kvb_stream_options *options)
{
    options->mirror.lora_name = "adapter";
}

static void other_component(struct kvb_stream_options *options)
{
    options->places[KVB_PLACE_COMPONENT] = 1;
}

static void other_events_and_topic(struct kvb_stream_options *options)
{
    options->places[KVB_PLACE_EVENTS] = 1;
    options->places[KVB_PLACE_TOPIC] = 1;
}

static void other_unknown_medium(struct kvb_stream_options *options)
{
    options->places[KVB_PLACE_UNKNOWN_MEDIUM] = 1;
}

static void other_reannounce(struct kvb_stream_options *options)
{
    options->places[KVB_PLACE_REANNOUNCE] = 1;
}

static void a_checkpoint_of_another_configuration_is_foreign_and_names_the_keys(void **state)
{
    (void)state;
    static const struct {
        void (*change)(struct kvb_stream_options *);
        const char *keys;
    } rows[] = {
        { other_worker, "workers.id" },
        { other_rank, "dp_rank" },
        { other_model, "workers.model" },
        { other_block_size, "workers.block_size" },
        { other_total, "workers.total_blocks" },
        { other_hashes, "hashes" },
        { other_formats, "publish.formats" },
        { other_tiers, "tiers" },
        { other_copies, "publish.copies" },
        { other_lora, "workers.lora" },
        { other_component, "publish.component" },
        { other_events_and_topic, "workers.events, workers.topic" },
        { other_unknown_medium, "workers.unknown_medium" },
        { other_reannounce, "publish.reannounce" },
    };
    struct sample sample = make_sample(0);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvb_stream_options options = stream_world_options(true);
        struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_FLAW_COUNT };
        struct kvb_stream *stream = NULL;
        bool needs_epoch = false;
        rows[i].change(&options);
        assert_int_equal(refused(&sample, &options), KVB_CHECKPOINT_FOREIGN);
        assert_ok(kvb_stream_new(&options, &stream));
        assert_int_equal(
            restore_or_say_why(stream, sample.bytes, sample.len, &needs_epoch, &refusal),
            KVB_BAD_INPUT);
        assert_string_equal(refusal.keys.text, rows[i].keys);
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
