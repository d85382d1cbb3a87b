#include "kvbridge/republish.h"
#include "core/clock.h"
#include "core/hash.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/endpoint.h"
#include "kvbridge/ingest.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"
#include "kvbridge/republish_numbers.h"
#include "kvbridge/shown.h"
#include "stream/stream.h"
#include "wire/engine/encode.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Publishes one rank's events again, for readers of engines.  stream/republish/ decides what is
 * sent; ingest/zmq/event_server.h has the sockets. */

static const uint64_t look_ns = 20 * KVB_NS_PER_MS; /* for what is not reported */
static const uint64_t listen_retry_ns = KVB_NS_PER_S;

enum {
    kept_batches = 10000,  /* as vLLM keeps by default */
    kept_bytes = 16 << 20, /* 10,000 batches of 20 blocks */
    snapshot_bytes = 64 << 20,
    inputs_a_turn = 64,
    stalled_ms = 60000, /* of a reader that hangs; twice as long as its answers wait */
    goodbye_ms = 500    /* time to send the last batch of a worker that is removed, and end marks */
};

struct bridge_republish {
    struct kvb_shown *shown;                     /* of the stream, which owns it */
    struct kvb_republisher *republisher;         /* owned */
    struct kvb_event_server *server;             /* owned; NULL: an address is in use */
    char numbers[kvb_republish_directory_bytes]; /* the directory of its numbers; "": none */
    char numbers_name[sizeof(struct kvb_checkpoint_name)]; /* and the file's name there */
    enum kvb_republish_style style;
    bool has_input;
    bool is_reserving_failed; /* and logged */
    uint64_t next_look_ns;
    uint64_t next_listen_ns;
    struct kvb_log_backoff listen_log;
    struct kvb_detail why; /* why it does not listen; "": it does */
    struct kvb_log_backoff ended_log;
};

/* ---- Opening ---- */

static kvb_status
encode_republished(void *context, const struct kvb_event_batch *batch, struct kvb_buf *out)
{
    const struct bridge_republish *republish = context;

    return kvb_republished_batch_encode(
        batch, republish->style == KVB_REPUBLISH_AIBRIX ? KVB_REPUBLISH_ARRAY : KVB_REPUBLISH_MAP,
        kvb_shown_has_signed_hashes(republish->shown), out);
}

static bool keeps_numbers(const struct bridge_republish *republish)
{
    return republish->numbers[0] != '\0';
}

/* Beside the checkpoint.  Without one, the file is named by the address: that is where readers have
 * their numbers from, and one process of the host at a time can listen there. */
static void find_numbers(const struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct bridge_republish *republish = rank->republish;
    const char *address = rank->part->republish_events;

    if (bridge->checkpoints->store && rank->checkpoint_name.text[0] != '\0') {
        (void)snprintf(
            republish->numbers, sizeof republish->numbers, "%s", bridge->config->checkpoint);
        memcpy(
            republish->numbers_name, rank->checkpoint_name.text, sizeof rank->checkpoint_name.text);
    } else if (kvb_republish_numbers_directory(republish->numbers) == KVB_OK) {
        const uint64_t hash =
            kvb_hash64((kvb_span){ (const uint8_t *)address, strlen(address) }, 0);
        (void)snprintf(
            republish->numbers_name, sizeof republish->numbers_name,
            "republish-%016" PRIx64 "-%" PRIu32, hash, rank->dp_rank);
    } else {
        republish->numbers[0] = '\0';
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge",
            "numbers of republished events are kept nowhere: if the clock is set back before a "
            "restart, readers keep blocks that are gone; set checkpoint",
            "events", address, NULL);
    }
}

