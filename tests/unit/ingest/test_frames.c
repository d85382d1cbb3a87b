#include "kvb_test.h"

#include "core/own.h"
#include "ingest/zmq/frames.h"
#include "wire/vector_file.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t seven[] = { 0, 0, 0, 0, 0, 0, 0, 7 };
static const uint8_t all_ones[] = { 255, 255, 255, 255, 255, 255, 255, 255 };
static const uint8_t payload[] = { 0x93, 1, 2 };

/* A letter for each frame:
 *
 *     -  empty       7  the number 7        p  a payload
 *     t  a topic     *  the largest number  i  an id
 *     s  a number of three bytes */
static kvb_span frame_of(char letter)
{
    switch (letter) {
    case '7':
        return (kvb_span){ seven, sizeof seven };
    case '*':
        return (kvb_span){ all_ones, sizeof all_ones };
    case 's':
        return (kvb_span){ seven, 3 };
    case 'p':
        return (kvb_span){ payload, sizeof payload };
    case 't':
        return (kvb_span){ (const uint8_t *)"kv\0x", 4 };
    case 'i':
        return (kvb_span){ (const uint8_t *)"id", 2 };
    default:
        assert_int_equal(letter, '-');
        return (kvb_span){ NULL, 0 };
    }
}

static struct kvb_frames frames_of(const char *letters)
{
    struct kvb_frames frames = { .count = 0 };

    for (; letters[frames.count] != '\0'; frames.count++) {
        frames.frame[frames.count] = frame_of(letters[frames.count]);
    }
    return frames;
}

static void a_live_message_has_topic_seq_and_payload(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "7p", "t7p-", "tsp", "t-p" };
    struct kvb_frames frames = frames_of("t7p");
    uint64_t seq = 0;
    kvb_span got = { 0 };

    assert_ok(kvb_frames_read_live(&frames, &seq, &got));
    assert_int_equal(seq, 7);
    assert_ptr_equal(got.data, payload);
    got.data = NULL;
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        frames = frames_of(bad[i]);
        assert_int_equal(kvb_frames_read_live(&frames, &seq, &got), KVB_BAD_INPUT);
        assert_null(got.data);
    }
}

static void every_layout_of_a_replayed_batch_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *frames;
        bool has_topic;
    } rows[] = {
        { "-7p", false },  /* vLLM before 0.26, SGLang, Mooncake */
        { "-t7p", true },  /* vLLM 0.26 and later, TensorRT-LLM */
        { "--7p", true },  /* the same with an empty topic */
        { "i-7p", false }, /* the reply to a request with an id */
        { "7p", false },   { "t7p", true },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const struct kvb_frames frames = frames_of(rows[i].frames);
        enum kvb_replay_frame kind = KVB_REPLAY_END;
        uint64_t seq = 0;
        kvb_span got = { 0 };
        assert_ok(kvb_frames_read_replay(&frames, &kind, &seq, &got));
        assert_int_equal(kind, KVB_REPLAY_BATCH);
        assert_int_equal(seq, 7);
        assert_ptr_equal(got.data, payload);
        assert_int_equal(kvb_frames_has_topic(&frames), rows[i].has_topic);
    }
}

static bool has_topic(const char *letters)
{
    const struct kvb_frames frames = frames_of(letters);

    return kvb_frames_has_topic(&frames);
}

static void every_form_of_the_end_marker_is_read(void **state)
{
    (void)state;
    /* "--*" is Mooncake's; a batch has a payload */
    static const char *const ends[] = { "-*-", "--*-", "-t*-", "--*",  "i-*", "-*p",
                                        "-7-", "-7*",  "i-7*", "i-**", "-t*" };

    for (size_t i = 0; i < KVB_COUNT_OF(ends); i++) {
        const struct kvb_frames frames = frames_of(ends[i]);
        enum kvb_replay_frame kind = KVB_REPLAY_BATCH;
        uint64_t seq = 0;
        kvb_span got = { 0 };
        assert_ok(kvb_frames_read_replay(&frames, &kind, &seq, &got));
        assert_int_equal(kind, KVB_REPLAY_END);
    }
    assert_true(has_topic("--*-") && !has_topic("-*-") && !has_topic("--*"));
}

