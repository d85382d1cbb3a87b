#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/metric.h"
#include "core/ring.h"
#include "core/thread.h"
#include "daemon/exact_share.h"
#include "daemon/http.h"
#include "daemon/service.h"
#include "grpc/server.h"
#include "index/index.h"
#include "kvaggregator/aggregator.h"
#include "kvaggregator/answers/dashboard.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/answers/routes.h"
#include "kvaggregator/byte_budget.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/permissions.h"
#include "kvaggregator/queries.h"
#include "load/peers.h"
#include "load/tracker.h"
#include "model/router_batch.h"
#include "replica/follower.h"
#include "replica/readiness.h"
#include "replica/turn.h"
#include "tokenize/tokenizer.h"
#include "wire/query/prompt.h"
#include "wire/router/sync.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The internal structure of a running aggregator, only for the files of this folder. */

enum {
    kvb_aggregator_row_bytes = 512, /* room for a stream in a NATS answer; about 300 are used */
    kvb_aggregator_page_bytes = 128 << 10, /* rows of a page: under 1 ms */
    kvb_aggregator_slice_blocks = 1024,    /* blocks of a message applied at a time: about 100 us */
    kvb_aggregator_count_streams_ms = 100,
    kvb_aggregator_request_subjects = 3, /* kv_match, kv_route, kv_get.* */
    kvb_query_kind_count = 6
};

/* Counters of the requests over NATS, for each kind of query. */
struct query_counts {
    uint64_t requests;
    uint64_t errors;
    uint64_t processing_ns;
    char last_error[kvb_service_error_bytes];
};

/* The aggregator as a NATS micro-service. */
struct aggregator_service {
    struct kvb_service identity;
    struct kvb_service_responder *responder; /* owned */
    pthread_mutex_t lock;                    /* counts */
    struct query_counts counts[kvb_query_kind_count];
    struct query_counts shown[kvb_query_kind_count]; /* the responder's */
};

/* What the index thread applies, a subscription each. */
enum intake_kind {
    KVB_INTAKE_EVENTS,
    KVB_INTAKE_EVENTS_PB,
    KVB_INTAKE_WINDOW_EVENTS,
    KVB_INTAKE_HEARTBEATS,
    KVB_INTAKE_LOAD,
    KVB_INTAKE_ANSWERS,
    KVB_INTAKE_ROUTED, /* this and the next three: the books that aggregators share */
    KVB_INTAKE_FINISHED,
    KVB_INTAKE_FIRST_TOKEN,
    KVB_INTAKE_STATUS,
    KVB_INTAKE_ECHO,
    KVB_INTAKE_COUNT
};

struct intake {
    struct kvb_aggregator *aggregator;         /* borrowed */
    struct kvb_bus_subscription *subscription; /* owned */
    enum intake_kind kind;
    char subject[kvb_subject_bytes];
};

/* What an aggregator sends itself: see loop.c. */
struct kvb_echo {
    uint64_t connects; /* of the connection that it was sent on */
    uint64_t number;
};

/* The membership in the queue group of requests; see kvaggregator/group.c. */
struct aggregator_group {
    struct kvb_bus_subscription *shared[kvb_aggregator_request_subjects]; /* the group thread's;
                                                                             owned, like own */
    struct kvb_bus_subscription *own[kvb_aggregator_request_subjects];    /* R.kv_match.{id}, ... */
    struct kvb_thread thread; /* while there is a queue group */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum kvb_group_action wanted; /* protected by lock; the next two too */
    enum kvb_group_result result;
    bool is_ending;
    atomic_bool is_leaving;  /* it never joins again */
    _Atomic int shown_cause; /* the cause of readiness, for other threads; the next too */
    _Atomic int shown_state;
    struct kvb_exact_share share;
    /* The index thread's own. */
    struct kvb_readiness readiness;
    struct kvb_readiness_facts facts;
    uint64_t next_count_ns; /* when its streams are counted next */
    bool is_denied;         /* a vital permission is denied */
};

struct received; /* kvaggregator/intake.c */

enum { kvb_aggregator_applied_messages = 64 };

/* Items of the event ring that can be used again.  An item that was applied is freed with others,
 * together with its message of nats.c. */
struct received_pool {
    pthread_mutex_t lock;
    struct received *spare; /* owned list */
    size_t spare_count;
    struct received *applied[kvb_aggregator_applied_messages]; /* owned; the index thread's own */
    size_t applied_count;
    size_t applied_bytes; /* of event_bytes, not given back yet */
};

struct kvb_aggregator {
    const struct kvb_aggregator_config *config; /* borrowed, like log */
    struct kvb_log *log;

    struct kvb_subject_names names;
    struct kvb_permissions permissions; /* needed on nats-server */