static kvb_status open_republisher(const struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct bridge_republish *republish = rank->republish;
    /* Where numbers are kept nowhere, none are reserved.  The clock is above all numbers that
     * were used unless it was set back, because fewer than one batch a microsecond is published. */
    struct kvb_republish_numbers numbers = { .first = kvb_clock_wall_us(), .end = UINT64_MAX };

    find_numbers(bridge, rank);
    if (keeps_numbers(republish)) {
        numbers = kvb_republish_numbers_begin(
            republish->numbers, republish->numbers_name, numbers.first, kvb_republish_reserve,
            bridge->checkpoints->store == NULL);
    }
    const struct kvb_republisher_options options = {
        .shown = republish->shown,
        .encode = encode_republished,
        .encode_context = republish,
        .dp_rank = rank->dp_rank,
        .block_size = rank->part->worker->block_size,
        .first_number = numbers.first,
        .reserved_end = numbers.end,
        .from_zero = republish->style == KVB_REPUBLISH_DYNAMO ? KVB_FROM_ZERO_SNAPSHOT
                                                              : KVB_FROM_ZERO_ANNOUNCE,
        .max_kept_batches = kept_batches,
        .max_kept_bytes = kept_bytes,
        .max_snapshot_bytes = snapshot_bytes,
    };

    return kvb_republisher_new(&options, &republish->republisher);
}

static void say_listening(const struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    const struct kvb_part *part = rank->part;
    char worker[24];
    char dp_rank[24];

    kvb_log_write(
        bridge->log, KVB_LOG_INFO, "bridge", "republishing the events of a rank", "events",
        part->republish_events, "replay", part->republish_replay, "worker",
        kvb_log_number(worker, rank->worker_id), "dp_rank", kvb_log_number(dp_rank, rank->dp_rank),
        NULL);
}

static void
say_not_listening(const struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    char worker[24];

    if (kvb_log_backoff_due(&rank->republish->listen_log, now_ns)) {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge",
            "the events of a rank are not republished; trying again", "why",
            rank->republish->why.text, "worker", kvb_log_number(worker, rank->worker_id), NULL);
    }
}

/* The topic of a rank's messages: its own, or kv@HOST:PORT@MODEL, where HOST is this host where the
 * socket listens everywhere. */
static void make_topic(const struct kvb_part *part, char out_topic[kvb_event_topic_bytes])
{
    const char *topic = part->worker->republish.topic;
    struct kvb_endpoint endpoint;
    char host[kvb_endpoint_host_bytes] = "";

    /* Its own topic, or an address of which none can be made. */
    if (topic[0] != '\0' || kvb_endpoint_parse(part->republish_events, &endpoint, NULL) != KVB_OK) {
        (void)snprintf(out_topic, kvb_event_topic_bytes, "%s", topic);
        return;
    }
    if (endpoint.scheme != KVB_ENDPOINT_TCP || kvb_endpoint_is_everywhere(endpoint.place)) {
        (void)gethostname(host, sizeof host - 1); /* else: no host in it */
    } else {
        (void)snprintf(
            host, sizeof host, "%.*s", (int)endpoint.place.len, (const char *)endpoint.place.data);
    }
    (void)snprintf(
        out_topic, kvb_event_topic_bytes, "kv@%s:%u@%s", host, endpoint.port, part->worker->model);
}

static kvb_status open_server(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct bridge_republish *republish = rank->republish;
    char topic[kvb_event_topic_bytes];

    make_topic(rank->part, topic);
    const struct kvb_event_server_options options = { .events = rank->part->republish_events,
                                                      .replay = rank->part->republish_replay,
                                                      .topic = topic,
                                                      .stalled_ms = stalled_ms,
                                                      .poller = bridge->ingest->poller,
                                                      .owner = rank->readers };
    /* In case the call gives no reason of its own. */
    kvb_detail_set(&republish->why, "no memory for its sockets");
    return kvb_event_server_open(
        bridge->ingest->zmq, &options, &republish->server, &republish->why);
}

static void listen_for_readers(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    struct bridge_republish *republish = rank->republish;

    if (republish->server || now_ns < republish->next_listen_ns) {
        return;
    }
    republish->next_listen_ns = now_ns + listen_retry_ns;
    if (open_server(bridge, rank) != KVB_OK) {
        /* The address of a worker that has just left is free when libzmq has closed it. */
        say_not_listening(bridge, rank, now_ns);
        return;
    }
    republish->why.text[0] = '\0';
    kvb_log_backoff_end(&republish->listen_log);
    say_listening(bridge, rank);
}

