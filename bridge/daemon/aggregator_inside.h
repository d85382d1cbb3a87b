#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/metric.h"
#include "core/ring.h"
#include "daemon/aggregator.h"
#include "daemon/aggregator_metrics.h"
#include "daemon/byte_budget.h"
#include "daemon/service_desk.h"
#include "index/prefix_index.h"
#include "load/tracker.h"
#include "model/router_batch.h"
#include "serve/board.h"
#include "serve/http.h"
#include "serve/routes.h"
#include "serve/view.h"
#include "stream/follower.h"
#include "wire/prompt_json.h"
#include "wire/sync.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The inside of a running aggregator, for the aggregator_*.c files alone. */

enum {
    kvb_aggregator_most_rows = 2048, /* streams in one NATS answer: about 600 KiB */
    kvb_aggregator_page_bytes = 384 << 10,
    kvb_aggregator_events_a_turn_us = 200, /* between two looks at the questions */
    kvb_aggregator_slice_blocks = 1024,    /* of one message at a time: some 100 us */
    kvb_aggregator_asks_a_turn_us = 1000,  /* of questions, where events wait meanwhile */
    kvb_question_count = 6
};

/* What was asked over NATS, per question. */
struct question_counts {
    uint64_t requests;
    uint64_t errors;
    uint64_t processing_ns;
    char last_error[kvb_service_error_bytes];
};

/* The aggregator as a NATS micro-service. */
struct aggregator_service {
    struct kvb_service identity;
    struct kvb_service_desk *desk; /* owned */
    pthread_mutex_t lock;          /* counts */
    struct question_counts counts[kvb_question_count];
    struct question_counts shown[kvb_question_count]; /* the desk's */
};

struct ask; /* aggregator_asks.c */

struct kvb_aggregator {
    const struct kvb_aggregator_config *config; /* borrowed, like log */
    struct kvb_log *log;

    struct kvb_bus *bus; /* owned, like all below */
    struct kvb_bus_subscription *heard;
    struct kvb_bus_subscription *answers;
    char inbox[kvb_subject_bytes]; /* answers of bridges: {inbox}.{token in hex} */
    struct kvb_bus_subscription *echo;
    char echo_subject[kvb_subject_bytes + 8];
    _Atomic uint64_t echoes_heard;
    struct kvb_bus_subscription *asked_match;
    struct kvb_bus_subscription *asked_route;
    struct kvb_bus_subscription *asked_get;
    struct kvb_http *http;
    struct aggregator_service service;
    struct kvb_board *board;
    struct kvb_ring *events;
    struct kvb_ring *asks;
    struct kvb_byte_budget event_bytes;
    struct kvb_byte_budget asked_bytes;
    char load_subject[kvb_subject_bytes];
    char hit_rate_subject[kvb_subject_bytes];
    char alias_subject[kvb_subject_bytes]; /* "" = none */

    /* The index thread's own. */
    pthread_t thread;
    bool has_thread;
    int news_fd; /* owned; readable when the connection changed */
    atomic_bool is_stopping;
    struct ask *unfinished; /* owned list: long answers in the making */
    struct kvb_prefix_index *index;
    struct kvb_followers *followers;
    struct kvb_load_tracker *tracker;
    struct kvb_view view;
    struct kvb_router_batch batch; /* decoded into, again and again, like the next */
    struct kvb_stream_id batch_id; /* whose events it holds */
    size_t next_event;             /* of the batch: the rest is to be applied */
    struct kvb_prompt_event prompt;
    struct kvb_sync_reply_parts answer_parts;
    struct kvb_buf buf;
    bool was_connected; /* and heard: NATS passes on what we say */
    uint64_t connects_seen;
    uint64_t echoes_sent;
    uint64_t echo_sent_ns; /* the oldest one that was not heard */
    uint64_t next_echo_ns;
    bool has_load_changed;
    uint64_t load_published_ns;
    uint64_t next_tick_ns;
    uint64_t next_process_ns;
    struct kvb_log_limit refusals;

    /* Read by HTTP threads. */
    _Atomic uint64_t connects_subscribed; /* the connection on which we heard our echo */
    _Atomic uint64_t values[kvb_aggregator_metric_count];
    struct kvb_metrics metrics;
};

