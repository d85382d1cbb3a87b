#include "stream/republish/republisher.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "model/replay_buffer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* An empty batch after so long without one shows readers that they lost nothing. */
static const uint64_t silence_ns = KVB_NS_PER_S;
/* A reader's SUB may connect a little later than its DEALER. */
static const uint64_t announce_delay_ns = 50 * KVB_NS_PER_MS;
static const uint64_t announce_period_ns = 10 * KVB_NS_PER_S;
static const uint64_t announce_retry_ns = KVB_NS_PER_S;
static const uint64_t full_retry_ns = 5 * KVB_NS_PER_MS;
static const uint64_t no_progress_ns = 30 * KVB_NS_PER_S;

/* Limits of one batch, and of one slice of work. */
enum { batch_blocks = 2048, batch_tokens = 32768, slice_looks = 4096 };

/* So many live batches are made between two snapshots, so that requests never stop live batches. */
enum { batches_between_walks = 64 };

enum republish_stage { stage_live, stage_announcing, stage_snapshot };

enum client_state { client_free, client_waiting, client_building, client_sending, client_ending };

/* What is sent to one reader in place of batches that are not kept. */
struct snapshot_answer {
    bool is_there;
    struct kvb_buf bytes; /* owned: the payloads; the last one is an empty batch */
    size_t *ends;         /* owned: where each payload ends */
    size_t count, capacity;
    uint64_t first_number;
};

struct republish_client {
    enum client_state state;
    uint8_t identity[kvb_max_republish_identity];
    size_t identity_len;
    uint64_t next; /* number to be sent next; waiting: the one that was asked for */
    uint64_t last;
    bool takes_newest; /* the snapshot ends with the newest number, wherever it begins */
    bool has_newer;    /* the reader has made another request, from newer_from on */
    uint64_t newer_from;
    struct snapshot_answer snapshot;
    uint64_t progress_ns;
    uint64_t retry_ns;
};

struct announcement {
    bool is_owed;
    uint64_t wanted_ns; /* when one was first wanted; the next: last wanted */
    uint64_t last_wanted_ns;
    uint64_t not_before_ns;
};

struct kvb_republisher {
    struct kvb_republisher_options options;
    struct kvb_replay_buffer *ring; /* owned */
    uint64_t next_number;
    uint64_t reserved_end;
    uint64_t batch_ns; /* of the newest; 0: none yet */
    enum republish_stage stage;
    unsigned batches_since_walk;
    size_t quota;                 /* blocks of a batch */
    struct kvb_event_batch batch; /* owned: being filled */
    struct kvb_buf payload;       /* owned: of the newest live batch */
    struct announcement announcement;
    struct republish_client *building; /* stage SNAPSHOT */
    size_t building_quota;
    size_t next_client;
    struct republish_client clients[kvb_max_republish_clients];
    struct kvb_republish_counts counts;
};

/* ---- New and free ---- */

kvb_status kvb_republisher_new(
    const struct kvb_republisher_options *options, struct kvb_republisher **out_republisher)
{
    if (options->first_number == 0) {
        return KVB_TOO_LARGE;
    }
    struct kvb_republisher *republisher = calloc(1, sizeof *republisher);
    if (!republisher) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = kvb_replay_buffer_new(
        options->max_kept_batches, options->max_kept_bytes, &republisher->ring);
    if (status != KVB_OK) {
        free(republisher);
        return status;
    }
    const size_t fitting = batch_tokens / (options->block_size > 0 ? options->block_size : 1);
    republisher->quota = fitting < 1 ? 1 : fitting < batch_blocks ? fitting : batch_blocks;
    republisher->options = *options;
    republisher->next_number = options->first_number;
    republisher->reserved_end = options->reserved_end;
    kvb_buf_init(&republisher->payload, options->max_snapshot_bytes);
    *out_republisher = republisher;
    return KVB_OK;
}

static void drop_snapshot(struct kvb_republisher *republisher, struct republish_client *client)
{
    republisher->counts.snapshot_bytes -= client->snapshot.bytes.len;
    kvb_buf_done(&client->snapshot.bytes);
    free(client->snapshot.ends);
    client->snapshot = (struct snapshot_answer){ .is_there = false };
}

