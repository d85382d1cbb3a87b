#include "kvb_test.h"

#include "vector_file.h"
#include "wire/engine/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The messages that Dynamo's relay was fed, and what each must become here:
 *
 *     S stored, R removed, each with its count of hashes     C all cleared
 *     S3/48 stored, 3 hashes and 48 tokens                   s skipped: bad stored
 *     #2 the rank                                            u skipped: unknown event
 *
 * "refused": the whole batch.  "" is an empty one. */
/* clang-format off */
static const char *const wanted[] = {
    [1] = "S1/16 #0",   [2] = "S3/48 #0",   [3] = "S1/16 #0",   [4] = "S3/48 #0",
    [5] = "S2/32 #0",   [6] = "S2/32 #0",   [7] = "S1/16 #0",
    [8] = "S1/16 #0",   /* a hash of 32 bytes */
    [9] = "s #0",       /* 15 tokens for a block of 16 */
    [10] = "S1/20 #0",  /* 20 tokens for one block */
    [11] = "s #0",      /* 20 tokens for two */
    [12] = "S1/0 #0",   [13] = "S0/0 #0",
    [14] = "S1/8 #0",   [15] = "S1/32 #0",  /* another block size */
    [16] = "S1/16 #0",  [17] = "S1/16 #0",  [18] = "S1/16 #0",  [19] = "S1/16 #0",
    [20] = "S1/16 #0",  [21] = "S1/16 #0",
    [22] = "S1/16 #0",  [23] = "S1/16 #0",  [24] = "S1/16 #0",  [25] = "S1/16 #0",
    [26] = "S1/16 #0",
    [27] = "s #0",      /* a token of 2^32 */
    [28] = "s #0",      /* a token of -1 */
    [29] = "R1 #0",     [30] = "R3 #0",     [31] = "R1 #0",     [32] = "R1 #0",
    [33] = "R0 #0",     [34] = "R1 #0",     [35] = "R1 #0",     [36] = "R1 #0",
    [37] = "S1/16 S1/16 #0",
    [38] = "R1 #0",     [39] = "R1 #0",
    [40] = "C #0",      [41] = "C #0",
    [42] = "S1/16 S1/16 R1 #0",
    [43] = "R1 C S1/16 #0",
    [44] = "S1/16 S1/16 #0",
    [45] = "R1 R1 #0",
    [46] = "u #0",
    [47] = "S1/16 u S1/16 #0",
    [48] = "#0",
    [49] = "refused",   /* not msgpack */
    [50] = "S1/16",     /* the batch is a map */
    [51] = "S1/16",     [52] = "S1/16",     /* no rank, nil */
    [53] = "S1/16 #0",  [54] = "S1/16 #3",
    [55] = "S1/16",     /* rank -1 is none */
    [56] = "S1/16 #0",  /* an element more */
    [57] = "S1/16 #0",  /* ts is an integer */
    [58] = "S1/16 #0",  [59] = "S1/16 #0",  [60] = "S1/16 #0",  [61] = "S1/16 #0",
    [62] = "S1/16 #0",  [63] = "S1/16 #0",  [64] = "S1/16 #0",  [65] = "S1/16 #0",
    [66] = NULL,        /* cut short in the recording itself */
    [67] = "C #0",
};
/* clang-format on */

enum { recording_count = sizeof wanted / sizeof wanted[0] - 1 };

static int say_event(char *text, size_t room, const struct kvb_engine_event *event)
{
    switch (event->kind) {
    case KVB_EVENT_STORED:
        return snprintf(text, room, "S%u/%u ", event->hash_count, event->token_count);
    case KVB_EVENT_REMOVED:
        return snprintf(text, room, "R%u ", event->hash_count);
    case KVB_EVENT_CLEARED:
        return snprintf(text, room, event->all_tiers ? "C " : "c ");
    case KVB_EVENT_SKIPPED:
        break;
    }
    return snprintf(
        text, room, "%s",
        event->skip == KVB_SKIP_BAD_STORED      ? "s "
        : event->skip == KVB_SKIP_UNKNOWN_EVENT ? "u "
                                                : "? ");
}

