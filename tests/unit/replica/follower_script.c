#include "replica/follower_script.h"

#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "model/digest.h"
#include "replica/turn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { first_id = 1000, the_seed = 42, most_nodes = 1000, most_letters = 64 };

static const uint64_t ms = KVB_NS_PER_MS;
static const uint64_t message_ns = KVB_NS_PER_MS / 10;

const struct kvb_stream_id script_stream = {
    .name_space = "dynamo", .component = "VllmWorker", .worker_id = 7, .dp_rank = 1
};

static struct {
    struct kvb_prefix_index *index; /* NULL: nothing has begun */
    struct kvb_followers *followers;
    struct kvb_router_batch batch;
    uint64_t now_ns;
    uint64_t worker;
    bool is_json; /* the newest batch: heartbeats name its format, unless they name one */
    bool is_refused;
    struct kvb_heartbeat beat;           /* the newest */
    struct kvb_follower_request asks[2]; /* the newest, and the one before */
    unsigned flaw;
    bool is_stale;
    uint64_t asked;
    uint64_t claim;
    uint64_t traits;
    kvb_slot_ref others;

    struct kvb_replica_turn turn;
    struct kvb_replica_facts facts;
    unsigned echo;
    uint64_t echoes; /* that were sent */
    bool is_unread;
    size_t messages; /* that wait */
    char log[most_letters];
} play;

/* ---- Words ---- */

/* [+]N[^K][+M] */
static uint64_t id_at(size_t at)
{
    const char *word = script_word(at);
    char *end = NULL;

    if (strcmp(word, "max") == 0) {
        return UINT64_MAX;
    }
    uint64_t id = strtoull(word, &end, 10);
    assert_true(end != word);
    if (*end == '^') {
        id = UINT64_C(1) << strtoul(end + 1, &end, 10);
    }
    if (*end == '+') {
        id += strtoull(end + 1, &end, 10);
    }
    assert_int_equal(*end, '\0');
    return word[0] == '+' ? first_id + id : id;
}

static int epoch_at(size_t at)
{
    return script_says(at, "json") ? 0 : (int)script_number(at);
}

static kvb_epoch epoch_of(int n)
{
    return (kvb_epoch){ { (uint8_t)n } };
}

static const char *const lists[KVB_LIST_COUNT] = { "device", "host", "disk", "external", "window" };

static enum kvb_tier list_at(size_t at)
{
    return at < script_words() ? (enum kvb_tier)script_index(at, lists, KVB_LIST_COUNT)
                               : KVB_TIER_DEVICE;
}

static const char *
text_of(enum kvb_stream_state state, enum kvb_stream_reason reason, char out_text[64])
{
    (void)snprintf(
        out_text, 64, reason == KVB_REASON_NONE ? "%s" : "%s(%s)", kvb_stream_state_name(state),
        kvb_stream_reason_name(reason));
    return out_text;
}

/* ---- Beginning and end ---- */

static uint64_t memberships(void)
{
    struct kvb_index_counters counters;

    kvb_prefix_index_count(play.index, &counters);
    return counters.memberships;
}

/* Nothing of a stream may be left in the index. */
static void finish(void)
{
    if (!play.index) {
        return;
    }
    kvb_followers_free(play.followers);
    const uint64_t left = memberships();
    kvb_prefix_index_free(play.index);
    kvb_router_batch_done(&play.batch);
    memset(&play, 0, sizeof play);
    assert_int_equal(left, 0);
}

static void begin(size_t streams, size_t nodes, bool asks)
{
    const struct kvb_prefix_index_options index = { .max_nodes = nodes, .max_slots = 100 };

    finish();
    play.now_ns = 100 * KVB_NS_PER_S;
    play.worker = script_stream.worker_id;
    assert_ok(kvb_prefix_index_new(&index, &play.index));
    const struct kvb_followers_options options = { .max_streams = streams,
                                                   .heartbeat_ms = 1000,
                                                   .forget_ms = 60000,
                                                   .sends_requests = asks,
                                                   .max_window_blocks = nodes,
                                                   .index = play.index };
    assert_ok(kvb_followers_new(&options, &play.followers));
}