static void note_ended(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const uint64_t ended = kvb_event_server_take_ended(rank->republish->server);

    kvb_metric_add(&bridge->shown->metrics, kvb_bridge_republish_readers_ended, ended);
    if (ended > 0 && kvb_log_backoff_due(&rank->republish->ended_log, now_ns)) {
        char worker[24];
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge",
            "a reader of republished events was disconnected: it sent more subscriptions or "
            "requests than readers do",
            "events", rank->part->republish_events, "worker",
            kvb_log_number(worker, rank->worker_id), NULL);
    }
}

kvb_status kvb_bridge_open_republish(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (!kvb_part_is_republished(rank->part)) {
        return KVB_OK;
    }
    rank->republish = calloc(1, sizeof *rank->republish);
    if (!rank->republish) {
        return KVB_NO_MEMORY;
    }
    /* There is room: the rank's readers have a number of the poller. */
    rank->republished_at = bridge->membership->republished_count++;
    bridge->membership->republished[rank->republished_at] = rank;
    rank->republish->style = rank->part->worker->republish.style;
    rank->republish->shown = kvb_stream_shown(rank->served.stream);
    /* Until its engine has proven a restored list, readers are sent an empty one. */
    kvb_shown_hide(rank->republish->shown, !kvb_advertiser_is_proven(&rank->served.advertiser));
    return open_republisher(bridge, rank);
}

/* ---- Numbers ---- */

static void reserve_numbers(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct bridge_republish *republish = rank->republish;
    uint64_t end = 0;

    if (!kvb_republisher_wants_numbers(republish->republisher, &end)) {
        return;
    }
    /* Without waiting for the disk: this is the thread that reads engines. */
    const bool has_failed = kvb_republish_numbers_write(
                                republish->numbers, republish->numbers_name, end, false) != KVB_OK;
    if (has_failed && !republish->is_reserving_failed) {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge",
            "numbers of republished events cannot be written: after a restart readers may keep "
            "blocks that are gone until the next announcement",
            "directory", republish->numbers, NULL);
    }
    republish->is_reserving_failed = has_failed;
    /* When the disk fails numbers go on.  A later process then begins at the clock, or after the
     * numbers that were written. */
    kvb_republisher_reserved(republish->republisher, end);
}

/* ---- Sending ---- */

static void send_live(struct bridge_republish *republish, const struct kvb_republish_action *action)
{
    if (republish->server) { /* otherwise readers find it in the ring later */
        (void)kvb_event_server_publish(republish->server, action->number, action->payload);
    }
}

static void send_reply(
    struct bridge_republish *republish, const struct kvb_republish_action *action, uint64_t now_ns)
{
    kvb_status status = KVB_NOT_FOUND;

    /* Without a server the reader's connection is gone with it. */
    if (republish->server) {
        status = action->kind == KVB_REPUBLISH_END
                     ? kvb_event_server_end(republish->server, action->identity)
                     : kvb_event_server_reply(
                           republish->server, action->identity, action->number, action->payload);
    }
    kvb_republisher_sent(
        republish->republisher, action->client,
        status == KVB_OK      ? KVB_REPUBLISH_SENT
        : status == KVB_AGAIN ? KVB_REPUBLISH_FULL
                              : KVB_REPUBLISH_GONE,
        now_ns);
}

/* ---- Receiving ---- */

static void take_reader_input(
    struct bridge_rank *rank, const struct kvb_event_server_received *received, uint64_t now_ns)
{
    struct kvb_republisher *republisher = rank->republish->republisher;

    if (received->kind == KVB_EVENT_REQUEST) {
        (void)kvb_republisher_request(
            republisher, received->identity, received->seq, now_ns); /* it counts refusals */
    } else if (
        received->kind == KVB_EVENT_SUBSCRIBED && rank->republish->style != KVB_REPUBLISH_DYNAMO) {
        /* It may know nothing.  Readers of Dynamo's style request what they lack. */
        kvb_republisher_subscribed(republisher, now_ns);
    }
}

