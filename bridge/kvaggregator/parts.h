#pragma once

/* The parts of a running aggregator.  Each part is a struct with a header of its own; a file
 * includes the headers of the parts that it uses.  aggregator.c holds them all, starts and ends
 * them.
 *
 *     nats.c, HTTP, gRPC           index thread                     whoever reads
 *
 *     intake.h  ---- events ---->  loop.h: replica/turn.h  ------>  report.h   load, metrics, page
 *     doors/    ---- queries --->    index, followers, tracker      books.h    other aggregators
 *     (pending.h, queries.h)         audit.h   verdicts             service.h  $SRV, kinds of query
 *                                    group.h   ready?               texts.h    the tokenizer
 *
 * Threads: the pointers do not change between start and end.  What they point to says who may use
 * it; index, followers, tracker, books and query context are the index thread's, or of who has
 * queries->index_lock while that waits. */

struct kvb_aggregator_books;
struct kvb_aggregator_config;
struct kvb_aggregator_service;
struct kvb_audit;
struct kvb_audit_marks;
struct kvb_buf;
struct kvb_bus;
struct kvb_control;
struct kvb_dashboard;
struct kvb_followers;
struct kvb_gateways;
struct kvb_group;
struct kvb_grpc;
struct kvb_http;
struct kvb_intake;
struct kvb_load_tracker;
struct kvb_log;
struct kvb_loop;
struct kvb_metrics;
struct kvb_permissions;
struct kvb_predictions;
struct kvb_prefix_index;
struct kvb_queries;
struct kvb_query_context;
struct kvb_report;
struct kvb_requests;
struct kvb_subject_names;

struct kvb_aggregator {
    const struct kvb_aggregator_config *config; /* borrowed */
    struct kvb_log *log;                        /* borrowed */

    /* Held by aggregator.c beside this. */
    struct kvb_intake *intake;
    struct kvb_queries *queries;
    struct kvb_loop *loop;
    struct kvb_group *group;
    struct kvb_aggregator_service *service;
    struct kvb_aggregator_books *books;
    struct kvb_audit_marks *marks;
    struct kvb_report *report;
    struct kvb_query_context *ctx;
    struct kvb_subject_names *names;
    struct kvb_permissions *permissions; /* needed on nats-server */
    struct kvb_metrics *metrics;         /* read by any thread */
    struct kvb_buf *buf;                 /* of who has the index: a message to be published */

    struct kvb_control *control;         /* owned */
    struct kvb_bus *bus;                 /* owned */
    struct kvb_http *http;               /* owned; NULL: off */
    struct kvb_grpc *grpc;               /* owned; NULL: off */
    struct kvb_gateways *gateways;       /* owned; NULL: off */
    struct kvb_dashboard *dashboard;     /* owned */
    struct kvb_prefix_index *index;      /* owned */
    struct kvb_followers *followers;     /* owned */
    struct kvb_load_tracker *tracker;    /* owned */
    struct kvb_requests *requests;       /* owned: of the books */
    struct kvb_predictions *predictions; /* owned: of the books */
    struct kvb_audit *audit;             /* owned */
};