static void do_begin(void)
{
    size_t streams = 64;
    size_t nodes = most_nodes;
    bool asks = false;

    for (size_t at = 1; at < script_words(); at++) {
        if (script_says(at, "asks")) {
            asks = true;
        } else if (script_says(at, "streams")) {
            streams = script_number(++at);
        } else {
            assert_true(script_says(at, "nodes"));
            nodes = script_number(++at);
        }
    }
    begin(streams, nodes, asks);
}

/* ---- Events and heartbeats ---- */

static struct kvb_stream_id its_id(void)
{
    struct kvb_stream_id id = script_stream;

    id.worker_id = play.worker;
    return id;
}

static void expect(kvb_status status)
{
    assert_int_equal(status, play.is_refused ? KVB_TOO_LARGE : KVB_OK);
    play.is_refused = false;
}

static void start_batch(int epoch)
{
    kvb_router_batch_reset(&play.batch);
    play.batch.worker_id = play.worker;
    play.batch.dp_rank = script_stream.dp_rank;
    play.batch.has_epoch = epoch > 0;
    play.batch.epoch = epoch_of(epoch);
    play.is_json = epoch == 0;
}

static void add(enum kvb_router_kind kind, uint64_t event_id, uint64_t block, enum kvb_tier list)
{
    const struct kvb_router_event event = { .kind = kind, .tier = list, .event_id = event_id };

    assert_ok(kvb_router_batch_add_event(&play.batch, &event));
    if (kind != KVB_ROUTER_CLEARED) {
        assert_ok(kvb_router_batch_add_block(
            &play.batch, (kvb_block_hash){ block }, (kvb_tokens_hash){ block }));
    }
}

static void apply(void)
{
    const struct kvb_stream_id id = its_id();

    expect(kvb_followers_apply(play.followers, &id, &play.batch, play.now_ns));
}

static void do_event(void)
{
    static const char *const kinds[] = { "store", "remove", "clear" };
    static const enum kvb_router_kind of[] = { KVB_ROUTER_STORED, KVB_ROUTER_REMOVED,
                                               KVB_ROUTER_CLEARED };
    const enum kvb_router_kind kind = of[script_index(0, kinds, KVB_COUNT_OF(kinds))];
    const bool has_block = kind != KVB_ROUTER_CLEARED;

    start_batch(epoch_at(1));
    add(kind, id_at(2), has_block ? script_number(3) : 0, has_block ? list_at(4) : KVB_TIER_DEVICE);
    apply();
}

static struct kvb_digest digest_of(enum kvb_tier list, uint64_t block, uint64_t seed)
{
    const struct kvb_digest_key key = { .worker_id = script_stream.worker_id,
                                        .dp_rank = script_stream.dp_rank,
                                        .seed = seed };
    struct kvb_digest digest = { .total = { 0 } };

    kvb_digest_add(&digest, &key, list, (kvb_block_hash){ block });
    return digest;
}

static void says(struct kvb_heartbeat *beat, size_t at)
{
    char text[64];

    for (unsigned i = 0; i < KVB_STREAM_STATE_COUNT * KVB_REASON_COUNT; i++) {
        beat->state = (enum kvb_stream_state)(i / KVB_REASON_COUNT);
        beat->reason = (enum kvb_stream_reason)(i % KVB_REASON_COUNT);
        if (script_says(at, text_of(beat->state, beat->reason, text))) {
            return;
        }
    }
    fail_msg("no state: %s", script_word(at));
}

