#pragma once

#include "core/span.h"
#include "core/status.h"
#include "kvaggregator/answers/answers.h"
#include "load/peers.h"
#include "model/query.h"

#include <stdbool.h>
#include <stdint.h>

struct kvb_aggregator;

/* One set of books for all aggregators: what is told to the others, and heard from them.
 *
 * Threads: the index thread, or who has queries->index_lock. */

struct kvb_aggregator_books {
    struct kvb_peers peers;
    uint64_t decisions; /* how many so far, which is the sequence number of the newest */
    uint64_t status_ns; /* when the newest status was published */
    uint64_t connects_listened;
};

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

/* Publish a decision of this aggregator, or a report that came over HTTP or from a gateway, for the
 * other aggregators.  sender: this aggregator, which has entered the report; NULL: it could not,
 * and takes it when it comes back over NATS.  A report: any thread. */
void kvb_aggregator_share_decision(
    struct kvb_aggregator *aggregator, const struct kvb_route_decision *decision);
void kvb_aggregator_share_report(
    struct kvb_aggregator *aggregator, enum kvb_request_report_kind kind,
    const struct kvb_query *query, const struct kvb_books_sender *sender);

/* Once a tick: publishes the status when it is due, and decides who leads. */
void kvb_aggregator_update_peers(struct kvb_aggregator *aggregator, bool is_ready, uint64_t now_ns);

/* Publishes a goodbye, after the index thread has ended. */
void kvb_aggregator_say_bye(struct kvb_aggregator *aggregator);