void kvb_republisher_free(struct kvb_republisher *republisher)
{
    if (!republisher) {
        return;
    }
    for (size_t i = 0; i < kvb_max_republish_clients; i++) {
        drop_snapshot(republisher, &republisher->clients[i]);
    }
    kvb_replay_buffer_free(republisher->ring);
    kvb_event_batch_done(&republisher->batch);
    kvb_buf_done(&republisher->payload);
    free(republisher);
}

const struct kvb_republish_counts *kvb_republisher_count(const struct kvb_republisher *republisher)
{
    return &republisher->counts;
}

/* ---- Numbers ---- */

bool kvb_republisher_wants_numbers(const struct kvb_republisher *republisher, uint64_t *out_end)
{
    if (republisher->reserved_end - republisher->next_number > kvb_republish_reserve / 2) {
        return false;
    }
    *out_end = republisher->next_number + kvb_republish_reserve;
    return true;
}

void kvb_republisher_reserved(struct kvb_republisher *republisher, uint64_t end)
{
    if (end > republisher->reserved_end) {
        republisher->reserved_end = end;
    }
}

uint64_t kvb_republisher_next_number(const struct kvb_republisher *republisher)
{
    return republisher->next_number;
}

static bool may_number(const struct kvb_republisher *republisher)
{
    return republisher->next_number < republisher->reserved_end;
}

/* ---- Announcements ---- */

static void owe_announcement(struct kvb_republisher *republisher, uint64_t now_ns)
{
    struct announcement *owed = &republisher->announcement;

    if (!owed->is_owed) {
        owed->is_owed = true;
        owed->wanted_ns = now_ns;
    }
    owed->last_wanted_ns = now_ns;
}

void kvb_republisher_subscribed(struct kvb_republisher *republisher, uint64_t now_ns)
{
    owe_announcement(republisher, now_ns);
}

/* New subscriptions delay it by a second at most. */
static bool is_announcement_due(const struct kvb_republisher *republisher, uint64_t now_ns)
{
    const struct announcement *owed = &republisher->announcement;
    const bool is_settled = now_ns >= owed->last_wanted_ns + announce_delay_ns ||
                            now_ns >= owed->wanted_ns + KVB_NS_PER_S;

    return owed->is_owed && is_settled && now_ns >= owed->not_before_ns;
}

/* A batch is lost, and no replay from the ring can repair that. */
static void lose_batch(struct kvb_republisher *republisher, uint64_t now_ns)
{
    republisher->counts.lost++;
    republisher->next_number++; /* readers see the gap */
    kvb_replay_buffer_clear(republisher->ring);
    owe_announcement(republisher, now_ns);
    republisher->announcement.not_before_ns = now_ns + announce_retry_ns;
}

/* ---- Batches ---- */

static void begin_batch(struct kvb_republisher *republisher)
{
    kvb_event_batch_reset(&republisher->batch);
    republisher->batch.has_rank = true;
    republisher->batch.rank = republisher->options.dp_rank;
}

static kvb_status add_cleared(struct kvb_event_batch *batch)
{
    KVB_TRY(kvb_event_batch_reserve_events(batch, 1));
    batch->events[batch->event_count++] =
        (struct kvb_engine_event){ .kind = KVB_EVENT_CLEARED, .all_tiers = true };
    return KVB_OK;
}

static kvb_status encode_batch(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time, struct kvb_buf *out)
{
    republisher->batch.timestamp_s = time->wall_s;
    return republisher->options.encode(
        republisher->options.encode_context, &republisher->batch, out);
}

/* Numbers the batch, keeps it, and gives it to the caller. */
static void publish_batch(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct kvb_republish_action *out_action)
{
    kvb_buf_reset(&republisher->payload);
    if (encode_batch(republisher, time, &republisher->payload) != KVB_OK) {
        lose_batch(republisher, time->now_ns);
        return;
    }
    const kvb_span payload = kvb_buf_span(&republisher->payload);
    /* From here on the number is used, even if the ring cannot keep the batch. */
    const uint64_t number = republisher->next_number++;
    if (kvb_replay_buffer_put(republisher->ring, number, payload) != KVB_OK) {
        kvb_replay_buffer_clear(republisher->ring); /* it has no holes */
    }
    republisher->batch_ns = time->now_ns;
    republisher->counts.kept = kvb_replay_buffer_count(republisher->ring);
    republisher->counts.batches++;
    republisher->counts.bytes += payload.len;
    *out_action = (struct kvb_republish_action){ .kind = KVB_REPUBLISH_LIVE,
                                                 .number = number,
                                                 .payload = payload };
}