static void set_fact(struct kvb_heartbeat *beat, size_t at)
{
    static const char *const facts[] = { "begins", "host",   "window", "period", "formats",
                                         "says",   "digest", "names",  "paired", "store",
                                         "shapes", "drop",   "shape" };
    const unsigned fact = script_index(at++, facts, KVB_COUNT_OF(facts));

    switch (fact) {
    case 0:
        beat->epoch_first_id = id_at(at);
        break;
    case 1:
        beat->tiers[KVB_TIER_HOST].blocks = script_number(at);
        break;
    case 2:
        beat->window_tokens = 64;
        beat->tiers[KVB_LIST_WINDOW].blocks = script_number(at);
        break;
    case 3:
        beat->period_ms = (uint32_t)script_number(at);
        break;
    case 4:
        beat->formats =
            1U << KVB_FORMAT_JSON | (script_says(at, "both") ? 1U << KVB_FORMAT_PROTOBUF : 0);
        break;
    case 5:
        says(beat, at);
        break;
    case 6:
        beat->digest_seed = the_seed;
        beat->tiers[KVB_TIER_DEVICE].digest =
            digest_of(KVB_TIER_DEVICE, script_number(at), the_seed).total;
        break;
    case 7:
        beat->hashes = script_says(at, "engine") ? KVB_HASHES_ENGINE : KVB_HASHES_CANONICAL;
        break;
    case 8:
        beat->is_paired = script_says(at, "yes");
        break;
    case 9:
        beat->is_store = script_says(at, "yes");
        break;
    case 10:
        beat->shape_count = script_number(at);
        break;
    case 11:
        beat->speculative_drop = (uint32_t)script_number(at);
        break;
    default:
        beat->shapes[0].shape.block_size = (uint32_t)script_number(at);
    }
}

/* The newest one, with what is changed by the words from `at` on. */
static void give_beat(size_t at)
{
    const struct kvb_stream_id id = its_id();

    for (; at < script_words(); at += 2) {
        set_fact(&play.beat, at);
    }
    struct kvb_heartbeat beat = play.beat;
    if (beat.formats == 0) {
        beat.formats = 1U << (play.is_json ? KVB_FORMAT_JSON : KVB_FORMAT_PROTOBUF);
    }
    expect(kvb_followers_heartbeat(play.followers, &id, &beat, play.now_ns));
}

static void new_beat(int epoch, uint64_t last_id, uint64_t blocks)
{
    play.beat = (struct kvb_heartbeat){ .worker_id = play.worker,
                                        .dp_rank = script_stream.dp_rank,
                                        .epoch = epoch_of(epoch),
                                        .epoch_first_id = first_id,
                                        .last_id = last_id,
                                        .state = KVB_STREAM_EXACT,
                                        .model = "m",
                                        .block_size = 16,
                                        .doubtful = 2 };
    play.beat.tiers[KVB_TIER_DEVICE].blocks = blocks;
}

static void do_beat(void)
{
    new_beat(epoch_at(1), id_at(2), id_at(3));
    play.beat.is_bye = script_says(0, "bye");
    give_beat(4);
}

static void do_again(void)
{
    give_beat(1);
}

static void must_be(const char *state);

static void make_exact(int epoch)
{
    start_batch(epoch);
    add(KVB_ROUTER_CLEARED, first_id, 0, KVB_TIER_DEVICE);
    add(KVB_ROUTER_STORED, first_id + 1, 5, KVB_TIER_DEVICE);
    apply();
    new_beat(1, first_id + 1, 1);
    give_beat(script_words());
    must_be("EXACT");
}

static void do_exact(void)
{
    make_exact(epoch_at(1));
}

/* ---- Other streams ---- */

static void do_as(void)
{
    play.worker = script_number(1);
}

static void store_as(uint64_t worker, bool is_marked)
{
    (void)is_marked;
    play.worker = worker;
    start_batch(0);
    add(KVB_ROUTER_STORED, 1, 5, KVB_TIER_DEVICE);
    apply();
}

static void do_crowd(void)
{
    script_each(1, store_as);
}

static void beat_as(uint64_t worker, bool is_marked)
{
    (void)is_marked;
    play.worker = worker;
    new_beat(1, first_id, 0);
    give_beat(script_words());
}

static void do_bridges(void)
{
    script_each(1, beat_as);
}

static void do_refuse(void)
{
    play.is_refused = true;
}

/* ---- Time, NATS, audit ---- */

static void do_pass(void)
{
    play.now_ns += script_number(1) * ms;
}