static void other_replies_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "-", "-p", "7", "-tp", "-7tp", "-sp" };
    struct kvb_frames frames = frames_of("-t7p");
    enum kvb_replay_frame kind = KVB_REPLAY_END;
    uint64_t seq = 0;
    kvb_span got = { 0 };

    frames.count = kvb_max_frames + 1;
    assert_int_equal(kvb_frames_read_replay(&frames, &kind, &seq, &got), KVB_BAD_INPUT);
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        frames = frames_of(bad[i]);
        assert_int_equal(kvb_frames_read_replay(&frames, &kind, &seq, &got), KVB_BAD_INPUT);
    }
}

static void a_seq_is_written_big_endian(void **state)
{
    (void)state;
    const uint8_t want[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    uint8_t got[8];

    kvb_frames_write_seq(UINT64_C(0x0102030405060708), got);
    assert_memory_equal(got, want, 8);
}

static void a_request_has_the_form_of_the_publisher(void **state)
{
    (void)state;
    uint8_t seq[8];
    struct kvb_frames frames;

    kvb_frames_of_request(KVB_REQUEST_PLAIN, 7, seq, &frames);
    assert_int_equal(frames.count, 2);
    assert_int_equal(frames.frame[0].len, 0);
    assert_memory_equal(frames.frame[1].data, seven, 8);
    kvb_frames_of_request(KVB_REQUEST_MOONCAKE, 7, seq, &frames);
    assert_int_equal(frames.count, 3);
    assert_true(frames.frame[0].len > 0);
    assert_int_equal(frames.frame[1].len, 0);
    assert_int_equal(frames.frame[2].len, 8);
    assert_memory_equal(frames.frame[2].data, seven, 8);
}

/* ---- What a vLLM 0.32 replied, recorded ---- */

/* One line: frames in hex with a blank between them, "-" for an empty frame. */
struct recorded {
    struct kvb_frames frames;
    uint8_t *bytes[kvb_max_frames]; /* owned */
};

static void recorded_read(const char *line, struct recorded *out)
{
    *out = (struct recorded){ .frames.count = 0 };
    for (const char *at = line;; at++) {
        const size_t i = out->frames.count;
        assert_true(i < kvb_max_frames);
        size_t len = 0;
        out->bytes[i] = bytes_of_hex(at, &len);
        out->frames.frame[i] = (kvb_span){ out->bytes[i], len };
        out->frames.count++;
        at += len > 0 ? 2 * len : 1;
        if (*at != ' ') {
            assert_true(*at == '\n' || *at == ']');
            return;
        }
    }
}

static void recorded_done(struct recorded *recorded)
{
    for (size_t i = 0; i < recorded->frames.count; i++) {
        free(recorded->bytes[i]);
    }
}

static const char *line_after(const char *line)
{
    return strchr(line, '\n') + 1;
}

/* The request that the bridge sends equals the one sent to the engine in the recording. */
static void check_request(const char *line, uint64_t first_seq)
{
    struct recorded sent;
    struct kvb_frames ours;
    uint8_t seq[8];

    recorded_read(strchr(line, '[') + 1, &sent);
    kvb_frames_of_request(KVB_REQUEST_PLAIN, first_seq, seq, &ours);
    assert_int_equal(ours.count, sent.frames.count);
    for (size_t i = 0; i < ours.count; i++) {
        assert_int_equal(ours.frame[i].len, sent.frames.frame[i].len);
        if (ours.frame[i].len > 0) {
            assert_memory_equal(ours.frame[i].data, sent.frames.frame[i].data, ours.frame[i].len);
        }
    }
    recorded_done(&sent);
}

/* The batch in a reply equals the live message on this line. */
static void check_batch(const char *reply_line, const char *live_line, uint64_t wanted_seq)
{
    struct recorded reply;
    struct recorded live;
    enum kvb_replay_frame kind = KVB_REPLAY_END;
    uint64_t seq = 0;
    uint64_t live_seq = 0;
    kvb_span got = { 0 };
    kvb_span sent = { 0 };

    recorded_read(reply_line, &reply);
    recorded_read(live_line, &live);
    assert_ok(kvb_frames_read_replay(&reply.frames, &kind, &seq, &got));
    assert_ok(kvb_frames_read_live(&live.frames, &live_seq, &sent));
    assert_int_equal(kind, KVB_REPLAY_BATCH);
    assert_int_equal(seq, wanted_seq);
    assert_int_equal(live_seq, wanted_seq);
    assert_int_equal(got.len, sent.len);
    assert_memory_equal(got.data, sent.data, sent.len);
    recorded_done(&reply);
    recorded_done(&live);
}

static void check_end(const char *reply_line)
{
    struct recorded reply;
    enum kvb_replay_frame kind = KVB_REPLAY_BATCH;
    uint64_t seq = 0;
    kvb_span got = { 0 };

    recorded_read(reply_line, &reply);
    assert_ok(kvb_frames_read_replay(&reply.frames, &kind, &seq, &got));
    assert_int_equal(kind, KVB_REPLAY_END);
    recorded_done(&reply);
}

/* A request as named in the recording, and the replies to it. */
struct exchange {
    const char *name;
    uint64_t first_seq;
    uint64_t batches;
    bool is_ours; /* sent in the form that the bridge uses */
    bool has_end;
};

static void check_exchange(const char *replays, const char *live, const struct exchange *exchange)
{
    const char *named = strstr(replays, exchange->name);
    assert_non_null(named);
    while (named > replays && named[-1] != '\n') {
        named--; /* back to the beginning of the line */
    }
    if (exchange->is_ours) {
        check_request(named, exchange->first_seq);
    }
    for (uint64_t seq = 0; seq < exchange->first_seq && exchange->batches > 0; seq++) {
        live = line_after(live);
    }
    const char *reply = line_after(named);
    for (uint64_t i = 0; i < exchange->batches; i++) {
        check_batch(reply, live, exchange->first_seq + i);
        reply = line_after(reply);
        live = line_after(live);
    }
    if (exchange->has_end) {
        check_end(reply);
        reply = line_after(reply);
    }
    assert_int_equal(*reply, '#'); /* "# N replies" is the only other kind of line */
}

static void recorded_replies_hold_the_live_batches_and_end(void **state)
{
    (void)state;
    /* clang-format off */
    static const struct exchange exchanges[] = {
        { "(start 0)\n",       0,          173, true,  true },
        { "(start 170)\n",     170,        3,   true,  true },
        { "(REQ start 0)\n",   0,          1,   false, false },
        { "(beyond tail)\n",   1000000000, 0,   true,  true },
        { "(no delimiter)\n",  0,          0,   false, false },
        { "(id+delimiter)\n",  0,          0,   false, false },
    };
    /* clang-format on */
    char *replays = read_text_file("vllm-0.32/replay.hex");
    char *live = read_text_file("vllm-0.32/frames.hex");

    for (size_t i = 0; i < sizeof exchanges / sizeof exchanges[0]; i++) {
        check_exchange(replays, live, &exchanges[i]);
    }
    free(replays);
    free(live);
}

static void a_request_has_an_identity_an_empty_frame_and_a_sequence_number(void **state)
{
    (void)state;
    static const uint8_t bytes[] = { 0, 0, 0, 0, 0, 0, 0, 5, 9 };
    const kvb_span nothing = { NULL, 0 };
    const kvb_span name = { bytes + 7, 2 };
    const kvb_span number = { bytes, 8 };
    const struct kvb_frames right = { .frame = { name, nothing, number }, .count = 3 };
    const struct kvb_frames wrong[] = {
        { .frame = { name, number }, .count = 2 },                   /* no delimiter */
        { .frame = { name, name, nothing, number }, .count = 4 },    /* one identity too many */
        { .frame = { nothing, nothing, number }, .count = 3 },       /* an empty identity */
        { .frame = { name, nothing, { bytes, 7 } }, .count = 3 },    /* 7 bytes */
        { .frame = { name, nothing, { bytes, 9 } }, .count = 3 },    /* 9 bytes */
        { .frame = { name, nothing, number, nothing }, .count = 4 }, /* one frame too many */
    };
    kvb_span identity = { .len = 0 };
    uint64_t seq = 0;

    assert_ok(kvb_frames_read_request(&right, &identity, &seq));
    assert_int_equal(seq, 5);
    assert_int_equal(identity.len, 2);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(kvb_frames_read_request(&wrong[i], &identity, &seq), KVB_BAD_INPUT);
    }
}

SUITE(frames)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_has_an_identity_an_empty_frame_and_a_sequence_number),
        cmocka_unit_test(a_live_message_has_topic_seq_and_payload),
        cmocka_unit_test(every_layout_of_a_replayed_batch_is_read),
        cmocka_unit_test(every_form_of_the_end_marker_is_read),
        cmocka_unit_test(other_replies_are_refused),
        cmocka_unit_test(a_seq_is_written_big_endian),
        cmocka_unit_test(a_request_has_the_form_of_the_publisher),
        cmocka_unit_test(recorded_replies_hold_the_live_batches_and_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