static void take_inputs(struct bridge_rank *rank, uint64_t now_ns)
{
    struct bridge_republish *republish = rank->republish;
    struct kvb_event_server_received received;

    republish->has_input = false;
    for (int i = 0; i < inputs_a_turn; i++) {
        if (!kvb_event_server_receive(republish->server, &received)) {
            return;
        }
        take_reader_input(rank, &received, now_ns);
    }
    /* The limit is reached: the poller may not report again what is there already. */
    republish->has_input = true;
}

/* ---- A turn ---- */

/* Works until the republisher is idle or the time is over.  True: there is more to do. */
static bool send_what_is_due(struct bridge_republish *republish, uint64_t until_ns)
{
    struct kvb_republish_action action;
    struct kvb_republish_time time;
    bool has_sent = true;

    do {
        time = (struct kvb_republish_time){ .now_ns = kvb_clock_monotonic_ns(),
                                            .wall_s = (double)kvb_clock_wall_us() / 1e6 };
        kvb_republisher_live(republish->republisher, &time, &action);
        has_sent = action.kind == KVB_REPUBLISH_LIVE;
        if (has_sent) {
            send_live(republish, &action);
        }
        /* One of each in turn, so that neither kind waits for the other. */
        kvb_republisher_reply(republish->republisher, time.now_ns, &action);
        if (action.kind != KVB_REPUBLISH_NOTHING) {
            has_sent = true;
            send_reply(republish, &action, time.now_ns);
        }
        /* A slice of work may bring no message. */
        has_sent |= kvb_republisher_is_busy(republish->republisher, time.now_ns);
    } while (has_sent && time.now_ns < until_ns);
    return has_sent;
}

static bool republish_rank(
    struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns, uint64_t until_ns)
{
    struct bridge_republish *republish = rank->republish;
    const bool is_look_due = now_ns >= republish->next_look_ns;

    if (is_look_due) {
        republish->next_look_ns = now_ns + look_ns;
        listen_for_readers(bridge, rank, now_ns);
        /* A restored list is shown when its engine has proven it, or when it was replayed. */
        if (kvb_advertiser_is_proven(&rank->served.advertiser)) {
            kvb_shown_hide(republish->shown, false);
        }
        if (republish->server) {
            note_ended(bridge, rank, now_ns);
        }
    }
    if (republish->server && (is_look_due || republish->has_input)) {
        take_inputs(rank, now_ns);
    }
    /* The usual turn: nothing has come, and nothing is due. */
    if (!is_look_due && !republish->has_input &&
        !kvb_republisher_is_busy(republish->republisher, now_ns)) {
        return false;
    }
    /* Before sending: without reserved numbers no batch is made. */
    reserve_numbers(bridge, rank);
    return send_what_is_due(republish, until_ns) || republish->has_input;
}

bool kvb_bridge_republish(struct kvb_bridge *bridge, uint64_t max_ns)
{
    struct bridge_membership *membership = bridge->membership;
    const size_t count = membership->republished_count;
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    uint64_t now_ns = began_ns;
    bool has_more = false;

    for (size_t i = 0; i < count; i++) {
        /* The number of ranks may have changed since the last turn. */
        const size_t at = (membership->next_republished + i) % count;
        has_more |= republish_rank(bridge, membership->republished[at], now_ns, began_ns + max_ns);
        now_ns = kvb_clock_monotonic_ns();
        if (now_ns >= began_ns + max_ns) { /* the next turn begins with the next rank */
            membership->next_republished = at + 1;
            return true;
        }
    }
    return has_more;
}

void kvb_bridge_republish_input(struct bridge_rank *rank)
{
    rank->republish->has_input = true;
}

/* ---- Closing ---- */

static void save_next_number(const struct bridge_republish *republish, bool is_exact)
{
    if (republish->republisher && keeps_numbers(republish)) {
        /* After a failure the next process begins after the reserved numbers, or at the clock. */
        (void)kvb_republish_numbers_write(
            republish->numbers, republish->numbers_name,
            kvb_republisher_next_number(republish->republisher), is_exact);
    }
}