static void do_wait(void)
{
    do_pass();
    kvb_followers_tick(play.followers, play.now_ns);
}

static bool next_request(struct kvb_follower_request *out_ask)
{
    return kvb_followers_next_request(play.followers, play.now_ns, out_ask);
}

static void do_beats(void)
{
    struct kvb_follower_request ask;

    for (uint64_t i = 0; i < 10 * script_number(1); i++) {
        play.now_ns += 100 * ms;
        kvb_followers_tick(play.followers, play.now_ns);
        if (i % 10 == 0) {
            give_beat(script_words());
        }
        play.asked += next_request(&ask);
    }
}

static void do_nats(void)
{
    if (script_says(0, "away")) {
        kvb_followers_nats_away(play.followers, play.now_ns);
    } else if (script_says(0, "back")) {
        kvb_followers_nats_back(play.followers, play.now_ns);
    } else if (script_says(0, "lose")) {
        kvb_followers_messages_dropped(play.followers, play.now_ns);
    } else {
        kvb_followers_set_lagging(play.followers, script_says(0, "lag"), play.now_ns);
    }
}

static void do_audit(void)
{
    const struct kvb_stream_id id = its_id();

    kvb_followers_set_doubted(play.followers, &id, script_says(0, "doubt"), play.now_ns);
}

/* ---- Memory ---- */

/* Blocks in a slot that no follower owns. */
static void do_fill(void)
{
    kvb_block_hash blocks[most_nodes];
    kvb_tokens_hash tokens[most_nodes];
    const struct kvb_index_run run = { .blocks = blocks,
                                       .tokens = tokens,
                                       .count =
                                           kvb_prefix_index_room(play.index) - script_number(1) };

    for (size_t i = 0; i < run.count; i++) {
        blocks[i].value = 500 + i;
        tokens[i].value = 500 + i;
    }
    assert_ok(kvb_prefix_index_slot_new(play.index, &play.others));
    assert_ok(kvb_prefix_index_store(play.index, play.others, &run, NULL));
}

static void do_give_back(void)
{
    kvb_prefix_index_slot_free(play.index, play.others);
    assert_false(kvb_prefix_index_reclaim(play.index, SIZE_MAX));
}

/* ---- Requests and answers ---- */

static void must_want(uint64_t block, bool is_marked)
{
    const struct kvb_sync_request *request = &play.asks[0].request;
    const struct kvb_digest_key key = { .worker_id = script_stream.worker_id,
                                        .dp_rank = script_stream.dp_rank,
                                        .seed = the_seed };
    const size_t bucket = kvb_digest_bucket(&key, KVB_TIER_DEVICE, (kvb_block_hash){ block });

    (void)is_marked;
    assert_true(request->buckets.words[bucket / 64] >> (bucket % 64) & 1);
}

static void must_want_buckets(void)
{
    const struct kvb_sync_request *request = &play.asks[0].request;
    int wanted = 0;

    assert_true(request->has_buckets);
    script_each(2, must_want);
    for (size_t i = 0; i < KVB_COUNT_OF(request->buckets.words); i++) {
        wanted += __builtin_popcountll(request->buckets.words[i]);
    }
    assert_int_equal(wanted, script_words() - 2);
}

static void do_ask(void)
{
    static const char *const kinds[] = { "range", "snapshot", "digest", "buckets" };
    const unsigned kind = script_index(1, kinds, KVB_COUNT_OF(kinds));
    const bool has_buckets = kind == KVB_SYNC_KIND_COUNT;

    play.asks[1] = play.asks[0];
    assert_true(next_request(&play.asks[0]));
    assert_int_equal(play.asks[0].request.kind, has_buckets ? KVB_SYNC_SNAPSHOT : kind);
    assert_int_equal(play.asks[0].id.worker_id, play.worker);
    if (has_buckets) {
        must_want_buckets();
    }
}

static void do_no_ask(void)
{
    struct kvb_follower_request ask;

    assert_false(next_request(&ask));
}