/* ---- Answers ---- */

static void free_client(struct kvb_republisher *republisher, struct republish_client *client)
{
    drop_snapshot(republisher, client);
    *client = (struct republish_client){ .state = client_free };
    republisher->counts.clients--;
}

static bool is_kept(const struct kvb_republisher *republisher, uint64_t number)
{
    uint64_t oldest = 0;

    if (kvb_replay_buffer_count(republisher->ring) == 0) {
        return false;
    }
    (void)kvb_replay_buffer_at(republisher->ring, 0, &oldest);
    return number >= oldest;
}

/* Decides how a request is answered. */
static void begin_client_answer(
    struct kvb_republisher *republisher, struct republish_client *client, uint64_t from,
    uint64_t now_ns)
{
    const uint64_t newest = republisher->next_number - 1;

    /* From the cheapest on: nothing, what the ring has, a snapshot for this reader, one for all. */
    client->next = from;
    client->last = newest;
    client->takes_newest = false;
    client->progress_ns = now_ns;
    client->retry_ns = 0;
    if (from > newest) {
        client->state = client_ending;
    } else if (is_kept(republisher, from)) {
        client->state = client_sending;
    } else if (from > 0 && newest - from < kvb_max_republish_fill) {
        client->state = client_waiting;
    } else if (republisher->options.from_zero == KVB_FROM_ZERO_SNAPSHOT) {
        client->state = client_waiting;
        client->takes_newest = true;
    } else {
        client->state = client_ending;
        owe_announcement(republisher, now_ns);
    }
}

/* The walk for an answer has ended, complete or not. */
static void end_building(struct kvb_republisher *republisher)
{
    kvb_shown_end(republisher->options.shown);
    republisher->building = NULL;
    republisher->stage = stage_live;
    republisher->batches_since_walk = 0;
}

kvb_status kvb_republisher_request(
    struct kvb_republisher *republisher, kvb_span identity, uint64_t from, uint64_t now_ns)
{
    if (identity.len == 0 || identity.len > kvb_max_republish_identity) {
        return KVB_BAD_INPUT;
    }
    republisher->counts.requests++;
    struct republish_client *client = NULL; /* the last place that is free */
    for (size_t i = 0; i < kvb_max_republish_clients; i++) {
        struct republish_client *at = &republisher->clients[i];
        if (at->state == client_free) {
            client = at;
        } else if (
            at->identity_len == identity.len &&
            memcmp(at->identity, identity.data, identity.len) == 0) {
            /* Its answer is ended first, so that no reader mixes two. */
            if (at == republisher->building) {
                end_building(republisher);
            }
            at->has_newer = true;
            at->newer_from = from;
            at->state = client_ending;
            return KVB_OK;
        }
    }
    if (!client) {
        republisher->counts.refused++;
        return KVB_TOO_LARGE;
    }
    memcpy(client->identity, identity.data, identity.len);
    client->identity_len = identity.len;
    republisher->counts.clients++;
    begin_client_answer(republisher, client, from, now_ns);
    return KVB_OK;
}

void kvb_republisher_end_answers(struct kvb_republisher *republisher)
{
    if (republisher->building) {
        end_building(republisher);
    }
    for (size_t i = 0; i < kvb_max_republish_clients; i++) {
        struct republish_client *client = &republisher->clients[i];
        if (client->state != client_free) {
            client->has_newer = false;
            client->retry_ns = 0;
            client->state = client_ending;
        }
    }
}

/* ---- Snapshots for one answer ---- */

/* The place of the reader that has waited longest; kvb_max_republish_clients: there is none, or
 * kvb_max_republish_snapshots snapshots are in memory; one stays there until its reader has
 * received it. */