    struct kvb_control *control; /* owned; all fields below too */
    struct kvb_bus *bus;
    struct intake intakes[KVB_INTAKE_COUNT];
    char inbox[2 * 16 + 1];         /* answers of bridges: {prefix}.{inbox}.{token in hex} */
    _Atomic uint64_t echo_returned; /* the number of the newest echo that has */
    uint64_t echo_applied; /* and that came out of the event ring; the index thread's own */
    _Atomic uint64_t lost; /* messages that found no room in the ring, or no memory, so far */
    uint64_t lost_seen;    /* as the followers know; the index thread's own */
    struct aggregator_group group;
    struct kvb_http *http;
    struct kvb_grpc *grpc;
    struct aggregator_service service;
    struct kvb_dashboard *dashboard;
    struct kvb_ring *events;
    struct kvb_queries queries;
    struct kvb_byte_budget event_bytes;
    struct received_pool received_pool;
    char load_subject[kvb_subject_bytes];
    char hit_rate_subject[kvb_subject_bytes];
    char alias_subject[kvb_subject_bytes]; /* "" = none */

    /* The index thread's own, or under queries.index_lock while that waits for work. */
    struct kvb_thread thread;
    int update_fd; /* owned; readable when the connection changed */
    atomic_bool is_stopping;
    bool has_load_changed;
    _Atomic uint64_t turned_ns; /* when the newest turn began; read by HTTP threads */
    struct kvb_prefix_index *index;
    struct kvb_followers *followers;
    struct kvb_load_tracker *tracker;
    struct kvb_requests *requests;
    struct kvb_predictions *predictions;
    struct kvb_audit *audit;
    uint64_t next_mark_ns; /* when its verdicts are compared with all streams next */
    uint64_t said_short;   /* its block_short, as logged last */
    uint64_t marked;       /* its alarms, returns and doubted streams, as marked last */
    struct kvb_peers peers;
    uint64_t decisions; /* how many so far, which is the sequence number of the newest */
    uint64_t status_ns; /* when the newest status was published */
    uint64_t connects_listened;
    struct kvb_query_context ctx;
    struct kvb_router_batch batch; /* scratch space for decoding; the next field too */
    struct kvb_stream_id batch_id; /* the stream of its events */
    size_t next_event;             /* next event of the batch to apply */
    uint64_t batch_arrived_ns;
    struct kvb_prompt_event prompt;
    struct kvb_sync_reply_parts answer_parts;
    struct kvb_buf buf;
    struct kvb_replica_turn turn;
    uint64_t load_published_ns;
    uint64_t next_process_ns;
    struct kvb_log_limit refusals;

    /* Read by HTTP threads. */
    _Atomic uint64_t connects_subscribed; /* the connection that returned our message */
    _Atomic uint64_t values[kvb_aggregator_metric_count];
    struct kvb_metrics metrics;
};

/* ---- kvaggregator/intake.c: from NATS to followers and tracker ---- */

/* Subscribes to all that the index thread applies.  On failure the caller still closes. */
kvb_status kvb_aggregator_open_intake(struct kvb_aggregator *aggregator);
void kvb_aggregator_close_intake(struct kvb_aggregator *aggregator);

/* The handler of all its subscriptions, on nats.c's thread; the context is a struct intake. */
void kvb_aggregator_receive(void *context, const struct kvb_bus_message *message);