/* open: more chunks follow; second: the second chunk; moved: events came while it was made. */
static const char *const flaws[] = { "none",  "open",    "second",  "moved", "worker", "rank",
                                     "epoch", "barrier", "removal", "clear", "kind",   "sums" };

static void do_flaw(void)
{
    play.flaw = script_index(1, flaws, KVB_COUNT_OF(flaws));
}

static void spoil(struct kvb_sync_reply *reply)
{
    switch (play.flaw) {
    case 1:
        reply->is_last = false;
        break;
    case 2:
        reply->chunk = 1;
        break;
    case 3:
        reply->last_id++;
        break;
    case 4:
        reply->worker_id++;
        break;
    case 5:
        reply->dp_rank++;
        break;
    case 6:
        reply->epoch.bytes[0]++;
        break;
    case 7:
        reply->barrier_id++;
        break;
    case 8:
        add(KVB_ROUTER_REMOVED, 2, 6, KVB_TIER_DEVICE);
        break;
    case 9:
        add(KVB_ROUTER_CLEARED, 2, 0, KVB_TIER_DEVICE);
        break;
    case 10:
        reply->answer = KVB_SYNC_EVENTS;
        break;
    case 11:
        reply->answer = KVB_SYNC_SUMS;
        break;
    default:
        break;
    }
    play.flaw = 0;
}

static struct kvb_sync_reply reply_of(enum kvb_sync_answer answer)
{
    start_batch(1);
    return (struct kvb_sync_reply){ .answer = answer,
                                    .worker_id = play.worker,
                                    .dp_rank = script_stream.dp_rank,
                                    .epoch = epoch_of(1),
                                    .is_last = true,
                                    .barrier_id = id_at(1),
                                    .last_id = id_at(1) };
}

static void answer(struct kvb_sync_reply *reply)
{
    spoil(reply);
    reply->events = &play.batch;
    kvb_followers_reply(play.followers, play.asks[play.is_stale].token, reply, play.now_ns);
    play.is_stale = false;
}

static void do_stale(void)
{
    play.is_stale = true;
}

static void do_blocks(void)
{
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS);
    enum kvb_tier list = KVB_TIER_DEVICE;

    for (size_t at = 2; at < script_words(); at++) {
        if (script_word(at)[0] > '9') {
            list = list_at(at++);
        }
        add(KVB_ROUTER_STORED, play.batch.event_count, script_number(at), list);
    }
    answer(&reply);
}

static void do_events(void)
{
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_EVENTS);

    for (size_t at = 2; at < script_words(); at += 2) {
        add(KVB_ROUTER_STORED, id_at(at), script_number(at + 1), KVB_TIER_DEVICE);
    }
    answer(&reply);
}

static void do_sums(void)
{
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_SUMS);
    const struct kvb_digest digest = digest_of(KVB_TIER_DEVICE, script_number(2), the_seed);

    reply.digest_seed = script_words() > 3 ? script_number(3) : the_seed;
    reply.sums[KVB_TIER_DEVICE] = digest.buckets;
    answer(&reply);
}

static void do_gone(void)
{
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_GONE);

    answer(&reply);
}

static void do_busy(void)
{
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BUSY);

    reply.retry_ms = (uint32_t)script_number(1);
    reply.barrier_id = 0;
    reply.last_id = 0;
    reply.epoch = epoch_of(0);
    answer(&reply);
}

/* ---- Turns ---- */

static const char *const echoes[] = { "well", "lost", "refused" };

static void note(char letter)
{
    const size_t len = strlen(play.log);

    if (len + 1 < sizeof play.log) {
        play.log[len] = letter;
    }
}

static const struct kvb_replica_facts *facts_now(void)
{
    play.facts.now_ns = play.now_ns;
    play.facts.echo_applied = play.is_unread ? 0 : play.facts.echo_returned;
    return &play.facts;
}

static void send_echo(const struct kvb_replica_action *action)
{
    if (play.echo < 2) {
        play.echoes++;
        kvb_replica_echo_sent(&play.turn, action->number, facts_now());
    }
    if (play.echo == 0) {
        play.facts.echo_returned = action->number;
    }
}