static size_t find_waiting(const struct kvb_republisher *republisher)
{
    const struct republish_client *clients = republisher->clients;
    size_t waiting = kvb_max_republish_clients;
    size_t snapshots = 0;

    for (size_t i = 0; republisher->counts.clients > 0 && i < kvb_max_republish_clients; i++) {
        snapshots += clients[i].snapshot.is_there;
        if (clients[i].state == client_waiting &&
            (waiting == kvb_max_republish_clients ||
             clients[i].progress_ns < clients[waiting].progress_ns)) {
            waiting = i;
        }
    }
    return snapshots < kvb_max_republish_snapshots ? waiting : kvb_max_republish_clients;
}

/* The snapshot cannot be written. */
static void give_up_building(struct kvb_republisher *republisher, uint64_t now_ns)
{
    struct republish_client *client = republisher->building;

    end_building(republisher);
    drop_snapshot(republisher, client);
    client->state = client_ending;
    owe_announcement(republisher, now_ns);
}

static void begin_building(
    struct kvb_republisher *republisher, struct republish_client *client, uint64_t now_ns)
{
    const uint64_t newest = republisher->next_number - 1;
    const uint64_t room = client->takes_newest ? kvb_max_republish_fill : newest - client->next + 1;
    /* So many blocks a batch must have that the snapshot has at most `room` batches. */
    const uint64_t blocks = kvb_shown_count(republisher->options.shown)->shown;
    const uint64_t least = (blocks + room - 1) / room;
    const bool fits = least <= kvb_max_batch_tokens / republisher->options.block_size;

    republisher->stage = stage_snapshot;
    republisher->building = client;
    republisher->building_quota = least > republisher->quota ? (size_t)least : republisher->quota;
    client->state = client_building;
    client->last = newest;
    client->snapshot = (struct snapshot_answer){ .is_there = true, .first_number = client->next };
    kvb_buf_init(&client->snapshot.bytes, republisher->options.max_snapshot_bytes);
    begin_batch(republisher);
    if (!fits || room > kvb_max_republish_fill ||
        kvb_shown_begin(republisher->options.shown) != KVB_OK ||
        add_cleared(&republisher->batch) != KVB_OK) {
        give_up_building(republisher, now_ns);
    }
}

static kvb_status add_payload(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct snapshot_answer *answer)
{
    const size_t before = answer->bytes.len;

    KVB_TRY(kvb_array_reserve(
        &answer->ends, &answer->capacity, answer->count + 1, sizeof *answer->ends,
        kvb_max_republish_fill + 1));
    KVB_TRY(encode_batch(republisher, time, &answer->bytes));
    answer->ends[answer->count++] = answer->bytes.len;
    republisher->counts.snapshot_bytes += answer->bytes.len - before;
    begin_batch(republisher);
    return KVB_OK;
}

/* All batches are written.  An empty batch stands for each number after them. */
static kvb_status finish_answer(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct republish_client *client)
{
    struct snapshot_answer *answer = &client->snapshot;

    KVB_TRY(add_payload(republisher, time, answer)); /* the last one */
    KVB_TRY(add_payload(republisher, time, answer)); /* the empty one */
    answer->count--;
    /* A reader that knows nothing takes any numbers, so long as the last is the newest. */
    if (client->takes_newest) {
        answer->first_number = client->last - answer->count + 1;
        client->next = answer->first_number;
    }
    client->state = client_sending;
    client->progress_ns = time->now_ns;
    republisher->counts.snapshots++;
    end_building(republisher);
    return KVB_OK;
}

static kvb_status
build_part(struct kvb_republisher *republisher, const struct kvb_republish_time *time)
{
    struct republish_client *client = republisher->building;
    const size_t filled = republisher->batch.hash_count;
    const size_t left = republisher->building_quota - filled;
    const size_t part = left < republisher->quota ? left : republisher->quota;
    bool is_done = false;

    KVB_TRY(kvb_shown_step(
        republisher->options.shown, part, slice_looks, &republisher->batch, &is_done));
    if (is_done) {
        return finish_answer(republisher, time, client);
    }
    return republisher->batch.hash_count >= republisher->building_quota
               ? add_payload(republisher, time, &client->snapshot)
               : KVB_OK;
}

