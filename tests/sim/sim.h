#pragma once

#include "core/clock.h"
#include "core/hash.h"
#include "core/random.h"
#include "fleet/engine/engine.h"
#include "index/index.h"
#include "model/event_batch.h"
#include "replica/turn.h"
#include "stream/checkpoint/checkpoint.h"
#include "stream/checkpoint/policy.h"
#include "stream/page_watch.h"
#include "stream/serve.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A whole fleet in one thread, with virtual time, from one 64-bit seed.
 *
 *     engine --- link ---> bridge --- broker ---> aggregator        x streams, x aggregators
 *       ^         |          ^                        |
 *     truth    faults     what was told            what is listed
 *       +---------------------- checks -----------------+
 *
 * Engines, streams, followers and all decisions of the two daemons are the product's own pure
 * rooms; only what they find outside (sockets, NATS, disks, clocks) is modelled here: link.c for
 * libzmq, broker.c for nats-server and nats.c, checkpoint.c for files, bridge.c and aggregator.c
 * for what stream/serve.h and replica/turn.h ask for.
 *
 * Threads: one.  Memory: a few MB for one world at a time. */

enum {
    sim_streams = 4,
    sim_bridges = 2,
    sim_aggregators = 3,
    sim_batches = 1 << 13, /* of one engine in one run, all incarnations together */
    sim_blocks = 128,      /* held by one engine at the same time */
    sim_advertised = 256,  /* listed by a reader */
    sim_names = 1 << 13,   /* ever held by one engine */
    sim_faults = 24,
    sim_flight = 1 << 11,
    sim_jobs = 8,
    sim_monitor = 16, /* received and not read */
    sim_past = 32,    /* messages */
    sim_live = 64,    /* live batches read at once */
};

static const uint64_t sim_step_ns = 10 * KVB_NS_PER_MS;

/* ---- What goes wrong: faults.c ---- */

enum sim_fault_kind {
    /* between engine and bridge */
    SIM_DROP_LIVE, /* PUB above its high-water mark drops */
    SIM_DUPLICATE, /* live batches arrive twice, or again later */
    SIM_CORRUPT,   /* a live batch arrives with other bytes, which cannot be decoded */
    SIM_SLOW_LINK, /* delay */
    SIM_CUT_LINK,  /* in both directions; for less than a second TCP repairs it */
    SIM_CUT_IN,    /* nothing from the engine arrives, requests reach it */
    SIM_CUT_OUT,   /* the engine receives nothing, its batches arrive */
    SIM_LATE_MONITOR,
    SIM_REPLAY_CUT,    /* the end of the reply is missing, but END arrives */
    SIM_REPLAY_HOLES,  /* some batches inside are missing, but END arrives */
    SIM_REPLAY_NO_END, /* END is missing */
    SIM_REPLAY_MUTE,   /* requests are not answered */
    /* of engines */
    SIM_RESTART,
    SIM_OVERTAKE, /* a restart behind a cut link, with numbers beyond ours */
    /* the last batches are lost, and an immediate restart uses the same numbers again */
    SIM_FILL_GAP,
    SIM_CLEAR,
    SIM_BURST,
    SIM_IDLE,
    SIM_SLEEP, /* vLLM's sleep mode: the cache is discarded, and its event is delayed */
    /* of the server between them */
    SIM_BRIDGE_CRASH, /* one in four corrupts the checkpoints */
    SIM_BRIDGE_STOP,  /* SIGTERM: a goodbye, and everything is saved */
    SIM_BRIDGE_FREEZE,
    SIM_CLOCK, /* the wall clock jumps */
    SIM_NATS_DOWN,
    SIM_NATS_FREEZE,
    SIM_NATS_SLOW,
    SIM_LOSE_BRIDGE, /* its connection to NATS is lost */
    SIM_LOSE_AGGREGATOR,
    SIM_DROP_MESSAGES, /* a slow consumer: the server drops its messages */
    SIM_FLIP,          /* an event arrives with another block */
    SIM_ECHO,          /* old events and heartbeats are repeated */
    SIM_FORGE,         /* events and heartbeats of a stream are forged */
    SIM_DROP_REQUESTS,
    SIM_DROP_ANSWERS,
    SIM_BUSY,
    SIM_AGGREGATOR_CRASH,
    SIM_AGGREGATOR_FREEZE,
    SIM_OVERLOAD, /* the stream takes most of the bridge's time */
    /* the faults that a replay does not always repair */
    SIM_REPLAY_CROSSED, /* another engine answers */
    /* the same, but sent by the engine itself */
    SIM_POISON,
    SIM_SKIP_STORED,
    SIM_SKIP_REMOVED,
    SIM_UNKNOWN_EVENT,
    SIM_HOLE,
    SIM_FAULT_KINDS
};