static void apply_messages(uint64_t until_ns)
{
    do { /* as the daemon does */
        if (play.messages == 0) {
            return;
        }
        play.messages--;
        play.now_ns += message_ns;
        note('m');
    } while (play.now_ns < until_ns);
}

static void take_turn(void)
{
    struct kvb_replica_action action;

    while (kvb_replica_next(&play.turn, facts_now(), &action)) {
        switch (action.kind) {
        case KVB_REPLICA_SEND_ECHO:
            send_echo(&action);
            break;
        case KVB_REPLICA_APPLY_MESSAGES:
            apply_messages(action.until_ns);
            break;
        case KVB_REPLICA_ANSWER_QUERIES:
            note('q');
            break;
        case KVB_REPLICA_SEND_REQUEST:
            note('r');
            break;
        case KVB_REPLICA_TICK:
            note('t');
            break;
        }
    }
}

static void do_turn(void)
{
    for (uint64_t n = script_words() > 2 ? script_number(2) : 1; n > 0; n--) {
        do_pass();
        take_turn();
    }
}

static void do_world(void)
{
    begin(64, most_nodes, true);
    play.turn = (struct kvb_replica_turn){ .followers = play.followers };
    play.facts = (struct kvb_replica_facts){ .is_connected = true, .connects = 1 };
    take_turn();
    make_exact(1);
    play.echoes = 0;
    memset(play.log, 0, sizeof play.log);
}

static void do_echo(void)
{
    play.echo = script_index(1, echoes, KVB_COUNT_OF(echoes));
}

static void do_read(void)
{
    play.is_unread = script_says(0, "unread");
}

static void do_connect(void)
{
    play.facts.is_connected = !script_says(0, "disconnect");
    play.facts.connects += script_says(0, "reconnect");
}

static void do_drop(void)
{
    play.facts.dropped += script_number(1);
}

static void do_late(void)
{
    play.facts.lag_ns = script_number(1) * ms;
}

static void do_messages(void)
{
    play.messages = script_number(1);
}

static void do_log(void)
{
    assert_string_equal(play.log, script_word(1));
    memset(play.log, 0, sizeof play.log);
}

static bool is_current(void)
{
    return kvb_replica_turn_is_current(&play.turn, facts_now());
}

/* ---- What holds ---- */

struct kvb_followers *script_followers(void)
{
    return play.followers;
}

/* NULL: it is not followed. */
static const struct kvb_follower *follower(void)
{
    const struct kvb_stream_id id = its_id();

    return kvb_followers_find(play.followers, &id);
}

static size_t streams(void)
{
    size_t count = 0;

    for (size_t i = 0; i < kvb_followers_limit(play.followers); i++) {
        count += kvb_followers_at(play.followers, i) != NULL;
    }
    return count;
}

static void must_be(const char *state)
{
    const struct kvb_follower *found = follower();
    char text[64];

    assert_non_null(found);
    assert_string_equal(text_of(found->state, found->reason, text), state);
}

static void do_lists(void)
{
    assert_int_equal(
        kvb_followers_blocks(play.followers, follower(), list_at(2)), script_number(1));
}

static void must_follow(uint64_t worker, bool is_marked)
{
    (void)is_marked;
    play.worker = worker;
    assert_non_null(follower());
    play.asked++;
}

/* These and no others. */
static void do_follows(void)
{
    const uint64_t worker = play.worker;

    play.asked = 0;
    script_each(1, must_follow);
    assert_int_equal(streams(), play.asked);
    play.asked = 0;
    play.worker = worker;
}

static void do_format(void)
{
    assert_string_equal(kvb_format_name(follower()->format), script_word(1));
}

static void do_last(void)
{
    assert_int_equal(follower()->last_id, id_at(1));
}

static void do_claim(void)
{
    const uint64_t claim = follower()->claim;

    assert_true(!script_says(0, "same-claim") || claim == play.claim);
    assert_true(!script_says(0, "other-claim") || claim != play.claim);
    play.claim = claim;
}