static void
work_snapshot(struct kvb_republisher *republisher, const struct kvb_republish_time *time)
{
    struct republish_client *client = republisher->building;
    const kvb_status status = build_part(republisher, time);

    if (status == KVB_CLOSED) { /* the list was cleared, so a new snapshot is small */
        end_building(republisher);
        drop_snapshot(republisher, client);
        client->state = client_waiting;
    } else if (status != KVB_OK) {
        give_up_building(republisher, time->now_ns);
    }
}

/* ---- Announcing ---- */

static void end_announcing(struct kvb_republisher *republisher)
{
    kvb_shown_end(republisher->options.shown);
    republisher->stage = stage_live;
    republisher->batches_since_walk = 0;
}

static void begin_announcing(struct kvb_republisher *republisher, uint64_t now_ns)
{
    republisher->announcement =
        (struct announcement){ .not_before_ns = now_ns + announce_period_ns };
    republisher->stage = stage_announcing;
    republisher->counts.announcements++;
    begin_batch(republisher);
    if (kvb_shown_begin(republisher->options.shown) != KVB_OK ||
        add_cleared(&republisher->batch) != KVB_OK) {
        end_announcing(republisher);
        lose_batch(republisher, now_ns);
    }
}

/* An announcement is void when the list is cleared during it; then it begins again. */
static void work_announcement(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct kvb_republish_action *out_action)
{
    const size_t left = republisher->quota - republisher->batch.hash_count;
    bool is_done = false;
    const kvb_status status = kvb_shown_step(
        republisher->options.shown, left, slice_looks, &republisher->batch, &is_done);

    if (status != KVB_OK) {
        end_announcing(republisher);
        if (status == KVB_CLOSED) {
            owe_announcement(republisher, time->now_ns);
            republisher->announcement.not_before_ns = time->now_ns + announce_retry_ns;
        } else {
            lose_batch(republisher, time->now_ns);
        }
        return;
    }
    if (!is_done && republisher->batch.hash_count < republisher->quota) {
        return; /* the next slice fills it */
    }
    publish_batch(republisher, time, out_action);
    republisher->counts.announced_bytes += out_action->payload.len;
    if (is_done || out_action->kind != KVB_REPUBLISH_LIVE) {
        end_announcing(republisher);
    }
    begin_batch(republisher);
}

/* ---- Live ---- */

static void work_changes(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct kvb_republish_action *out_action)
{
    begin_batch(republisher);
    const kvb_status status = kvb_shown_take_changes(
        republisher->options.shown, republisher->quota, slice_looks, &republisher->batch);
    republisher->batches_since_walk++;
    if (status != KVB_OK) {
        lose_batch(republisher, time->now_ns);
    } else if (republisher->batch.event_count > 0) {
        publish_batch(republisher, time, out_action);
    }
}

/* Snapshots and announcements alternate with changes. */
static bool may_walk(const struct kvb_republisher *republisher)
{
    return republisher->batches_since_walk >= batches_between_walks ||
           !kvb_shown_has_changes(republisher->options.shown);
}

static void work_live(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct kvb_republish_action *out_action)
{
    const size_t waiting = find_waiting(republisher);
    const bool is_silent =
        republisher->batch_ns == 0 || time->now_ns >= republisher->batch_ns + silence_ns;

    /* Whoever knows nothing at all comes first; changes wait for at most one walk at a time. */
    if (is_announcement_due(republisher, time->now_ns) && may_walk(republisher)) {
        begin_announcing(republisher, time->now_ns);
    } else if (waiting < kvb_max_republish_clients && may_walk(republisher)) {
        begin_building(republisher, &republisher->clients[waiting], time->now_ns);
    } else if (kvb_shown_has_changes(republisher->options.shown)) {
        work_changes(republisher, time, out_action);
    } else if (is_silent) {
        begin_batch(republisher);
        publish_batch(republisher, time, out_action);
    }
}

void kvb_republisher_live(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct kvb_republish_action *out_action)
{
    *out_action = (struct kvb_republish_action){ .kind = KVB_REPUBLISH_NOTHING };
    if (republisher->stage == stage_snapshot) {
        work_snapshot(republisher, time);
    } else if (!may_number(republisher)) {
        return;
    } else if (republisher->stage == stage_announcing) {
        work_announcement(republisher, time, out_action);
    } else {
        work_live(republisher, time, out_action);
    }
}