/* On the index thread: applies the next message, or a part of it; false: there is none. */
bool kvb_aggregator_take_message(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* The same for at least one message, and others until then.  False: there was none. */
bool kvb_aggregator_take_messages(
    struct kvb_aggregator *aggregator, uint64_t now_ns, uint64_t until_ns);

/* For how long the oldest message has waited here. */
uint64_t kvb_aggregator_lag_ns(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* What a turn has to know: all but the facts of messages.  Any thread. */
void kvb_aggregator_read_facts(
    const struct kvb_aggregator *aggregator, struct kvb_replica_facts *out_facts);

/* On the index thread: the time, and the facts of messages. */
void kvb_aggregator_read_intake_facts(
    struct kvb_aggregator *aggregator, struct kvb_replica_facts *out_facts);

/* The event ring's drop function: frees a message that was not taken. */
void kvb_aggregator_drop_event(void *item);

/* done(): after all threads have ended. */
void kvb_aggregator_init_pool(struct kvb_aggregator *aggregator);
void kvb_aggregator_done_pool(struct kvb_aggregator *aggregator);

/* ---- kvaggregator/service.c: the kinds of query over NATS, and the micro-service ---- */

struct kvb_query_kind;

/* Finds a kind of query by the end of its subject: "kv_match", "kv_get.state".  NULL: there is no
 * such kind. */
const struct kvb_query_kind *kvb_query_kind_find(const char *tail);

/* True: the payload has a query, which the receiving thread decodes: kv_match, kv_route. */
bool kvb_query_kind_has_prompt(const struct kvb_query_kind *kind);

struct kvb_pending_query;

/* With the index: makes the answer of a query over NATS in its `answer`, and counts it.  What fails
 * becomes {"error":...}. */
void kvb_query_kind_answer(struct kvb_pending_query *pending);

/* Makes {"error":sentence} its answer, and counts it.  Any thread. */
void kvb_query_kind_fail(
    struct kvb_pending_query *pending, uint64_t processing_ns, const char *sentence);

kvb_status kvb_aggregator_open_service(struct kvb_aggregator *aggregator);

/* Counts a request over NATS that was answered (error NULL) or failed.  The second function notes
 * an error of a request that was counted already.  Any thread. */
void kvb_aggregator_note_request(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, uint64_t processing_ns,
    const char *error);
void kvb_aggregator_note_error(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, const char *error);

/* ---- kvaggregator/books.c: one set of books for all aggregators ---- */

/* Draws a random number that distinguishes this process from another one with the same id.  After
 * kvb_aggregator_open_service().  KVB_IO. */
kvb_status kvb_aggregator_name_self(struct kvb_aggregator *aggregator);

/* Take a message of the books.  KVB_BAD_INPUT, KVB_TOO_LARGE, KVB_NO_MEMORY; another version is
 * skipped and counted. */
kvb_status
kvb_aggregator_take_decision(struct kvb_aggregator *aggregator, kvb_span payload, uint64_t now_ns);
kvb_status kvb_aggregator_take_request_report(
    struct kvb_aggregator *aggregator, enum kvb_request_report_kind kind, kvb_span payload,
    uint64_t now_ns);
kvb_status
kvb_aggregator_take_status(struct kvb_aggregator *aggregator, kvb_span payload, uint64_t now_ns);

/* Publish a decision of this aggregator, or a report that arrived over HTTP, for the other
 * aggregators. */
void kvb_aggregator_share_decision(
    struct kvb_aggregator *aggregator, const struct kvb_route_decision *decision);
void kvb_aggregator_share_report(
    struct kvb_aggregator *aggregator, enum kvb_request_report_kind kind,
    const struct kvb_query *query);

/* Once a tick: publishes the status when it is due, and decides who leads. */
void kvb_aggregator_update_peers(struct kvb_aggregator *aggregator, bool is_ready, uint64_t now_ns);

/* Publishes a goodbye, after the index thread has ended. */
void kvb_aggregator_say_bye(struct kvb_aggregator *aggregator);

/* ---- kvaggregator/audit.c: streams whose engines deliver less than the lists promise ---- */

/* On received messages, before they are applied: removed blocks and emptied lists. */
void kvb_aggregator_audit_events(
    struct kvb_aggregator *aggregator, const struct kvb_router_batch *slice);
void kvb_aggregator_audit_heartbeat(
    struct kvb_aggregator *aggregator, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat);

/* Once a tick: marks streams as UNVERIFIED(audit) or no longer, and updates the metrics. */
void kvb_aggregator_update_audit(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* ---- kvaggregator/loop.c: the index thread, and requests to bridges ---- */

void *kvb_aggregator_run(void *context);

/* ---- kvaggregator/group.c: the queue group of requests over NATS ---- */

/* Called before all other functions of the group; done_group() undoes it. */
void kvb_aggregator_init_group(struct kvb_aggregator *aggregator);

/* Starts the group thread, after the service has its id.  On failure the caller still closes. */
kvb_status kvb_aggregator_open_group(struct kvb_aggregator *aggregator);

/* On the index thread, in each turn. */
void kvb_aggregator_step_group(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* Leaves the group for good and waits, at most 3 s, until all requests that were received are in
 * the query ring, or the one of long queries.  On the main thread, while the index thread runs. */
void kvb_aggregator_leave_group(struct kvb_aggregator *aggregator);
void kvb_aggregator_close_group(struct kvb_aggregator *aggregator);
void kvb_aggregator_done_group(struct kvb_aggregator *aggregator);

/* NULL, or why this aggregator is not ready: a constant, or in detail.  Any thread. */
const char *
kvb_aggregator_not_ready(const struct kvb_aggregator *aggregator, struct kvb_detail *detail);

/* Why /livez answers 503; NULL: the index thread makes progress.  Any thread. */
const char *kvb_aggregator_not_live(const struct kvb_aggregator *aggregator);

/* ---- kvaggregator/report.c: periodic messages ---- */
void kvb_aggregator_publish(
    struct kvb_aggregator *aggregator, const char *subject, kvb_span payload);
void kvb_aggregator_publish_load(struct kvb_aggregator *aggregator, uint64_t now_ns);
void kvb_aggregator_publish_decision(
    struct kvb_aggregator *aggregator, const struct kvb_route_decision *decision);
void kvb_aggregator_set_constants(struct kvb_aggregator *aggregator);
void kvb_aggregator_update_metrics(struct kvb_aggregator *aggregator, uint64_t now_ns);
/* Called after update_metrics(), whose values it uses. */
void kvb_aggregator_update_dashboard(struct kvb_aggregator *aggregator, uint64_t now_ns);