static void do_traits(void)
{
    const uint64_t traits = kvb_followers_traits(play.followers);

    assert_true((traits == play.traits) == script_says(0, "same-traits"));
    play.traits = traits;
}

static void do_asked(void)
{
    assert_in_range(play.asked, script_number(1), script_number(2));
}

/* Whether word 0 is a count, which must be that of word 1. */
static bool is_count(void)
{
    struct kvb_follower_counters of;

    kvb_followers_counters(play.followers, &of);
    const struct {
        const char *name;
        uint64_t count;
    } rows[] = {
        { "streams", streams() },
        { "window-blocks", kvb_followers_window_blocks(play.followers) },
        { "waiting", play.messages },
        { "echoes", play.echoes },
        { "silences", play.turn.echo_silences },
        { "behind", play.turn.behind_echo },
        { "ahead", of.events_ahead },
        { "blocks-refused", of.blocks_refused },
        { "buckets-differ", of.buckets_differ },
        { "contradicted", of.contradicted },
        { "differs", of.differs },
        { "epochs-missed", of.epochs_missed },
        { "failed", of.requests_failed },
        { "forgotten", of.forgotten },
        { "holes", of.holes },
        { "missed", of.events_missed },
        { "old", of.events_old },
        { "refused", of.streams_refused },
        { "repaired", of.digests_repaired },
        { "rivals", of.rivals },
        { "silent", of.silent },
        { "unused", of.events_unused },
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
    const struct kvb_follower *found = follower();
    const struct {
        const char *name;
        bool holds;
    } rows[] = {
        { "claimed", found && found->is_claimed },
        { "unclaimed", found && !found->is_claimed },
        { "freed", memberships() == 0 },
        { "current", is_current() },
        { "outdated", !is_current() },
        { "lagging", play.turn.is_lagging },
        { "prompt", !play.turn.is_lagging },
        { "there", play.turn.was_connected },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (script_says(0, rows[i].name)) {
            assert_true(rows[i].holds);
            return true;
        }
    }
    return false;
}

static void do_check(void)
{
    if (!is_fact() && !is_count()) {
        must_be(script_word(0));
    }
}

/* clang-format off */
static const struct script_verb verbs[] = {
    { "begin", do_begin },       { "exact", do_exact },         { "world", do_world },
    { "clear", do_event },       { "store", do_event },         { "remove", do_event },
    { "beat", do_beat },         { "bye", do_beat },            { "again", do_again },
    { "as", do_as },             { "crowd", do_crowd },         { "bridges", do_bridges },
    { "refuse", do_refuse },
    { "pass", do_pass },         { "wait", do_wait },           { "beats", do_beats },
    { "away", do_nats },         { "back", do_nats },           { "lose", do_nats },
    { "lag", do_nats },          { "no-lag", do_nats },
    { "doubt", do_audit },       { "trust", do_audit },
    { "fill", do_fill },         { "give-back", do_give_back },
    { "ask", do_ask },           { "no-ask", do_no_ask },
    { "flaw", do_flaw },         { "stale", do_stale },
    { "blocks", do_blocks },     { "events", do_events },       { "sums", do_sums },
    { "gone", do_gone },         { "busy", do_busy },
    { "turn", do_turn },         { "echo", do_echo },           { "read", do_read },
    { "unread", do_read },       { "connect", do_connect },     { "disconnect", do_connect },
    { "reconnect", do_connect }, { "drop", do_drop },           { "late", do_late },
    { "messages", do_messages }, { "log", do_log },
    { "lists", do_lists },       { "follows", do_follows },     { "format", do_format },
    { "last", do_last },         { "asked", do_asked },
    { "claim", do_claim },       { "same-claim", do_claim },    { "other-claim", do_claim },
    { "same-traits", do_traits }, { "other-traits", do_traits },
};
/* clang-format on */

void follower_script(const char *text)
{
    script_play(text, verbs, KVB_COUNT_OF(verbs), do_check);
}

void play_follower_script(void **state)
{
    follower_script(*state);
}

int end_follower_script(void **state)
{
    (void)state;
    script_tell_failure();
    finish();
    return 0;
}