void kvb_bridge_save_numbers(struct kvb_bridge *bridge)
{
    for (size_t i = 0; i < bridge->membership->republished_count; i++) {
        save_next_number(bridge->membership->republished[i]->republish, true);
    }
}

const struct kvb_republish_counts *kvb_bridge_count_republish(const struct bridge_rank *rank)
{
    return kvb_republisher_count(rank->republish->republisher);
}

struct kvb_shown *kvb_bridge_shown_of(const struct bridge_rank *rank)
{
    return rank->republish->shown;
}

void kvb_bridge_report_republish(const struct bridge_rank *rank, struct kvb_republish_report *out)
{
    const struct bridge_republish *republish = rank->republish;

    *out = (struct kvb_republish_report){
        .events = rank->part->republish_events,
        .replay = rank->part->republish_replay,
        .blocks = kvb_shown_count(republish->shown)->shown,
        .left_out = kvb_shown_left_out(republish->shown),
        .next_number = kvb_republisher_next_number(republish->republisher),
        .answers = kvb_republisher_count(republish->republisher)->clients,
        .why = republish->why.text,
    };
}

const char *kvb_bridge_republish_trouble(const struct bridge_rank *rank)
{
    return rank->republish->why.text;
}

/* Readers must not keep the blocks of a worker that was removed. */
static void send_last_clear(struct bridge_republish *republish)
{
    const struct kvb_republish_time time = { .now_ns = kvb_clock_monotonic_ns(),
                                             .wall_s = (double)kvb_clock_wall_us() / 1e6 };
    struct kvb_republish_action action = { .kind = KVB_REPUBLISH_NOTHING };
    enum { tries = 4 }; /* the first may only end an announcement */

    kvb_shown_hide(republish->shown, true);
    for (int i = 0; i < tries && action.kind != KVB_REPUBLISH_LIVE; i++) {
        kvb_republisher_live(republish->republisher, &time, &action);
    }
    if (action.kind == KVB_REPUBLISH_LIVE) {
        send_live(republish, &action);
    }
}

/* To readers that wait for an answer, also to those whose request was not read yet.  False: there
 * are none. */
static bool send_last_ends(struct bridge_rank *rank)
{
    const struct bridge_republish *republish = rank->republish;
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    struct kvb_republish_action action = { .kind = KVB_REPUBLISH_END };
    int sent = 0;

    take_inputs(rank, now_ns);
    kvb_republisher_end_answers(republish->republisher);
    for (; sent < kvb_max_republish_clients; sent++) {
        kvb_republisher_reply(republish->republisher, now_ns, &action);
        if (action.kind == KVB_REPUBLISH_NOTHING) {
            break;
        }
        send_reply(rank->republish, &action, now_ns);
    }
    return sent > 0;
}

void kvb_bridge_close_republish(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum bridge_republish_end end)
{
    struct bridge_republish *republish = rank->republish;
    bool has_goodbye = end == BRIDGE_REPUBLISH_WORKER_GONE;

    if (!republish) {
        return;
    }
    /* First, because it uses up a number, which the file must not offer again. */
    if (republish->republisher && end == BRIDGE_REPUBLISH_WORKER_GONE) {
        send_last_clear(republish);
    }
    if (end == BRIDGE_REPUBLISH_WORKER_GONE) {
        /* Not as exact, because the other ranks must not wait for the disk. */
        save_next_number(rank->republish, false);
    }
    /* A reader without a time limit would wait for its end mark for good. */
    if (republish->republisher && republish->server) {
        has_goodbye |= send_last_ends(rank);
    }
    kvb_event_server_close(republish->server, has_goodbye ? goodbye_ms : 0);
    kvb_republisher_free(republish->republisher);
    free(republish);
    rank->republish = NULL;
    struct bridge_membership *membership = bridge->membership;
    struct bridge_rank *last = membership->republished[--membership->republished_count];
    membership->republished[rank->republished_at] = last;
    last->republished_at = rank->republished_at;
}