struct sim_fault {
    enum sim_fault_kind kind;
    bool is_off; /* switched off in the search for the smallest set that fails */
    bool is_active;
    bool is_over;
    unsigned target; /* stream, bridge or aggregator */
    uint64_t from_ns;
    uint64_t to_ns;
    unsigned percent; /* share of messages */
    unsigned count;   /* how often, or how far */
    uint64_t rng;
};

/* ---- Engines: engine.c ---- */

/* One message of an engine, and what the engine held after it. */
struct sim_batch {
    unsigned life;
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    bool is_poison;
    bool has_cleared;
    bool is_kept;    /* false: never put into the replay buffer */
    bool is_unknown; /* the engine sent an undecodable event, and nothing has been cleared since */
    uint64_t at_ns;
    struct kvb_event_batch batch; /* owned */
    uint64_t *held;               /* owned: names, sorted */
    size_t held_count;
};

struct sim_name {
    uint64_t block;
    uint64_t since_ns;     /* when it was last stored */
    uint64_t last_held_ns; /* UINT64_MAX: it is still held */
};

struct sim_engine {
    struct kvb_engine *engine; /* owned */
    uint64_t rng;
    bool is_up;
    bool waits_for_link; /* publishes nothing before a subscription arrives */
    unsigned life;
    uint64_t up_ns; /* when it starts again */
    uint64_t next_step_ns;
    uint64_t next_prompt_ns;
    uint64_t pace_ns;
    size_t buffer_batches;
    bool has_replay;
    /* the engine that answers at its replay port; another one after a configuration error */
    size_t replay_by;
    uint32_t blocks;
    struct sim_batch *batches; /* owned: sim_batches */
    uint32_t batch_count;
    uint32_t life_first;    /* the first batch of this incarnation */
    uint32_t last_cleared;  /* the newest batch that cleared everything; UINT32_MAX: none */
    struct sim_name *names; /* owned: sim_names, open addressing */
    size_t name_count;
    /* final states other than EXACT that are permitted in this incarnation */
    bool may_be_gone, may_be_hole, may_be_poison, may_be_skipped, may_be_unknown;
    bool was_replay_bad, was_corrupt;
    /* the incarnation last asked for its whole buffer; 0: by no bridge that is running */
    unsigned full_life;
    uint64_t full_ns;
};

/* ---- The link of one stream: link.c ---- */

struct sim_flying {
    uint32_t engine; /* the engine of the batch */
    uint32_t batch;  /* UINT32_MAX: END */
    bool is_corrupt; /* of END: the reply was longer than the bridge accepts */
    uint64_t due_ns;
};

struct sim_queue {
    struct sim_flying *items; /* owned: sim_flight */
    size_t at, count;
};

struct sim_monitor_event {
    bool is_up;
    uint64_t due_ns;
};

struct sim_link {
    bool is_open;     /* the TCP connection */
    unsigned life;    /* incarnation of the engine at its other end */
    uint64_t open_ns; /* time of the next attempt */
    uint64_t subscribed_ns;
    uint64_t cut_ns;       /* since when it is cut; 0: it is not */
    bool is_deaf, is_mute; /* cut in one direction: from the engine, to the engine */
    uint64_t received_ns;
    uint64_t hindered_ns; /* when replays were last kept from being complete */
    struct sim_queue wire;
    struct sim_queue sub; /* received and not read */
    struct sim_monitor_event monitor[sim_monitor];
    size_t monitor_count;
    bool is_up_reported; /* the last state that the monitor reported */
    uint64_t rng;
    /* the DEALER */
    bool is_requesting, is_asked;
    uint64_t lost_full_ns; /* when the request was made whose answer, from 0 on, was lost last
                              with its connection */
    uint64_t request_from;
    uint64_t asked_ns;
    uint64_t request_due_ns;
    struct sim_queue replies;
};

