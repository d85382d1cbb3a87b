#pragma once

#include "core/status.h"
#include "daemon/service.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_aggregator;
struct kvb_pending_query;

/* The kinds of query over NATS, and the aggregator as a NATS micro-service, which shows how often
 * each was requested. */

struct kvb_query_kind;

enum {
    kvb_query_kind_count = 6,
    kvb_query_row_bytes = 512
}; /* room for a stream in an answer;
      about 300 are used */

/* Counters of the requests over NATS, for each kind of query. */
struct kvb_query_counts {
    uint64_t requests;
    uint64_t errors;
    uint64_t processing_ns;
    char last_error[kvb_service_error_bytes];
};

struct kvb_aggregator_service {
    struct kvb_service identity;
    struct kvb_service_responder *responder; /* owned */
    pthread_mutex_t lock;
    struct kvb_query_counts counts[kvb_query_kind_count]; /* under the lock */
    struct kvb_query_counts shown[kvb_query_kind_count];  /* the responder's */
};

kvb_status kvb_aggregator_open_service(struct kvb_aggregator *aggregator);

/* Finds a kind of query by the end of its subject: "kv_match", "kv_get.state".  NULL: there is no
 * such kind. */
const struct kvb_query_kind *kvb_query_kind_find(const char *tail);

/* True: the payload has a query, which the receiving thread decodes: kv_match, kv_route. */
bool kvb_query_kind_has_prompt(const struct kvb_query_kind *kind);

/* With the index: makes the answer of a query over NATS in its `answer`, and counts it.  What fails
 * becomes {"error":...}. */
void kvb_query_kind_answer(struct kvb_pending_query *pending);

/* Makes {"error":sentence} its answer, and counts it.  Any thread. */
void kvb_query_kind_fail(
    struct kvb_pending_query *pending, uint64_t processing_ns, const char *sentence);

/* Counts a request over NATS that was answered (error NULL) or failed.  The second function notes
 * an error of a request that was counted already.  Any thread. */
void kvb_aggregator_note_request(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, uint64_t processing_ns,
    const char *error);
void kvb_aggregator_note_error(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, const char *error);