/* ---- Sending answers ---- */

static bool is_sendable(const struct republish_client *client, uint64_t now_ns)
{
    return (client->state == client_sending || client->state == client_ending) &&
           now_ns >= client->retry_ns;
}

/* False: the ring no longer has the next batch, so a snapshot must continue from there. */
static bool next_message(
    struct kvb_republisher *republisher, struct republish_client *client,
    struct kvb_republish_action *out_action)
{
    const struct snapshot_answer *answer = &client->snapshot;
    uint64_t found = 0;

    *out_action = (struct kvb_republish_action){
        .kind = client->state == client_ending ? KVB_REPUBLISH_END : KVB_REPUBLISH_REPLY,
        .number = client->next,
        .identity = { .data = client->identity, .len = client->identity_len },
        .client = (size_t)(client - republisher->clients),
    };
    if (client->state == client_ending) {
        return true;
    }
    if (answer->is_there) {
        const uint64_t behind = client->next - answer->first_number;
        const size_t at =
            behind < answer->count ? (size_t)behind : answer->count; /* the empty one */
        const size_t begin = at > 0 ? answer->ends[at - 1] : 0;
        out_action->payload =
            (kvb_span){ .data = answer->bytes.data + begin, .len = answer->ends[at] - begin };
        return true;
    }
    if (!is_kept(republisher, client->next)) {
        client->state = client_waiting;
        return false;
    }
    const size_t at = kvb_replay_buffer_find(republisher->ring, client->next);
    out_action->payload = kvb_replay_buffer_at(republisher->ring, at, &found);
    assert(found == client->next);
    return true;
}

void kvb_republisher_reply(
    struct kvb_republisher *republisher, uint64_t now_ns, struct kvb_republish_action *out_action)
{
    for (size_t i = 0; i < kvb_max_republish_clients; i++) {
        const size_t at = (republisher->next_client + i) % kvb_max_republish_clients;
        struct republish_client *client = &republisher->clients[at];
        if (is_sendable(client, now_ns) && next_message(republisher, client, out_action)) {
            republisher->next_client = at + 1;
            return;
        }
    }
    *out_action = (struct kvb_republish_action){ .kind = KVB_REPUBLISH_NOTHING };
}

void kvb_republisher_sent(
    struct kvb_republisher *republisher, size_t at, enum kvb_republish_outcome outcome,
    uint64_t now_ns)
{
    struct republish_client *client = &republisher->clients[at];

    /* A reader that is gone, or that has taken nothing for long. */
    if (outcome == KVB_REPUBLISH_GONE ||
        (outcome == KVB_REPUBLISH_FULL && now_ns >= client->progress_ns + no_progress_ns)) {
        republisher->counts.dropped++;
        free_client(republisher, client);
        return;
    }
    if (outcome == KVB_REPUBLISH_FULL) {
        client->retry_ns = now_ns + full_retry_ns;
        return;
    }
    client->progress_ns = now_ns;
    client->retry_ns = 0;
    if (client->state != client_ending) {
        republisher->counts.replies++;
        client->state = client->next++ == client->last ? client_ending : client->state;
    } else if (client->has_newer) { /* that was the end mark: its next request is answered */
        drop_snapshot(republisher, client);
        client->has_newer = false;
        begin_client_answer(republisher, client, client->newer_from, now_ns);
    } else {
        free_client(republisher, client);
    }
}

bool kvb_republisher_is_busy(const struct kvb_republisher *republisher, uint64_t now_ns)
{
    for (size_t i = 0; republisher->counts.clients > 0 && i < kvb_max_republish_clients; i++) {
        if (is_sendable(&republisher->clients[i], now_ns)) {
            return true;
        }
    }
    return republisher->stage == stage_snapshot ||
           find_waiting(republisher) < kvb_max_republish_clients ||
           (may_number(republisher) && (republisher->stage == stage_announcing ||
                                        kvb_shown_has_changes(republisher->options.shown)));
}