/* ---- What was published to readers: truth.c ---- */

/* After one event: the list of a reader that missed nothing. */
struct sim_moment {
    uint64_t epoch;
    uint64_t event_id;
    uint64_t sum;
};

struct sim_story {
    uint64_t epoch;
    uint64_t held[sim_advertised];
    size_t held_count;
    uint64_t sum;
    struct sim_moment *moments; /* owned */
    uint64_t advertised_to;     /* after a restoration: events up to here were published before */
    bool has_two_truths;        /* and one of them differs from its first publication */
    size_t count, capacity;
};

/* ---- Bridges: bridge.c ---- */

struct sim_place {
    uint32_t engine;
    uint32_t batch;
};

struct sim_rank {
    struct kvb_served served; /* first; its stream is owned, and NULL while the bridge is down */
    unsigned stream_number;
    bool knows_life;  /* the connection has not changed since */
    unsigned up_life; /* incarnation of the engine that it was connected to then */
    struct kvb_checkpoint_policy checkpoint;
    struct kvb_page_watch page_watch;
    /* its position, for the checks */
    bool has_place;
    struct sim_place place; /* the batch applied last */
    uint64_t applied_before;
    uint64_t doubtful; /* the maximum of the last moments */
    uint64_t doubtful_ns;
    /* when a replay was last applied; meanwhile lists show an earlier state */
    uint64_t replayed_ns;
    struct sim_story story;
};

/* ---- Checkpoints: checkpoint.c ---- */

struct sim_file {
    bool is_there;
    bool is_spoilt;
    struct kvb_buf bytes; /* owned */
    uint64_t seq;         /* number and position of the newest batch in it */
    struct sim_place place;
};

struct sim_disk { /* the disk of one stream */
    struct kvb_checkpoint_maker maker;
    struct sim_file file;   /* read by the next process */
    struct sim_file coming; /* being made or written; is_there: complete, and not void */
    uint64_t written_ns;    /* when the write ends */
    uint64_t rng;
};

struct sim_job {
    bool is_used;
    unsigned aggregator;
    unsigned aggregator_life;
    unsigned stream_number;
    uint64_t token;
    struct kvb_sync_job job;
};

struct sim_client { /* a client of NATS */
    bool is_connected;
    uint64_t connects;
    uint64_t try_ns;
};

struct sim_bridge {
    struct sim_world *world; /* borrowed */
    size_t number;
    bool is_up;
    bool is_frozen;
    uint64_t frozen_ns; /* since then, or when it was frozen last */
    bool has_unread;    /* it was frozen for 1 s or more until now: libzmq's thread has read nothing
                           yet */
    uint64_t up_ns;
    uint64_t wall_us; /* wall clock minus virtual time */
    struct sim_client nats;
    struct kvb_server server;
    struct sim_flying received[sim_live];
    size_t received_count, received_at;
    size_t next_socket; /* the stream whose sockets are read next in this turn */
    struct sim_job jobs[sim_jobs];
    struct kvb_router_batch chunk;
    uint64_t rng;
};

/* ---- NATS: broker.c ---- */

enum sim_message_kind { SIM_EVENTS, SIM_BEAT, SIM_ANSWER, SIM_REQUEST };

struct sim_message {
    enum sim_message_kind kind;
    unsigned from_bridge;
    unsigned to_aggregator;
    unsigned aggregator_life;
    unsigned stream_number;
    uint64_t routed_ns; /* until then it is lost if the sender's connection is */
    uint64_t due_ns;
    uint64_t token;
    struct kvb_heartbeat beat;
    struct kvb_sync_reply reply;
    struct kvb_sync_request request;
    struct kvb_router_batch events; /* owned */
    /* of the reply; NULL in other messages */
    struct kvb_hash128 sums[KVB_LIST_COUNT][kvb_sync_buckets];
    struct sim_message *next;
};