/* ---- aggregator_intake.c: from NATS to followers and tracker ---- */

/* On nats.c's thread. */
void kvb_aggregator_hear(void *context, const struct kvb_bus_message *message);

void kvb_aggregator_hear_answer(void *context, const struct kvb_bus_message *message);

/* Applies what lies in the event ring, a turn's worth; true when there was any. */
bool kvb_aggregator_take_events(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* Frees what nobody takes any more: the drop of the event ring. */
void kvb_aggregator_drop_event(void *item);

/* ---- aggregator_asks.c: questions and answers ---- */

/* On nats.c's threads. */
void kvb_aggregator_hear_question(void *context, const struct kvb_bus_message *message);

/* On HTTP threads. */
void kvb_aggregator_answer_http(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);

/* Answers what lies in the query ring, a turn's worth; true when there was any. */
bool kvb_aggregator_take_asks(struct kvb_aggregator *aggregator);
void kvb_aggregator_drop_ask(void *item);

/* Lets go of long answers that are not finished; when the index thread has ended. */
void kvb_aggregator_drop_unfinished(struct kvb_aggregator *aggregator);

/* ---- aggregator_questions.c: what may be asked over NATS ---- */

struct kvb_question;

/* By the subject's tail: "kv_match", "kv_get.state".  NULL: no such question. */
const struct kvb_question *kvb_question_find(const char *tail);

/* Its place in the list, 0 .. kvb_question_count-1, and what stands there. */
size_t kvb_question_number(const struct kvb_question *question);
const char *kvb_question_tail(size_t number);

/* Its payload is a query, to be read by the asker's thread: kv_match, kv_route. */
bool kvb_question_has_prompt(const struct kvb_question *question);

/* What is asked, and what becomes of it. */
struct kvb_asked {
    const struct kvb_query *query; /* borrowed, like payload; where it has a prompt */
    kvb_status read;               /* KVB_OK: query is what it says */
    struct kvb_detail detail;      /* why it could not be read, or answered */
    kvb_span payload;              /* of a question without a prompt */
    struct kvb_buf *out;           /* borrowed; the answer, or {"error":...}, is appended */
    bool has_decision;             /* out: a route was chosen */
    struct kvb_route_decision decision;
};

void kvb_question_answer(
    const struct kvb_question *question, struct kvb_aggregator *aggregator,
    struct kvb_asked *asked);

/* ---- aggregator_sync.c: asking bridges ---- */
kvb_status kvb_aggregator_open_sync(struct kvb_aggregator *aggregator);

/* False: the server takes what we say and passes nothing on, whatever the connection
 * looks like. */
bool kvb_aggregator_hears_itself(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* Sends the requests that are due. */
void kvb_aggregator_ask_bridges(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* ---- aggregator_report.c: what is said every so often ---- */
void kvb_aggregator_publish(
    struct kvb_aggregator *aggregator, const char *subject, kvb_span payload);
void kvb_aggregator_publish_load(struct kvb_aggregator *aggregator, uint64_t now_ns);
void kvb_aggregator_publish_decision(
    struct kvb_aggregator *aggregator, const struct kvb_route_decision *decision);
void kvb_aggregator_set_constants(struct kvb_aggregator *aggregator);
void kvb_aggregator_update_metrics(struct kvb_aggregator *aggregator, uint64_t now_ns);
/* After update_metrics(), whose figures it takes. */
void kvb_aggregator_update_board(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* ---- aggregator_service.c: the NATS micro-service protocol ---- */
kvb_status kvb_aggregator_open_service(struct kvb_aggregator *aggregator);

/* A request over NATS was dealt with; error NULL: it was answered.  An error of a
 * request that was noted already.  Any thread. */
void kvb_aggregator_note_request(
    struct kvb_aggregator *aggregator, const struct kvb_question *question, uint64_t processing_ns,
    const char *error);
void kvb_aggregator_note_error(
    struct kvb_aggregator *aggregator, const struct kvb_question *question, const char *error);

/* ---- aggregator_loop.c: the index thread ---- */

/* NULL, or why no events can come just now.  Any thread. */
const char *kvb_aggregator_not_ready(const struct kvb_aggregator *aggregator);
void *kvb_aggregator_run(void *context);