static void say_batch(const struct kvb_event_batch *batch, char *text, size_t room)
{
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < batch->event_count; i++) {
        len += (size_t)say_event(text + len, room - len, &batch->events[i]);
        assert_true(len < room);
    }
    if (batch->has_rank) {
        (void)snprintf(text + len, room - len, "#%u", batch->rank);
    } else if (len > 0) {
        text[len - 1] = '\0'; /* the trailing blank */
    }
}

static void check_recording(size_t number, const char *hex, struct kvb_event_batch *batch)
{
    char got[128] = "refused";
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(hex, &len);
    const bool is_whole = hex[2 * len] == '\n';

    assert_int_equal(is_whole, wanted[number] != NULL);
    if (kvb_engine_batch_decode((kvb_span){ bytes, len }, batch) == KVB_OK) {
        say_batch(batch, got, sizeof got);
    }
    if (strcmp(got, is_whole ? wanted[number] : "refused") != 0) {
        print_error("message %zu: %s\n", number, got);
        fail();
    }
    free(bytes);
}

static void every_message_given_to_the_relay_is_decoded_as_expected(void **state)
{
    (void)state;
    char *text = read_text_file("vectors/dynamo-relay-0.4.1.txt");
    struct kvb_event_batch batch = { 0 };
    size_t number = 0;

    for (const char *at = strstr(text, "\nZMQ  "); at; at = strstr(at + 1, "\nZMQ  ")) {
        number++;
        assert_true(number <= recording_count);
        check_recording(number, at + strlen("\nZMQ  "), &batch);
    }
    assert_int_equal(number, recording_count);
    kvb_event_batch_done(&batch);
    free(text);
}

/* The hashes that the relay published for a BlockStored must be equal to ours. One NATS line is one
 * event, with its hashes as "block_hash":N. */
static void check_published(const char *line, size_t len, const struct kvb_event_batch *batch)
{
    const char *const key = "\"block_hash\":";
    const struct kvb_engine_event *event = &batch->events[0];
    uint32_t found = 0;

    for (const char *at = strstr(line, key); at && at < line + len; at = strstr(at + 1, key)) {
        assert_true(found < event->hash_count);
        const uint64_t hash = strtoull(at + strlen(key), NULL, 10);
        assert_true(batch->hashes[event->hash_at + found].value == hash);
        found++;
    }
    /* for a block size that is not its own the relay published no blocks */
    assert_true(found == event->hash_count || found == 0);
}

static void hashes_equal_those_of_the_relay(void **state)
{
    (void)state;
    char *text = read_text_file("vectors/dynamo-relay-0.4.1.txt");
    struct kvb_event_batch batch = { 0 };
    size_t compared = 0;

    for (const char *at = strstr(text, "\nZMQ  "); at; at = strstr(at + 1, "\nZMQ  ")) {
        size_t len = 0;
        uint8_t *bytes = bytes_of_hex(at + strlen("\nZMQ  "), &len);
        const char *answer = strchr(at + 1, '\n') + 1;
        if (kvb_engine_batch_decode((kvb_span){ bytes, len }, &batch) == KVB_OK &&
            batch.event_count == 1 && batch.events[0].kind == KVB_EVENT_STORED &&
            strncmp(answer, "NATS namespace", strlen("NATS namespace")) == 0) {
            check_published(answer, strcspn(answer, "\n"), &batch);
            compared++;
        }
        free(bytes);
    }
    assert_int_equal(compared, 24);
    kvb_event_batch_done(&batch);
    free(text);
}

SUITE(engine_recordings)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_given_to_the_relay_is_decoded_as_expected),
        cmocka_unit_test(hashes_equal_those_of_the_relay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