struct sim_mailbox { /* one subscription of one client, in order */
    struct sim_message *first, *last;
};

struct sim_broker {
    bool is_up;
    bool is_frozen;
    uint64_t frozen_ns;
    struct sim_message *spare;
};

/* ---- Aggregators: aggregator.c ---- */

struct sim_aggregator {
    struct sim_world *world; /* borrowed */
    size_t number;
    bool is_up;
    bool is_frozen;
    bool sends_requests;
    unsigned life;
    uint64_t up_ns;
    struct kvb_replica_turn turn;
    struct sim_client nats;
    uint64_t echo; /* the newest that came back */
    uint64_t echo_sent;
    bool has_unread;             /* it was frozen until now: its messages wait in the connection */
    uint64_t went_on_ns;         /* when it was last frozen until then */
    struct sim_mailbox received; /* events, heartbeats */
    /* a separate subscription: no common order here */
    struct sim_mailbox answers;
    struct sim_mailbox requests_sent;
    struct kvb_prefix_index *index;  /* owned */
    struct kvb_followers *followers; /* owned */
    uint64_t began_ns;
    uint64_t rng;
    struct sim_mailbox past; /* the newest messages, kept when a fault repeats some */
    size_t past_count;
    unsigned misses[sim_streams]; /* consecutive ticks */
    bool was_lied_to[sim_streams];
    uint64_t dirty; /* one bit for each stream: its list may have changed */
};

/* ---- The world: world.c ---- */

struct sim_world {
    uint64_t seed;
    uint64_t now_ns;
    uint64_t end_of_faults_ns;
    uint64_t end_ns;
    FILE *trace; /* borrowed; NULL = none */
    uint64_t trace_hash;
    bool is_cooldown; /* after this time no fault is active */
    bool has_failed;
    char failure[512];
    char cost[512]; /* the first time that something cost too much; "": never */

    bool is_repairable; /* no fault is injected that a replay does not repair */
    unsigned formats;   /* of all bridges */
    enum kvb_reannounce reannounce;
    uint64_t down_clear_ms;
    size_t log_blocks;
    size_t slice_work; /* work on a batch in one step */
    size_t rank_count_of_worker;
    bool knows_total;
    uint64_t checkpoint_ns; /* between two checkpoints; 0: none are made */

    struct sim_fault faults[sim_faults];
    size_t fault_count;
    /* by kind and target; NULL: not active */
    struct sim_fault *active[SIM_FAULT_KINDS][sim_streams];
    uint64_t rng; /* the next stream to be served */
    size_t stream_count, bridge_count, aggregator_count;
    struct sim_engine engines[sim_streams];
    struct sim_link links[sim_streams];
    struct sim_rank ranks[sim_streams];
    struct sim_disk disks[sim_streams];
    struct sim_bridge bridges[sim_bridges];
    struct sim_broker broker;
    struct sim_aggregator aggregators[sim_aggregators];

    /* counted from the second second on, for aggregators that send requests */
    uint64_t stream_ms, exact_ms;
    uint64_t steps;
};

/* The results of a run. */
struct sim_result {
    bool has_failed;
    char failure[512];
    uint64_t trace_hash;
    uint64_t stream_ms, exact_ms;
    bool is_repairable;
    size_t fault_count;
};

/* off: one bit for each fault that is left out. trace may be NULL. */
void sim_run(uint64_t seed, uint32_t off, FILE *trace, struct sim_result *out_result);

/* The fault as a line: "3 5.120 s cut_link of stream 1 for 2.300 s". */
void sim_print_fault(FILE *out, uint64_t seed, size_t number);

/* Only the first failure is kept. */
__attribute__((format(printf, 2, 3))) void
sim_fail(struct sim_world *world, const char *format, ...);
/* What costs too much and makes no list wrong: the run goes on, because a worse failure may follow,
 * and fails with this if none does. */
__attribute__((format(printf, 2, 3))) void
sim_cost(struct sim_world *world, const char *format, ...);
/* Records one event of the run in the hash, and prints it when there is a trace. */
__attribute__((format(printf, 2, 3))) void
sim_note(struct sim_world *world, const char *format, ...);

static inline unsigned sim_bridge_of(const struct sim_world *world, size_t stream)
{
    return (unsigned)(stream / world->rank_count_of_worker % world->bridge_count);
}
uint64_t sim_worker_of(const struct sim_world *world, size_t stream);
uint32_t sim_rank_of(const struct sim_world *world, size_t stream);
/* SIZE_MAX: none. */
size_t sim_stream_of(const struct sim_world *world, uint64_t worker, uint32_t rank);

/* faults.c */
void sim_plan_faults(struct sim_world *world);
void sim_step_faults(struct sim_world *world);
void sim_print_one(FILE *out, const struct sim_world *world, size_t number);
/* The active fault of this kind for this target, or NULL. */
struct sim_fault *sim_active(struct sim_world *world, enum sim_fault_kind kind, unsigned target);
bool sim_hits(struct sim_world *world, enum sim_fault_kind kind, unsigned target);
bool sim_is_planned(const struct sim_world *world, enum sim_fault_kind kind, unsigned target);
/* The end of the last fault whose effect may still be in this list; UINT64_MAX: not yet over. */
uint64_t sim_quiet_since(const struct sim_world *world, size_t stream, size_t aggregator);

/* engine.c */
void sim_engine_begin(struct sim_world *world, size_t number);
void sim_engine_end(struct sim_engine *engine);
void sim_engine_step(struct sim_world *world, size_t number);
void sim_engine_restart(struct sim_world *world, size_t number, uint64_t pause_ns);
/* Makes this many batches at once, which are only in the replay buffer. */
void sim_engine_burst(struct sim_world *world, size_t number, uint64_t to_seq);
uint64_t sim_engine_next_seq(const struct sim_engine *engine);
/* The first batch in the replay buffer with seq >= from; batch_count when there is none. */
uint32_t sim_engine_find(const struct sim_engine *engine, uint64_t from);
struct sim_name *sim_engine_name(const struct sim_engine *engine, uint64_t block);
bool sim_batch_holds(const struct sim_batch *batch, uint64_t block);
/* Whether replays prove nothing, because they come from another engine or the buffer is empty. */
bool sim_engine_is_baseless(const struct sim_world *world, size_t number);
/* Whether the buffer has a batch from which the history is complete. */
bool sim_engine_has_base(const struct sim_engine *engine);
void sim_engine_note_ruin(struct sim_engine *engine, enum sim_fault_kind kind);

/* link.c */
void sim_link_begin(struct sim_world *world, size_t number);
void sim_link_end(struct sim_link *link);
void sim_link_send(struct sim_world *world, size_t number, uint32_t batch);
void sim_link_step(struct sim_world *world, size_t number);
void sim_link_engine_gone(struct sim_world *world, size_t number);
void sim_link_bridge_gone(struct sim_world *world, size_t number);
/* The next report of the monitor. */
struct kvb_link_report sim_link_read_monitor(struct sim_world *world, size_t number);
bool sim_link_receive(struct sim_world *world, size_t number, struct sim_flying *out);

/* True: a batch that came at since_ns or before is not read yet. */
bool sim_link_waits_since(const struct sim_world *world, size_t number, uint64_t since_ns);
void sim_link_request(struct sim_world *world, size_t number, uint64_t from);
void sim_link_stop_request(struct sim_link *link);

/* The connection is lost, and what was still to come of the answer with it. */
void sim_link_lose_answer(struct sim_link *link);
bool sim_link_reply(struct sim_world *world, size_t number, struct sim_flying *out);

/* bridge.c */
void sim_bridge_begin(struct sim_world *world, size_t number);
void sim_bridge_crash(struct sim_world *world, size_t number);
void sim_bridge_stop(struct sim_world *world, size_t number);
void sim_bridge_end(struct sim_world *world, size_t number);
uint64_t sim_wall_us(const struct sim_world *world, size_t stream);
void sim_bridge_turn(struct sim_world *world, size_t number);

/* checkpoint.c */
void sim_disk_begin(struct sim_disk *disk);
void sim_disk_end(struct sim_disk *disk);
void sim_disk_crash(struct sim_world *world, const struct sim_rank *rank);
void sim_spoil_file(struct sim_world *world, size_t stream, uint64_t rng);
void sim_restore(struct sim_world *world, struct sim_rank *rank);
void sim_save(struct sim_world *world, struct sim_rank *rank);
void sim_save_all(struct sim_world *world, struct sim_rank *rank);
void sim_void_checkpoint(struct sim_world *world, struct sim_rank *rank);
void sim_telling_epoch(struct sim_world *world, struct sim_rank *rank, const kvb_epoch *epoch);

/* advertise.c */
void sim_advertise_begin(const struct sim_world *world, struct sim_rank *rank);
kvb_status sim_publish_events(
    struct sim_world *world, struct sim_rank *rank, const struct kvb_router_batch *events);
kvb_status sim_publish_chunk(
    struct sim_world *world, struct sim_rank *rank, const struct kvb_router_batch *chunk);
void sim_beat(struct sim_world *world, struct sim_rank *rank, bool is_bye);

/* sync.c */
void sim_bridge_receive_request(
    struct sim_world *world, size_t number, const struct sim_message *ask);
void sim_work_jobs(struct sim_world *world, size_t number);

/* broker.c */
void sim_broker_step(struct sim_world *world);
void sim_broker_end(struct sim_world *world);
struct sim_message *sim_message_new(struct sim_world *world, enum sim_message_kind kind);
void sim_message_copy_events(struct sim_message *message, const struct kvb_router_batch *events);
/* Sends to all connected aggregators; does not take ownership. */
void sim_publish(
    struct sim_world *world, size_t stream, enum sim_message_kind kind,
    const struct kvb_heartbeat *beat, const struct kvb_router_batch *events);
void sim_answer(
    struct sim_world *world, const struct sim_job *job, const struct kvb_sync_reply *reply);
void sim_request(
    struct sim_world *world, size_t aggregator, const struct kvb_follower_request *ask);
/* False: it is on its way, or a frozen server holds it. */
bool sim_has_arrived(const struct sim_world *world, const struct sim_message *message);
/* The next message that has arrived, or NULL. The caller gives it back. */
struct sim_message *sim_take(struct sim_world *world, struct sim_mailbox *box);
void sim_give_back(struct sim_world *world, struct sim_message *message);
/* Gives it back after it was received. */
void sim_remember(struct sim_world *world, struct sim_message *message);
void sim_empty(struct sim_world *world, struct sim_mailbox *box);
void sim_client_lose(struct sim_world *world, struct sim_client *client);

/* aggregator.c */
void sim_aggregator_begin(struct sim_world *world, size_t number);
void sim_aggregator_end(struct sim_world *world, size_t number);
void sim_aggregator_turn(struct sim_world *world, size_t number);

/* truth.c */
void sim_story_take(struct sim_story *story, const struct kvb_router_batch *events);
/* The stream continues from its checkpoint. is_same_epoch: it publishes again what it published
 * since then. */
void sim_story_restore(
    struct sim_story *story, const struct kvb_stream *stream, bool is_same_epoch);
bool sim_story_is_of(const struct sim_story *story, const kvb_epoch *epoch);
void sim_story_open(struct sim_story *story, const kvb_epoch *epoch, uint64_t first_id);
bool sim_story_sum(
    const struct sim_story *story, const kvb_epoch *epoch, uint64_t event_id, uint64_t *out_sum);
uint64_t sim_spread(uint64_t name);
bool sim_story_holds(const struct sim_story *story, uint64_t block);

/* checks.c */
/* Called after each step of the stream. */
void sim_check_rank(struct sim_world *world, struct sim_rank *rank);
/* Called when an engine answers: whether it was asked for its whole buffer again too soon. */
void sim_check_ration(struct sim_world *world, size_t number);

void sim_check_beat(
    struct sim_world *world, const struct sim_rank *rank, const struct kvb_heartbeat *beat);
void sim_check_lists(struct sim_world *world, size_t number, bool all);
void sim_check_digests(struct sim_world *world, size_t number);
void sim_check_end(struct sim_world *world);
void sim_note_progress(struct sim_world *world);
